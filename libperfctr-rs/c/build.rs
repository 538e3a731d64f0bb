// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gives the shared library the name under which programs look for it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libperfctr-counts.so.1");
    // A program that closes the library must not unmap what its threads execute when they end, nor
    // the handler of SIGSEGV that it has set.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
