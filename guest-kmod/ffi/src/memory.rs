// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Allocates and frees the kernel's memory.

use core::ffi::{c_uint, c_ulong, c_void};

use shared_abi::Errno;

unsafe extern "C" {
    /// Bytes that are 0 and aligned to 8 at least, or null; charged to the caller; sleeps.
    fn perfctr_glue_alloc(bytes: usize) -> *mut c_void;
    /// A page that is 0, or null; charged to the caller; sleeps.
    fn perfctr_glue_alloc_page() -> *mut c_void;
    fn kfree(memory: *const c_void);
    fn free_pages(page: c_ulong, order: c_uint);
}

/// Allocates memory for so many objects.
///
/// # Errors
///
/// `NOMEM`.
pub(crate) fn alloc<T>(objects: usize) -> Result<*mut T, Errno> {
    const { assert!(align_of::<T>() <= 8) };
    // SAFETY: every caller may sleep.
    let memory = unsafe { perfctr_glue_alloc(size_of::<T>().saturating_mul(objects)) };
    if memory.is_null() { Err(Errno::NOMEM) } else { Ok(memory.cast()) }
}

/// Allocates a page.
///
/// # Errors
///
/// `NOMEM`.
pub(crate) fn alloc_page<T>() -> Result<*mut T, Errno> {
    // SAFETY: every caller may sleep.
    let page = unsafe { perfctr_glue_alloc_page() };
    if page.is_null() { Err(Errno::NOMEM) } else { Ok(page.cast()) }
}

/// # Safety
///
/// It is of [`alloc`], or null, and nobody uses it any more.
pub(crate) unsafe fn free<T>(memory: *const T) {
    // SAFETY: as the caller says.
    unsafe { kfree(memory.cast()) }
}

/// # Safety
///
/// It is of [`alloc_page`], or null, and nobody uses it any more.
pub(crate) unsafe fn free_page<T>(page: *const T) {
    // SAFETY: as the caller says.
    unsafe { free_pages(page.addr() as c_ulong, 0) }
}
