// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Carries out the operations that take several steps on the vCPU that executes this: it chooses
//! pages and registers them, suspends the thread that would lose its page, and brings the vCPU
//! online and offline.
//!
//! The module's glue and the simulator both implement [`LocalVcpu`], so that the simulator tests
//! the order of these steps, too.

use shared_abi::{Config, Errno};

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

    /// Chooses the page of a user, where no page is registered.
    fn choose_page_of(&mut self, user: Self::User);

    /// Notes that the page of a user will be registered in place of the chosen one, which stays
    /// chosen. Returns that page's frame.
    fn note_next_page(&mut self, user: Self::User) -> u64;

    /// Chooses the page that was noted last, which has been registered.
    fn choose_next_page(&mut self);

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

    /// Does what [`show_page_of`](Self::show_page_of) does for a thread of this user that is
    /// switched in, and loads what it needs if that takes no further hypercall.
    ///
    /// # Errors
    ///
    /// Those of [`show_page_of`](Self::show_page_of). The page that was registered is not any more.
    fn show_page_for(&mut self, user: Self::User, needs: Option<&Config>) -> Result<(), Errno> {
        let observer = Self::observer_of(user);
        let (lacks, at_once) =
            self.with_state(|vcpu| (vcpu.lacks_page_of(&observer), vcpu.can_show_at_once()));
        if !lacks {
            return Ok(());
        }
        if at_once {
            // A distance to an overflow is loaded when the thread is resumed.
            let needs = needs.filter(|config| config.slots() != 0 && config.sampling() == 0);
            // An interrupt that is not maskable may come between any two of these steps. It looks
            // at the chosen page and at the next one, and finds out which of them is registered.
            let frame = self.note_next_page(user);
            if self.with_cpu(|cpu| cpu.show_at_once(frame, &observer, needs)).is_ok() {
                self.choose_next_page();
                return Ok(());
            }
            // The chosen page may still be registered.
        }
        self.show(user, &observer)
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
    /// thread; see [`Vcpu::leave_at_switch`]. `own` is the observer of the counters of `next`, if
    /// it has any that count. `suspend` suspends the counters of the present thread.
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
            let leave = vcpu.leave_at_switch(next, own);
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
            Leave::Stay | Leave::HideLater => Ok(()),
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

    use std::vec;
    use std::vec::Vec;

    use shared_abi::CounterConfig;
    use shared_abi::arch::{EVNTSEL_OS, EVNTSEL_USR};
    use shared_abi::config::MODE_SAMPLING;
    use shared_abi::events::Generic;
    use shared_abi::hypercall::{OP_LOAD, OP_REGISTER, OP_SHOW, OP_UNREGISTER};

    use super::*;
    use crate::perf::{EventConfig, LocalEvents};
    use crate::testing::{INSTRUCTIONS, Local, Machine, counter, identity, program};

    const ALICE: Observer = Observer::new(identity(1001), 7, false);
    const BOB: Observer = Observer::new(identity(1002), 8, false);

    #[test]
    fn another_page_is_chosen_only_after_the_one_before_was_unregistered() {
        let machine = Machine::new();
        let mut local = Local::new(&machine, ALICE.identity.uid());
        for user in [ALICE, BOB, ALICE] {
            local.show_page_of(user).unwrap();
            assert_eq!(local.registered(), Some(user.number));
        }
        local.show_perfs(&Subject::default()).unwrap();
        local.hide().unwrap();
        assert_eq!(local.chosen, [None; 5], "what was counted is read from the page before");
    }

    fn of_user() -> Config {
        of(counter(0, INSTRUCTIONS | EVNTSEL_USR))
    }

    fn of(counter: CounterConfig) -> Config {
        Config::new(&Machine::caps(), &[counter]).unwrap()
    }

    /// Returns the hypercalls of vCPU 0 since the last call.
    fn asked(machine: &Machine) -> Vec<u32> {
        machine.take_hypercalls().into_iter().map(|(_, op)| op).collect()
    }

    /// Switches to a thread of a user, whose counters need `needs`. Returns the hypercalls before
    /// that thread is switched in, and when it is.
    fn switch_to(local: &mut Local<'_>, user: Observer, needs: &Config) -> [Vec<u32>; 2] {
        let machine = local.machine;
        asked(machine);
        let mut suspended = false;
        local
            .leave_to(&program(user.identity.uid()), Some(user.number), |_| suspended = true)
            .unwrap();
        assert!(suspended, "what was counted cannot be read any more");
        let before = asked(machine);
        local.show_page_for(user, Some(needs)).unwrap();
        local.with_cpu(|cpu| cpu.load(needs)).unwrap();
        assert_eq!(local.registered(), Some(user.number));
        [before, asked(machine)]
    }

    #[test]
    fn users_who_take_turns_cost_one_hypercall_for_each_turn() {
        let machine = Machine::new();
        let mut local = Local::new(&machine, ALICE.identity.uid());
        local.show_page_for(ALICE, Some(&of_user())).unwrap();
        assert_eq!(asked(&machine), [OP_UNREGISTER, OP_SHOW], "the first one is the test's own");
        for user in [BOB, ALICE, BOB] {
            assert_eq!(switch_to(&mut local, user, &of_user()), [vec![], vec![OP_SHOW]]);
        }
        let stats = machine.stats(0);
        assert_eq!((stats.registers.get(), stats.unregisters.get()), (5, 4));
        // A distance to an overflow is loaded by a hypercall of its own, which thus can be late.
        let sampling =
            CounterConfig { mode: MODE_SAMPLING, period: 99, ..counter(1, INSTRUCTIONS) };
        let turn = switch_to(&mut local, ALICE, &of(sampling));
        assert_eq!(turn, [vec![], vec![OP_SHOW, OP_LOAD]]);
    }

    #[test]
    fn an_event_of_perfs_goes_on_when_a_thread_of_another_user_is_switched_in_beside_it() {
        for is_wide in [false, true] {
            let machine = Machine::new();
            let mut local = Local::new(&machine, ALICE.identity.uid());
            local.show_page_for(ALICE, Some(&of_user())).unwrap();
            let branches = EventConfig::generic(&Machine::caps(), Generic::Branches.perf());
            let (branches, alice) = (branches.unwrap(), Some(ALICE.number));
            let event = local.add_event(&branches, alice, Some(&of_user()), is_wide).unwrap();
            local.with_cpu(|cpu| {
                cpu.start_event(event, 0, 0, 0);
                cpu.enable_events(None);
            });
            machine.execute(0, 1_000, 100);
            switch_to(&mut local, BOB, &of_user());
            machine.execute(0, 500, 40);
            let counted = local.with_cpu(|cpu| cpu.progress_of_event(event, 0).count);
            assert_eq!(counted, 140, "counts every thread: {is_wide}");
        }
    }

    #[test]
    fn a_page_goes_before_the_switch_unless_another_one_takes_its_place() {
        let machine = Machine::new();
        let mut local = Local::new(&machine, ALICE.identity.uid());
        local.show_page_for(ALICE, Some(&of_user())).unwrap();
        asked(&machine);
        local.leave_to(&program(BOB.identity.uid()), None, |_| ()).unwrap();
        assert_eq!((asked(&machine), local.registered()), (vec![OP_UNREGISTER], None));

        // Its observer must not see what the kernel executes for others.
        local.show_page_for(ALICE, None).unwrap();
        local.with_cpu(|cpu| cpu.load(&of(counter(0, INSTRUCTIONS | EVNTSEL_OS)))).unwrap();
        asked(&machine);
        local.leave_to(&program(BOB.identity.uid()), Some(BOB.number), |_| ()).unwrap();
        assert_eq!((asked(&machine), local.registered()), (vec![OP_UNREGISTER], None));

        // Nobody is switched in after a thread has become another user's.
        local.show_page_for(ALICE, None).unwrap();
        local.present = program(BOB.identity.uid());
        asked(&machine);
        local.become_subject(Some(BOB.number), |_| ()).unwrap();
        assert_eq!((asked(&machine), local.registered()), (vec![OP_UNREGISTER], None));
    }

    #[test]
    fn a_hypervisor_that_cannot_replace_a_page_is_asked_once() {
        let machine = Machine::new();
        let mut local = Local::new(&machine, ALICE.identity.uid());
        local.show_page_for(ALICE, Some(&of_user())).unwrap();
        machine.refuses_show.set(Some(Errno::INVAL));
        let one_by_one = [OP_UNREGISTER, OP_REGISTER, OP_LOAD];
        let [before, after] = switch_to(&mut local, BOB, &of_user());
        assert_eq!((before, &after[..1], &after[1..]), (vec![], &[OP_SHOW][..], &one_by_one[..]));
        for user in [ALICE, BOB] {
            let [before, after] = switch_to(&mut local, user, &of_user());
            assert_eq!((before, after), (vec![OP_UNREGISTER], vec![OP_REGISTER, OP_LOAD]));
        }
        // The machine may be on another host now.
        machine.refuses_show.set(None);
        local.with_cpu(|cpu| cpu.forget_page());
        local.with_cpu(|cpu| cpu.come_online(3)).unwrap();
        assert_eq!(switch_to_first(&mut local, ALICE), [OP_SHOW]);
        // Other refusals say nothing about the next request.
        machine.refuses_show.set(Some(Errno::NOMEM));
        switch_to(&mut local, BOB, &of_user());
        machine.refuses_show.set(None);
        assert_eq!(switch_to(&mut local, ALICE, &of_user()), [vec![], vec![OP_SHOW]]);
    }

    #[test]
    fn who_wants_to_count_where_nobody_may_is_told_the_latest_reason() {
        let machine = Machine::new();
        let mut local = Local::new(&machine, ALICE.identity.uid());
        local.show_page_for(ALICE, Some(&of_user())).unwrap();
        for reason in [Errno::PERM, Errno::PROTO] {
            assert_eq!(local.restore(Err(reason)), Err(reason));
            asked(&machine);
            assert_eq!(local.show_page_of(ALICE), Err(reason));
            assert_eq!((asked(&machine), local.registered()), (vec![], None), "nobody is asked");
        }
        local.restore(Ok(())).unwrap();
        local.show_page_of(ALICE).unwrap();
        assert_eq!(local.registered(), Some(ALICE.number));
    }

    /// Switches to a thread of a user where no page is registered. Returns the hypercalls.
    fn switch_to_first(local: &mut Local<'_>, user: Observer) -> Vec<u32> {
        asked(local.machine);
        local.show_page_for(user, Some(&of_user())).unwrap();
        asked(local.machine)
    }

    #[test]
    fn the_page_of_cpu_wide_counting_goes_with_it_unless_its_user_executes() {
        for (uid, registered) in
            [(ALICE.identity.uid(), None), (BOB.identity.uid(), Some(BOB.number))]
        {
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
        let mut local = Local::new(&machine, ALICE.identity.uid());
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
