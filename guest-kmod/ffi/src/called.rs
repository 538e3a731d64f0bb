// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Does what a vCPU was called for.

use crate::COUNTING;
use crate::call::Call;
use crate::on_vcpu::{OnVcpu, Present};

/// Has the vCPU do what it was called for. Whoever counts CPUs holds their mutex until then.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_called(call: &Call<'_>, mut vcpu: OnVcpu<'_>, present: Present<'_>) {
    match call {
        Call::StopIfIdle => vcpu.cpu().stop_if_idle(&COUNTING),
        Call::HideIfUnwatched => vcpu.hide_if_unwatched(),
        Call::Hide(observer) => vcpu.hide_page_of(observer),
        Call::Restore => vcpu.restore(),
        Call::TryAgain => vcpu.try_again(),
        Call::StartCpuWide(counters, out) => out.set(vcpu.start_cpu_wide(counters, present)),
        Call::StopCpuWide => {
            vcpu.stop_cpu_wide();
            // The subject that executes here may not be allowed to see root's page.
            vcpu.become_subject(present);
        }
        Call::Read(counters, out) => out.set(vcpu.read_cpu_wide(counters)),
    }
}
