// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! vCPUs that come online and go offline, as C sees them.

use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_char, c_int};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use guest_kmod::restore::Restoration;
use guest_kmod::{Stats, Vcpu};
use shared_abi::{Errno, VcpuPage};

use crate::cpu_wide::{CpuWide, threads};
use crate::machine::{add_vcpu, keep_page, log, may_come_online, remove_vcpu, vcpus};
use crate::memory::{alloc, alloc_page, free, free_page};
use crate::observers::new_number_of_perf;
use crate::on_vcpu::{OnVcpu, Present};
use crate::{Linux, VcpuObject, from_return, to_return};

/// Makes a possible vCPU, with a page for perf's events that is not registered. Returns null if
/// there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_vcpu_new(number: u32) -> *mut VcpuObject {
    make(number).unwrap_or(null_mut())
}

fn make(number: u32) -> Result<*mut VcpuObject, Errno> {
    let memory = alloc::<VcpuObject>(1)?;
    let perfs: *const VcpuPage = alloc_page().inspect_err(|_| {
        // SAFETY: `alloc` has returned the memory, and nobody knows it yet.
        unsafe { free(memory) };
    })?;
    let object = VcpuObject {
        number,
        next: add_vcpu(memory),
        bound: Cell::new(Err(Errno::NXIO)),
        is_refused: AtomicBool::new(false),
        page: Cell::new(perfs),
        perfs,
        perfs_number: AtomicU32::new(0),
        cpu_wide: CpuWide::default(),
        kernel: Linux { restoration: Restoration::new() },
        stats: Stats::default(),
        vcpu: UnsafeCell::new(Vcpu::default()),
        shown: Cell::new(null()),
    };
    // SAFETY: memory of this size and alignment, which is nobody else's.
    unsafe {
        memory.write(object);
        (*memory).shown.set((*(*memory).vcpu.get()).shown());
    }
    Ok(memory)
}

/// Frees all possible vCPUs.
///
/// # Safety
///
/// Nothing else of this crate is executed any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_vcpus_free() {
    while let Some(vcpu) = remove_vcpu() {
        // SAFETY: nobody uses it any more, and its page is registered nowhere.
        unsafe {
            free_page(vcpu.perfs);
            free(vcpu);
        }
    }
}

/// Brings the vCPU online.  If `error` is not 0, the kernel has refused the interrupt of overflows
/// with it, and the vCPU stays without counters.  Returns 0, or the reason why no thread may count
/// there.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_vcpu_online(mut vcpu: OnVcpu<'_>, error: c_int) -> c_int {
    vcpu.object().bound.set(from_return(error));
    to_return(vcpu.come_online())
}

/// Takes the vCPU offline.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_vcpu_offline(mut vcpu: OnVcpu<'_>) {
    vcpu.go_offline();
}

/// Does what has to be done before the machine sleeps.  `present` executes on its last vCPU.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_vcpu_sleep(mut vcpu: OnVcpu<'_>, mut present: Present<'_>) {
    vcpu.suspend(&mut present);
    vcpu.go_offline();
}

impl OnVcpu<'_> {
    /// See [`ThisVcpu::come_online`](guest_kmod::ThisVcpu::come_online).
    fn come_online(&mut self) -> Result<(), Errno> {
        let bound = self.object().bound.get();
        let hidden = bound.and_then(|()| may_come_online()).and_then(|()| self.hide());
        let mut cpu = self.cpu();
        let online = match hidden {
            Ok(()) => cpu.come_online(new_number_of_perf()),
            Err(errno) => {
                cpu.refuse(errno);
                Err(errno)
            }
        };
        // ATOMICS: says only which vCPUs to call; each one looks for itself.
        self.object().is_refused.store(bound.is_ok() && online.is_err(), Relaxed);
        online.inspect_err(|&errno| log(c"nothing can be counted there", errno))
    }

    /// Takes the vCPU offline, and stops what counts for the whole CPU; see
    /// [`ThisVcpu::go_offline`](guest_kmod::ThisVcpu::go_offline).
    fn go_offline(&mut self) {
        let object = self.object();
        object.bound.set(Err(Errno::NXIO));
        object.is_refused.store(false, Relaxed);
        self.stop_cpu_wide();
        match self.cpu().go_offline() {
            // The other page may be freed now.
            Ok(()) => object.page.set(object.perfs),
            Err(errno) => {
                // The hypervisor may still write there.
                keep_page(object.page.get());
                log(c"cannot take back its page", errno);
            }
        }
    }

    /// Does what has to be done after the machine was restored. Nothing is registered with this
    /// host then.
    pub(crate) fn restore(&mut self) {
        let object = self.object();
        if object.bound.get().is_err() {
            return;
        }
        self.stop_cpu_wide();
        self.cpu().forget_page();
        object.page.set(object.perfs);
        // The kernel's log has the reason if it is refused, and threads read it.
        let _ = self.come_online();
    }

    /// Tries again whether the page can be registered, if that was refused.
    pub(crate) fn try_again(&mut self) {
        // Another caller may have had it done meanwhile, and threads may count here by now.
        if self.object().is_refused.load(Relaxed) {
            self.restore();
        }
    }
}

/// Returns the name of statistic `index`, or null behind the last, and its value on all vCPUs.
/// Statistic 0 is the number of threads that have counters.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_stat(index: u32, value: &mut u64) -> *const c_char {
    let Some(index) = (index as usize).checked_sub(1) else {
        *value = threads().into();
        return c"threads".as_ptr();
    };
    let mut name = null();
    *value = 0;
    for (its_name, count) in vcpus().filter_map(|vcpu| vcpu.stats.list().nth(index)) {
        name = its_name.as_ptr();
        *value = value.wrapping_add(count.get());
    }
    name
}
