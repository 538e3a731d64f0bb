// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds out where the code of an executable file is.

use std::fs::File;
use std::path::Path;

use object::elf::PF_X;
use object::{Object, ObjectSegment, ReadCache, SegmentFlags};
use serde::{Deserialize, Serialize};
use shared_abi::limits::PAGE_BYTES;

/// Code in a file, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Segment {
    /// The first byte's offset in the file, a multiple of the page size.
    pub offset: u64,
    /// Unit: bytes.
    pub size: u64,
    /// The first byte's address as the file states it.
    pub address: u64,
}

/// What a file says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The linker's identification of the file's contents, in hexadecimal digits.
    pub build_id: Option<String>,
    /// Where its code is.
    pub code: Vec<Segment>,
}

impl Facts {
    pub fn of<'data>(file: &impl Object<'data>) -> Self {
        Self { build_id: build_id(file), code: code(file) }
    }

    /// Reads a file. One that cannot be read says nothing.
    pub fn read(path: &Path) -> Self {
        let Ok(file) = File::open(path) else { return Self::default() };
        let cache = ReadCache::new(file);
        object::File::parse(&cache).map_or_else(|_| Self::default(), |file| Self::of(&file))
    }
}

/// Returns a file's build identification in hexadecimal digits.
pub fn build_id<'data>(file: &impl Object<'data>) -> Option<String> {
    let bytes = file.build_id().ok()??;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn code<'data>(file: &impl Object<'data>) -> Vec<Segment> {
    let executable = |flags| matches!(flags, SegmentFlags::Elf { p_flags } if p_flags & PF_X != 0);
    let mut code = Vec::new();
    for segment in file.segments().filter(|segment| executable(segment.flags())) {
        let (offset, size) = segment.file_range();
        let before = offset % PAGE_BYTES as u64;
        let address = segment.address().wrapping_sub(before);
        code.push(Segment { offset: offset - before, size: size.saturating_add(before), address });
    }
    code
}

/// Returns the address that the file states for its byte at this offset, if that is code.
pub fn address(code: &[Segment], offset: u64) -> Option<u64> {
    code.iter().find_map(|segment| {
        let into = offset.checked_sub(segment.offset).filter(|&into| into < segment.size)?;
        Some(segment.address.wrapping_add(into))
    })
}
