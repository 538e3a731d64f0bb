// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Shows a vCPU to observers, as C sees it.

use core::sync::atomic::Ordering::Relaxed;

use guest_kmod::hal::Kernel;
use guest_kmod::restore::prepare_next;
use guest_kmod::shown::{Observer, Subject};
use guest_kmod::{LocalVcpu, ThisVcpu, Vcpu};

use crate::observers::new_number_of_perf;
use crate::on_vcpu::{OnVcpu, Present};
use crate::users::User;
use crate::{Linux, ThreadObject};

unsafe extern "C" {
    /// Describes the thread that executes this.
    fn perfctr_glue_present(present: *mut Subject);
}

/// Returns a description of the thread that executes this.
pub(crate) fn executing() -> Subject {
    let mut subject = Subject::default();
    // SAFETY: C fills in these words about the thread that executes this.
    unsafe { perfctr_glue_present(&raw mut subject) };
    subject
}

/// Returns the observer whose page the thread needs registered, or `None` if it needs none.
pub(crate) fn observer_of(thread: Option<&ThreadObject>) -> Option<u32> {
    Some(thread.filter(|thread| thread.needs_page.get())?.user.observer.number)
}

impl LocalVcpu for OnVcpu<'_> {
    type Kernel = Linux;
    type User = &'static User;

    #[inline(always)]
    fn with_cpu<R>(&mut self, run: impl FnOnce(&mut ThisVcpu<'_, Linux>) -> R) -> R {
        run(&mut self.cpu())
    }

    #[inline(always)]
    fn with_state<R>(&mut self, run: impl FnOnce(&mut Vcpu) -> R) -> R {
        run(self.cpu().vcpu)
    }

    fn executing(&self) -> Subject {
        executing()
    }

    #[inline(always)]
    fn observer_of(user: &'static User) -> Observer {
        user.observer
    }

    fn choose_page_of(&mut self, user: &'static User) {
        let object = self.object();
        // SAFETY: each object is of a possible vCPU, and has that vCPU's number.
        object.page.set(unsafe { user.page(object.number) });
    }

    fn note_next_page(&mut self, user: &'static User) -> u64 {
        let object = self.object();
        // SAFETY: each object is of a possible vCPU, and has that vCPU's number. The user's pages
        // are not freed while one of its threads is being switched in.
        let page = unsafe { &*user.page(object.number) };
        object.next_page.set(page);
        prepare_next(page);
        object.kernel.frame_of(page)
    }

    fn choose_next_page(&mut self) {
        let object = self.object();
        object.page.set(object.next_page.get());
        object.kernel.restoration.next_is_chosen();
    }

    fn choose_perfs_page(&mut self) {
        let object = self.object();
        object.page.set(object.perfs);
    }

    fn new_number_of_perf(&mut self) -> u32 {
        new_number_of_perf()
    }

    fn note_number_of_perf(&mut self, number: u32) {
        self.object().perfs_number.store(number, Relaxed);
    }

    fn stop_cpu_wide(&mut self) {
        self.stop_counting_cpu_wide();
    }
}

/// Does what is needed before another thread executes here; see [`LocalVcpu::leave_to`].
///
/// That thread comes in place of `present`. C calls this if that thread may not execute while the
/// page is registered, if no page is registered while perf has events here, and while branches are
/// recorded. `coming` has the other thread's counters, if it has any.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_leave_to(
    mut vcpu: OnVcpu<'_>,
    mut present: Present<'_>,
    next: &Subject,
    coming: Option<&ThreadObject>,
) {
    // A sample must not have branches of a previous thread.
    vcpu.cpu().forget_records();
    // If the hypervisor refuses, the next switch asks it again.
    let _ = vcpu.leave_to(next, observer_of(coming), |vcpu| vcpu.suspend(&mut present));
}

/// Does what is needed after the rights of the thread that executes have changed; see
/// [`LocalVcpu::become_subject`].
///
/// They have changed without a switch of threads.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_become(mut vcpu: OnVcpu<'_>, mut present: Present<'_>) {
    let own = observer_of(present.object());
    // If the hypervisor refuses, the next switch asks it again.
    let _ = vcpu.become_subject(own, |vcpu| vcpu.suspend(&mut present));
}
