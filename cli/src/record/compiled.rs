// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Names functions that processes have compiled at run time. Their compilers list them in a file,
//! `/tmp/perf-PID.map`, in the form that Linux's perf has given it (`jit-interface.txt` in the
//! kernel's `tools/perf/Documentation`): each line has a function's address, its size, both
//! hexadecimal, and its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use crate::elf::Facts;
use crate::profile::{Module, Symbol};
use crate::program::status;

/// The most of a list that is read. Unit: bytes.
const BYTES_MAX: u64 = 64 << 20;

/// The code that a process has compiled.
pub struct Compiled {
    process: u32,
    /// The list. It can still be read when the process has ended and has removed it.
    list: File,
    /// The addresses that were sampled.
    addresses: BTreeSet<u64>,
}

impl Compiled {
    /// Opens a process's list, or returns `None` if it has none.
    pub fn of(process: u32) -> Option<Self> {
        // A process in a container knows itself by another number, and has a /tmp of its own.
        let numbers = status(process.cast_signed(), "NSpid").unwrap_or_default();
        let own =
            numbers.split_whitespace().last().map_or(process, |n| n.parse().unwrap_or(process));
        let path = format!("/proc/{process}/root/tmp/perf-{own}.map");
        // Anybody can make anything of this name, for instance a pipe on which one would wait.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let list = File::options().read(true).custom_flags(flags).open(path).ok()?;
        let facts = list.metadata().ok()?;
        let owner = fs::metadata(format!("/proc/{process}")).ok()?.uid();
        let is_its_own = facts.is_file() && [owner, 0].contains(&facts.uid());
        is_its_own.then_some(Self { process, list, addresses: BTreeSet::new() })
    }

    /// Notes that code was executed at this address.
    pub fn executes(&mut self, address: u64) {
        self.addresses.insert(address);
    }

    /// Returns it as a module, with the functions that were executed. The path is the one at which
    /// perf looks for the list.
    pub fn module(&mut self) -> Module {
        let mut bytes = Vec::new();
        // What cannot be read names nothing.
        self.list.rewind().ok();
        (&self.list).take(BYTES_MAX).read_to_end(&mut bytes).ok();
        let path = format!("/tmp/perf-{}.map", self.process);
        let mut module = Module::new(path.as_ref(), Facts::default());
        module.symbols = symbols(&String::from_utf8_lossy(&bytes), &self.addresses);
        module
    }
}

/// Names these addresses by the list. Where functions overlap, the one compiled last counts, which
/// is also the last one in the list.
fn symbols(list: &str, addresses: &BTreeSet<u64>) -> Vec<Symbol> {
    let mut names: BTreeMap<u64, Option<&str>> =
        addresses.iter().map(|&address| (address, None)).collect();
    for (start, size, name) in list.lines().filter_map(function) {
        for (_, named) in names.range_mut(start..start.saturating_add(size)) {
            *named = Some(name);
        }
    }
    let mut symbols: Vec<Symbol> = Vec::new();
    let mut before = None;
    for (start, name) in names {
        let end = start.saturating_add(1);
        match (symbols.last_mut(), name) {
            // Neighbours are of one function if they have one name.
            (Some(last), Some(_)) if before == name => last.end = end,
            (_, Some(name)) => symbols.push(Symbol { start, end, name: name.to_owned() }),
            (_, None) => {}
        }
        before = name;
    }
    symbols
}

/// Parses a line. Some compilers write numbers with the prefix `0x`.
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

    /// Removes its file in the end, whatever kind it is.
    struct List(PathBuf);

    impl Drop for List {
        fn drop(&mut self) {
            fs::remove_file(&self.0).ok();
        }
    }

    #[test]
    fn only_a_file_of_the_processs_user_is_read() {
        let own = std::process::id();
        let list = List(format!("/tmp/perf-{own}.map").into());
        fs::remove_file(&list.0).ok();
        assert!(Compiled::of(own).is_none(), "there is none");
        assert!(Command::new("mkfifo").arg(&list.0).status().unwrap().success());
        assert!(Compiled::of(own).is_none(), "a pipe is not waited for");
        fs::remove_file(&list.0).unwrap();
        symlink("/etc/passwd", &list.0).unwrap();
        assert!(Compiled::of(own).is_none(), "a link leads elsewhere");
        fs::remove_file(&list.0).unwrap();
        fs::write(&list.0, "10 20 f\n").unwrap();
        let mut compiled = Compiled::of(own).unwrap();
        compiled.executes(0x18);
        drop(list);
        let module = compiled.module();
        assert_eq!(module.path, format!("/tmp/perf-{own}.map"));
        assert_eq!(module.symbols, [symbol(0x18, 0x19, "f")], "it was removed meanwhile");
    }
}
