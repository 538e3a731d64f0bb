// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Interrupts and exceptions that are subtracted from counts, as C sees them.

use guest_kmod::surplus::{Entry, Mode};

use crate::machine::subtracts;
use crate::on_vcpu::{OnVcpu, Present};

/// Subtracts an interrupt or an exception that was counted; see [`guest_kmod::surplus`].
///
/// C calls this wherever the kernel traces an interrupt or an exception, perhaps several times for
/// the same one, and in an NMI that has interrupted user mode. It subtracts from the counters of
/// the executing thread, from those of the whole CPU, and from perf's events. `is_known` says
/// whether the kernel knows what was interrupted, and `is_user` says whether that was user mode.
/// The other parameters are fields of [`Entry`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_traced(
    mut vcpu: OnVcpu<'_>,
    mut present: Present<'_>,
    is_known: bool,
    is_user: bool,
    system_call: i64,
    vector: u32,
) {
    let interrupted = is_known.then_some(if is_user { Mode::User } else { Mode::Kernel });
    let entry = Entry { interrupted, system_call, vector };
    let Some(is_counted) = entry.is_counted().filter(|_| subtracts()) else { return };
    let own = present.on_thread().is_some_and(|mut thread| {
        let (pmu, page) = thread.pmu();
        pmu.subtract_interrupt(page, &vcpu.cpu(), is_counted)
    });
    let cpu_wide = vcpu.subtract_interrupt_cpu_wide(is_counted);
    let events = vcpu.cpu().subtract_interrupt_from_events(is_counted);
    if own || cpu_wide || events {
        vcpu.cpu().count_subtracted();
    }
}
