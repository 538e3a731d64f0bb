// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! CPU-wide counting: a CPU counts with a thread's counters that are never switched.
//!
//! Threads and CPUs exclude each other, because otherwise every thread that needs counters would
//! take them away from the CPU. [`Admission`] decides whether threads or CPUs have the counters. A
//! thread that is switched in on a CPU that counts reads `BUSY` in place of numbers.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use shared_abi::ioctl::{Control, CpuState};
use shared_abi::{Errno, PmuCaps, ThreadPage};

use crate::hal::Kernel;
use crate::ioctl::Request;
use crate::thread::ThreadPmu;
use crate::vcpu::{Counting, ThisVcpu};

/// A descriptor: any number but 0 that no other open one has.
pub type Owner = u64;

/// The owner's number while nobody owns CPUs.
const NOBODY: Owner = 0;

/// Who has the counters: threads, or CPUs on behalf of one descriptor.
///
/// CPUs cannot start while a thread has counters from a privileged caller, which is one that may
/// observe the whole system. Other threads with counters do not prevent the start. Threads come and
/// go at any time. Requests about CPUs are served one at a time.
#[derive(Debug)]
pub struct Admission {
    users: AtomicU64,
    /// The descriptor that owns the CPUs, or [`NOBODY`].
    owner: AtomicU64,
    /// CPUs that have something to count.
    set: AtomicU32,
}

/// The content of [`Admission::users`], which is one word, so that a thread is admitted, or CPUs
/// start, in one step.
#[derive(Clone, Copy, Debug)]
struct Users {
    threads: u32,
    privileged: u32,
    started: bool,
}

const STARTED: u64 = 1 << 63;

impl Users {
    const fn unpack(word: u64) -> Self {
        let privileged = (word & !STARTED) >> 32;
        Self { threads: word as u32, privileged: privileged as u32, started: word & STARTED != 0 }
    }

    const fn pack(self) -> u64 {
        let word = (self.threads as u64) | (self.privileged as u64) << 32;
        let started = if self.started { STARTED } else { 0 };
        word & !STARTED | started
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self::new()
    }
}

impl Admission {
    /// Makes the state in which nobody has counters.
    pub const fn new() -> Self {
        let (users, owner) = (AtomicU64::new(0), AtomicU64::new(NOBODY));
        Self { users, owner, set: AtomicU32::new(0) }
    }

    fn users(&self) -> Users {
        // ATOMICS: this word contains the whole decision.
        Users::unpack(self.users.load(Relaxed))
    }

    /// Changes the users in one step, or returns `BUSY` and changes nothing.
    fn change(&self, change: impl Fn(Users) -> Result<Users, Errno>) -> Result<(), Errno> {
        let packed = |word| change(Users::unpack(word)).map(Users::pack).ok();
        // ATOMICS: the order of changes to this word alone decides. The state of counters is
        // published by other means: only a thread itself uses its counters, and CPUs are called.
        let changed = self.users.fetch_update(Relaxed, Relaxed, packed);
        changed.map(drop).map_err(|_| Errno::BUSY)
    }

    /// Returns whether another descriptor owns the CPUs.
    fn is_others(&self, by: Owner) -> bool {
        // ATOMICS: changed by one caller at a time.
        let owner = self.owner.load(Relaxed);
        owner != NOBODY && owner != by
    }

    /// Returns the number of threads that have counters.
    pub fn threads(&self) -> u32 {
        self.users().threads
    }

    /// Admits one more thread. `privileged` says whether its creator may observe the whole system.
    ///
    /// # Errors
    ///
    /// `BUSY` if CPUs count.
    pub fn thread_begins(&self, privileged: bool) -> Result<(), Errno> {
        self.change(|users| {
            if users.started {
                return Err(Errno::BUSY);
            }
            let threads = users.threads.saturating_add(1);
            let privileged = users.privileged.saturating_add(u32::from(privileged));
            Ok(Users { threads, privileged, ..users })
        })
    }

    /// Notes that a thread has given up its counters.
    pub fn thread_ends(&self, privileged: bool) {
        let ended = self.change(|users| {
            let threads = users.threads.saturating_sub(1);
            let privileged = users.privileged.saturating_sub(u32::from(privileged));
            Ok(Users { threads, privileged, ..users })
        });
        debug_assert!(ended.is_ok(), "an end is never refused");
    }

    /// Serves `IOC_CPU_CONTROL`: sets what a CPU is to count. `counted` says whether it had
    /// something to count. Returns whether it has now, and how many CPUs have.
    ///
    /// # Errors
    ///
    /// `BUSY` if CPUs count, or belong to another descriptor; the errors of [`check_cpu_control`].
    pub fn cpu_set(
        &self,
        by: Owner,
        caps: &PmuCaps,
        state: &CpuState,
        counted: bool,
    ) -> Result<(bool, u32), Errno> {
        let counts = check_cpu_control(caps, state)?;
        if self.cpus_count() || self.is_others(by) {
            return Err(Errno::BUSY);
        }
        // ATOMICS: changed by one caller at a time.
        self.owner.store(by, Relaxed);
        let others = self.set.load(Relaxed).saturating_sub(u32::from(counted));
        let set = others.saturating_add(u32::from(counts));
        self.set.store(set, Relaxed);
        Ok((counts, set))
    }

    /// Serves `IOC_CPU_START`. Returns how many CPUs to start, which is 0 if nothing was set.
    ///
    /// # Errors
    ///
    /// `BUSY` if CPUs have started already or belong to another descriptor, or if a privileged
    /// caller's thread has counters.
    pub fn cpus_start(&self, by: Owner) -> Result<u32, Errno> {
        if self.cpus_count() {
            return Err(Errno::BUSY);
        }
        // ATOMICS: changed by one caller at a time.
        let set = self.set.load(Relaxed);
        if set == 0 {
            return Ok(0);
        }
        if self.is_others(by) {
            return Err(Errno::BUSY);
        }
        self.change(|users| {
            if users.privileged > 0 {
                return Err(Errno::BUSY);
            }
            Ok(Users { started: true, ..users })
        })?;
        Ok(set)
    }

    /// Returns whether CPUs count.
    pub fn cpus_count(&self) -> bool {
        self.users().started
    }

    /// Returns whether this descriptor owns the CPUs. Only its own requests change that, so a
    /// descriptor that is being closed may ask at any time.
    pub fn is_owner(&self, by: Owner) -> bool {
        // ATOMICS: this loads what the descriptor itself has written, or another descriptor's
        // number.
        self.owner.load(Relaxed) == by
    }

    /// Returns whether CPUs have to be stopped, because of `IOC_CPU_STOP` or because their
    /// descriptor is being closed.
    ///
    /// # Errors
    ///
    /// `BUSY` if they belong to another descriptor.
    pub fn cpus_stop(&self, by: Owner) -> Result<bool, Errno> {
        if self.is_others(by) { Err(Errno::BUSY) } else { Ok(self.cpus_count()) }
    }

    /// Notes that all CPUs have stopped.
    pub fn cpus_stopped(&self) {
        let stopped = self.change(|users| Ok(Users { started: false, ..users }));
        debug_assert!(stopped.is_ok(), "an end is never refused");
    }

    /// Releases the CPUs of a closed descriptor, which have stopped, and forgets what was set for
    /// them. Returns whether the descriptor owned any.
    pub fn closed(&self, descriptor: Owner) -> bool {
        // ATOMICS: changed by one caller at a time.
        if self.owner.load(Relaxed) != descriptor {
            return false;
        }
        self.owner.store(NOBODY, Relaxed);
        self.set.store(0, Relaxed);
        true
    }
}

/// Checks the argument of `IOC_CPU_READ`.
///
/// # Errors
///
/// `INVAL` if a reserved field is not 0.
pub const fn check_cpu_read(state: &CpuState) -> Result<(), Errno> {
    if state.reserved == 0 { Ok(()) } else { Err(Errno::INVAL) }
}

/// Checks the argument of `IOC_CPU_CONTROL`. Returns whether anything is to be counted.
///
/// # Errors
///
/// Those of `IOC_CONTROL`; `PERM` if a counter samples, because there is no thread to send a signal
/// to.
pub fn check_cpu_control(caps: &PmuCaps, state: &CpuState) -> Result<bool, Errno> {
    check_cpu_read(state)?;
    let request = Request::new(caps, &state.control)?;
    if request.config.sampling() != 0 {
        return Err(Errno::PERM);
    }
    Ok(request.counts())
}

impl<K: Kernel> ThisVcpu<'_, K> {
    /// Starts to count everything that executes on this CPU. The thread that executes now stops
    /// counting.
    ///
    /// # Errors
    ///
    /// Those of [`ThreadPmu::control`].
    pub fn start_cpu_wide(
        &mut self,
        counters: (&mut ThreadPmu, &ThreadPage),
        current: Option<(&mut ThreadPmu, &ThreadPage)>,
        counting: &Counting,
        caps: &PmuCaps,
        control: &Control,
    ) -> Result<(), Errno> {
        if let Some((pmu, page)) = current {
            pmu.give_way(page, self);
        }
        let (pmu, page) = counters;
        pmu.control(page, self, counting, caps, control)?;
        self.close_gate(true);
        Ok(())
    }

    /// Stops the counting that [`start_cpu_wide`](Self::start_cpu_wide) has started.
    pub fn stop_cpu_wide(&mut self, counters: (&mut ThreadPmu, &ThreadPage), counting: &Counting) {
        let (pmu, page) = counters;
        pmu.stop(page, self, counting);
        self.close_gate(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::published;
    use crate::testing::{INSTRUCTIONS, Machine, control, counter};
    use shared_abi::CounterConfig;
    use shared_abi::config::MODE_SAMPLING;
    use shared_abi::ioctl::Sums;
    use shared_abi::read::ReadError;

    const ONE: Owner = 1;
    const OTHER: Owner = 2;

    #[test]
    fn the_end_of_a_users_thread_leaves_roots_thread_its_counters() {
        let admission = Admission::new();
        admission.cpu_set(ONE, &Machine::caps(), &state(), false).unwrap();
        for privileged in [true, false] {
            admission.thread_begins(privileged).unwrap();
        }
        admission.thread_ends(false);
        assert_eq!(admission.cpus_start(ONE), Err(Errno::BUSY));
        admission.thread_ends(true);
        assert_eq!(admission.cpus_start(ONE), Ok(1));
    }

    #[test]
    fn whether_cpus_count_is_no_part_of_the_numbers_of_threads() {
        for started in [false, true] {
            let users = Users { threads: 3, privileged: 5, started };
            let Users { threads, privileged, started: unpacked } = Users::unpack(users.pack());
            assert_eq!((threads, privileged, unpacked), (3, 5, started));
        }
    }

    fn state() -> CpuState {
        CpuState { control: control(&[counter(0, INSTRUCTIONS)]), ..CpuState::default() }
    }

    /// Serves `IOC_CPU_CONTROL` for a CPU that had nothing to count.
    fn set(admission: &Admission, by: Owner) -> Result<(bool, u32), Errno> {
        admission.cpu_set(by, &Machine::caps(), &state(), false)
    }

    #[test]
    fn threads_and_cpus_exclude_each_other() {
        let admission = Admission::new();
        set(&admission, ONE).unwrap();
        admission.thread_begins(true).unwrap();
        assert_eq!(admission.cpus_start(ONE), Err(Errno::BUSY));
        admission.thread_ends(true);
        assert_eq!(admission.cpus_start(ONE), Ok(1));
        assert_eq!(admission.cpus_start(ONE), Err(Errno::BUSY));
        assert_eq!(admission.thread_begins(true), Err(Errno::BUSY));
        assert_eq!(admission.thread_begins(false), Err(Errno::BUSY));
        admission.cpus_stopped();
        assert_eq!(admission.threads(), 0);
        for threads in 1..=2 {
            admission.thread_begins(false).unwrap();
            assert_eq!(admission.threads(), threads);
        }
    }

    #[test]
    fn the_unprivileged_keep_nobody_out() {
        let admission = Admission::new();
        admission.thread_begins(false).unwrap();
        set(&admission, ONE).unwrap();
        assert_eq!(admission.cpus_start(ONE), Ok(1));
        admission.thread_ends(false);
        assert!(admission.cpus_count());
        admission.cpus_stopped();
        assert!(!admission.cpus_count());
    }

    #[test]
    fn cpus_are_one_descriptors_until_it_is_closed() {
        let admission = Admission::new();
        assert!(!admission.closed(ONE));
        set(&admission, ONE).unwrap();
        assert_eq!(set(&admission, OTHER), Err(Errno::BUSY));
        assert_eq!(admission.cpus_start(OTHER), Err(Errno::BUSY));
        assert_eq!(admission.cpus_stop(ONE), Ok(false), "they have not started");
        assert_eq!(admission.cpus_start(ONE), Ok(1));
        assert_eq!(admission.cpus_stop(OTHER), Err(Errno::BUSY));
        assert_eq!(set(&admission, ONE), Err(Errno::BUSY), "while they count");
        assert!(!admission.closed(OTHER));
        assert_eq!(admission.cpus_stop(ONE), Ok(true));
        admission.cpus_stopped();
        assert!(admission.closed(ONE));
        assert_eq!(admission.cpus_start(OTHER), Ok(0), "what was set is forgotten");
        set(&admission, OTHER).unwrap();
        assert_eq!(admission.cpus_start(OTHER), Ok(1));
    }

    #[test]
    fn cpus_with_something_to_count_are_counted() {
        let (admission, caps) = (Admission::new(), Machine::caps());
        let nothing = CpuState::default();
        assert_eq!(admission.cpus_start(ONE), Ok(0));
        for set in 1..=2 {
            assert_eq!(admission.cpu_set(ONE, &caps, &state(), false), Ok((true, set)));
        }
        assert_eq!(admission.cpu_set(ONE, &caps, &state(), true), Ok((true, 2)), "set again");
        assert_eq!(admission.cpu_set(ONE, &caps, &nothing, true), Ok((false, 1)));
        assert_eq!(admission.cpu_set(ONE, &caps, &nothing, false), Ok((false, 1)));
        let reserved = CpuState { reserved: 1, ..state() };
        assert_eq!(admission.cpu_set(ONE, &caps, &reserved, false), Err(Errno::INVAL));
        assert_eq!(admission.cpus_start(ONE), Ok(1), "a refusal has changed nothing");
    }

    #[test]
    fn what_a_cpu_counts_is_checked() {
        let caps = Machine::caps();
        let state =
            CpuState { control: control(&[counter(0, INSTRUCTIONS)]), ..CpuState::default() };
        assert_eq!(check_cpu_control(&caps, &state), Ok(true));
        assert_eq!(check_cpu_control(&caps, &CpuState::default()), Ok(false));
        let reserved = CpuState { reserved: 1, ..state };
        assert_eq!(check_cpu_control(&caps, &reserved), Err(Errno::INVAL));
        assert_eq!(check_cpu_read(&reserved), Err(Errno::INVAL));
        let mut sampling = state;
        sampling.control.signal = 10;
        sampling.control.counter[0] =
            CounterConfig { mode: MODE_SAMPLING, period: 1_000_000, ..counter(0, INSTRUCTIONS) };
        assert_eq!(check_cpu_control(&caps, &sampling), Err(Errno::PERM));
    }

    #[test]
    fn a_cpu_counts_whoever_executes() {
        let machine = Machine::new();
        let (wide, thread) = (machine.thread(), machine.thread());
        thread.start(&[counter(1, INSTRUCTIONS)]);
        thread.execute(5);
        let caps = Machine::caps();
        machine
            .on(0, |cpu| {
                cpu.start_cpu_wide(
                    (&mut wide.pmu.borrow_mut(), &wide.page),
                    Some((&mut thread.pmu.borrow_mut(), &thread.page)),
                    &machine.counting,
                    &caps,
                    &control(&[counter(0, INSTRUCTIONS)]),
                )
            })
            .unwrap();
        machine.execute(0, 70, 0);
        assert_eq!(thread.read(), Err(Errno::BUSY));
        assert_eq!(published(&thread.page), Err(Errno::BUSY), "a reader does not ask again");
        assert_eq!(thread.read_direct::<1>(), Err(ReadError::NotLoaded(-16)));
        let refused = thread.control(&control(&[counter(1, INSTRUCTIONS)]));
        assert_eq!(refused, Err(Errno::BUSY));
        assert_eq!(wide.read().unwrap().counter[0], 70);
        machine.on(0, |cpu| {
            cpu.stop_cpu_wide((&mut wide.pmu.borrow_mut(), &wide.page), &machine.counting);
        });
        assert_eq!(published(&wide.page).unwrap().unwrap().counter[0], 70);
        thread.start(&[counter(1, INSTRUCTIONS)]);
        thread.execute(3);
        assert_eq!(thread.read().unwrap().counter[0], 3);
    }

    #[test]
    fn a_thread_that_comes_to_a_cpu_that_counts_gets_an_error() {
        let machine = Machine::new();
        let (wide, thread) = (machine.thread(), machine.thread());
        thread.start(&[counter(0, INSTRUCTIONS)]);
        thread.switch_out();
        let caps = Machine::caps();
        machine
            .on(1, |cpu| {
                let pmu = &mut wide.pmu.borrow_mut();
                let control = control(&[counter(0, INSTRUCTIONS)]);
                cpu.start_cpu_wide((pmu, &wide.page), None, &machine.counting, &caps, &control)
            })
            .unwrap();
        thread.switch_in(1);
        assert_eq!(thread.read(), Err(Errno::BUSY));
        machine.execute(1, 9, 0);
        let mut counted = Sums::default();
        machine.on(1, |cpu| wide.pmu.borrow().read(cpu, &mut counted)).unwrap();
        assert_eq!(counted.counter[0], 9);
    }
}
