// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Error numbers that cross a boundary.
//!
//! Hypercalls and ioctls return 0 or a negative error number.  Xen and Linux use the same
//! numbers, so one table serves both.

use core::fmt;

/// A positive error number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $c:literal;)+) => {
        impl Errno {
            $($(#[doc = $doc])+ pub const $name: Errno = Errno($number);)+

            /// The C name, or `"?"` for a number that this interface does not use.
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
    /// The caller may not do this, or an event select holds a bit that is not the guest's.
    PERM = 1, "EPERM";
    /// No such domain or thread, or the thread's counters are unlinked.
    SRCH = 3, "ESRCH";
    /// No such event.
    NOENT = 2, "ENOENT";
    /// The descriptor is not open for writing.
    BADF = 9, "EBADF";
    /// Not now: all counters that could do it are held.
    AGAIN = 11, "EAGAIN";
    /// The caller lacks a right that this needs: of kernel-mode counts, say.
    ACCES = 13, "EACCES";
    /// The argument lies outside the caller's memory.
    FAULT = 14, "EFAULT";
    /// Taken: another configuration operation is under way.
    BUSY = 16, "EBUSY";
    /// The thread has counters, or the vCPU has a page, already.
    EXIST = 17, "EEXIST";
    /// No usable counters: the driver is off, with the reason in the console log.
    NODEV = 19, "ENODEV";
    /// A malformed argument.
    INVAL = 22, "EINVAL";
    /// No such request.
    NOTTY = 25, "ENOTTY";
    /// More memory than the caller may have locked.
    NOSPC = 28, "ENOSPC";
    /// No such operation: the hypervisor has no driver.
    NOSYS = 38, "ENOSYS";
    /// The ABI majors differ.
    PROTO = 71, "EPROTO";
    /// Valid, but not for this kind of guest or on this machine.
    OPNOTSUPP = 95, "EOPNOTSUPP";
    /// The host has other counters than the one before, on which the module was loaded.
    STALE = 116, "ESTALE";
    /// Out of memory.
    NOMEM = 12, "ENOMEM";
    /// The vCPU has no page registered, or the thread no ring.
    NXIO = 6, "ENXIO";
}

impl Errno {
    /// The value that a hypercall or ioctl returns.
    pub const fn to_return(self) -> i32 {
        -self.0
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
