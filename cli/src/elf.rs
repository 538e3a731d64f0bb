// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds the code in an executable file.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use addr2line::demangle_auto;
use anyhow::{Context, Result, ensure};
use object::elf::PF_X;
use object::read::ReadCacheOps;
use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SegmentFlags};
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

/// Facts that a file states about itself.
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

    /// Reads a file. If it cannot be read, there are no facts.
    pub fn read(path: &Path) -> Self {
        File::open(path).map_or_else(|_| Self::default(), |file| Self::parse(ReadCache::new(file)))
    }

    /// Reads a file that a process has mapped. There are no facts where [`Mapped::open`] returns
    /// nothing.
    pub fn of_mapped(path: &Path) -> Self {
        let file = Mapped::open(path);
        file.map_or_else(Self::default, |file| Self::parse(ReadCache::new(file)))
    }

    fn parse(cache: ReadCache<impl ReadCacheOps>) -> Self {
        object::File::parse(&cache).map_or_else(|_| Self::default(), |file| Self::of(&file))
    }
}

/// A file that a process has mapped, or that somebody has put into its place since. Its owner may
/// be an enemy of the reader: a file takes no disk space where nothing was written to it, and so
/// may have any size.
pub struct Mapped {
    file: File,
    /// The size when it was opened. Unit: bytes.
    size: u64,
    /// How much more is read. Unit: bytes.
    left: u64,
}

/// The size of the largest mapped file that is read, and how much is read of it if it says that the
/// same bytes are several things. Debian's programs and libraries are smaller. Unit: bytes.
const MAPPED_MAX: u64 = 256 << 20;

impl Mapped {
    /// Opens it. Returns `None` if there is no ordinary file at this path, or one of more than
    /// [`MAPPED_MAX`] bytes. This neither waits for the other end of a pipe nor lets a device
    /// notice it: it is known what the file is before it is opened for reading.
    pub fn open(path: &Path) -> Option<Self> {
        let place = libc::O_PATH | libc::O_NOFOLLOW;
        let place = OpenOptions::new().read(true).custom_flags(place).open(path).ok()?;
        let facts = place.metadata().ok().filter(|facts| facts.is_file())?;
        let size = facts.len();
        let file = File::open(format!("/proc/self/fd/{}", place.as_raw_fd())).ok()?;
        (size <= MAPPED_MAX).then_some(Self { file, size, left: MAPPED_MAX })
    }

    /// Reads all of it, as far as it had come when it was opened.
    pub fn bytes(self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file.take(self.size).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }
}

impl ReadCacheOps for Mapped {
    fn len(&mut self) -> Result<u64, ()> {
        Ok(self.size)
    }

    fn seek(&mut self, pos: u64) -> Result<u64, ()> {
        ReadCacheOps::seek(&mut self.file, pos)
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, ()> {
        self.left = self.left.checked_sub(buf.len() as u64).ok_or(())?;
        ReadCacheOps::read(&mut self.file, buf)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), ()> {
        self.left = self.left.checked_sub(buf.len() as u64).ok_or(())?;
        ReadCacheOps::read_exact(&mut self.file, buf)
    }
}

/// Returns a file's build identification in hexadecimal digits.
pub fn build_id<'data>(file: &impl Object<'data>) -> Option<String> {
    Some(to_hex(file.build_id().ok()??))
}

/// Returns bytes as hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes for which hexadecimal digits stand, or `None` if the text has anything else.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
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

/// Returns the address that the file states for its byte at this offset, if the byte is code.
pub fn address(code: &[Segment], offset: u64) -> Option<u64> {
    code.iter().find_map(|segment| {
        let into = offset.checked_sub(segment.offset).filter(|&into| into < segment.size)?;
        Some(segment.address.wrapping_add(into))
    })
}

/// Where a file has functions, by the addresses that the file states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Functions {
    /// The address of each function, if the file has it.
    pub addresses: Vec<Option<u64>>,
    /// The address at which the program begins.
    pub entry: u64,
}

/// Finds functions by their names, as the file has them or demangled. A program of 32 bits has none
/// that could be counted.
///
/// # Errors
///
/// The file is no program, or has several functions of one name.
pub fn functions(bytes: &[u8], names: &[&str]) -> Result<Functions> {
    let file = object::File::parse(bytes).context("this is no program")?;
    let code = code(&file);
    let is_code = |address: u64| {
        code.iter().any(|part| address.checked_sub(part.address).is_some_and(|at| at < part.size))
    };
    let mut addresses = vec![None; names.len()];
    for symbol in file.symbols().chain(file.dynamic_symbols()).filter(|_| file.is_64()) {
        let (Ok(raw), address) = (symbol.name(), symbol.address()) else { continue };
        if symbol.is_undefined() || raw.is_empty() || !is_code(address) {
            continue;
        }
        let demangled = demangle_auto(raw.into(), None);
        for (name, known) in names.iter().zip(&mut addresses) {
            if *name == raw || *name == demangled {
                ensure!(
                    known.is_none_or(|known| known == address),
                    "there are several functions {name:?}; the linker's names tell them apart"
                );
                *known = Some(address);
            }
        }
    }
    Ok(Functions { addresses, entry: file.entry() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_both_of_their_names() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let [first, second] = ["functions_are_found_by_both_of_their_names", "file"]
            .map(|name| format!("{}::{name}", module_path!()));
        // C's main has no other name than the linker's.
        let names = [&*first, &second, "main", "no such function"];
        let found = functions(&bytes, &names).unwrap();
        let here = [functions_are_found_by_both_of_their_names as *const (), file as *const ()];
        let moved = |n: usize| (here[n] as u64).wrapping_sub(found.addresses[n].unwrap_or(0));
        assert_eq!(moved(0), moved(1), "{found:x?}");
        assert!(found.addresses[2].is_some());
        assert_eq!(found.addresses[3], None);
        assert!(functions(b"#!/bin/sh", &names).is_err(), "a script is no program");
    }

    #[test]
    fn of_several_functions_with_one_name_none_is_taken() {
        let folder = std::env::temp_dir().join(format!("perfctr-twins-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let sources = ["first", "second"].map(|name| folder.join(format!("{name}.c")));
        for (path, public) in sources.iter().zip(["main", "other"]) {
            let twin = "__attribute__((noinline)) static int twin(void) { return 0; }";
            std::fs::write(path, format!("{twin}\nint {public}(void) {{ return twin(); }}\n"))
                .unwrap();
        }
        let program = folder.join("program");
        let mut compiler = std::process::Command::new("cc");
        let status = compiler.arg("-o").arg(&program).args(&sources).status().unwrap();
        assert!(status.success());
        let bytes = std::fs::read(&program).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let error = functions(&bytes, &["main", "twin"]).unwrap_err().to_string();
        assert!(error.starts_with("there are several functions \"twin\""), "{error}");
        let found = functions(&bytes, &["main", "other"]).unwrap().addresses;
        assert!(found[0].is_some() && found[1].is_some() && found[0] != found[1], "{found:x?}");
    }

    #[test]
    fn a_mapped_file_may_have_become_anything() {
        let folder = std::env::temp_dir().join(format!("perfctr-mapped-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        let size = |path: &Path| Mapped::open(path).map(|file| file.bytes().unwrap().len() as u64);
        std::fs::write(&path, "text").unwrap();
        assert_eq!(size(&path), Some(4));
        assert_eq!(Facts::of_mapped(&path), Facts::default());

        // Nothing of it was written, and its size is all that is read.
        let file = File::create(&path).unwrap();
        file.set_len(MAPPED_MAX + 1).unwrap();
        assert_eq!(size(&path), None);
        file.set_len(8).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        file.set_len(MAPPED_MAX).unwrap();
        assert_eq!(mapped.bytes().unwrap(), [0; 8], "it has grown since");
        let mut mapped = Mapped::open(&path).unwrap();
        assert_eq!(ReadCacheOps::len(&mut mapped), Ok(MAPPED_MAX));
        mapped.left = 7;
        assert_eq!(ReadCacheOps::read_exact(&mut mapped, &mut [1; 4]), Ok(()));
        assert_eq!(ReadCacheOps::read_exact(&mut mapped, &mut [1; 4]), Err(()));
        assert_eq!(ReadCacheOps::read(&mut mapped, &mut [1; 4]), Err(()));

        let [link, pipe, gone] = ["link", "pipe", "gone"].map(|name| folder.join(name));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for other in [&link, &pipe, &gone, &folder] {
            assert_eq!(size(other), None, "{}", other.display());
            assert_eq!(Facts::of_mapped(other), Facts::default());
        }
        let this = std::env::current_exe().unwrap();
        assert!(Facts::of_mapped(&this).build_id.is_some());
        assert_eq!(Facts::of_mapped(&this), Facts::read(&this));
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// Makes an executable file of headers alone, with these segments: whether it is code, its
    /// first byte's offset in the file, its address, and its size.
    fn file(segments: &[(bool, u64, u64, u64)]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        let (executable, x86_64, headers) = (2_u16, 62_u16, 64_u64);
        bytes.extend([executable, x86_64].map(u16::to_le_bytes).as_flattened());
        bytes.extend([1, 0, 0, 0]);
        bytes.extend([0, headers, 0].map(u64::to_le_bytes).as_flattened());
        bytes.extend([0; 4]);
        let count = u16::try_from(segments.len()).unwrap();
        bytes.extend([64, 56, count, 0, 0, 0].map(u16::to_le_bytes).as_flattened());
        for &(is_code, offset, address, size) in segments {
            let (load, readable) = (1_u32, 4);
            let flags = if is_code { readable | PF_X } else { readable };
            bytes.extend([load, flags].map(u32::to_le_bytes).as_flattened());
            let rest = [offset, address, address, size, size, PAGE_BYTES as u64];
            bytes.extend(rest.map(u64::to_le_bytes).as_flattened());
        }
        bytes
    }

    #[test]
    fn code_that_begins_within_a_page_is_known_from_the_pages_first_byte_on() {
        let data = (false, 0, 0x20_0000, 0x4_7650);
        let bytes =
            file(&[data, (true, 0x4_7650, 0x24_8650, 0x1234), (true, 0x9000, 0x30_0000, 5)]);
        let code = Facts::of(&object::File::parse(&bytes[..]).unwrap()).code;
        let segment = |offset, size, address| Segment { offset, size, address };
        let expected = [segment(0x4_7000, 0x1884, 0x24_8000), segment(0x9000, 5, 0x30_0000)];
        assert_eq!(code, expected, "{code:#x?}");
        for (offset, expected) in [
            (0x4_6fff, None),
            (0x4_7000, Some(0x24_8000)),
            (0x4_7650, Some(0x24_8650)),
            (0x4_8883, Some(0x24_9883)),
            (0x4_8884, None),
            (0x9004, Some(0x30_0004)),
            (0x9005, None),
        ] {
            let found = address(&code, offset);
            assert_eq!(found, expected, "the byte at offset {offset:#x}, code is {code:#x?}");
        }
    }
}
