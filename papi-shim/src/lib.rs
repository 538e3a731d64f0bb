// SPDX-License-Identifier: MIT OR GPL-2.0-only
#![doc = include_str!("../README.md")]
#![expect(unsafe_code, reason = "the boundary to C")]

mod abi;
mod control;
mod cpu;
mod errno;
mod events;
mod fd;
mod global;
mod handle;
mod print;
mod remote;
mod thread;
