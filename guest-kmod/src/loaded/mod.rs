// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What is loaded on a vCPU, what is published, and the calls to the hypervisor for it.

pub mod handshake;
pub(crate) mod hypercall;
pub mod publish;
pub mod vcpu;
