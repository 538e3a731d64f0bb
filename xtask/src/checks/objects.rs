// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Whether the Rust objects keep the promises that their surroundings rely on.
//!
//! They are linked into a hypervisor and a kernel: they may call only what the glue provides,
//! cannot panic, do not touch vector registers, jump only to fixed places, and need no table of
//! addresses.

use std::path::Path;

use anyhow::{Result, bail};

use crate::artefacts::rustobj;
use crate::tools::sh::{self, cmd};

/// Functions that C provides to the Rust code start with this.
const GLUE_PREFIX: &str = "perfctr_glue_";

/// What the compiler calls on its own, and Xen and Linux provide.
const COMPILER_CALLS: &[&str] = &["memcpy", "memset", "memcmp", "memmove"];

/// Checks both objects; the error lists every broken promise.
pub fn check() -> Result<()> {
    let mut faults = Vec::new();
    for (name, object) in
        [("hypervisor", rustobj::hypervisor()?), ("kernel module", rustobj::module()?)]
    {
        let found = faults_of(&object)?;
        faults.extend(found.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    if !faults.is_empty() {
        bail!("the Rust objects break their promises:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

fn faults_of(object: &Path) -> Result<Vec<String>> {
    let mut faults = undefined_faults(&sh::output(cmd("nm", ["-u", "-j"]).arg(object))?);
    faults.extend(symbol_faults(&sh::output(cmd("nm", ["-j"]).arg(object))?));
    faults.extend(code_faults(&sh::output(
        cmd("objdump", ["-d", "--no-show-raw-insn"]).arg(object),
    )?));
    faults.extend(relocation_faults(&sh::output(cmd("objdump", ["-r"]).arg(object))?));
    Ok(faults)
}

fn undefined_faults(symbols: &str) -> Vec<String> {
    symbols
        .lines()
        .map(str::trim)
        .filter(|name| !name.starts_with(GLUE_PREFIX) && !COMPILER_CALLS.contains(name))
        .map(|name| format!("needs {name}, which nobody provides"))
        .collect()
}

fn symbol_faults(symbols: &str) -> Vec<String> {
    let panicking = |name: &&str| name.contains("panic") || name.contains("unwind");
    symbols.lines().filter(panicking).map(|name| format!("can panic: {name}")).collect()
}

/// Looks at a disassembly: a line with `<name>:` starts a function, the others are
/// `address: TAB instruction`.
fn code_faults(disassembly: &str) -> Vec<String> {
    let mut function = "";
    let mut faults = Vec::new();
    for line in disassembly.lines() {
        if let Some(name) = line.strip_suffix(">:").and_then(|l| l.split_once('<')) {
            function = name.1;
        }
        let Some((_, instruction)) = line.split_once('\t') else { continue };
        let mnemonic = instruction.split_whitespace().next().unwrap_or_default();
        let is_branch = mnemonic.starts_with("call") || mnemonic.starts_with("jmp");
        if is_branch && instruction.contains('*') {
            faults.push(format!("indirect branch in {function}: {instruction}"));
        }
        if ["%xmm", "%ymm", "%zmm", "%mm", "%st"].iter().any(|reg| instruction.contains(reg)) {
            faults.push(format!("vector or floating-point register in {function}: {instruction}"));
        }
        if mnemonic.starts_with("ud2") {
            faults.push(format!("deliberate fault in {function}"));
        }
    }
    faults
}

fn relocation_faults(relocations: &str) -> Vec<String> {
    let table =
        |line: &&str| line.contains("GOT") || line.contains("TLS") || line.contains("TPOFF");
    relocations.lines().filter(table).map(|line| format!("table of addresses: {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_symbols_are_the_glue_and_the_compiler_calls() {
        assert!(undefined_faults("perfctr_glue_x\nmemcpy\n").is_empty());
        assert_eq!(undefined_faults("printk\n").len(), 1);
        assert_eq!(symbol_faults("core_panicking\nfine\n").len(), 1);
    }

    #[test]
    fn code_is_judged_by_instruction() {
        let text = "0000 <good>:\n   0:\tcall   10 <x>\n   5:\tmov    (%rax),%rcx\n";
        assert!(code_faults(text).is_empty());
        let bad = "0000 <bad>:\n 0:\tcall   *%rax\n 2:\tmovups %xmm0,(%rdi)\n 5:\tud2\n";
        let faults = code_faults(bad);
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults.iter().all(|fault| fault.contains("bad")));
    }

    #[test]
    fn a_table_of_addresses_is_found() {
        assert_eq!(relocation_faults("0 R_X86_64_GOTPCREL memcpy\n1 R_X86_64_PLT32 x\n").len(), 1);
    }
}
