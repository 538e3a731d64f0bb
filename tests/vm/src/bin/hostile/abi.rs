// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests callers of other kinds: 32-bit programs, programs in a namespace, and programs whose
//! creation of counters has failed.
#![expect(unsafe_code, reason = "the 32-bit system call, and a mapping")]

use std::arch::asm;
use std::fs::File;
use std::hint::spin_loop;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::gettid;
use shared_abi::ThreadPage;
use shared_abi::ioctl::{
    Control, Create, IOC_CONTROL, IOC_CREATE, IOC_INFO, IOC_READ, IOC_READ_CONTROL, IOC_UNLINK,
    Info, Sums,
};
use shared_abi::limits::PAGE_BYTES;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::version::ABI_MAJOR;
use vm_tests::raw::{Argument, Refusal, ioctl, open_device};
use vm_tests::region::Region;
use vm_tests::stats::until_threads;
use vm_tests::tally::{Tally, equal};
use vm_tests::volume::pick;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Test;
use crate::device::{self, USER, counting};
use vm_tests::shared;
use vm_tests::users::{Child, NOBODY, admit, as_user};

const WORK: Region = Region { first: 100_000, second: 1 };
/// The number of creations that a race may make fail, and how much later each begins than the one
/// before. Unit: turns of a loop.
const RACES: u32 = 400;
const DELAY: u32 = 100;

/// Runs all checks.
pub fn run(tally: &mut Tally) -> Result<()> {
    admit(0o660)?;
    let checks: &[Test] = &[
        ("a 32-bit caller counts as a 64-bit one", || as_user(NOBODY, narrow)),
        ("a thread's page names it as its namespace does", || Child::fork(in_namespace)?.join()),
        ("a creation that failed leaves the descriptor free", || as_user(NOBODY, failed_creation)),
    ];
    for (name, check) in checks {
        let outcome = check().and_then(|()| until_threads(0));
        tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    }
    Ok(())
}

/// Returns the address of a page that 32 bits can address.
fn low_memory() -> Result<usize> {
    let bytes = NonZeroUsize::new(PAGE_BYTES).context("a page is not empty")?;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let kind = MapFlags::MAP_PRIVATE | MapFlags::MAP_32BIT | MapFlags::MAP_POPULATE;
    // SAFETY: this makes a new mapping, at an address that the kernel chooses.
    Ok(unsafe { mmap_anonymous(None, bytes, access, kind)? }.as_ptr() as usize)
}

/// Makes an ioctl as a 32-bit program does.
fn narrow_ioctl<T: IntoBytes + FromBytes + Immutable>(
    device: &File,
    memory: usize,
    request: u32,
    argument: &mut T,
) -> Result<(), Refusal> {
    const IOCTL: i32 = 54;
    let result: i32;
    // SAFETY: the memory is a page of ours that nobody refers to. It holds the argument, whose size
    // is in the request's number. The gate changes only these registers.
    unsafe {
        std::ptr::copy_nonoverlapping(
            argument.as_bytes().as_ptr(),
            memory as *mut u8,
            size_of::<T>(),
        );
        asm!(
            "xchg rbx, {device}",
            "int 0x80",
            "xchg rbx, {device}",
            device = inout(reg) u64::from(device.as_raw_fd() as u32) => _,
            inout("eax") IOCTL => result,
            in("ecx") request,
            in("edx") memory as u32,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
        std::ptr::copy_nonoverlapping(
            memory as *const u8,
            argument.as_mut_bytes().as_mut_ptr(),
            size_of::<T>(),
        );
    }
    if result < 0 { Err(Refusal::from_raw(-result)) } else { Ok(()) }
}

fn narrow() -> Result<()> {
    let (device, memory) = (open_device()?, low_memory()?);
    let (mut narrow, mut wide) = (Info::default(), Info::default());
    narrow_ioctl(&device, memory, IOC_INFO, &mut narrow).context("information")?;
    ioctl(&device, IOC_INFO, Argument::of(&mut wide))?;
    equal(narrow.as_bytes(), wide.as_bytes()).map_err(anyhow::Error::msg)?;
    let mut create = Create { abi_major: ABI_MAJOR.into(), ..Create::default() };
    narrow_ioctl(&device, memory, IOC_CREATE, &mut create).context("creation")?;
    narrow_ioctl(&device, memory, IOC_CONTROL, &mut counting(&[USER])).context("control")?;
    let mut kept = Control::default();
    narrow_ioctl(&device, memory, IOC_READ_CONTROL, &mut kept).context("read of the control")?;
    equal(kept.as_bytes(), counting(&[USER]).as_bytes()).map_err(anyhow::Error::msg)?;
    let (mut before, mut after) = (Sums::default(), Sums::default());
    narrow_ioctl(&device, memory, IOC_READ, &mut before).context("read")?;
    WORK.execute(&mut 0);
    narrow_ioctl(&device, memory, IOC_READ, &mut after).context("read")?;
    let (counted, executed) = (after.counter[0] - before.counter[0], WORK.instructions());
    ensure!(
        (executed..executed + 500).contains(&counted),
        "{counted} counted, {executed} executed"
    );
    narrow_ioctl(&device, memory, IOC_UNLINK, &mut [0_u8; 0]).context("unlinking")
}

/// Makes a new namespace, whose first process sees itself as number 1, and counts in it.
fn in_namespace() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWPID)?;
    Child::fork(|| {
        let device = open_device()?;
        device::create(&device, 0).context("cannot create")?;
        let mut info = Info::default();
        ioctl(&device, IOC_INFO, Argument::of(&mut info))?;
        let bytes = PAGE_BYTES * (1 + info.vcpus as usize);
        let bytes = NonZeroUsize::new(bytes).context("pages are not empty")?;
        // SAFETY: this makes a new mapping, at an address that the kernel chooses.
        let start =
            unsafe { mmap(None, bytes, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &device, 0)? };
        // SAFETY: the first page is the thread's page, and nobody unmaps it.
        let page: &ThreadPage = unsafe { start.cast().as_ref() };
        equal(page.tid.load(Relaxed), gettid().as_raw() as u32).map_err(anyhow::Error::msg)
    })?
    .join()
}

/// Creates counters for a tracee that is killed meanwhile, each time a little earlier.
fn failed_creation() -> Result<()> {
    let (enough, mut failed) = (pick(5, 20), 0);
    let killing = &shared::words()?[0];
    for race in 0..RACES {
        let device = open_device()?;
        if creation_is_late(&device, killing, race * DELAY)? {
            failed += 1;
            device::create(&device, 0).context("after a creation that failed")?;
            device::unlink(&device)?;
        }
        if failed == enough {
            return Ok(());
        }
    }
    bail!("only {failed} creations of {RACES} have failed")
}

/// Returns whether a creation failed that began `delay` later than the end of its thread.
fn creation_is_late(device: &File, killing: &AtomicU64, delay: u32) -> Result<bool> {
    killing.store(0, SeqCst);
    let tracee = Child::fork(|| {
        loop {
            nix::unistd::pause();
        }
    })?;
    let pid = tracee.pid;
    ptrace::seize(pid, Options::PTRACE_O_EXITKILL)?;
    ptrace::interrupt(pid)?;
    waitpid(pid, None)?;
    let killer = Child::fork(|| {
        killing.store(1, SeqCst);
        Ok(kill(pid, Signal::SIGKILL)?)
    })?;
    while killing.load(SeqCst) == 0 {
        spin_loop();
    }
    for _ in 0..delay {
        spin_loop();
    }
    let created = device::create(device, pid.as_raw() as u32);
    killer.join()?;
    waitpid(pid, None)?;
    match created {
        Ok(()) => Ok(false),
        Err(Refusal::ESRCH) => Ok(true),
        Err(errno) => bail!("a creation for a thread that ends gives {errno:?}"),
    }
}
