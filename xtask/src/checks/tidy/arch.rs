// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks that the cores distinguish processor architectures only in their `arch` modules. Nothing
//! else in them names x86's instructions and registers, not even a comment.

use std::collections::BTreeMap;

use anyhow::Result;

use super::Tree;

/// The sources that run on any machine.
const CORES: [&str; 3] = ["shared-abi/src/", "hv-driver/src/", "guest-kmod/src/"];

/// Words that only x86 has, in lower case.
const WORDS: [&str; 25] = [
    "x86",
    "rdpmc",
    "rdtsc",
    "rdmsr",
    "wrmsr",
    "msr",
    "msrs",
    "cpuid",
    "lfence",
    "pebs",
    "apic",
    "apics",
    "lvtpc",
    "cr4",
    "eflags",
    "rflags",
    "vmrun",
    "vmcb",
    "vmcs",
    "vmx",
    "svm",
    "guestonly",
    "hostonly",
    "lbr",
    "ibs",
];

/// How names of x86's registers begin, in lower case.
const REGISTERS: [&str; 2] = ["ia32_", "perfevtsel"];

/// Finds files of the cores that name x86. `allowed` are files that may, each with its reason.
pub fn faults(tree: &Tree, allowed: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut used = Vec::new();
    for (name, text) in tree.files(&["rs"])? {
        let is_core = CORES.iter().any(|core| name.starts_with(core));
        if !is_core || name.contains("/arch/") {
            continue;
        }
        for (line, number) in text.lines().zip(1..) {
            let Some(word) = named(line) else { continue };
            used.push(name);
            if !allowed.contains_key(name) {
                faults.push(format!("{name}:{number}: {word} belongs into an `arch` module"));
            }
        }
    }
    let vain = allowed.keys().filter(|name| !used.contains(&name.as_str()));
    faults.extend(vain.map(|name| format!("xtask/tidy.toml: {name} names no architecture")));
    Ok(faults)
}

/// Returns the first word of the line that only x86 has.
fn named(line: &str) -> Option<&str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').find(|word| {
        let word = word.to_lowercase();
        WORDS.contains(&word.as_str()) || REGISTERS.iter().any(|name| word.starts_with(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_is_named_in_its_module_alone() {
        let tree = Tree::planted(
            "arch",
            &[
                ("hv-driver/src/arch/x86.rs", "// RDPMC\nconst IA32_PMC0: u32 = 1;\n"),
                ("hv-driver/src/vcpu.rs", "fn f() {}\n/// Writes `IA32_PMC0`.\nfn rdpmc() {}\n"),
                ("shared-abi/src/page.rs", "pub msr_reads: u64, // or an MSR\n"),
                ("shared-abi/src/count.rs", "let msr_reads = cpuids(x86_64);\n"),
                ("libperfctr-rs/src/rdpmc.rs", "fn rdpmc() {}\n"),
            ],
        );
        let found = [
            "hv-driver/src/vcpu.rs:2: IA32_PMC0 belongs into an `arch` module",
            "hv-driver/src/vcpu.rs:3: rdpmc belongs into an `arch` module",
            "shared-abi/src/page.rs:1: MSR belongs into an `arch` module",
        ];
        assert_eq!(faults(&tree, &BTreeMap::new()).unwrap(), found);
        let listed = ["shared-abi/src/page.rs", "shared-abi/src/count.rs"];
        let listed = listed.map(|name| (name.to_owned(), "reason".to_owned())).into();
        let vain = "xtask/tidy.toml: shared-abi/src/count.rs names no architecture";
        assert_eq!(faults(&tree, &listed).unwrap(), [found[0], found[1], vain]);
    }
}
