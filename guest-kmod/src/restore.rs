// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Handles a vCPU whose guest was restored at any instruction
//! (`docs/adr/0023-restored-guests-of-kvm-go-on-from-their-pages.md`).
//!
//! The present hypervisor interrupts the vCPU before the vCPU executes anything else. The functions
//! here execute in this interrupt, which is not maskable: it may interrupt any code, perhaps
//! between a hypercall and the note of its answer. So each piece of state here is a word of its
//! own, and the interrupt accesses no other state of the vCPU.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, compiler_fence};

use shared_abi::hypercall::{
    HvQuery, HvRegister, OP_GO_ON, OP_LOAD, OP_QUERY, OP_REGISTER, OP_SHOW, OP_UNREGISTER,
};
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_EXECUTING, VCPU_REGISTERED};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use shared_abi::{Errno, VcpuPage};
use zerocopy::{FromBytes, IntoBytes};

use crate::hal::Hypervisor;
use crate::handshake::handshake_again;

/// The state of one vCPU that is kept so that it can continue after a restoration.
#[derive(Debug, Default)]
pub struct Restoration {
    /// The page that is registered, was registered last, or is about to be registered.
    page: Note,
    /// The page that takes the place of that one.
    next: Note,
    /// The number of the machine on its host, or 0 if the host does not answer.
    machine: AtomicU64,
    /// The page's content when the vCPU was last interrupted, and which page it was. A load since
    /// then has added direct reads to the flags.
    seen_frame: AtomicU64,
    seen_overflows: AtomicU64,
    seen_flags: AtomicU32,
    /// The reason for which the vCPU could not continue from its page, as a negative number, or 0
    /// if it could.
    refusal: AtomicI32,
    /// Whether the kernel has to ask anew if the vCPU may count, at a place where the kernel may
    /// wait.
    look: AtomicBool,
}

/// A page of the vCPU, as the hypervisor was asked to register it.
#[derive(Debug, Default)]
struct Note {
    /// The page's frame, or 0 if no page is noted.
    frame: AtomicU64,
    /// The observer for whom it is registered.
    observer: AtomicU32,
}

impl Note {
    const fn new() -> Self {
        Self { frame: AtomicU64::new(0), observer: AtomicU32::new(0) }
    }

    fn set(&self, gfn: u64, observer: u32) {
        self.observer.store(observer, Relaxed);
        // An interrupt that finds the frame also finds the rest, and which page it is.
        compiler_fence(SeqCst);
        self.frame.store(gfn, Relaxed);
    }

    fn clear(&self) {
        self.frame.store(0, Relaxed);
    }

    fn is_set(&self) -> bool {
        self.frame.load(Relaxed) != 0
    }
}

/// What has changed in a vCPU's page from one interrupt to the next.
struct Change {
    /// How many of the driver's interrupts explain it, from 0 to 2.
    interrupts: u32,
    /// Whether there were overflows and nothing else.
    is_of_overflows: bool,
}

/// Returns whether the page is registered after this answer.
const fn is_kept(op: u32, answer: Result<(), Errno>) -> bool {
    match (op, answer) {
        (OP_REGISTER | OP_SHOW, answer) => answer.is_ok(),
        (OP_UNREGISTER, Ok(()) | Err(Errno::NXIO)) => false,
        _ => true,
    }
}

impl Restoration {
    /// Makes the state of a vCPU without a page.
    pub const fn new() -> Self {
        Self {
            page: Note::new(),
            next: Note::new(),
            machine: AtomicU64::new(0),
            seen_frame: AtomicU64::new(0),
            seen_overflows: AtomicU64::new(0),
            seen_flags: AtomicU32::new(0),
            refusal: AtomicI32::new(0),
            look: AtomicBool::new(false),
        }
    }

    /// Makes a hypercall of the vCPU, and notes what a restoration in the middle of it needs to
    /// know.
    ///
    /// # Errors
    ///
    /// The hypervisor's error. If a load finds no page because the vCPU could not continue from its
    /// page, the reason for this.
    pub fn hypercall(
        &self,
        hypervisor: &impl Hypervisor,
        op: u32,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let registers = matches!(op, OP_REGISTER | OP_SHOW);
        let note = if op == OP_SHOW { &self.next } else { &self.page };
        if registers && let Ok((wanted, _)) = HvRegister::read_from_prefix(argument) {
            note.set(wanted.gfn, wanted.observer);
        }
        // The interrupt may find a reason of its own in the meantime, which is the one to keep.
        let refusal = if registers { self.refusal.swap(0, Relaxed) } else { 0 };
        // A load permits direct reads. If the host forbids them before the next interrupt, the page
        // has the flags of the last one then.
        if op == OP_LOAD {
            self.seen_flags.fetch_or(VCPU_DIRECT, Relaxed);
        }
        // The interrupt finds the note, whether it comes before the hypercall or after it.
        compiler_fence(SeqCst);
        let answer = hypervisor.hypercall(op, argument);
        compiler_fence(SeqCst);
        if op == OP_LOAD && answer.is_err() {
            self.seen_flags.fetch_and(!VCPU_DIRECT, Relaxed);
        }
        if !is_kept(op, answer) {
            note.clear();
        }
        if answer.is_err() && refusal != 0 {
            let _ = self.refusal.compare_exchange(0, refusal, Relaxed, Relaxed);
        }
        if registers && answer.is_ok() {
            // The page's overflows begin anew, also if the same page was registered before. None
            // can have happened yet, since nothing is loaded that interrupts.
            self.seen_frame.store(0, Relaxed);
        }
        compiler_fence(SeqCst);
        match answer {
            Err(Errno::NXIO) if op == OP_LOAD => Err(self.refused().unwrap_or(Errno::NXIO)),
            answer => answer,
        }
    }

    /// Returns whether a page is about to take the place of another one, or has taken it and is not
    /// chosen yet.
    pub fn has_next(&self) -> bool {
        self.next.is_set()
    }

    /// Notes that the page is chosen now that has taken the place of another one.
    pub fn next_is_chosen(&self) {
        compiler_fence(SeqCst);
        self.page.set(self.next.frame.load(Relaxed), self.next.observer.load(Relaxed));
        self.next.clear();
    }

    /// Notes that the vCPU can be interrupted from now on, and to which machine it belongs.
    pub fn begin(&self, hypervisor: &impl Hypervisor) {
        self.asks_machine(hypervisor);
    }

    /// Handles an interrupt of the vCPU. `page` is the chosen page, and `next` the one that takes
    /// its place while [`has_next`](Self::has_next) says that there is one. `before` is the answer
    /// of the first handshake.
    ///
    /// Returns how many of the driver's interrupts explain what the page says, from 0 to 2. The
    /// interrupt may be somebody else's if none does. If two interrupts explain it, the other one
    /// may still come: the page already contains an overflow that happens after the interruption,
    /// but before this function reads the page.
    pub fn interrupted(
        &self,
        hypervisor: &impl Hypervisor,
        before: &HvQuery,
        page: &VcpuPage,
        next: Option<&VcpuPage>,
    ) -> u32 {
        let (note, page) = self.registered(page, next);
        if was_left(note, page) {
            self.go_on(hypervisor, before, (note, page));
            return 1;
        }
        let change = self.change_of(note, page);
        // Overflows are frequent, and asking costs an exit. Where the flags have changed, the host
        // may have forbidden the machine to count and allowed it again, and the interrupts of both
        // may have become one.
        if change.is_of_overflows {
            return change.interrupts;
        }
        let moved = self.asks_machine(hypervisor);
        if moved {
            self.look.store(true, Relaxed);
        }
        change.interrupts.max(u32::from(moved))
    }

    /// Returns whether the kernel has to call [`Self::looks`] where it may wait.
    pub fn wants_look(&self) -> bool {
        self.look.load(Relaxed)
    }

    /// Asks whether the vCPU, which is or is not `online`, may count. Returns whether the kernel
    /// has to register its page anew, after which it calls [`Self::looked`].
    pub fn looks(&self, hypervisor: &impl Hypervisor, before: &HvQuery, online: bool) -> bool {
        self.look.store(false, Relaxed);
        !online || self.refused().is_some() || handshake_again(hypervisor, before).is_err()
    }

    /// Notes that the page has been registered anew, or refused.
    pub fn looked(&self) {
        self.refusal.store(0, Relaxed);
    }

    fn refused(&self) -> Option<Errno> {
        match self.refusal.load(Relaxed) {
            0 => None,
            error => Some(Errno(error.wrapping_neg())),
        }
    }

    /// Returns the page that is registered, or was registered last. The next page says whether it
    /// has been registered yet when the interrupt comes; see [`prepare_next`].
    fn registered<'a>(
        &'a self,
        page: &'a VcpuPage,
        next: Option<&'a VcpuPage>,
    ) -> (&'a Note, &'a VcpuPage) {
        match next.filter(|next| next.flags.load(Relaxed) & VCPU_REGISTERED != 0) {
            Some(next) => (&self.next, next),
            None => (&self.page, page),
        }
    }

    /// Makes the present hypervisor continue from the page's content before the interrupted code
    /// reads anything: whatever that code was about to do, it finds its counters as they were.
    fn go_on(
        &self,
        hypervisor: &impl Hypervisor,
        before: &HvQuery,
        (note, page): (&Note, &VcpuPage),
    ) {
        let went_on = handshake_again(hypervisor, before).and_then(|_| {
            let (gfn, observer) = (note.frame.load(Relaxed), note.observer.load(Relaxed));
            let mut wanted = HvRegister { gfn, observer, reserved: 0 };
            hypervisor.hypercall(OP_GO_ON, wanted.as_mut_bytes())
        });
        self.asks_machine(hypervisor);
        if let Err(errno) = went_on {
            take_for_forbidden(page);
            note.clear();
            self.refusal.store(errno.to_return(), Relaxed);
            self.look.store(true, Relaxed);
        }
    }

    /// Returns what has changed in the page since the last interrupt.
    fn change_of(&self, note: &Note, page: &VcpuPage) -> Change {
        let frame = note.frame.load(Relaxed);
        if frame == 0 {
            return Change { interrupts: 0, is_of_overflows: false };
        }
        let (overflows, flags) = (page.overflows.load(Relaxed), page.flags.load(Relaxed));
        let other_frame = self.seen_frame.swap(frame, Relaxed) != frame;
        let more = overflows.wrapping_sub(self.seen_overflows.swap(overflows, Relaxed));
        let other_flags = self.seen_flags.swap(flags, Relaxed) != flags;
        if other_frame {
            // The number of overflows is not compared with that of another page.
            return Change { interrupts: 1, is_of_overflows: false };
        }
        let interrupts = more.min(2).max(u64::from(other_flags)) as u32;
        // Without direct reads the machine may be forbidden to count, and the interrupts of that
        // and of an overflow may have become one.
        let is_direct = flags & VCPU_DIRECT != 0;
        Change { interrupts, is_of_overflows: more != 0 && !other_flags && is_direct }
    }

    /// Returns whether the machine has been restored or allowed to count since the last call.
    fn asks_machine(&self, hypervisor: &impl Hypervisor) -> bool {
        let mut now = HvQuery {
            abi_major: u32::from(ABI_MAJOR),
            abi_minor: u32::from(ABI_MINOR),
            ..HvQuery::default()
        };
        let asked = hypervisor.hypercall(OP_QUERY, now.as_mut_bytes());
        let machine = asked.map_or(0, |()| now.machine);
        self.machine.swap(machine, Relaxed) != machine
    }
}

/// Returns whether another hypervisor than this vCPU's present one has published in the page. While
/// the vCPU executes, the page of its own hypervisor says that it executes.
fn was_left(note: &Note, page: &VcpuPage) -> bool {
    let flags = page.flags.load(Relaxed);
    note.is_set() && flags & (VCPU_REGISTERED | VCPU_EXECUTING) == VCPU_REGISTERED
}

/// The flags in the page of a vCPU that could not continue. There are no direct reads, as if the
/// host had forbidden the vCPU to count. The flags say that the vCPU executes: if it is restored
/// once more before it has registered a page, there is nothing to continue from.
const GIVEN_UP: u32 = VCPU_REGISTERED | VCPU_EXECUTING;

/// Prepares a page, which is not registered, to take the place of the registered one. A page from
/// which the vCPU could not go on says until then that it is registered.
pub fn prepare_next(page: &VcpuPage) {
    if page.flags.load(Relaxed) != 0 {
        page.flags.store(0, Relaxed);
    }
}

/// Writes in the page that nobody counts for this vCPU any more, as if the host had forbidden it.
/// The kernel writes the page in place of the hypervisor, which does not publish in it any more.
fn take_for_forbidden(page: &VcpuPage) {
    let _guard = page.seq.write(&mut page.seq.writes());
    page.flags.store(GIVEN_UP, Relaxed);
    page.loaded.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use core::cell::{Cell, RefCell};
    use shared_abi::PmuCaps;
    use shared_abi::WireCaps;
    use shared_abi::hypercall::{FEATURE_ENABLED, HvShow, OP_STOP};
    use std::vec;
    use std::vec::Vec;

    const EXECUTING: u32 = VCPU_REGISTERED | VCPU_DIRECT | VCPU_EXECUTING;
    const LEFT: u32 = VCPU_REGISTERED | VCPU_DIRECT;

    /// A hypervisor whose answers the test sets.
    struct Host {
        machine: Cell<u64>,
        refuses: Cell<Option<(u32, Errno)>>,
        asked: RefCell<Vec<(u32, Vec<u8>)>>,
    }

    impl Hypervisor for Host {
        fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
            self.asked.borrow_mut().push((op, argument.to_vec()));
            if let Some((_, errno)) = self.refuses.get().filter(|(refused, _)| *refused == op) {
                return Err(errno);
            }
            if op == OP_QUERY {
                let asked = HvQuery::read_from_bytes(argument).unwrap();
                let version = [ABI_MAJOR, ABI_MINOR].map(u32::from);
                assert_eq!([asked.abi_major, asked.abi_minor], version, "the guest says its ABI");
                argument.copy_from_slice(self.answer().as_bytes());
            }
            Ok(())
        }
    }

    impl Host {
        fn new() -> Self {
            Self { machine: Cell::new(31), refuses: Cell::new(None), asked: RefCell::default() }
        }

        fn answer(&self) -> HvQuery {
            let caps: PmuCaps = crate::testing::Machine::caps();
            HvQuery {
                abi_major: u32::from(ABI_MAJOR),
                machine: self.machine.get(),
                caps: WireCaps::from(&caps),
                features: FEATURE_ENABLED,
                ..HvQuery::default()
            }
        }

        /// Returns the operations since the last call, without those that only ask.
        fn take(&self) -> Vec<u32> {
            let asked = self.asked.take();
            asked.into_iter().map(|(op, _)| op).filter(|op| *op != OP_QUERY).collect()
        }
    }

    fn page(flags: u32, overflows: u64) -> VcpuPage {
        let page = VcpuPage::default();
        page.flags.store(flags, Relaxed);
        page.overflows.store(overflows, Relaxed);
        page
    }

    /// A vCPU of a machine on that host.
    struct On<'a> {
        host: &'a Host,
        restoration: Restoration,
    }

    impl<'a> On<'a> {
        fn new(host: &'a Host) -> Self {
            Self { host, restoration: Restoration::new() }
        }

        /// Makes a vCPU that has registered this page, and was interrupted since.
        fn with_page(host: &'a Host, page: &VcpuPage) -> Self {
            let vcpu = Self::new(host);
            vcpu.begin();
            register(&vcpu, 0x55, 4).unwrap();
            assert!(vcpu.interrupted(&host.answer(), page), "the page is new");
            vcpu
        }

        fn begin(&self) {
            self.restoration.begin(self.host);
        }

        fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
            self.restoration.hypercall(self.host, op, argument)
        }

        /// Handles an interrupt, and returns whether it was the driver's.
        fn interrupted(&self, before: &HvQuery, page: &VcpuPage) -> bool {
            self.restoration.interrupted(self.host, before, page, None) != 0
        }

        fn looks(&self, before: &HvQuery, online: bool) -> bool {
            self.restoration.looks(self.host, before, online)
        }
    }

    /// A hypervisor that interrupts its vCPU once, in the middle of an operation.
    struct Interrupting<'a> {
        host: &'a Host,
        restoration: &'a Restoration,
        page: &'a VcpuPage,
        op: u32,
        does: Cell<bool>,
    }

    impl Hypervisor for Interrupting<'_> {
        fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
            if op == self.op && self.does.take() {
                self.host.machine.set(self.host.machine.get() + 1);
                let answer = self.host.answer();
                assert_eq!(self.restoration.interrupted(self.host, &answer, self.page, None), 1);
            }
            self.host.hypercall(op, argument)
        }
    }

    #[test]
    fn a_change_during_an_examination_causes_another_one() {
        let host = Host::new();
        let (page, before) = (page(EXECUTING, 3), host.answer());
        let vcpu = On::with_page(&host, &page);
        for does in [true, false, true, false] {
            host.machine.set(host.machine.get() + 1);
            assert!(vcpu.interrupted(&before, &page));
            assert!(vcpu.restoration.wants_look());
            let (restoration, does_it) = (&vcpu.restoration, Cell::new(does));
            let hypervisor =
                Interrupting { host: &host, restoration, page: &page, op: OP_QUERY, does: does_it };
            restoration.looks(&hypervisor, &before, true);
            restoration.looked();
            assert_eq!(restoration.wants_look(), does, "it was restored once more");
            restoration.looks(&host, &before, true);
            assert!(!restoration.wants_look());
        }
    }

    fn register(vcpu: &On<'_>, gfn: u64, observer: u32) -> Result<(), Errno> {
        let mut wanted = HvRegister { gfn, observer, reserved: 0 };
        vcpu.hypercall(OP_REGISTER, wanted.as_mut_bytes())
    }

    #[test]
    fn a_vcpu_that_was_left_goes_on_from_the_page_that_was_registered() {
        let host = Host::new();
        let vcpu = On::new(&host);
        vcpu.begin();
        let page = page(LEFT, 3);
        for (gfn, observer) in [(0x55, 4), (0x56, 9)] {
            register(&vcpu, gfn, observer).unwrap();
            host.take();
            host.machine.set(host.machine.get() + 1);
            assert!(vcpu.interrupted(&host.answer(), &page));
            let asked = host.asked.take();
            let (_, bytes) = asked.iter().find(|(op, _)| *op == OP_GO_ON).unwrap();
            let wanted = HvRegister::read_from_bytes(bytes).unwrap();
            assert_eq!((wanted.gfn, wanted.observer), (gfn, observer));
            assert!(!vcpu.restoration.wants_look());
            assert_eq!(page.flags.load(Relaxed), LEFT, "the hypervisor writes there");
        }
    }

    /// The pages of two users of a vCPU, and the frames and observers with which they are
    /// registered.
    const ALICES: (u64, u32) = (0x55, 4);
    const BOBS: (u64, u32) = (0x56, 9);

    /// The steps in which Bob's page takes the place of Alice's, after each of which an interrupt
    /// may come.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Step {
        Noted,
        Asked,
        Answered,
        Returned,
        Chosen,
        Done,
    }

    const STEPS: [Step; 6] =
        [Step::Noted, Step::Asked, Step::Answered, Step::Returned, Step::Chosen, Step::Done];

    /// What has caused the interrupt.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Cause {
        Overflow,
        Move,
        SomebodyElse,
    }

    /// A vCPU on which Alice's page is registered, and Bob's takes its place.
    struct Replacing<'a> {
        host: &'a Host,
        restoration: &'a Restoration,
        pages: [&'a VcpuPage; 2],
        /// Which of them is registered.
        registered: Cell<Option<usize>>,
        /// The hypervisor's answer.
        answer: Result<(), Errno>,
        at: Step,
        cause: Cause,
        /// The number of interrupts that were explained.
        explained: Cell<u32>,
    }

    impl Hypervisor for Replacing<'_> {
        fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
            assert_eq!(op, OP_SHOW);
            let (wanted, _) = HvRegister::read_from_prefix(argument).unwrap();
            assert_eq!((wanted.gfn, wanted.observer), BOBS);
            self.step(Step::Asked);
            // A hypervisor without this hypercall does nothing.
            if self.answer != Err(Errno::INVAL)
                && let Some(page) = self.registered.take()
            {
                self.pages[page].flags.store(0, Relaxed);
            }
            if self.answer.is_ok() {
                self.registered.set(Some(1));
                self.pages[1].flags.store(EXECUTING, Relaxed);
            }
            self.step(Step::Answered);
            self.answer
        }
    }

    impl Replacing<'_> {
        fn replace(&self) {
            prepare_next(self.pages[1]);
            self.step(Step::Noted);
            let (gfn, observer) = BOBS;
            let page = HvRegister { gfn, observer, reserved: 0 };
            let mut argument = HvShow { page, ..HvShow::default() };
            let bytes = &mut argument.as_mut_bytes()[..HvShow::bytes(0)];
            assert_eq!(self.restoration.hypercall(self, OP_SHOW, bytes), self.answer);
            self.step(Step::Returned);
            self.step(Step::Chosen);
            if self.answer.is_ok() {
                self.restoration.next_is_chosen();
            }
            self.step(Step::Done);
        }

        fn set_flags(&self, flags: u32) {
            self.registered.get().inspect(|page| self.pages[*page].flags.store(flags, Relaxed));
        }

        fn step(&self, step: Step) {
            if step != self.at {
                return;
            }
            match self.cause {
                Cause::Overflow => {
                    // It is found at the latest when the page is unregistered.
                    let page = self.pages[self.registered.get().unwrap_or(0)];
                    page.overflows.store(page.overflows.load(Relaxed) + 1, Relaxed);
                }
                Cause::Move => {
                    self.host.machine.set(self.host.machine.get() + 1);
                    self.set_flags(LEFT);
                }
                Cause::SomebodyElse => {}
            }
            self.explained.set(self.interrupted(matches!(step, Step::Chosen | Step::Done)));
            // The new hypervisor goes on from that page.
            self.set_flags(EXECUTING);
        }

        fn interrupted(&self, is_chosen: bool) -> u32 {
            let [alices, bobs] = self.pages;
            let page = if is_chosen && self.answer.is_ok() { bobs } else { alices };
            let next = self.restoration.has_next().then_some(bobs);
            self.restoration.interrupted(self.host, &self.host.answer(), page, next)
        }

        /// Returns with which frames and for which observers the host was asked to go on.
        fn went_on(&self) -> Vec<(u64, u32)> {
            let asked = self.host.asked.take();
            let went_on = asked.iter().filter(|(op, _)| *op == OP_GO_ON).map(|(_, bytes)| {
                let wanted = HvRegister::read_from_bytes(bytes).unwrap();
                (wanted.gfn, wanted.observer)
            });
            went_on.collect()
        }
    }

    #[test]
    fn an_interrupt_while_a_page_is_replaced_looks_at_the_one_that_is_registered() {
        for at in STEPS {
            for answer in [Ok(()), Err(Errno::INVAL), Err(Errno::NOMEM)] {
                for cause in [Cause::Overflow, Cause::Move, Cause::SomebodyElse] {
                    for given_up in [None, Some(0), Some(1)] {
                        replace_and_interrupt(at, answer, cause, given_up);
                    }
                }
            }
        }
    }

    /// `given_up` is the page from which the vCPU could not go on at the time when it was
    /// registered last.
    fn replace_and_interrupt(
        at: Step,
        answer: Result<(), Errno>,
        cause: Cause,
        given_up: Option<usize>,
    ) {
        let case = std::format!("{cause:?} after {at:?}, answer {answer:?}, {given_up:?}");
        let host = Host::new();
        let (alices, bobs) = (page(EXECUTING, 3), page(0, 0));
        let vcpu = On::with_page(&host, &alices);
        match given_up {
            Some(0) => {
                alices.flags.store(LEFT, Relaxed);
                host.refuses.set(Some((OP_GO_ON, Errno::BUSY)));
                assert!(vcpu.interrupted(&host.answer(), &alices));
                host.refuses.set(None);
            }
            Some(_) => bobs.flags.store(GIVEN_UP, Relaxed),
            None => {}
        }
        let first = (given_up != Some(0)).then_some(0);
        host.asked.take();
        let replacing = Replacing {
            host: &host,
            restoration: &vcpu.restoration,
            pages: [&alices, &bobs],
            registered: Cell::new(first),
            answer,
            at,
            cause,
            explained: Cell::new(0),
        };
        replacing.replace();
        let last = match answer {
            Ok(()) => Some(1),
            Err(Errno::INVAL) => first,
            Err(_) => None,
        };
        assert_eq!(replacing.registered.get(), last, "{case}");
        let is_done = !matches!(at, Step::Noted | Step::Asked);
        let registered = if is_done { last } else { first };
        let (went_on, explained) = (replacing.went_on(), replacing.explained.get());
        match cause {
            Cause::Overflow if first.or(registered).is_some() => assert_eq!(explained, 1, "{case}"),
            Cause::Move => assert_eq!(explained, 1, "{case}"),
            Cause::SomebodyElse if !is_done || registered == Some(0) => {
                assert_eq!(explained, 0, "{case}")
            }
            // A page that is new explains an interrupt.
            _ => {}
        }
        let expected = registered.filter(|_| cause == Cause::Move).map(|page| [ALICES, BOBS][page]);
        assert_eq!(went_on, Vec::from_iter(expected), "{case}");
        // From now on, the page that is registered is the one from which the vCPU goes on.
        replacing.set_flags(LEFT);
        replacing.interrupted(true);
        let expected = Vec::from_iter(last.map(|page| [ALICES, BOBS][page]));
        assert_eq!(replacing.went_on(), expected, "afterwards: {case}");
    }

    #[test]
    fn a_page_that_is_lost_as_it_is_registered_is_lost_for_the_reason_of_its_own() {
        let host = Host::new();
        let vcpu = On::new(&host);
        let page = page(LEFT, 3);
        register(&vcpu, 0x55, 4).unwrap();
        host.refuses.set(Some((OP_GO_ON, Errno::BUSY)));
        assert!(vcpu.interrupted(&host.answer(), &page));
        let loads = |expected| {
            host.refuses.set(Some((OP_LOAD, Errno::NXIO)));
            assert_eq!(vcpu.hypercall(OP_LOAD, &mut []), Err(expected));
        };
        loads(Errno::BUSY);
        host.refuses.set(Some((OP_REGISTER, Errno::NOMEM)));
        register(&vcpu, 0x55, 4).unwrap_err();
        loads(Errno::BUSY);
        // The vCPU is moved just after the hypervisor has registered its page.
        let moving = Moving { host: &host, restoration: &vcpu.restoration, page: &page };
        let mut wanted = HvRegister { gfn: 0x55, observer: 4, reserved: 0 };
        vcpu.restoration.hypercall(&moving, OP_REGISTER, wanted.as_mut_bytes()).unwrap();
        loads(Errno::PERM);
        host.refuses.set(None);
        register(&vcpu, 0x55, 4).unwrap();
        loads(Errno::NXIO);
    }

    /// A hypervisor from which a vCPU is moved just after it has registered a page, to one that
    /// forbids it to count.
    struct Moving<'a> {
        host: &'a Host,
        restoration: &'a Restoration,
        page: &'a VcpuPage,
    }

    impl Hypervisor for Moving<'_> {
        fn hypercall(&self, _: u32, _: &mut [u8]) -> Result<(), Errno> {
            self.page.flags.store(LEFT, Relaxed);
            self.host.refuses.set(Some((OP_GO_ON, Errno::PERM)));
            let answer = self.host.answer();
            assert_eq!(self.restoration.interrupted(self.host, &answer, self.page, None), 1);
            Ok(())
        }
    }

    #[test]
    fn one_whose_hypervisor_is_there_still_does_not() {
        let host = Host::new();
        let vcpu = On::new(&host);
        vcpu.begin();
        let page = page(EXECUTING, 3);
        assert!(!vcpu.interrupted(&host.answer(), &page), "nothing is registered");
        register(&vcpu, 0x55, 4).unwrap();
        assert!(vcpu.interrupted(&host.answer(), &page), "the page is new");
        for overflows in [4, 5] {
            assert!(!vcpu.interrupted(&host.answer(), &page), "somebody else's interrupt");
            page.overflows.store(overflows, Relaxed);
            assert!(vcpu.interrupted(&host.answer(), &page));
        }
        page.flags.store(VCPU_REGISTERED | VCPU_EXECUTING, Relaxed);
        assert!(vcpu.interrupted(&host.answer(), &page), "the host forbids");
        assert!(!vcpu.interrupted(&host.answer(), &page));
        register(&vcpu, 0x56, 5).unwrap();
        assert!(vcpu.interrupted(&host.answer(), &page), "another page");
        assert!(!host.take().contains(&OP_GO_ON));
        assert!(!vcpu.restoration.wants_look());
    }

    #[test]
    fn an_overflow_before_the_look_explains_the_interrupt_that_follows() {
        let host = Host::new();
        let page = page(EXECUTING, 3);
        let vcpu = On::with_page(&host, &page);
        let mut overflows = 3;
        for (more, flags, explained) in [
            (1, EXECUTING, 1),
            (2, EXECUTING, 2),
            (0, EXECUTING, 0),
            (9, EXECUTING, 2),
            (0, VCPU_REGISTERED | VCPU_EXECUTING, 1),
            (2, EXECUTING, 2),
            (1, VCPU_REGISTERED | VCPU_EXECUTING, 1),
        ] {
            overflows += more;
            page.overflows.store(overflows, Relaxed);
            page.flags.store(flags, Relaxed);
            let found = vcpu.restoration.interrupted(&host, &host.answer(), &page, None);
            assert_eq!(found, explained, "{more} more overflows, flags {flags:#x}");
        }
        register(&vcpu, 0x56, 5).unwrap();
        page.overflows.store(overflows + 5, Relaxed);
        let of_another = vcpu.restoration.interrupted(&host, &host.answer(), &page, None);
        assert_eq!(of_another, 1, "another page has overflows of its own");
    }

    #[test]
    fn one_interrupt_tells_of_a_changed_page_and_of_another_machine() {
        let host = Host::new();
        let page = page(EXECUTING, 3);
        let vcpu = On::with_page(&host, &page);
        let changes: [&dyn Fn(); 2] =
            [&|| page.flags.store(VCPU_REGISTERED | VCPU_EXECUTING, Relaxed), &|| {
                register(&vcpu, 0x56, 5).unwrap();
            }];
        for change in changes {
            change();
            host.machine.set(host.machine.get() + 1);
            assert!(vcpu.interrupted(&host.answer(), &page));
            assert!(vcpu.restoration.wants_look(), "the machine has another number");
            assert!(!vcpu.looks(&host.answer(), true));
            assert!(!vcpu.interrupted(&host.answer(), &page), "somebody else's interrupt");
            assert!(!vcpu.restoration.wants_look());
        }
    }

    #[test]
    fn a_machine_that_is_forbidden_and_allowed_in_turn_explains_each_interrupt() {
        let host = Host::new();
        let (page, before) = (page(EXECUTING, 3), host.answer());
        let vcpu = On::with_page(&host, &page);
        for _ in 0..3 {
            // At each interrupt the page permits no direct reads, and in between it does.
            page.flags.store(VCPU_REGISTERED | VCPU_EXECUTING, Relaxed);
            assert!(vcpu.interrupted(&before, &page), "it is forbidden");
            host.refuses.set(Some((OP_LOAD, Errno::PERM)));
            assert_eq!(vcpu.hypercall(OP_LOAD, &mut []), Err(Errno::PERM));
            assert!(!vcpu.interrupted(&before, &page), "this one is somebody else's");
            host.refuses.set(None);
            host.machine.set(host.machine.get() + 1);
            assert!(vcpu.interrupted(&before, &page), "it is allowed");
            assert!(!vcpu.interrupted(&before, &page), "this one is somebody else's, too");
            vcpu.hypercall(OP_LOAD, &mut []).unwrap();
            page.flags.store(EXECUTING, Relaxed);
        }
    }

    #[test]
    fn an_interrupt_of_an_overflow_makes_no_hypercall() {
        let host = Host::new();
        let page = page(EXECUTING, 3);
        let vcpu = On::with_page(&host, &page);
        host.asked.take();
        for (overflows, asked) in [(4, 0), (6, 0), (6, 1)] {
            page.overflows.store(overflows, Relaxed);
            vcpu.interrupted(&host.answer(), &page);
            assert_eq!(host.asked.take().len(), asked, "{overflows} overflows");
        }
    }

    #[test]
    fn a_page_that_is_registered_again_explains_as_many_overflows_as_before() {
        let host = Host::new();
        let page = page(EXECUTING, 1);
        let vcpu = On::with_page(&host, &page);
        for _ in 0..3 {
            assert!(!vcpu.interrupted(&host.answer(), &page), "somebody else's interrupt");
            vcpu.hypercall(OP_UNREGISTER, &mut []).unwrap();
            register(&vcpu, 0x55, 4).unwrap();
            assert!(vcpu.interrupted(&host.answer(), &page), "the first overflow since then");
        }
    }

    #[test]
    fn after_a_restoration_only_its_own_interrupt_is_the_drivers() {
        let host = Host::new();
        let page = page(EXECUTING, 3);
        let vcpu = On::with_page(&host, &page);
        for (machine, refused) in [(32, None), (47, Some((OP_GO_ON, Errno::PERM)))] {
            page.flags.store(LEFT, Relaxed);
            host.machine.set(machine);
            host.refuses.set(refused);
            assert!(vcpu.interrupted(&host.answer(), &page), "restored as machine {machine}");
            assert_eq!(vcpu.restoration.wants_look(), refused.is_some());
            // The hypervisor that is there now says that the vCPU executes, as the last one did.
            // It publishes so if it was asked to continue, or if the kernel registers anew.
            page.flags.store(EXECUTING, Relaxed);
            vcpu.restoration.look.store(false, Relaxed);
            for time in 1..=2 {
                let ours = vcpu.interrupted(&host.answer(), &page);
                assert!(!ours, "interrupt {time} of somebody else on machine {machine}");
                assert!(!vcpu.restoration.wants_look(), "interrupt {time} on machine {machine}");
            }
        }
    }

    #[test]
    fn an_interrupt_between_a_hypercall_and_its_note_finds_the_page() {
        let host = Host::new();
        let vcpu = On::new(&host);
        let left = page(LEFT, 0);
        let goes_on = || {
            host.take();
            vcpu.interrupted(&host.answer(), &left);
            host.take().contains(&OP_GO_ON)
        };
        assert!(!goes_on());
        host.refuses.set(Some((OP_REGISTER, Errno::PERM)));
        register(&vcpu, 0x55, 4).unwrap_err();
        assert!(!goes_on(), "it was not registered");
        host.refuses.set(None);
        register(&vcpu, 0x55, 4).unwrap();
        host.refuses.set(Some((OP_UNREGISTER, Errno::INVAL)));
        vcpu.hypercall(OP_UNREGISTER, &mut []).unwrap_err();
        host.refuses.set(None);
        vcpu.hypercall(OP_STOP, &mut []).unwrap();
        host.take();
        assert!(vcpu.interrupted(&host.answer(), &left));
        assert_eq!(host.take(), vec![OP_GO_ON], "the hypervisor has kept it");
        for refused in [None, Some((OP_UNREGISTER, Errno::NXIO))] {
            host.refuses.set(None);
            register(&vcpu, 0x55, 4).unwrap();
            host.refuses.set(refused);
            let _ = vcpu.hypercall(OP_UNREGISTER, &mut []);
            assert!(!goes_on(), "it was taken back: {refused:?}");
        }
    }

    #[test]
    fn a_refused_vcpu_looks_forbidden_and_is_examined_again() {
        let host = Host::new();
        let vcpu = On::new(&host);
        let page = page(LEFT, 3);
        page.loaded.store(0b11, Relaxed);
        for errno in [Errno::PERM, Errno::NOSYS] {
            register(&vcpu, 0x55, 4).unwrap();
            page.flags.store(LEFT, Relaxed);
            host.refuses.set(Some((OP_GO_ON, errno)));
            let before = page.seq.stamp();
            assert!(vcpu.interrupted(&host.answer(), &page));
            assert!(!page.seq.is_valid(before), "a read that was interrupted starts over");
            assert!(page.seq.is_valid(page.seq.stamp()), "and ends");
            assert_eq!(page.flags.load(Relaxed), GIVEN_UP);
            assert_eq!(page.loaded.load(Relaxed), 0);
            assert!(vcpu.restoration.wants_look());
            host.refuses.set(Some((OP_LOAD, Errno::NXIO)));
            assert_eq!(vcpu.hypercall(OP_LOAD, &mut []), Err(errno), "why the page was lost");
            host.refuses.set(Some((OP_STOP, Errno::NXIO)));
            assert_eq!(vcpu.hypercall(OP_STOP, &mut []), Err(Errno::NXIO), "there is no page");
            host.refuses.set(None);
            assert!(vcpu.looks(&host.answer(), true), "the page is registered anew");
            assert!(!vcpu.restoration.wants_look());
            vcpu.restoration.looked();
            assert!(!vcpu.looks(&host.answer(), true));
            host.refuses.set(Some((OP_LOAD, Errno::NXIO)));
            assert_eq!(vcpu.hypercall(OP_LOAD, &mut []), Err(Errno::NXIO));
        }
    }

    #[test]
    fn a_vcpu_that_could_not_go_on_does_not_when_it_is_restored_again_as_it_registers_its_page() {
        let host = Host::new();
        let page = page(LEFT, 3);
        let vcpu = On::with_page(&host, &page);
        host.refuses.set(Some((OP_GO_ON, Errno::BUSY)));
        assert!(vcpu.interrupted(&host.answer(), &page));
        host.refuses.set(None);
        assert!(vcpu.looks(&host.answer(), true));
        host.take();
        // It is moved when it is about to register its page anew.
        let restoration = &vcpu.restoration;
        let interrupting = Interrupting {
            host: &host,
            restoration,
            page: &page,
            op: OP_REGISTER,
            does: true.into(),
        };
        let mut wanted = HvRegister { gfn: 0x55, observer: 4, reserved: 0 };
        restoration.hypercall(&interrupting, OP_REGISTER, wanted.as_mut_bytes()).unwrap();
        assert_eq!(host.take(), [OP_REGISTER], "and nothing else registers it");
        assert!(restoration.wants_look(), "the host is another one");
    }

    #[test]
    fn a_vcpu_does_not_go_on_where_the_counters_are_others() {
        let host = Host::new();
        let vcpu = On::new(&host);
        let page = page(LEFT, 3);
        let mut before = host.answer();
        before.caps.general += 1;
        for _ in 0..2 {
            register(&vcpu, 0x55, 4).unwrap();
            page.flags.store(LEFT, Relaxed);
            host.take();
            assert!(vcpu.interrupted(&before, &page));
            assert_eq!(host.take(), [0; 0], "the host is not asked to count on");
            assert_eq!(page.flags.load(Relaxed), GIVEN_UP);
            host.refuses.set(Some((OP_LOAD, Errno::NXIO)));
            assert_eq!(vcpu.hypercall(OP_LOAD, &mut []), Err(Errno::STALE));
            host.refuses.set(None);
            assert!(vcpu.looks(&before, true));
            vcpu.restoration.looked();
        }
    }

    #[test]
    fn a_page_that_was_being_written_when_its_hypervisor_left_is_readable_again() {
        let host = Host::new();
        let vcpu = On::new(&host);
        let page = page(LEFT, 3);
        core::mem::forget(page.seq.write(&mut 6));
        register(&vcpu, 0x55, 4).unwrap();
        host.refuses.set(Some((OP_GO_ON, Errno::PERM)));
        assert!(vcpu.interrupted(&host.answer(), &page));
        assert!(page.seq.is_valid(page.seq.stamp()));
        assert_eq!(page.seq.writes(), 8);
    }

    #[test]
    fn a_vcpu_without_a_page_knows_another_machine() {
        let host = Host::new();
        let vcpu = On::new(&host);
        vcpu.begin();
        let nobody = page(0, 0);
        let before = host.answer();
        for machine in [32, 33] {
            assert!(!vcpu.interrupted(&before, &nobody));
            host.machine.set(machine);
            assert!(vcpu.interrupted(&before, &nobody));
            assert!(vcpu.restoration.wants_look());
            assert!(!vcpu.looks(&before, true), "it may count");
            vcpu.restoration.looked();
        }
        host.refuses.set(Some((OP_QUERY, Errno::NOSYS)));
        assert!(vcpu.interrupted(&before, &nobody), "no driver is there");
        assert!(vcpu.looks(&before, true));
        vcpu.restoration.looked();
        assert!(!vcpu.interrupted(&before, &nobody));
        host.refuses.set(None);
        assert!(vcpu.interrupted(&before, &nobody), "it is allowed again");
        assert!(vcpu.looks(&before, false), "a vCPU that was refused comes online");
    }
}
