// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Memory that forked processes share.
#![expect(unsafe_code, reason = "mappings are pointers")]

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicU64;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use shared_abi::limits::PAGE_BYTES;

/// The number of words in a page.
const WORDS: usize = PAGE_BYTES / size_of::<u64>();

/// Returns words that this process and those that it forks share, for as long as it lives.
///
/// # Errors
///
/// There is no memory.
pub fn words() -> nix::Result<&'static [AtomicU64; WORDS]> {
    let bytes = NonZeroUsize::new(PAGE_BYTES).expect("a page is not empty");
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let start = unsafe { mmap_anonymous(None, bytes, access, MapFlags::MAP_SHARED)? };
    // SAFETY: this is a page of zeros that is never unmapped, and it is only used as atomics.
    Ok(unsafe { start.cast().as_ref() })
}
