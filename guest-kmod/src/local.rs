// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Carries out the operations that take several steps on the vCPU that executes this: it chooses
//! pages and registers them, suspends the thread that would lose its page, and brings the vCPU
//! online and offline.
//!
//! The module's glue and the simulator both implement [`LocalVcpu`], so that the simulator tests
//! the order of these steps, too.

use shared_abi::Errno;

use crate::hal::Kernel;
use crate::shown::{Leave, Observer, Subject};
use crate::vcpu::{ThisVcpu, Vcpu};

/// The vCPU that executes this, with interrupts disabled, and the pages that it may register.
///
/// There is a page for each user who has counters, and one for perf. One of them is *chosen*:
/// [`with_cpu`](Self::with_cpu) passes this page on, and it is registered next.
pub trait LocalVcpu {
    /// The kernel on this vCPU.
    type Kernel: Kernel;
    /// A user who has counters.
    type User: Copy;

    /// Executes this with the vCPU and its chosen page.
    fn with_cpu<R>(&mut self, run: impl FnOnce(&mut ThisVcpu<'_, Self::Kernel>) -> R) -> R;

    /// Executes this with the module's state of the vCPU alone.
    fn with_state<R>(&mut self, run: impl FnOnce(&mut Vcpu) -> R) -> R;

    /// Describes the thread that executes this.
    fn executing(&self) -> Subject;

    /// Returns a user's observer.
    fn observer_of(user: Self::User) -> Observer;

    /// Chooses the page of a user.
    fn choose_page_of(&mut self, user: Self::User);

    /// Chooses perf's page. The previously chosen page may be freed from now on.
    fn choose_perfs_page(&mut self);

    /// Returns a number for which no page is registered, and for which no vCPU keeps perf's.
    fn new_number_of_perf(&mut self) -> u32;

    /// Notes the number for which perf's page is registered here, so that no other vCPU takes it.
    fn note_number_of_perf(&mut self, number: u32);

    /// Stops CPU-wide counting here, if it has begun.
    fn stop_cpu_wide(&mut self);

    /// Unregisters the page that is registered, if any is.
    ///
    /// # Errors
    ///
    /// Those of [`ThisVcpu::unregister`]. The page stays chosen then.
    fn hide(&mut self) -> Result<(), Errno> {
        self.with_cpu(|cpu| cpu.unregister())?;
        self.choose_perfs_page();
        Ok(())
    }

    /// Unregisters the page of this observer, if it is registered.
    ///
    /// # Errors
    ///
    /// Those of [`hide`](Self::hide).
    fn hide_page_of(&mut self, observer: &Observer) -> Result<(), Errno> {
        if self.with_state(|vcpu| vcpu.lacks_page_of(observer)) { Ok(()) } else { self.hide() }
    }

    /// Registers a user's page in place of the registered one, unless it is registered already.
    ///
    /// # Errors
    ///
    /// Those of [`ThisVcpu::make_room`] and [`ThisVcpu::show`], which threads that count here get.
    fn show_page_of(&mut self, user: Self::User) -> Result<(), Errno> {
        let observer = Self::observer_of(user);
        if self.with_state(|vcpu| vcpu.lacks_page_of(&observer)) {
            self.show(user, &observer)
        } else {
            Ok(())
        }
    }

    /// Registers a user's page in place of the registered one.
    ///
    /// # Errors
    ///
    /// Those of [`show_page_of`](Self::show_page_of).
    fn show(&mut self, user: Self::User, observer: &Observer) -> Result<(), Errno> {
        self.with_cpu(|cpu| cpu.make_room())?;
        self.choose_page_of(user);
        let shown = self.with_cpu(|cpu| cpu.show(observer));
        if shown.is_err() {
            // Nobody unregisters the page before it is freed.
            self.choose_perfs_page();
        }
        shown
    }

    /// Registers perf's page for a subject, in place of the registered one.
    ///
    /// # Errors
    ///
    /// Those of [`ThisVcpu::make_room`] and [`ThisVcpu::show_perfs`].
    fn show_perfs(&mut self, subject: &Subject) -> Result<(), Errno> {
        self.with_cpu(|cpu| cpu.make_room())?;
        self.choose_perfs_page();
        let before = self.with_state(|vcpu| vcpu.number_of_perf(subject));
        let number = before.unwrap_or_else(|| self.new_number_of_perf());
        self.with_cpu(|cpu| cpu.show_perfs(subject, number))?;
        self.note_number_of_perf(number);
        Ok(())
    }

    /// Registers perf's page for perf's events on this vCPU, if no page is registered; see
    /// [`Vcpu::events_need_page_for`].
    ///
    /// # Errors
    ///
    /// Those of [`show_perfs`](Self::show_perfs).
    fn show_for_events(&mut self) -> Result<(), Errno> {
        if !self.with_state(|vcpu| vcpu.events_stand_still()) {
            return Ok(());
        }
        let present = self.executing();
        match self.with_state(|vcpu| vcpu.events_need_page_for(&present)) {
            Some(subject) => self.show_perfs(&subject),
            None => Ok(()),
        }
    }

    /// Carries out everything that must happen before `next` executes in place of the present
    /// thread; see [`Vcpu::leave_to`]. `own` is the observer of the counters of `next`, if it has
    /// any that count. `suspend` suspends the counters of the present thread.
    ///
    /// # Errors
    ///
    /// Those of [`hide`](Self::hide) and [`show_perfs`](Self::show_perfs).
    fn leave_to(
        &mut self,
        next: &Subject,
        own: Option<u32>,
        suspend: impl FnOnce(&mut Self),
    ) -> Result<(), Errno> {
        let leave = self.with_state(|vcpu| {
            let leave = vcpu.leave_to(next, own);
            vcpu.note_who_comes(next, leave);
            leave
        });
        self.leave(leave, next, suspend)
    }

    /// Carries out everything that must happen after the present thread has got other rights
    /// without a switch; see [`Vcpu::become_subject`]. `own` is the observer of its counters, if it
    /// has any that count. `suspend` suspends them.
    ///
    /// # Errors
    ///
    /// Those of [`hide`](Self::hide) and [`show_perfs`](Self::show_perfs).
    fn become_subject(
        &mut self,
        own: Option<u32>,
        suspend: impl FnOnce(&mut Self),
    ) -> Result<(), Errno> {
        let present = self.executing();
        let leave = self.with_state(|vcpu| vcpu.become_subject(&present, own));
        self.leave(leave, &present, suspend)
    }

    /// Carries out `leave`, so that `subject` may execute.
    ///
    /// # Errors
    ///
    /// Those of [`hide`](Self::hide) and [`show_perfs`](Self::show_perfs).
    fn leave(
        &mut self,
        leave: Leave,
        subject: &Subject,
        suspend: impl FnOnce(&mut Self),
    ) -> Result<(), Errno> {
        if leave != Leave::Stay {
            // What was counted cannot be read without the page.
            suspend(self);
        }
        match leave {
            Leave::Stay => Ok(()),
            Leave::Hide => self.hide(),
            Leave::ShowPerfs => self.show_perfs(subject),
        }
    }

    /// Brings the vCPU online, unless `may_count` says why nobody may count here.
    ///
    /// # Errors
    ///
    /// The reason for which nobody may count here.
    fn come_online(&mut self, may_count: Result<(), Errno>) -> Result<(), Errno> {
        match may_count.and_then(|()| self.hide()) {
            Ok(()) => {
                let number = self.new_number_of_perf();
                self.with_cpu(|cpu| cpu.come_online(number))
            }
            Err(errno) => {
                self.with_cpu(|cpu| cpu.refuse(errno));
                Err(errno)
            }
        }
    }

    /// Takes the vCPU offline.
    ///
    /// # Errors
    ///
    /// Those of [`ThisVcpu::go_offline`]. The hypervisor may still write to the chosen page then.
    fn go_offline(&mut self) -> Result<(), Errno> {
        self.stop_cpu_wide();
        self.with_cpu(|cpu| cpu.go_offline())?;
        self.choose_perfs_page();
        Ok(())
    }

    /// Brings the vCPU online again after its machine was restored, when no page is registered with
    /// the present hypervisor.
    ///
    /// # Errors
    ///
    /// Those of [`come_online`](Self::come_online).
    fn restore(&mut self, may_count: Result<(), Errno>) -> Result<(), Errno> {
        self.stop_cpu_wide();
        self.with_cpu(|cpu| cpu.forget_page());
        self.choose_perfs_page();
        self.come_online(may_count)
    }

    /// Calls `operate`, which carries out a request of the executing thread of this user. A thread
    /// that does not count yet may find another user's page registered.
    fn operate<R>(&mut self, user: Self::User, operate: impl FnOnce(&mut Self) -> R) -> R {
        // If the hypervisor refuses the page, the request fails for the same reason.
        let _ = self.show_page_of(user);
        operate(self)
    }

    /// Starts CPU-wide counting in the page of a user. `suspend` suspends the counters of the
    /// present thread, `thread`, and `start` calls [`ThisVcpu::start_cpu_wide`] with them.
    ///
    /// # Errors
    ///
    /// Those of [`ThisVcpu::start_cpu_wide`].
    fn start_cpu_wide<T>(
        &mut self,
        user: Self::User,
        thread: &mut T,
        suspend: impl FnOnce(&mut Self, &mut T),
        start: impl FnOnce(&mut Self, &mut T) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // What was counted cannot be read without the page.
        suspend(self, thread);
        // If the hypervisor refuses the page, the start fails for the same reason.
        let _ = self.show_page_of(user);
        start(self, thread)
    }

    /// Ends CPU-wide counting here. The subject that executes may not be allowed to see the page
    /// in which the CPU has counted. The parameters are those of
    /// [`become_subject`](Self::become_subject).
    ///
    /// # Errors
    ///
    /// Those of [`become_subject`](Self::become_subject).
    fn end_cpu_wide(
        &mut self,
        own: Option<u32>,
        suspend: impl FnOnce(&mut Self),
    ) -> Result<(), Errno> {
        self.stop_cpu_wide();
        self.become_subject(own, suspend)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::testing::{Local, Machine};

    const ALICE: Observer = Observer { container: 0x100, uid: 1001, number: 7, sees_kernel: false };
    const BOB: Observer = Observer { container: 0x100, uid: 1002, number: 8, sees_kernel: false };

    #[test]
    fn another_page_is_chosen_only_after_the_one_before_was_unregistered() {
        let machine = Machine::new();
        let mut local = Local::new(&machine, ALICE.uid);
        for user in [ALICE, BOB, ALICE] {
            local.show_page_of(user).unwrap();
            assert_eq!(local.registered(), Some(user.number));
        }
        local.show_perfs(&Subject::default()).unwrap();
        local.hide().unwrap();
        assert_eq!(local.chosen, [None; 5], "what was counted is read from the page before");
    }

    #[test]
    fn the_page_of_cpu_wide_counting_goes_with_it_unless_its_user_executes() {
        for (uid, registered) in [(ALICE.uid, None), (BOB.uid, Some(BOB.number))] {
            let machine = Machine::new();
            let mut local = Local::new(&machine, uid);
            local.show_page_of(BOB).unwrap();
            local.with_cpu(|cpu| cpu.close_gate(true));
            let mut suspended = false;
            local.end_cpu_wide(None, |_| suspended = true).unwrap();
            assert_eq!(local.registered(), registered, "{uid}");
            assert_eq!(suspended, registered.is_none(), "{uid}");
        }
    }

    #[test]
    fn a_thread_is_suspended_before_its_page_gives_way_to_cpu_wide_counting() {
        let machine = Machine::new();
        let mut local = Local::new(&machine, ALICE.uid);
        local.show_page_of(ALICE).unwrap();
        let mut steps = Vec::new();
        let started = local.start_cpu_wide(
            BOB,
            &mut steps,
            |local, steps| steps.push(("suspend", local.registered())),
            |local, steps| {
                steps.push(("start", local.registered()));
                Ok(())
            },
        );
        started.unwrap();
        let expected = [("suspend", Some(ALICE.number)), ("start", Some(BOB.number))];
        assert_eq!(steps, expected);
    }
}
