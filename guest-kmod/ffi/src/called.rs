// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Does what a vCPU was called for.

use guest_kmod::LocalVcpu;
use guest_kmod::perf::LocalEvents;

use crate::COUNTING;
use crate::call::Call;
use crate::on_vcpu::{OnVcpu, Present};
use crate::shown::observer_of;

/// Has the vCPU do what it was called for. Whoever counts CPUs holds their mutex until then.
///
/// perf's events that were counted in a page which is not registered any more continue in perf's
/// own page.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_called(
    call: &Call<'_>,
    mut vcpu: OnVcpu<'_>,
    mut present: Present<'_>,
) {
    match call {
        Call::StopIfIdle => vcpu.cpu().stop_if_idle(&COUNTING),
        Call::HideIfUnwatched => vcpu.hide_if_unwatched(),
        // What is registered says whether the hypervisor has refused.
        Call::Hide(observer) => _ = vcpu.hide_page_of(observer),
        Call::Restore => vcpu.bring_back(),
        Call::TryAgain => vcpu.try_again(),
        Call::StartCpuWide(counters, out) => {
            out.set(vcpu.start_counting_cpu_wide(counters, &mut present));
        }
        Call::StopCpuWide => {
            let own = observer_of(present.object());
            // What the hypervisor refuses is asked for again at the next switch.
            let _ = vcpu.end_cpu_wide(own, |vcpu| vcpu.suspend(&mut present));
        }
        Call::Read(counters, out) => out.set(vcpu.read_cpu_wide(counters)),
    }
    // What the hypervisor refuses is asked for again when perf enables its PMU.
    let _ = vcpu.page_changed();
}
