// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Artefacts, which are built or fetched before a machine can boot or before a check can inspect
//! them.

pub mod bochs;
pub mod c_library;
pub mod command;
pub mod counts;
pub mod debian;
mod debug_kernel;
pub mod emulators;
pub mod faults;
pub mod glue;
pub mod guest;
pub mod kernel;
pub mod kvm;
pub mod libpfm;
pub mod mdbook;
pub mod packages;
pub mod papi;
pub mod pprof;
pub mod python;
pub mod qemu;
pub mod rootfs;
pub mod rr;
pub mod rustobj;
pub mod shim;
pub mod source;
pub mod symbol_names;
pub mod sysroot;
pub mod tables;
pub mod viewers;
pub mod xen;
