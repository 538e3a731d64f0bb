// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds the code at the addresses of a process, and which functions have called which.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, MayAllocateDuringUnwind, Unwinder};
use libc::user_regs_struct;
use object::{Object, ObjectSection, ReadCache};
use shared_abi::arch::is_kernels_address;

use super::compiled::{Compiled, is_dump};
use crate::elf::{self, Facts};
use crate::host::Kernel;
use crate::profile::{DEPTH_MAX, Frame, Layer, Module};

/// The bytes of a stack that are read at once. Unit: bytes.
const STACK_BYTES: usize = 32 << 10;

/// A section's contents.
type Data = Arc<[u8]>;

/// The memory of one process.
pub struct Space {
    process: u32,
    /// The process's memory, if its stack is to be read.
    memory: Option<File>,
    maps: Vec<Map>,
    /// How often anonymous memory was executed of which no compiler had reported anything.
    unreported: u32,
    unwinder: UnwinderX86_64<Data>,
    cache: CacheX86_64<MayAllocateDuringUnwind>,
}

/// Memory that may be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    pub addresses: Range<u64>,
    /// Its offset in the file.
    pub offset: u64,
    /// The file, or the kernel's name of this memory. It is empty if there is neither.
    pub path: OsString,
}

impl Space {
    /// Returns the memory of a process.
    ///
    /// # Errors
    ///
    /// The kernel's error: `ENOENT` or `ESRCH` if the process has ended.
    pub fn of(process: u32) -> io::Result<Self> {
        let memory = Some(File::open(format!("/proc/{process}/mem"))?);
        Ok(Self { memory, ..Self::unstopped(process) })
    }

    /// Returns the memory of a process that is not stopped, so that its stack cannot be read.
    pub fn unstopped(process: u32) -> Self {
        Self {
            process,
            memory: None,
            maps: Vec::new(),
            unreported: 0,
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
        }
    }

    /// Returns whether the mappings at all of these addresses are known. The kernel's are.
    pub fn knows(&self, addresses: &[u64]) -> bool {
        addresses.iter().all(|&address| is_kernels_address(address) || self.map(address).is_some())
    }

    /// Returns the places of these addresses, as far as they are known.
    pub fn frames(&mut self, files: &mut Files, addresses: &[u64]) -> Vec<Frame> {
        let addresses = addresses.iter().take(DEPTH_MAX);
        addresses.map(|&address| self.frame(files, address)).collect()
    }

    /// Returns the place of a stopped thread, and then its callers if they are wanted, the
    /// innermost first.
    pub fn stack(
        &mut self,
        files: &mut Files,
        registers: &user_regs_struct,
        callers: bool,
    ) -> Vec<Frame> {
        let ip = registers.rip;
        if self.map(ip).is_none() {
            self.look(files);
        }
        let mut addresses = vec![ip];
        if callers {
            self.unwind(registers, &mut addresses);
            // A file may have been loaded since.
            if !self.knows(&addresses) && self.look(files) {
                addresses.truncate(1);
                self.unwind(registers, &mut addresses);
            }
        }
        addresses.into_iter().map(|address| self.frame(files, address)).collect()
    }

    /// Adds the addresses of the calls.
    fn unwind(&mut self, registers: &user_regs_struct, addresses: &mut Vec<u64>) {
        let Some(memory) = &self.memory else { return };
        let user_regs_struct { rip, rsp, rbp, .. } = *registers;
        let mut near = vec![0; STACK_BYTES];
        let length = memory.read_at(&mut near, rsp).unwrap_or(0);
        near.truncate(length);
        let mut read = |address: u64| {
            let offset = usize::try_from(address.wrapping_sub(rsp)).map_err(drop)?;
            let mut word = [0; 8];
            match offset.checked_add(word.len()).and_then(|end| near.get(offset..end)) {
                Some(bytes) => word.copy_from_slice(bytes),
                None => memory.read_exact_at(&mut word, address).map_err(drop)?,
            }
            Ok(u64::from_le_bytes(word))
        };
        let registers = UnwindRegsX86_64::new(rip, rsp, rbp);
        let mut frames = self.unwinder.iter_frames(rip, registers, &mut self.cache, &mut read);
        // The first frame is the thread's own. Unwinding ends at code of which nothing is known.
        let _ = frames.next();
        while let Ok(Some(frame)) = frames.next() {
            // The outermost callers are left out.
            if addresses.len() >= DEPTH_MAX {
                break;
            }
            addresses.push(frame.address_for_lookup());
        }
    }

    fn map(&self, address: u64) -> Option<&Map> {
        self.maps.iter().find(|map| map.addresses.contains(&address))
    }

    /// Reads the present mappings. Returns whether anything has changed.
    pub fn look(&mut self, files: &mut Files) -> bool {
        let maps = mappings(self.process).unwrap_or_default();
        if maps.is_empty() || maps == self.maps {
            return false;
        }
        // The program itself comes first.
        if let Ok(path) = fs::read_link(format!("/proc/{}/exe", self.process)) {
            files.of(path.as_os_str());
        }
        self.unwinder = UnwinderX86_64::new();
        for map in &maps {
            if is_dump(&map.path) {
                files.dumps(self.process, &map.path);
            }
            let file = files.of(&map.path);
            if let Some(address) = file.address(map.offset) {
                self.unwinder.add_module(framehop::Module::new(
                    map.path.to_string_lossy().into_owned(),
                    map.addresses.clone(),
                    map.addresses.start.wrapping_sub(address),
                    file.sections.clone(),
                ));
            }
        }
        self.maps = maps;
        true
    }

    /// Returns the index of the code that the process has compiled, if it executes that at this
    /// address of anonymous memory. The process may have mapped its dump after that memory. So the
    /// mappings are read again, but ever more seldom, since most such memory has no dump.
    fn compiled(&mut self, files: &mut Files, address: u64) -> Option<u32> {
        files.compiled(self.process, address).or_else(|| {
            self.unreported = self.unreported.wrapping_add(1);
            let is_new = self.unreported.is_power_of_two() && self.look(files);
            if is_new { files.compiled(self.process, address) } else { None }
        })
    }

    fn frame(&mut self, files: &mut Files, address: u64) -> Frame {
        let map = self.map(address);
        if !map.is_some_and(Map::is_anonymous) {
            return place(files, map, address);
        }
        match self.compiled(files, address) {
            Some(module) => Frame { module: Some(module), address },
            // The mappings may have been read again.
            None => place(files, self.map(address), address),
        }
    }
}

/// Returns the memory of a process that may be executed.
///
/// # Errors
///
/// The kernel's error, if the process has ended.
pub fn mappings(process: u32) -> io::Result<Vec<Map>> {
    let text = fs::read(format!("/proc/{process}/maps"))?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(Map::parse).collect())
}

/// Returns the place of an address in the file that is mapped there, or in the kernel.
fn place(files: &mut Files, map: Option<&Map>, address: u64) -> Frame {
    let Some(map) = map.filter(|map| !map.path.is_empty()) else {
        let is_kernels = map.is_none() && is_kernels_address(address);
        return Frame { module: is_kernels.then(|| files.kernel(address)), address };
    };
    let file = files.of(&map.path);
    let offset = address - map.addresses.start + map.offset;
    // Memory without a file, such as the vDSO, states no addresses: they are counted from where it
    // is mapped.
    Frame { module: Some(file.index), address: file.address(offset).unwrap_or(offset) }
}

impl Map {
    /// Parses a line of `/proc/PID/maps`, if the memory may be executed; see `proc_pid_maps(5)`.
    fn parse(line: &[u8]) -> Option<Self> {
        let path = line.iter().position(|byte| matches!(byte, b'/' | b'[')).unwrap_or(line.len());
        let (head, path) = line.split_at_checked(path)?;
        let mut fields = str::from_utf8(head).ok()?.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let executable = fields.next()?.contains('x');
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (addresses, offset) = (number(start)?..number(end)?, number(fields.next()?)?);
        // Paths are any bytes but 0.
        executable.then(|| Self { addresses, offset, path: OsStr::from_bytes(path).to_owned() })
    }

    /// Returns whether this is anonymous memory or a memfd, in which JIT compilers put code. A
    /// memfd's name is no path by which the file can be found later.
    fn is_anonymous(&self) -> bool {
        let path = self.path.as_bytes();
        path.is_empty() || [&b"[anon:"[..], b"/memfd:"].iter().any(|name| path.starts_with(name))
    }
}

/// The files that all processes have mapped, the code that they have compiled, and the kernel.
#[derive(Default)]
pub struct Files {
    mapped: HashMap<OsString, Mapped>,
    /// The index and the code of each process that has compiled some.
    compiled: HashMap<u32, (u32, Compiled)>,
    /// The dumps of such code that processes have mapped.
    dumps: HashMap<u32, OsString>,
    /// The index of the kernel, and its addresses that were sampled.
    kernel: Option<(u32, BTreeSet<u64>)>,
    functions: Kernel,
}

/// The data about a file that is mapped.
struct Mapped {
    index: u32,
    facts: Facts,
    sections: ExplicitModuleSectionInfo<Data>,
}

impl Files {
    fn of(&mut self, path: &OsStr) -> &Mapped {
        let index = self.next();
        self.mapped.entry(path.to_owned()).or_insert_with(|| Mapped::open(path, index))
    }

    /// Returns the index of the code that a process has compiled and executes at this address, or
    /// `None` if it has reported none.
    fn compiled(&mut self, process: u32, address: u64) -> Option<u32> {
        let next = self.next();
        let (index, compiled) = match self.compiled.entry(process) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let dump = self.dumps.get(&process).map(OsString::as_os_str);
                entry.insert((next, Compiled::open(process, dump)?))
            }
        };
        compiled.executes(address);
        Some(*index)
    }

    /// Notes that a process has mapped a dump of the code that it compiles.
    fn dumps(&mut self, process: u32, path: &OsStr) {
        if let Some((_, compiled)) = self.compiled.get_mut(&process) {
            compiled.dumps_to(path);
        }
        self.dumps.insert(process, path.to_owned());
    }

    /// Returns the index of the next file.
    fn next(&self) -> u32 {
        (self.mapped.len() + self.compiled.len() + usize::from(self.kernel.is_some())) as u32
    }

    /// Returns the index of the kernel, which executes at this address.
    fn kernel(&mut self, address: u64) -> u32 {
        let next = self.next();
        let (index, addresses) = self.kernel.get_or_insert_with(|| (next, BTreeSet::new()));
        addresses.insert(address);
        *index
    }

    /// Returns all files, in the order of their indices.
    pub fn modules(&mut self) -> Vec<Module> {
        let module = |(path, file): (&OsString, &Mapped)| {
            (file.index, Module::new(path, file.facts.clone()))
        };
        let mapped = self.mapped.iter().map(module);
        let compiled = self.compiled.values_mut();
        let compiled = compiled.map(|(index, compiled)| (*index, compiled.module()));
        let kernel = self.kernel.iter().map(|(index, addresses)| {
            let mut module = Module::new("[kernel]".as_ref(), Facts::default());
            module.layer = Some(Layer::Kernel);
            module.symbols = self.functions.functions(addresses);
            (*index, module)
        });
        let all: BTreeMap<u32, Module> = mapped.chain(compiled).chain(kernel).collect();
        all.into_values().collect()
    }
}

impl Mapped {
    /// Reads a file. One that cannot be read has no code.
    fn open(path: &OsStr, index: u32) -> Self {
        let (facts, sections) = (Facts::default(), ExplicitModuleSectionInfo::default());
        let mut mapped = Self { index, facts, sections };
        let Ok(file) = File::open(path) else { return mapped };
        let cache = ReadCache::new(file);
        let Ok(file) = object::File::parse(&cache) else { return mapped };
        mapped.facts = Facts::of(&file);
        let range = |name| {
            let section = file.section_by_name(name)?;
            Some(section.address()..section.address().checked_add(section.size())?)
        };
        let data = |name| Some(file.section_by_name(name)?.data().ok()?.into());
        mapped.sections = ExplicitModuleSectionInfo {
            text_svma: range(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            ..ExplicitModuleSectionInfo::default()
        };
        mapped
    }

    /// Returns the address that the file states for its byte at this offset.
    fn address(&self, offset: u64) -> Option<u64> {
        elf::address(&self.facts.code, offset)
    }
}

#[cfg(test)]
mod tests;
