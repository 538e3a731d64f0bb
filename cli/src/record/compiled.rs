// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Names functions that processes have compiled at run time, by what their compilers have written
//! for Linux's perf. Both forms are described in the kernel's `tools/perf/Documentation`.
//!
//! - A list, `/tmp/perf-PID.map` (`jit-interface.txt`): each line has a function's address, its
//!   size, both hexadecimal, and its name.
//! - A dump, `jit-PID.dump` (`jitdump-specification.txt`), which has the code as well. The process
//!   maps a part of it as if it were code, by which it is found.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use linux_perf_data::jitdump::{
    JitDumpHeader, JitDumpReader, JitDumpRecord, JitDumpRecordHeader, JitDumpRecordType,
};

use crate::elf::Facts;
use crate::profile::{Module, Symbol};
use crate::program::status;

/// The most bytes of a list that are read. Unit: bytes.
const BYTES_MAX: u64 = 64 << 20;
/// The most bytes of a dump that are read. A dump has the code of all functions. Unit: bytes.
const DUMP_BYTES_MAX: u64 = 1 << 30;

/// The code that a process has compiled.
pub struct Compiled {
    process: u32,
    /// The list. It can still be read when the process has ended and has removed it.
    list: Option<File>,
    /// The dump and its path.
    dump: Option<(OsString, File)>,
    /// The addresses that were sampled.
    addresses: BTreeSet<u64>,
}

/// Returns whether a file that is mapped is a dump, by its name.
pub fn is_dump(path: &OsStr) -> bool {
    let name = Path::new(path).file_name().map_or(&[][..], OsStrExt::as_bytes);
    name.starts_with(b"jit-") && name.ends_with(b".dump")
}

impl Compiled {
    /// Opens a process's list, and its dump if it has mapped one. Returns `None` if there is
    /// neither.
    pub fn open(process: u32, dump: Option<&OsStr>) -> Option<Self> {
        // Within a container a process has another number, and a /tmp of its own.
        let numbers = status(process.cast_signed(), "NSpid").unwrap_or_default();
        let own =
            numbers.split_whitespace().last().map_or(process, |n| n.parse().unwrap_or(process));
        let list = open(process, format!("/tmp/perf-{own}.map").as_ref());
        let mut compiled = Self { process, list, dump: None, addresses: BTreeSet::new() };
        dump.into_iter().for_each(|path| compiled.dumps_to(path));
        (compiled.list.is_some() || compiled.dump.is_some()).then_some(compiled)
    }

    /// Notes that the process has mapped this dump.
    pub fn dumps_to(&mut self, path: &OsStr) {
        if self.dump.is_none() {
            self.dump = open(self.process, path).map(|file| (path.to_owned(), file));
        }
    }

    /// Notes that code was executed at this address.
    pub fn executes(&mut self, address: u64) {
        self.addresses.insert(address);
    }

    /// Returns the code as a module, with the functions that were executed. The path is the dump's,
    /// or the one at which perf looks for the list.
    pub fn module(&mut self) -> Module {
        let mut names = Names::unnamed(&self.addresses);
        // A file that cannot be read names nothing.
        if let Some(mut list) = self.list.as_ref() {
            let mut bytes = Vec::new();
            list.rewind().ok();
            list.take(BYTES_MAX).read_to_end(&mut bytes).ok();
            names.add_list(&String::from_utf8_lossy(&bytes));
        }
        let mut path = OsString::from(format!("/tmp/perf-{}.map", self.process));
        if let Some((of_dump, file)) = &self.dump {
            let mut file = file;
            file.rewind().ok();
            names.add_dump(file);
            path.clone_from(of_dump);
        }
        let mut module = Module::new(&path, Facts::default());
        module.symbols = names.symbols();
        module
    }
}

/// Opens a file of a process's, as the process names it.
fn open(process: u32, path: &OsStr) -> Option<File> {
    let mut place = OsString::from(format!("/proc/{process}/root"));
    place.push(path);
    // Anybody can make any kind of file with this name, for instance a pipe on which the reader
    // would wait.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(place).ok()?;
    let facts = file.metadata().ok()?;
    let owner = fs::metadata(format!("/proc/{process}")).ok()?.uid();
    (facts.is_file() && may_name(facts.uid(), owner)).then_some(file)
}

/// Returns whether a user's file may name the functions of a process with this owner.
fn may_name(user: u32, owner: u32) -> bool {
    [owner, 0].contains(&user)
}

/// The names of addresses. The last name that was given to an address counts: where functions
/// overlap, that is the function compiled last.
struct Names(BTreeMap<u64, Option<String>>);

impl Names {
    fn unnamed(addresses: &BTreeSet<u64>) -> Self {
        Self(addresses.iter().map(|&address| (address, None)).collect())
    }

    /// Names the addresses of a function.
    fn add(&mut self, start: u64, size: u64, name: &str) {
        for (_, named) in self.0.range_mut(start..start.saturating_add(size)) {
            *named = Some(name.to_owned());
        }
    }

    /// Adds the functions of a list.
    fn add_list(&mut self, list: &str) {
        for (start, size, name) in list.lines().filter_map(function) {
            self.add(start, size, name);
        }
    }

    /// Adds the functions of a dump, as far as it follows the rules of its format. Its writer may
    /// not have finished.
    fn add_dump(&mut self, mut file: impl Read + Seek) -> Option<()> {
        let mut head = [0; JitDumpHeader::SIZE];
        file.read_exact(&mut head).ok()?;
        file.rewind().ok()?;
        // The reader relies on a header that is no longer than its buffer.
        let size = u32::from_le_bytes(head[8..12].try_into().ok()?);
        let fits = (JitDumpHeader::SIZE as u32..1024).contains(&size);
        let mut reader = fits.then(|| JitDumpReader::new(file.take(DUMP_BYTES_MAX)))?.ok()?;
        let mut names = HashMap::new();
        loop {
            let header = reader.next_record_header().ok()??;
            // It also relies on records that are no shorter than their headers.
            (header.total_size as usize >= JitDumpRecordHeader::SIZE).then_some(())?;
            let record = reader.next_record().ok()??;
            let known = [JitDumpRecordType::JIT_CODE_LOAD, JitDumpRecordType::JIT_CODE_MOVE];
            if !known.contains(&record.record_type) {
                continue;
            }
            match record.parse().ok()? {
                JitDumpRecord::CodeLoad(load) => {
                    let name = load.function_name.as_slice();
                    let name = String::from_utf8_lossy(&name).into_owned();
                    self.add(load.code_addr, load.code_bytes.len() as u64, &name);
                    names.insert(load.code_index, name);
                }
                JitDumpRecord::CodeMove(moved) => {
                    if let Some(name) = names.get(&moved.code_index) {
                        self.add(moved.new_code_addr, moved.code_size, name);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the functions that contain the addresses. Neighbours with the same name are one
    /// function.
    fn symbols(self) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::new();
        let mut before = None;
        for (start, name) in self.0 {
            let end = start.saturating_add(1);
            match (symbols.last_mut(), &name) {
                (Some(last), Some(_)) if before == name => last.end = end,
                (_, Some(name)) => symbols.push(Symbol { start, end, name: name.clone() }),
                (_, None) => {}
            }
            before = name;
        }
        symbols
    }
}

/// Parses a line of a list. Some compilers write numbers with the prefix `0x`.
fn function(line: &str) -> Option<(u64, u64, &str)> {
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let mut words = line.splitn(3, ' ');
    let (start, size) = (number(words.next()?)?, number(words.next()?)?);
    Some((start, size, words.next().filter(|name| !name.is_empty())?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    fn symbol(start: u64, end: u64, name: &str) -> Symbol {
        Symbol { start, end, name: name.to_owned() }
    }

    fn symbols(list: &str, addresses: &BTreeSet<u64>) -> Vec<Symbol> {
        let mut names = Names::unnamed(addresses);
        names.add_list(list);
        names.symbols()
    }

    /// Returns a record of a dump.
    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let size = (JitDumpRecordHeader::SIZE + body.len()) as u32;
        let head = [kind, size].map(u32::to_le_bytes).concat();
        [&head[..], &7_u64.to_le_bytes(), body].concat()
    }

    /// Returns the record of a function that was compiled.
    fn load(address: u64, size: usize, index: u64, name: &str) -> Vec<u8> {
        let numbers = [address, address, size as u64, index].map(u64::to_le_bytes).concat();
        let body = [&[1; 8], &numbers[..], name.as_bytes(), &[0], &vec![0x90; size]].concat();
        record(0, &body)
    }

    /// Returns a dump of these records. Its header has an unusual size.
    fn dump(records: &[Vec<u8>]) -> Vec<u8> {
        let size = 48;
        let mut bytes = [&b"DTiJ"[..], &[1_u32, size].map(u32::to_le_bytes).concat()].concat();
        bytes.resize(size as usize, 0);
        bytes.extend(records.concat());
        bytes
    }

    fn dumped(bytes: &[u8], addresses: &[u64]) -> Vec<Symbol> {
        let mut names = Names::unnamed(&addresses.iter().copied().collect());
        names.add_dump(std::io::Cursor::new(bytes));
        names.symbols()
    }

    #[test]
    fn a_dump_names_what_was_compiled_and_moved() {
        let moved = [0, 0x10, 0x400, 0x20, 5].map(u64::to_le_bytes).concat();
        let bytes = dump(&[
            load(0x10, 0x20, 5, "hot /srv/app.js:7"),
            record(2, &[0xff; 24]),
            load(0x100, 0x8, 6, "cold"),
            record(1, &[&[1; 8], &moved[..]].concat()),
            load(0x18, 0x4, 7, "new"),
            record(3, &[]),
        ]);
        let found = dumped(&bytes, &[0x10, 0x18, 0x1b, 0x1c, 0x30, 0x107, 0x108, 0x41f]);
        let expected = [
            symbol(0x10, 0x11, "hot /srv/app.js:7"),
            symbol(0x18, 0x1c, "new"),
            symbol(0x1c, 0x1d, "hot /srv/app.js:7"),
            symbol(0x107, 0x108, "cold"),
            symbol(0x41f, 0x420, "hot /srv/app.js:7"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_dump_that_breaks_off_or_breaks_rules_names_what_is_before() {
        let whole = dump(&[load(0x10, 8, 1, "a"), load(0x20, 8, 2, "b")]);
        let names = |bytes: &[u8]| dumped(bytes, &[0x10, 0x20]).len();
        assert_eq!(names(&whole), 2);
        for end in 0..whole.len() {
            assert!(names(&whole[..end]) < 2, "{end} bytes");
        }
        let mut short = dump(&[load(0x10, 8, 1, "a"), record(0, &[]), load(0x20, 8, 2, "b")]);
        let at = 48 + load(0x10, 8, 1, "a").len() + 4;
        short[at..at + 4].copy_from_slice(&15_u32.to_le_bytes());
        assert_eq!(names(&short), 1, "a record that is shorter than its header");
        for size in [0, 39, 4_096, u32::MAX] {
            let mut header = whole.clone();
            header[8..12].copy_from_slice(&size.to_le_bytes());
            assert_eq!(names(&header), 0, "a header of {size} bytes");
        }
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..2_000 {
            let mut spoilt = whole.clone();
            let at = random.usize(..spoilt.len());
            spoilt[at] = random.u8(..);
            names(&spoilt);
        }
    }

    #[test]
    fn a_dump_is_known_by_its_name() {
        for (path, expected) in
            [("/a/jit-7.dump", true), ("/jit-/a.dump", false), ("/a/jit-7.dump.txt", false)]
        {
            assert_eq!(is_dump(path.as_ref()), expected, "{path}");
        }
    }

    #[test]
    fn each_address_has_the_function_that_was_compiled_last() {
        let list = "10 20 old\n100 0x10 py::f:/tmp/a b.py\n0x28 8 new\nnonsense\n40 zz f\n50 10 \n";
        let found =
            symbols(list, &[0x27, 0x10, 0x28, 0x2f, 0x30, 0x100, 0x10f, 0x110, 0x55].into());
        let expected = [
            symbol(0x10, 0x28, "old"),
            symbol(0x28, 0x30, "new"),
            symbol(0x100, 0x110, "py::f:/tmp/a b.py"),
        ];
        assert_eq!(found, expected, "0x30 and 0x110 are behind the ends, and 0x55 has no name");
    }

    #[test]
    fn code_without_a_name_is_of_neither_neighbour() {
        let found = symbols("10 1 f\n30 1 f\n", &[0x10, 0x20, 0x30].into());
        assert_eq!(found, [symbol(0x10, 0x11, "f"), symbol(0x30, 0x31, "f")]);
    }

    #[test]
    fn functions_at_the_end_of_memory_are_no_trouble() {
        let list = format!("{:x} {:x} f", u64::MAX - 1, u64::MAX);
        let found = symbols(&list, &[u64::MAX - 1, u64::MAX].into());
        assert_eq!(found, [symbol(u64::MAX - 1, u64::MAX, "f")]);
    }

    /// Removes its file when it is dropped, whatever kind of file that is.
    struct List(PathBuf);

    impl Drop for List {
        fn drop(&mut self) {
            fs::remove_file(&self.0).ok();
        }
    }

    #[test]
    fn functions_are_named_by_their_processs_owner_and_by_root() {
        for (user, owner, expected) in
            [(1001, 1001, true), (0, 1001, true), (1002, 1001, false), (1001, 0, false)]
        {
            assert_eq!(may_name(user, owner), expected, "{user} names functions of {owner}");
        }
    }

    #[test]
    fn only_a_file_of_the_processs_user_is_read() {
        let own = std::process::id();
        let list = List(format!("/tmp/perf-{own}.map").into());
        fs::remove_file(&list.0).ok();
        assert!(Compiled::open(own, None).is_none(), "there is none");
        assert!(Command::new("mkfifo").arg(&list.0).status().unwrap().success());
        assert!(Compiled::open(own, None).is_none(), "a pipe is not waited for");
        fs::remove_file(&list.0).unwrap();
        symlink("/etc/passwd", &list.0).unwrap();
        assert!(Compiled::open(own, None).is_none(), "a link leads elsewhere");
        fs::remove_file(&list.0).unwrap();
        fs::write(&list.0, "10 20 f\n").unwrap();
        let mut compiled = Compiled::open(own, None).unwrap();
        compiled.executes(0x18);
        drop(list);
        let module = compiled.module();
        assert_eq!(module.path, format!("/tmp/perf-{own}.map"));
        assert_eq!(module.symbols, [symbol(0x18, 0x19, "f")], "it was removed meanwhile");
    }
}
