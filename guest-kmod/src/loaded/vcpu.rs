// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Registers a vCPU's page, and loads configurations on the vCPU.

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shared_abi::arch::EVNTSEL_OS;
use shared_abi::read::{
    ReadError, VcpuSample, sample_stopped_vcpu, sample_vcpu_into, try_sample_vcpu,
};
use shared_abi::vcpu_page::VCPU_DIRECT;
use shared_abi::{Config, Errno, PhysSlot, VcpuPage};

use crate::hal::Kernel;
use crate::hypercall;
use crate::perf::EventConfig;
use crate::perf::held::{Events, Sampler};
use crate::shown::{Pages, ShownWords};
use crate::stats::Stats;

/// The module's state of a vCPU.
#[derive(Debug)]
pub struct Vcpu {
    /// Whether the hypervisor publishes here.
    registered: bool,
    /// The reason for which no thread may count here: there is no page, which is `NXIO` while the
    /// vCPU is offline, or CPU-wide counting has the CPU (`BUSY`).
    gate: Result<(), Errno>,
    /// The configuration that the hypervisor was last asked to program.
    loaded: Config,
    /// A number that changes whenever the loaded configuration changes, and when the answer to
    /// whether anything may be loaded changes.
    generation: NonZeroU64,
    /// The reason for which no page may be registered here at all: the vCPU is offline, or the host
    /// has refused it.
    refusal: Option<Errno>,
    /// Whether CPU-wide counting has the CPU.
    cpu_wide: bool,
    /// The state that says which page is registered.
    pub(crate) pages: Pages,
    /// perf's events on this vCPU.
    pub(crate) events: Events,
    /// The branches that the hypervisor was last asked to record.
    pub(crate) recorded: u32,
    /// Whether the hypervisor can register a page in place of another one, as far as is known.
    pub(crate) has_show: bool,
}

impl Vcpu {
    /// Notes that there is a page now whose counters count nothing yet, or that there is no page
    /// for this reason.
    fn set_page(&mut self, registered: Result<(), Errno>, shown: &ShownWords) {
        self.registered = registered.is_ok();
        self.gate = registered;
        self.cpu_wide = false;
        self.recorded = 0;
        if self.registered {
            self.refusal = None;
        } else {
            self.pages.clear(shown);
        }
        self.set_loaded(Config::default(), shown);
    }

    fn set_loaded(&mut self, config: Config, shown: &ShownWords) {
        self.loaded = config;
        self.generation = self.generation.checked_add(1).unwrap_or(NonZeroU64::MIN);
        self.judge_loaded(shown);
    }

    /// Updates the two flags that depend on the loaded configuration: whether this vCPU has to be
    /// called when nobody counts any more, and whether it must not show the kernel's own threads.
    pub(crate) fn judge_loaded(&mut self, shown: &ShownWords) {
        let loaded = &self.loaded;
        self.pages.loaded(loaded.slots() != 0, loaded.slots_in_ring(EVNTSEL_OS) != 0, shown);
    }

    /// Notes that nobody may count in the registered page, for this reason.
    pub(crate) fn fail(&mut self, errno: Errno, shown: &ShownWords) {
        self.gate = Err(errno);
        self.set_loaded(self.loaded, shown);
    }

    pub(crate) fn counts_cpu_wide(&self) -> bool {
        self.cpu_wide
    }

    /// Returns the reason if no page may be registered here.
    pub(crate) fn may_show(&self) -> Result<(), Errno> {
        match self.refusal {
            Some(errno) => Err(errno),
            None if self.cpu_wide => Err(Errno::BUSY),
            None => Ok(()),
        }
    }

    /// Returns whether nothing keeps pages from being registered here.
    pub fn is_online(&self) -> bool {
        self.refusal.is_none()
    }

    /// Returns whether the hypervisor publishes here.
    pub(crate) const fn is_registered(&self) -> bool {
        self.registered
    }

    /// Adds one of perf's events, beside what the present thread needs loaded.
    ///
    /// # Errors
    ///
    /// `AGAIN` if there is no counter for it now.
    pub(crate) fn add_event(&mut self, event: &EventConfig, kept: &Config) -> Result<u32, Errno> {
        self.events.add(event, &self.loaded, kept)
    }

    /// Returns the event select that was last loaded for this slot, or 0 if it counts nothing.
    #[inline(always)]
    pub(crate) fn counted_by(&self, slot: PhysSlot) -> u64 {
        self.loaded.evntsel(slot)
    }
}

impl Default for Vcpu {
    /// Returns the state of a vCPU that is offline.
    fn default() -> Self {
        Self {
            registered: false,
            gate: Err(Errno::NXIO),
            loaded: Config::default(),
            generation: NonZeroU64::MIN,
            refusal: Some(Errno::NXIO),
            cpu_wide: false,
            pages: Pages::default(),
            events: Events::default(),
            recorded: 0,
            has_show: true,
        }
    }
}

/// The number of threads, on all vCPUs, whose counters count, and how often one has started.
///
/// Both are in one word, the number of starts in its upper half, so that a start changes both at
/// once.
#[derive(Debug, Default)]
pub struct Counting(AtomicU64);

/// A start adds this to the word: one start, and one thread that counts.
const START: u64 = 1 << 32 | 1;

impl Counting {
    /// Starts at 0.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns whether nobody counts.
    pub fn is_idle(&self) -> bool {
        // ATOMICS: decides only whether to stop counters that nobody reads; a thread that starts
        // meanwhile loads its configuration again.
        self.0.load(Relaxed) as u32 == 0
    }

    /// Returns the number of starts so far, if nobody counts. It wraps.
    pub fn starts_if_idle(&self) -> Option<u32> {
        let word = self.0.load(Relaxed);
        (word as u32 == 0).then_some((word >> 32) as u32)
    }

    /// Notes whether a thread has counted before, and whether it counts after a change.
    pub(crate) fn counting_changed(&self, before: bool, after: bool) {
        match (before, after) {
            (false, true) => self.0.fetch_add(START, Relaxed),
            (true, false) => self.0.fetch_sub(1, Relaxed),
            _ => 0,
        };
    }
}

/// A mark of the configuration that was loaded on a vCPU, which is valid until anything there
/// changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loaded {
    vcpu: u32,
    generation: NonZeroU64,
}

/// The vCPU that executes this, with interrupts disabled.
#[derive(Debug)]
pub struct ThisVcpu<'a, K> {
    /// Its number: the index of its page in the mapping.
    pub number: u32,
    /// The page in which the hypervisor publishes its counters.
    pub page: &'a VcpuPage,
    /// Its state.
    pub vcpu: &'a mut Vcpu,
    /// The words that say what is registered here.
    pub shown: &'a ShownWords,
    /// Its statistics.
    pub stats: &'a Stats,
    /// The services of the guest's kernel, such as hypercalls.
    pub kernel: &'a K,
}

impl<'a, K: Kernel> ThisVcpu<'a, K> {
    /// Makes the hypervisor publish this vCPU's counters in its page, which is frame `gfn`, for
    /// `observer` to read.
    ///
    /// # Errors
    ///
    /// The errors of the hypercall.
    pub fn register(&mut self, gfn: u64, observer: u32) -> Result<(), Errno> {
        self.stats.hypercalls.add(1);
        self.stats.registers.add(1);
        let registered = hypercall::register(self.kernel, gfn, observer);
        self.vcpu.set_page(registered, self.shown);
        if registered.is_ok() && !self.vcpu.events.is_empty() {
            self.vcpu.events.nothing_is_loaded();
            self.load_events();
        }
        self.vcpu.events.note_stalled();
        registered
    }

    /// Makes the hypervisor publish this vCPU's counters in the page with frame `gfn`, in place of
    /// the registered one, and loads a configuration there if there is one.
    ///
    /// # Errors
    ///
    /// The errors of the hypercall. What is known to be registered is as before, and has to be
    /// unregistered.
    pub(crate) fn replace_page(
        &mut self,
        gfn: u64,
        observer: u32,
        config: Option<&Config>,
    ) -> Result<(), Errno> {
        self.stats.hypercalls.add(1);
        let shown = hypercall::show(self.kernel, gfn, observer, config);
        // This is the answer of a hypervisor without this hypercall.
        self.vcpu.has_show = shown != Err(Errno::INVAL);
        shown?;
        self.stats.registers.add(1);
        self.stats.unregisters.add(self.vcpu.registered.into());
        self.vcpu.set_page(Ok(()), self.shown);
        if let Some(config) = config {
            self.stats.loads.add(1);
            self.vcpu.set_loaded(*config, self.shown);
        }
        Ok(())
    }

    /// Lets no thread count here, for this reason, until a page is registered.
    pub fn refuse(&mut self, errno: Errno) {
        self.vcpu.refusal = Some(errno);
        self.vcpu.set_page(Err(errno), self.shown);
        self.vcpu.events.note_stalled();
    }

    /// Takes the page back. It has no effect if the page is not registered.
    ///
    /// # Errors
    ///
    /// The errors of the hypercall but `NXIO`. The hypervisor still has the page then.
    pub fn unregister(&mut self) -> Result<(), Errno> {
        if !self.vcpu.registered {
            return Ok(());
        }
        self.fold_events();
        self.keep_places();
        self.stats.hypercalls.add(1);
        self.stats.unregisters.add(1);
        match hypercall::unregister(self.kernel) {
            // A hypervisor without the page does not write to it: the hypervisor is another one
            // since a restoration, or other code in this kernel has taken the page back.
            Ok(()) | Err(Errno::NXIO) => {}
            Err(errno) => return Err(errno),
        }
        self.vcpu.set_page(Err(Errno::NXIO), self.shown);
        Ok(())
    }

    /// Takes the vCPU offline: does [`unregister`](Self::unregister), and no page may be registered
    /// here until it comes back.
    ///
    /// # Errors
    ///
    /// Those of [`unregister`](Self::unregister).
    pub fn go_offline(&mut self) -> Result<(), Errno> {
        self.vcpu.refusal = Some(Errno::NXIO);
        self.unregister()
    }

    /// Forgets the page after the machine was restored: it is not registered any more, whatever the
    /// host answers.
    pub fn forget_page(&mut self) {
        self.vcpu.has_show = true;
        if self.go_offline().is_err() {
            self.vcpu.set_page(Err(Errno::NXIO), self.shown);
        }
    }

    /// Stops this vCPU's counters if any of them count and no thread needs them.
    pub fn stop_if_idle(&mut self, counting: &Counting) {
        if self.vcpu.loaded.slots() == 0 || !self.vcpu.events.is_empty() || !counting.is_idle() {
            return;
        }
        self.stats.hypercalls.add(1);
        self.stats.stops.add(1);
        // An error means that the host has taken the counters away, so they are stopped as well.
        let _ = hypercall::stop(self.kernel);
        self.vcpu.set_loaded(Config::default(), self.shown);
    }

    /// Loads `config` in place of the present configuration. This needs no hypercall if all of it
    /// is counted already.
    ///
    /// # Errors
    ///
    /// The reason for which no thread may count here, or the hypercall's error. What was loaded
    /// stays loaded.
    pub(crate) fn load(&mut self, config: &Config) -> Result<(), Errno> {
        if self.counts(config)? { Ok(()) } else { self.replace(config) }
    }

    /// Loads `config` beside the present configuration, if both fit, so that threads whose counters
    /// do not clash need no hypercall the next time.
    ///
    /// # Errors
    ///
    /// Those of [`load`](Self::load).
    #[inline(always)]
    pub(crate) fn load_beside(&mut self, config: &Config) -> Result<(), Errno> {
        if self.counts(config)? {
            return Ok(());
        }
        self.replace_beside(config)
    }

    /// This function is not inlined, since the union of both configurations is on the stack.
    #[inline(never)]
    fn replace_beside(&mut self, config: &Config) -> Result<(), Errno> {
        match &self.vcpu.loaded.joined_unless_sampling(config) {
            Some(both) if is_direct(self.page) => self.replace(both),
            _ => self.replace(config),
        }
    }

    /// Returns a mark of what is loaded here, for [`is_still_loaded`](Self::is_still_loaded).
    #[inline(always)]
    pub(crate) fn loaded(&self) -> Loaded {
        Loaded { vcpu: self.number, generation: self.vcpu.generation }
    }

    /// Returns whether the configuration of this mark is still loaded here.
    #[inline(always)]
    pub(crate) fn is_still_loaded(&self, before: Option<Loaded>) -> bool {
        before == Some(self.loaded()) && is_direct(self.page)
    }

    /// Forbids threads to count here from now on, or allows it again.
    pub(crate) fn close_gate(&mut self, closed: bool) {
        if self.vcpu.registered {
            self.vcpu.cpu_wide = closed;
            self.vcpu.gate = if closed { Err(Errno::BUSY) } else { Ok(()) };
            self.vcpu.set_loaded(self.vcpu.loaded, self.shown);
        }
    }

    /// Returns whether all of `config` is counted here.
    #[inline(always)]
    fn counts(&self, config: &Config) -> Result<bool, Errno> {
        self.vcpu.gate?;
        // A distance to an overflow is new each time.
        Ok(is_direct(self.page) && config.sampling() == 0 && self.vcpu.loaded.includes(config))
    }

    /// Returns the reason if nothing may be loaded here.
    pub(crate) fn may_load(&self) -> Result<(), Errno> {
        self.vcpu.gate
    }

    /// Forgets what is loaded, so that the next load is a hypercall.
    pub(crate) fn forget_loaded(&mut self) {
        self.vcpu.set_loaded(Config::default(), self.shown);
    }

    /// Loads `config` and what perf's events need, in place of the present configuration.
    pub(crate) fn replace(&mut self, config: &Config) -> Result<(), Errno> {
        if self.vcpu.events.is_empty() { self.program(config) } else { self.replace_events(config) }
    }

    /// Does [`replace`](Self::replace) with perf's events as well. It is a function of its own, so
    /// that other callers need less stack.
    #[inline(never)]
    fn replace_events(&mut self, config: &Config) -> Result<(), Errno> {
        self.fold_events();
        let beside = self.vcpu.events.config_beside(config);
        let loaded = match &beside {
            Ok((joined, slots)) => self.program(joined).map(|()| self.vcpu.events.loaded_on(slots)),
            Err(errno) => Err(*errno),
        };
        self.revive_events();
        loaded
    }

    /// Loads only what perf's events need.
    pub(crate) fn load_events(&mut self) {
        let clashing = self.vcpu.events.clashing(&self.vcpu.loaded);
        let less = self.vcpu.loaded.only_counting_without(clashing);
        // If the hypervisor refuses this, the events' counts do not grow, and the next load returns
        // the reason.
        let _ = self.replace(&less);
    }

    /// Folds perf's events, which are not live afterwards.
    pub(crate) fn fold_events(&mut self) {
        let sampler = self.sampler();
        self.vcpu.events.fold(&sampler);
    }

    /// Makes perf's events live again, if perf's PMU is enabled and what they need is loaded.
    pub(crate) fn revive_events(&mut self) {
        // After a restoration, a page that is not registered any more still has the content that
        // its last hypervisor has left there.
        if self.vcpu.registered {
            let sampler = self.sampler();
            self.vcpu.events.revive(&sampler);
        }
    }

    /// Returns the object that reads this vCPU's counters for perf's events.
    pub(crate) fn sampler(&self) -> CpuSampler<'a, K> {
        CpuSampler { page: self.page, stats: self.stats, kernel: self.kernel }
    }

    fn program(&mut self, config: &Config) -> Result<(), Errno> {
        self.stats.hypercalls.add(1);
        self.stats.loads.add(1);
        if !is_direct(self.page) {
            // Together with the right to count, the host has taken away the recorded branches.
            self.vcpu.recorded = 0;
        }
        hypercall::load(self.kernel, config)?;
        self.vcpu.set_loaded(*config, self.shown);
        Ok(())
    }

    /// Counts an interrupt that was subtracted from somebody's counts.
    pub fn count_subtracted(&self) {
        self.stats.interrupts_subtracted.add(1);
    }

    /// Counts a virtual interrupt. `reported` says whether an overflow of the present thread was
    /// found, which is reported to that thread.
    pub fn count_interrupt(&self, reported: bool) {
        self.stats.interrupts.add(1);
        self.stats.interrupts_stray.add(u64::from(!reported));
    }

    /// Samples `Phys*` of the TSC and of `slots`; see [`sample_vcpu_into`].
    #[inline(always)]
    pub(crate) fn sample(&self, slots: &[PhysSlot], now: &mut VcpuSample) -> Result<(), Errno> {
        self.sampler().sample_phys(slots, now)
    }

    /// Makes one attempt of [`sample`](Self::sample), see [`try_sample_vcpu`].
    #[inline(always)]
    pub(crate) fn try_sample<const N: usize>(
        &self,
        (slots, indices): (&[PhysSlot; N], &[u32; N]),
    ) -> Option<(u64, [u64; N])> {
        let sample = try_sample_vcpu(self.page, self.kernel, slots, indices);
        if sample.is_none() {
            self.stats.read_retries.add(1);
        }
        sample
    }
}

/// Reads a vCPU's counters.
pub(crate) struct CpuSampler<'a, K> {
    page: &'a VcpuPage,
    stats: &'a Stats,
    kernel: &'a K,
}

impl<K: Kernel> CpuSampler<'_, K> {
    /// Samples `Phys*` of the TSC and of `slots`; see [`sample_vcpu_into`].
    #[inline(always)]
    fn sample_phys(&self, slots: &[PhysSlot], now: &mut VcpuSample) -> Result<(), Errno> {
        sample_vcpu_into(self.page, self.kernel, slots, now).map_err(errno)?;
        self.stats.read_retries.add(u64::from(now.retries));
        Ok(())
    }
}

impl<K: Kernel> Sampler for CpuSampler<'_, K> {
    fn sample(&self, slots: &[PhysSlot], now: &mut VcpuSample) -> bool {
        self.sample_phys(slots, now).is_ok()
    }

    fn sample_stopped(&self, slots: &[PhysSlot], now: &mut VcpuSample) -> bool {
        !is_direct(self.page) && sample_stopped_vcpu(self.page, slots, now).is_ok()
    }
}

/// Returns whether the loaded configuration is still there, which means that the host has not
/// forbidden the domain meanwhile.
#[inline(always)]
fn is_direct(page: &VcpuPage) -> bool {
    page.flags.load(Relaxed) & VCPU_DIRECT != 0
}

const fn errno(error: ReadError) -> Errno {
    match error {
        // A registered vCPU may count unless the host has forbidden its domain meanwhile.
        ReadError::NotDirect => Errno::PERM,
        // `Faulted` means that the host lets nobody read counters any more, and gives no reason.
        ReadError::NotLoaded(_)
        | ReadError::Malformed
        | ReadError::Disturbed
        | ReadError::Faulted => Errno::NODEV,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{INSTRUCTIONS, Machine, counter};

    #[test]
    fn a_thread_that_slept_in_place_is_told_that_the_page_could_not_be_taken_back() {
        let machine = Machine::new();
        let thread = machine.thread();
        thread.start(&[counter(0, INSTRUCTIONS)]);
        thread.execute(40);
        thread.switch_out();
        machine.refuse(Some(Errno::NODEV));
        assert_eq!(machine.on(0, |cpu| cpu.make_room()), Err(Errno::NODEV));
        machine.refuse(None);
        thread.switch_in(0);
        assert_eq!(thread.read().err(), Some(Errno::NODEV));
    }

    #[test]
    fn a_new_page_is_for_threads_though_the_one_before_was_for_the_whole_cpu() {
        Machine::new().on(0, |cpu| {
            cpu.close_gate(true);
            assert_eq!((cpu.vcpu.counts_cpu_wide(), cpu.may_load()), (true, Err(Errno::BUSY)));
            cpu.forget_page();
            cpu.register(2, 7).unwrap();
            assert_eq!((cpu.vcpu.counts_cpu_wide(), cpu.may_load()), (false, Ok(())));
            assert_eq!(cpu.make_room(), Ok(()));
        });
    }

    #[test]
    fn a_vcpu_without_a_page_counts_neither_for_the_whole_cpu_nor_for_threads() {
        Machine::new().on(0, |cpu| {
            cpu.forget_page();
            for closed in [true, false] {
                cpu.close_gate(closed);
                assert_eq!((cpu.vcpu.counts_cpu_wide(), cpu.may_load()), (false, Err(Errno::NXIO)));
            }
        });
    }
}
