// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The structures of `include/`, declared in Rust.
//!
//! `tests/c/layout.c` asserts the same sizes and offsets of the headers.

use std::mem::offset_of;

use shared_abi::limits::MAX_COUNTERS;
use zerocopy::FromZeros;

/// `PERFCTR_ABI_VERSION`: API 5.2 in the high half, CPU 5.1 in the low half.
pub const ABI_VERSION: u32 = 0x0502_0501;
/// The bytes of a version that must be the same for two sides to be compatible.
pub const ABI_MAJORS: u32 = 0xff00_ff00;

/// `PERFCTR_FEATURE_RDPMC`.
pub const FEATURE_RDPMC: u32 = 0x01;
/// `PERFCTR_FEATURE_RDTSC`.
pub const FEATURE_RDTSC: u32 = 0x02;
/// `PERFCTR_FEATURE_PCINT`.
pub const FEATURE_PCINT: u32 = 0x04;

/// `VPERFCTR_CONTROL_CLOEXEC`.
pub const CONTROL_CLOEXEC: u32 = 0x01;
/// `VPERFCTR_OPEN_CREAT_EXCL`.
pub const OPEN_CREAT_EXCL: u32 = 3;

/// `struct perfctr_info`.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct Info {
    pub abi_version: u32,
    pub driver_version: [u8; 32],
    pub cpu_type: u32,
    pub cpu_features: u32,
    pub cpu_khz: u32,
    pub tsc_to_cpu_mult: u32,
    pub reserved: [u32; 3],
}

/// `struct perfctr_sum_ctrs`.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct SumCtrs {
    pub tsc: u64,
    pub pmc: [u64; MAX_COUNTERS],
}

/// `struct perfctr_cpu_control`.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct CpuControl {
    pub tsc_on: u32,
    pub nractrs: u32,
    pub nrictrs: u32,
    pub pmc_map: [u32; MAX_COUNTERS],
    pub evntsel: [u32; MAX_COUNTERS],
    /// The first member of the union that matters here. The others overlap it.
    pub evntsel_high: [u32; MAX_COUNTERS],
    /// The rest of the union.
    pub offcore_rsp: [u32; 2],
    pub ireset: [i32; MAX_COUNTERS],
    pub reserved: [u32; 4],
}

/// `struct vperfctr_control`.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct VperfctrControl {
    pub si_signo: i32,
    pub cpu_control: CpuControl,
    pub preserve: u32,
    pub flags: u32,
    pub reserved: [u32; 3],
}

/// `struct gperfctr_cpu_control`.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct GperfctrCpuControl {
    pub cpu: u32,
    pub cpu_control: CpuControl,
    pub reserved: [u32; 4],
}

/// `struct gperfctr_cpu_state`.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct GperfctrCpuState {
    pub cpu: u32,
    pub cpu_control: CpuControl,
    pub sum: SumCtrs,
    pub reserved: [u32; 4],
}

/// `struct perfctr_cpu_mask`, which `nrwords` words follow.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CpuMask {
    pub nrwords: u32,
    pub mask: [u32; 1],
}

/// `struct perfctr_cpus_info`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CpusInfo {
    pub cpus: *mut CpuMask,
    pub cpus_forbidden: *mut CpuMask,
}

const _: () = {
    assert!(size_of::<Info>() == 64);
    assert!(offset_of!(Info, driver_version) == 4);
    assert!(offset_of!(Info, cpu_type) == 36);
    assert!(offset_of!(Info, tsc_to_cpu_mult) == 48);
    assert!(size_of::<SumCtrs>() == 152);
    assert!(offset_of!(SumCtrs, pmc) == 8);
    assert!(size_of::<CpuControl>() == 324);
    assert!(offset_of!(CpuControl, pmc_map) == 12);
    assert!(offset_of!(CpuControl, evntsel) == 84);
    assert!(offset_of!(CpuControl, evntsel_high) == 156);
    assert!(offset_of!(CpuControl, offcore_rsp) == 228);
    assert!(offset_of!(CpuControl, ireset) == 236);
    assert!(offset_of!(CpuControl, reserved) == 308);
    assert!(size_of::<VperfctrControl>() == 348);
    assert!(offset_of!(VperfctrControl, cpu_control) == 4);
    assert!(offset_of!(VperfctrControl, preserve) == 328);
    assert!(offset_of!(VperfctrControl, flags) == 332);
    assert!(size_of::<GperfctrCpuControl>() == 344);
    assert!(size_of::<GperfctrCpuState>() == 496);
    assert!(offset_of!(GperfctrCpuState, sum) == 328);
    assert!(size_of::<CpuMask>() == 8);
    assert!(size_of::<CpusInfo>() == 16);
};
