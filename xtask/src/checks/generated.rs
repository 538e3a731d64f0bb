// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks the C headers that are generated from Rust and committed, so that C can be built without
//! Rust. One header has the shared ABI. For each boundary crate, one has its entries, the functions
//! that it calls, and its structures. One boundary is that of a library, whose header is for the
//! library's users.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use cbindgen::{
    Builder, Config, DocumentationLength, EnumConfig, ExportConfig, Language, RenameRule, Style,
};

use super::objects::KERNEL_CALLS;
use crate::tools::sh;

/// A boundary crate and its header.
struct Boundary {
    /// The Rust files, the one with the entries first.
    sources: &'static [&'static str],
    header: &'static str,
    /// The types that cross the boundary, by their names in Rust and in C.
    names: &'static [(&'static str, &'static str)],
    reader: Reader,
}

/// Who a header is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// Our own C, whose reader has the Rust beside it.
    Glue,
    /// Users of a library, in C or C++, who have nothing but its header. Its macros begin with this
    /// text.
    User(&'static str),
}

const BOUNDARIES: &[Boundary] = &[
    Boundary {
        sources: &[
            "hv-driver/ffi/src/lib.rs",
            "hv-driver/ffi/src/on_cpu.rs",
            "hv-driver/src/account.rs",
            "hv-driver/src/demand.rs",
            "hv-driver/src/driver.rs",
            "hv-driver/src/policy.rs",
            "hv-driver/src/profile.rs",
            "hv-driver/src/reserve.rs",
            "hv-driver/src/sampling.rs",
            "hv-driver/src/settings.rs",
            "hv-driver/src/guest.rs",
            "hv-driver/src/arch/x86/identity.rs",
        ],
        header: "hv-driver/glue/perfctr_core.h",
        names: &[
            ("Driver", "perfctr_core_driver"),
            ("CpuObject", "perfctr_core_cpu"),
            ("SampleRing", "perfctr_core_ring"),
            ("Account", "perfctr_core_vcpu_account"),
            ("VcpuObject", "perfctr_core_vcpu"),
            ("DomainObject", "perfctr_core_domain"),
            ("PolicyChange", "perfctr_policy_change"),
            ("Options", "perfctr_options"),
            ("HostFacts", "perfctr_host_facts"),
            ("Why", "perfctr_why"),
            ("Identity", "perfctr_cpuid"),
            ("Guest", "perfctr_guest"),
            ("Rings", "perfctr_rings"),
            ("Clock", "perfctr_clock"),
            ("DRIVER_BYTES", "PERFCTR_DRIVER_BYTES"),
            ("CPU_BYTES", "PERFCTR_CPU_BYTES"),
            ("VCPU_BYTES", "PERFCTR_VCPU_BYTES"),
            ("VcpuDemand", "perfctr_core_vcpu_demand"),
            ("VCPU_DEMAND_BYTES", "PERFCTR_VCPU_DEMAND_BYTES"),
            ("Window", "perfctr_core_window"),
            ("WINDOW_BYTES", "PERFCTR_WINDOW_BYTES"),
            ("DOMAIN_BYTES", "PERFCTR_DOMAIN_BYTES"),
            ("RING_BYTES", "PERFCTR_RING_BYTES"),
            ("ACCOUNT_BYTES", "PERFCTR_ACCOUNT_BYTES"),
            ("RECORD_AREA_BYTES", "PERFCTR_RECORD_AREA_BYTES"),
            ("Reservation", "perfctr_core_reservation"),
            ("RESERVATION_BYTES", "PERFCTR_RESERVATION_BYTES"),
            ("HostStep", "perfctr_host_step"),
            ("ARGUMENT_BYTES", "PERFCTR_ARGUMENT_BYTES"),
            ("NMI_FOREIGN", "PERFCTR_NMI_FOREIGN"),
            ("NMI_HANDLED", "PERFCTR_NMI_HANDLED"),
            ("NMI_GUEST", "PERFCTR_NMI_GUEST"),
        ],
        reader: Reader::Glue,
    },
    Boundary {
        // The modules with the entries are found from the first file.
        sources: &[
            "guest-kmod/ffi/src/lib.rs",
            "guest-kmod/src/mapping.rs",
            "guest-kmod/src/perf/branches.rs",
            "guest-kmod/src/perf/event.rs",
            "guest-kmod/src/perf/held.rs",
            "guest-kmod/src/perf/local.rs",
            "guest-kmod/src/perf/sample.rs",
            "guest-kmod/src/ring.rs",
            "guest-kmod/src/shown.rs",
            "guest-kmod/src/watch.rs",
        ],
        header: "guest-kmod/glue/perfctr_core.h",
        names: &[
            ("VcpuObject", "perfctr_core_vcpu"),
            ("ThreadObject", "perfctr_core_thread"),
            ("User", "perfctr_core_user"),
            ("OnVcpu", "perfctr_on_vcpu"),
            ("OnVcpuOrAsleep", "perfctr_on_vcpu_or_asleep"),
            ("OnThread", "perfctr_on_thread"),
            ("Present", "perfctr_present"),
            ("Call", "perfctr_call"),
            ("RingPlace", "perfctr_ring_place"),
            ("Frame", "perfctr_frame"),
            ("Admitted", "perfctr_admitted"),
            ("ARGUMENT_WORDS", "PERFCTR_ARGUMENT_WORDS"),
            ("THREAD_BYTES", "PERFCTR_THREAD_BYTES"),
            ("BranchStack", "perfctr_branch_stack"),
            ("EventAttr", "perfctr_event_attr"),
            ("EventConfig", "perfctr_event_config"),
            ("EventTime", "perfctr_event_time"),
            ("Registers", "perfctr_registers"),
            ("Progress", "perfctr_progress"),
            ("Identity", "perfctr_identity"),
            ("Subject", "perfctr_subject"),
            ("ShownWords", "perfctr_shown"),
            ("IdentityWords", "perfctr_identity_words"),
            ("Mapping", "perfctr_mapping"),
            ("SUBJECT_OPEN", "PERFCTR_SUBJECT_OPEN"),
            ("SUBJECT_GUARDED", "PERFCTR_SUBJECT_GUARDED"),
            ("SUBJECT_KERNEL", "PERFCTR_SUBJECT_KERNEL"),
            ("PRECISE_MAX", "PERFCTR_PRECISE_MAX"),
            ("UNWATCH_DELAY_MS", "PERFCTR_UNWATCH_DELAY_MS"),
        ],
        reader: Reader::Glue,
    },
    Boundary {
        sources: &["libperfctr-rs/c/src/lib.rs"],
        header: "libperfctr-rs/c/include/perfctr_counts.h",
        names: &[
            ("Counters", "perfctr_counters"),
            ("Status", "perfctr_status"),
            ("ProviderNumber", "perfctr_provider"),
            ("Snapshot", "perfctr_reading"),
            ("Facts", "perfctr_facts"),
            ("RegionRow", "perfctr_region"),
            ("INTERFACE", "PERFCTR_COUNTS_INTERFACE"),
            ("EVENTS_MAX", "PERFCTR_COUNTS_EVENTS_MAX"),
            ("UNVERIFIED", "PERFCTR_COUNTS_UNVERIFIED"),
        ],
        reader: Reader::User("PERFCTR_COUNTS"),
    },
];

/// Atomic words as C knows them, which only reads them.
const ATOMICS: [(&str, &str); 3] =
    [("AtomicBool", "bool"), ("AtomicU32", "uint32_t"), ("AtomicU64", "uint64_t")];

/// The header of the shared ABI.
const ABI: &str = "shared-abi/include/perfctr_abi.h";

/// A generated header: its path, and the text that it has to have.
type Header = (&'static str, String);

/// Writes every header anew.
pub fn write() -> Result<()> {
    let root = sh::project();
    for (path, text) in generate(&root)? {
        fs::write(root.join(path), text).context(path)?;
    }
    Ok(())
}

/// Fails if a header differs from what Rust says.
pub fn check() -> Result<()> {
    let stale = stale(&sh::project())?;
    if !stale.is_empty() {
        bail!("not what Rust says: {}; `cargo xtask headers` writes them anew", stale.join(", "));
    }
    Ok(())
}

/// Returns the headers of the project at `root` that differ from what its Rust says, each with the
/// number of the first line that does.
fn stale(root: &Path) -> Result<Vec<String>> {
    let mut stale = Vec::new();
    for (path, text) in generate(root)? {
        let committed = fs::read_to_string(root.join(path)).context(path)?;
        if let Some(line) = first_difference(&committed, &text) {
            stale.push(format!("{path}:{line}"));
        }
    }
    Ok(stale)
}

/// Returns the number of the first line that differs.
fn first_difference(one: &str, other: &str) -> Option<usize> {
    if one == other {
        return None;
    }
    let same = one.lines().zip(other.lines()).take_while(|(a, b)| a == b).count();
    Some(same + 1)
}

fn generate(root: &Path) -> Result<Vec<Header>> {
    let mut headers = vec![(ABI, abi()?)];
    for boundary in BOUNDARIES {
        headers.push((boundary.header, boundary.generate(root)?));
    }
    Ok(headers)
}

fn abi() -> Result<String> {
    let mut text = String::new();
    shared_abi::c_header::write(&mut text)?;
    Ok(text)
}

impl Boundary {
    fn generate(&self, root: &Path) -> Result<String> {
        let mut builder = Builder::new().with_config(self.config());
        for source in self.sources {
            builder = builder.with_src(root.join(source));
        }
        let bindings = builder.generate().with_context(|| self.header)?;
        let mut text = Vec::new();
        bindings.write(&mut text);
        let text = String::from_utf8(text).context(self.header)?;
        // This removes rustdoc's links, and marks that kernel-doc would read.
        let text = text.replace("[`", "").replace("`]", "").replace("/**\n", "/*\n");
        match self.reader {
            Reader::Glue => {
                // The header has only the first line, which may end in a link to Rust.
                let text = text.replace("; see\n", ".\n");
                let cut = unfinished(&text);
                ensure!(
                    cut.is_none(),
                    "{}: a first line of documentation that ends with its sentence expected, \
                     found:{}",
                    self.header,
                    cut.unwrap_or_default()
                );
                Ok(text)
            }
            Reader::User(_) => Ok(for_users(&text)),
        }
    }

    fn config(&self) -> Config {
        let own = self.names.iter().map(|&(rust, c)| (rust.into(), c.into()));
        // These structures are declared by the other header, so the generator does not know them.
        let shared = shared_abi::c_header::TYPES.iter();
        let shared = shared.map(|&(rust, c)| (rust.into(), format!("struct {c}")));
        let atomics = ATOMICS.iter().map(|&(rust, c)| (rust.into(), c.into()));
        Config {
            language: Language::C,
            style: Style::Tag,
            header: Some(format!(
                "/* SPDX-License-Identifier: MIT OR GPL-2.0-only */\n\
                 /* Generated from {} by cargo xtask headers. */",
                self.sources[0]
            )),
            include_guard: Some(format!("{}_H", self.reader.macros())),
            sys_includes: self.reader.standard_headers(),
            includes: self.reader.own_headers(),
            no_includes: true,
            cpp_compat: self.reader != Reader::Glue,
            usize_is_size_t: true,
            enumeration: EnumConfig {
                rename_variants: RenameRule::QualifiedScreamingSnakeCase,
                ..EnumConfig::default()
            },
            documentation_length: match self.reader {
                Reader::Glue => DocumentationLength::Short,
                Reader::User(_) => DocumentationLength::Full,
            },
            export: ExportConfig {
                rename: own.chain(shared).chain(atomics).collect(),
                exclude: KERNEL_CALLS.iter().map(|&name| name.into()).collect(),
                ..ExportConfig::default()
            },
            ..Config::default()
        }
    }
}

impl Reader {
    fn macros(self) -> &'static str {
        match self {
            Self::Glue => "PERFCTR_CORE",
            Self::User(macros) => macros,
        }
    }

    fn standard_headers(self) -> Vec<String> {
        match self {
            Self::Glue => Vec::new(),
            Self::User(_) => vec!["stdint.h".into()],
        }
    }

    fn own_headers(self) -> Vec<String> {
        match self {
            Self::Glue => vec!["perfctr_abi.h".into()],
            Self::User(_) => Vec::new(),
        }
    }
}

/// Returns the last line of a comment that does not end with its sentence, if there is one.
fn unfinished(text: &str) -> Option<&str> {
    let with_next = text.lines().zip(text.lines().skip(1));
    let mut last = with_next.filter(|(_, next)| next.trim() == "*/").map(|(line, _)| line);
    last.find(|line| !line.ends_with('.'))
}

/// Makes the text fit for users in C. Removes what comments tell callers in Rust (that a pointer
/// must be valid), and comments with two slashes, which old C does not have.
fn for_users(text: &str) -> String {
    let text = text.replace(" // __cplusplus", "").replace("  // extern \"C\"", "");
    let text = text.replace("#endif \n", "#endif\n");
    let mut kept: Vec<&str> = Vec::new();
    let mut is_left_out = false;
    for line in text.lines() {
        let ends = line.trim() == "*/";
        if line.trim() == "* # Safety" {
            is_left_out = true;
            // The empty line before it goes, too.
            kept.pop();
        }
        is_left_out &= !ends;
        if !is_left_out {
            kept.push(line);
        }
    }
    kept.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Replaces `old` by `new` in one file of a copy of the project. Returns the headers that are
    /// then stale, each with the text of the line that `stale` names.
    fn stale_after(file: &str, old: &str, new: &str) -> Vec<(String, String)> {
        let copy = std::env::temp_dir().join(format!("perfctr-headers-{}", std::process::id()));
        // The generator reads the modules beside a source too.
        let folders = BOUNDARIES.iter().flat_map(|b| b.sources.iter().chain([&b.header]));
        let folders = folders.chain([&ABI]).map(|path| Path::new(path).parent().unwrap());
        for folder in folders.collect::<BTreeSet<_>>() {
            fs::create_dir_all(copy.join(folder)).unwrap();
            for entry in fs::read_dir(sh::project().join(folder)).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_file() {
                    fs::copy(entry.path(), copy.join(folder).join(entry.file_name())).unwrap();
                }
            }
        }
        let text = fs::read_to_string(copy.join(file)).unwrap();
        assert!(text.contains(old), "{file} has no {old}");
        fs::write(copy.join(file), text.replacen(old, new, 1)).unwrap();
        let stale = stale(&copy).unwrap().into_iter().map(|fault| {
            let (path, line) = fault.split_once(':').unwrap();
            let text = fs::read_to_string(copy.join(path)).unwrap();
            let line = text.lines().nth(line.parse::<usize>().unwrap() - 1).unwrap();
            (path.to_owned(), line.to_owned())
        });
        let stale = stale.collect();
        fs::remove_dir_all(copy).unwrap();
        stale
    }

    #[test]
    fn what_is_for_callers_in_rust_is_left_out() {
        let text = "/*\n * Says.\n *\n * # Safety\n *\n * A pointer.\n */\nint f(void);\n";
        assert_eq!(for_users(text), "/*\n * Says.\n */\nint f(void);\n");
    }

    #[test]
    fn comments_that_are_cut_are_found() {
        let text = "/*\n * Says.\n */\nint f(void);\n/*\n * Says what\n */\nint g(void);\n";
        assert_eq!(unfinished(text), Some(" * Says what"));
        assert_eq!(unfinished(&text.replace("what", "it.")), None);
    }

    #[test]
    fn a_drift_on_either_side_is_found_in_its_line() {
        let (guest, header) = ("guest-kmod/src/shown.rs", "guest-kmod/glue/perfctr_core.h");
        let (hypervisor, core) = ("hv-driver/ffi/src/lib.rs", "hv-driver/glue/perfctr_core.h");
        let (counts, user) =
            ("libperfctr-rs/c/src/lib.rs", "libperfctr-rs/c/include/perfctr_counts.h");
        assert!(stale_after(guest, "", "").is_empty());
        for (file, old, new, path, line) in [
            (
                guest,
                "hides_kernel: AtomicBool",
                "hides_kernel: AtomicU32",
                header,
                "bool hides_kernel",
            ),
            (header, "bool hides_kernel", "uint32_t hides_kernel", header, "uint32_t hides_kernel"),
            (hypervisor, "VCPU_BYTES: usize = ", "VCPU_BYTES: usize = 1", core, "VCPU_BYTES"),
            (counts, "pub retries: u32", "pub retries: u64", user, "uint32_t retries"),
            (user, "uint32_t retries", "uint64_t retries", user, "uint64_t retries"),
            (ABI, "perfctr_vcpu_slot) == 32", "perfctr_vcpu_slot) == 40", ABI, "== 40"),
        ] {
            let found = stale_after(file, old, new);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].0 == path && found[0].1.contains(line), "{found:?}");
        }
    }
}
