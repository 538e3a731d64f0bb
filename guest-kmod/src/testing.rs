// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Provides a small machine for tests: a hypervisor with a few vCPUs, whose counters count what a
//! test says that they execute.

extern crate std;

use core::cell::{Cell, RefCell};
use std::vec::Vec;

use shared_abi::arch::{EVNTSEL_CMASK, EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_USR};
use shared_abi::caps::{CAPS_GLOBAL_INTEL, CAPS_SAMPLING, VENDOR_INTEL};
use shared_abi::hypercall::{
    FEATURE_ENABLED, HvBranches, HvPlace, HvQuery, HvRecord, HvRegister, OP_BRANCHES, OP_LOAD,
    OP_PLACE, OP_QUERY, OP_RECORD, OP_REGISTER, OP_SHOW, OP_STOP, OP_UNREGISTER,
};
use shared_abi::ioctl::{CONTROL_TSC, Control, Sums};
use shared_abi::limits::MAX_SLOTS;
use shared_abi::read::{Counters, ReadError, Snapshot, read_thread};
use shared_abi::ring::RingRequest;
use shared_abi::seq::Stamp;
use shared_abi::slot::slots_of;
use shared_abi::sync::AtomicU64;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_REGISTERED};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use shared_abi::{
    Config, CounterConfig, CounterWidth, Errno, PhysSlot, PmuCaps, ThreadPage, VcpuPage, WireCaps,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::hal::{Hypervisor, Kernel};
use crate::local::LocalVcpu;
use crate::overflow::Signal;
use crate::perf::{EventTime, LocalEvents, Progress, Registers};
use crate::policy::Rights;
use crate::ring::Ring;
use crate::shown::{Identity, Observer, SUBJECT_OPEN, ShownWords, Subject};
use crate::stats::Stats;
use crate::thread::ThreadPmu;
use crate::vcpu::{Counting, ThisVcpu, Vcpu};

/// Instructions retired in user mode.
pub(crate) const INSTRUCTIONS: u64 = 0xc0 | EVNTSEL_USR | EVNTSEL_EN;
/// Branches retired in user mode.
pub(crate) const BRANCHES: u64 = 0xc4 | EVNTSEL_USR | EVNTSEL_EN;
/// What a fixed counter counts, in user mode. The first one counts instructions.
pub(crate) const FIXED: u64 = EVNTSEL_USR | EVNTSEL_EN;

/// The widths of general and of fixed counters. Unit: bits.
const WIDTHS: [u32; 2] = [40, 44];
const VCPUS: usize = 2;

/// Returns all bits of a counter.
fn mask(index: usize) -> u64 {
    Machine::caps().width(PhysSlot::new(index as u32).unwrap()).mask()
}

/// Adds to a count. The simulator's atomics, with which this is built for mutants, only load and
/// store.
fn add(count: &AtomicU64, amount: u64) {
    count.store(count.load(Relaxed).wrapping_add(amount), Relaxed);
}

pub(crate) fn counter(slot: u32, evntsel: u64) -> CounterConfig {
    CounterConfig { slot, evntsel, ..CounterConfig::default() }
}

/// A caller with chosen rights, which counts how often each is asked for.
pub(crate) struct Person {
    pub(crate) perfmon: bool,
    pub(crate) locked_down: bool,
    pub(crate) ipc_lock: bool,
    pub(crate) ptrace: bool,
    pub(crate) perf: Result<(), Errno>,
    pub(crate) questions: Cell<u32>,
}

impl Person {
    pub(crate) const fn new(perfmon: bool) -> Self {
        let questions = Cell::new(0);
        Self {
            perfmon,
            locked_down: false,
            ipc_lock: false,
            ptrace: false,
            perf: Ok(()),
            questions,
        }
    }

    pub(crate) fn questions(&self) -> u32 {
        self.questions.get()
    }

    fn asked<T>(&self, answer: T) -> T {
        self.questions.set(self.questions.get() + 1);
        answer
    }
}

impl Rights for Person {
    fn has_perfmon(&self) -> bool {
        self.asked(self.perfmon)
    }

    fn is_locked_down(&self) -> bool {
        self.asked(self.locked_down)
    }

    fn has_ipc_lock(&self) -> bool {
        self.asked(self.ipc_lock)
    }

    fn has_ptrace(&self) -> bool {
        self.asked(self.ptrace)
    }

    fn perf_allows_kernel(&self) -> Result<(), Errno> {
        self.asked(self.perf)
    }
}

#[derive(Default)]
struct FakeVcpu {
    page: VcpuPage,
    writes: Cell<u64>,
    raw: RefCell<[u64; MAX_SLOTS]>,
    tsc: Cell<u64>,
    programmed: RefCell<Config>,
    vcpu: RefCell<Vcpu>,
    shown: ShownWords,
    stats: Stats,
}

pub(crate) struct Machine {
    vcpus: Vec<FakeVcpu>,
    pub(crate) counting: Counting,
    pub(crate) answer: RefCell<HvQuery>,
    refusal: Cell<Option<Errno>>,
    /// The host has just forbidden the domain, so that it may register pages and load nothing.
    pub(crate) refuses_loads: Cell<bool>,
    /// How the hypervisor refuses to register one page in place of another, if it does.
    pub(crate) refuses_show: Cell<Option<Errno>>,
    /// The host has no driver any more: it lets nobody read counters, and nobody writes to pages.
    pub(crate) refuses_reads: Cell<bool>,
    /// How many more of the kernel's reads of counters a switch of vCPUs disturbs.
    pub(crate) disturbances: Cell<u32>,
    /// The number of instructions that a read of counters in the kernel executes, in a ring that
    /// they count.
    pub(crate) instructions_per_sample: Cell<u64>,
    hypercalls: RefCell<Vec<(usize, u32)>>,
    /// The frame that every page has.
    pub(crate) frame: Cell<u64>,
    /// Frames that were registered.
    pub(crate) registered: RefCell<Vec<u64>>,
    /// The place where every counter has overflowed, without the slot.
    pub(crate) place: Cell<HvPlace>,
    /// The filters that the hypervisor was given since the last call.
    pub(crate) recorded: RefCell<Vec<u32>>,
    /// The host records no branches.
    pub(crate) refuses_records: Cell<bool>,
    /// The branches before the overflow of each counter, but for its slot.
    pub(crate) branches: Cell<HvBranches>,
    /// The counter whose branches the guest has asked for last.
    pub(crate) asked_branches_of: Cell<u32>,
}

impl Machine {
    pub(crate) fn caps() -> PmuCaps {
        let [general_width, fixed_width] = WIDTHS.map(|bits| CounterWidth::new(bits).unwrap());
        PmuCaps {
            vendor: VENDOR_INTEL,
            version: 3,
            features: CAPS_GLOBAL_INTEL | CAPS_SAMPLING,
            general: 4,
            fixed: 3,
            general_width,
            fixed_width,
        }
    }

    /// Makes a machine whose vCPUs are registered.
    pub(crate) fn new() -> Self {
        let caps = Self::caps();
        let machine = Self {
            vcpus: (0..VCPUS).map(|_| FakeVcpu::default()).collect(),
            counting: Counting::new(),
            answer: RefCell::new(HvQuery {
                abi_major: u32::from(ABI_MAJOR),
                caps: WireCaps::from(&caps),
                features: FEATURE_ENABLED,
                ..HvQuery::default()
            }),
            refusal: Cell::new(None),
            refuses_loads: Cell::new(false),
            refuses_show: Cell::new(None),
            refuses_reads: Cell::new(false),
            disturbances: Cell::new(0),
            instructions_per_sample: Cell::new(0),
            hypercalls: RefCell::default(),
            frame: Cell::new(0x77),
            registered: RefCell::default(),
            place: Cell::default(),
            recorded: RefCell::default(),
            refuses_records: Cell::new(false),
            branches: Cell::default(),
            asked_branches_of: Cell::new(0),
        };
        for vcpu in 0..VCPUS {
            // Counters hold something, and wrap soon.
            for (index, raw) in machine.vcpus[vcpu].raw.borrow_mut().iter_mut().enumerate() {
                *raw = mask(index).wrapping_sub(99);
            }
            machine.on(vcpu, |cpu| cpu.register(1, 0)).unwrap();
        }
        machine.take_hypercalls();
        machine.registered.take();
        machine
    }

    pub(crate) fn kernel(&self, vcpu: usize) -> FakeKernel<'_> {
        FakeKernel { machine: self, vcpu }
    }

    pub(crate) fn on<'a, R>(
        &'a self,
        vcpu: usize,
        run: impl FnOnce(&mut ThisVcpu<'_, FakeKernel<'a>>) -> R,
    ) -> R {
        let fake = &self.vcpus[vcpu];
        run(&mut ThisVcpu {
            number: vcpu as u32,
            page: &fake.page,
            vcpu: &mut fake.vcpu.borrow_mut(),
            shown: &fake.shown,
            stats: &fake.stats,
            kernel: &self.kernel(vcpu),
        })
    }

    /// Makes the hypervisor refuse every hypercall, or none.
    pub(crate) fn refuse(&self, errno: Option<Errno>) {
        self.refusal.set(errno);
    }

    /// Returns the hypercalls since the last call: vCPU and operation.
    pub(crate) fn take_hypercalls(&self) -> Vec<(usize, u32)> {
        self.hypercalls.take()
    }

    pub(crate) fn stats(&self, vcpu: usize) -> &Stats {
        &self.vcpus[vcpu].stats
    }

    /// Lets the vCPU execute in user mode, with one TSC tick for each instruction.
    pub(crate) fn execute(&self, vcpu: usize, instructions: u64, branches: u64) {
        let fake = &self.vcpus[vcpu];
        let config = fake.programmed.borrow();
        for slot in slots_of(config.slots()) {
            let evntsel = config.evntsel(slot) & !(EVNTSEL_CMASK | EVNTSEL_OS);
            let events = match (slot.fixed_number(), evntsel) {
                (Some(0), FIXED) | (None, INSTRUCTIONS) => instructions,
                (None, BRANCHES) => branches,
                other => panic!("the machine does not know event {other:x?}"),
            };
            let raw = &mut fake.raw.borrow_mut()[slot.index()];
            *raw = raw.wrapping_add(events) & mask(slot.index());
        }
        fake.tsc.set(fake.tsc.get() + instructions);
    }

    /// Makes the host execute something else on this CPU, which counts many events.
    pub(crate) fn preempt_vcpu(&self, vcpu: usize) {
        self.switch_vcpu(vcpu, true);
        self.execute(vcpu, 1_000_000, 500_000);
        self.switch_vcpu(vcpu, false);
    }

    /// Switches the vCPU out, which folds, or in.
    fn switch_vcpu(&self, vcpu: usize, out: bool) {
        let fake = &self.vcpus[vcpu];
        let page = &fake.page;
        let mut writes = fake.writes.get();
        let guard = page.seq.write(&mut writes);
        add(&page.switches, u64::from(!out));
        if out {
            let ticks = fake.tsc.get() - page.tsc_start.load(Relaxed);
            add(&page.tsc_sum, ticks);
        }
        page.tsc_start.store(fake.tsc.get(), Relaxed);
        for (slot, raw) in page.slots.iter().zip(fake.raw.borrow().iter()) {
            if out {
                let events = raw.wrapping_sub(slot.start.load(Relaxed)) & slot.mask.load(Relaxed);
                add(&slot.sum, events);
            }
            slot.start.store(*raw, Relaxed);
        }
        drop(guard);
        fake.writes.set(writes);
    }

    /// Makes the host forbid the domain; the vCPU learns this when it is switched in.
    pub(crate) fn revoke(&self, vcpu: usize) {
        self.program(vcpu, Config::default());
        self.vcpus[vcpu].page.flags.store(VCPU_REGISTERED, Relaxed);
    }

    /// Returns the configuration that was loaded last on a vCPU.
    pub(crate) fn programmed(&self, vcpu: usize) -> Config {
        *self.vcpus[vcpu].programmed.borrow()
    }

    fn program(&self, vcpu: usize, config: Config) {
        self.switch_vcpu(vcpu, true);
        let fake = &self.vcpus[vcpu];
        for (index, slot) in fake.page.slots.iter().enumerate() {
            let bit = PhysSlot::new(index as u32).unwrap().bit();
            let counts = config.slots() & bit != 0;
            slot.mask.store(if counts { mask(index) } else { 0 }, Relaxed);
        }
        *fake.programmed.borrow_mut() = config;
    }

    pub(crate) fn thread(&self) -> TestThread<'_> {
        let page = ThreadPage::default();
        let pmu = RefCell::new(ThreadPmu::new(&page, 1));
        TestThread { machine: self, page, pmu, ring: Ring::default(), vcpu: Cell::new(0) }
    }
}

/// perf's state of the events on a vCPU.
#[derive(Default)]
pub(crate) struct Books {
    /// The time of each [`EventTime`], which all events have in common.
    pub(crate) times: [u64; 3],
    /// What perf was given of each event, in order.
    pub(crate) progress: Vec<(u32, Progress)>,
    /// The times that were subtracted from those of each event.
    pub(crate) stalls: Vec<(u32, u64)>,
    /// The number of periods of each sample.
    pub(crate) samples: Vec<u64>,
    /// Whether the kernel has to report an overflow.
    pub(crate) report_due: bool,
}

/// A vCPU of the machine.
pub(crate) struct Local<'a> {
    pub(crate) machine: &'a Machine,
    vcpu: usize,
    /// What executes on it.
    pub(crate) present: Subject,
    /// For each choice of a page, for whom the one before was still registered.
    pub(crate) chosen: Vec<Option<u32>>,
    /// What perf was given, and has.
    pub(crate) books: Books,
}

impl<'a> Local<'a> {
    /// Makes vCPU 0, on which a program of this user executes.
    pub(crate) fn new(machine: &'a Machine, uid: u32) -> Self {
        Self::of_vcpu(machine, 0, program(uid))
    }

    /// Makes this vCPU, on which `present` executes.
    pub(crate) fn of_vcpu(machine: &'a Machine, vcpu: usize, present: Subject) -> Self {
        machine.on(vcpu, |cpu| cpu.unregister()).unwrap();
        Self { machine, vcpu, present, chosen: Vec::new(), books: Books::default() }
    }

    /// Returns for whom a page is registered.
    pub(crate) fn registered(&self) -> Option<u32> {
        self.machine.on(self.vcpu, |cpu| cpu.vcpu.is_registered().then_some(cpu.shown.number()))
    }
}

/// Returns the identity of this user's programs. Only root's have capabilities.
pub(crate) const fn identity(uid: u32) -> Identity {
    let capabilities = if uid == 0 { !0 } else { 0 };
    let ids = (uid as u64) << 32 | uid as u64;
    Identity { container: 0x100, users: 0x80, capabilities, ids }
}

/// Returns a program that other programs of this user may look into.
pub(crate) fn program(uid: u32) -> Subject {
    Subject { identity: identity(uid), kind: SUBJECT_OPEN }
}

impl<'a> LocalVcpu for Local<'a> {
    type Kernel = FakeKernel<'a>;
    type User = Observer;

    fn with_cpu<R>(&mut self, run: impl FnOnce(&mut ThisVcpu<'_, FakeKernel<'a>>) -> R) -> R {
        self.machine.on(self.vcpu, run)
    }

    fn with_state<R>(&mut self, run: impl FnOnce(&mut Vcpu) -> R) -> R {
        self.machine.on(self.vcpu, |cpu| run(cpu.vcpu))
    }

    fn executing(&self) -> Subject {
        self.present
    }

    fn observer_of(user: Observer) -> Observer {
        user
    }

    fn choose_page_of(&mut self, _: Observer) {
        self.chosen.push(self.registered());
    }

    fn note_next_page(&mut self, _: Observer) -> u64 {
        self.machine.frame.get()
    }

    fn choose_next_page(&mut self) {
        self.chosen.push(self.registered());
    }

    fn choose_perfs_page(&mut self) {
        self.chosen.push(self.registered());
    }

    fn new_number_of_perf(&mut self) -> u32 {
        1 << 31
    }

    fn note_number_of_perf(&mut self, _: u32) {}

    fn stop_cpu_wide(&mut self) {
        self.with_cpu(|cpu| cpu.close_gate(false));
    }
}

impl LocalEvents for Local<'_> {
    fn time(&mut self, _: u32, which: EventTime) -> u64 {
        self.books.times[which as usize]
    }

    fn book_progress(&mut self, index: u32, progress: &Progress) {
        self.books.progress.push((index, *progress));
    }

    fn book_stall(&mut self, index: u32, stalled: u64) {
        self.books.stalls.push((index, stalled));
    }

    fn sample(&mut self, _: u32, _: Registers, _: &HvPlace, periods: u64) {
        self.books.samples.push(periods);
    }

    fn report_later(&mut self) {
        self.books.report_due = true;
    }
}

pub(crate) struct FakeKernel<'a> {
    machine: &'a Machine,
    vcpu: usize,
}

impl Counters for FakeKernel<'_> {
    fn counter(&self, index: u32) -> u64 {
        let left = self.machine.disturbances.get();
        if left > 0 {
            self.machine.disturbances.set(left - 1);
            self.machine.preempt_vcpu(self.vcpu);
        }
        let slot = PhysSlot::from_counter_index(index).unwrap();
        self.machine.vcpus[self.vcpu].raw.borrow()[slot.index()]
    }

    fn counter_under(&self, index: u32, stamp: &mut Stamp) -> u64 {
        let value = self.counter(index);
        if self.machine.refuses_reads.get() {
            stamp.not_read();
            return 0;
        }
        value
    }

    fn clock(&self) -> u64 {
        self.machine.execute(self.vcpu, self.machine.instructions_per_sample.get(), 0);
        self.machine.vcpus[self.vcpu].tsc.get()
    }
}

impl Kernel for FakeKernel<'_> {
    fn frame_of(&self, _: &VcpuPage) -> u64 {
        self.machine.frame.get()
    }
}

impl Hypervisor for FakeKernel<'_> {
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.machine.hypercalls.borrow_mut().push((self.vcpu, op));
        if let Some(errno) = self.machine.refusal.get() {
            return Err(errno);
        }
        if op == OP_LOAD && self.machine.refuses_loads.get() {
            return Err(Errno::PERM);
        }
        let page = &self.machine.vcpus[self.vcpu].page;
        match op {
            OP_QUERY => {
                let asked = HvQuery::read_from_bytes(argument).unwrap();
                // No hypervisor compares it, but the interface has the guest say it.
                assert_eq!(asked.abi_minor, u32::from(ABI_MINOR));
                if asked.abi_major != u32::from(ABI_MAJOR) {
                    return Err(Errno::PROTO);
                }
                argument.copy_from_slice(self.machine.answer.borrow().as_bytes());
            }
            OP_REGISTER => {
                let wanted = HvRegister::read_from_bytes(argument).unwrap();
                self.machine.registered.borrow_mut().push(wanted.gfn);
                self.machine.program(self.vcpu, Config::default());
                page.flags.store(VCPU_REGISTERED | VCPU_DIRECT, Relaxed);
            }
            OP_SHOW if self.machine.refuses_show.get().is_some() => {
                return self.machine.refuses_show.get().map_or(Ok(()), Err);
            }
            OP_SHOW => {
                let (wanted, load) = HvRegister::read_from_prefix(argument).unwrap();
                self.machine.registered.borrow_mut().push(wanted.gfn);
                let counters = <[CounterConfig]>::ref_from_bytes(&load[8..]).unwrap();
                let config = Config::new(&Machine::caps(), counters).unwrap();
                page.flags.store(VCPU_REGISTERED | VCPU_DIRECT, Relaxed);
                self.machine.program(self.vcpu, config);
            }
            OP_UNREGISTER => {
                page.flags.store(0, Relaxed);
                self.machine.place.take();
            }
            OP_LOAD => {
                let counters = <[CounterConfig]>::ref_from_bytes(&argument[8..]).unwrap();
                let config = Config::new(&Machine::caps(), counters).unwrap();
                page.flags.store(VCPU_REGISTERED | VCPU_DIRECT, Relaxed);
                self.machine.program(self.vcpu, config);
            }
            OP_STOP => self.machine.program(self.vcpu, Config::default()),
            OP_RECORD | OP_BRANCHES if self.machine.refuses_records.get() => {
                return Err(Errno::OPNOTSUPP);
            }
            OP_RECORD => {
                let asked = HvRecord::read_from_bytes(argument).unwrap();
                assert_eq!(asked.reserved, 0);
                self.machine.recorded.borrow_mut().push(asked.filter);
            }
            OP_BRANCHES => {
                let asked = HvBranches::read_from_bytes(argument).unwrap();
                self.machine.asked_branches_of.set(asked.slot);
                argument[4..].copy_from_slice(&self.machine.branches.get().as_bytes()[4..]);
            }
            OP_PLACE => argument[4..].copy_from_slice(&self.machine.place.get().as_bytes()[4..]),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }
}

/// A thread with counters; it starts on vCPU 0.
pub(crate) struct TestThread<'a> {
    machine: &'a Machine,
    pub(crate) page: ThreadPage,
    pub(crate) pmu: RefCell<ThreadPmu>,
    ring: Ring,
    vcpu: Cell<usize>,
}

impl TestThread<'_> {
    pub(crate) fn control(&self, control: &Control) -> Result<(), Errno> {
        let (caps, counting) = (Machine::caps(), &self.machine.counting);
        self.machine.on(self.vcpu.get(), |cpu| {
            self.pmu.borrow_mut().control(&self.page, cpu, counting, &caps, control)
        })
    }

    /// Gives the thread a ring.
    pub(crate) fn begin_ring(&self) -> Result<(), Errno> {
        let request = RingRequest { pages: 1, watermark: 1, ..RingRequest::default() };
        self.pmu.borrow_mut().begin_ring(&self.ring, &request)
    }

    /// Counts `counters` and the TSC from 0.
    pub(crate) fn start(&self, counters: &[CounterConfig]) {
        self.control(&control(counters)).unwrap();
    }

    pub(crate) fn stop(&self) {
        let counting = &self.machine.counting;
        self.machine.on(self.vcpu.get(), |cpu| {
            self.pmu.borrow_mut().stop(&self.page, cpu, counting);
        });
    }

    pub(crate) fn switch_out(&self) {
        self.machine.on(self.vcpu.get(), |cpu| {
            self.pmu.borrow_mut().switch_out(&self.page, cpu);
        });
    }

    pub(crate) fn switch_in(&self, vcpu: usize) -> Option<Signal> {
        self.vcpu.set(vcpu);
        self.machine.on(vcpu, |cpu| self.pmu.borrow_mut().switch_in(&self.page, cpu))
    }

    /// Executes one instruction in ten as a branch.
    pub(crate) fn execute(&self, instructions: u64) {
        self.machine.execute(self.vcpu.get(), instructions, instructions / 10);
    }

    pub(crate) fn read(&self) -> Result<Sums, Errno> {
        let mut sums = Sums::default();
        self.machine.on(self.vcpu.get(), |cpu| self.pmu.borrow().read(cpu, &mut sums))?;
        Ok(sums)
    }

    /// Reads as the library does.
    pub(crate) fn read_direct<const N: usize>(&self) -> Result<(u64, [u64; N]), ReadError> {
        let mut counts = [0; N];
        let page = |vcpu: u32| self.machine.vcpus.get(vcpu as usize).map(|fake| &fake.page);
        let kernel = self.machine.kernel(self.vcpu.get());
        let Snapshot { tsc, .. } = read_thread(&self.page, page, &kernel, &mut counts)?;
        Ok((tsc, counts))
    }
}

/// Returns an argument of `IOC_CONTROL` that counts `counters` and the TSC from 0.
pub(crate) fn control(counters: &[CounterConfig]) -> Control {
    let mut control =
        Control { flags: CONTROL_TSC, counters: counters.len() as u32, ..Control::default() };
    control.counter[..counters.len()].copy_from_slice(counters);
    control
}
