// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What several of the driver's tests have in common.

use hv_driver::Identity;

/// Returns Intel's Nehalem, with four general counters of 48 bits. Its three fixed ones have 40, so
/// that no test takes one width for the other.
pub fn nehalem() -> Identity {
    let spelled = |text: &[u8; 4]| u32::from_le_bytes(*text);
    Identity {
        vendor: [spelled(b"Genu"), spelled(b"ineI"), spelled(b"ntel")],
        signature: 0x106a3,
        perfmon: [0x0730_0403, 0, 0, 3 | 40 << 5],
        ..Identity::NONE
    }
}
