// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides to which observer a vCPU's counters are shown, and when this has to end.
//!
//! A vCPU's counts are visible in the page that is registered with it, and through direct reads of
//! counters. So at most one observer's page is registered at a time, and only while no subject
//! executes there that this observer may not see. The rule is [`Shown::may_execute`]; the kernel
//! applies it at each switch of threads and when a program is executed, and takes the page back if
//! the subject may not execute with it.
//!
//! perf's events also count where no thread of their user has counters. There they have a page of
//! their own, which nobody maps. This page is also registered for one subject at a time, because
//! counters can be read directly while it is registered.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use shared_abi::{Config, Errno};

use crate::hal::Kernel;
use crate::vcpu::{ThisVcpu, Vcpu};

/// [`Subject::kind`]: a program that other programs of its user may look into.
pub const SUBJECT_OPEN: u32 = 0;
/// [`Subject::kind`]: a program that is nobody's to look into, as set-uid programs are.
pub const SUBJECT_GUARDED: u32 = 1;
/// [`Subject::kind`]: a thread of the kernel, which executes no program.
pub const SUBJECT_KERNEL: u32 = 2;

/// Whose a thread is, and what it may do. Threads with the same identity have the same rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Identity {
    /// The container that it is in, which is identified by its namespace of process numbers.
    pub container: u64,
    /// The namespace of users in which it has its capabilities.
    pub users: u64,
    /// Its permitted capabilities: bit n stands for capability n.
    pub capabilities: u64,
    /// Its effective user in the low half, and its effective group in the high one.
    pub ids: u64,
}

/// The subject that executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Subject {
    /// Its identity.
    pub identity: Identity,
    /// One of `SUBJECT_OPEN`, `SUBJECT_GUARDED` and `SUBJECT_KERNEL`.
    pub kind: u32,
}

/// The observer who has a page of this vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Observer {
    /// The identity of its threads.
    pub identity: Identity,
    /// The observer's number for the hypervisor, which is not 0.
    pub number: u32,
    /// Whether the observer may look into the kernel.
    pub sees_kernel: bool,
}

/// What is registered with a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The identity of the subjects that may execute while the page is registered.
    pub identity: Identity,
    /// The number of the observer whose page it is, or 0 if none is registered.
    pub number: u32,
    /// Whether what is loaded counts in kernel mode, and the observer may not look into the kernel.
    pub hides_kernel: bool,
    /// Whether anything is loaded.
    pub counts: bool,
}

/// What is registered with a vCPU, for C and for other vCPUs.
///
/// They read these words also while the core holds a `&mut Vcpu`, so the words are no part of the
/// [`Vcpu`]. It has a copy of its own, a [`Shown`]. Only the vCPU itself writes the words, with
/// interrupts disabled. Each word is written at once, but not all of them together, so only the
/// vCPU itself may read several words as one [`Shown`].
#[derive(Debug, Default)]
#[repr(C)]
pub struct ShownWords {
    /// The identity of the subjects that may execute while the page is registered.
    identity: IdentityWords,
    /// The number of the observer whose page it is, or 0 if none is registered.
    number: AtomicU32,
    /// Whether the page has to go before a thread of the kernel executes.
    hides_kernel: AtomicBool,
    /// Whether anything is loaded.
    counts: AtomicBool,
    /// Whether perf has events here, which may go on with the next thread.
    has_events: AtomicBool,
    /// Whether branches are recorded for any of them.
    has_records: AtomicBool,
}

/// An identity as atomic words.
#[derive(Debug, Default)]
#[repr(C)]
struct IdentityWords {
    /// Its container.
    container: AtomicU64,
    /// Its namespace of users.
    users: AtomicU64,
    /// Its permitted capabilities.
    capabilities: AtomicU64,
    /// Its effective user and group.
    ids: AtomicU64,
}

impl ShownWords {
    /// Writes whose page is registered. Only the vCPU to which the words belong calls this.
    fn write_page(&self, Shown { identity, number, .. }: &Shown) {
        // ATOMICS: the vCPU reads its own words in order; others need only one whole word.
        self.identity.container.store(identity.container, Relaxed);
        self.identity.users.store(identity.users, Relaxed);
        self.identity.capabilities.store(identity.capabilities, Relaxed);
        self.identity.ids.store(identity.ids, Relaxed);
        self.number.store(*number, Relaxed);
    }

    /// Writes what is loaded. Only the vCPU to which the words belong calls this.
    fn write_loaded(&self, Shown { hides_kernel, counts, .. }: &Shown) {
        // ATOMICS: as above.
        self.hides_kernel.store(*hides_kernel, Relaxed);
        self.counts.store(*counts, Relaxed);
    }

    /// Returns what is registered. Only the vCPU to which the words belong calls this.
    pub fn read(&self) -> Shown {
        let identity = Identity {
            container: self.identity.container.load(Relaxed),
            users: self.identity.users.load(Relaxed),
            capabilities: self.identity.capabilities.load(Relaxed),
            ids: self.identity.ids.load(Relaxed),
        };
        Shown {
            identity,
            number: self.number(),
            hides_kernel: self.hides_kernel.load(Relaxed),
            counts: self.counts(),
        }
    }

    /// Notes whether perf has events here, and whether branches are recorded for any of them.
    pub(crate) fn note_events(&self, has_events: bool, has_records: bool) {
        self.has_events.store(has_events, Relaxed);
        self.has_records.store(has_records, Relaxed);
    }

    /// Returns the number of the observer whose page is registered, or 0. Any vCPU may ask.
    pub fn number(&self) -> u32 {
        self.number.load(Relaxed)
    }

    /// Returns whether anything is loaded. Any vCPU may ask.
    pub fn counts(&self) -> bool {
        self.counts.load(Relaxed)
    }
}

/// The user whose processes may look into the kernel, unless they are in a container that forbids
/// it, or lack the capabilities.
pub(crate) const ROOT_UID: u32 = 0;

/// The capabilities with each of which the kernel lets a process look into it: `CAP_SYS_ADMIN` and
/// `CAP_PERFMON`.
const SEES_KERNEL: u64 = 1 << 21 | 1 << 38;

/// The [`Identity::ids`] that no process has. They stand for perf's page that is registered for a
/// guarded program: the page has to go when any other subject executes.
const NO_IDS: u64 = u64::MAX;

impl Identity {
    /// Returns the effective user.
    pub const fn uid(&self) -> u32 {
        self.ids as u32
    }

    /// Returns whether a process with this identity may look into one with the `other` identity
    /// that does not hide: they have the same user and group, and the other one has no capability
    /// that this one lacks.
    pub fn may_see(&self, other: &Self) -> bool {
        self.container == other.container
            && self.users == other.users
            && self.ids == other.ids
            && other.capabilities & !self.capabilities == 0
    }
}

impl Shown {
    /// Returns whether this subject may execute while the page is registered.
    ///
    /// It must have the identity for which the page is registered, and not only one that this may
    /// see: a program may read the counters where it executes, so each of the two has to be allowed
    /// to see the other.
    pub fn may_execute(&self, next: &Subject) -> bool {
        match next.kind {
            _ if self.number == 0 => true,
            SUBJECT_KERNEL => !self.hides_kernel,
            SUBJECT_OPEN => self.identity == next.identity,
            _ => false,
        }
    }
}

impl Observer {
    /// Makes the observer for threads with this identity. `is_initial` says whether its container
    /// and its namespace of users are the initial ones.
    pub const fn new(identity: Identity, number: u32, is_initial: bool) -> Self {
        let may_look = identity.uid() == ROOT_UID && identity.capabilities & SEES_KERNEL != 0;
        Self { identity, number, sees_kernel: is_initial && may_look }
    }

    /// Returns whether a program that is executed now may continue to be counted for this observer.
    pub fn may_see(&self, program: &Subject) -> bool {
        program.kind == SUBJECT_OPEN && self.identity.may_see(&program.identity)
    }
}

/// The state of pages beside [`Shown`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pages {
    pub(crate) shown: Shown,
    sees_kernel: bool,
    /// Whether the page that is registered is perf's.
    is_perfs: bool,
    /// The number of perf's events here that count every subject.
    wide: u32,
    /// The subject for whom perf's page was registered last, and the number for which it was
    /// registered.
    perf: Option<(Subject, u32)>,
    /// The subject of the present switch, if at this switch the page of perf's events was
    /// unregistered, or no page was registered. perf next removes these events, or continues them
    /// with this subject, before it enables its PMU again.
    coming: Option<Subject>,
}

impl Pages {
    /// Notes that nothing is registered. The caller notes what is [`loaded`](Self::loaded).
    pub(crate) fn clear(&mut self, words: &ShownWords) {
        (self.sees_kernel, self.is_perfs) = (false, false);
        self.note_registered(Identity::default(), 0, words);
    }

    /// Notes for whom which observer's page is registered from now on. The caller notes what is
    /// [`loaded`](Self::loaded) in it.
    fn note_registered(&mut self, identity: Identity, number: u32, words: &ShownWords) {
        self.shown = Shown { identity, number, ..Shown::default() };
        words.write_page(&self.shown);
    }

    /// Notes whether the configuration that is loaded from now on counts anything, and whether it
    /// counts in kernel mode.
    pub(crate) fn loaded(&mut self, counts: bool, counts_kernel: bool, words: &ShownWords) {
        self.shown.counts = counts;
        self.shown.hides_kernel = counts_kernel && !self.sees_kernel;
        words.write_loaded(&self.shown);
    }

    /// Returns whether the registered page may show what perf counts of this subject.
    fn is_for(&self, subject: &Subject) -> bool {
        let for_perf = self.is_perfs && self.perf.is_some_and(|(last, _)| last == *subject);
        let open = Subject { kind: SUBJECT_OPEN, ..*subject };
        for_perf || is_open(subject) && self.shown.may_execute(&open)
    }
}

/// The action when a subject begins to execute that the observer may not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Nothing has to be done: the registered page stays.
    Stay,
    /// The page is unregistered.
    Hide,
    /// The page stays registered until the next thread is switched in. That thread's own page is
    /// registered in its place then, before any program executes.
    HideLater,
    /// perf's own page is registered in its place, because events here count every subject.
    ShowPerfs,
}

impl Vcpu {
    /// Returns what has to happen before `next` executes here. `own` is the observer of its
    /// counters, if it has any that count: `next` may be seen in the page of this observer.
    pub fn leave_to(&self, next: &Subject, own: Option<u32>) -> Leave {
        let pages = &self.pages;
        let stays = pages.shown.may_execute(next) || own == Some(pages.shown.number);
        match pages.wide {
            _ if stays || self.counts_cpu_wide() => Leave::Stay,
            0 => Leave::Hide,
            _ if pages.is_perfs => Leave::Stay,
            _ => Leave::ShowPerfs,
        }
    }

    /// Returns what has to happen before the thread of `next` is switched in here; see
    /// [`leave_to`](Self::leave_to). If that thread has counters that count, its own page can be
    /// registered in place of the present one by a single hypercall. Between here and there only
    /// the kernel executes.
    pub fn leave_at_switch(&self, next: &Subject, own: Option<u32>) -> Leave {
        let may_wait = own.is_some() && !self.pages.shown.hides_kernel && self.can_show_at_once();
        match self.leave_to(next, own) {
            Leave::Hide if may_wait => Leave::HideLater,
            leave => leave,
        }
    }

    /// Returns whether a page can be registered in place of the present one by one hypercall.
    /// perf's events would have to be read from the present page before.
    pub(crate) fn can_show_at_once(&self) -> bool {
        self.has_show && self.events.is_empty() && self.may_show().is_ok()
    }

    /// Notes that `next` is switched in, before which `leave` has to happen. If perf continues
    /// events that are here and have no page, it does so for `next`, and not for the subject that
    /// still executes.
    pub fn note_who_comes(&mut self, next: &Subject, leave: Leave) {
        let has_no_page = leave == Leave::Hide || !self.is_registered();
        let goes_on = has_no_page && self.pages.wide == 0 && !self.events.is_empty();
        self.pages.coming = goes_on.then_some(*next);
    }

    /// Returns for which subject perf's page has to be registered so that perf's events here count
    /// when its PMU is enabled, if none is registered: for `present`, which executes, or for the
    /// subject that is being switched in.
    ///
    /// There is no page if its user was removed, if the machine has slept, or if perf continues the
    /// events with a task of another user.
    pub fn events_need_page_for(&self, present: &Subject) -> Option<Subject> {
        self.events_stand_still().then(|| self.pages.coming.unwrap_or(*present))
    }

    /// Returns whether perf has events here and no page is registered.
    pub fn events_stand_still(&self) -> bool {
        !self.events.is_empty() && !self.is_registered()
    }

    /// Returns whether a thread of this observer needs the observer's page registered in place of
    /// the present one.
    pub fn lacks_page_of(&self, observer: &Observer) -> bool {
        self.pages.shown.number != observer.number
    }

    /// Returns the number for which perf's page was registered last, if that was for this subject
    /// and may be registered for it again.
    pub fn number_of_perf(&self, subject: &Subject) -> Option<u32> {
        let before = self.pages.perf.filter(|(last, _)| last == subject && is_open(subject));
        before.map(|(_, number)| number)
    }

    /// Notes that perf's PMU is enabled, so no switch is under way.
    pub(crate) fn forget_who_comes(&mut self) {
        self.pages.coming = None;
    }

    /// Returns what has to happen if the thread that executes here has become `present` without a
    /// switch: the same as at a switch to it, but perf's events stay.
    pub fn become_subject(&self, present: &Subject, own: Option<u32>) -> Leave {
        match self.leave_to(present, own) {
            Leave::Hide if !self.events.is_empty() => Leave::ShowPerfs,
            leave => leave,
        }
    }

    /// Returns whether an event of perf's needs perf's page registered here: it does unless the
    /// registered page may show it. `own` is the observer of the present thread's counters, which
    /// may be running.
    pub fn event_needs_page(&self, current: &Subject, own: Option<u32>, wide: bool) -> bool {
        let number = self.pages.shown.number;
        let fits = wide || self.pages.wide > 0 || self.pages.is_for(current);
        number == 0 || !(fits || own == Some(number))
    }

    /// Notes that one more of perf's events here counts every subject.
    pub fn wide_event_comes(&mut self) {
        self.pages.wide = self.pages.wide.saturating_add(1);
    }

    /// Notes that an event of perf's is removed, and whether it counted every subject. Returns
    /// whether the page has to be unregistered, because it may not show the present subject.
    pub fn event_goes(&mut self, current: &Subject, wide: bool) -> bool {
        let pages = &mut self.pages;
        pages.wide = pages.wide.saturating_sub(wide.into());
        pages.is_perfs && pages.wide == 0 && !pages.is_for(current)
    }
}

impl<K: Kernel> ThisVcpu<'_, K> {
    /// Brings the vCPU online: its page is registered on trial, and unregistered, because a refusal
    /// has to be known before anybody counts.
    ///
    /// # Errors
    ///
    /// The errors of the hypercalls. Nobody may count here then, for this reason.
    pub fn come_online(&mut self, number: u32) -> Result<(), Errno> {
        let frame = self.frame();
        let tried = self.register(frame, number).and_then(|()| self.unregister());
        tried.inspect_err(|errno| self.refuse(*errno))
    }

    /// Checks that a page may be registered here, and unregisters the old one.
    ///
    /// # Errors
    ///
    /// Why nobody may count here; `BUSY` if CPU-wide counting has this CPU. Also the errors of
    /// [`unregister`](Self::unregister): the caller must not count in the old page.
    pub fn make_room(&mut self) -> Result<(), Errno> {
        self.vcpu.may_show()?;
        self.unregister().inspect_err(|errno| self.vcpu.fail(*errno, self.shown))
    }

    /// Registers the vCPU's page, which is that of an observer, after [`Self::make_room`].
    ///
    /// # Errors
    ///
    /// The errors of the hypercall.
    pub fn show(&mut self, observer: &Observer) -> Result<(), Errno> {
        let frame = self.frame();
        self.show_frame(frame, observer)
    }

    /// Returns the frame of the vCPU's page.
    fn frame(&self) -> u64 {
        self.kernel.frame_of(self.page)
    }

    fn show_frame(&mut self, frame: u64, observer: &Observer) -> Result<(), Errno> {
        self.register(frame, observer.number)?;
        self.note_shown(observer);
        Ok(())
    }

    /// Registers an observer's page with this frame in place of the vCPU's present one, and loads a
    /// configuration there if there is one. [`Vcpu::can_show_at_once`] has said that this is
    /// possible.
    ///
    /// # Errors
    ///
    /// The errors of the hypercall. The hypervisor may have the earlier page then, or none.
    pub(crate) fn show_at_once(
        &mut self,
        frame: u64,
        observer: &Observer,
        config: Option<&Config>,
    ) -> Result<(), Errno> {
        self.replace_page(frame, observer.number, config)?;
        self.note_shown(observer);
        Ok(())
    }

    /// Notes whose page is registered from now on.
    fn note_shown(&mut self, observer: &Observer) {
        let Observer { identity, number, sees_kernel } = *observer;
        let pages = &mut self.vcpu.pages;
        (pages.sees_kernel, pages.is_perfs) = (sees_kernel, false);
        pages.note_registered(identity, number, self.shown);
        self.vcpu.judge_loaded(self.shown);
    }

    /// Registers the vCPU's page, which is perf's, for this subject, after [`Self::make_room`].
    /// `number` is the result of [`Vcpu::number_of_perf`], or a number that nobody has. The
    /// hypervisor then clears what another subject has counted.
    ///
    /// # Errors
    ///
    /// The errors of the hypercall.
    pub fn show_perfs(&mut self, subject: &Subject, number: u32) -> Result<(), Errno> {
        let frame = self.frame();
        let mut identity = subject.identity;
        if !is_open(subject) {
            identity.ids = NO_IDS;
        }
        self.show_frame(frame, &Observer { identity, number, sees_kernel: false })?;
        let pages = &mut self.vcpu.pages;
        (pages.is_perfs, pages.perf) = (true, Some((*subject, number)));
        Ok(())
    }
}

/// Returns whether any observer may see the subject.
const fn is_open(subject: &Subject) -> bool {
    subject.kind != SUBJECT_GUARDED
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::perf::EventConfig;
    use crate::testing::{FakeKernel, INSTRUCTIONS, Machine, counter, identity, program};
    use shared_abi::arch::{EVNTSEL_OS, EVNTSEL_USR};
    use shared_abi::hypercall::{OP_LOAD, OP_REGISTER, OP_UNREGISTER};
    use std::vec;

    const ALICE: Observer = Observer::new(identity(1001), 7, true);
    const ROOT: Observer = Observer::new(identity(ROOT_UID), 8, true);

    fn guarded(uid: u32) -> Subject {
        Subject { kind: SUBJECT_GUARDED, ..program(uid) }
    }

    const KERNEL: Subject = Subject { identity: identity(0), kind: SUBJECT_KERNEL };

    /// Returns a program of Alice's that differs from others of hers in this.
    fn differing(differ: fn(&mut Identity)) -> Subject {
        let mut program = program(1001);
        differ(&mut program.identity);
        program
    }

    /// Programs with other rights than others of Alice's.
    fn of_other_rights() -> [Subject; 4] {
        [
            differing(|identity| identity.container = 0x200),
            differing(|identity| identity.users = 0x88),
            differing(|identity| identity.ids += 1 << 32),
            differing(|identity| identity.capabilities = 1 << 10),
        ]
    }

    impl Machine {
        fn show(&self, observer: &Observer) {
            self.on(0, |cpu| cpu.make_room().and_then(|()| cpu.show(observer))).unwrap();
        }

        fn show_perfs(&self, subject: &Subject, fresh: u32) {
            self.on(0, |cpu| {
                let number = cpu.vcpu.number_of_perf(subject).unwrap_or(fresh);
                cpu.make_room().and_then(|()| cpu.show_perfs(subject, number)).unwrap();
            });
        }

        fn shown(&self) -> Shown {
            self.on(0, |cpu| {
                assert_eq!(cpu.shown.read(), cpu.vcpu.pages.shown, "C reads something else");
                cpu.vcpu.pages.shown
            })
        }

        fn leave_to(&self, next: &Subject) -> Leave {
            self.on(0, |cpu| cpu.vcpu.leave_to(next, None))
        }

        fn load(&self, evntsel: u64) {
            let config = Config::new(&Self::caps(), &[counter(0, evntsel)]).unwrap();
            self.on(0, |cpu| cpu.load(&config)).unwrap();
        }
    }

    #[test]
    fn the_words_beside_the_state_say_the_same() {
        let machine = Machine::new();
        let kernel = INSTRUCTIONS | EVNTSEL_OS;
        let expect = |observer: Option<&Observer>, counts, hides_kernel| {
            let Observer { identity, number, .. } = observer.copied().unwrap_or_default();
            assert_eq!(machine.shown(), Shown { identity, number, hides_kernel, counts });
        };
        machine.show(&ALICE);
        expect(Some(&ALICE), false, false);
        machine.load(kernel);
        expect(Some(&ALICE), true, true);
        machine.on(0, |cpu| cpu.stop_if_idle(&machine.counting));
        expect(Some(&ALICE), false, false);
        machine.load(INSTRUCTIONS | EVNTSEL_USR);
        machine.on(0, |cpu| cpu.show_at_once(1, &ROOT, None)).unwrap();
        expect(Some(&ROOT), false, false);
        machine.load(kernel);
        expect(Some(&ROOT), true, false);
        machine.on(0, |cpu| cpu.unregister()).unwrap();
        expect(None, false, false);
        for end in [
            (|cpu| cpu.refuse(Errno::PERM)) as fn(&mut ThisVcpu<'_, FakeKernel<'_>>),
            |cpu| cpu.go_offline().unwrap(),
            |cpu| cpu.forget_page(),
        ] {
            machine.on(0, |cpu| cpu.come_online(9)).unwrap();
            machine.show(&ALICE);
            machine.load(kernel);
            machine.on(0, end);
            expect(None, false, false);
        }
    }

    #[test]
    fn it_is_said_whether_anything_is_loaded() {
        let machine = Machine::new();
        machine.show(&ALICE);
        for _ in 0..2 {
            assert!(!machine.shown().counts);
            machine.load(INSTRUCTIONS | EVNTSEL_USR);
            assert!(machine.shown().counts);
            machine.show(&ROOT);
            assert!(!machine.shown().counts, "nothing is loaded in a new page");
            machine.load(INSTRUCTIONS | EVNTSEL_USR);
            machine.on(0, |cpu| cpu.stop_if_idle(&machine.counting));
        }
    }

    #[test]
    fn a_page_stays_for_open_programs_of_its_user_and_nobody_else() {
        let machine = Machine::new();
        machine.show(&ALICE);
        for _ in 0..2 {
            assert_eq!(machine.leave_to(&program(1001)), Leave::Stay);
            assert_eq!(machine.leave_to(&KERNEL), Leave::Stay, "it counts user mode at most");
            assert_eq!(machine.leave_to(&program(1002)), Leave::Hide, "another user");
            assert_eq!(machine.leave_to(&program(0)), Leave::Hide, "root is another user, too");
            assert_eq!(machine.leave_to(&guarded(1001)), Leave::Hide, "has rights of its own");
            for other in of_other_rights() {
                assert_eq!(machine.leave_to(&other), Leave::Hide, "{other:?}");
            }
        }
        machine.on(0, |cpu| cpu.unregister()).unwrap();
        assert_eq!(machine.leave_to(&program(1002)), Leave::Stay, "nothing is registered");
    }

    #[test]
    fn a_thread_shows_what_it_counts_itself_whatever_it_has_become() {
        let machine = Machine::new();
        machine.show(&ALICE);
        let leave = |own| machine.on(0, |cpu| cpu.vcpu.leave_to(&guarded(1002), own));
        assert_eq!(leave(Some(ALICE.number)), Leave::Stay);
        assert_eq!(leave(Some(ROOT.number)), Leave::Hide);
        assert_eq!(leave(None), Leave::Hide);
    }

    #[test]
    fn a_program_goes_on_being_counted_for_who_may_look_into_it() {
        assert!(ALICE.may_see(&program(1001)));
        assert!(!ALICE.may_see(&guarded(1001)), "set-group-id, say");
        assert!(!ALICE.may_see(&program(1002)), "it took another user first");
        assert!(!ALICE.may_see(&Subject { kind: SUBJECT_KERNEL, ..program(1001) }));
        for other in of_other_rights() {
            assert!(!ALICE.may_see(&other), "{other:?}");
        }
    }

    #[test]
    fn who_has_a_right_may_look_into_programs_without_it_but_they_not_into_its_page() {
        let capable = Identity { capabilities: 1 << 10, ..identity(1001) };
        let capable = Observer::new(capable, 9, true);
        assert!(capable.may_see(&program(1001)));
        let machine = Machine::new();
        machine.show(&capable);
        let of_its_own = Subject { identity: capable.identity, kind: SUBJECT_OPEN };
        assert_eq!(machine.leave_to(&of_its_own), Leave::Stay);
        assert_eq!(machine.leave_to(&program(1001)), Leave::Hide, "it could read the counters");
    }

    #[test]
    fn only_roots_own_observer_with_the_capability_looks_into_the_kernel() {
        let sees = |uid, capabilities, is_initial| {
            let identity = Identity { capabilities, ..identity(uid) };
            Observer::new(identity, 7, is_initial).sees_kernel
        };
        assert!(sees(0, 1 << 38, true) && sees(0, 1 << 21, true) && sees(0, !0, true));
        assert!(!sees(0, 0, true), "a container's root that shares the namespaces");
        assert!(!sees(0, !(1 << 38 | 1 << 21), true));
        assert!(!sees(0, !0, false), "the root of another namespace");
        assert!(!sees(1001, !0, true));
    }

    #[test]
    fn the_kernels_threads_are_hidden_from_who_may_not_look_into_the_kernel() {
        let machine = Machine::new();
        for observer in [ALICE, ROOT] {
            machine.show(&observer);
            machine.load(INSTRUCTIONS);
            assert_eq!(machine.leave_to(&KERNEL), Leave::Stay);
            machine.load(INSTRUCTIONS | EVNTSEL_OS);
            let leave = if observer.sees_kernel { Leave::Stay } else { Leave::Hide };
            assert_eq!(machine.leave_to(&KERNEL), leave);
            machine.load(INSTRUCTIONS);
            assert_eq!(machine.leave_to(&KERNEL), Leave::Stay);
        }
    }

    #[test]
    fn the_kernels_threads_are_hidden_from_a_page_that_comes_to_events_of_the_kernel() {
        let machine = Machine::new();
        let both = EVNTSEL_USR | EVNTSEL_OS;
        let kernel = EventConfig::new(&Machine::caps(), 4, 0xc0, both, false).unwrap();
        machine.show(&ROOT);
        machine.on(0, |cpu| {
            cpu.disable_events();
            let index = cpu.add_event(&kernel, None).unwrap();
            cpu.start_event(index, 0, 0, 0);
            cpu.enable_events(None);
        });
        for observer in [ROOT, ALICE, ROOT, ALICE] {
            machine.show(&observer);
            let leave = if observer.sees_kernel { Leave::Stay } else { Leave::Hide };
            assert_eq!(machine.leave_to(&KERNEL), leave, "user {}", observer.identity.uid());
        }
    }

    #[test]
    fn one_page_follows_another_only_when_that_is_back() {
        let machine = Machine::new();
        machine.show(&ALICE);
        machine.take_hypercalls();
        machine.show(&ROOT);
        assert_eq!(machine.take_hypercalls(), vec![(0, OP_UNREGISTER), (0, OP_REGISTER)]);
        assert_eq!(machine.shown().number, ROOT.number);
        machine.refuse(Some(Errno::NODEV));
        let room = machine.on(0, |cpu| cpu.make_room());
        machine.refuse(None);
        assert_eq!(room, Err(Errno::NODEV));
        assert_eq!(machine.shown().number, ROOT.number, "the hypervisor may have it still");
        let thread = machine.thread();
        machine.take_hypercalls();
        let control = crate::testing::control(&[counter(0, INSTRUCTIONS)]);
        assert_eq!(thread.control(&control), Err(Errno::NODEV), "nobody counts in another's page");
        assert!(!machine.take_hypercalls().contains(&(0, OP_LOAD)));
        machine.show(&ALICE);
        thread.control(&control).unwrap();
    }

    #[test]
    fn no_page_is_registered_where_the_vcpu_is_offline_or_counts_cpu_wide() {
        let machine = Machine::new();
        machine.on(0, |cpu| {
            cpu.go_offline().unwrap();
            assert!(!cpu.vcpu.is_online());
            assert_eq!(cpu.make_room(), Err(Errno::NXIO));
            machine.take_hypercalls();
            cpu.come_online(5).unwrap();
            let trial = vec![(0, OP_REGISTER), (0, OP_UNREGISTER)];
            assert_eq!(machine.take_hypercalls(), trial, "the trial has ended");
            assert!(cpu.vcpu.is_online());
            assert_eq!(cpu.shown.number(), 0, "on trial only");
            cpu.make_room().unwrap();
            cpu.show(&ROOT).unwrap();
            cpu.close_gate(true);
            assert_eq!(cpu.make_room(), Err(Errno::BUSY));
            assert_eq!(cpu.vcpu.leave_to(&program(1001), None), Leave::Stay, "whoever executes");
            cpu.close_gate(false);
            assert_eq!(cpu.vcpu.leave_to(&program(1001), None), Leave::Hide);
            cpu.make_room().unwrap();
        });
        machine.refuse(Some(Errno::PERM));
        assert_eq!(machine.on(0, |cpu| cpu.come_online(6)), Err(Errno::PERM));
        machine.refuse(None);
        assert_eq!(machine.on(0, |cpu| cpu.make_room()), Err(Errno::PERM), "until it comes back");
    }

    #[test]
    fn a_restored_vcpu_has_no_page_whatever_the_host_answers() {
        let machine = Machine::new();
        machine.show(&ALICE);
        machine.refuse(Some(Errno::NOSYS));
        machine.on(0, |cpu| cpu.forget_page());
        machine.refuse(None);
        assert_eq!(machine.shown(), Shown::default());
        assert_eq!(machine.on(0, |cpu| cpu.make_room()), Err(Errno::NXIO));
    }

    #[test]
    fn each_registration_is_of_the_frame_that_the_page_has_then() {
        let machine = Machine::new();
        for first in [0x77, 0x1234] {
            machine.frame.set(first);
            machine.on(0, |cpu| cpu.come_online(5)).unwrap();
            machine.frame.set(first + 1);
            machine.show(&ALICE);
            machine.frame.set(first + 2);
            machine.show_perfs(&program(1001), 20);
            machine.show_perfs(&program(1001), 21);
            let frames = vec![first, first + 1, first + 2, first + 2];
            assert_eq!(machine.registered.take(), frames);
        }
    }

    #[test]
    fn perfs_page_is_shown_for_one_subject_at_a_time() {
        let machine = Machine::new();
        let number = |subject: &Subject, fresh| {
            machine.show_perfs(subject, fresh);
            machine.shown().number
        };
        assert_eq!(number(&program(1001), 20), 20);
        assert_eq!(machine.leave_to(&program(1001)), Leave::Stay);
        assert_eq!(machine.leave_to(&program(1002)), Leave::Hide);
        assert_eq!(number(&program(1001), 21), 20, "nobody else was here");
        assert_eq!(machine.on(0, |cpu| cpu.vcpu.number_of_perf(&program(1001))), Some(20));
        assert_eq!(number(&program(1002), 22), 22);
        assert_eq!(number(&program(1001), 23), 23);
        assert_eq!(number(&guarded(1001), 24), 24);
        assert_eq!(machine.leave_to(&program(1001)), Leave::Hide, "it may not look into that one");
        assert_eq!(machine.leave_to(&guarded(1001)), Leave::Hide, "nor may one of its kind");
        assert_eq!(number(&guarded(1001), 25), 25, "it may be another program");
    }

    #[test]
    fn a_thread_lacks_its_observers_page_where_another_is_registered() {
        let machine = Machine::new();
        let lacks = |observer| machine.on(0, |cpu| cpu.vcpu.lacks_page_of(observer));
        machine.on(0, |cpu| cpu.unregister()).unwrap();
        assert!(lacks(&ALICE) && lacks(&ROOT));
        machine.show(&ALICE);
        assert!(!lacks(&ALICE) && lacks(&ROOT));
        machine.show(&ROOT);
        assert!(lacks(&ALICE) && !lacks(&ROOT));
        machine.show_perfs(&program(1001), 61);
        assert!(lacks(&ALICE), "perf's page is not its user's");
    }

    #[test]
    fn an_event_takes_a_page_that_may_show_it_or_perfs() {
        let machine = Machine::new();
        let needs = |present: &Subject, own, wide| {
            machine.on(0, |cpu| cpu.vcpu.event_needs_page(present, own, wide))
        };
        machine.on(0, |cpu| cpu.unregister()).unwrap();
        assert!(needs(&program(1001), None, false) && needs(&program(1001), None, true));
        machine.show(&ALICE);
        assert!(!needs(&program(1001), None, false));
        assert!(!needs(&program(1002), None, true), "it counts whoever executes");
        assert!(!needs(&guarded(1002), Some(ALICE.number), false), "counters are running there");
        assert!(needs(&guarded(1001), None, false) && needs(&program(1002), None, false));
        assert!(needs(&program(1002), Some(ROOT.number), false));
        machine.show_perfs(&guarded(1001), 30);
        assert!(!needs(&guarded(1001), None, false), "the next one of its group");
        assert!(needs(&program(1001), None, false));
    }

    #[test]
    fn an_event_goes_on_where_its_thread_becomes_another_users() {
        let machine = Machine::new();
        let becomes =
            |subject| machine.on(0, |cpu| cpu.vcpu.become_subject(&program(subject), None));
        machine.show_perfs(&program(0), 50);
        assert_eq!(becomes(1001), Leave::Hide, "nothing is counted");
        let caps = Machine::caps();
        let wanted = EventConfig::new(&caps, 4, 0xc4, EVNTSEL_USR, false).unwrap();
        machine.on(0, |cpu| {
            cpu.disable_events();
            let index = cpu.add_event(&wanted, None).unwrap();
            cpu.start_event(index, 0, 0, 0);
            cpu.enable_events(None);
        });
        assert_eq!(becomes(0), Leave::Stay);
        for (uid, branches) in [(1001, 30), (1002, 50)] {
            machine.execute(0, 1_000, branches);
            assert_eq!(becomes(uid), Leave::ShowPerfs);
            assert_eq!(machine.leave_to(&program(uid)), Leave::Hide, "a switch takes it along");
            machine.show_perfs(&program(uid), 51);
            machine.execute(0, 1_000, 7);
            let count = machine.on(0, |cpu| cpu.progress_of_event(0, 0)).count;
            assert_eq!(count, branches + 7);
        }
    }

    #[test]
    fn events_without_a_page_get_the_next_threads_page() {
        let machine = Machine::new();
        let wanted = EventConfig::new(&Machine::caps(), 4, 0xc4, EVNTSEL_USR, false).unwrap();
        machine.on(0, |cpu| {
            cpu.disable_events();
            cpu.add_event(&wanted, None).unwrap();
            cpu.unregister().unwrap();
            for (leaves, comes) in [(1001, 1002), (1002, 1001)] {
                let leave = cpu.vcpu.leave_to(&program(comes), None);
                assert_eq!(leave, Leave::Stay, "nothing is registered");
                let needed =
                    |cpu: &ThisVcpu<'_, _>| cpu.vcpu.events_need_page_for(&program(leaves));
                assert_eq!(needed(cpu), Some(program(leaves)), "no switch is under way");
                cpu.vcpu.note_who_comes(&program(comes), leave);
                assert_eq!(needed(cpu), Some(program(comes)));
                cpu.enable_events(None);
                assert_eq!(needed(cpu), Some(program(leaves)), "the switch has ended");
            }
            cpu.vcpu.wide_event_comes();
            cpu.vcpu.note_who_comes(&program(1002), Leave::Stay);
            let needed = cpu.vcpu.events_need_page_for(&program(1001));
            assert_eq!(needed, Some(program(1001)), "a CPU's events do not follow a switch");
        });
    }

    #[test]
    fn a_users_page_after_perfs_is_the_users_alone() {
        let machine = Machine::new();
        machine.on(0, |cpu| cpu.vcpu.wide_event_comes());
        let at_once = || machine.on(0, |cpu| cpu.show_at_once(1, &ALICE, None)).unwrap();
        let ways: [&dyn Fn(); 4] =
            [&|| machine.show(&ALICE), &at_once, &at_once, &|| machine.show(&ALICE)];
        for show in ways {
            machine.show_perfs(&program(1002), 40);
            assert_eq!(machine.leave_to(&program(1002)), Leave::Stay);
            show();
            assert_eq!(machine.leave_to(&program(1002)), Leave::ShowPerfs, "it is Alice's now");
            assert_eq!(machine.leave_to(&program(1001)), Leave::Stay);
        }
    }

    #[test]
    fn events_whose_page_is_about_to_go_follow_who_comes() {
        let machine = Machine::new();
        let wanted = EventConfig::new(&Machine::caps(), 4, 0xc4, EVNTSEL_USR, false).unwrap();
        machine.show(&ALICE);
        machine.on(0, |cpu| {
            cpu.disable_events();
            cpu.add_event(&wanted, None).unwrap();
        });
        for (leaves, comes) in [(1001, 1002), (1002, 1003)] {
            machine.show_perfs(&program(leaves), 60);
            let leave = machine.leave_to(&program(comes));
            assert_eq!(leave, Leave::Hide);
            machine.on(0, |cpu| {
                cpu.vcpu.note_who_comes(&program(comes), leave);
                cpu.unregister().unwrap();
                let needed = cpu.vcpu.events_need_page_for(&program(leaves));
                assert_eq!(needed, Some(program(comes)));
                cpu.enable_events(None);
                cpu.disable_events();
            });
        }
    }

    #[test]
    fn events_of_a_cpu_keep_perfs_page_and_the_last_one_gives_it_back() {
        let machine = Machine::new();
        machine.show(&ALICE);
        machine.on(0, |cpu| cpu.vcpu.wide_event_comes());
        assert_eq!(machine.leave_to(&program(1002)), Leave::ShowPerfs, "not in a user's page");
        machine.show_perfs(&program(1002), 40);
        assert_eq!(machine.leave_to(&program(1003)), Leave::Stay);
        machine.on(0, |cpu| {
            cpu.vcpu.wide_event_comes();
            assert!(!cpu.vcpu.event_goes(&program(1003), true), "another one is here");
            assert!(!cpu.vcpu.event_goes(&program(1003), false));
            assert!(cpu.vcpu.event_goes(&program(1003), true));
        });
        machine.show_perfs(&program(1003), 41);
        machine.on(0, |cpu| {
            assert!(!cpu.vcpu.event_goes(&program(1003), false), "it is here itself");
            assert!(cpu.vcpu.event_goes(&guarded(1003), false));
        });
        machine.show(&ALICE);
        let goes = machine.on(0, |cpu| cpu.vcpu.event_goes(&program(1003), false));
        assert!(!goes, "a user's page is not perf's to take back");
    }
}
