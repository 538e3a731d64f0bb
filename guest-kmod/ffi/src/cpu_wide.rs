// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts everything that executes on CPUs, for one descriptor and until the descriptor is closed.
//!
//! C holds the mutex of the CPUs while it serves any such request of a descriptor.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr::{null, null_mut};

use guest_kmod::publish::published;
use guest_kmod::{Admission, LocalVcpu};
use shared_abi::Errno;
use shared_abi::ioctl::{
    Control, CpuState, IOC_CPU_CONTROL, IOC_CPU_READ, IOC_CPU_START, IOC_CPU_STOP, Sums,
};

use crate::call::Call;
use crate::machine::{pmu, vcpus};
use crate::on_vcpu::{OnThread, OnVcpu, Present};
use crate::{COUNTING, ThreadObject, VcpuObject, from_return, to_return};

unsafe extern "C" {
    /// Keeps CPUs from coming online or going offline; sleeps.
    fn cpus_read_lock();
    fn cpus_read_unlock();
    /// Makes counters that belong to root and are not linked. Returns null if there is no memory.
    fn perfctr_glue_counters_new() -> *mut c_void;
    fn perfctr_glue_counters_free(counters: *mut c_void);
    /// Begins to watch switches, before pages are registered. Returns 0, or an error.
    fn perfctr_glue_watch() -> c_int;
    fn perfctr_glue_unwatch();
}

static ADMISSION: Admission = Admission::new();

/// The counters of a whole CPU.
pub(crate) struct CpuWide {
    /// The counters that this CPU is set to, or null. Changed under the CPUs' mutex.
    counters: Cell<*mut ThreadObject>,
    /// Whether these counters count anything. Changed under the CPUs' mutex.
    counts: Cell<bool>,
    /// The counters that count now, or null. Changed on this CPU only, with interrupts disabled.
    running: Cell<*const ThreadObject>,
}

impl Default for CpuWide {
    fn default() -> Self {
        let (counters, running) = (Cell::new(null_mut()), Cell::new(null()));
        Self { counters, counts: Cell::new(false), running }
    }
}

impl CpuWide {
    fn counters(&self) -> Option<&ThreadObject> {
        // SAFETY: only `set_to` frees the counters, under the mutex that the caller holds.
        unsafe { self.counters.get().as_ref() }
    }

    /// Sets this CPU, which is not counting, to these counters, or to none.
    fn set_to(&self, counters: *mut ThreadObject, counts: bool) {
        self.counts.set(counts);
        let before = self.counters.replace(counters);
        if !before.is_null() {
            // SAFETY: C has made these counters, and no CPU counts with them any more.
            unsafe { perfctr_glue_counters_free(before.cast()) }
        }
    }
}

/// Notes that a thread gets these counters; see [`Admission::thread_begins`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_thread_begins(thread: &ThreadObject) -> c_int {
    to_return(ADMISSION.thread_begins(thread.privileged))
}

/// Notes that a thread has lost its counters; see [`Admission::thread_ends`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_thread_ends(thread: &ThreadObject) {
    ADMISSION.thread_ends(thread.privileged);
}

/// Returns the number of threads that have counters.
pub(crate) fn threads() -> u32 {
    ADMISSION.threads()
}

/// Executes a request about CPUs for the descriptor `by`. Returns the request's result.
///
/// # Safety
///
/// C holds the mutex of the CPUs. The request was admitted, and its argument is of the request's
/// type and was judged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_request_of_cpus(
    number: u32,
    by: u64,
    argument: *mut c_void,
) -> c_int {
    let state = argument.cast::<CpuState>();
    let done = match number {
        // SAFETY: the caller promises an argument of the request's type, which nobody else uses.
        IOC_CPU_CONTROL => set(by, unsafe { &*state }),
        IOC_CPU_START => start(by),
        IOC_CPU_STOP => stop(by).map(|()| 0),
        // SAFETY: the caller promises an argument of the request's type, which nobody else uses.
        IOC_CPU_READ => read(unsafe { &mut *state }).map(|()| 0),
        _ => Err(Errno::NOTTY),
    };
    done.map_or_else(Errno::to_return, |done| done as c_int)
}

fn vcpu_of(cpu: u32) -> Result<&'static VcpuObject, Errno> {
    vcpus().find(|vcpu| vcpu.number == cpu).ok_or(Errno::INVAL)
}

/// Sets a CPU to count what `state` says, with new counters. Returns how many CPUs are set. See
/// [`Admission::cpu_set`].
fn set(by: u64, state: &CpuState) -> Result<u32, Errno> {
    let (vcpu, caps) = (vcpu_of(state.cpu)?, pmu()?);
    Call::Nothing.on(vcpu).map_err(|_| Errno::INVAL)?;
    // SAFETY: C sleeps, and this caller may sleep, since it holds only a mutex.
    let counters = unsafe { perfctr_glue_counters_new() };
    // SAFETY: the pointer is null, or points to a new object that C frees only when it is given
    // back.
    let made = unsafe { counters.cast::<ThreadObject>().as_ref() }.ok_or(Errno::NOMEM)?;
    // SAFETY: nobody else has the new object, and C holds the mutex of the CPUs.
    unsafe { made.keep_control(&state.control) };
    match ADMISSION.cpu_set(by, &caps, state, vcpu.cpu_wide.counts.get()) {
        Ok((counts, set)) => {
            vcpu.cpu_wide.set_to(counters.cast(), counts);
            Ok(set)
        }
        Err(errno) => {
            // SAFETY: `perfctr_glue_counters_new` has returned these counters, and nobody else has
            // them.
            unsafe { perfctr_glue_counters_free(counters) };
            Err(errno)
        }
    }
}

/// Starts the CPUs that are set. Returns how many there are.
fn start(by: u64) -> Result<u32, Errno> {
    // SAFETY: C sleeps, and this caller may sleep, since it holds only a mutex.
    from_return(unsafe { perfctr_glue_watch() })?;
    let count = ADMISSION.cpus_start(by);
    if !matches!(count, Ok(1..)) {
        // SAFETY: the call above has added the watcher that this call removes.
        unsafe { perfctr_glue_unwatch() };
        return count;
    }
    if let Err(errno) = start_all() {
        stop_all();
        return Err(errno);
    }
    count
}

/// Starts all CPUs that are set. No CPU may go offline meanwhile, since it would register a page
/// after it has unregistered its own.
fn start_all() -> Result<(), Errno> {
    // SAFETY: the kernel sleeps. This caller may sleep, and does not hold the lock yet.
    unsafe { cpus_read_lock() };
    let started = vcpus().filter(|vcpu| vcpu.cpu_wide.counts.get()).try_for_each(|vcpu| {
        let counters = vcpu.cpu_wide.counters().ok_or(Errno::NOMEM)?;
        let answer = Cell::new(Ok(()));
        Call::StartCpuWide(counters, &answer).on(vcpu)?;
        answer.get()
    });
    // SAFETY: this function has taken the lock above.
    unsafe { cpus_read_unlock() };
    started
}

/// See [`Admission::cpus_stop`].
fn stop(by: u64) -> Result<(), Errno> {
    if ADMISSION.cpus_stop(by)? {
        stop_all();
    }
    Ok(())
}

/// Stops all CPUs, and ends the watch of switches. A CPU that is offline has stopped.
fn stop_all() {
    Call::StopCpuWide.on_all();
    ADMISSION.cpus_stopped();
    // SAFETY: `start` has added the watcher that this call removes.
    unsafe { perfctr_glue_unwatch() };
}

/// Returns what a CPU is set to count, and what it has counted.
fn read(state: &mut CpuState) -> Result<(), Errno> {
    let vcpu = vcpu_of(state.cpu)?;
    (state.sums, state.control) = (Sums::default(), Control::default());
    let Some(counters) = vcpu.cpu_wide.counters() else { return Ok(()) };
    // SAFETY: the control changes only under the mutex of the CPUs, which C holds.
    state.control = unsafe { *counters.control.get() };
    state.sums = if ADMISSION.cpus_count() {
        let answer = Cell::new(Err(Errno::NXIO));
        let called = Call::Read(counters, &answer).on(vcpu);
        // `NXIO` says that the CPU is offline.
        let offline = |errno| if errno == Errno::NXIO { Errno::INVAL } else { errno };
        called.and_then(|()| answer.get()).map_err(offline)?
    } else {
        // Nobody writes the page now.
        // SAFETY: the page is freed only together with the counters.
        published(unsafe { &*counters.page })?.ok_or(Errno::BUSY)?
    };
    Ok(())
}

/// Returns whether this descriptor owns the CPUs; see [`Admission::is_owner`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_owns_cpus(by: u64) -> bool {
    ADMISSION.is_owner(by)
}

/// Stops and forgets the CPUs that a descriptor has set, because it is closed.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_close_cpus(by: u64) {
    // This refuses if the CPUs are another descriptor's, which then stay as they are.
    let _ = stop(by);
    if ADMISSION.closed(by) {
        vcpus().for_each(|vcpu| vcpu.cpu_wide.set_to(null_mut(), false));
    }
}

impl OnVcpu<'_> {
    /// Starts to count everything that executes on this CPU, with the given counters and as they
    /// were set; see [`LocalVcpu::start_cpu_wide`]. The caller of this CPU holds the mutex of the
    /// CPUs.
    pub(crate) fn start_counting_cpu_wide(
        &mut self,
        counters: &ThreadObject,
        present: &mut Present<'_>,
    ) -> Result<(), Errno> {
        let caps = pmu()?;
        // SAFETY: the caller of this CPU holds the mutex until this CPU has answered.
        let control = unsafe { &*counters.control.get() };
        // SAFETY: this CPU executes this with interrupts disabled. Its caller has passed the CPU's
        // own counters and holds the mutex of the CPUs.
        let mut own = unsafe { OnThread::new(counters) };
        self.start_cpu_wide(counters.user, present, Self::suspend, |vcpu, present| {
            let mut thread = present.on_thread();
            let thread = thread.as_mut().map(OnThread::pmu);
            vcpu.cpu().start_cpu_wide(own.pmu(), thread, &COUNTING, &caps, control)
        })?;
        self.object().cpu_wide.running.set(counters);
        Ok(())
    }

    /// Stops CPU-wide counting on this CPU, if it has begun; see
    /// [`ThisVcpu::stop_cpu_wide`](guest_kmod::ThisVcpu::stop_cpu_wide).
    pub(crate) fn stop_counting_cpu_wide(&mut self) {
        let counters = self.object().cpu_wide.running.replace(null());
        // SAFETY: the counters are freed only after each CPU was called to stop. A CPU that goes
        // offline before that has stopped.
        let Some(counters) = (unsafe { counters.as_ref() }) else { return };
        // SAFETY: these are this CPU's counters, with which it has counted until now, and
        // interrupts are disabled.
        let mut own = unsafe { OnThread::new(counters) };
        self.cpu().stop_cpu_wide(own.pmu(), &COUNTING);
    }

    /// Subtracts an interrupt of user mode from this CPU's counters, if it counts CPU-wide; see
    /// [`ThreadPmu::subtract_interrupt`](guest_kmod::ThreadPmu::subtract_interrupt).
    pub(crate) fn subtract_interrupt_cpu_wide(&mut self, is_counted: bool) -> bool {
        // SAFETY: the counters are freed only after each CPU was called to stop.
        let Some(counters) = (unsafe { self.object().cpu_wide.running.get().as_ref() }) else {
            return false;
        };
        // SAFETY: these are this CPU's counters, with which it counts, and interrupts are disabled.
        let mut own = unsafe { OnThread::new(counters) };
        let (pmu, page) = own.pmu();
        pmu.subtract_interrupt(page, &self.cpu(), is_counted)
    }

    /// Reads this CPU's counters. The caller of this CPU holds the mutex of the CPUs.
    pub(crate) fn read_cpu_wide(&mut self, counters: &ThreadObject) -> Result<Sums, Errno> {
        // SAFETY: this CPU executes this with interrupts disabled. Its caller has passed the CPU's
        // own counters and holds the mutex of the CPUs.
        let mut own = unsafe { OnThread::new(counters) };
        let mut sums = Sums::default();
        own.pmu().0.read(&self.cpu(), &mut sums)?;
        Ok(sums)
    }
}
