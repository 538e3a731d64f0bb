// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The physical CPU that executes this, and the promise that the code does not leave it.
#![expect(unsafe_code, reason = "C owns the objects of physical CPUs")]

use core::arch::asm;
use core::cell::UnsafeCell;
use core::marker::PhantomData;

use hv_driver::{Driver, ExpectedInterrupts, Nmi, Pcpu, RecordArea, SampleRing, ThisCpu};
use shared_abi::hypercall::{HvPlace, HvSample};
use shared_abi::read::Counters;

use crate::perfctr_glue_cpu;
use crate::x86::{Registers, X86Pmu};

/// A physical CPU as C holds it.
///
/// Every reference to this is shared, because an NMI may come while the core uses the [`Pcpu`].
pub struct CpuObject {
    driver: *const Driver,
    number: u32,
    pmu: X86Pmu,
    /// The expected interrupts of the counter by which the host samples itself.
    host_expected: ExpectedInterrupts,
    /// Only an [`OnCpu`] gives access to this.
    pcpu: UnsafeCell<Pcpu>,
}

impl CpuObject {
    /// Makes the object of a CPU that the driver has not touched.
    pub(crate) const fn new(
        driver: *const Driver,
        number: u32,
        area: Option<&'static RecordArea>,
    ) -> Self {
        let [expected, host_expected] = [ExpectedInterrupts::new(), ExpectedInterrupts::new()];
        let pmu = X86Pmu { expected, area };
        Self { driver, number, pmu, host_expected, pcpu: UnsafeCell::new(Pcpu::new()) }
    }

    fn driver(&self) -> &Driver {
        // SAFETY: C has passed `perfctr_core_cpu_init` the driver's one object. It is static memory
        // of C's, to which nobody writes any more.
        unsafe { &*self.driver }
    }

    /// See [`ExpectedInterrupts::explains_beside_entry`]. An NMI may call this at any moment.
    pub(crate) fn explains_nmi(&self, is_masked: bool) -> bool {
        self.pmu.expected.explains_beside_entry(is_masked, &self.driver().caps, &Registers)
    }

    /// See [`ExpectedInterrupts::explains_unknown`]. An NMI may call this at any moment.
    pub(crate) fn explains_unknown_nmi(&self) -> bool {
        self.pmu.expected.explains_unknown(&self.driver().caps, Registers.clock())
    }

    /// See [`Driver::sample`]. Returns whose the NMI is that has just come here; see [`Nmi::of`].
    /// An NMI may call this at any moment once the CPU has come up.
    pub(crate) fn sample(
        &self,
        is_masked: bool,
        ring: Option<&SampleRing>,
        at: &mut HvSample,
        left: &HvPlace,
    ) -> Nmi {
        let hosts = self.driver().sample(&self.pmu, &self.host_expected, ring, at, left);
        let caps = &self.driver().caps;
        let guests = self.pmu.expected.explains(caps, &Registers);
        if hosts && guests {
            self.host_expected.expect_another(self.pmu.clock());
        }
        Nmi::of(hosts, guests, is_masked, caps)
    }

    /// See [`Driver::close_gate`]. An NMI may call this at any moment once the CPU has come up.
    pub(crate) fn close_gate(&self) {
        self.driver().close_gate(&self.pmu);
    }
}

/// The right to use a physical CPU. Interrupts are disabled, so no other code executes on that CPU,
/// and this code does not migrate. Nobody else has the right.
///
/// An entry whose `# Safety` demands this makes the right, or [`without_interrupts`] does. The
/// right cannot leave this CPU.
pub(crate) struct OnCpu<'a> {
    cpu: &'a CpuObject,
    /// Makes this neither `Send` nor `Sync`.
    here: PhantomData<*mut ()>,
}

impl<'a> OnCpu<'a> {
    /// Makes the right to use the state of this physical CPU.
    ///
    /// # Safety
    ///
    /// `cpu` is the object of the physical CPU that executes this, interrupts are disabled while
    /// the result lives, and nobody else has such a right.
    #[inline(always)]
    pub(crate) const unsafe fn new(cpu: &'a CpuObject) -> Self {
        Self { cpu, here: PhantomData }
    }

    /// Returns the interrupts of the host's own counter.
    pub(crate) const fn host_expected(&self) -> &'a ExpectedInterrupts {
        &self.cpu.host_expected
    }

    /// Returns the CPU for the core.
    #[inline(always)]
    pub(crate) fn cpu(&mut self) -> ThisCpu<'_, X86Pmu> {
        // SAFETY: this is the only right to use the CPU, and it stays borrowed for as long as the
        // result lives. An NMI does not use `pcpu`.
        let pcpu = unsafe { &mut *self.cpu.pcpu.get() };
        let (driver, number) = (self.cpu.driver(), self.cpu.number);
        ThisCpu { driver, pcpu, pmu: &self.cpu.pmu, number }
    }
}

/// The interrupt flag of RFLAGS.
const RFLAGS_IF: u64 = 1 << 9;

/// Runs `work` on this CPU, with interrupts disabled.
#[inline(always)]
pub(crate) fn without_interrupts<R>(work: impl FnOnce(&mut OnCpu<'_>) -> R) -> R {
    let flags: u64;
    // SAFETY: in ring 0 this pushes and pops one word of the stack, and clears one flag. The object
    // is compiled without a red zone.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    // SAFETY: interrupts are disabled until `work` has returned, and nobody uses the reference
    // after that. The object is this CPU's, in C's static memory. No entry with the right to use
    // this CPU is under way here, because hypercalls are served with interrupts enabled.
    let result = work(&mut unsafe { OnCpu::new(&*perfctr_glue_cpu()) });
    if flags & RFLAGS_IF != 0 {
        // SAFETY: interrupts were enabled when this function was called, so this restores their
        // state.
        unsafe { asm!("sti") };
    }
    result
}
