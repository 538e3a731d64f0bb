// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides about hypercalls.
//!
//! [`authorize`] checks the caller, and [`serve`] the argument. Between the two the hypervisor
//! copies the caller's bytes once; everything here works on that copy.

use shared_abi::hypercall::{
    BRANCHES_MODES, BRANCHES_USER, FEATURE_BRANCHES, FEATURE_COST, FEATURE_ENABLED,
    FEATURE_INTERRUPTS, FEATURE_PRECISE, FEATURE_USER_BRANCHES, HvAccounting, HvAccounts,
    HvBranches, HvClock, HvDomain, HvDomains, HvLoad, HvPlace, HvProfile, HvQuery, HvRecord,
    HvRegister, HvSamples, HvShow, HvStats, OP_ACCOUNTS_READ, OP_ACCOUNTS_START, OP_ACCOUNTS_STOP,
    OP_BRANCHES, OP_CLOCK, OP_DOMAIN, OP_DOMAINS, OP_GO_ON, OP_LOAD, OP_PLACE, OP_PROFILE_READ,
    OP_PROFILE_START, OP_PROFILE_STOP, OP_QUERY, OP_RECORD, OP_REGISTER, OP_SHOW, OP_STATS,
    OP_STOP, OP_UNREGISTER,
};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use shared_abi::{Config, CounterConfig, Errno, PhysSlot, VcpuPage, WireCaps};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::arch::Filter;
use crate::driver::Driver;
use crate::guest::{Clock, Guest, Rings};
use crate::hal::Pmu;
use crate::pcpu::ThisCpu;
use crate::policy::{Limits, is_valid};
use crate::vcpu::Vcpu;

/// The size of the largest argument, unit: bytes.
pub const ARGUMENT_BYTES_MAX: usize = size_of::<HvShow>();

/// The permission that a caller needs for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// The caller may count for itself.
    Count,
    /// The caller may control the whole host.
    ControlHost,
}

/// The table of all operations. Every other operation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Query,
    Register,
    GoOn,
    Unregister,
    Load,
    Stop,
    Place,
    Domain,
    Domains,
    Clock,
    Stats,
    ProfileStart,
    ProfileRead,
    ProfileStop,
    AccountsStart,
    AccountsRead,
    AccountsStop,
    Record,
    Branches,
    Show,
}

impl Operation {
    const fn new(op: u32) -> Result<Self, Errno> {
        Ok(match op {
            OP_QUERY => Self::Query,
            OP_REGISTER => Self::Register,
            OP_GO_ON => Self::GoOn,
            OP_UNREGISTER => Self::Unregister,
            OP_LOAD => Self::Load,
            OP_STOP => Self::Stop,
            OP_PLACE => Self::Place,
            OP_DOMAIN => Self::Domain,
            OP_DOMAINS => Self::Domains,
            OP_CLOCK => Self::Clock,
            OP_STATS => Self::Stats,
            OP_PROFILE_START => Self::ProfileStart,
            OP_PROFILE_READ => Self::ProfileRead,
            OP_PROFILE_STOP => Self::ProfileStop,
            OP_ACCOUNTS_START => Self::AccountsStart,
            OP_ACCOUNTS_READ => Self::AccountsRead,
            OP_ACCOUNTS_STOP => Self::AccountsStop,
            OP_RECORD => Self::Record,
            OP_BRANCHES => Self::Branches,
            OP_SHOW => Self::Show,
            _ => return Err(Errno::INVAL),
        })
    }

    fn permission(self) -> Permission {
        match self {
            Self::Query
            | Self::Register
            | Self::GoOn
            | Self::Unregister
            | Self::Load
            | Self::Stop
            | Self::Place
            | Self::Record
            | Self::Branches
            | Self::Show => Permission::Count,
            Self::AccountsStart | Self::AccountsRead | Self::AccountsStop => {
                Permission::ControlHost
            }
            Self::Domain
            | Self::Domains
            | Self::Clock
            | Self::Stats
            | Self::ProfileStart
            | Self::ProfileRead
            | Self::ProfileStop => Permission::ControlHost,
        }
    }
}

/// The vCPU that makes a hypercall, and what the hypervisor does for it.
pub trait Caller {
    /// The PMU of the CPU that executes the code.
    type Pmu<'a>: Pmu;

    /// Asks the hypervisor's security policy whether the caller has the permission.
    ///
    /// # Errors
    ///
    /// The error number to return.
    fn permits(&self, permission: Permission) -> Result<(), Errno>;
    /// Returns what the host lets the caller's domain use, or `None` if it may not count.
    fn limits(&self) -> Option<Limits>;
    /// Returns the number of the caller's domain for [`HvQuery::machine`].
    fn machine(&self) -> u64;
    /// Returns the kind of guest, if it can be given counters.
    fn guest(&self) -> Option<Guest>;
    /// Runs `work` with interrupts disabled.
    fn on_cpu<R>(&mut self, work: impl FnOnce(&mut ThisCpu<'_, Self::Pmu<'_>>) -> R) -> R;
    /// Runs `work` with interrupts disabled on the caller's state and page. Returns `None` if the
    /// caller has no page. The last argument of `work` is [`limits`](Self::limits), which nobody
    /// can change meanwhile.
    fn on_vcpu<R, W>(&mut self, work: W) -> Option<R>
    where
        W: FnOnce(&mut ThisCpu<'_, Self::Pmu<'_>>, &mut Vcpu, &VcpuPage, Option<Limits>) -> R;
    /// Takes the counters from the host's own perf for the driver, if the caller has a page and may
    /// count. This may wait.
    ///
    /// # Errors
    ///
    /// `BUSY` if perf needs the counters itself; `NODEV` if a physical CPU cannot count.
    fn take_counters(&mut self) -> Result<(), Errno>;
    /// Notes that the caller no longer needs the counters, if it has needed them.
    fn put_counters(&mut self);
    /// Pins the page with this frame number, and calls [`Vcpu::register`], or [`Vcpu::go_on`].
    ///
    /// # Errors
    ///
    /// `INVAL` if the frame is not a writable page of the guest; `NOMEM`; those of
    /// [`Left::of`](crate::Left::of); if the caller continues from a page, those of
    /// [`take_counters`](Self::take_counters).
    fn register(&mut self, gfn: u64, guest: &Guest, goes_on: bool) -> Result<(), Errno>;
    /// Calls [`Vcpu::unregister`], forgets the caller's state, and unpins its page. Nobody else
    /// sees a state in between. The caller has a page, and goes on needing the counters that it
    /// has taken.
    fn unregister(&mut self);
    /// Allows a domain within limits, or forbids it: [`Policy::set`](crate::Policy::set).
    ///
    /// # Errors
    ///
    /// `SRCH` if there is no such domain.
    fn set_policy(&mut self, wanted: &HvDomain) -> Result<(), Errno>;
    /// Calls [`Driver::add_domain`] for each domain of the host.
    fn list_domains(&mut self, answer: &mut HvDomains);
    /// Returns the time-stamp counter that a domain's virtual CPU reads.
    ///
    /// # Errors
    ///
    /// `SRCH` if there is no such virtual CPU; `OPNOTSUPP` if the hypervisor emulates its counter,
    /// or has no domains.
    fn clock(&mut self, domain: u32, vcpu: u32) -> Result<Clock, Errno>;
    /// Adds up the statistics of all physical CPUs.
    fn add_stats(&mut self, total: &mut HvStats);
    /// Makes the physical CPUs of the argument sample, see [`ThisCpu::start_samples`]. The host may
    /// count the event.
    ///
    /// # Errors
    ///
    /// `BUSY` if somebody samples; `NOMEM`.
    fn start_profile(&mut self, profile: &HvProfile) -> Result<(), Errno>;
    /// Takes samples of the physical CPU that the argument names.
    ///
    /// # Errors
    ///
    /// `NXIO` if nobody samples; `NOENT` if that CPU is not sampled. Nothing is written then.
    fn take_samples(&mut self, samples: &mut HvSamples) -> Result<(), Errno>;
    /// Ends sampling.
    ///
    /// # Errors
    ///
    /// `NXIO` if nobody samples.
    fn stop_profile(&mut self) -> Result<(), Errno>;
    /// Calls [`Driver::begin_accounts`], and makes each physical CPU begin. The host may count the
    /// event.
    ///
    /// # Errors
    ///
    /// `BUSY` if a session of accounts has not ended.
    fn start_accounts(&mut self, accounting: &HvAccounting) -> Result<(), Errno>;
    /// Calls [`Driver::wants_accounts`], makes each physical CPU bring its current vCPU's account
    /// up to date if the result says so, and calls [`Driver::add_account`] for each vCPU of the
    /// host.
    ///
    /// # Errors
    ///
    /// `NXIO` if there is no session of accounts. Nothing is written then.
    fn read_accounts(&mut self, accounts: &mut HvAccounts) -> Result<(), Errno>;
    /// Ends the accounting.
    ///
    /// # Errors
    ///
    /// `NXIO` if nobody has events accounted.
    fn stop_accounts(&mut self) -> Result<(), Errno>;
}

/// Checks whether the caller may make this hypercall. The hypervisor calls it before it looks at
/// the argument of `length` bytes.
///
/// # Errors
///
/// The error number to return.
pub fn authorize(caller: &mut impl Caller, op: u32, length: usize) -> Result<(), Errno> {
    caller.on_cpu(|cpu| cpu.pcpu.stats.hypercall());
    caller.permits(Operation::new(op)?.permission())?;
    if length > ARGUMENT_BYTES_MAX { Err(Errno::INVAL) } else { Ok(()) }
}

/// Serves operation `op` with the argument `bytes`, which the caller has passed. Returns whether
/// to copy them back.
///
/// # Errors
///
/// The error number to return. `bytes` are unchanged then, and nothing has happened, except that
/// [`OP_SHOW`] may have left the caller without a page.
pub fn serve(
    driver: &Driver,
    caller: &mut impl Caller,
    op: u32,
    bytes: &mut [u8],
) -> Result<bool, Errno> {
    match decode(driver, op, bytes)? {
        Request::Query => {
            let mut query = answer(driver, caller.limits(), caller.machine());
            query.features |= caller.guest().map_or(0, |guest| features_of(driver, guest.rings));
            query.write_to(bytes).map_err(|_| Errno::INVAL)?;
            return Ok(true);
        }
        Request::Register { gfn, observer, goes_on } => {
            register(driver, caller, gfn, observer, goes_on)?;
        }
        Request::Unregister => unregister(caller)?,
        Request::Load(counters) => load(caller, &configuration(driver, counters)?)?,
        Request::Show { gfn, observer, counters } => {
            show(driver, caller, gfn, observer, counters)?;
        }
        Request::Stop => {
            caller.on_vcpu(|cpu, vcpu, page, _| vcpu.stop(cpu, page)).ok_or(Errno::NXIO)?;
        }
        Request::Place(slot) => {
            let place = caller.on_vcpu(|_, vcpu, _, _| vcpu.take_place(slot)).ok_or(Errno::NXIO)?;
            place.write_to(bytes).map_err(|_| Errno::INVAL)?;
            return Ok(true);
        }
        Request::Domain(wanted) => caller.set_policy(&wanted)?,
        Request::Domains => return list_domains(caller, bytes),
        Request::Clock { domain, vcpu } => return clock(caller, domain, vcpu, bytes),
        Request::Stats => {
            let mut total = HvStats::new_zeroed();
            caller.add_stats(&mut total);
            total.write_to(bytes).map_err(|_| Errno::INVAL)?;
            return Ok(true);
        }
        Request::ProfileStart(profile) => caller.start_profile(&profile)?,
        Request::ProfileRead => {
            let samples = HvSamples::mut_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
            caller.take_samples(samples)?;
            return Ok(true);
        }
        Request::ProfileStop => caller.stop_profile()?,
        Request::AccountsStart(accounting) => caller.start_accounts(&accounting)?,
        Request::AccountsRead => {
            let accounts = HvAccounts::mut_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
            caller.read_accounts(accounts)?;
            return Ok(true);
        }
        Request::AccountsStop => caller.stop_accounts()?,
        Request::Record(filter) => record(caller, filter)?,
        Request::Branches(slot) => {
            let take = |vcpu: &mut Vcpu| {
                vcpu.can_record(driver, Filter::NONE).then(|| vcpu.take_branches(slot))
            };
            let taken = caller.on_vcpu(|_, vcpu, _, _| take(vcpu)).ok_or(Errno::NXIO)?;
            taken.ok_or(Errno::OPNOTSUPP)?.write_to(bytes).map_err(|_| Errno::INVAL)?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn register(
    driver: &Driver,
    caller: &mut impl Caller,
    gfn: u64,
    observer: u32,
    goes_on: bool,
) -> Result<(), Errno> {
    let kind = caller.guest().filter(|guest| guest.can_count(&driver.caps));
    let guest = Guest { observer, ..kind.ok_or(Errno::OPNOTSUPP)? };
    caller.limits().ok_or(Errno::PERM)?;
    if caller.on_vcpu(|_, _, _, _| ()).is_some() {
        return Err(Errno::EXIST);
    }
    caller.register(gfn, &guest, goes_on).inspect_err(|_| caller.put_counters())
}

/// Registers a page in place of the present one, and loads a configuration there. After an error
/// the caller has no page, so that it never counts in one that it has not asked for.
///
/// Users take turns often. So the caller keeps the counters in between, without a lock that all
/// of the host's vCPUs share.
fn show(
    driver: &Driver,
    caller: &mut impl Caller,
    gfn: u64,
    observer: u32,
    counters: &[CounterConfig],
) -> Result<(), Errno> {
    let config = &configuration(driver, counters)?;
    // Without a page there is nothing to unregister.
    let _ = forget_page(caller);
    let registered = register(driver, caller, gfn, observer, false);
    if config.slots() == 0 {
        caller.put_counters();
        return registered;
    }
    let shown = registered.and_then(|()| load(caller, config));
    if shown.is_err() {
        let _ = unregister(caller);
    }
    shown
}

fn unregister(caller: &mut impl Caller) -> Result<(), Errno> {
    let forgotten = forget_page(caller);
    caller.put_counters();
    forgotten
}

fn forget_page(caller: &mut impl Caller) -> Result<(), Errno> {
    caller.on_vcpu(|_, _, _, _| ()).ok_or(Errno::NXIO)?;
    caller.unregister();
    Ok(())
}

/// Makes the configuration that consists of these counters. It is large, and made only where it is
/// used, because it is copied less often than if it were a part of the request.
#[inline(always)]
fn configuration(driver: &Driver, counters: &[CounterConfig]) -> Result<Config, Errno> {
    Config::new(&driver.caps, counters).map_err(|error| error.errno())
}

fn load(caller: &mut impl Caller, config: &Config) -> Result<(), Errno> {
    caller.take_counters()?;
    let loaded = caller.on_vcpu(|cpu, vcpu, page, limits| {
        let limits = limits.ok_or(Errno::PERM)?;
        if config.slots() & !limits.slots != 0 {
            return Err(Errno::STALE);
        }
        if !cpu.pcpu.counts() {
            return Err(Errno::NODEV);
        }
        if !vcpu.can_place(cpu.driver, config) {
            return Err(Errno::OPNOTSUPP);
        }
        vcpu.limit_overflows(limits.overflows_max);
        vcpu.load(cpu, page, config);
        Ok(())
    });
    loaded.ok_or(Errno::NXIO)?
}

/// Returns the features (`FEATURE_*`) that depend on the guest's rings.
fn features_of(driver: &Driver, rings: Rings) -> u32 {
    let branches = match driver.modes_recorded(rings) {
        BRANCHES_MODES => FEATURE_BRANCHES,
        BRANCHES_USER => FEATURE_USER_BRANCHES,
        _ => 0,
    };
    let is_placed = rings == Rings::Folded && driver.has_precise();
    let precise = if is_placed { FEATURE_PRECISE } else { 0 };
    // Those of a guest with folded rings come to the driver, which subtracts them.
    let are_left = rings == Rings::Hardware && driver.counts_interrupts;
    let interrupts = if are_left { FEATURE_INTERRUPTS } else { 0 };
    branches | precise | interrupts
}

fn list_domains(caller: &mut impl Caller, bytes: &mut [u8]) -> Result<bool, Errno> {
    let answer = HvDomains::mut_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
    answer.count = 0;
    caller.list_domains(answer);
    Ok(true)
}

fn clock(
    caller: &mut impl Caller,
    domain: u32,
    vcpu: u32,
    bytes: &mut [u8],
) -> Result<bool, Errno> {
    let Clock { offset, scale, fraction_bits, .. } = caller.clock(domain, vcpu)?;
    let answer = HvClock { domain, vcpu, offset, scale, fraction_bits, reserved: 0 };
    answer.write_to(bytes).map_err(|_| Errno::INVAL)?;
    Ok(true)
}

fn record(caller: &mut impl Caller, filter: Filter) -> Result<(), Errno> {
    let begun = caller.on_vcpu(|cpu, vcpu, _, limits| {
        if !vcpu.can_record(cpu.driver, filter) {
            return Err(Errno::OPNOTSUPP);
        }
        limits.ok_or(Errno::PERM)?;
        if !cpu.pcpu.counts() {
            return Err(Errno::NODEV);
        }
        vcpu.record(cpu, filter);
        Ok(())
    });
    begun.ok_or(Errno::NXIO)?
}

/// A well-formed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// The handshake.
    Query,
    /// Register the page with this guest frame number.
    Register {
        /// The guest frame number.
        gfn: u64,
        /// The observer that may read the page.
        observer: u32,
        /// Whether to continue from the counts in the page.
        goes_on: bool,
    },
    /// Unregister the page.
    Unregister,
    /// Program the configuration that consists of these counters.
    Load(&'a [CounterConfig]),
    /// Register a page in place of the present one, and program a configuration.
    Show {
        /// The guest frame number.
        gfn: u64,
        /// The observer that may read the page.
        observer: u32,
        /// The configuration consists of these counters. It may be empty.
        counters: &'a [CounterConfig],
    },
    /// Stop counting.
    Stop,
    /// Return the place where this counter has overflowed.
    Place(PhysSlot),
    /// Allow or forbid a domain.
    Domain(HvDomain),
    /// Fill the argument with the host's domains.
    Domains,
    /// Fill the argument with the time-stamp counter of this virtual CPU.
    Clock {
        /// The domain.
        domain: u32,
        /// The number of the virtual CPU in it.
        vcpu: u32,
    },
    /// Fill the argument with the statistics.
    Stats,
    /// Sample the host.
    ProfileStart(HvProfile),
    /// Fill the argument with samples.
    ProfileRead,
    /// Stop sampling.
    ProfileStop,
    /// Account an event.
    AccountsStart(HvAccounting),
    /// Fill the argument with accounts.
    AccountsRead,
    /// Stop accounting.
    AccountsStop,
    /// Record these branches.
    Record(Filter),
    /// Return the branches before the overflow of this counter.
    Branches(PhysSlot),
}

/// Decodes operation `op` with the argument `bytes`, all of which the caller passed.
///
/// # Errors
///
/// The error number to return.
pub fn decode<'a>(driver: &Driver, op: u32, bytes: &'a [u8]) -> Result<Request<'a>, Errno> {
    let operation = Operation::new(op)?;
    match operation {
        Operation::Query => query(bytes),
        Operation::Register | Operation::GoOn => {
            let argument = HvRegister::ref_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
            let (gfn, observer) = decode_register(argument)?;
            Ok(Request::Register { gfn, observer, goes_on: operation == Operation::GoOn })
        }
        Operation::Unregister if bytes.is_empty() => Ok(Request::Unregister),
        Operation::Stop if bytes.is_empty() => Ok(Request::Stop),
        Operation::Unregister | Operation::Stop => Err(Errno::INVAL),
        Operation::Load => decode_load(bytes).map(Request::Load),
        Operation::Show => {
            let (argument, load) = HvRegister::ref_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
            let (gfn, observer) = decode_register(argument)?;
            decode_load(load).map(|counters| Request::Show { gfn, observer, counters })
        }
        Operation::Place => {
            let argument = HvPlace::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
            PhysSlot::from_guest(argument.slot).map(Request::Place).ok_or(Errno::INVAL)
        }
        Operation::Domain => {
            let argument = HvDomain::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
            if is_valid(&argument) { Ok(Request::Domain(argument)) } else { Err(Errno::INVAL) }
        }
        Operation::Domains if bytes.len() == size_of::<HvDomains>() => Ok(Request::Domains),
        Operation::Clock => {
            let HvClock { domain, vcpu, .. } =
                HvClock::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
            Ok(Request::Clock { domain, vcpu })
        }
        Operation::Stats if bytes.len() == size_of::<HvStats>() => Ok(Request::Stats),
        Operation::Domains | Operation::Stats => Err(Errno::INVAL),
        Operation::ProfileStart | Operation::ProfileRead | Operation::ProfileStop => {
            driver.profile.ok_or(Errno::OPNOTSUPP)?;
            decode_profile(driver, operation, bytes)
        }
        Operation::AccountsStart | Operation::AccountsRead | Operation::AccountsStop => {
            driver.accounts.ok_or(Errno::OPNOTSUPP)?;
            decode_accounts(driver, operation, bytes)
        }
        Operation::Record => {
            driver.registers.branches.ok_or(Errno::OPNOTSUPP)?;
            decode_record(bytes)
        }
        Operation::Branches => {
            driver.registers.branches.ok_or(Errno::OPNOTSUPP)?;
            let asked = HvBranches::ref_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
            PhysSlot::from_guest(asked.slot).map(Request::Branches).ok_or(Errno::INVAL)
        }
    }
}

fn decode_record(bytes: &[u8]) -> Result<Request<'static>, Errno> {
    match HvRecord::read_from_bytes(bytes) {
        Ok(HvRecord { filter, reserved: 0 }) => {
            Filter::new(filter).map(Request::Record).ok_or(Errno::INVAL)
        }
        _ => Err(Errno::INVAL),
    }
}

fn decode_profile(
    driver: &Driver,
    operation: Operation,
    bytes: &[u8],
) -> Result<Request<'static>, Errno> {
    match operation {
        Operation::ProfileStart => {
            let profile = HvProfile::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
            driver.accepts_profile(&profile)?;
            Ok(Request::ProfileStart(profile))
        }
        Operation::ProfileRead if bytes.len() == size_of::<HvSamples>() => Ok(Request::ProfileRead),
        Operation::ProfileStop if bytes.is_empty() => Ok(Request::ProfileStop),
        _ => Err(Errno::INVAL),
    }
}

fn decode_accounts(
    driver: &Driver,
    operation: Operation,
    bytes: &[u8],
) -> Result<Request<'static>, Errno> {
    match operation {
        Operation::AccountsStart => {
            let accounting = HvAccounting::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
            driver.accepts_accounting(&accounting)?;
            Ok(Request::AccountsStart(accounting))
        }
        Operation::AccountsRead => match HvAccounts::ref_from_bytes(bytes) {
            Ok(asked) if asked.reserved == 0 => Ok(Request::AccountsRead),
            _ => Err(Errno::INVAL),
        },
        Operation::AccountsStop if bytes.is_empty() => Ok(Request::AccountsStop),
        _ => Err(Errno::INVAL),
    }
}

fn query(bytes: &[u8]) -> Result<Request<'static>, Errno> {
    let guest = HvQuery::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
    if guest.abi_major == u32::from(ABI_MAJOR) { Ok(Request::Query) } else { Err(Errno::PROTO) }
}

/// Returns the answer to [`OP_QUERY`] for a guest that may count within these limits, or may not.
pub fn answer(driver: &Driver, limits: Option<Limits>, machine: u64) -> HvQuery {
    let enabled = if limits.is_some() { FEATURE_ENABLED } else { 0 };
    let caps = driver.caps.within(limits.unwrap_or(Limits::NONE).slots);
    let cost = if driver.cost.is_some() { FEATURE_COST } else { 0 };
    HvQuery {
        abi_major: u32::from(ABI_MAJOR),
        abi_minor: u32::from(ABI_MINOR),
        features: enabled | cost,
        caps: WireCaps::from(&caps),
        machine,
        ..HvQuery::default()
    }
}

/// Returns the frame and the observer.
const fn decode_register(argument: &HvRegister) -> Result<(u64, u32), Errno> {
    if argument.reserved != 0 {
        return Err(Errno::INVAL);
    }
    Ok((argument.gfn, argument.observer))
}

fn decode_load(bytes: &[u8]) -> Result<&[CounterConfig], Errno> {
    let (&header, rest) = <[u32; 2]>::ref_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
    let [counters, reserved] = header;
    if reserved != 0 || bytes.len() != HvLoad::bytes(counters as usize) {
        return Err(Errno::INVAL);
    }
    <[CounterConfig]>::ref_from_bytes(rest).map_err(|_| Errno::INVAL)
}
