// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests how much of a KVM host's memory its guest's kernel can have pinned.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use memmap2::MmapMut;
use shared_abi::hypercall::{HvRegister, OP_REGISTER, OP_UNREGISTER};
use vm_tests::host::Host as _;
use vm_tests::kvm::Kvm;
use vm_tests::module;
use vm_tests::raw::{Argument, Refusal};
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use zerocopy::IntoBytes;

/// The size of a frame. Unit: KiB.
pub const PAGE_KIB: u64 = 4;
const PAGE_BYTES: usize = PAGE_KIB as usize * 1024;
/// The number of frames that the guest registers one after another.
const FRAMES: usize = 1_000;
/// After so many frames, the test asks the host what is locked.
const BETWEEN_LOOKS: usize = 100;
/// As much memory as any machine here may lock. Unit: KiB.
const PLENTY_KIB: u64 = 8 * 1024;

/// Memory of this process, which gives its frames to the hypervisor.
struct Frames {
    /// The memory. Nothing else uses it, so the hypervisor may write to it.
    _memory: MmapMut,
    /// The frames, in the guest's own numbers.
    gfns: Vec<u64>,
}

impl Frames {
    /// Takes memory, and asks the guest's kernel where it is.
    fn new(number: usize) -> Result<Self> {
        let mut memory = MmapMut::map_anon(number * PAGE_BYTES)?;
        memory.fill(1);
        memory.lock().context("mlock")?;
        let file = File::open("/proc/self/pagemap")?;
        let first = memory.as_ptr().addr() / PAGE_BYTES;
        let mut gfns = Vec::with_capacity(number);
        for page in first..first + number {
            let mut entry = [0; 8];
            file.read_exact_at(&mut entry, page as u64 * 8)?;
            // Documentation/admin-guide/mm/pagemap.rst
            let gfn = u64::from_le_bytes(entry) & ((1 << 55) - 1);
            ensure!(gfn != 0, "the kernel does not say where page {page:#x} is");
            gfns.push(gfn);
        }
        Ok(Self { _memory: memory, gfns })
    }
}

fn register(kvm: &Kvm, gfn: u64) -> Result<(), Refusal> {
    let mut register = HvRegister { gfn, ..HvRegister::default() };
    let argument = Argument::Bytes(register.as_mut_bytes());
    kvm.perfctr_op(OP_REGISTER, argument, size_of::<HvRegister>() as u32)
}

fn unregister(kvm: &Kvm) -> Result<(), Refusal> {
    kvm.perfctr_op(OP_UNREGISTER, Argument::Null, 0)
}

/// Tests a kernel that registers one frame after another, and what a limit of the host does.
pub fn run(tally: &mut Tally, kvm: &Kvm) -> Result<()> {
    module::unload_when_idle().context("cannot unload the module")?;
    let all = cpus()?;
    let frames = Frames::new(FRAMES)?;
    run_on(SELF, &all[..1])?;
    let name = "a kernel that registers one frame after another has one page pinned";
    let before = kvm.pinned()?;
    tally.check(name, equal(one_after_another(kvm, &frames.gfns), Ok([PAGE_KIB, 0])));
    let name = "a page that is given back is pinned no more";
    tally.check(name, equal(kvm.pinned(), Ok(before)));
    let name = "each vCPU can have one page pinned";
    let outcome = on_each(kvm, &all, &frames.gfns);
    tally.check(name, equal(outcome?, (Ok(all.len() as u64 * PAGE_KIB), Ok(0))));
    let name = "a machine that may lock no memory has no page";
    kvm.limit_locked_kib(0)?;
    tally.check(name, equal(register(kvm, frames.gfns[0]), Err(Refusal::ENOMEM)));
    let name = "a machine that may lock one page has no second one";
    kvm.limit_locked_kib(PAGE_KIB)?;
    let first = register(kvm, frames.gfns[0]);
    run_on(SELF, &all[1..2])?;
    let second = register(kvm, frames.gfns[1]);
    let locked = kvm.locked_kib();
    tally.check(name, equal((first, second, locked), (Ok(()), Err(Refusal::ENOMEM), Ok(PAGE_KIB))));
    run_on(SELF, &all[..1])?;
    unregister(kvm)?;
    kvm.limit_locked_kib(PLENTY_KIB)?;
    run_on(SELF, &all)?;
    module::load()?;
    Ok(())
}

/// Registers each frame, and gives it back. Returns how much was locked at most while one was
/// registered, and how much is in the end.
fn one_after_another(kvm: &Kvm, gfns: &[u64]) -> Result<[u64; 2], Refusal> {
    let mut most = 0;
    for (index, &gfn) in gfns.iter().enumerate() {
        register(kvm, gfn)?;
        if index.is_multiple_of(BETWEEN_LOOKS) {
            most = most.max(kvm.locked_kib()?);
        }
        unregister(kvm)?;
    }
    Ok([most, kvm.locked_kib()?])
}

/// Registers a frame for each vCPU, and then gives all back. Returns how much was locked, and how
/// much is in the end.
fn on_each(
    kvm: &Kvm,
    all: &[usize],
    gfns: &[u64],
) -> Result<(Result<u64, Refusal>, Result<u64, Refusal>)> {
    for (&cpu, &gfn) in all.iter().zip(gfns) {
        run_on(SELF, &[cpu])?;
        register(kvm, gfn)?;
    }
    let locked = kvm.locked_kib();
    for &cpu in all {
        run_on(SELF, &[cpu])?;
        unregister(kvm)?;
    }
    run_on(SELF, &all[..1])?;
    Ok((locked, kvm.locked_kib()))
}
