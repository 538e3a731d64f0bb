// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tools for programs, packages and files, on which the other layers of xtask build. They do not
//! depend on the project.

pub mod anchors;
pub mod apt;
pub mod cache;
pub mod chroot;
pub mod cpio;
pub mod disk;
pub mod hooks;
pub mod overlay;
pub mod sh;
pub mod toolchain;
