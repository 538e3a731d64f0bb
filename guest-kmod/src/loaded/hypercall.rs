// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes the hypercalls, with an argument type for each operation.

use shared_abi::hypercall::{
    HvBranches, HvLoad, HvPlace, HvQuery, HvRecord, HvRegister, HvShow, OP_BRANCHES, OP_LOAD,
    OP_PLACE, OP_QUERY, OP_RECORD, OP_REGISTER, OP_SHOW, OP_STOP, OP_UNREGISTER,
};
use shared_abi::{Config, Errno, PhysSlot};
use zerocopy::IntoBytes;

use crate::hal::Hypervisor;

pub(crate) fn query(kernel: &impl Hypervisor, query: &mut HvQuery) -> Result<(), Errno> {
    kernel.hypercall(OP_QUERY, query.as_mut_bytes())
}

pub(crate) fn register(kernel: &impl Hypervisor, gfn: u64, observer: u32) -> Result<(), Errno> {
    kernel.hypercall(OP_REGISTER, HvRegister { gfn, observer, reserved: 0 }.as_mut_bytes())
}

pub(crate) fn unregister(kernel: &impl Hypervisor) -> Result<(), Errno> {
    kernel.hypercall(OP_UNREGISTER, &mut [])
}

// Not inlined: the argument's 776 bytes need not be on the stack of every switch.
#[inline(never)]
pub(crate) fn load(kernel: &impl Hypervisor, config: &Config) -> Result<(), Errno> {
    let mut argument = HvLoad::default();
    argument.counters = config.encode(&mut argument.counter);
    let used = HvLoad::bytes(argument.counters as usize);
    let bytes = argument.as_mut_bytes().get_mut(..used).ok_or(Errno::INVAL)?;
    kernel.hypercall(OP_LOAD, bytes)
}

/// Registers a page in place of the present one, and loads a configuration there if there is one.
#[inline(never)]
pub(crate) fn show(
    kernel: &impl Hypervisor,
    gfn: u64,
    observer: u32,
    config: Option<&Config>,
) -> Result<(), Errno> {
    let page = HvRegister { gfn, observer, reserved: 0 };
    let mut argument = HvShow { page, ..HvShow::default() };
    if let Some(config) = config {
        argument.load.counters = config.encode(&mut argument.load.counter);
    }
    let used = HvShow::bytes(argument.load.counters as usize);
    let bytes = argument.as_mut_bytes().get_mut(..used).ok_or(Errno::INVAL)?;
    kernel.hypercall(OP_SHOW, bytes)
}

pub(crate) fn stop(kernel: &impl Hypervisor) -> Result<(), Errno> {
    kernel.hypercall(OP_STOP, &mut [])
}

pub(crate) fn place(kernel: &impl Hypervisor, slot: PhysSlot) -> Result<HvPlace, Errno> {
    let mut place = HvPlace { slot: slot.index() as u32, ..HvPlace::default() };
    kernel.hypercall(OP_PLACE, place.as_mut_bytes())?;
    Ok(place)
}

pub(crate) fn record(kernel: &impl Hypervisor, filter: u32) -> Result<(), Errno> {
    kernel.hypercall(OP_RECORD, HvRecord { filter, reserved: 0 }.as_mut_bytes())
}

pub(crate) fn branches(kernel: &impl Hypervisor, branches: &mut HvBranches) -> Result<(), Errno> {
    kernel.hypercall(OP_BRANCHES, branches.as_mut_bytes())
}
