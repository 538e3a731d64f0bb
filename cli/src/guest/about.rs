// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What a guest says about itself in the section that perfctr adds to its file: its clocks, and the
//! functions of its kernel and of its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSymbol, SymbolKind};
use serde::{Deserialize, Serialize};

use super::clock::Moment;
use crate::elf::{Facts, Mapped, Segment};
use crate::host::functions_of_kernel;
use crate::machine::Hypervisor;
use crate::profile::Symbol;
use crate::report::symbols::unwound;

/// The text by which the section says what it is, and its only version.
const FORMAT: &str = "perfctr names";
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
pub struct About {
    format: String,
    version: u32,
    /// The kind of guest that this is on Xen, as Linux names it.
    pub kind: Option<String>,
    /// Times at which both clocks were read on each CPU, by the CPU's number.
    pub moments: BTreeMap<u32, Vec<Moment>>,
    /// The files with code that processes had mapped.
    pub files: Vec<File>,
    /// The address and the name of each function of the kernel.
    pub kernel: Vec<(u64, String)>,
}

/// A file with code.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    pub path: String,
    pub build_id: Option<String>,
    pub code: Vec<Segment>,
    /// The functions, in the order of addresses.
    pub functions: Vec<Function>,
}

/// The address, the size and the name of a function. The name is empty if the file has none.
type Function = (u64, u64, String);

/// How much memory the functions of all files take at most. A file whose functions do not fit is
/// described without them. A machine that executes some hundred programs and libraries needs less
/// than a quarter of this. Unit: bytes.
const FUNCTIONS_MAX: usize = 256 << 20;

impl About {
    /// Describes this machine, and these files of it.
    pub fn this(moments: BTreeMap<u32, Vec<Moment>>, paths: &BTreeSet<Vec<u8>>) -> Self {
        let text = |path: &Vec<u8>| String::from_utf8(path.clone()).ok();
        let paths = paths.iter().filter_map(text).filter(|path| path.starts_with('/'));
        let mut room = FUNCTIONS_MAX;
        let files = paths.filter_map(|path| File::read(path, &mut room)).collect();
        let kind = Hypervisor::here().and_then(|hypervisor| hypervisor.guest);
        Self { kind, files, kernel: functions_of_kernel(), ..Self::new(moments) }
    }

    /// Describes a machine of which only the clocks are known.
    pub fn new(moments: BTreeMap<u32, Vec<Moment>>) -> Self {
        let (format, version) = (FORMAT.to_owned(), VERSION);
        Self { format, version, kind: None, moments, files: Vec::new(), kernel: Vec::new() }
    }

    /// Returns the file with this path, if it is also the one with this build-id. A kernel before
    /// Linux 5.12 does not say which build-id the file has that is mapped.
    pub fn file(&self, path: &str, build_id: Option<&str>) -> Option<&File> {
        let file = self.files.iter().find(|file| file.path == path)?;
        (build_id.is_none() || file.build_id.as_deref() == build_id).then_some(file)
    }

    /// Parses what another machine says about itself, which may be anything.
    pub fn parse(section: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Header {
            format: String,
            version: u32,
        }
        let Header { format, version } =
            serde_json::from_slice(section).context("a section that is no JSON document")?;
        ensure!(format == FORMAT, "format {format:?} found, {FORMAT:?} expected");
        ensure!(version == VERSION, "version {version} found, {VERSION} expected");
        serde_json::from_slice(section).context("malformed section")
    }
}

impl File {
    /// Reads a file, if there is still one that is read ([`Mapped`]). Its functions are left out if
    /// they do not fit into `room`, which is what they may take. Unit: bytes.
    fn read(path: String, room: &mut usize) -> Option<Self> {
        let bytes = Mapped::open(Path::new(&path))?.bytes()?;
        let file = object::File::parse(&*bytes).ok()?;
        let Facts { build_id, code } = Facts::of(&file);
        let functions = functions(&file, *room).unwrap_or_default();
        *room -= functions.iter().map(memory_of).sum::<usize>();
        Some(Self { path, build_id, code, functions })
    }

    /// Returns the functions that contain any of these addresses.
    pub fn with(&self, addresses: &BTreeSet<u64>) -> Vec<Symbol> {
        let symbols = self.functions.iter().filter_map(|(start, size, name)| {
            let end = start.checked_add(*size).filter(|end| end > start)?;
            addresses.range(*start..end).next()?;
            let short = Path::new(&self.path).file_name().unwrap_or_default().display();
            let unnamed = || format!("{short}+{start:#x}");
            let name = if name.is_empty() { unnamed() } else { name.clone() };
            Some(Symbol { start: *start, end, name })
        });
        let mut symbols: Vec<Symbol> = symbols.collect();
        symbols.sort_by_key(|symbol| symbol.start);
        symbols
    }
}

/// Returns how much memory a function takes. Unit: bytes.
fn memory_of(function: &Function) -> usize {
    size_of::<Function>() + function.2.len()
}

/// Returns all functions of a file, if they fit into `room`: in a file, many of them may have one
/// long name. One whose size is not stated ends where the next one begins. Unit: bytes.
fn functions(file: &object::File<'_>, room: usize) -> Option<Vec<Function>> {
    let all = file.symbols().chain(file.dynamic_symbols());
    let is_function = |symbol: &object::Symbol<'_, '_>| {
        symbol.is_definition() && symbol.kind() == SymbolKind::Text && symbol.address() != 0
    };
    let function = |symbol: object::Symbol<'_, '_>| {
        Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned()))
    };
    let (mut functions, mut left) = (Vec::new(), room);
    for function in all.filter(is_function).filter_map(function) {
        left = left.checked_sub(memory_of(&function))?;
        functions.push(function);
    }
    // Of several names of one address, the one with the largest size comes first.
    functions.sort_by(|a, b| (a.0, b.1, &a.2).cmp(&(b.0, a.1, &b.2)));
    functions.dedup_by_key(|function| function.0);
    let next: Vec<u64> = functions.iter().skip(1).map(|function| function.0).collect();
    for (function, next) in functions.iter_mut().zip(next) {
        let room = next - function.0;
        function.1 = if function.1 == 0 { room } else { function.1.min(room) };
    }
    // A file without names still describes its functions to unwinders.
    let is_named = |start: u64| {
        let before = functions.partition_point(|function| function.0 <= start).checked_sub(1);
        before.is_some_and(|n| start - functions[n].0 < functions[n].1)
    };
    let unwound = unwound(file).unwrap_or_default().into_iter();
    let unnamed = unwound.filter(|range| !is_named(range.start));
    let unnamed = unnamed.map(|range| (range.start, range.end - range.start, String::new()));
    functions = functions.iter().cloned().chain(unnamed).collect();
    functions.sort_by_key(|function| function.0);
    (functions.iter().map(memory_of).sum::<usize>() <= room).then_some(functions)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn this_program_says_which_functions_it_has() {
        let path = std::env::current_exe().unwrap().display().to_string();
        let mut room = FUNCTIONS_MAX;
        let file = File::read(path.clone(), &mut room).unwrap();
        let text = "this_program_says_which_functions_it_has";
        let own = file.functions.iter().find(|(_, _, name)| name.contains(text)).unwrap();
        let symbols = file.with(&BTreeSet::from([own.0 + 1]));
        assert_eq!(symbols.len(), 1, "{symbols:?}");
        assert!(symbols[0].name.contains(text) && own.1 > 1, "{symbols:?}");
        assert!(file.build_id.is_some() && !file.code.is_empty());
        assert_eq!(file.with(&BTreeSet::new()), []);
        for other in ["/proc", "/proc/self/maps"] {
            assert_eq!(File::read(other.to_owned(), &mut room), None);
        }
        let taken = FUNCTIONS_MAX - room;
        assert!(taken > file.functions.len() * size_of::<Function>(), "{taken}");
        room = taken - 1;
        let rest = File::read(path, &mut room).unwrap();
        assert_eq!((rest.functions, room), (Vec::new(), taken - 1), "they do not fit");
        assert_eq!((rest.build_id, rest.code), (file.build_id, file.code));
    }

    #[test]
    fn a_file_without_names_says_where_its_functions_are() {
        let path = std::env::temp_dir().join(format!("perfctr-stripped-{}", std::process::id()));
        let here = std::env::current_exe().unwrap();
        let strip = std::process::Command::new("strip").arg("-o").arg(&path).arg(&here).status();
        assert!(strip.unwrap().success());
        let mut room = FUNCTIONS_MAX;
        let [whole, stripped] =
            [&here, &path].map(|path| File::read(path.display().to_string(), &mut room).unwrap());
        fs::remove_file(&path).unwrap();
        let of = |name: &(u64, u64, String)| name.2.contains("a_file_without_names");
        let own = whole.functions.into_iter().find(of).unwrap();
        let found = stripped.with(&BTreeSet::from([own.0]));
        let short = path.file_name().unwrap().display();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].start, &found[0].name), (own.0, &format!("{short}+{:#x}", own.0)));
    }

    #[test]
    fn functions_of_another_machine_may_be_anything() {
        let functions = [(u64::MAX, 2, "end"), (20, 0, "empty"), (30, 5, "late"), (10, 5, "")];
        let functions = functions.map(|(start, size, name)| (start, size, name.to_owned()));
        let (path, build_id, code) = ("/a".to_owned(), None, Vec::new());
        let file = File { path, build_id, code, functions: functions.into() };
        let found = file.with(&BTreeSet::from([12, 20, 34, u64::MAX]));
        let names: Vec<&str> = found.iter().map(|symbol| &*symbol.name).collect();
        assert_eq!(names, ["a+0xa", "late"]);
    }

    #[test]
    fn only_such_a_section_is_read() {
        let why = |text: &str| format!("{:#}", About::parse(text.as_bytes()).unwrap_err());
        assert!(why("\u{7f}ELF").starts_with("a section that is no JSON document"));
        let other = r#"{"format":"x","version":1}"#;
        assert_eq!(why(other), "format \"x\" found, \"perfctr names\" expected");
        let later = r#"{"format":"perfctr names","version":2}"#;
        assert_eq!(why(later), "version 2 found, 1 expected");
        let short = r#"{"format":"perfctr names","version":1}"#;
        assert!(why(short).starts_with("malformed section: missing field"), "{}", why(short));
        let text = serde_json::to_vec(&About::new(BTreeMap::new())).unwrap();
        assert_eq!(About::parse(&text).unwrap().files, []);
    }
}
