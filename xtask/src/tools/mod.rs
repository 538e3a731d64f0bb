// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What the other floors stand on: programs, packages, files; nothing here knows the project.

pub mod anchors;
pub mod apt;
pub mod cache;
pub mod chroot;
pub mod cpio;
pub mod hooks;
pub mod overlay;
pub mod sh;
pub mod toolchain;
