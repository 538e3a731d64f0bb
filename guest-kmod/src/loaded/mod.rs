// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Loads configurations on vCPUs by hypercalls, and publishes threads' counts.

pub mod handshake;
pub(crate) mod hypercall;
pub mod publish;
pub mod vcpu;
