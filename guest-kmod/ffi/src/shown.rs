// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Shows a vCPU to observers, as C sees it.

use core::sync::atomic::Ordering::Relaxed;

use guest_kmod::shown::{Leave, Observer, Subject};
use shared_abi::Errno;

use crate::ThreadObject;
use crate::observers::new_number_of_perf;
use crate::on_vcpu::{OnVcpu, Present};
use crate::users::User;

unsafe extern "C" {
    /// Describes the thread that executes this.
    fn perfctr_glue_present(present: *mut Subject);
}

/// Returns a description of the thread that executes this.
pub(crate) fn executing() -> Subject {
    let mut subject = Subject::default();
    // SAFETY: the kernel writes these words, of the thread that it executes here.
    unsafe { perfctr_glue_present(&raw mut subject) };
    subject
}

/// Returns the observer whose page the thread needs registered, or `None` if it needs none.
pub(crate) fn observer_of(thread: Option<&ThreadObject>) -> Option<u32> {
    Some(thread.filter(|thread| thread.needs_page.get())?.user.observer.number)
}

impl OnVcpu<'_> {
    /// Takes back the page that is registered, if any.
    pub(crate) fn hide(&mut self) -> Result<(), Errno> {
        self.cpu().unregister()?;
        let object = self.object();
        // The other one may be freed now.
        object.page.set(object.perfs);
        Ok(())
    }

    /// Registers the page of the user whose counters these are, unless it is already registered. If
    /// that is refused, threads that count here get the error.
    pub(crate) fn show_page_of(&mut self, thread: &ThreadObject) {
        if self.cpu().vcpu.lacks_page_of(&thread.user.observer) {
            let _ = self.show(thread.user);
        }
    }

    /// Registers a user's page in place of what is registered. Before the page is freed, every vCPU
    /// unregisters it.
    fn show(&mut self, user: &User) -> Result<(), Errno> {
        self.cpu().make_room()?;
        let object = self.object();
        // SAFETY: this is a possible vCPU.
        object.page.set(unsafe { user.page(object.number) });
        // Nobody takes a refused page back, so it may be freed at any time.
        self.cpu().show(&user.observer).inspect_err(|_| object.page.set(object.perfs))
    }

    /// Does [`show_page_of`](Self::show_page_of) for a thread that is switched in, if it needs the
    /// page.
    #[inline(always)]
    pub(crate) fn show_page_if_needed(&mut self, thread: &ThreadObject) {
        if thread.needs_page.get() {
            self.show_page_of(thread);
        }
    }

    /// Registers perf's page in place of what is registered.
    pub(crate) fn show_perfs(&mut self, subject: &Subject) -> Result<(), Errno> {
        self.cpu().make_room()?;
        let object = self.object();
        object.page.set(object.perfs);
        self.cpu().show_perfs(subject, new_number_of_perf)?;
        object.perfs_number.store(self.cpu().vcpu.shown().number, Relaxed);
        Ok(())
    }

    /// Takes the page of an observer back if it is registered. C then has perf's events that were
    /// counted in it continue in perf's page, as after every call.
    pub(crate) fn hide_page_of(&mut self, observer: &Observer) {
        if !self.cpu().vcpu.lacks_page_of(observer) {
            // What is registered says whether the hypervisor has refused.
            let _ = self.hide();
        }
    }

    /// Notes that the rights of the thread that executes have changed without a switch; see
    /// [`Vcpu::become_subject`](guest_kmod::Vcpu::become_subject).
    pub(crate) fn become_subject(&mut self, present: Present<'_>) {
        let subject = executing();
        let own = observer_of(present.object());
        let what = self.cpu().vcpu.become_subject(&subject, own);
        self.leave(present, what, &subject);
    }

    /// Does what has to happen before a subject executes in place of `present`, or of the same
    /// thread.
    fn leave(&mut self, mut present: Present<'_>, leave: Leave, subject: &Subject) {
        if leave != Leave::Stay {
            self.suspend(&mut present);
        }
        // What the hypervisor refuses is asked for again at the next switch.
        let _ = match leave {
            Leave::Stay => Ok(()),
            Leave::Hide => self.hide(),
            Leave::ShowPerfs => self.show_perfs(subject),
        };
    }
}

/// Does what has to be done before another thread executes in place of `present`.  C calls it if
/// that thread may not see the registered page, and if no page is registered while perf has events
/// here.  `coming` are the other thread's counters, if it has any.  See
/// [`Vcpu::leave_to`](guest_kmod::Vcpu::leave_to).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_leave_to(
    mut vcpu: OnVcpu<'_>,
    present: Present<'_>,
    next: &Subject,
    coming: Option<&ThreadObject>,
) {
    let state = vcpu.cpu().vcpu;
    let what = state.leave_to(next, observer_of(coming));
    state.note_who_comes(next, what);
    vcpu.leave(present, what, next);
}

/// Does what has to be done after the rights of the thread that executes have changed without a
/// switch.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_become(mut vcpu: OnVcpu<'_>, present: Present<'_>) {
    vcpu.become_subject(present);
}

/// Registers perf's page for perf's events that are here, if no page is registered; see
/// [`Vcpu::events_need_page_for`](guest_kmod::Vcpu::events_need_page_for).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_events_show(mut vcpu: OnVcpu<'_>) {
    let state = vcpu.cpu().vcpu;
    if !state.events_stand_still() {
        return;
    }
    if let Some(subject) = state.events_need_page_for(&executing()) {
        // What the hypervisor refuses is asked for again when perf enables its PMU.
        let _ = vcpu.show_perfs(&subject);
    }
}
