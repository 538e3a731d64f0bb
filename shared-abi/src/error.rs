// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Error numbers that cross a boundary.
//!
//! A hypercall or ioctl that fails returns a negative error number. Xen and Linux use the same
//! numbers, so one table serves both.

use core::fmt;

/// A positive error number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $c:literal;)+) => {
        impl Errno {
            $($(#[doc = $doc])+ pub const $name: Errno = Errno($number);)+

            /// Returns the C name, or `"?"` for a number that this interface does not use.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($number => $c,)+
                    _ => "?",
                }
            }
        }
    };
}

errnos! {
    /// The caller may not do this, or an event select has a bit set that a guest may not set.
    PERM = 1, "EPERM";
    /// There is no such domain or thread, or the thread's counters are unlinked.
    SRCH = 3, "ESRCH";
    /// There is no such event.
    NOENT = 2, "ENOENT";
    /// The descriptor is not open for writing.
    BADF = 9, "EBADF";
    /// All counters that could count the event are held at the moment; the caller may try again.
    AGAIN = 11, "EAGAIN";
    /// The caller lacks a right that this needs, for example to count in kernel mode.
    ACCES = 13, "EACCES";
    /// The argument lies outside the caller's memory.
    FAULT = 14, "EFAULT";
    /// Somebody else uses the counters, or changes their configuration at the moment.
    BUSY = 16, "EBUSY";
    /// The thread already has counters, or the vCPU already has a page.
    EXIST = 17, "EEXIST";
    /// There are no usable counters: the driver is off. The host's console log has the reason.
    NODEV = 19, "ENODEV";
    /// The argument is malformed.
    INVAL = 22, "EINVAL";
    /// There is no such request.
    NOTTY = 25, "ENOTTY";
    /// The request needs more locked memory than the caller may have.
    NOSPC = 28, "ENOSPC";
    /// There is no such operation: the hypervisor has no driver.
    NOSYS = 38, "ENOSYS";
    /// The two sides have different major versions of the ABI.
    PROTO = 71, "EPROTO";
    /// The request is valid, but not for this kind of guest or not on this machine.
    OPNOTSUPP = 95, "EOPNOTSUPP";
    /// The host has other counters than the host on which the module was loaded.
    STALE = 116, "ESTALE";
    /// There is no memory left.
    NOMEM = 12, "ENOMEM";
    /// There are more vCPUs than the module has room for.
    TOOBIG = 7, "E2BIG";
    /// The vCPU has no registered page, or the thread has no ring.
    NXIO = 6, "ENXIO";
}

impl Errno {
    /// Returns the value by which a hypercall or ioctl reports this error.
    pub const fn to_return(self) -> i32 {
        -self.0
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
