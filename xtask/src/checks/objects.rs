// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks whether the Rust objects keep the promises on which the surrounding programs rely.
//!
//! The objects are linked into a hypervisor and a kernel. So they may call only functions that the
//! glue provides, and must not panic. They do not touch vector registers, jump only to fixed
//! places, return only through the surrounding program's thunk, and need no table of addresses and
//! little stack.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::artefacts::rustobj::Purpose;
use crate::artefacts::symbol_names::NAME_BYTES_MAX;
use crate::artefacts::{guest, kernel, kvm, rustobj};
use crate::tools::sh::{self, cmd};

/// The beginning of the names of functions that C provides to the Rust code.
const GLUE_PREFIX: &str = "perfctr_glue_";

/// Functions that the compiler calls on its own, and that Xen and Linux provide. The last one
/// replaces every return, so that the code that protects returns on this CPU is in one place.
const COMPILER_CALLS: &[&str] = &["memcpy", "memset", "memcmp", "memmove", "__x86_return_thunk"];

/// Functions that the kernel module's core calls without glue in between. The kernel exports each
/// of them to modules, with the same signature in every release that is supported.
pub const KERNEL_CALLS: &[&str] =
    &["cpus_read_lock", "cpus_read_unlock", "free_pages", "kfree", "synchronize_rcu"];

/// The most stack that the functions of an object may use. It is little more than they need, so
/// that an unintended copy of something large is noticed. Unit: bytes.
#[derive(Clone, Copy)]
struct Frames {
    max: u64,
    /// Functions that may use more, and how much.
    larger: &'static [(&'static str, u64)],
}

/// A hypervisor's CPU has 8 KiB of stack in all. There is room for a vCPU's state once, where it is
/// made, but not twice.
const HYPERVISOR_FRAMES: Frames = Frames { max: 2_900, larger: &[] };

/// The kernel calls the module where Linux has used much of its stack already. The exception is a
/// function that tries whether a group of events fits a vCPU without other events, so it has such a
/// vCPU's events on its stack. perf calls it when it makes an event, and no deep calls follow.
const MODULE_FRAMES: Frames = Frames { max: 1_400, larger: &[("perfctr_core_events_fit", 2_560)] };

impl Frames {
    fn max_of(&self, function: &str) -> u64 {
        let larger = self.larger.iter().find(|(name, _)| *name == function);
        larger.map_or(self.max, |&(_, max)| max)
    }
}

/// Checks every object that ships. The error lists every broken promise.
pub fn check() -> Result<()> {
    let xens = sh::output(cmd("nm", ["-j"]).arg(rustobj::hypervisor(Purpose::Use)?))?;
    let mut faults = name_faults(&xens);
    for (name, object, calls, frames) in [
        ("Xen", rustobj::hypervisor(Purpose::Use)?, &[][..], HYPERVISOR_FRAMES),
        ("KVM", rustobj::kvm()?, &[], HYPERVISOR_FRAMES),
        ("kernel module", rustobj::module(Purpose::Use)?, KERNEL_CALLS, MODULE_FRAMES),
    ] {
        let found = faults_of(&object, calls, frames)?;
        faults.extend(found.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    if !faults.is_empty() {
        bail!("the Rust objects break their promises:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// Checks the module for guests with a version's kernel, or with Debian 12's usual one.
pub fn check_module(version: Option<&str>) -> Result<()> {
    check_linked(&guest::module(&kernel::of(version)?, Purpose::Use)?)
}

/// Checks that DKMS lets the module be built for a kernel without support for Xen, that the build
/// works, and that the module then calls nothing of Xen's. Kernels with a system of their own are
/// left out, since their headers are in that system.
pub fn check_module_without_xen() -> Result<()> {
    let kernel = kernel::kernel()?;
    if kernel.system.is_some() {
        return Ok(());
    }
    let settings = "packaging/debian/perfctr-dkms.dkms";
    let text = fs::read_to_string(sh::project().join(settings)).context(settings)?;
    let wants_xen = text.lines().any(|line| line.starts_with("BUILD_") && line.contains("XEN"));
    ensure!(!wants_xen, "{settings} leaves out kernels without Xen, which guests of KVM may have");
    let module = guest::module_without_xen(&kernel)?;
    let called = sh::output(cmd("nm", ["-u"]).arg(&module))?;
    let of_xen = |line: &&str| ["xen", "hypercall_page", "virq"].iter().any(|n| line.contains(n));
    let of_xen: Vec<&str> = called.lines().filter(of_xen).map(str::trim).collect();
    ensure!(of_xen.is_empty(), "{} calls {of_xen:?}, which are Xen's", module.display());
    check_linked(&module)
}

/// Checks each of KVM's modules, the one that has the driver among them, for a version's kernel or
/// for Debian 12's.
pub fn check_kvm(version: Option<&str>) -> Result<()> {
    let built = kvm::modules(&kernel::of(version)?)?;
    kvm::MODULES.iter().try_for_each(|module| check_linked(&built.join(module)))
}

/// Checks the findings of the kernel's own tool about a module's objects, the Rust one among them.
fn check_linked(module: &Path) -> Result<()> {
    let sections = sh::output(cmd("readelf", ["-SW"]).arg(module))?;
    let code = sh::output(cmd("objdump", ["-dr", "--no-show-raw-insn"]).arg(module))?;
    let faults = module_faults(&sections, &code);
    if !faults.is_empty() {
        bail!("{}:\n  {}", module.display(), faults.join("\n  "));
    }
    Ok(())
}

/// Finds faults of a module. The section of returns that the kernel patches has to list each of
/// them, and the kernel's unwinder needs data. Per-CPU data must not contain addresses: many
/// releases of the kernel leave them 0 when they load a module.
fn module_faults(sections: &str, code: &str) -> Vec<String> {
    let mut faults = Vec::new();
    // An entry of the list is a displacement of 32 bits.
    let listed = section_size(sections, ".return_sites").unwrap_or_default() / 4;
    let returns = code.lines().filter(|line| line.contains("__x86_return_thunk")).count();
    if listed != returns {
        faults.push(format!("{returns} returns, but the kernel is told of {listed}"));
    }
    if section_size(sections, ".orc_unwind").unwrap_or_default() == 0 {
        faults.push("no data for the kernel's unwinder".to_owned());
    }
    if section_size(sections, ".rela.data..percpu").is_some() {
        faults.push("an address in the data of each CPU, which the kernel leaves 0".to_owned());
    }
    faults
}

/// Returns the size of a section in the table that `readelf -SW` prints: name, type, address,
/// offset, size.
fn section_size(sections: &str, name: &str) -> Option<usize> {
    let words = |line: &'_ str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    sections.lines().map(words).find_map(|words| {
        let at = words.iter().position(|word| word == name)?;
        usize::from_str_radix(words.get(at + 4)?, 16).ok()
    })
}

/// Returns the faults of an object. `calls` are functions of its surroundings that it may call.
fn faults_of(object: &Path, calls: &[&str], frames: Frames) -> Result<Vec<String>> {
    let mut faults = undefined_faults(&sh::output(cmd("nm", ["-u", "-j"]).arg(object))?, calls);
    faults.extend(symbol_faults(&sh::output(cmd("nm", ["-j"]).arg(object))?));
    let code = sh::output(cmd("objdump", ["-d", "--no-show-raw-insn"]).arg(object))?;
    faults.extend(code_faults(&code, frames));
    faults.extend(relocation_faults(&sh::output(cmd("objdump", ["-r"]).arg(object))?));
    Ok(faults)
}

fn undefined_faults(symbols: &str, calls: &[&str]) -> Vec<String> {
    let is_provided = |name: &&str| {
        name.starts_with(GLUE_PREFIX) || COMPILER_CALLS.contains(name) || calls.contains(name)
    };
    symbols
        .lines()
        .map(str::trim)
        .filter(|name| !is_provided(name))
        .map(|name| format!("needs {name}, which nobody provides"))
        .collect()
}

fn symbol_faults(symbols: &str) -> Vec<String> {
    let panicking = |name: &&str| name.contains("panic") || name.contains("unwind");
    symbols.lines().filter(panicking).map(|name| format!("can panic: {name}")).collect()
}

/// Finds names of Xen's object that Xen cannot read.
fn name_faults(symbols: &str) -> Vec<String> {
    let too_long = symbols.lines().filter(|name| name.len() > NAME_BYTES_MAX);
    let fault = |name: &str| {
        format!("Xen: the name {name} has {} bytes, more than {NAME_BYTES_MAX}", name.len())
    };
    too_long.map(fault).collect()
}

/// Reads a disassembly: a line with `<name>:` starts a function, the others are `address: TAB
/// instruction`.
fn code_faults(disassembly: &str, frames: Frames) -> Vec<String> {
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
        if mnemonic.starts_with("ret") {
            faults.push(format!("return past the thunk in {function}"));
        }
        let max = frames.max_of(function);
        if let Some(bytes) = frame(instruction).filter(|&bytes| bytes > max) {
            faults.push(format!("{bytes} bytes of stack in {function}, more than {max}"));
        }
        if mnemonic.starts_with("ud2") {
            faults.push(format!("deliberate fault in {function}"));
        }
    }
    faults
}

/// Returns how many bytes of the stack an instruction reserves, if it is the one that makes room
/// for a function's variables.
fn frame(instruction: &str) -> Option<u64> {
    let operands = instruction.trim().strip_prefix("sub")?.trim_start();
    let bytes = operands.strip_prefix("$0x")?.strip_suffix(",%rsp")?;
    u64::from_str_radix(bytes, 16).ok()
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
        assert!(undefined_faults("perfctr_glue_x\nmemcpy\n", &[]).is_empty());
        assert_eq!(undefined_faults("printk\n", &[]).len(), 1);
        assert_eq!(undefined_faults("printk\nkfree\n", &["kfree"]).len(), 1);
        assert_eq!(symbol_faults("core_panicking\nfine\n").len(), 1);
    }

    #[test]
    fn names_that_xen_cannot_read_are_found() {
        let [fits, long] = [NAME_BYTES_MAX, NAME_BYTES_MAX + 1].map(|bytes| "n".repeat(bytes));
        assert!(name_faults(&fits).is_empty());
        assert_eq!(name_faults(&format!("{fits}\n{long}\n")).len(), 1);
    }

    #[test]
    fn code_is_judged_by_instruction() {
        let text = "0000 <good>:\n   0:\tcall   10 <x>\n   5:\tmov    (%rax),%rcx\n";
        assert!(code_faults(text, MODULE_FRAMES).is_empty());
        let bad = "0000 <bad>:\n 0:\tcall   *%rax\n 2:\tmovups %xmm0,(%rdi)\n 5:\tud2\n";
        let faults = code_faults(bad, MODULE_FRAMES);
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults.iter().all(|fault| fault.contains("bad")));
    }

    #[test]
    fn a_function_that_takes_much_of_the_stack_is_found() {
        let takes = |frames, function, bytes| {
            let code = format!("0 <{function}>:\n 0:\tsub    ${bytes:#x},%rsp\n");
            code_faults(&code, frames)
        };
        let (module, fits) = (MODULE_FRAMES, "perfctr_core_events_fit");
        assert!(takes(HYPERVISOR_FRAMES, "f", 2_900).is_empty());
        assert_eq!(takes(HYPERVISOR_FRAMES, "f", 2_901).len(), 1);
        assert!(takes(module, "f", 1_400).is_empty());
        // A thread's control once used this much, for copies of its argument.
        let faults = takes(module, "ThreadPmu7control", 2_152);
        assert_eq!(faults, ["2152 bytes of stack in ThreadPmu7control, more than 1400"]);
        assert!(takes(module, fits, 2_152).is_empty());
        assert_eq!(takes(module, fits, 4_096).len(), 1);
        assert_eq!(takes(HYPERVISOR_FRAMES, fits, 2_901).len(), 1, "another object's function");
        assert!(code_faults("0 <f>:\n 0:\tsub    $0x1000,%rax\n", module).is_empty());
    }

    #[test]
    fn a_return_goes_through_the_thunk() {
        assert!(code_faults("0 <f>:\n 0:\tjmp    5 <f+0x5>\n", MODULE_FRAMES).is_empty());
        for bare in ["ret", "ret    $0x8", "retq"] {
            let faults = code_faults(&format!("0 <f>:\n 0:\t{bare}\n"), MODULE_FRAMES);
            assert_eq!(faults, ["return past the thunk in f"]);
        }
    }

    #[test]
    fn returns_that_the_kernel_is_not_told_of_are_found() {
        let sections = "  [81] .return_sites PROGBITS 0000 009c28 000008 00 A 0 0 1\n\
                          [83] .orc_unwind PROGBITS 0000 009de4 00147c 00 A 0 0 1\n";
        let code = "jmp 5\n 1: R_X86_64_PLT32 __x86_return_thunk-0x4\n";
        assert!(module_faults(sections, &code.repeat(2)).is_empty());
        let faults = module_faults(sections, &code.repeat(3));
        assert_eq!(faults, ["3 returns, but the kernel is told of 2"]);
        assert_eq!(module_faults("", "").len(), 1);
    }

    #[test]
    fn an_address_in_data_of_each_cpu_is_found() {
        let unwinder = "  [83] .orc_unwind PROGBITS 0000 009de4 00147c 00 A 0 0 1\n";
        let addresses = "  [294] .rela.data..percpu RELA 0000 38a3d0 000018 18 I 329 293 8\n";
        assert!(module_faults(unwinder, "").is_empty());
        let faults = module_faults(&format!("{unwinder}{addresses}"), "");
        assert_eq!(faults, ["an address in the data of each CPU, which the kernel leaves 0"]);
    }

    #[test]
    fn a_table_of_addresses_is_found() {
        assert_eq!(relocation_faults("0 R_X86_64_GOTPCREL memcpy\n1 R_X86_64_PLT32 x\n").len(), 1);
    }
}
