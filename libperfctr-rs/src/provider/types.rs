// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The types by which a provider describes itself and returns its results.

use std::fmt;
use std::time::Duration;

use shared_abi::PmuCaps;

/// A provider of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[non_exhaustive]
pub enum Provider {
    /// The hypervisor and the guest's kernel module together provide counters through
    /// `/dev/perfctr`.
    Paravirt,
    /// Linux provides counters through `perf_event_open(2)`. They are correct on bare metal, and
    /// in a virtual machine whose hypervisor emulates a PMU. The kernel chooses the counters.
    Native,
    /// There is only the time-stamp counter, which also advances while the thread does not execute.
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

/// A description of the counters of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// The provider of the counters.
    pub provider: Provider,
    /// The counters that there are, or `None` if the provider does not say.
    pub caps: Option<PmuCaps>,
    /// Number of pages of virtual CPUs, or 0 if the provider has none.
    pub vcpus: u32,
    /// Family, model and stepping of the processor (CPUID leaf 1, EAX), or 0 if it is not an x86.
    pub cpu_signature: u32,
    /// Frequency of the clock that readings give as TSC, unit: kHz, or 0 if it is unknown. The
    /// clock of [`Provider::Native`] has ticks of 1 ns.
    pub tsc_khz: u32,
}

impl Description {
    /// Converts ticks of a reading's TSC to time. Returns `None` if the frequency is unknown.
    ///
    /// ```
    /// # fn main() -> Result<(), perfctr::Error> {
    /// let mut session = perfctr::Session::open()?;
    /// session.start(&[])?;
    /// let spent = session.read::<0>()?;
    /// println!("executed for {:?}", session.description().duration(spent.tsc));
    /// # Ok(())
    /// # }
    /// ```
    pub fn duration(&self, ticks: u64) -> Option<Duration> {
        /// Number of nanoseconds in a millisecond.
        const NS: u128 = 1_000_000;
        let ns = (u128::from(ticks) * NS).checked_div(self.tsc_khz.into())?;
        let [second, rest] = [ns / 1_000_000_000, ns % 1_000_000_000];
        Some(Duration::new(second.try_into().ok()?, rest.try_into().ok()?))
    }
}

/// How the kernel notifies a thread of overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// The kernel sends this signal. It is 0 if nothing samples.
    Signal(u32),
    /// The kernel writes records into the thread's ring.
    Records,
}

/// What a provider's reading contains besides the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) tsc: u64,
    pub(crate) retries: u32,
    pub(crate) direct: bool,
}

/// Returns family, model and stepping of the processor: EAX of CPUID leaf 1 (SDM volume 2, CPUID).
pub(crate) fn cpu_signature() -> u32 {
    #[cfg(target_arch = "x86_64")]
    return raw_cpuid::native_cpuid::cpuid_count(1, 0).eax;
    #[cfg(not(target_arch = "x86_64"))]
    return 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_time_where_the_frequency_is_known() {
        let of = |tsc_khz, ticks| {
            let provider = Provider::Tsc;
            let description =
                Description { provider, caps: None, vcpus: 0, cpu_signature: 0, tsc_khz };
            description.duration(ticks)
        };
        assert_eq!(of(0, 5), None);
        assert_eq!(of(1_000_000, 5), Some(Duration::from_nanos(5)));
        assert_eq!(of(2_600_040, 2_600_040_000 * 3 + 1_300_020), Some(Duration::new(3, 500_000)));
        assert_eq!(of(1, u64::MAX), Some(Duration::new(u64::MAX / 1_000, 615_000_000)));
    }
}
