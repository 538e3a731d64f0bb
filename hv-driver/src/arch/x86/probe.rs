// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks that a physical CPU has the registers that its CPUID promises.
//!
//! The driver's hooks cannot recover from a fault when they access registers, so a guest could
//! bring the hypervisor down. Therefore every register is tried, where faults are caught,
//! whenever a CPU comes up.

use shared_abi::PmuCaps;
use shared_abi::slot::slots_of;

use super::selectors::{FIXED_BITS, FIXED_USR};
use super::{DEBUGCTL, Global, Identity, Refusal, Registers, global_bits};
use crate::hal::{Pmu, Probe};

/// Values that a counter has to keep: a write of 32 bits extends bit 31.
const PATTERN: u64 = 0x5a69_3c78;
/// A value that an event select has to keep: instructions in no ring, and not enabled.
const STOPPED: u64 = 0xc0;
/// DEBUGCTL: the interrupt of a counter stops all counters (FREEZE_PERFMON_ON_PMI).
const DEBUGCTL_FREEZE: u64 = 1 << 12;
/// The status of all counters: they stand still until the bit is cleared (CTR_FRZ). It is 0 on CPUs
/// without such a bit.
const STATUS_FROZEN: u64 = 1 << 59;

/// Tries all registers of the CPU that executes this, whose identity is `cpuid`.
///
/// All its counters are stopped and cleared afterwards. The function returns what was in the
/// register that enables them, if there is one.
///
/// # Errors
///
/// Says that there is no usable PMU, or names the first register that is not as it should be.
pub(crate) fn probe(cpuid: &Identity, pmu: &impl Probe) -> Result<u64, Refusal> {
    let (caps, registers) = cpuid.pmu()?;
    let Some(global) = &registers.global else {
        selects_and_counters(&caps, &registers, pmu)?;
        return Ok(0);
    };
    let found = pmu.try_read_register(global.ctrl).ok_or(Refusal::Register(global.ctrl))?;
    check_keeps(pmu, global.ctrl, &[0])?;
    selects_and_counters(&caps, &registers, pmu)?;
    let all = global_bits(caps.slots());
    check_keeps(pmu, global.ctrl, &[all, found])?;
    pmu.try_read_register(global.status).ok_or(Refusal::Register(global.status))?;
    demand(pmu.try_write_register(global.acknowledge, all), global.acknowledge)?;
    Ok(found)
}

/// Makes sure that no counter stands still because another one interrupts or has interrupted, and
/// returns whether the CPU was set to stop all of them.
///
/// One bit of [`DEBUGCTL`] makes the interrupt of a counter stop all counters: older CPUs then
/// clear the register that enables counters, and newer ones set a bit of the status. The counters
/// would stand still until the driver stops or starts some counter on this CPU, or acknowledges the
/// bit of the status.
///
/// An interrupt may also have set the bit of the status before the driver takes the CPU over. This
/// bit is cleared after the one of [`DEBUGCTL`], so that no further interrupt sets it again.
///
/// # Errors
///
/// Names the register if a bit cannot be cleared.
pub(crate) fn keep_counting(global: Option<&Global>, pmu: &impl Probe) -> Result<bool, Refusal> {
    // CPUs without the register have no such bit.
    let control = pmu.try_read_register(DEBUGCTL).unwrap_or(0);
    let freezes = control & DEBUGCTL_FREEZE != 0;
    if freezes {
        check_keeps(pmu, DEBUGCTL, &[control & !DEBUGCTL_FREEZE])?;
    }
    if let Some(global) = global {
        let frozen = pmu.try_read_register(global.status).unwrap_or(0) & STATUS_FROZEN;
        if frozen != 0 {
            demand(pmu.try_write_register(global.acknowledge, frozen), global.acknowledge)?;
        }
    }
    Ok(freezes)
}

/// Sets the CPU to stop all counters when one interrupts, as it was before [`keep_counting`].
pub(crate) fn freeze_again(pmu: &impl Pmu) {
    pmu.write_register(DEBUGCTL, pmu.read_register(DEBUGCTL) | DEBUGCTL_FREEZE);
}

fn selects_and_counters(
    caps: &PmuCaps,
    registers: &Registers,
    pmu: &impl Probe,
) -> Result<(), Refusal> {
    for slot in slots_of(caps.slots()) {
        if let Some(evntsel) = registers.evntsel(slot) {
            check_keeps(pmu, evntsel, &[STOPPED, 0])?;
        }
    }
    if let Some(fixed) = &registers.fixed {
        // The register that enables all counters holds 0.
        let user = (0..caps.fixed).fold(0, |ctrl, n| ctrl | FIXED_USR << (FIXED_BITS * n));
        check_keeps(pmu, fixed.ctrl, &[user, 0])?;
    }
    if let Some(record_enable) = registers.record_enable {
        check_keeps(pmu, record_enable, &[0])?;
    }
    slots_of(caps.slots())
        .try_for_each(|slot| check_keeps(pmu, registers.counter(slot), &[PATTERN, 0]))
}

/// Checks that the register keeps each of `values`.
fn check_keeps(pmu: &impl Probe, msr: u32, values: &[u64]) -> Result<(), Refusal> {
    let kept =
        |&value| pmu.try_write_register(msr, value) && pmu.try_read_register(msr) == Some(value);
    demand(values.iter().all(kept), msr)
}

fn demand(good: bool, msr: u32) -> Result<(), Refusal> {
    if good { Ok(()) } else { Err(Refusal::Register(msr)) }
}
