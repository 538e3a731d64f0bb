// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What every provider says of itself, and what it gives.

use std::fmt;

use shared_abi::PmuCaps;

/// Who provides the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Hypervisor and guest kernel together, through `/dev/perfctr`.
    Paravirt,
    /// Linux alone, through `perf_event_open(2)`.  Right on bare metal, and in a virtual machine
    /// whose hypervisor emulates a PMU.  The kernel chooses the counters.
    Native,
    /// Nobody: there is only the time-stamp counter, which goes on while the thread does not.
    Tsc,
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Paravirt => "paravirt",
            Self::Native => "native",
            Self::Tsc => "tsc",
        })
    }
}

/// What can be counted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Who counts.
    pub provider: Provider,
    /// The counters that there are; `None` if the provider does not say.
    pub caps: Option<PmuCaps>,
    /// Pages of virtual CPUs; 0 if the provider has none.
    pub vcpus: u32,
    /// CPUID leaf 1, EAX: family, model and stepping.
    pub cpu_signature: u32,
    /// Frequency in kHz of what readings give as TSC; 0 if unknown.  [`Provider::Native`] gives ns.
    pub tsc_khz: u32,
}

/// What a provider gives besides the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) tsc: u64,
    pub(crate) retries: u32,
    pub(crate) direct: bool,
}

/// CPUID leaf 1, EAX (SDM volume 2, CPUID).
pub(crate) fn cpu_signature() -> u32 {
    std::arch::x86_64::__cpuid(1).eax
}
