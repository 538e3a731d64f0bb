// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Records which threads execute when, and which programs and files they execute, without taking
//! samples: a host that samples this machine as one of its domains can name them then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::BufWriter;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use libc::pid_t;
use perfctr::watch::Turns;

use super::space::mappings;
use crate::elf::Facts;
use crate::guest::about::About;
use crate::guest::clock::{EachCpu, Moment};
use crate::perf_data::Mapped;
use crate::perf_data::stream::Stream;
use crate::profile::Place;
use crate::program::beside::{self, Beside};
use crate::program::{self, Signals, Target, processes, threads};
use crate::text::{counted, print_note};

/// After records were lost, the state of all processes is read anew, but not more often than this.
const ANEW_EACH: Duration = Duration::from_secs(1);
/// The control groups of all processes are read anew after this time. The kernel does not report
/// moves of processes from one group to another. Who starts a program in a group usually moves the
/// process there before it executes the program, and then the group is read, too.
const GROUPS_EACH: Duration = Duration::from_secs(10);
/// The time of what was there before the first record.
const BEFORE: u64 = 0;

/// Records until the command ends, if there is one, or until an interrupt. Returns the exit status
/// of the command.
pub fn run(target: Target<'_>, place: &Place, signals: &Signals) -> Result<u8> {
    let (command, _) = target.parts();
    let mut recording = Recording::new(place)?;
    let (status, _) = beside::run(command, None, signals, &mut recording)?;
    recording.finish()?;
    Ok(status)
}

struct Recording<'a> {
    turns: Turns,
    stream: Stream<BufWriter<&'a File>>,
    /// `None` before the recording begins.
    moments: Option<EachCpu>,
    /// The files with code that were mapped.
    files: BTreeSet<Vec<u8>>,
    build_ids: HashMap<Vec<u8>, Option<String>>,
    lost: u64,
    /// Whether records were lost since the state of all processes was read.
    is_old: bool,
    read: Instant,
    /// When the control groups of all processes were read.
    groups_read: Instant,
}

impl<'a> Recording<'a> {
    fn new(place: &'a Place) -> Result<Self> {
        let turns = Turns::open()?;
        let stream = Stream::new(BufWriter::new(place.begin()?), &turns.form())?;
        let now = Instant::now();
        Ok(Self {
            turns,
            stream,
            moments: None,
            files: BTreeSet::new(),
            build_ids: HashMap::new(),
            lost: 0,
            is_old: false,
            read: now,
            groups_read: now,
        })
    }

    /// Takes what the kernel has written.
    fn take(&mut self) -> Result<()> {
        let mut executed = Vec::new();
        for records in self.turns.take() {
            let mut seen = self.stream.add(&records)?;
            self.files.append(&mut seen.files);
            self.lost = self.lost.saturating_add(seen.lost);
            self.is_old |= seen.lost > 0;
            executed.append(&mut seen.executed);
        }
        for (pid, time) in executed {
            self.add_group(pid, time)?;
        }
        if self.is_old && self.read.elapsed() >= ANEW_EACH {
            (self.is_old, self.read) = (false, Instant::now());
            self.add_all(Moment::now(1)?.ns)?;
        }
        self.stream.end_round()
    }

    /// Adds the names and mappings of all threads, as they are at this time.
    fn add_all(&mut self, time: u64) -> Result<()> {
        for pid in processes()? {
            // A process may end at any moment.
            let number = pid.cast_unsigned();
            self.add_group(number, time)?;
            for tid in threads(pid).unwrap_or_default() {
                if let Ok(name) = fs::read(format!("/proc/{pid}/task/{tid}/comm")) {
                    let name = name.strip_suffix(b"\n").unwrap_or(&name);
                    self.stream.name(number, tid.cast_unsigned(), name, time)?;
                }
            }
            for map in mappings(number).unwrap_or_default() {
                let path = map.path.as_bytes();
                let build_id = self.build_ids.entry(path.to_vec());
                let build_id =
                    build_id.or_insert_with(|| Facts::of_mapped(Path::new(&map.path)).build_id);
                let size = map.addresses.end - map.addresses.start;
                let (start, offset) = (map.addresses.start, map.offset);
                let build_id = build_id.as_deref();
                let map = Mapped { pid: number, start, size, offset, path, build_id };
                self.stream.map(&map, time)?;
                self.files.insert(path.to_vec());
            }
        }
        Ok(())
    }

    /// Adds the control group of a process. If the process has ended, the group is not known.
    fn add_group(&mut self, pid: u32, time: u64) -> Result<()> {
        self.stream.cgroup(pid, program::cgroup(pid.cast_signed()).as_bytes(), time)
    }

    /// Adds the control groups of all processes, if they were read long ago.
    fn read_groups_anew(&mut self) -> Result<()> {
        if self.groups_read.elapsed() < GROUPS_EACH {
            return Ok(());
        }
        for pid in processes()? {
            let group = program::cgroup(pid);
            // A process that has ended meanwhile was in the group that is known.
            if !group.is_empty() {
                let time = Moment::now(1)?.ns;
                self.stream.cgroup(pid.cast_unsigned(), group.as_bytes(), time)?;
            }
        }
        self.groups_read = Instant::now();
        Ok(())
    }

    /// Ends the recording, and adds the functions of all files and of the kernel.
    fn finish(mut self) -> Result<()> {
        let moments = self.moments.as_ref().map_or(Ok(BTreeMap::new()), EachCpu::until_now)?;
        self.take()?;
        if self.lost > 0 {
            let lost = counted(self.lost, "record");
            print_note(format_args!("lost {lost}: they came faster than they were read"));
        }
        let about = About::this(moments, &self.files);
        self.stream.finish(&serde_json::to_vec(&about)?)?;
        Ok(())
    }
}

impl Beside for Recording<'_> {
    fn begin(&mut self, _: Option<pid_t>) -> Result<()> {
        self.add_all(BEFORE)?;
        self.moments = Some(EachCpu::begin()?);
        self.take()
    }

    fn tick(&mut self) -> Result<()> {
        self.moments.as_mut().map_or(Ok(()), EachCpu::tick)?;
        self.read_groups_anew()?;
        self.take()
    }
}
