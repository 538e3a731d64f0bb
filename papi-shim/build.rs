// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gives the shared library the name under which programs look for it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libperfctr.so.6");
    println!("cargo:rerun-if-changed=build.rs");
}
