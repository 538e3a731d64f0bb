// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! To whom a vCPU is shown, and the watch of switches, as C sees them.

use core::ffi::c_int;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use guest_kmod::shown::{Leave, Observer, Shown, Subject};
use guest_kmod::watch::{Watch, idle_users_delay_ms};
use shared_abi::{Errno, VcpuPage};

use crate::requests::perfctr_core_stop_cpu_wide;
use crate::{ThreadObject, VcpuObject, to_return};

unsafe extern "C" {
    /// The thread that executes this.
    fn perfctr_glue_present(present: *mut Subject);
}

/// Who executes this.
pub(crate) trait Present {
    fn present() -> Self;
}

impl Present for Subject {
    fn present() -> Self {
        let mut present = Self::default();
        // SAFETY: the kernel writes these words, of the thread that it executes here.
        unsafe { perfctr_glue_present(&raw mut present) };
        present
    }
}

/// The observer of a thread that needs its page registered: the thread shows there itself what it
/// does.
pub(crate) fn observer_of(thread: Option<&ThreadObject>) -> Option<u32> {
    let thread = thread.filter(|thread| thread.needs_page.get())?;
    // SAFETY: C keeps the user for as long as the thread's counters.
    Some(unsafe { &*thread.observer }.number)
}

/// Numbers of observers that were given; 0 is nobody's.
static OBSERVERS: AtomicU32 = AtomicU32::new(0);
static WATCH: Watch = Watch::new();

impl VcpuObject {
    /// Takes back the page that is registered, if any.
    ///
    /// # Safety
    ///
    /// The caller executes on this vCPU, with interrupts disabled, and has no other reference to
    /// what the vCPU knows.
    pub(crate) unsafe fn hide(&self) -> Result<(), Errno> {
        // SAFETY: on this vCPU, interrupts disabled, as the caller says.
        unsafe { self.cpu() }.unregister()?;
        // C may free the other one now.
        self.page.set(self.perfs);
        Ok(())
    }

    /// Registers a page in place of what is registered.
    ///
    /// # Safety
    ///
    /// The caller executes on this vCPU, with interrupts disabled, and has no other reference to
    /// what the vCPU knows. The page outlives its registration.
    unsafe fn show(&self, page: *const VcpuPage, observer: &Observer) -> Result<(), Errno> {
        // SAFETY: on this vCPU, interrupts disabled, as the caller says.
        unsafe { self.cpu() }.make_room()?;
        self.page.set(page);
        // SAFETY: as above; the reference before is gone.
        unsafe { self.cpu() }.show(observer)
    }

    /// Registers the page of the user whose counters these are, unless it is registered.  Where
    /// that is refused, whoever counts here is told why.
    ///
    /// # Safety
    ///
    /// The caller executes on this vCPU, with interrupts disabled, and has no other reference to
    /// what the vCPU or the thread knows.
    pub(crate) unsafe fn show_page_of(&self, thread: &ThreadObject) {
        // SAFETY: C keeps the user for as long as the thread's counters.
        let observer = unsafe { &*thread.observer };
        // SAFETY: on this vCPU, interrupts disabled, as the caller says.
        if !unsafe { self.cpu() }.vcpu.lacks_page_of(observer) {
            return;
        }
        // SAFETY: C has a page there for each possible CPU, and keeps it as long as the user.
        let page = unsafe { *thread.pages.add(self.number as usize) };
        // SAFETY: on this vCPU, interrupts disabled, as the caller says; before C gives the page
        // back it has every vCPU take it back.
        let _ = unsafe { self.show(page, observer) };
    }

    /// The same for a thread that comes to execute here, if it needs the page.
    ///
    /// # Safety
    ///
    /// As [`Self::show_page_of`].
    #[inline(always)]
    pub(crate) unsafe fn show_page_if_needed(&self, thread: &ThreadObject) {
        if thread.needs_page.get() {
            // SAFETY: as the caller says.
            unsafe { self.show_page_of(thread) };
        }
    }

    /// The same with perf's page.
    ///
    /// # Safety
    ///
    /// The caller executes on this vCPU, with interrupts disabled, and has no other reference to
    /// what the vCPU knows.
    pub(crate) unsafe fn show_perfs(&self, subject: &Subject) -> Result<(), Errno> {
        // SAFETY: on this vCPU, interrupts disabled, as the caller says.
        unsafe { self.cpu() }.make_room()?;
        self.page.set(self.perfs);
        let fresh = perfctr_core_new_observer();
        // SAFETY: as above; the reference before is gone.
        unsafe { self.cpu() }.show_perfs(subject, fresh)
    }
}

/// The number of an observer: one that nobody has.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_new_observer() -> u32 {
    let number = OBSERVERS.fetch_add(1, Relaxed).wrapping_add(1);
    // After four billion it begins again.
    NonZeroU32::new(number).map_or_else(|| OBSERVERS.fetch_add(1, Relaxed) | 1, NonZeroU32::get)
}

/// What is registered with the vCPU; changes on that vCPU only.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_shown(vcpu: &VcpuObject) -> *const Shown {
    // SAFETY: makes no reference that outlives this call, and the object stays where it is.
    unsafe { (*vcpu.vcpu.get()).shown() }
}

/// Takes the page of an observer back from the vCPU if it is registered there; perf's events that
/// were counted in it go on in perf's.
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_hide(vcpu: &VcpuObject, observer: &Observer) {
    // SAFETY: on this vCPU, interrupts disabled.
    if !unsafe { vcpu.cpu() }.vcpu.lacks_page_of(observer) {
        // C sees in what is registered whether the hypervisor has refused.
        // SAFETY: as above; the reference before is gone.
        let _ = unsafe { vcpu.hide() };
    }
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { perfctr_core_events_show(vcpu) };
}

/// Does what has to happen before a subject executes; `present` are the counters of the thread that
/// did so until now, if it has any.
///
/// # Safety
///
/// The caller executes on this vCPU, with interrupts disabled, in `present` or at the switch away
/// from it, and has no reference to what either of them knows.
unsafe fn leave(
    vcpu: &VcpuObject,
    present: Option<&ThreadObject>,
    leave: Leave,
    subject: &Subject,
) {
    if let Some(thread) = present.filter(|_| leave != Leave::Stay) {
        // SAFETY: this thread's switch, on this vCPU, interrupts disabled.
        let ((pmu, page), mut cpu) = unsafe { (thread.pmu(), vcpu.cpu()) };
        pmu.switch_out(page, &mut cpu);
    }
    // What the hypervisor refuses is asked for again at the next switch.
    let _ = match leave {
        Leave::Stay => Ok(()),
        // SAFETY: on this vCPU, interrupts disabled; the reference before is gone.
        Leave::Hide => unsafe { vcpu.hide() },
        // SAFETY: as above.
        Leave::ShowPerfs => unsafe { vcpu.show_perfs(subject) },
    };
}

/// Somebody comes to execute in place of `present`, if that has counters, who may not see what is
/// registered; or nothing is, and perf has events there.  See
/// [`Vcpu::leave_to`](guest_kmod::Vcpu::leave_to).  `coming` are the counters of the newcomer, if
/// it has any.
///
/// # Safety
///
/// C calls this on this vCPU, with interrupts disabled, at the switch from `present` to `coming`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_leave_to(
    vcpu: &VcpuObject,
    present: Option<&ThreadObject>,
    next: &Subject,
    coming: Option<&ThreadObject>,
) {
    // SAFETY: on this vCPU, interrupts disabled.
    let state = unsafe { vcpu.cpu() }.vcpu;
    let what = state.leave_to(next, observer_of(coming));
    state.note_who_comes(next, what);
    // SAFETY: as the caller says.
    unsafe { leave(vcpu, present, what, next) }
}

/// Who executes has become another subject without a switch; see
/// [`Vcpu::become_subject`](guest_kmod::Vcpu::become_subject).  `present` are its counters, if it
/// has any.
///
/// # Safety
///
/// C calls this on this vCPU, with interrupts disabled; `present` executes there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_become(vcpu: &VcpuObject, present: Option<&ThreadObject>) {
    let subject = Subject::present();
    // SAFETY: on this vCPU, interrupts disabled.
    let what = unsafe { vcpu.cpu() }.vcpu.become_subject(&subject, observer_of(present));
    // SAFETY: as the caller says.
    unsafe { leave(vcpu, present, what, &subject) }
}

/// perf's page is registered if none is, for events that are here; see
/// [`Vcpu::events_need_page_for`](guest_kmod::Vcpu::events_need_page_for).
///
/// # Safety
///
/// C calls this on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_show(vcpu: &VcpuObject) {
    // SAFETY: on this vCPU, interrupts disabled.
    let state = unsafe { vcpu.cpu() }.vcpu;
    if !state.events_stand_still() {
        return;
    }
    if let Some(subject) = state.events_need_page_for(&Subject::present()) {
        // What the hypervisor refuses is asked for again when perf enables its PMU.
        // SAFETY: as above; the reference before is not used any more.
        let _ = unsafe { vcpu.show_perfs(&subject) };
    }
}

/// The vCPU comes online; see [`Cpu::come_online`](guest_kmod::Cpu::come_online).
///
/// # Safety
///
/// C calls this on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_vcpu_online(vcpu: &VcpuObject) -> c_int {
    // SAFETY: on this vCPU, interrupts disabled.
    let hidden = unsafe { vcpu.hide() };
    // SAFETY: as above.
    let mut cpu = unsafe { vcpu.cpu() };
    to_return(match hidden {
        Ok(()) => cpu.come_online(perfctr_core_new_observer()),
        Err(errno) => {
            cpu.refuse(errno);
            Err(errno)
        }
    })
}

/// The vCPU goes offline, and what it counted for the whole CPU ends; see
/// [`Cpu::go_offline`](guest_kmod::Cpu::go_offline).
///
/// # Safety
///
/// C calls this on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_vcpu_offline(vcpu: &VcpuObject) -> c_int {
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { perfctr_core_stop_cpu_wide(vcpu) };
    // SAFETY: on this vCPU, interrupts disabled.
    to_return(unsafe { vcpu.cpu() }.go_offline())
}

/// The machine was restored; see [`Cpu::forget_page`](guest_kmod::Cpu::forget_page).
///
/// # Safety
///
/// C calls this on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_vcpu_forget_page(vcpu: &VcpuObject) {
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { vcpu.cpu() }.forget_page();
    vcpu.page.set(vcpu.perfs);
}

/// The page that is registered, or was last.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_vcpu_page(vcpu: &VcpuObject) -> *const VcpuPage {
    vcpu.page.get()
}

/// See [`Watch::must_begin`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_must_begin() -> bool {
    WATCH.must_begin()
}

/// See [`Watch::began`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_began() {
    WATCH.began();
}

/// See [`Watch::join`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_join() {
    WATCH.join();
}

/// See [`Watch::leave`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_leave() {
    WATCH.leave();
}

/// See [`Watch::may_end`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_may_end() -> bool {
    WATCH.may_end()
}

/// See [`Watch::end`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_end(is_shown: bool) -> bool {
    WATCH.end(is_shown)
}

/// See [`Watch::is_idle`]; takes the vCPU's page back then.
///
/// # Safety
///
/// C calls this on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_hide_if_unwatched(vcpu: &VcpuObject) {
    if WATCH.is_idle() {
        // What the hypervisor refuses to let go stays watched.
        // SAFETY: on this vCPU, interrupts disabled.
        let _ = unsafe { vcpu.hide() };
    }
}

/// See [`idle_users_delay_ms`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_idle_users_delay_ms(users: u32) -> u32 {
    idle_users_delay_ms(users)
}
