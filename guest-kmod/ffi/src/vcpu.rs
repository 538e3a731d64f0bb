// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! vCPUs that come online and go offline, as C sees them.

use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_char, c_int};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use guest_kmod::perf::LocalEvents;
use guest_kmod::restore::Restoration;
use guest_kmod::shown::ShownWords;
use guest_kmod::{LocalVcpu, Stats, Vcpu};
use shared_abi::{Errno, VcpuPage};

use crate::cpu_wide::{CpuWide, threads};
use crate::machine::{add_vcpu, keep_page, log, may_come_online, remove_vcpu, vcpus};
use crate::memory::{alloc, alloc_page, free, free_page};
use crate::on_vcpu::{OnVcpu, Present, perfctr_core_switch_in};
use crate::ring::report;
use crate::{Linux, VcpuObject, from_return, to_return, unpack};

/// Makes a possible vCPU. Returns null if there is no memory.
///
/// The vCPU has a page for perf's events, which is not registered.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_vcpu_new(number: u32) -> *mut VcpuObject {
    make(number).unwrap_or(null_mut())
}

fn make(number: u32) -> Result<*mut VcpuObject, Errno> {
    let memory = alloc::<VcpuObject>(1)?;
    let perfs: *const VcpuPage = alloc_page().inspect_err(|_| {
        // SAFETY: `alloc` has returned the memory, and nobody else has it yet.
        unsafe { free(memory) };
    })?;
    let object = VcpuObject {
        number,
        next: add_vcpu(memory),
        bound: Cell::new(Err(Errno::NXIO)),
        is_refused: AtomicBool::new(false),
        page: Cell::new(perfs),
        next_page: Cell::new(perfs),
        perfs,
        perfs_number: AtomicU32::new(0),
        cpu_wide: CpuWide::default(),
        kernel: Linux { restoration: Restoration::new() },
        stats: Stats::default(),
        vcpu: UnsafeCell::new(Vcpu::default()),
        shown: ShownWords::default(),
    };
    // SAFETY: the memory has this size and alignment, and nobody else has it.
    unsafe { memory.write(object) };
    Ok(memory)
}

/// Frees all possible vCPUs.
///
/// # Safety
///
/// No other code of this crate executes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_vcpus_free() {
    while let Some(vcpu) = remove_vcpu() {
        // SAFETY: nobody uses the vCPU any more, and none of its pages is registered.
        unsafe {
            free_page(vcpu.perfs);
            free(vcpu);
        }
    }
}

/// Brings the vCPU online. Returns 0, or the reason why no thread may count there.
///
/// If `error` is not 0, the kernel has refused to bind the interrupt of overflows, and the vCPU
/// stays without counters.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_vcpu_online(mut vcpu: OnVcpu<'_>, error: c_int) -> c_int {
    vcpu.object().bound.set(from_return(error));
    to_return(vcpu.bring_online(LocalVcpu::come_online))
}

/// Takes the vCPU offline.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_vcpu_offline(mut vcpu: OnVcpu<'_>) {
    vcpu.take_offline();
}

/// Does what is needed before the machine sleeps. `present` executes on its last vCPU.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_vcpu_sleep(mut vcpu: OnVcpu<'_>, mut present: Present<'_>) {
    vcpu.suspend(&mut present);
    vcpu.take_offline();
}

/// Does what is needed when the machine has slept. `present` executes on its first vCPU.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_vcpu_wake(mut vcpu: OnVcpu<'_>, mut present: Present<'_>) {
    vcpu.object().bound.set(Ok(()));
    // If the hypervisor refuses, the kernel's log has the reason, and threads get the error.
    let _ = vcpu.bring_online(LocalVcpu::come_online);
    // What the hypervisor refuses is asked for again when perf enables its PMU.
    let _ = vcpu.page_changed();
    let resumed =
        present.on_thread().map_or(0, |thread| perfctr_core_switch_in(thread, vcpu.lent()));
    report(&mut present, vcpu, unpack(resumed));
}

impl OnVcpu<'_> {
    /// Brings the vCPU online by `bring`, and notes whether the hypervisor has refused that.
    fn bring_online(
        &mut self,
        bring: impl FnOnce(&mut Self, Result<(), Errno>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let bound = self.object().bound.get();
        let online = bring(self, bound.and_then(|()| may_come_online()));
        // ATOMICS: the flag only selects the vCPUs to call; each one checks again for itself.
        self.object().is_refused.store(bound.is_ok() && online.is_err(), Relaxed);
        online.inspect_err(|&errno| log(c"nothing can be counted there", errno))
    }

    /// Takes the vCPU offline, and stops its CPU-wide counters; see [`LocalVcpu::go_offline`].
    fn take_offline(&mut self) {
        let object = self.object();
        object.bound.set(Err(Errno::NXIO));
        object.is_refused.store(false, Relaxed);
        if let Err(errno) = self.go_offline() {
            // The hypervisor may still write to the page.
            keep_page(object.page.get());
            log(c"cannot take back its page", errno);
        }
    }

    /// Does what is needed after the machine was restored; see [`LocalVcpu::restore`].
    pub(crate) fn bring_back(&mut self) {
        if self.object().bound.get().is_ok() {
            // If the hypervisor refuses, the kernel's log has the reason, and threads get the
            // error.
            let _ = self.bring_online(LocalVcpu::restore);
        }
    }

    /// Tries again to register the page, if the hypervisor has refused that.
    pub(crate) fn try_again(&mut self) {
        // Another caller may have had this done meanwhile, and threads may count here by now.
        if self.object().is_refused.load(Relaxed) {
            self.bring_back();
        }
    }
}

/// Returns the name of statistic `index`, or null behind the last one, and stores its value.
///
/// The value is the sum over all vCPUs. Statistic 0 is the number of threads that have counters.
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
