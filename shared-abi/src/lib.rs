// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! This crate holds only what two privilege levels must agree on.
//!
//! A counter's value is composed at two levels (see [`count`]). The hypervisor publishes one
//! [`VcpuPage`] for each virtual CPU, and the guest kernel publishes one [`ThreadPage`] for each
//! monitored thread. A thread reads both pages and the counter itself without a system call
//! ([`read`]). Configurations reach the hypervisor through the arguments of an [`ioctl`] and a
//! [`hypercall`]; each side validates them as a [`Config`].
//!
//! The crate is `no_std` and free of unsafe code: the same functions run in the hypervisor, in the
//! guest kernel, in the user library and in the simulator.
//!
//! The file `include/perfctr_abi.h` declares everything here for C. [`c_header`] generates it.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(sim)]
extern crate std;

pub mod arch;
pub mod c_header;
pub mod caps;
pub mod config;
pub mod count;
pub mod error;
pub mod events;
pub mod hypercall;
pub mod ioctl;
mod layout;
pub mod limits;
pub mod read;
pub mod requests;
pub mod ring;
pub mod seq;
pub mod slot;
pub mod sync;
pub mod thread_page;
pub mod vcpu_page;
pub mod version;

pub use caps::{PmuCaps, WireCaps};
pub use config::{Config, ConfigError, CounterConfig};
pub use count::CounterWidth;
pub use error::Errno;
pub use slot::PhysSlot;
pub use thread_page::ThreadPage;
pub use vcpu_page::VcpuPage;
