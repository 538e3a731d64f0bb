// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Allocates and frees the kernel's memory.

use core::ffi::{c_uint, c_ulong, c_void};

use shared_abi::Errno;

unsafe extern "C" {
    /// Allocates zeroed bytes that are aligned to at least 8 bytes, or returns null. Sleeps.
    ///
    /// The memory is charged to the caller.
    fn perfctr_glue_alloc(bytes: usize) -> *mut c_void;
    /// Allocates a zeroed page, or returns null. Sleeps.
    ///
    /// The memory is charged to the caller.
    fn perfctr_glue_alloc_page() -> *mut c_void;
    fn kfree(memory: *const c_void);
    fn free_pages(page: c_ulong, order: c_uint);
}

/// Allocates memory for a number of objects.
///
/// # Errors
///
/// `NOMEM`.
pub(crate) fn alloc<T>(objects: usize) -> Result<*mut T, Errno> {
    const { assert!(align_of::<T>() <= 8) };
    // SAFETY: C accepts any size, and sleeps, which every caller of this module may.
    let memory = unsafe { perfctr_glue_alloc(size_of::<T>().saturating_mul(objects)) };
    if memory.is_null() { Err(Errno::NOMEM) } else { Ok(memory.cast()) }
}

/// Allocates a page.
///
/// # Errors
///
/// `NOMEM`.
pub(crate) fn alloc_page<T>() -> Result<*mut T, Errno> {
    // SAFETY: C sleeps, which every caller of this module may.
    let page = unsafe { perfctr_glue_alloc_page() };
    if page.is_null() { Err(Errno::NOMEM) } else { Ok(page.cast()) }
}

/// Frees memory.
///
/// # Safety
///
/// [`alloc`] has returned `memory`, or it is null, and nobody uses it any more.
pub(crate) unsafe fn free<T>(memory: *const T) {
    // SAFETY: the caller promises that `alloc` has returned the memory, which C allocates by
    // `kzalloc()`, and that nobody uses it. `kfree()` accepts null.
    unsafe { kfree(memory.cast()) }
}

/// Frees a page.
///
/// # Safety
///
/// [`alloc_page`] has returned `page`, or it is null, and nobody uses it any more.
pub(crate) unsafe fn free_page<T>(page: *const T) {
    // SAFETY: the caller promises that `alloc_page` has returned this single page, and that nobody
    // uses it. `free_pages()` accepts null.
    unsafe { free_pages(page.addr() as c_ulong, 0) }
}
