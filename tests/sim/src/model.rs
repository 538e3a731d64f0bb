// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Describes the simulated processor, in numbers taken from the vendors' manuals alone.
//!
//! Intel: SDM volume 3, 20.2 and volume 4, table 2-2. AMD: APM volume 2, 13.2.1 and appendix A.
//! Nothing here is shared with the cores, so a wrong number in them is compared with a right one
//! here.

use hv_driver::Identity;

/// The number of general counters that a page has room for. Fixed ones have the indices after them.
pub const GENERAL: usize = 16;
/// The number of counters that a page has room for.
pub const SLOTS: usize = 24;

/// The longest distance to an overflow: 31 bits, because a write of 32 bits extends their sign.
pub const PERIOD_MAX: u64 = 0x7fff_ffff;
/// The shortest period whose overflows are all told one by one. Any shorter period but 0 is
/// allowed.
pub const PERIOD_TOLD: u64 = 1_000;
/// The number of attempts of a read before it gives up.
pub const ATTEMPTS: u64 = 100;

/// Who made the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// Architectural performance monitoring.
    Intel,
    /// Counters of the K7, of the core extension, or of version 2.
    Amd,
}

/// A processor's counters.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Who made it.
    pub vendor: Vendor,
    /// The version of architectural performance monitoring. For AMD 0 is the K7's, 1 the core
    /// extension, 2 PerfMonV2.
    pub version: u32,
    /// The number of general counters.
    pub general: u32,
    /// The number of fixed counters.
    pub fixed: u32,
    /// The width of a general counter. Unit: bits.
    pub general_width: u32,
    /// The width of a fixed counter. Unit: bits.
    pub fixed_width: u32,
}

/// The meaning of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// The event select of this general counter.
    Select(usize),
    /// This counter.
    Counter(usize),
    /// IA32_FIXED_CTR_CTRL.
    FixedCtrl,
    /// IA32_PERF_GLOBAL_STATUS, or PerfCntrGlobalStatus, which can only be read.
    GlobalStatus,
    /// IA32_PERF_GLOBAL_CTRL, or PerfCntrGlobalCtl.
    GlobalCtrl,
    /// IA32_PERF_GLOBAL_OVF_CTRL, or PerfCntrGlobalStatusClr.
    GlobalOvfCtrl,
}

impl Model {
    /// A family 10h processor.
    pub const AMD: Self = Self {
        vendor: Vendor::Amd,
        version: 0,
        general: 4,
        fixed: 0,
        general_width: 48,
        // There is no fixed counter, so nothing may depend on this.
        fixed_width: 40,
    };
    /// A processor with the core extension.
    pub const AMD_CORE: Self = Self { version: 1, general: 6, ..Self::AMD };
    /// A processor with PerfMonV2.
    pub const AMD_V2: Self = Self { version: 2, ..Self::AMD_CORE };

    /// Returns what the processor's CPUID says.
    pub fn cpuid(&self) -> Identity {
        match self.vendor {
            Vendor::Amd => Identity {
                vendor: [0x6874_7541, 0x6974_6e65, 0x444d_4163],
                signature: 0x0010_0f00,
                // SVM, and PerfCtrExtCore.
                extended: 1 << 2 | u32::from(self.version >= 1) << 23,
                perfmon_amd: if self.version >= 2 { [1, self.general] } else { [0; 2] },
                ..Identity::NONE
            },
            Vendor::Intel => Identity {
                vendor: [0x756e_6547, 0x4965_6e69, 0x6c65_746e],
                signature: 0x0001_06a0,
                perfmon: [
                    self.version | self.general << 8 | self.general_width << 16,
                    0,
                    0,
                    self.fixed | self.fixed_width << 5,
                ],
                ..Identity::NONE
            },
        }
    }

    /// Returns whether one register enables counters, and another says which have overflowed.
    pub fn has_global(&self) -> bool {
        self.version >= 2
    }

    /// Returns whether a selector can be limited to guests, or to the host.
    pub fn distinguishes_guests(&self) -> bool {
        self.vendor == Vendor::Amd
    }

    /// Returns whether counters can interrupt.
    pub fn samples(&self) -> bool {
        self.vendor == Vendor::Amd || self.version >= 2
    }

    /// Returns the counters that exist, by their indices in a page.
    pub fn counters(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.general as usize).chain(GENERAL..GENERAL + self.fixed as usize)
    }

    /// Returns one bit per counter, as in the global registers.
    pub fn global_bits(&self) -> u64 {
        ((1 << self.general) - 1) | ((1 << self.fixed) - 1) << 32
    }

    /// Returns a mask of every bit that a counter has.
    pub fn mask(&self, counter: usize) -> u64 {
        let width = if counter < GENERAL { self.general_width } else { self.fixed_width };
        u64::MAX >> (64 - width)
    }

    /// Returns the counter that RDPMC reads, or `None` if the instruction faults.
    pub fn rdpmc(&self, index: u32) -> Option<usize> {
        let (fixed, number) = (index >> 30 == 1, index & 0x3fff_ffff);
        match fixed {
            true => (number < self.fixed).then_some(GENERAL + number as usize),
            false => (index < self.general).then_some(index as usize),
        }
    }

    /// Returns the register with this number, or `None` if accesses to it fault.
    pub fn register(&self, number: u32) -> Option<Register> {
        let offset = |base: u32, count: u32| {
            number.checked_sub(base).filter(|&n| n < count).map(|n| n as usize)
        };
        match self.vendor {
            Vendor::Amd if self.version == 0 => offset(0xc001_0000, 4)
                .map(Register::Select)
                .or(offset(0xc001_0004, 4).map(Register::Counter)),
            Vendor::Amd => match (number, self.version) {
                (0xc000_0300, 2) => Some(Register::GlobalStatus),
                (0xc000_0301, 2) => Some(Register::GlobalCtrl),
                (0xc000_0302, 2) => Some(Register::GlobalOvfCtrl),
                // Selectors and counters alternate.
                _ => offset(0xc001_0200, 2 * self.general).map(|n| match n % 2 {
                    0 => Register::Select(n / 2),
                    _ => Register::Counter(n / 2),
                }),
            },
            Vendor::Intel => match number {
                0x38d => Some(Register::FixedCtrl),
                0x38e => Some(Register::GlobalStatus),
                0x38f => Some(Register::GlobalCtrl),
                0x390 => Some(Register::GlobalOvfCtrl),
                _ => offset(0x186, self.general)
                    .map(Register::Select)
                    .or(offset(0xc1, self.general).map(Register::Counter))
                    .or(offset(0x309, self.fixed).map(|n| Register::Counter(GENERAL + n))),
            },
        }
    }

    /// Returns the bits of a register that fault if they are written as 1.
    pub fn reserved(&self, register: Register) -> u64 {
        match (self.vendor, register) {
            // The reserved bits of AMD's event select are 63 to 42, 39 to 36 and 21.
            (Vendor::Amd, Register::Select(_)) => 0xffff_fcf0_0020_0000,
            (Vendor::Amd, Register::Counter(_)) => 0xffff_0000_0000_0000,
            (Vendor::Amd, Register::GlobalStatus) => u64::MAX,
            (Vendor::Amd, Register::GlobalCtrl) => !self.global_bits(),
            // Frozen branch records and counters can be cleared, too.
            (Vendor::Amd, _) => !(self.global_bits() | 0b11 << 58),
            // AnyThread came with version 3.
            (_, Register::Select(_)) if self.version < 3 => 0xffff_ffff_0020_0000,
            (_, Register::Select(_)) => 0xffff_ffff_0000_0000,
            // The upper half is ignored, and the lower one's sign is extended.
            (_, Register::Counter(counter)) if counter < GENERAL => 0,
            (_, Register::Counter(counter)) => !self.mask(counter),
            (_, Register::FixedCtrl) => {
                let each: u64 = if self.version < 3 { 0b1011 } else { 0b1111 };
                (0..self.fixed).fold(u64::MAX, |bits, n| bits & !(each << (4 * n)))
            }
            (_, Register::GlobalStatus) => u64::MAX,
            (_, Register::GlobalCtrl) => !self.global_bits(),
            // OvfBuffer and CondChgd can be cleared, too.
            (_, Register::GlobalOvfCtrl) => !(self.global_bits() | 0b11 << 62),
        }
    }
}
