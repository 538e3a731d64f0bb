// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! RDPMC's indices of the numbers that the emulator keeps about a physical CPU (`testbed/qemu`,
//! property `pmu-tally`).

/// The first number. The others follow in the order of the emulator's documentation.
pub const FIRST: u32 = 0x7461_6c79;
/// The instructions in ring 0.
pub const RING_0: u32 = FIRST;
/// The instructions outside ring 0.
pub const OUTSIDE_RING_0: u32 = FIRST + 1;
/// The interrupts that the CPU's counters have raised.
pub const RAISED: u32 = FIRST + 3;
/// The exits from guests. Bochs counts them, too.
pub const EXITS: u32 = FIRST + 7;
/// The address at which the last overflow outside the host's CPL 0 interrupted this CPU. It is 0 if
/// the overflow interrupted in that CPL, as one of a PV guest's SYSCALL does.
pub const PLACE: u32 = FIRST + 8;
/// Those of the instructions in ring 0 that a guest executed in a ring 0 of its own.
pub const GUESTS_RING_0: u32 = FIRST + 9;
