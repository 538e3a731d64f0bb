// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The physical CPU that executes this, and the promise that it goes on to do so.
#![expect(unsafe_code, reason = "C owns the objects of physical CPUs")]

use core::arch::asm;
use core::cell::UnsafeCell;
use core::marker::PhantomData;

use hv_driver::{Driver, ExpectedInterrupts, Nmi, Pcpu, SampleRing, ThisCpu};
use shared_abi::hypercall::{HvPlace, HvSample};
use shared_abi::read::Counters;

use crate::perfctr_glue_cpu;
use crate::x86::{Registers, X86Pmu};

/// A physical CPU as C holds it.
///
/// Every reference to it is shared: an NMI may come while the core has its [`Pcpu`].
pub struct CpuObject {
    driver: *const Driver,
    number: u32,
    expected: ExpectedInterrupts,
    /// Expected interrupts of the counter with which the host samples itself.
    host_expected: ExpectedInterrupts,
    /// Reached through an [`OnCpu`] only.
    pcpu: UnsafeCell<Pcpu>,
}

impl CpuObject {
    /// Makes the object of a CPU that the driver has not touched.
    pub(crate) const fn new(driver: *const Driver, number: u32) -> Self {
        let [expected, host_expected] = [ExpectedInterrupts::new(), ExpectedInterrupts::new()];
        Self { driver, number, expected, host_expected, pcpu: UnsafeCell::new(Pcpu::new()) }
    }

    fn driver(&self) -> &Driver {
        // SAFETY: `perfctr_core_cpu_init` has been given the driver's one object, which is static
        // memory of C's that nobody writes to any more.
        unsafe { &*self.driver }
    }

    /// See [`ExpectedInterrupts::explains_beside_entry`].  May be called at any moment.
    pub(crate) fn explains_nmi(&self, is_masked: bool) -> bool {
        self.expected.explains_beside_entry(is_masked, &self.driver().caps, &Registers)
    }

    /// See [`Driver::sample`].  Returns whose an NMI is that has just come here; see [`Nmi::of`].
    /// May be called at any moment once the CPU has come up.
    pub(crate) fn sample(
        &self,
        is_masked: bool,
        ring: Option<&SampleRing>,
        at: &mut HvSample,
        left: &HvPlace,
    ) -> Nmi {
        let pmu = X86Pmu { expected: &self.expected };
        let hosts = self.driver().sample(&pmu, &self.host_expected, ring, at, left);
        let caps = &self.driver().caps;
        let guests = self.expected.explains(caps, &Registers);
        if hosts && guests {
            self.host_expected.expect_another(pmu.clock());
        }
        Nmi::of(hosts, guests, is_masked, caps)
    }

    /// See [`Driver::close_gate`].  May be called at any moment once the CPU has come up.
    pub(crate) fn close_gate(&self) {
        self.driver().close_gate(&X86Pmu { expected: &self.expected });
    }
}

/// The right to use a physical CPU: interrupts are disabled, so that nobody else executes here and
/// this is not moved elsewhere, and nobody else has the right.
///
/// It is made where C calls an entry that says so in its `# Safety`, or by
/// [`without_interrupts`], and it cannot leave this CPU.
pub(crate) struct OnCpu<'a> {
    cpu: &'a CpuObject,
    pmu: X86Pmu<'a>,
    /// Neither `Send` nor `Sync`.
    here: PhantomData<*mut ()>,
}

impl<'a> OnCpu<'a> {
    /// Makes the right to use the state of this physical CPU.
    ///
    /// # Safety
    ///
    /// `cpu` is the object of the physical CPU that executes this, interrupts are disabled while
    /// the result lives, and there is no other one.
    #[inline(always)]
    pub(crate) const unsafe fn new(cpu: &'a CpuObject) -> Self {
        Self { cpu, pmu: X86Pmu { expected: &cpu.expected }, here: PhantomData }
    }

    /// Returns the interrupts of the host's own counter.
    pub(crate) const fn host_expected(&self) -> &'a ExpectedInterrupts {
        &self.cpu.host_expected
    }

    /// Returns the CPU for the core.
    #[inline(always)]
    pub(crate) fn cpu(&mut self) -> ThisCpu<'_, X86Pmu<'a>> {
        // SAFETY: whoever has the only right to use this CPU has lent it for as long as the result
        // lives, and an NMI looks at `expected` alone.
        let pcpu = unsafe { &mut *self.cpu.pcpu.get() };
        let (driver, number) = (self.cpu.driver(), self.cpu.number);
        ThisCpu { driver, pcpu, pmu: &self.pmu, number }
    }
}

/// The interrupt flag of RFLAGS.
const RFLAGS_IF: u64 = 1 << 9;

/// Runs `work` on this CPU, with interrupts disabled.
#[inline(always)]
pub(crate) fn without_interrupts<R>(work: impl FnOnce(&mut OnCpu<'_>) -> R) -> R {
    let flags: u64;
    // SAFETY: in ring 0 this pushes and pops one word of the stack, and clears one flag; the object
    // is compiled without a red zone.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    // SAFETY: interrupts are disabled until `work` has returned, and the reference is not used
    // afterwards.  The object is this CPU's; it is in C's static memory.  No entry that was given
    // the right to use it is under way here: hypercalls are served with interrupts enabled.
    let result = work(&mut unsafe { OnCpu::new(&*perfctr_glue_cpu()) });
    if flags & RFLAGS_IF != 0 {
        // SAFETY: interrupts were enabled when this was called, so this restores their state.
        unsafe { asm!("sti") };
    }
    result
}
