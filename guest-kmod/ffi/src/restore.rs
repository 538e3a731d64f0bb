// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The vCPU of a restored machine, as C sees it. A non-maskable interrupt calls only
//! [`perfctr_core_restore_interrupted`], which uses nothing that the interrupted code may have
//! changed only in part.

#[cfg(doc)]
use guest_kmod::restore::Restoration;

use crate::machine::{answer, restored};
use crate::{Host, VcpuObject};

/// Notes that the vCPU can be interrupted from now on; see [`Restoration::begin`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_restore_begin(vcpu: &VcpuObject) {
    vcpu.kernel.restoration.begin(&Host);
}

/// Handles an interrupt of the vCPU that executes this; see [`Restoration::interrupted`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_restore_interrupted(vcpu: &VcpuObject) -> u32 {
    // SAFETY: before a user's page is freed, this field is set to perf's page again, which is freed
    // only together with the object.
    let page = unsafe { &*vcpu.page.get() };
    let restoration = &vcpu.kernel.restoration;
    // SAFETY: this interrupts the hypercall that registers the page, or what is done just after it.
    // The page is not freed before that has ended.
    let next = restoration.has_next().then(|| unsafe { &*vcpu.next_page.get() });
    answer().map_or(0, |before| restoration.interrupted(&Host, before, page, next))
}

/// Returns whether C has to call [`perfctr_core_restore_look`]; see [`Restoration::wants_look`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_restore_wants_look(vcpu: &VcpuObject) -> bool {
    vcpu.kernel.restoration.wants_look()
}

/// Asks whether the vCPU may count, and registers its page anew if necessary; see
/// [`Restoration::looks`].
///
/// # Safety
///
/// C calls this on this vCPU, and the vCPU's hotplug waits until this has returned. Interrupts need
/// not be disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_restore_look(vcpu: &VcpuObject) {
    // SAFETY: only this vCPU's hotplug writes the word, on this vCPU, and it waits for this work.
    let online = unsafe { (*vcpu.vcpu.get()).is_online() };
    if answer().is_ok_and(|before| vcpu.kernel.restoration.looks(&Host, before, online)) {
        restored(Some(vcpu));
    }
    vcpu.kernel.restoration.looked();
}
