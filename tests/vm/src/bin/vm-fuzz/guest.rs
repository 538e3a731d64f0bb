// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes a guest kernel's requests: hypercalls, from any of its vCPUs.
//!
//! The module registers the vCPUs' pages. Damage that the requests do to these harms only this
//! guest. So no program counts in this domain meanwhile, and the module is loaded again now and
//! then.

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Result;
use perfctr::Session;
use shared_abi::hypercall::{
    HOST_OPS, HvAccounting, HvAccounts, HvBranches, HvDomain, HvLoad, HvPlace, HvProfile, HvQuery,
    HvRecord, HvRegister, HvSamples, HvShow, HvStats, OP_ACCOUNTS_READ, OP_ACCOUNTS_START,
    OP_BRANCHES, OP_DOMAIN, OP_GO_ON, OP_LOAD, OP_PLACE, OP_PROFILE_READ, OP_PROFILE_START,
    OP_QUERY, OP_RECORD, OP_REGISTER, OP_SHOW, OP_STATS, OP_STOP, OP_UNREGISTER, PROFILE_AT_GUESTS,
};
use shared_abi::limits::MAX_SLOTS;
use shared_abi::version::ABI_MAJOR;
use vm_tests::module;
use vm_tests::raw::Argument;
use vm_tests::region::Region;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::xen::Xen;
use zerocopy::IntoBytes;

use crate::calls;
use crate::reader::Reader;

const REQUESTS_MAX: usize = 40;

/// The number of inputs after which the guest repairs its own pages.
const REPAIR_EVERY: u64 = 16;

/// Longer than every argument.
const ARGUMENT_BYTES: usize = 2048;

/// Frames beyond all memory, or frames of nobody. The hypervisor would write to a frame of the
/// guest's own.
const FRAMES: [u64; 6] = [1 << 24, (1 << 28) - 1, 1 << 40, 1 << 52, u64::MAX, u64::MAX >> 12];

/// Operations. Those of the whole host are between both lists. Inputs of the corpus choose an
/// operation by its place.
const FIRST_REQUESTS: [u32; 6] = [OP_LOAD, OP_LOAD, OP_LOAD, OP_LOAD, OP_STOP, OP_QUERY];
const LAST_REQUESTS: [u32; 5] = [OP_RECORD, OP_BRANCHES, OP_REGISTER, OP_PLACE, u32::MAX];

/// A byte with which an input makes a request.
const REQUEST: u8 = 3;
/// Bytes that leave an argument and its length as they are, and choose different values.
const FILLERS: [u8; 4] = [100, 104, 120, 180];

/// Whether some vCPU may have no page any more.
static UNREGISTERED: AtomicBool = AtomicBool::new(false);

/// A guest kernel.
#[derive(Debug)]
pub struct Guest {
    xen: Xen,
    cpus: Vec<usize>,
    /// The session for which the vCPUs have pages.
    pages: RefCell<Option<Session>>,
}

impl Guest {
    /// Returns this domain's kernel.
    pub fn new() -> Result<Self> {
        let pages = RefCell::new(Some(module::register_pages()?));
        Ok(Self { xen: Xen::open()?, cpus: cpus()?, pages })
    }

    /// Registers every vCPU's page again, after some of the inputs.
    pub fn repair_at_times(&self, number: u64) -> Result<()> {
        if number.is_multiple_of(REPAIR_EVERY) && UNREGISTERED.swap(false, Relaxed) {
            drop(self.pages.take());
            module::unload_when_idle()?;
            module::load()?;
            self.pages.replace(Some(module::register_pages()?));
        }
        Ok(())
    }

    /// Makes an input's hypercalls.
    pub fn run(&self, input: &[u8]) -> Result<()> {
        let mut input = Reader::new(input);
        for _ in 0..REQUESTS_MAX {
            if input.is_empty() {
                break;
            }
            match input.below(8) {
                0 => run_on(SELF, &[input.pick(&self.cpus)])?,
                1 => Region { first: 1 + input.number() % 50_000, second: 1 }.execute(&mut 0),
                2 if input.byte() < 40 => {
                    calls::count();
                    self.xen.perfctr_op(OP_UNREGISTER, Argument::Null, 0).ok();
                    UNREGISTERED.store(true, Relaxed);
                }
                _ => request(&self.xen, &mut input),
            }
        }
        Ok(run_on(SELF, &self.cpus)?)
    }
}

/// Returns inputs that make each request with arguments that are valid, whatever the corpus has.
pub fn valid_inputs() -> Vec<Vec<u8>> {
    let input = |(op, filler): (usize, u8)| [&[REQUEST, op as u8][..], &[filler; 62]].concat();
    (0..requests().len()).flat_map(|op| FILLERS.map(|filler| (op, filler))).map(input).collect()
}

fn requests() -> Vec<u32> {
    [&FIRST_REQUESTS[..], &HOST_OPS, &LAST_REQUESTS].concat()
}

/// Makes a hypercall that is mostly valid. Refusals are expected.
fn request(xen: &Xen, input: &mut Reader<'_>) {
    let mut op = input.pick(&requests());
    if op == u32::MAX {
        let any = input.number() as u32;
        op = input.pick(&[any, OP_GO_ON, OP_SHOW]);
    }
    if matches!(op, OP_UNREGISTER | OP_SHOW) {
        UNREGISTERED.store(true, Relaxed);
    }
    let mut bytes = [0_u8; ARGUMENT_BYTES];
    let mut length = argument(op, input, &mut bytes);
    if !matches!(op, OP_REGISTER | OP_GO_ON | OP_SHOW) {
        input.disturb(&mut bytes[..length]);
    }
    if input.byte() < 30 {
        length = input.number() as usize;
    }
    let argument = match input.byte() {
        0..10 => Argument::Null,
        10..20 => Argument::Hypervisor,
        20..30 => Argument::NonCanonical,
        _ => Argument::Bytes(&mut bytes),
    };
    calls::count();
    xen.perfctr_op(op, argument, length as u32).ok();
    if op == OP_DOMAIN {
        // The other programs of this domain continue to count.
        xen.allow(vm_tests::xen::CONTROL_DOMAIN, true).ok();
    }
}

/// Writes an argument. Returns its length in bytes.
fn argument(op: u32, input: &mut Reader<'_>, bytes: &mut [u8]) -> usize {
    let mut put = |argument: &[u8]| {
        bytes[..argument.len()].copy_from_slice(argument);
        argument.len()
    };
    match op {
        OP_QUERY => put(HvQuery { abi_major: ABI_MAJOR.into(), ..HvQuery::default() }.as_bytes()),
        OP_REGISTER | OP_GO_ON => {
            put(HvRegister { gfn: input.pick(&FRAMES), ..HvRegister::default() }.as_bytes())
        }
        OP_SHOW => {
            let register = HvRegister { gfn: input.pick(&FRAMES), ..HvRegister::default() };
            let mut show = HvShow { page: register, ..HvShow::default() };
            show.load.counters = input.below(2) as u32;
            show.load.counter[0] = input.counter();
            put(&show.as_bytes()[..HvShow::bytes(show.load.counters as usize)])
        }
        OP_DOMAIN => {
            let domid = input.pick(&[0, 0, 1, 2, 0x7ff0, 0x1_0000, u32::MAX]);
            let enabled = input.below(3) as u32;
            put(HvDomain { domid, enabled, ..HvDomain::default() }.as_bytes())
        }
        OP_STATS => put(HvStats::default().as_bytes()),
        OP_PROFILE_START => {
            let (evntsel, period) = (0x43_00c0, input.pick(&[0, 10_000, 1 << 31, u64::MAX]));
            let flags = input.pick(&[0, PROFILE_AT_GUESTS, u64::MAX]);
            put(HvProfile { evntsel, period, cpus: 1, flags }.as_bytes())
        }
        OP_ACCOUNTS_START => {
            let evntsel = input.pick(&[0x43_00c0, 0x42_00c0, u64::MAX]);
            put(HvAccounting { evntsel, reserved: 0 }.as_bytes())
        }
        OP_ACCOUNTS_READ => put(&[0; size_of::<HvAccounts>()]),
        OP_PROFILE_READ => put(&[0; size_of::<HvSamples>()]),
        OP_RECORD => {
            let filter = input.word() as u32 & input.pick(&[0xff, 0x1ff, u32::MAX]);
            put(HvRecord { filter, reserved: 0 }.as_bytes())
        }
        OP_BRANCHES => {
            let slot = input.below(2 * MAX_SLOTS) as u32;
            put(HvBranches { slot, ..HvBranches::default() }.as_bytes())
        }
        OP_PLACE => {
            let slot = input.below(2 * MAX_SLOTS) as u32;
            put(HvPlace { slot, ..HvPlace::default() }.as_bytes())
        }
        OP_LOAD => {
            let used = input.below(6);
            let mut load = HvLoad { counters: used as u32, ..HvLoad::default() };
            for counter in &mut load.counter[..used.min(MAX_SLOTS)] {
                *counter = input.counter();
            }
            put(&load.as_bytes()[..HvLoad::bytes(used)])
        }
        _ => put(&input.word().to_le_bytes()[..input.below(2) * 8]),
    }
}
