// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Which programs processes execute, and which files they have mapped, while records are read.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use perfctr_gate::text::harmless;

use super::input::{Input, Record, before_zero, text};
use super::{BUILD_ID_BYTES, perf};
use crate::elf::{self, to_hex};
use crate::profile::Module;

/// The most mappings that all processes have had together. A process that is started has its
/// parent's mappings, so without this limit a short file could have any number of them.
const MAPS_MAX: usize = 1 << 24;
/// The longest path of a group of processes, which is Linux's limit (`PATH_MAX`). Unit: bytes.
const GROUP_MAX: usize = 4096;

/// The code at some addresses of a process.
#[derive(Clone, Copy)]
pub struct Map {
    pub end: u64,
    pub offset: u64,
    /// Index of the file, if there is one.
    pub file: Option<usize>,
}

/// The memory of a process, by first addresses. It is shared until it changes.
type Space = Rc<BTreeMap<u64, Map>>;

/// Finds out what is known about a file by its path, and by the build-id that a record has.
type Describe<'a> = Box<dyn Fn(&OsStr, Option<String>) -> Module + 'a>;

/// All processes, as they were when the last record was written.
pub struct Tasks<'a> {
    spaces: HashMap<u32, Space>,
    /// The number of mappings that they have had.
    maps: usize,
    names: HashMap<u32, String>,
    /// The control group of each process of which it is known.
    groups: HashMap<u32, Arc<str>>,
    /// The files that are mapped.
    pub files: Vec<Module>,
    places: HashMap<(Vec<u8>, Option<String>), usize>,
    describe: Describe<'a>,
}

impl<'a> Tasks<'a> {
    pub fn new(describe: impl Fn(&OsStr, Option<String>) -> Module + 'a) -> Self {
        Self {
            spaces: HashMap::new(),
            maps: 0,
            names: HashMap::new(),
            groups: HashMap::new(),
            files: Vec::new(),
            places: HashMap::new(),
            describe: Box::new(describe),
        }
    }

    /// Takes one of the records that say something about processes. All others are left out.
    pub fn take(&mut self, record: &Record<'_>) -> Result<()> {
        match record.kind {
            perf::PERF_RECORD_COMM => self.rename(record),
            perf::PERF_RECORD_FORK => self.fork(record),
            perf::PERF_RECORD_MMAP | perf::PERF_RECORD_MMAP2 => self.map(record),
            _ => Ok(()),
        }
    }

    /// Forgets all processes, because records about them were lost.
    pub fn forget(&mut self) {
        self.spaces.clear();
        self.names.clear();
        self.groups.clear();
    }

    /// Returns the name of a thread, which is empty if it is not known.
    pub fn name(&self, tid: u32) -> &str {
        self.names.get(&tid).map_or("", |name| name)
    }

    /// Returns the control group of a process, which is empty if it is not known.
    pub fn group(&self, pid: u32) -> Arc<str> {
        self.groups.get(&pid).cloned().unwrap_or_default()
    }

    /// Takes a record that says in which control group a process is, as `perfctr record --names`
    /// writes it. A path that is longer than Linux's can be is not known.
    pub fn take_cgroup(&mut self, record: &Record<'_>) -> Result<()> {
        let mut input = Input(record.body);
        let pid = input.u64()? as u32;
        let path = before_zero(input.0);
        let path = if path.len() < GROUP_MAX { text(path) } else { String::new() };
        self.groups.insert(pid, harmless(&path).into());
        Ok(())
    }

    /// Returns the index of the file that a process has mapped at this address, and the address as
    /// the file states it. If it is not known where the file has its code, that is the offset in
    /// the file.
    pub fn code(&self, pid: u32, at: u64) -> Option<(usize, u64)> {
        let (start, map) = self.spaces.get(&pid)?.range(..=at).next_back()?;
        let file = map.file.filter(|_| at < map.end)?;
        let offset = map.offset.wrapping_add(at - start);
        Some((file, elf::address(&self.files[file].code, offset).unwrap_or(offset)))
    }

    fn rename(&mut self, record: &Record<'_>) -> Result<()> {
        let mut input = Input(record.body);
        let (pid, tid) = (input.u32()?, input.u32()?);
        self.names.insert(tid, harmless(&text(input.0)));
        if record.has(perf::PERF_RECORD_MISC_COMM_EXEC) {
            // The process executes another program, whose files are not mapped yet.
            self.spaces.remove(&pid);
        }
        Ok(())
    }

    fn fork(&mut self, record: &Record<'_>) -> Result<()> {
        let mut input = Input(record.body);
        let [pid, parent, tid, starter] = [input.u32()?, input.u32()?, input.u32()?, input.u32()?];
        if let Some(name) = self.names.get(&starter) {
            self.names.insert(tid, name.clone());
        }
        if pid != parent {
            let space = self.spaces.get(&parent).cloned().unwrap_or_default();
            self.spaces.insert(pid, space);
            self.groups.insert(pid, self.group(parent));
        }
        Ok(())
    }

    fn map(&mut self, record: &Record<'_>) -> Result<()> {
        let mut input = Input(record.body);
        let (pid, _) = (input.u32()?, input.u32()?);
        let (start, length, offset) = (input.u64()?, input.u64()?, input.u64()?);
        let (mut executable, mut id) = (!record.has(perf::PERF_RECORD_MISC_MMAP_DATA), None);
        if record.kind == perf::PERF_RECORD_MMAP2 {
            // These bytes are the file's build-id, or its device, inode and generation.
            let mut file = Input(input.take(24)?);
            if record.has(perf::PERF_RECORD_MISC_MMAP_BUILD_ID) {
                let length = file.u32()? & 0xff;
                id = Some(to_hex(file.take(length.min(BUILD_ID_BYTES as u32).into())?));
            }
            executable = input.u32()? & libc::PROT_EXEC as u32 != 0;
            input.u32()?;
        }
        // The kernel's own code belongs to no process.
        let Some(end) = start.checked_add(length) else { bail!("{length} bytes at {start:#x}") };
        if pid == u32::MAX || !executable || length == 0 {
            return Ok(());
        }
        let file = self.file(before_zero(input.0), id);
        let space = self.spaces.entry(pid).or_default();
        self.maps += 1 + if Rc::strong_count(space) > 1 { space.len() } else { 0 };
        ensure!(self.maps <= MAPS_MAX, "more than {MAPS_MAX} mappings found");
        replace(Rc::make_mut(space), start, Map { end, offset, file });
        Ok(())
    }

    /// Returns the index of a file, or `None` for memory without one.
    fn file(&mut self, path: &[u8], id: Option<String>) -> Option<usize> {
        let is_memory = path.is_empty()
            || [&b"//anon"[..], b"/dev/zero", b"/anon_hugepage", b"/memfd:", b"/SYSV", b"[heap]"]
                .iter()
                .any(|name| path.starts_with(name));
        if is_memory {
            return None;
        }
        let key = (path.to_vec(), id);
        if let Some(&place) = self.places.get(&key) {
            return Some(place);
        }
        self.files.push((self.describe)(OsStr::from_bytes(path), key.1.clone()));
        self.places.insert(key, self.files.len() - 1);
        Some(self.files.len() - 1)
    }
}

/// Puts a mapping where others may have been, of which the rest stays.
pub fn replace(space: &mut BTreeMap<u64, Map>, start: u64, map: Map) {
    let under = space.range(..map.end).rev().take_while(|(_, under)| under.end > start);
    let under: Vec<(u64, Map)> = under.map(|(&first, &under)| (first, under)).collect();
    for (first, old) in under {
        space.remove(&first);
        if first < start {
            space.insert(first, Map { end: start, ..old });
        }
        if old.end > map.end {
            let offset = old.offset.wrapping_add(map.end - first);
            space.insert(map.end, Map { offset, ..old });
        }
    }
    space.insert(start, map);
}
