// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Does the action for which another vCPU, or code on the same one, has called a vCPU.

use guest_kmod::LocalVcpu;
use guest_kmod::perf::LocalEvents;

use crate::COUNTING;
use crate::call::Call;
use crate::on_vcpu::{OnVcpu, Present};
use crate::shown::observer_of;

/// Does the action for which the vCPU was called.
///
/// For CPU-wide counting the caller holds the mutex of the CPUs until the action is done. Events of
/// perf that were counted in a page that is no longer registered continue in perf's own page.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_called(
    call: &Call<'_>,
    mut vcpu: OnVcpu<'_>,
    mut present: Present<'_>,
) {
    match call {
        Call::Nothing => return,
        Call::StopIfIdle => vcpu.cpu().stop_if_idle(&COUNTING),
        Call::HideIfUnwatched => vcpu.hide_if_unwatched(),
        // If the hypervisor refuses, the page stays noted as registered.
        Call::Hide(observer) => _ = vcpu.hide_page_of(observer),
        Call::Restore => vcpu.bring_back(),
        Call::TryAgain => vcpu.try_again(),
        Call::StartCpuWide(counters, out) => {
            out.set(vcpu.start_counting_cpu_wide(counters, &mut present));
        }
        Call::StopCpuWide => {
            let own = observer_of(present.object());
            // If the hypervisor refuses, the next switch asks it again.
            let _ = vcpu.end_cpu_wide(own, |vcpu| vcpu.suspend(&mut present));
        }
        Call::Read(counters, out) => out.set(vcpu.read_cpu_wide(counters)),
    }
    // What the hypervisor refuses is asked for again when perf enables its PMU.
    let _ = vcpu.page_changed();
}
