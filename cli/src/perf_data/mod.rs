// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads and writes the files of Linux's perf, `perf.data`, for users who have tools for them.
//!
//! The kernel's header `perf_event.h` describes the records, and Linux's
//! `tools/perf/Documentation/perf.data-file-format.txt` describes the file that contains them. A
//! file that is read may have any contents, and may be another user's.
//!
//! The crate `linux-perf-data` also reads these files, and the tests compare its results with those
//! of this module. The command does not use it, because it trusts the lengths that a file states: a
//! few wrong bytes make it allocate any amount of memory, or panic.

mod input;
mod read;
pub mod stream;
mod tasks;
#[cfg(test)]
mod tests;
pub mod turns;
mod write;

use std::io::{Read, Seek};

use anyhow::{Context, Result};
use perf_event_open_sys::bindings as perf;

pub use self::input::Opened;
pub use self::read::read;
pub use self::write::{Mapped, encode};

/// The first bytes of a file.
const MAGIC: &[u8; 8] = b"PERFILE2";
/// The same bytes from a big-endian machine.
const MAGIC_SWAPPED: &[u8; 8] = b"2ELIFREP";
/// The same in the first version of the format, which perf left in 2012.
const MAGIC_OLD: &[u8; 8] = b"PERFFILE";

/// The length of the header. Unit: bytes.
const HEADER_BYTES: u64 = 104;
/// The length of a record's header. Unit: bytes.
const RECORD_BYTES: usize = 8;
/// The length of an entry that says where a section is. Unit: bytes.
const SECTION_BYTES: u64 = 16;

/// Flags of `perf_event_attr`, which are bits of one word.
mod flag {
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const FREQ: u64 = 1 << 10;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const CONTEXT_SWITCH: u64 = 1 << 26;
}

/// Sections behind the records, by their bits in the header.
mod feature {
    pub const BUILD_ID: u32 = 2;
    pub const HOSTNAME: u32 = 3;
    pub const OSRELEASE: u32 = 4;
    pub const ARCH: u32 = 6;
    pub const NRCPUS: u32 = 7;
    pub const CMDLINE: u32 = 11;
    pub const EVENT_DESC: u32 = 12;
    /// Says that samples have branches. The section is empty.
    pub const BRANCH_STACK: u32 = 15;
    pub const AUXTRACE: u32 = 18;
    pub const STAT: u32 = 19;
    pub const SAMPLE_TIME: u32 = 21;
    pub const COMPRESSED: u32 = 27;
    /// The section of `perfctr record --names`. perf leaves numbers out that it does not know.
    pub const NAMES: u32 = 63;
}

/// Records that perf itself adds to the kernel's.
mod user_record {
    pub const FINISHED_ROUND: u32 = 68;
    pub const AUXTRACE_INFO: u32 = 70;
    pub const AUXTRACE: u32 = 71;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
}

/// The length of the fields of a `PERF_RECORD_MMAP2` before its path. Unit: bytes.
const MAP_BYTES: usize = 64;
/// The length of a branch in a sample: both addresses, and what Linux says of it. Unit: bytes.
const BRANCH_BYTES: u64 = 24;
/// The length of a build-id in a file, and the flag by which a record says how much of it is used.
const BUILD_ID_BYTES: usize = 20;
const BUILD_ID_SIZED: u32 = 1 << 15;

/// The length of the bytes by which a file of perf's is recognised.
pub const MAGIC_BYTES: u64 = MAGIC.len() as u64;

/// Returns whether this is the beginning of a file of perf's.
pub fn is(bytes: &[u8]) -> bool {
    [MAGIC, MAGIC_SWAPPED, MAGIC_OLD].iter().any(|magic| bytes.starts_with(*magic))
}

/// Returns the section that perfctr adds to what `perfctr record --names` writes.
pub fn names_section<'a, F: Read + Seek>(opened: &'a Opened<'_, F>) -> Result<&'a [u8]> {
    let section = opened.features.get(&feature::NAMES).map(Vec::as_slice);
    section.context("no section of perfctr's found: another program wrote it, or it is incomplete")
}

/// Returns what is behind the fixed fields of a mapping's record: the path.
fn map_path(body: &[u8]) -> &[u8] {
    body.get(MAP_BYTES..).unwrap_or_default()
}
