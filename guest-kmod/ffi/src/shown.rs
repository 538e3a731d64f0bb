// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! To whom a vCPU is shown, and the watch of switches, as C sees them.

use core::ffi::c_int;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use guest_kmod::shown::{Leave, Observer, Shown, Subject};
use guest_kmod::watch::{Watch, idle_users_delay_ms};
use shared_abi::{Errno, VcpuPage};

use crate::{ThreadObject, VcpuObject, perfctr_glue_gfn, to_return};

/// Numbers of observers that were given; 0 is nobody's.
static OBSERVERS: AtomicU32 = AtomicU32::new(0);
static WATCH: Watch = Watch::new();

/// The frame that the hypervisor is to publish in.
fn frame_of(page: *const VcpuPage) -> u64 {
    // SAFETY: C reckons with the address, and does not look at the page.
    unsafe { perfctr_glue_gfn(page) }
}

impl VcpuObject {
    /// Takes back the page that is registered, if any.
    ///
    /// # Safety
    ///
    /// As the crate's documentation says.
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
    /// As the crate's documentation says; the page outlives its registration.
    unsafe fn show(&self, page: *const VcpuPage, observer: &Observer) -> Result<(), Errno> {
        // SAFETY: on this vCPU, interrupts disabled, as the caller says.
        unsafe { self.cpu() }.make_room()?;
        self.page.set(page);
        // SAFETY: as above; the reference before is gone.
        unsafe { self.cpu() }.show(frame_of(page), observer)
    }

    /// The same with perf's page.
    ///
    /// # Safety
    ///
    /// As the crate's documentation says.
    pub(crate) unsafe fn show_perfs(&self, subject: &Subject) -> Result<(), Errno> {
        // SAFETY: on this vCPU, interrupts disabled, as the caller says.
        unsafe { self.cpu() }.make_room()?;
        self.page.set(self.perfs);
        let fresh = perfctr_core_new_observer();
        // SAFETY: as above; the reference before is gone.
        unsafe { self.cpu() }.show_perfs(frame_of(self.perfs), subject, fresh)
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

/// Registers an observer's page in place of what is registered; see
/// [`Cpu::make_room`](guest_kmod::Cpu::make_room) and [`Cpu::show`](guest_kmod::Cpu::show).
///
/// # Safety
///
/// As the crate's documentation says; the page outlives its registration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_show(
    vcpu: &VcpuObject,
    page: *const VcpuPage,
    observer: &Observer,
) -> c_int {
    // SAFETY: on this vCPU, interrupts disabled.
    to_return(unsafe { vcpu.show(page, observer) })
}

/// Takes the vCPU's page back; see [`Cpu::unregister`](guest_kmod::Cpu::unregister).
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_hide(vcpu: &VcpuObject) -> c_int {
    // SAFETY: on this vCPU, interrupts disabled.
    to_return(unsafe { vcpu.hide() })
}

/// Does what has to happen before a subject executes; `present` are the counters of the thread that
/// did so until now, if it has any.
///
/// # Safety
///
/// As the crate's documentation says.
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
/// [`Vcpu::leave_to`](guest_kmod::Vcpu::leave_to).  `own` is the observer of the newcomer's
/// counters, 0 for none.
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_leave_to(
    vcpu: &VcpuObject,
    present: Option<&ThreadObject>,
    next: &Subject,
    own: u32,
) {
    // SAFETY: on this vCPU, interrupts disabled.
    let state = unsafe { vcpu.cpu() }.vcpu;
    let what = state.leave_to(next, (own != 0).then_some(own));
    state.note_who_comes(next, what);
    // SAFETY: as the caller says.
    unsafe { leave(vcpu, present, what, next) }
}

/// Who executes has become another subject without a switch; see
/// [`Vcpu::become_subject`](guest_kmod::Vcpu::become_subject).  The rest as of
/// [`perfctr_core_leave_to`].
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_become(
    vcpu: &VcpuObject,
    present: Option<&ThreadObject>,
    subject: &Subject,
    own: u32,
) {
    // SAFETY: on this vCPU, interrupts disabled.
    let what = unsafe { vcpu.cpu() }.vcpu.become_subject(subject, (own != 0).then_some(own));
    // SAFETY: as the caller says.
    unsafe { leave(vcpu, present, what, subject) }
}

/// See [`Observer::may_see`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_may_see(observer: &Observer, program: &Subject) -> bool {
    observer.may_see(program)
}

/// perf's page is registered if none is, for events that are here; see
/// [`Vcpu::events_need_page_for`](guest_kmod::Vcpu::events_need_page_for).
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_show(vcpu: &VcpuObject, present: &Subject) {
    // SAFETY: on this vCPU, interrupts disabled.
    let needed = unsafe { vcpu.cpu() }.vcpu.events_need_page_for(present);
    if let Some(subject) = needed {
        // What the hypervisor refuses is asked for again when perf enables its PMU.
        // SAFETY: as above; the reference before is not used any more.
        let _ = unsafe { vcpu.show_perfs(&subject) };
    }
}

/// The vCPU comes online; see [`Cpu::come_online`](guest_kmod::Cpu::come_online).
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_vcpu_online(vcpu: &VcpuObject) -> c_int {
    // SAFETY: on this vCPU, interrupts disabled.
    let hidden = unsafe { vcpu.hide() };
    // SAFETY: as above.
    let mut cpu = unsafe { vcpu.cpu() };
    to_return(match hidden {
        Ok(()) => cpu.come_online(frame_of(vcpu.perfs), perfctr_core_new_observer()),
        Err(errno) => {
            cpu.refuse(errno);
            Err(errno)
        }
    })
}

/// The vCPU goes offline; see [`Cpu::go_offline`](guest_kmod::Cpu::go_offline).
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_vcpu_offline(vcpu: &VcpuObject) -> c_int {
    // SAFETY: on this vCPU, interrupts disabled.
    to_return(unsafe { vcpu.cpu() }.go_offline())
}

/// The machine was restored; see [`Cpu::forget_page`](guest_kmod::Cpu::forget_page).
///
/// # Safety
///
/// As the crate's documentation says.
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
/// As the crate's documentation says.
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
