// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Writes a file of perf's while it is recorded: what the kernel has written, what was known of
//! processes before, and a section of perfctr's own behind that.

use std::collections::BTreeSet;
use std::io::{self, Seek, SeekFrom, Write};

use anyhow::Result;
use perfctr::watch::TurnsForm;

use super::input::{before_zero, in_file};
use super::turns::NO_CPU;
use super::write::{Bytes, Mapped};
use super::{HEADER_BYTES, MAGIC, SECTION_BYTES, feature, map_path, perf, user_record};

/// Where the length of the records is in the file, and behind it the bits of the sections.
const RECORDS_LENGTH_AT: u64 = 48;
const BITS_AT: u64 = 72;

/// What the kernel's records say beside what executes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The paths of files with code that were mapped.
    pub files: BTreeSet<Vec<u8>>,
    /// How many records were lost.
    pub lost: u64,
    /// The processes that have executed a program, and when. Unit: ns.
    pub executed: Vec<(u32, u64)>,
}

/// A file that is being written.
pub struct Stream<W> {
    file: W,
    /// The length of the records.
    bytes: u64,
}

impl<W: Write + Seek> Stream<W> {
    /// Writes what is before the records.
    pub fn new(mut file: W, form: &TurnsForm) -> io::Result<Self> {
        let attribute_bytes = u64::from(perf::PERF_ATTR_SIZE_VER5) + SECTION_BYTES;
        let mut head = Bytes::default();
        head.0.extend(MAGIC);
        head.u64(HEADER_BYTES).u64(attribute_bytes);
        head.u64(HEADER_BYTES).u64(attribute_bytes);
        head.u64(HEADER_BYTES + attribute_bytes).u64(0);
        head.u64(0).u64(0);
        head.u64(0).u64(0).u64(0).u64(0);
        let TurnsForm { kind, config, fields, flags, clock, .. } = *form;
        head.u32(kind).u32(perf::PERF_ATTR_SIZE_VER5).u64(config).u64(0);
        head.u64(fields).u64(0).u64(flags);
        // There are no breakpoints, branches, registers and stacks.
        head.0.resize(head.0.len() + 44, 0);
        head.u32(clock as u32).u64(0).u64(0);
        // There are no identifiers.
        head.u64(HEADER_BYTES).u64(0);
        file.write_all(&head.0)?;
        Ok(Self { file, bytes: 0 })
    }

    /// Adds records of the kernel's.
    pub fn add(&mut self, records: &[u8]) -> Result<Seen> {
        let mut seen = Seen::default();
        in_file(records, |record| {
            match record.kind {
                perf::PERF_RECORD_LOST => {
                    let lost = record.body.get(8..16).and_then(|word| word.try_into().ok());
                    seen.lost = seen.lost.saturating_add(lost.map_or(0, u64::from_le_bytes));
                }
                perf::PERF_RECORD_COMM if record.has(perf::PERF_RECORD_MISC_COMM_EXEC) => {
                    seen.executed.extend(executed(record.body));
                }
                perf::PERF_RECORD_MMAP2 => {
                    seen.files.insert(before_zero(map_path(record.body)).to_vec());
                }
                _ => {}
            }
            Ok(())
        })?;
        self.write(records)?;
        Ok(seen)
    }

    /// Ends a round, in which the rings of all CPUs were read.
    pub fn end_round(&mut self) -> Result<()> {
        self.write(&Bytes::default().record(user_record::FINISHED_ROUND, 0)?)?;
        Ok(())
    }

    /// Adds the name that a thread has at this time.
    pub fn name(&mut self, pid: u32, tid: u32, name: &[u8], time: u64) -> Result<()> {
        let mut body = Bytes::default();
        body.u32(pid).u32(tid).name(name, 8);
        let record = identified(&mut body, pid, tid, time).record(perf::PERF_RECORD_COMM, 0)?;
        Ok(self.write(&record)?)
    }

    /// Adds code that a process has mapped at this time.
    pub fn map(&mut self, map: &Mapped<'_>, time: u64) -> Result<()> {
        let mut body = Bytes::default();
        let misc = perf::PERF_RECORD_MISC_USER | body.map(map);
        let record =
            identified(&mut body, map.pid, map.pid, time).record(perf::PERF_RECORD_MMAP2, misc)?;
        Ok(self.write(&record)?)
    }

    /// Adds the control group in which a process is at this time, or an empty path if that is not
    /// known. perf's record of a group has the group's number and its path. Here the number is the
    /// process's.
    pub fn cgroup(&mut self, pid: u32, path: &[u8], time: u64) -> Result<()> {
        let mut body = Bytes::default();
        body.u64(pid.into()).name(path, 8);
        let record = identified(&mut body, pid, pid, time).record(perf::PERF_RECORD_CGROUP, 0)?;
        Ok(self.write(&record)?)
    }

    /// Ends the file with perfctr's own section, and returns it. Until now it has no records for
    /// readers.
    pub fn finish(mut self, section: &[u8]) -> io::Result<W> {
        let attribute_bytes = u64::from(perf::PERF_ATTR_SIZE_VER5) + SECTION_BYTES;
        let at = HEADER_BYTES + attribute_bytes + self.bytes + SECTION_BYTES;
        let mut table = Bytes::default();
        table.u64(at).u64(section.len() as u64);
        self.file.write_all(&table.0)?;
        self.file.write_all(section)?;
        self.file.seek(SeekFrom::Start(RECORDS_LENGTH_AT))?;
        self.file.write_all(&self.bytes.to_le_bytes())?;
        self.file.seek(SeekFrom::Start(BITS_AT))?;
        self.file.write_all(&(1_u64 << feature::NAMES).to_le_bytes())?;
        self.file.flush()?;
        Ok(self.file)
    }

    fn write(&mut self, records: &[u8]) -> io::Result<()> {
        self.bytes += records.len() as u64;
        self.file.write_all(records)
    }
}

/// Returns which process has executed a program by this record, and when.
fn executed(body: &[u8]) -> Option<(u32, u64)> {
    let time = body.len().checked_sub(IDENTIFIED_BYTES - 8)?;
    let time = u64::from_le_bytes(body.get(time..time + 8)?.try_into().ok()?);
    Some((u32::from_le_bytes(body.get(..4)?.try_into().ok()?), time))
}

/// How long the fields are that the kernel's records have at their end.
const IDENTIFIED_BYTES: usize = 24;

/// Adds these fields.
fn identified(body: &mut Bytes, pid: u32, tid: u32, time: u64) -> &mut Bytes {
    body.u32(pid).u32(tid).u64(time).u32(NO_CPU).u32(0)
}
