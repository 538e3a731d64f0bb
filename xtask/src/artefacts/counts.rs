// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The library for C and C++, which the package for Python loads, too.

use crate::artefacts::c_library::Library;

/// The library.
pub const LIBRARY: Library = Library {
    package: "libperfctr-counts",
    built: "perfctr_counts",
    folder: "libperfctr-rs/c",
    name: "perfctr-counts",
    soname: "libperfctr-counts.so.1",
    version: env!("CARGO_PKG_VERSION"),
    pkg_config: ("perfctr-counts", "Exact hardware performance counts of the calling thread"),
};
