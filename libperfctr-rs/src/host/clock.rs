// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The time-stamp counters that domains read.

use shared_abi::hypercall::{HvClock, OP_CLOCK};

use super::Xen;
use crate::error::Error;

/// The minor version of the driver's interface that says which counter a domain reads.
const MINOR: u32 = 11;

/// The time-stamp counter that a domain's virtual CPU reads, as a function of the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DomainClock {
    /// What is added. Unit: ticks.
    pub offset: u64,
    /// The ratio of the two frequencies as a fixed-point number, or 0 if it is 1.
    pub scale: u64,
    /// The number of bits after the point in `scale`.
    pub fraction_bits: u32,
}

impl DomainClock {
    /// Returns the clock of a domain that reads the host's own counter.
    pub const fn native() -> Self {
        Self { offset: 0, scale: 0, fraction_bits: 0 }
    }

    /// Returns the clock of a domain whose counter has the host's frequency.
    pub const fn shifted(offset: u64) -> Self {
        Self { offset, ..Self::native() }
    }

    /// Returns the clock of a domain whose counter has another frequency.
    pub const fn scaled(offset: u64, scale: u64, fraction_bits: u32) -> Self {
        Self { offset, scale, fraction_bits }
    }

    /// Returns what the domain reads when the host's counter has this value.
    pub const fn at(&self, host: u64) -> u64 {
        self.ticks(host).wrapping_add(self.offset)
    }

    /// Returns by how much the domain's counter advances while the host's advances by this much.
    pub const fn ticks(&self, host: u64) -> u64 {
        match self.scale {
            0 => host,
            scale => (host as u128 * scale as u128).wrapping_shr(self.fraction_bits) as u64,
        }
    }
}

impl Xen {
    /// Asks the driver which time-stamp counter a domain's virtual CPU reads.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: `EPERM` if this is not the control domain, `ESRCH` if there is no such
    /// virtual CPU, `EOPNOTSUPP` if Xen emulates its counter, or if the driver is of a release that
    /// cannot say it; and those of [`driver`](Self::driver).
    pub fn clock(&self, domain: u32, vcpu: u32) -> Result<DomainClock, Error> {
        let failed = Error::kernel("ask the driver which time-stamp counter a domain reads");
        if self.driver()?.abi.1 < MINOR {
            return Err(failed(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        let mut clock = HvClock { domain, vcpu, ..HvClock::default() };
        self.call(OP_CLOCK, &mut clock).map_err(failed)?;
        let HvClock { offset, scale, fraction_bits, .. } = clock;
        Ok(DomainClock { offset, scale, fraction_bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_reads_what_its_offset_and_its_scale_say() {
        assert_eq!(DomainClock::native().at(7), 7);
        let shifted = DomainClock::shifted(5_u64.wrapping_neg());
        assert_eq!((shifted.at(7), shifted.ticks(7)), (2, 7));
        let half = DomainClock::scaled(100, 1 << 31, 32);
        assert_eq!((half.at(1 << 40), half.ticks(9)), ((1 << 39) + 100, 4));
        let most = DomainClock::scaled(u64::MAX, u64::MAX, 63);
        assert_eq!(most.at(u64::MAX), ((u64::MAX as u128 * u64::MAX as u128) >> 63) as u64 - 1);
    }
}
