// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds the names of addresses.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use addr2line::{Loader, demangle_auto};
use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::{Object, ObjectSection};
use perfctr_gate::text::harmless;

use super::debuginfod::{self, Servers};
use crate::elf::build_id;
use crate::profile::{Frame, Module, Profile, Symbol};

/// The directory to which distributions move debugging information out of files.
const DEBUG_FILES: &str = "/usr/lib/debug";

/// A function at one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub function: String,
    /// The source file, if it is known.
    pub file: Option<String>,
    /// The line, or 0 if it is not known.
    pub line: u32,
}

/// The names of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The file's name without its directory.
    pub module: String,
    /// The function, and before it the functions that were inlined there, the innermost first.
    pub places: Vec<Place>,
    /// How far the frame is behind the beginning of the function that has code of its own, if that
    /// is known. Unit: bytes.
    pub offset: Option<u64>,
}

impl Named {
    /// Returns the function that has code of its own.
    pub fn symbol(&self) -> &str {
        self.places.last().map_or("", |place| &place.function)
    }

    /// Returns the function that has code of its own, with the distance from its beginning.
    pub fn place(&self) -> String {
        let offset = self.offset.map(|offset| format!("+{offset:#x}"));
        format!("{}{}", self.symbol(), offset.unwrap_or_default())
    }

    /// Returns the line whose code was executed, or the part of that which is known.
    pub fn line(&self) -> String {
        let known =
            self.places.first().and_then(|place| Some((place.file.as_deref()?, place.line)));
        known.map_or_else(|| self.symbol().to_owned(), |(file, line)| format!("{file}:{line}"))
    }
}

/// Names each frame of a profile. Tells `warn` which files have changed. See [`Names`].
///
/// Debugging information that is not here is fetched, if the user has named servers for it.
pub fn name(profile: &Profile, warn: impl Fn(&str)) -> Vec<Named> {
    let mut names = Names { servers: Some(Servers::default()), ..Names::default() };
    names.name(profile, warn)
}

/// Names the frames of several profiles, and reads each file once.
#[derive(Default)]
pub struct Names {
    sources: HashMap<Module, Source>,
    /// The servers that are asked for debugging information that is missing here.
    servers: Option<Servers>,
}

impl Names {
    /// Names each frame of one more profile. Tells `warn` once of each file that has changed.
    pub fn name(&mut self, profile: &Profile, warn: impl Fn(&str)) -> Vec<Named> {
        // A module that names its functions itself may name others in the next profile.
        self.sources.retain(|module, _| module.symbols.is_empty());
        for module in &profile.modules {
            if !self.sources.contains_key(module) {
                let fetch = |id: &str| {
                    let path = harmless(&module.path);
                    self.servers.as_mut()?.fetch(id, &path, &warn)
                };
                let source = Source::open(module, fetch).unwrap_or_else(|why| {
                    let path = harmless(&module.path);
                    warn(&format!("{path}: {why}; its functions stay without names"));
                    Source::unknown(module)
                });
                self.sources.insert(module.clone(), source);
            }
        }
        let sources: Vec<&Source> =
            profile.modules.iter().map(|module| &self.sources[module]).collect();
        let name = |frame: &Frame| match frame.module {
            Some(module) => sources[module as usize].name(frame.address),
            None => Named {
                module: "[anonymous]".to_owned(),
                places: vec![Place::unknown(format!("{:#x}", frame.address))],
                offset: None,
            },
        };
        profile.frames.iter().map(name).map(Named::harmless).collect()
    }
}

impl Named {
    /// Makes the names printable, since files choose their functions' names.
    fn harmless(self) -> Self {
        let place = |Place { function, file, line }: Place| Place {
            function: harmless(&function),
            file: file.as_deref().map(harmless),
            line,
        };
        let places = self.places.into_iter().map(place).collect();
        Self { module: harmless(&self.module), places, offset: self.offset }
    }
}

impl Place {
    fn unknown(function: String) -> Self {
        Self { function, file: None, line: 0 }
    }
}

/// The names in one file.
struct Source {
    short: String,
    /// Debugging information that was moved out of the file, if that is there, and the file itself.
    loaders: Vec<Loader>,
    /// The functions that the file describes to unwinders. These are all functions, even in a file
    /// without names.
    functions: Vec<Range<u64>>,
    /// The functions that the profile names itself.
    named: Vec<Symbol>,
}

impl Source {
    fn unknown(module: &Module) -> Self {
        let short = Path::new(&module.path).file_name();
        let short = short.map_or(module.path.clone(), |name| name.to_string_lossy().into_owned());
        let named = module.symbols.clone();
        Self { short, loaders: Vec::new(), functions: Vec::new(), named }
    }

    /// Opens a file. `fetch` gets the build-id of debugging information that is not here.
    fn open(module: &Module, fetch: impl FnOnce(&str) -> Option<PathBuf>) -> Result<Self, String> {
        let mut source = Self::unknown(module);
        let path = module.file();
        if !path.is_absolute() || !module.symbols.is_empty() {
            return Ok(source);
        }
        let bytes = fs::read(&path).map_err(|error| error.to_string())?;
        let file = object::File::parse(&*bytes).map_err(|error| error.to_string())?;
        let found = build_id(&file);
        if found != module.build_id {
            let [found, expected] =
                [&found, &module.build_id].map(|id| id.as_deref().unwrap_or("none"));
            return Err(format!("build-id {found} found, {expected} expected"));
        }
        let id = module.build_id.as_deref();
        let debug = id.and_then(debug_file).or_else(|| linked(&file, &path));
        let debug = debug.or_else(|| id.and_then(debuginfod::kept));
        // A file with its own debugging information needs no other one.
        let is_without = || file.section_by_name(".debug_info").is_none();
        let debug = debug.or_else(|| id.filter(|_| is_without()).and_then(fetch)).into_iter();
        let paths = debug.chain([path]);
        source.loaders = paths.filter_map(|path| Loader::new(path).ok()).collect();
        source.functions = unwound(&file).unwrap_or_default();
        Ok(source)
    }

    fn name(&self, address: u64) -> Named {
        let mut places = self.loaders.iter().find_map(|l| places(l, address)).unwrap_or_default();
        let symbol = self.loaders.iter().find_map(|loader| loader.find_symbol_info(address));
        let symbol = symbol.map(|symbol| (symbol.name(), symbol.address()));
        let symbol = symbol.or_else(|| self.by_profile(address));
        let unwound = self.unwound(address);
        let start = symbol.map(|(_, start)| start).or(unwound);
        match (places.last_mut(), symbol) {
            (Some(outermost), Some((symbol, _))) => outermost.function = demangled(symbol),
            (Some(_), None) => {}
            (None, Some((symbol, _))) => places.push(Place::unknown(demangled(symbol))),
            (None, None) => places.push(Place::unknown(self.by_address(unwound))),
        }
        let offset = start.and_then(|start| address.checked_sub(start));
        Named { module: self.short.clone(), places, offset }
    }

    /// Returns the function that the profile names itself, and where it begins.
    fn by_profile(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.named.partition_point(|symbol| symbol.start <= address);
        let symbol = self.named.get(after.checked_sub(1)?)?;
        (address < symbol.end).then_some((&*symbol.name, symbol.start))
    }

    /// Returns where the function begins, if the file describes it to unwinders.
    fn unwound(&self, address: u64) -> Option<u64> {
        let after = self.functions.partition_point(|function| function.start <= address);
        let before = after.checked_sub(1).map(|n| &self.functions[n]);
        before.filter(|function| function.contains(&address)).map(|function| function.start)
    }

    /// Returns the name of a function without one: where it begins.
    fn by_address(&self, start: Option<u64>) -> String {
        match start {
            Some(start) => format!("{}+{start:#x}", self.short),
            // The kernel's names of places have brackets.
            None if self.short.starts_with('[') => self.short.clone(),
            None => format!("[{}]", self.short),
        }
    }
}

/// Returns the name as the function's language writes it. C's names stay as they are, since `f` is
/// also how C++ writes `float` within its names.
fn demangled(name: &str) -> String {
    let is_mangled = name.starts_with("_Z") || name.starts_with("_R");
    if is_mangled { demangle_auto(name.into(), None).into_owned() } else { name.to_owned() }
}

/// Returns the places by the debugging information, if there is any.
fn places(loader: &Loader, address: u64) -> Option<Vec<Place>> {
    let mut frames = loader.find_frames(address).ok()?;
    let mut places = Vec::new();
    while let Ok(Some(frame)) = frames.next() {
        let Some(function) = frame.function else { continue };
        let function = function.demangle().map(|name| name.into_owned()).ok()?;
        let location = frame.location.as_ref();
        let file = location.and_then(|location| location.file).map(str::to_owned);
        let line = location.and_then(|location| location.line).unwrap_or(0);
        places.push(Place { function, file, line });
    }
    (!places.is_empty()).then_some(places)
}

fn debug_file(build_id: &str) -> Option<PathBuf> {
    let (directory, name) = build_id.split_at_checked(2)?;
    let path = Path::new(DEBUG_FILES).join(".build-id").join(directory);
    let path = path.join(format!("{name}.debug"));
    path.exists().then_some(path)
}

/// Returns the file that `.gnu_debuglink` names, if a file with its checksum is where debuggers
/// look.
fn linked(file: &object::File<'_>, path: &Path) -> Option<PathBuf> {
    let (name, sum) = file.gnu_debuglink().ok()??;
    let is_right = |place: &PathBuf| fs::read(place).is_ok_and(|b| crc32fast::hash(&b) == sum);
    places_of_link(path, Path::new(OsStr::from_bytes(name)))?.into_iter().find(is_right)
}

/// Returns the places where debuggers look for the file `name` with the debugging information of
/// the file at `path`. Only the last component of `name` is used, so `name` cannot lead elsewhere.
fn places_of_link(path: &Path, name: &Path) -> Option<[PathBuf; 3]> {
    let (directory, name) = (path.parent()?, Path::new(name.file_name()?));
    let below = Path::new(DEBUG_FILES).join(directory.strip_prefix("/").ok()?);
    Some([directory.join(name), directory.join(".debug").join(name), below.join(name)])
}

/// Returns every function in the file's unwind table, by address.
pub fn unwound(file: &object::File<'_>) -> Option<Vec<Range<u64>>> {
    let section = file.section_by_name(".eh_frame")?;
    let table = EhFrame::new(section.data().ok()?, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = table.entries(&bases);
    let mut functions = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        if let CieOrFde::Fde(partial) = entry {
            let fde = partial.parse(EhFrame::cie_from_offset).ok()?;
            let start = fde.initial_address();
            functions.push(start..start.saturating_add(fde.len()));
        }
    }
    functions.sort_by_key(|function| function.start);
    Some(functions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Facts;

    fn this() -> Module {
        let path = std::env::current_exe().unwrap();
        let bytes = fs::read(&path).unwrap();
        Module::new(path.as_os_str(), Facts::of(&object::File::parse(&*bytes).unwrap()))
    }

    #[test]
    fn a_file_is_read_once_for_several_profiles() {
        let copy = std::env::temp_dir().join(format!("perfctr-names-{}", std::process::id()));
        fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        let mut profile = Profile::new(Vec::new(), "native".into(), "cycles:u".into(), 1_000);
        let mut module = this();
        module.path = copy.display().to_string();
        profile.modules.push(module);
        let bytes = fs::read(&copy).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let map = file.symbol_map();
        let symbol = map.symbols().iter().find(|symbol| symbol.name().contains("symbols5tests"));
        let address = symbol.unwrap().address();
        profile.frames.push(Frame { module: Some(0), address });
        let mut names = Names::default();
        let first = names.name(&profile, |why| panic!("{why}"));
        assert!(first[0].symbol().contains("symbols::tests"), "{first:?}");
        fs::remove_file(&copy).unwrap();
        assert_eq!(names.name(&profile, |why| panic!("{why}")), first);
    }

    #[test]
    fn names_that_would_command_the_terminal_are_spelt_out() {
        let place = Place { function: "a\x1b[2J".into(), file: Some("b\n".into()), line: 1 };
        let named = Named { module: "c\x07".into(), places: vec![place], offset: None }.harmless();
        let place = Place { function: "a\\u{1b}[2J".into(), file: Some("b\\n".into()), line: 1 };
        assert_eq!(named, Named { module: "c\\u{7}".into(), places: vec![place], offset: None });
    }

    #[test]
    fn a_function_of_this_program_has_its_name_and_line() {
        let (source, bytes) =
            (Source::open(&this(), |_| None).unwrap(), fs::read(this().path).unwrap());
        let file = object::File::parse(&*bytes).unwrap();
        let symbols = file.symbol_map();
        let of = |symbol: &&object::SymbolMapName<'_>| symbol.name().contains("symbols5tests4this");
        let address = symbols.symbols().iter().find(of).unwrap().address();
        let named = source.name(address);
        assert_eq!(named.symbol(), "perfctr::report::symbols::tests::this");
        assert!(named.line().contains("report/symbols.rs:"), "{}", named.line());
        assert!(source.functions.iter().any(|function| function.contains(&address)));
        assert_eq!(source.unwound(address), Some(address));
        assert!(source.by_address(Some(address)).ends_with(&format!("+{address:#x}")));
        assert_eq!((named.offset, source.name(address + 1).offset), (Some(0), Some(1)));
        assert!(source.name(address + 1).place().ends_with("::this+0x1"));
    }

    #[test]
    fn debugging_information_is_found_by_its_link() {
        let folder = std::env::temp_dir().join(format!("perfctr-link-{}", std::process::id()));
        let hidden = folder.join(".debug");
        fs::create_dir_all(&hidden).unwrap();
        // Without a build-id, only the link leads there.
        let script = "
            echo 'int work(int n) { return n; } int main(void) { return work(1); }' > program.c
            cc -g -Wl,--build-id=none -o whole program.c
            objcopy --only-keep-debug whole program.debug
            objcopy --strip-all --add-gnu-debuglink=program.debug whole program
        ";
        let mut shell = std::process::Command::new("sh");
        assert!(shell.args(["-ec", script]).current_dir(&folder).status().unwrap().success());
        let whole = fs::read(folder.join("whole")).unwrap();
        let whole = object::File::parse(&*whole).unwrap();
        let symbols = whole.symbol_map();
        let work = symbols.symbols().iter().find(|symbol| symbol.name() == "work").unwrap();
        let module = Module::new(folder.join("program").as_ref(), Facts::default());
        let named = || Source::open(&module, |_| None).unwrap().name(work.address());
        assert!(named().line().ends_with("program.c:1"), "{:?}", named());
        assert_eq!(named().symbol(), "work");
        fs::rename(folder.join("program.debug"), hidden.join("program.debug")).unwrap();
        assert_eq!(named().symbol(), "work", "in .debug");
        let mut other = fs::read(hidden.join("program.debug")).unwrap();
        other.push(0);
        fs::write(hidden.join("program.debug"), other).unwrap();
        assert!(
            named().symbol().starts_with("program+0x"),
            "the checksum is another: {:?}",
            named()
        );
        fs::remove_dir_all(folder).unwrap();
        let places = places_of_link("/bin/ls".as_ref(), "../ls.debug".as_ref()).unwrap();
        let expected = ["/bin/ls.debug", "/bin/.debug/ls.debug", "/usr/lib/debug/bin/ls.debug"];
        assert_eq!(places, expected.map(PathBuf::from));
    }

    #[test]
    fn names_are_demangled_if_they_are_mangled() {
        let names = ["f", "i", "_ZN1a1bEv", "_RNvCs15kBYyAo9fc_1a1b"].map(demangled);
        assert_eq!(names, ["f", "i", "a::b()", "a::b"].map(str::to_owned));
    }

    #[test]
    fn code_between_functions_is_of_none_of_them() {
        let unknown = Source::unknown(&Module::new("/bin/a".as_ref(), Facts::default()));
        let source = Source { functions: vec![0x10..0x20, 0x28..0x30], ..unknown };
        let symbol = |address| source.name(address).symbol().to_owned();
        assert_eq!([0xf, 0x20, 0x27, 0x30].map(symbol), ["[a]"; 4]);
        assert_eq!([0x10, 0x1f, 0x28, 0x2f].map(symbol), ["a+0x10", "a+0x10", "a+0x28", "a+0x28"]);
    }

    #[test]
    fn functions_of_a_place_that_is_no_file_are_named_by_the_profile() {
        let mut module = Module::new("[xen]".as_ref(), Facts::default());
        let symbol = |start, end, name: &str| Symbol { start, end, name: name.into() };
        module.symbols = vec![symbol(0x10, 0x18, "a"), symbol(0x20, 0x30, "b.c#b")];
        let source = Source::open(&module, |_| None).unwrap();
        let name = |address| source.name(address).symbol().to_owned();
        assert_eq!([0x10, 0x17, 0x2f].map(name), ["a", "a", "b.c#b"]);
        assert_eq!([0xf, 0x18, 0x1f, 0x30, u64::MAX].map(name), ["[xen]"; 5]);
        // A file may have any contents.
        module.symbols.reverse();
        let source = Source::open(&module, |_| None).unwrap();
        (0..0x40).for_each(|address| assert!(!source.name(address).symbol().is_empty()));
    }

    #[test]
    fn another_file_of_the_same_name_is_refused() {
        let mut module = this();
        module.build_id = Some("aa".into());
        let error = Source::open(&module, |_| None).err().unwrap();
        assert!(error.ends_with("found, aa expected"), "{error}");
        let absent = Module::new("/nowhere".as_ref(), Facts::default());
        assert!(Source::open(&absent, |_| None).err().unwrap().starts_with("No such file"));
    }
}
