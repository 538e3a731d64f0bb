// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counting on whole CPUs: what counts for a CPU is a thread's counters that are never switched.
//!
//! Threads and CPUs exclude each other, since a CPU's counters would be taken away by every thread
//! that needs them otherwise.  [`Admission`] says who may have the counters; a CPU that counts
//! gives the reason `BUSY` to threads that come to it all the same.

use shared_abi::ioctl::{Control, CpuState};
use shared_abi::{Errno, PmuCaps, ThreadPage};

use crate::hal::Kernel;
use crate::ioctl::Request;
use crate::thread::ThreadPmu;
use crate::vcpu::{Counting, Cpu};

/// A descriptor: any number but 0 that no other open one has.
pub type Owner = u64;

/// Who has the counters: threads, or whole CPUs on behalf of one descriptor.
///
/// Threads that somebody with the right to observe the whole system gave counters keep CPUs from
/// starting; the others do not.
#[derive(Debug, Default)]
pub struct Admission {
    threads: u32,
    privileged: u32,
    owner: Option<Owner>,
    started: bool,
}

impl Admission {
    /// Nobody.
    pub const fn new() -> Self {
        Self { threads: 0, privileged: 0, owner: None, started: false }
    }

    /// Threads that have counters.
    pub const fn threads(&self) -> u32 {
        self.threads
    }

    /// A thread gets counters from somebody `privileged` or not.
    ///
    /// # Errors
    ///
    /// `BUSY` whole CPUs count.
    pub fn thread_begins(&mut self, privileged: bool) -> Result<(), Errno> {
        if self.started {
            return Err(Errno::BUSY);
        }
        self.threads = self.threads.saturating_add(1);
        self.privileged = self.privileged.saturating_add(u32::from(privileged));
        Ok(())
    }

    /// A thread has lost the counters that it got.
    pub fn thread_ends(&mut self, privileged: bool) {
        self.threads = self.threads.saturating_sub(1);
        self.privileged = self.privileged.saturating_sub(u32::from(privileged));
    }

    /// A descriptor says what a CPU is to count.
    ///
    /// # Errors
    ///
    /// `BUSY` CPUs count, or another descriptor has said so.
    pub fn cpus_set(&mut self, by: Owner) -> Result<(), Errno> {
        if self.started || self.owner.is_some_and(|owner| owner != by) {
            return Err(Errno::BUSY);
        }
        self.owner = Some(by);
        Ok(())
    }

    /// CPUs are to start.
    ///
    /// # Errors
    ///
    /// `BUSY` they have started, are another descriptor's, or privileged threads have counters.
    pub fn cpus_start(&mut self, by: Owner) -> Result<(), Errno> {
        self.cpus_set(by)?;
        if self.privileged > 0 {
            return Err(Errno::BUSY);
        }
        self.started = true;
        Ok(())
    }

    /// Whether CPUs count.
    pub const fn cpus_count(&self) -> bool {
        self.started
    }

    /// Whether a descriptor may stop CPUs; they have to be stopped then if they count.
    ///
    /// # Errors
    ///
    /// `BUSY` they are another descriptor's.
    pub fn cpus_may_stop(&self, by: Owner) -> Result<(), Errno> {
        let other = self.owner.is_some_and(|owner| owner != by);
        if other { Err(Errno::BUSY) } else { Ok(()) }
    }

    /// Whether CPUs are this descriptor's.
    pub fn owns(&self, descriptor: Owner) -> bool {
        self.owner == Some(descriptor)
    }

    /// CPUs have stopped.
    pub fn cpus_stopped(&mut self) {
        self.started = false;
    }

    /// A descriptor is closed, after its CPUs have stopped.
    pub fn closed(&mut self, descriptor: Owner) {
        if self.owner == Some(descriptor) {
            self.owner = None;
        }
    }
}

/// Checks the argument of `IOC_CPU_READ`.
///
/// # Errors
///
/// `INVAL` a reserved field.
pub const fn check_cpu_read(state: &CpuState) -> Result<(), Errno> {
    if state.reserved == 0 { Ok(()) } else { Err(Errno::INVAL) }
}

/// Checks the argument of `IOC_CPU_CONTROL`; gives whether anything is to be counted.
///
/// # Errors
///
/// As for a thread; `PERM` a counter samples, since there is nobody to send a signal to.
pub fn check_cpu_control(caps: &PmuCaps, state: &CpuState) -> Result<bool, Errno> {
    check_cpu_read(state)?;
    let request = Request::new(caps, &state.control)?;
    if request.config.sampling() != 0 {
        return Err(Errno::PERM);
    }
    Ok(request.counts())
}

impl<K: Kernel> Cpu<'_, K> {
    /// This CPU starts to count as a whole.  The thread that executes here gives way.
    ///
    /// # Errors
    ///
    /// As of [`ThreadPmu::control`].
    pub fn start_whole(
        &mut self,
        whole: (&mut ThreadPmu, &ThreadPage),
        current: Option<(&mut ThreadPmu, &ThreadPage)>,
        counting: &Counting,
        caps: &PmuCaps,
        control: &Control,
    ) -> Result<(), Errno> {
        if let Some((pmu, page)) = current {
            pmu.give_way(page, self);
        }
        let (pmu, page) = whole;
        pmu.control(page, self, counting, caps, control)?;
        self.close_gate(true);
        Ok(())
    }

    /// This CPU stops counting as a whole.
    pub fn stop_whole(&mut self, whole: (&mut ThreadPmu, &ThreadPage), counting: &Counting) {
        let (pmu, page) = whole;
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
    use shared_abi::read::ReadError;

    const ONE: Owner = 1;
    const OTHER: Owner = 2;

    #[test]
    fn threads_and_cpus_exclude_each_other() {
        let mut admission = Admission::new();
        admission.thread_begins(true).unwrap();
        assert_eq!(admission.cpus_start(ONE), Err(Errno::BUSY));
        admission.thread_ends(true);
        admission.cpus_start(ONE).unwrap();
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
        let mut admission = Admission::new();
        admission.thread_begins(false).unwrap();
        admission.cpus_start(ONE).unwrap();
        admission.thread_ends(false);
        assert!(admission.cpus_count());
        admission.cpus_stopped();
        assert!(!admission.cpus_count());
    }

    #[test]
    fn cpus_are_one_descriptors_until_it_is_closed() {
        let mut admission = Admission::new();
        assert!(!admission.owns(ONE));
        admission.cpus_set(ONE).unwrap();
        assert!(admission.owns(ONE) && !admission.owns(OTHER));
        assert_eq!(admission.cpus_set(OTHER), Err(Errno::BUSY));
        assert_eq!(admission.cpus_start(OTHER), Err(Errno::BUSY));
        admission.cpus_start(ONE).unwrap();
        assert_eq!(admission.cpus_may_stop(OTHER), Err(Errno::BUSY));
        assert_eq!(admission.cpus_set(ONE), Err(Errno::BUSY), "while they count");
        admission.closed(OTHER);
        assert!(admission.owns(ONE));
        assert_eq!(admission.cpus_may_stop(ONE), Ok(()));
        admission.cpus_stopped();
        admission.closed(ONE);
        admission.cpus_start(OTHER).unwrap();
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
    fn a_whole_cpu_counts_whoever_executes() {
        let machine = Machine::new();
        let (whole, thread) = (machine.thread(), machine.thread());
        thread.start(&[counter(1, INSTRUCTIONS)]);
        thread.execute(5);
        let caps = Machine::caps();
        machine
            .on(0, |cpu| {
                cpu.start_whole(
                    (&mut whole.pmu.borrow_mut(), &whole.page),
                    Some((&mut thread.pmu.borrow_mut(), &thread.page)),
                    &machine.counting,
                    &caps,
                    &control(&[counter(0, INSTRUCTIONS)]),
                )
            })
            .unwrap();
        machine.execute(0, 70, 0);
        assert_eq!(thread.read(), Err(Errno::BUSY));
        assert_eq!(thread.read_direct::<1>(), Err(ReadError::NotLoaded(-16)));
        let refused = thread.control(&control(&[counter(1, INSTRUCTIONS)]));
        assert_eq!(refused, Err(Errno::BUSY));
        assert_eq!(whole.read().unwrap().counter[0], 70);
        machine.on(0, |cpu| {
            cpu.stop_whole((&mut whole.pmu.borrow_mut(), &whole.page), &machine.counting);
        });
        assert_eq!(published(&whole.page).unwrap().counter[0], 70);
        thread.start(&[counter(1, INSTRUCTIONS)]);
        thread.execute(3);
        assert_eq!(thread.read().unwrap().counter[0], 3);
    }

    #[test]
    fn a_thread_that_comes_to_a_whole_cpu_is_told_so() {
        let machine = Machine::new();
        let (whole, thread) = (machine.thread(), machine.thread());
        thread.start(&[counter(0, INSTRUCTIONS)]);
        thread.switch_out();
        let caps = Machine::caps();
        machine
            .on(1, |cpu| {
                let pmu = &mut whole.pmu.borrow_mut();
                let control = control(&[counter(0, INSTRUCTIONS)]);
                cpu.start_whole((pmu, &whole.page), None, &machine.counting, &caps, &control)
            })
            .unwrap();
        thread.switch_in(1);
        assert_eq!(thread.read(), Err(Errno::BUSY));
        machine.execute(1, 9, 0);
        let counted = machine.on(1, |cpu| whole.pmu.borrow().read(cpu)).unwrap();
        assert_eq!(counted.counter[0], 9);
    }
}
