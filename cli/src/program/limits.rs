// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Raises the number of files that this program may open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one, because each event of each thread needs a
/// descriptor.
///
/// Where that fails the limit stays, and opening an event will say that it is reached. Programs
/// are forked before, so that they keep the limit of their caller.
pub fn raise() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).ok();
    }
}
