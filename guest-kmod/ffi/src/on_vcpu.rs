// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The rights to use a vCPU and to operate a thread's counters.
//!
//! An entry gets a right as a parameter. The parameter's type says what C guarantees until the
//! entry returns. Safe Rust cannot make a right, so safe functions may rely on these guarantees.

use core::marker::PhantomData;

use guest_kmod::overflow::Signal;
use guest_kmod::thread::{Switch, switch_in, switch_in_measured, switch_out};
use guest_kmod::{LocalVcpu, ThisVcpu, ThreadPmu};
use shared_abi::ThreadPage;

use crate::{Linux, ThreadObject, VcpuObject, pack};

/// The right to use a vCPU. This vCPU executes the code with interrupts disabled.
///
/// So no other code executes there, and this code does not migrate. Nobody else has the right.
#[repr(transparent)]
pub struct OnVcpu<'a> {
    object: &'a VcpuObject,
    /// Makes this neither `Send` nor `Sync`.
    here: PhantomData<*mut ()>,
}

impl<'a> OnVcpu<'a> {
    /// Returns the vCPU's object. Other vCPUs may read some of its fields, too.
    #[inline(always)]
    pub(crate) const fn object(&self) -> &'a VcpuObject {
        self.object
    }

    /// Returns the vCPU for the core.
    #[inline(always)]
    pub(crate) fn cpu(&mut self) -> ThisVcpu<'_, Linux> {
        let object = self.object;
        ThisVcpu {
            number: object.number,
            // SAFETY: before a user's page is freed, this field is set to perf's page again, which
            // is freed only together with the object.
            page: unsafe { &*object.page.get() },
            // SAFETY: this is the only right to use the vCPU, and it stays borrowed for as long as
            // the result lives.
            vcpu: unsafe { &mut *object.vcpu.get() },
            shown: &object.shown,
            stats: &object.stats,
            kernel: &object.kernel,
        }
    }

    /// Lends the right.
    pub(crate) fn lent(&mut self) -> OnVcpu<'_> {
        OnVcpu { object: self.object, here: PhantomData }
    }

    /// Suspends the counters of the thread that executes here, if it has any.
    pub(crate) fn suspend(&mut self, present: &mut Present<'_>) {
        if let Some(mut thread) = present.on_thread() {
            let (pmu, page) = thread.pmu();
            pmu.switch_out(page, &mut self.cpu());
        }
    }
}

/// The right to operate a thread's counters, which nobody else has.
///
/// One of these holds: the thread executes this with interrupts disabled; the thread is being
/// switched by this code; the thread is asleep, and its tracer executes this and keeps it asleep;
/// or the counters are those of a whole CPU, which executes this with interrupts disabled.
#[repr(transparent)]
pub struct OnThread<'a> {
    object: &'a ThreadObject,
    /// Makes this neither `Send` nor `Sync`.
    here: PhantomData<*mut ()>,
}

impl<'a> OnThread<'a> {
    /// Makes the right to operate these counters.
    ///
    /// # Safety
    ///
    /// The conditions that [`OnThread`] names hold while the result lives.
    #[inline(always)]
    pub(crate) const unsafe fn new(object: &'a ThreadObject) -> Self {
        Self { object, here: PhantomData }
    }

    /// Returns the object. Others may read some of its fields, too.
    #[inline(always)]
    pub(crate) const fn object(&self) -> &'a ThreadObject {
        self.object
    }

    /// Returns the counters for the core, and their page.
    #[inline(always)]
    pub(crate) fn pmu(&mut self) -> (&mut ThreadPmu, &ThreadPage) {
        // SAFETY: this is the only right to operate these counters, and it stays borrowed for as
        // long as the result lives. The page outlives the object.
        unsafe { (&mut *self.object.pmu.get(), &*self.object.page) }
    }
}

/// The counters of the thread that executes this, if it has any.
///
/// The guarantees are those of [`OnThread`].
#[repr(transparent)]
pub struct Present<'a> {
    object: Option<&'a ThreadObject>,
    /// Makes this neither `Send` nor `Sync`.
    here: PhantomData<*mut ()>,
}

impl<'a> Present<'a> {
    /// Returns the object. Others may read some of its fields, too.
    pub(crate) const fn object(&self) -> Option<&'a ThreadObject> {
        self.object
    }

    /// Returns the right to operate the counters.
    #[inline(always)]
    pub(crate) fn on_thread(&mut self) -> Option<OnThread<'_>> {
        // SAFETY: this is the only right to operate these counters, and it stays borrowed for as
        // long as the result lives.
        self.object.map(|object| unsafe { OnThread::new(object) })
    }
}

/// The right to use the thread's vCPU, or none while a tracer keeps the thread asleep.
#[repr(transparent)]
pub struct OnVcpuOrAsleep<'a> {
    object: Option<&'a VcpuObject>,
    /// Makes this neither `Send` nor `Sync`.
    here: PhantomData<*mut ()>,
}

impl<'a> OnVcpuOrAsleep<'a> {
    /// Returns the vCPU, if there is one.
    #[inline(always)]
    pub(crate) fn on_vcpu(self) -> Option<OnVcpu<'a>> {
        self.object.map(|object| OnVcpu { object, here: self.here })
    }
}

/// A thread, and the vCPU that switches it.
pub(crate) struct Here<'a> {
    thread: OnThread<'a>,
    vcpu: OnVcpu<'a>,
}

impl Switch for Here<'_> {
    type Kernel = Linux;
    /// A report to a thread, as `pack` has made it.
    type Notice = u64;

    #[inline(always)]
    fn parts(&mut self) -> (&mut ThreadPmu, &ThreadPage, ThisVcpu<'_, Linux>) {
        let (pmu, page) = self.thread.pmu();
        (pmu, page, self.vcpu.cpu())
    }

    #[inline(always)]
    fn show_page(&mut self) {
        let thread = self.thread.object();
        if thread.needs_page.get() {
            // If the hypervisor refuses, threads that count here get the error.
            let _ = self.vcpu.show_page_for(thread.user, self.thread.pmu().0.needs());
        }
    }

    #[inline(always)]
    fn notice(signal: Option<Signal>) -> u64 {
        pack(signal)
    }
}

/// Switches the thread in, and returns the report to it; see `pack`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_switch_in(thread: OnThread<'_>, vcpu: OnVcpu<'_>) -> u64 {
    switch_in(Here { thread, vcpu })
}

/// Switches the thread in, counts the cost of that, and returns the report to it; see `pack`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_switch_in_measured(thread: OnThread<'_>, vcpu: OnVcpu<'_>) -> u64 {
    switch_in_measured(Here { thread, vcpu })
}

/// Switches the thread out.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_switch_out(thread: OnThread<'_>, vcpu: OnVcpu<'_>) {
    switch_out(Here { thread, vcpu });
}
