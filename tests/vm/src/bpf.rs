// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Loads a program of eBPF that reads the branches of each sample (`bpf_read_branch_records`).
#![expect(unsafe_code, reason = "system calls that take and give descriptors and memory")]

use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::branches::Branch;
use crate::perf::Event;

/// Commands of `bpf(2)`.
const MAP_CREATE: i64 = 0;
const MAP_LOOKUP: i64 = 1;
const PROGRAM_LOAD: i64 = 5;

const MAP_ARRAY: u32 = 2;
const PROGRAM_PERF_EVENT: u32 = 7;
/// The kernel's functions that a program may call.
const LOOKUP: i32 = 1;
const READ_BRANCH_RECORDS: i32 = 119;

/// The most branches of a sample, each of which has three words.
const BRANCHES: usize = 32;
const BRANCH_BYTES: usize = 24;

/// Where `struct bpf_perf_event_data` has the number of events that a sample stands for: behind the
/// registers.
const EVENTS_OF_SAMPLE: i16 = 21 * 8;

/// An element of the map. The first one has the number of samples in place of bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Element {
    /// How many bytes of branches the sample has, or an error.
    bytes: i64,
    /// The number of events that the sample stands for.
    events: u64,
    branches: [[u64; 3]; BRANCHES],
}

/// An instruction.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Insn {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn insn(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Insn {
    Insn { code, registers: to | from << 4, offset, immediate }
}

/// `to = from`, `to = number`, `to += number`.
const fn copy(to: u8, from: u8) -> Insn {
    insn(0xbf, to, from, 0, 0)
}
const fn set(to: u8, number: i32) -> Insn {
    insn(0xb7, to, 0, 0, number)
}
const fn add(to: u8, number: i32) -> Insn {
    insn(0x07, to, 0, 0, number)
}
/// Loads a register's 64 bits from an address, and stores them there.
const fn load(to: u8, at: u8, offset: i16) -> Insn {
    insn(0x79, to, at, offset, 0)
}
const fn store(at: u8, offset: i16, from: u8) -> Insn {
    insn(0x7b, at, from, offset, 0)
}
const fn call(function: i32) -> Insn {
    insn(0x85, 0, 0, 0, function)
}
const EXIT: Insn = insn(0x95, 0, 0, 0, 0);

/// The register that points to the end of the program's stack.
const STACK: u8 = 10;
/// Where on the stack the index of an element is.
const INDEX: i16 = -4;

/// Returns instructions that make register 7 point to the element of the map whose index is on the
/// stack, or end the program without a sample if there is none.
fn look_up(map: i32) -> [Insn; 9] {
    [
        insn(0x18, 1, 1, 0, map),
        insn(0, 0, 0, 0, 0),
        copy(2, STACK),
        add(2, INDEX.into()),
        call(LOOKUP),
        // If register 0 is not 0, the next two are left out.
        insn(0x55, 0, 0, 2, 0),
        set(0, 0),
        EXIT,
        copy(7, 0),
    ]
}

/// A program that keeps the branches of each sample of an event.
#[derive(Debug)]
pub struct BranchReader {
    map: OwnedFd,
    _program: OwnedFd,
}

impl BranchReader {
    /// Loads the program, for this many samples, and has the event call it in place of writing
    /// samples to its ring.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn attach(event: &Event, samples: usize) -> Result<Self> {
        let bytes = size_of::<Element>() as u32;
        let map = [MAP_ARRAY, size_of::<u32>() as u32, bytes, samples as u32 + 1, 0];
        let map = descriptor(MAP_CREATE, map.as_bytes()).context("there is no map")?;
        let descriptor_of_map = map.as_raw_fd();
        let program = [
            &[copy(6, 1), insn(0x62, STACK, 0, INDEX, 0)][..],
            &look_up(descriptor_of_map),
            // One sample more.
            &[load(8, 7, 0), add(8, 1), store(7, 0, 8), insn(0x63, STACK, 8, INDEX, 0)],
            &look_up(descriptor_of_map),
            &[load(8, 6, EVENTS_OF_SAMPLE), store(7, offset_of!(Element, events) as i16, 8)],
            &[copy(1, 6), copy(2, 7), add(2, offset_of!(Element, branches) as i32)],
            &[set(3, (BRANCHES * BRANCH_BYTES) as i32), set(4, 0), call(READ_BRANCH_RECORDS)],
            &[store(7, 0, 0), set(0, 0), EXIT],
        ]
        .concat();
        let mut words = [0_u64; 6];
        words[0] = u64::from(PROGRAM_PERF_EVENT) | (program.len() as u64) << 32;
        words[1] = program.as_ptr() as u64;
        words[2] = c"GPL".as_ptr() as u64;
        let program = descriptor(PROGRAM_LOAD, words.as_bytes()).context("no such program")?;
        event.call(&program)?;
        Ok(Self { map, _program: program })
    }

    /// Returns the number of samples.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn samples(&self) -> Result<usize> {
        Ok(self.element(0)?.bytes as usize)
    }

    /// Returns how many events a sample stands for, and its branches, the latest first. The first
    /// sample is number 1.
    ///
    /// # Errors
    ///
    /// There is no such sample, or the program got no branches.
    pub fn sample(&self, sample: usize) -> Result<(u64, Vec<Branch>)> {
        let element = self.element(sample)?;
        ensure!(element.bytes >= 0, "sample {sample}: {}", Errno::from_raw(-element.bytes as i32));
        let number = element.bytes as usize / BRANCH_BYTES;
        let branches = element.branches.iter().take(number).map(|&[from, to, _]| (from, to));
        Ok((element.events, branches.collect()))
    }

    fn element(&self, index: usize) -> Result<Element> {
        let index = index as u32;
        let mut element = Element { bytes: 0, events: 0, branches: [[0; 3]; BRANCHES] };
        let words =
            [self.map.as_raw_fd() as u64, (&raw const index) as u64, (&raw mut element) as u64, 0];
        bpf(MAP_LOOKUP, words.as_bytes())?;
        Ok(element)
    }
}

fn descriptor(command: i64, attributes: &[u8]) -> Result<OwnedFd, Errno> {
    let made = bpf(command, attributes)?;
    // SAFETY: the command has made a descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

fn bpf(command: i64, attributes: &[u8]) -> Result<i64, Errno> {
    let (at, bytes) = (attributes.as_ptr(), attributes.len());
    // SAFETY: what the attributes point to outlives the call: the kernel reads instructions, a text
    // and an index, and writes an element of the map's size.
    Errno::result(unsafe { libc::syscall(libc::SYS_bpf, command, at, bytes) })
}
