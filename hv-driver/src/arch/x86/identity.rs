// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What an x86 CPU reports about itself, as far as it concerns the PMU.

/// What a CPU says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Identity {
    /// Leaf 0: EBX, EDX, ECX, which spell the vendor.
    pub vendor: [u32; 3],
    /// Leaf 1, EAX: family, model and stepping.
    pub signature: u32,
    /// Leaf 0xA: EAX, EBX, ECX, EDX; zeroes if there is no such leaf.
    pub perfmon: [u32; 4],
    /// Leaf 0x23, sub-leaf 1: EAX, EBX; zeroes if there is no such leaf.
    pub perfmon_masks: [u32; 2],
    /// Leaf 0x80000022: EAX, EBX; zeroes if there is no such leaf.
    pub perfmon_amd: [u32; 2],
    /// Leaf 1, EDX.
    pub features: u32,
    /// Leaf 7, EDX; 0 if there is no such leaf.
    pub structured: u32,
    /// Leaf 0x80000001, ECX.
    pub extended: u32,
    /// Leaf 0x1A, EAX: the kind of core in a CPU that has several; 0 if there is no such leaf.
    pub core_type: u32,
    /// IA32_MISC_ENABLE; 0 if there is no such register.
    pub misc_enable: u64,
    /// IA32_PERF_CAPABILITIES; 0 if there is no such register.
    pub perf_capabilities: u64,
    /// TSX_FORCE_ABORT; 0 if there is no such register.
    pub tsx_force_abort: u64,
}

impl Identity {
    /// The identity of a CPU that has none of these.
    pub const NONE: Self = Self {
        vendor: [0; 3],
        signature: 0,
        perfmon: [0; 4],
        perfmon_masks: [0; 2],
        perfmon_amd: [0; 2],
        features: 0,
        structured: 0,
        extended: 0,
        core_type: 0,
        misc_enable: 0,
        perf_capabilities: 0,
        tsx_force_abort: 0,
    };

    /// Returns family and model as the manuals number them (SDM volume 2, CPUID; APM volume 3,
    /// appendix E).
    pub(super) const fn family_and_model(&self) -> (u32, u32) {
        let (base, extended) = ((self.signature >> 8) & 0xf, (self.signature >> 20) & 0xff);
        let family = if base == 0xf { base + extended } else { base };
        let model = (self.signature >> 4) & 0xf | (self.signature >> 12) & 0xf0;
        (family, model)
    }
}
