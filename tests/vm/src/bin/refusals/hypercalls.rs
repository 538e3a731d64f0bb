// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what the hypervisor refuses.

use anyhow::{Context, Result};
use shared_abi::CounterConfig;
use shared_abi::hypercall::{
    BRANCHES_KINDS, BRANCHES_USER, HOST_OPS, HvAccounting, HvBranches, HvDomain, HvDomains, HvLoad,
    HvPlace, HvProfile, HvQuery, HvRecord, HvRegister, HvShow, HvStats, OP_ACCOUNTS_READ,
    OP_ACCOUNTS_START, OP_ACCOUNTS_STOP, OP_BRANCHES, OP_DOMAIN, OP_DOMAINS, OP_GO_ON, OP_LOAD,
    OP_PLACE, OP_PROFILE_READ, OP_PROFILE_START, OP_PROFILE_STOP, OP_QUERY, OP_RECORD, OP_REGISTER,
    OP_SHOW, OP_STATS, OP_STOP, OP_UNREGISTER,
};
use shared_abi::limits::MAX_SLOTS;
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use vm_tests::host::Host;
use vm_tests::module;
use vm_tests::raw::{Argument, Refusal};
use vm_tests::tally::{Tally, equal};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Bench;
use crate::configs::{self, VALID};

/// A domain number that no domain has.
const NO_DOMAIN: u32 = 0x7000;

/// Makes the hypercall with `argument`, and says that it is `length` bytes long.
fn call<T: IntoBytes + FromBytes + Immutable>(
    host: &dyn Host,
    op: u32,
    mut argument: T,
    length: usize,
) -> Result<(), Refusal> {
    host.perfctr_op(op, Argument::of(&mut argument), length as u32)
}

/// Returns an [`HvLoad`] with these counters.
fn load(counters: &[CounterConfig]) -> HvLoad {
    let mut load = HvLoad { counters: counters.len() as u32, ..HvLoad::default() };
    load.counter[..counters.len()].copy_from_slice(counters);
    load
}

/// Returns how `op` is refused. If a domain is not a control domain, an operation on the whole host
/// is refused before anything else is checked.
fn of(host: &dyn Host, op: u32, errno: Refusal) -> Refusal {
    let others = HOST_OPS.contains(&op) && host.xen().is_none();
    if others { Refusal::EPERM } else { errno }
}

/// Makes requests that are refused in any state.
pub fn refuse(bench: &mut Bench, host: &dyn Host) {
    arguments(bench, host);
    branches(bench, host);
    lengths(bench, host);
    pointers(bench, host);
    loads(bench, host);
}

fn arguments(bench: &mut Bench, host: &dyn Host) {
    for op in [19, 255, u32::MAX] {
        bench.refused(&format!("operation {op}"), Refusal::EINVAL, || {
            host.perfctr_op(op, Argument::Null, 0)
        });
    }
    // On this host no counter is kept for samples of the host.
    for op in [OP_PROFILE_START, OP_PROFILE_READ, OP_PROFILE_STOP] {
        let profile = HvProfile { evntsel: 0x43_00c0, period: 100_000, cpus: 1, flags: 0 };
        let what = format!("samples of the host, operation {op}");
        bench.refused(&what, of(host, op, Refusal::EOPNOTSUPP), || {
            call(host, op, profile, size_of::<HvProfile>())
        });
    }
    // No counters are kept for accounts either.
    for op in [OP_ACCOUNTS_START, OP_ACCOUNTS_READ, OP_ACCOUNTS_STOP] {
        let accounting = HvAccounting { evntsel: 0x43_00c0, reserved: 0 };
        let what = format!("accounts of the host's domains, operation {op}");
        bench.refused(&what, of(host, op, Refusal::EOPNOTSUPP), || {
            call(host, op, accounting, size_of::<HvAccounting>())
        });
    }
    if let Some(xen) = host.xen() {
        bench.refused("xenoprof beside the driver", Refusal::EBUSY, || xen.xenoprof_get_buffer());
    }
    let query = HvQuery {
        abi_major: u32::from(ABI_MAJOR) + 1,
        abi_minor: ABI_MINOR.into(),
        ..HvQuery::default()
    };
    bench.refused("query by another ABI major", Refusal::EPROTO, || {
        call(host, OP_QUERY, query, size_of::<HvQuery>())
    });
    let register = HvRegister::default();
    bench.refused("second page of a vCPU", Refusal::EEXIST, || {
        call(host, OP_REGISTER, register, size_of::<HvRegister>())
    });
    bench.refused("going on with a vCPU that has a page", Refusal::EEXIST, || {
        call(host, OP_GO_ON, register, size_of::<HvRegister>())
    });
    bench.refused("reserved field of a registration", Refusal::EINVAL, || {
        call(host, OP_REGISTER, HvRegister { reserved: 1, ..register }, size_of::<HvRegister>())
    });
    bench.refused("reserved field of a page in place of another", Refusal::EINVAL, || {
        let register = HvRegister { reserved: 1, ..register };
        call(host, OP_SHOW, HvShow { page: register, load: load(&[VALID]) }, HvShow::bytes(1))
    });
    bench.refused("place of a counter that no page has", Refusal::EINVAL, || {
        let place = HvPlace { slot: MAX_SLOTS as u32, ..HvPlace::default() };
        call(host, OP_PLACE, place, size_of::<HvPlace>())
    });
    domains(bench, host);
}

/// Tests the calls about who may count.
fn domains(bench: &mut Bench, host: &dyn Host) {
    let domain = HvDomain { domid: NO_DOMAIN, enabled: 1, ..HvDomain::default() };
    bench.refused("allowing no domain", of(host, OP_DOMAIN, Refusal::ESRCH), || {
        call(host, OP_DOMAIN, domain, size_of::<HvDomain>())
    });
    bench.refused(
        "forbidding a domain whose number has 17 bits",
        of(host, OP_DOMAIN, Refusal::ESRCH),
        || {
            let domain = HvDomain { domid: 0x1_0000, ..HvDomain::default() };
            call(host, OP_DOMAIN, domain, size_of::<HvDomain>())
        },
    );
    bench.refused("allowing a domain twice over", of(host, OP_DOMAIN, Refusal::EINVAL), || {
        call(host, OP_DOMAIN, HvDomain { enabled: 2, ..HvDomain::default() }, size_of::<HvDomain>())
    });
    bench.refused(
        "limits of a domain that is forbidden",
        of(host, OP_DOMAIN, Refusal::EINVAL),
        || {
            let domain = HvDomain { overflows_per_ms: 7, ..HvDomain::default() };
            call(host, OP_DOMAIN, domain, size_of::<HvDomain>())
        },
    );
}

/// Tests the calls about branches, which this host does not record.
fn branches(bench: &mut Bench, host: &dyn Host) {
    bench.refused("recording branches", Refusal::EOPNOTSUPP, || {
        let record = HvRecord { filter: BRANCHES_USER | BRANCHES_KINDS, reserved: 0 };
        call(host, OP_RECORD, record, size_of::<HvRecord>())
    });
    bench.refused("branches before an overflow", Refusal::EOPNOTSUPP, || {
        call(host, OP_BRANCHES, HvBranches::default(), size_of::<HvBranches>())
    });
}

fn lengths(bench: &mut Bench, host: &dyn Host) {
    let sizes = [
        ("query", OP_QUERY, size_of::<HvQuery>()),
        ("registration", OP_REGISTER, size_of::<HvRegister>()),
        ("going on", OP_GO_ON, size_of::<HvRegister>()),
        ("domain", OP_DOMAIN, size_of::<HvDomain>()),
        ("domains", OP_DOMAINS, size_of::<HvDomains>()),
        ("statistics", OP_STATS, size_of::<HvStats>()),
        ("place", OP_PLACE, size_of::<HvPlace>()),
        ("load", OP_LOAD, HvLoad::bytes(1)),
        ("page in place of another", OP_SHOW, HvShow::bytes(1)),
        ("unregistration", OP_UNREGISTER, 0),
        ("stop", OP_STOP, 0),
    ];
    for (name, op, size) in sizes {
        let wrong = [size.wrapping_sub(1), size + 1, 0, 4096, u32::MAX as usize];
        for length in wrong.into_iter().filter(|&length| length != size && length != usize::MAX) {
            let errno = of(host, op, Refusal::EINVAL);
            bench.refused(&format!("{name} of {length} bytes"), errno, || {
                call(host, op, load(&[VALID]), length)
            });
        }
    }
    let counters = MAX_SLOTS + 1;
    let mut many = [0_u8; HvLoad::bytes(MAX_SLOTS + 1)];
    many[..4].copy_from_slice(&(counters as u32).to_ne_bytes());
    bench.refused("load of more counters than a page has", Refusal::EINVAL, || {
        call(host, OP_LOAD, many, HvLoad::bytes(counters))
    });
    bench.refused("load that says it has more counters", Refusal::EINVAL, || {
        call(host, OP_LOAD, HvLoad { counters: 2, ..load(&[VALID]) }, HvLoad::bytes(1))
    });
    bench.refused("load that says it has most counters", Refusal::EINVAL, || {
        call(host, OP_LOAD, HvLoad { counters: u32::MAX, ..load(&[VALID]) }, HvLoad::bytes(1))
    });
    bench.refused("reserved field of a load", Refusal::EINVAL, || {
        call(host, OP_LOAD, HvLoad { reserved: 1, ..load(&[VALID]) }, HvLoad::bytes(1))
    });
}

fn pointers(bench: &mut Bench, host: &dyn Host) {
    let sizes = [
        ("query", OP_QUERY, size_of::<HvQuery>()),
        ("registration", OP_REGISTER, size_of::<HvRegister>()),
        ("going on", OP_GO_ON, size_of::<HvRegister>()),
        ("domain", OP_DOMAIN, size_of::<HvDomain>()),
        ("domains", OP_DOMAINS, size_of::<HvDomains>()),
        ("statistics", OP_STATS, size_of::<HvStats>()),
        ("place", OP_PLACE, size_of::<HvPlace>()),
        ("load", OP_LOAD, HvLoad::bytes(1)),
        ("page in place of another", OP_SHOW, HvShow::bytes(1)),
    ];
    for (name, op, size) in sizes {
        for (place, argument) in [
            ("address 0", Argument::Null),
            ("the hypervisor's memory", Argument::Hypervisor),
            ("no canonical address", Argument::NonCanonical),
        ] {
            let errno = of(host, op, Refusal::EFAULT);
            bench.refused(&format!("{name} at {place}"), errno, || {
                host.perfctr_op(op, argument, size as u32)
            });
        }
    }
}

fn loads(bench: &mut Bench, host: &dyn Host) {
    let caps = bench.witness.session().description().caps;
    for bad in caps.iter().flat_map(configs::all) {
        bench.refused(&format!("load with {}", bad.name), bad.errno, || {
            call(host, OP_LOAD, load(&bad.counters), HvLoad::bytes(bad.counters.len()))
        });
    }
}

/// Makes requests that are refused because the vCPU has no page, while the module is unloaded.
pub fn refuse_without_page(tally: &mut Tally, host: &dyn Host) -> Result<()> {
    module::unload_when_idle().context("cannot unload the module")?;
    let size = size_of::<HvRegister>();
    let frames = [("the largest number", u64::MAX), ("beyond all memory", 1 << 40)];
    let others: &[_] = match host.xen() {
        Some(_) => &[("not its own", 1)],
        None => &[("its local APIC's", 0xfee00), ("its firmware's, which is read-only", 0xfffff)],
    };
    for (name_of, gfn) in frames.iter().chain(others).copied() {
        let outcome = call(host, OP_REGISTER, HvRegister { gfn, ..HvRegister::default() }, size);
        let name = format!("page whose frame is {name_of} gives EINVAL");
        tally.check(&name, equal(outcome, Err(Refusal::EINVAL)));
        let outcome = call(host, OP_GO_ON, HvRegister { gfn, ..HvRegister::default() }, size);
        let name = format!("going on from a page whose frame is {name_of} gives EINVAL");
        tally.check(&name, equal(outcome, Err(Refusal::EINVAL)));
        let register = HvRegister { gfn, ..HvRegister::default() };
        let show = HvShow { page: register, load: load(&[VALID]) };
        let outcome = call(host, OP_SHOW, show, HvShow::bytes(1));
        let name = format!("showing a page whose frame is {name_of} gives EINVAL");
        tally.check(&name, equal(outcome, Err(Refusal::EINVAL)));
    }
    let outcome = host.perfctr_op(OP_UNREGISTER, Argument::Null, 0);
    tally.check("unregistration without a page gives ENXIO", equal(outcome, Err(Refusal::ENXIO)));
    let outcome = host.perfctr_op(OP_STOP, Argument::Null, 0);
    tally.check("stop without a page gives ENXIO", equal(outcome, Err(Refusal::ENXIO)));
    let outcome = call(host, OP_PLACE, HvPlace::default(), size_of::<HvPlace>());
    tally.check("place without a page gives ENXIO", equal(outcome, Err(Refusal::ENXIO)));
    let outcome = call(host, OP_LOAD, load(&[VALID]), HvLoad::bytes(1));
    tally.check("load without a page gives ENXIO", equal(outcome, Err(Refusal::ENXIO)));
    module::load()
}
