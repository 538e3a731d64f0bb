// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The state of the whole guest: the hypervisor's answer, the list of vCPUs, and the entries that C
//! calls when the module is loaded or the machine was restored.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::iter::successors;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr};

use guest_kmod::handshake::{
    caps, first_handshake, handshake_again, has_driver, subtracts_interrupts,
};
use shared_abi::hypercall::HvQuery;
use shared_abi::{Errno, PmuCaps, VcpuPage};

use crate::call::Call;
use crate::{Host, VcpuObject, to_return};

unsafe extern "C" {
    /// Writes to the kernel's log what this CPU has failed to do.
    fn perfctr_glue_log(what: *const c_char, error: c_int);
    /// Makes sure that the page is never used for anything else.
    fn perfctr_glue_keep_page(page: *const VcpuPage);
}

/// Writes to the kernel's log what this CPU has failed to do.
pub(crate) fn log(what: &CStr, errno: Errno) {
    // SAFETY: the text ends with a null byte, and the kernel copies it.
    unsafe { perfctr_glue_log(what.as_ptr(), errno.to_return()) }
}

/// Makes sure that a page, to which the hypervisor may still write, is never used for anything
/// else.
pub(crate) fn keep_page(page: *const VcpuPage) {
    // SAFETY: C takes one more reference to the page, and does not access its contents.
    unsafe { perfctr_glue_keep_page(page) }
}

/// What the hypervisor answered when the module was loaded.
struct Answer(UnsafeCell<Option<HvQuery>>);

// SAFETY: `perfctr_core_handshake` writes it once, before any other code of the module executes.
unsafe impl Sync for Answer {}

static ANSWER: Answer = Answer(UnsafeCell::new(None));

/// Returns what the hypervisor answered when the module was loaded.
///
/// # Errors
///
/// `NODEV` if it has not answered, so that the module is not loaded.
pub(crate) fn answer() -> Result<&'static HvQuery, Errno> {
    // SAFETY: the answer is written once, before any other code of the module executes.
    unsafe { &*ANSWER.0.get() }.as_ref().ok_or(Errno::NODEV)
}

/// Returns what the PMU can do.
///
/// # Errors
///
/// `NODEV` if the module is not loaded.
pub(crate) fn pmu() -> Result<PmuCaps, Errno> {
    caps(answer()?).ok_or(Errno::NODEV)
}

/// Whether interrupts are subtracted, by the hypervisor's last answer.
static SUBTRACTS: AtomicBool = AtomicBool::new(false);

/// Returns whether the module subtracts interrupts that the CPUs count as instructions.
pub(crate) fn subtracts() -> bool {
    // ATOMICS: no other memory depends on the answer.
    SUBTRACTS.load(Relaxed)
}

fn ask_again() -> Result<(), Errno> {
    let now = handshake_again(&Host, answer()?)?;
    SUBTRACTS.store(subtracts_interrupts(&now), Relaxed);
    Ok(())
}

/// Asks the hypervisor when the module is loaded. Returns 0 or an error; see [`first_handshake`].
///
/// If the hypervisor refuses, `found` says what was found instead.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_handshake(cpus: u32, found: &mut *const c_char) -> c_int {
    match first_handshake(&Host, cpus) {
        Ok(query) => {
            SUBTRACTS.store(subtracts_interrupts(&query), Relaxed);
            // SAFETY: C calls this once, before anything else of the module can read the answer.
            unsafe { *ANSWER.0.get() = Some(query) };
            0
        }
        Err(unsuitable) => {
            *found = unsuitable.found.as_ptr();
            unsuitable.errno.to_return()
        }
    }
}

/// Returns whether the hypervisor has a driver at all.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_has_driver() -> bool {
    has_driver(&Host)
}

/// Asks the hypervisor again. Returns 0 or an error; see [`handshake_again`].
///
/// If the host lets the domain count, vCPUs whose pages were refused before try again to register
/// them. Xen sends no interrupt to a vCPU without a page when it allows a domain to count.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_handshake_again() -> c_int {
    let again = ask_again();
    if again.is_ok() {
        // ATOMICS: the flag only selects the vCPUs to call; each one checks again for itself.
        for refused in vcpus().filter(|vcpu| vcpu.is_refused.load(Relaxed)) {
            RESTORED.store(0, Relaxed);
            // A vCPU that has gone offline meanwhile asks when it comes back.
            let _ = Call::TryAgain.on(refused);
        }
    }
    to_return(again)
}

/// The error of [`handshake_again`] where the machine was restored last, or 0.
static RESTORED: AtomicI32 = AtomicI32::new(0);

/// Returns why vCPUs cannot come online where the machine was restored last, if they cannot.
pub(crate) fn may_come_online() -> Result<(), Errno> {
    // ATOMICS: a vCPU that reads this was called after the write, or comes online after it.
    match RESTORED.load(Relaxed) {
        0 => Ok(()),
        error => Err(Errno(error)),
    }
}

/// Registers the page of each online vCPU, or of one vCPU, anew after the machine was restored,
/// perhaps on another host.
///
/// No thread that counts executes there, so no sum depends on what the old pages said.
pub(crate) fn restored(only: Option<&VcpuObject>) {
    let again = ask_again();
    RESTORED.store(again.map_or_else(|errno| errno.0, |()| 0), Relaxed);
    if let Err(errno) = again {
        log(c"this host cannot count what the one before did", errno);
    }
    match only {
        // A vCPU that has gone offline meanwhile has unregistered its page.
        Some(vcpu) => _ = Call::Restore.on(vcpu),
        None => Call::Restore.on_all(),
    }
}

/// C calls this after the machine was restored as a whole.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_restored() {
    restored(None);
}

/// The possible vCPU that was made last.
static VCPUS: AtomicPtr<VcpuObject> = AtomicPtr::new(null_mut());

/// Puts a vCPU into the list, and returns the former first one. Called only while the module is
/// being loaded.
pub(crate) fn add_vcpu(vcpu: *mut VcpuObject) -> *const VcpuObject {
    // ATOMICS: only one caller writes this, before anybody else reads the list.
    VCPUS.swap(vcpu, Release)
}

/// Takes a vCPU out of the list. Called only while the module is being unloaded.
pub(crate) fn remove_vcpu() -> Option<&'static VcpuObject> {
    let vcpu = vcpus().next()?;
    VCPUS.store(vcpu.next.cast_mut(), Release);
    Some(vcpu)
}

/// Returns the possible vCPUs.
///
/// Code on another vCPU may look only at their atomic fields, and at fields that are written while
/// the CPUs' mutex is held.
pub(crate) fn vcpus() -> impl Iterator<Item = &'static VcpuObject> {
    // SAFETY: vCPUs in the list are freed only when no other code of the module executes any more.
    let at = |vcpu: *const VcpuObject| unsafe { vcpu.as_ref() };
    successors(at(VCPUS.load(Acquire)), move |vcpu| at(vcpu.next))
}
