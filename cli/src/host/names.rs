// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds the functions of the hypervisor and of domains' kernels.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use perfctr::host::Xen;

use crate::elf::{Facts, to_hex};
use crate::machine;
use crate::profile::{Host, Module, Profile, Symbol};
use crate::text::print_note;

/// The directories in which Xen's file is looked for.
const DIRECTORIES: [&str; 3] = ["/usr/lib/debug/boot", "/usr/lib/debug", "/boot"];
/// The file in which Linux gives the build-id of its Xen, as bytes.
const BUILD_ID: &str = "/sys/hypervisor/properties/buildid";
const KALLSYMS: &str = "/proc/kallsyms";
/// Xen's answer in place of a build-id that it does not reveal.
const DENIED: &[u8] = b"<denied>";

/// The hypervisor that this domain is on.
pub struct Hypervisor {
    name: String,
    build_id: Option<String>,
    /// The file with its functions, if there is one.
    file: Option<(PathBuf, Facts)>,
    /// Xen's functions by its own symbols. Xen is asked for them when they are first needed.
    known: OnceCell<Functions>,
}

impl Hypervisor {
    /// Finds out which Xen this is. The names of its functions will be those that Xen itself gives.
    pub fn here() -> Result<Self> {
        let here = machine::Hypervisor::here().filter(machine::Hypervisor::is_xen);
        let here = here.context(
            "there is neither Xen nor /dev/kvm here: a host is sampled in Xen's control domain, or \
             by root on a KVM host",
        )?;
        let name = format!("Xen {}", here.version.unwrap_or_default()).trim_end().to_owned();
        let build_id = fs::read(BUILD_ID).ok();
        let build_id = build_id.filter(|id| !id.is_empty() && !id.starts_with(DENIED));
        let build_id = build_id.map(|id| to_hex(&id));
        Ok(Self { name, build_id, file: None, known: OnceCell::new() })
    }

    /// Finds out which Xen this is, and finds the file with its functions, if there is one.
    /// `xen_syms` is the file that the user has named.
    pub fn with_file(xen_syms: Option<&Path>) -> Result<Self> {
        let here = Self::here()?;
        let build_id = &here.build_id;
        let file = match xen_syms {
            Some(path) => {
                let (path, facts) = check_xen_syms(path, build_id.as_deref())?;
                if build_id.is_none() {
                    print_note(format_args!(
                        "Xen does not say its build-id, so nobody knows whether {} is its file",
                        path.display()
                    ));
                }
                Some((path, facts))
            }
            None => of_this(build_id.as_deref(), candidates()),
        };
        Ok(Self { file, ..here })
    }

    /// Returns a Xen of which nothing is known.
    #[cfg(test)]
    pub fn without_file() -> Self {
        Self { name: "Xen".to_owned(), build_id: None, file: None, known: OnceCell::new() }
    }

    /// Returns the profile's description of it before anything is sampled.
    pub fn host(&self) -> Host {
        let Self { name, build_id, .. } = self;
        Host {
            hypervisor: name.clone(),
            build_id: build_id.clone(),
            cpus: Vec::new(),
            tsc: 0,
            tsc_per_second: 0,
            at_guests: false,
            clocks: Vec::new(),
            kvm: None,
        }
    }

    /// Returns its module. Without a file it has the functions of these addresses, as Xen itself
    /// names them.
    pub fn module(&self, addresses: &BTreeSet<u64>) -> Module {
        if let Some((path, facts)) = &self.file {
            return Module::new(path.as_os_str(), facts.clone());
        }
        let mut module = Module::new("[xen]".as_ref(), Facts::default());
        module.build_id.clone_from(&self.build_id);
        module.symbols = self.known.get_or_init(Functions::of_xen).with(addresses);
        module
    }
}

/// Checks that this is the file of the Xen that is running.
fn check_xen_syms(path: &Path, running: Option<&str>) -> Result<(PathBuf, Facts)> {
    let path = fs::canonicalize(path).with_context(|| path.display().to_string())?;
    let facts = Facts::read(&path);
    let name = path.display();
    ensure!(!facts.code.is_empty(), "{name}: this is no executable file, such as xen-syms");
    match (facts.build_id.as_deref(), running) {
        (Some(found), Some(expected)) if found != expected => {
            bail!("{name}: build-id {found} found, but the Xen that is running has {expected}")
        }
        (None, Some(expected)) => {
            bail!("{name}: no build-id found, but the Xen that is running has {expected}")
        }
        _ => Ok((path, facts)),
    }
}

/// Returns the one of these files that belongs to the running Xen, if there is one.
fn of_this(running: Option<&str>, candidates: Vec<PathBuf>) -> Option<(PathBuf, Facts)> {
    // A file that cannot be checked is only used if the user names it.
    running?;
    candidates.iter().find_map(|path| check_xen_syms(path, running).ok())
}

/// Returns the files that may have Xen's functions.
fn candidates() -> Vec<PathBuf> {
    let entries = DIRECTORIES.iter().filter_map(|path| fs::read_dir(path).ok()).flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_xens = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"xen-syms"))
    };
    let mut paths: Vec<PathBuf> = paths.filter(is_xens).collect();
    paths.sort();
    paths
}

/// A domain's number or name, and a file that was made there: `DOMAIN=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainFile {
    domain: String,
    pub file: PathBuf,
}

impl FromStr for DomainFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((domain, file)) if !domain.is_empty() && !file.is_empty() => {
                Ok(Self { domain: domain.to_owned(), file: file.into() })
            }
            _ => Err(format!(
                "`{text}` found, a domain's number or name and a file like 3=FILE expected"
            )),
        }
    }
}

impl DomainFile {
    /// Returns the number of the domain, which has samples in this profile.
    pub fn number(&self, profile: &Profile) -> Result<u32> {
        let name = &self.domain;
        let domains: BTreeSet<u32> = profile.threads.iter().map(|thread| thread.pid).collect();
        let own: Vec<u32> =
            domains.into_iter().filter(|&domain| self.is_of(profile, domain)).collect();
        match *own {
            [number] => Ok(number),
            [] => bail!("the profile has no samples of domain {name}"),
            _ => bail!("domain {name}: {} domains have this name, expected a number", own.len()),
        }
    }

    /// Returns whether the file is of this domain of the profile.
    pub fn is_of(&self, profile: &Profile, domain: u32) -> bool {
        let mut threads = profile.threads.iter().filter(|thread| thread.pid == domain);
        match self.domain.parse::<u32>() {
            Ok(number) => number == domain,
            Err(_) => threads.any(|thread| thread.name == self.domain),
        }
    }
}

/// A domain's kernel. Without a list it is this machine's own.
#[derive(Default)]
pub struct Kernel(OnceCell<Functions>);

impl Kernel {
    /// Reads the list of a kernel's functions.
    pub fn of_list(list: &DomainFile) -> Result<Self> {
        let name = list.file.display();
        let known = parse(&fs::read(&list.file).with_context(|| name.to_string())?);
        ensure!(
            !known.is_empty(),
            "{name}: no functions with addresses found, {KALLSYMS} of domain {} expected, as root \
             reads it there",
            list.domain
        );
        Ok(Self(OnceCell::from(Functions::new(known))))
    }

    /// Returns a kernel with these functions: the address and the name of each.
    pub fn of_functions(known: Vec<(u64, String)>) -> Self {
        Self(OnceCell::from(Functions::new(known)))
    }

    /// Returns the kernel's functions that contain any of these addresses.
    pub fn functions(&self, addresses: &BTreeSet<u64>) -> Vec<Symbol> {
        self.0.get_or_init(Functions::of_kernel).with(addresses)
    }
}

/// The kernels of domains of which the user has given lists of functions.
#[derive(Default)]
pub struct Kernels(Vec<(DomainFile, Kernel)>);

impl Kernels {
    /// Reads these lists.
    pub fn of_lists(lists: &[DomainFile]) -> Result<Self> {
        let read = |list: &DomainFile| Ok((list.clone(), Kernel::of_list(list)?));
        Ok(Self(lists.iter().map(read).collect::<Result<_>>()?))
    }

    /// Returns the kernel of a domain. The profile has the names of domains.
    pub fn of(&self, profile: &Profile, domain: u32) -> Option<&Kernel> {
        let of_domain = self.0.iter().find(|(list, _)| list.is_of(profile, domain));
        of_domain.map(|(_, kernel)| kernel)
    }
}

/// Returns the address and the name of each function of this machine's kernel.
pub fn functions_of_kernel() -> Vec<(u64, String)> {
    Functions::of_kernel().0
}

/// All functions of a hypervisor or a kernel, in the order of their addresses. Each ends where the
/// next one begins. The end of the last one is unknown, so no address counts as part of it.
struct Functions(Vec<(u64, String)>);

impl Functions {
    /// Asks Xen.
    fn of_xen() -> Self {
        match Xen::open().and_then(|xen| xen.symbols()) {
            Ok(known) => {
                Self::new(known.into_iter().map(|symbol| (symbol.address, symbol.name)).collect())
            }
            Err(error) => {
                print_note(format_args!("Xen's functions stay without names: {error}"));
                Self(Vec::new())
            }
        }
    }

    /// Reads the functions of this kernel.
    fn of_kernel() -> Self {
        let known = parse(&fs::read(KALLSYMS).unwrap_or_default());
        if known.is_empty() {
            print_note(format_args!(
                "the kernel's functions stay without names: {KALLSYMS} has no addresses for this \
                 user; root sees them, and others after `sysctl kernel.kptr_restrict=0` if they \
                 may sample the kernel"
            ));
        }
        Self::new(known)
    }

    /// Sorts the functions. Of several with the same address, this keeps the first one whose name
    /// does not begin with an underscore, as names of sections do.
    fn new(mut known: Vec<(u64, String)>) -> Self {
        known.sort_by_key(|(address, name)| (*address, name.starts_with('_')));
        known.dedup_by_key(|(address, _)| *address);
        Self(known)
    }

    /// Returns the functions that contain any of the addresses.
    fn with(&self, addresses: &BTreeSet<u64>) -> Vec<Symbol> {
        let ends = self.0.iter().skip(1).map(|&(address, _)| address);
        let symbols = self.0.iter().zip(ends);
        symbols
            .filter(|((start, _), end)| addresses.range(*start..*end).next().is_some())
            .map(|((start, name), end)| Symbol { start: *start, end, name: name.clone() })
            .collect()
    }
}

/// Parses `/proc/kallsyms`: address, kind and name in each line.
fn parse(text: &[u8]) -> Vec<(u64, String)> {
    let symbol = |line: &[u8]| {
        let line = str::from_utf8(line).ok()?;
        let mut words = line.split_ascii_whitespace();
        let address =
            u64::from_str_radix(words.next()?, 16).ok().filter(|&address| address != 0)?;
        let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
        is_code.then_some((address, words.next()?.to_owned()))
    };
    text.split(|&byte| byte == b'\n').filter_map(symbol).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Thread;

    fn symbol(start: u64, end: u64, name: &str) -> Symbol {
        Symbol { start, end, name: name.to_owned() }
    }

    #[test]
    fn only_functions_with_samples_are_kept() {
        let known = [
            (0x40, "c"),
            (0x10, "a"),
            (0x20, "_start"),
            (0x20, "b"),
            (0x20, "alias"),
            (0x50, "end"),
        ];
        let known = || known.iter().map(|&(at, name)| (at, name.to_owned())).collect::<Vec<_>>();
        let around =
            |addresses: &[u64]| Functions::new(known()).with(&addresses.iter().copied().collect());
        assert_eq!(around(&[0x10, 0x1f, 0x3f]), [symbol(0x10, 0x20, "a"), symbol(0x20, 0x40, "b")]);
        assert_eq!(around(&[0xf, 0x50, u64::MAX]), []);
        assert_eq!(around(&[0x4f]), [symbol(0x40, 0x50, "c")]);
    }

    #[test]
    fn kallsyms_is_code_with_addresses() {
        let text = b"ffffffff81000000 T _stext\nffffffff81000010 t one\t[module]\n\
                     ffffffff81000020 d data\n0000000000000000 T hidden\nnonsense\n\xff T x\n\
                     10 T\n20 W weak\n";
        let expected =
            [(0xffff_ffff_8100_0000, "_stext"), (0xffff_ffff_8100_0010, "one"), (0x20, "weak")];
        assert_eq!(parse(text), expected.map(|(at, name)| (at, name.to_owned())));
    }

    #[test]
    fn another_domains_kernel_has_the_functions_of_its_list() {
        let file = std::env::temp_dir().join(format!("perfctr-kallsyms-{}", std::process::id()));
        let list: DomainFile = format!("3={}", file.display()).parse().unwrap();
        fs::write(&file, "10 T a\n20 t b\n30 T end\n").unwrap();
        let named = Kernel::of_list(&list).unwrap().functions(&BTreeSet::from([0x2f]));
        assert_eq!((&*list.domain, named), ("3", vec![symbol(0x20, 0x30, "b")]));
        fs::write(&file, "0000000000000000 T hidden\n").unwrap();
        let error = Kernel::of_list(&list).err().unwrap().to_string();
        fs::remove_file(&file).unwrap();
        assert!(error.contains("no functions with addresses found"), "{error}");
        let error = format!("{:#}", Kernel::of_list(&list).err().unwrap());
        assert!(error.contains("No such file"), "{error}");
        for wrong in ["", "3", "3=", "=/x"] {
            let error = wrong.parse::<DomainFile>().unwrap_err();
            assert!(error.starts_with(&format!("`{wrong}` found")), "{error}");
        }
    }

    #[test]
    fn a_file_is_of_the_domain_with_its_number_or_its_name() {
        let mut profile = Profile::new(Vec::new(), String::new(), String::new(), 1);
        for (pid, name) in [(3, "web"), (3, "web"), (4, "5"), (6, "twin"), (7, "twin")] {
            let name = name.to_owned();
            profile.threads.push(Thread { tid: 0, pid, name, count: 0, task: None });
        }
        let number = |text: &str| {
            let file: DomainFile = format!("{text}=/x").parse().unwrap();
            file.number(&profile).map_err(|error| error.to_string())
        };
        assert_eq!((number("web"), number("3"), number("7")), (Ok(3), Ok(3), Ok(7)));
        assert!(number("5").unwrap_err().contains("no samples of domain 5"), "a number is no name");
        assert!(number("we").unwrap_err().contains("no samples of domain we"));
        assert!(number("twin").unwrap_err().contains("2 domains have this name"));
    }

    #[test]
    fn the_file_must_be_that_of_the_running_xen() {
        let this = std::env::current_exe().unwrap();
        let own = Facts::read(&this).build_id.unwrap();
        let (path, facts) = check_xen_syms(&this, Some(&own)).unwrap();
        assert_eq!((path, facts.build_id.as_ref()), (fs::canonicalize(&this).unwrap(), Some(&own)));
        let error = check_xen_syms(&this, Some("00ff")).unwrap_err().to_string();
        let expected = format!("build-id {own} found, but the Xen that is running has 00ff");
        assert!(error.ends_with(&expected), "{error}");
        let error =
            check_xen_syms("/proc/self/maps".as_ref(), Some("00ff")).unwrap_err().to_string();
        assert!(error.ends_with("this is no executable file, such as xen-syms"), "{error}");
        assert!(check_xen_syms("/nowhere".as_ref(), None).is_err());
        assert!(check_xen_syms(&this, None).is_ok(), "nobody can check it");
    }

    #[test]
    fn of_the_files_that_are_there_the_running_xens_is_taken() {
        let this = std::env::current_exe().unwrap();
        let own = Facts::read(&this).build_id.unwrap();
        let files = || vec!["/proc/self/maps".into(), this.clone()];
        assert_eq!(of_this(Some(&own), files()).unwrap().0, fs::canonicalize(&this).unwrap());
        assert!(of_this(Some("00ff"), files()).is_none());
        assert!(of_this(None, files()).is_none());
    }
}
