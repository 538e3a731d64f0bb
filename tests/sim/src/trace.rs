// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Prints what happens in a readable form.

use core::mem::offset_of;

use shared_abi::hypercall::{
    OP_ACCOUNTS_READ, OP_ACCOUNTS_START, OP_ACCOUNTS_STOP, OP_BRANCHES, OP_CLOCK, OP_DOMAIN,
    OP_DOMAINS, OP_GO_ON, OP_LOAD, OP_PLACE, OP_PROFILE_READ, OP_PROFILE_START, OP_PROFILE_STOP,
    OP_QUERY, OP_RECORD, OP_REGISTER, OP_SHOW, OP_STATS, OP_STOP, OP_UNREGISTER,
};
use shared_abi::limits::PAGE_BYTES;
use shared_abi::sync::simulated::Access;
use shared_abi::thread_page::{ThreadPage, ThreadSlot};
use shared_abi::vcpu_page::{VcpuPage, VcpuSlot};

use crate::choice::Action;
use crate::machine::Machine;
use crate::search::Object;

/// What an agent is about to do.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// An access to a page.
    Page(usize, Access),
    /// RDPMC.
    Rdpmc(u32),
    /// RDTSC.
    Rdtsc,
    /// RDMSR.
    Rdmsr(u32),
    /// WRMSR.
    Wrmsr(u32, u64),
    /// A hypercall.
    Hypercall(u32),
    /// Something else.
    Note(&'static str),
}

/// Makes the names of a structure's fields, by offset.
macro_rules! names {
    ($ty:ty, $offset:expr, $($field:ident),+ $(,)?) => {
        match $offset {
            $(offset if offset == offset_of!($ty, $field) => stringify!($field),)+
            _ => "?",
        }
    };
}

fn vcpu_field(offset: usize) -> String {
    let first = offset_of!(VcpuPage, slots);
    match offset.checked_sub(first) {
        Some(inside) => {
            let (slot, offset) = (inside / size_of::<VcpuSlot>(), inside % size_of::<VcpuSlot>());
            format!("slots[{slot}].{}", names!(VcpuSlot, offset, sum, start, mask))
        }
        None => names!(
            VcpuPage, offset, magic, abi, size_bytes, flags, seq, vcpu_id, loaded, tsc_sum,
            tsc_start, generation, switches, migrations, overflows, throttled,
        )
        .into(),
    }
}

fn thread_field(offset: usize) -> String {
    let first = offset_of!(ThreadPage, slots);
    match offset.checked_sub(first) {
        Some(inside) => {
            let size = size_of::<ThreadSlot>();
            let (slot, offset) = (inside / size, inside % size);
            format!("slots[{slot}].{}", names!(ThreadSlot, offset, sum, start, slot, counter_index))
        }
        None => names!(
            ThreadPage, offset, magic, abi, size_bytes, state, seq, vcpu, counters, tsc_sum,
            tsc_start, tid, error, switches, migrations,
        )
        .into(),
    }
}

fn place(machine: &Machine, address: usize) -> String {
    match machine.page_at(address) {
        Some(Object::VcpuPage(index)) => {
            let offset = (address - (&raw const machine.vcpus[index].pages).addr()) % PAGE_BYTES;
            format!("vcpu {index} {}", vcpu_field(offset))
        }
        Some(Object::Thread(index)) => {
            let offset = address - (&raw const machine.threads[index].page).addr();
            format!("thread {index} {}", thread_field(offset))
        }
        _ => "elsewhere".into(),
    }
}

/// Prints what the present agent is about to do.
pub fn print(machine: &Machine, step: Step) {
    let what = match step {
        Step::Page(address, Access::Load) => format!("load  {}", place(machine, address)),
        Step::Page(address, Access::Store) => format!("store {}", place(machine, address)),
        Step::Rdpmc(index) => format!("rdpmc {index:#x}"),
        Step::Rdtsc => "rdtsc".into(),
        Step::Rdmsr(register) => format!("rdmsr {register:#x}"),
        Step::Wrmsr(register, value) => format!("wrmsr {register:#x} = {value:#x}"),
        Step::Hypercall(op) => format!("hypercall {}", operation(op)),
        Step::Note(note) => note.into(),
    };
    println!("{:8} {} {what}", machine.steps.get(), executing(machine));
}

/// Prints what happens to the machine.
pub fn print_action(machine: &Machine, action: Action) {
    println!("{:8} cpu {} ---- {action:?}", machine.steps.get(), machine.here.get());
}

fn executing(machine: &Machine) -> String {
    let here = machine.here.get();
    let vcpu = machine.cpus[here].current.get();
    let thread = vcpu.and_then(|vcpu| machine.vcpus[vcpu].current.get());
    let name = |index: Option<usize>| index.map_or("-".into(), |index: usize| index.to_string());
    let level = machine.level().map_or("idle".into(), |level| format!("{level:?}").to_lowercase());
    format!("cpu {here} vcpu {:>2} thread {:>2} {level:10}", name(vcpu), name(thread))
}

fn operation(op: u32) -> &'static str {
    match op {
        OP_QUERY => "query",
        OP_REGISTER => "register",
        OP_UNREGISTER => "unregister",
        OP_LOAD => "load",
        OP_STOP => "stop",
        OP_DOMAIN => "domain",
        OP_STATS => "stats",
        OP_PLACE => "place",
        OP_GO_ON => "go on",
        OP_PROFILE_START => "profile start",
        OP_PROFILE_READ => "profile read",
        OP_PROFILE_STOP => "profile stop",
        OP_ACCOUNTS_START => "accounts start",
        OP_ACCOUNTS_READ => "accounts read",
        OP_ACCOUNTS_STOP => "accounts stop",
        OP_RECORD => "record",
        OP_BRANCHES => "branches",
        OP_DOMAINS => "domains",
        OP_SHOW => "show",
        OP_CLOCK => "clock",
        _ => "unknown",
    }
}
