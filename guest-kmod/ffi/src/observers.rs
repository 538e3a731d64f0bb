// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Manages observers by their numbers, and knows whose pages are registered.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use guest_kmod::numbers::{Whose, new_number};
use guest_kmod::shown::{Observer, ShownWords};

use crate::VcpuObject;
use crate::call::Call;
use crate::machine::vcpus;

/// How many numbers were given to users, and how many to perf.
pub(crate) static GIVEN_TO_USERS: AtomicU64 = AtomicU64::new(0);
pub(crate) static GIVEN_TO_PERF: AtomicU64 = AtomicU64::new(0);

/// Returns the number with which perf's page is registered next. No vCPU has it at present.
pub(crate) fn new_number_of_perf() -> u32 {
    new_number(&GIVEN_TO_PERF, Whose::Perfs, |number| {
        vcpus().any(|vcpu| vcpu.perfs_number.load(Relaxed) == number)
    })
}

/// Returns what is registered with the vCPU, which changes on that vCPU only.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_shown(vcpu: &VcpuObject) -> &ShownWords {
    &vcpu.shown
}

/// Returns the number of the observer whose page is registered with a vCPU, if any is.
pub(crate) fn registered_observer(vcpu: &VcpuObject) -> Option<u32> {
    let number = vcpu.shown.number();
    (number != 0).then_some(number)
}

/// Returns whether anything is loaded on a vCPU.
///
/// The result may be false if a thread starts to count there meanwhile. The caller asks again after
/// that thread has stopped.
pub(crate) fn is_counting(vcpu: &VcpuObject) -> bool {
    vcpu.shown.counts()
}

/// Returns whether the page of this observer is registered with a vCPU.
fn shows_page_of(vcpu: &VcpuObject, observer: &Observer) -> bool {
    registered_observer(vcpu) == Some(observer.number)
}

/// Returns whether a page of this observer, or of any observer, is registered with any vCPU.
pub(crate) fn is_shown(observer: Option<&Observer>) -> bool {
    vcpus().any(|vcpu| {
        observer.map_or_else(
            || registered_observer(vcpu).is_some(),
            |observer| shows_page_of(vcpu, observer),
        )
    })
}

/// Unregisters the page of an observer from all vCPUs. Returns whether the hypervisor has unpinned
/// the page. The observer has no counters, so nobody registers the page anew meanwhile.
pub(crate) fn take_back(observer: &Observer) -> bool {
    Call::Hide(observer).on_these(vcpus().filter(|vcpu| shows_page_of(vcpu, observer)));
    !is_shown(Some(observer))
}
