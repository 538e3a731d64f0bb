// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the accounts of virtual CPUs: how many instructions each virtual CPU has executed, and how
//! many the hypervisor has executed while that virtual CPU was current.
//!
//! The emulator keeps a tally: the numbers of instructions that each physical CPU has executed in
//! ring 0, outside of ring 0, and in a guest's own ring 0. A *look* reads the tally, then the
//! accounts, then the tally again. A test takes two looks, with some work between them, and
//! demands that the accounts have grown by as much as the tally. Each look leaves open at which of
//! its own instructions the accounts were read, so the tally's growth has a lower and an upper
//! bound. If both looks took equally many instructions, these cancel, and the test demands the
//! exact number.
//!
//! With the argument `passive`, this program tests the account of a PVH tenant that does not know
//! that it is observed. The tenant runs the program `system`. `perfctr domains counts` runs this
//! program with the argument `busy`, and counts what it executes.

use std::env;
use std::fs;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use perfctr::rdpmc::Hardware;
use serde_json::Value;
use shared_abi::hypercall::{
    ACCOUNTS_LEASE_MS, ACCOUNTS_MAX, HvAccount, HvAccounting, HvAccounts, OP_ACCOUNTS_READ,
    OP_ACCOUNTS_START, OP_ACCOUNTS_STOP,
};
use shared_abi::read::Counters;
use vm_tests::emulated::{GUESTS_RING_0, OUTSIDE_RING_0, RING_0};
use vm_tests::raw::{Argument, Refusal};
use vm_tests::region::Region;
use vm_tests::tallied::{CPU, OTHER, move_to_cpu, start_passive_tenant};
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::witness::Witness;
use vm_tests::xen::{CONTROL_DOMAIN, Xen};
use zerocopy::FromZeros;

const THIS: &str = "/work/accounts";
const WORKED: &str = "/tmp/worked";
const IDLE: u32 = 0x7fff;
/// Instructions (event C0H) in all rings.
const INSTRUCTIONS: u64 = 0x43_00c0;
/// How often the test tries to look at accounts while nothing else executes in between.
const ATTEMPTS: usize = 200;
/// The number of switches between which the hypervisor's share is judged.
const SWITCHES: usize = 2_000;
/// An accounting that has just begun has fewer instructions, and one that is about to end has twice
/// as many.
const LAST_SESSION: u64 = 10_000_000;
/// The message if none of these attempts succeeds.
const NEVER_SAME: &str = "no two looks were the same";
/// How long there is a storm, and how long a tenant executes.
const STORM: Duration = Duration::from_secs(3);
const TENANT: Duration = Duration::from_secs(2);

/// The accounts, by hypercall.
struct Accounts<'a>(&'a Xen);

impl Accounts<'_> {
    fn start(&self, evntsel: u64) -> Result<(), Refusal> {
        let mut accounting = HvAccounting { evntsel, reserved: 0 };
        let length = size_of::<HvAccounting>() as u32;
        self.0.perfctr_op(OP_ACCOUNTS_START, Argument::of(&mut accounting), length)
    }

    fn stop(&self) -> Result<(), Refusal> {
        self.0.perfctr_op(OP_ACCOUNTS_STOP, Argument::Null, 0)
    }

    fn batch(&self, domain: u32, vcpu: u32) -> Result<HvAccounts, Refusal> {
        let mut accounts = HvAccounts::new_zeroed();
        (accounts.domain, accounts.vcpu) = (domain, vcpu);
        let length = size_of::<HvAccounts>() as u32;
        self.0.perfctr_op(OP_ACCOUNTS_READ, Argument::of(&mut accounts), length)?;
        Ok(accounts)
    }

    fn read_all(&self) -> Result<Vec<HvAccount>, Refusal> {
        let mut all: Vec<HvAccount> = Vec::new();
        loop {
            let (domain, vcpu) = all.last().map_or((0, 0), |last| (last.domain, last.vcpu + 1));
            let some = self.batch(domain, vcpu)?;
            all.extend_from_slice(&some.account[..some.count as usize]);
            if (some.count as usize) < ACCOUNTS_MAX {
                return Ok(all);
            }
        }
    }
}

/// The instructions that a physical CPU has executed in guests, and in the hypervisor.
type Executed = [u64; 2];
const EXECUTED: usize = 0;
const HYPERVISOR: usize = 1;

fn executed_here() -> Executed {
    let [ring_0, outside, guests] =
        [RING_0, OUTSIDE_RING_0, GUESTS_RING_0].map(|index| Hardware.counter(index));
    [outside + guests, ring_0.wrapping_sub(guests)]
}

/// Returns what both physical CPUs have executed. To read that, this thread moves to a virtual CPU
/// of each.
fn both_executed() -> Result<Executed> {
    let mut sum = [0; 2];
    for cpu in [OTHER, CPU] {
        run_on(SELF, &[cpu as usize])?;
        let here = executed_here();
        sum = [0, 1].map(|n| here[n].wrapping_add(sum[n]));
    }
    Ok(sum)
}

/// The accounts, and what physical CPUs had executed before and after the accounts were read.
struct Look {
    before: Executed,
    accounts: Vec<HvAccount>,
    after: Executed,
}

impl Look {
    /// Looks at the accounts, and at what this physical CPU has executed.
    fn here(accounts: &Accounts<'_>) -> Result<Self> {
        let before = executed_here();
        let accounts = accounts.read_all()?;
        Ok(Self { before, accounts, after: executed_here() })
    }

    /// Looks at both physical CPUs. For that this thread moves to a virtual CPU of each.
    fn everywhere(accounts: &Accounts<'_>) -> Result<Self> {
        let before = both_executed()?;
        let accounts = accounts.read_all()?;
        Ok(Self { before, accounts, after: both_executed()? })
    }

    /// Takes many looks, and returns the one during which guests, or the hypervisor, have executed
    /// least.
    fn narrow(accounts: &Accounts<'_>, by: usize) -> Result<Self> {
        let looks = (0..ATTEMPTS).map(|_| Self::here(accounts));
        let looks = looks.collect::<Result<Vec<_>>>()?;
        looks.into_iter().min_by_key(|look| look.width()[by]).context("no look")
    }

    fn width(&self) -> Executed {
        [0, 1].map(|n| self.after[n].wrapping_sub(self.before[n]))
    }

    /// Returns the sums of these accounts: executed, hypervisor.
    fn sum(&self, of: impl Fn(&HvAccount) -> bool) -> Executed {
        let mut sum = [0; 2];
        for one in self.accounts.iter().filter(|one| of(one)) {
            sum = [sum[0] + one.executed, sum[1] + one.hypervisor];
        }
        sum
    }
}

/// Returns whether guests, or the hypervisor, have executed the same number of instructions in both
/// looks. If the looks are the narrowest of many, these were the same instructions.
fn same_width(from: &Look, to: &Look, by: usize) -> bool {
    from.width()[by] == to.width()[by]
}

/// Checks that these accounts have grown between two looks within the bounds of the tally's growth.
/// If `exactly` names guests ([`EXECUTED`]) or the hypervisor ([`HYPERVISOR`]), and they have
/// executed equally many instructions in both looks, their account must have grown by exactly as
/// much as their tally.
fn compare(
    from: &Look,
    to: &Look,
    exactly: Option<usize>,
    of: impl Fn(&HvAccount) -> bool,
) -> Result<(), String> {
    let accounted = [0, 1].map(|n| to.sum(&of)[n] - from.sum(&of)[n]);
    let least = [0, 1].map(|n| to.before[n] - from.after[n]);
    let most = [0, 1].map(|n| to.after[n] - from.before[n]);
    let exactly = exactly.filter(|by| same_width(from, to, *by));
    let exact = exactly.map(|by| (by, to.before[by] - from.before[by]));
    let why = format!(
        "executed {} of {} to {} ({exact:?}), hypervisor {} of {} to {}",
        accounted[0], least[0], most[0], accounted[1], least[1], most[1]
    );
    println!("{why}");
    let within = |n: usize| (least[n]..=most[n]).contains(&accounted[n]);
    let fits = within(0) && within(1) && exact.is_none_or(|(by, exact)| exact == accounted[by]);
    if fits { Ok(()) } else { Err(why) }
}

fn main() -> Result<ExitCode> {
    match env::args().nth(1).as_deref() {
        Some("passive") => return account_of_passive_tenant(),
        Some("busy") => return work_beside_command(),
        _ => {}
    }
    let xen = Xen::open().context("this is not Xen's control domain")?;
    let all = cpus()?;
    let session = move_to_cpu(&xen, &all)?;
    let (accounts, mut tally) = (Accounts(&xen), Tally::default());
    without_session(&accounts, &mut tally);
    accounts.start(INSTRUCTIONS)?;
    account_of_vcpu(&accounts, &mut tally)?;
    account_of_known_instructions(&accounts, &mut tally)?;
    account_of_hypervisor(&accounts, &mut tally)?;
    accounts_in_storm(&accounts, &all, &mut tally)?;
    accounts.stop()?;
    accounts_by_command(all.len(), &mut tally)?;
    drop(session);
    accounts.start(INSTRUCTIONS)?;
    counts_beside_accounts(&accounts, &mut tally)?;
    accounts.stop()?;
    sessions_end(&accounts, &mut tally)?;
    Ok(tally.finish())
}

/// Checks that nothing can be read or ended while nobody accounts, and that wrong arguments fail.
fn without_session(accounts: &Accounts<'_>, tally: &mut Tally) {
    let outcome = (accounts.batch(0, 0).map(drop), accounts.stop());
    tally.check(
        "while nobody accounts there is nothing to read or to end",
        equal(outcome, (Err(Refusal::ENXIO), Err(Refusal::ENXIO))),
    );
    let outcome =
        [0x42_00c0, 0x41_00c0, 0x43_00c0 | 1 << 20].map(|evntsel| accounts.start(evntsel));
    let expected = [Refusal::EINVAL, Refusal::EINVAL, Refusal::EPERM];
    tally.check("what cannot be accounted is refused", equal(outcome, expected.map(Err)));
}

/// Returns whether an account belongs to physical CPU 0, whose only virtual CPU is the control
/// domain's first one.
fn of_cpu(account: &HvAccount) -> bool {
    matches!((account.domain, account.vcpu), (0, 0) | (IDLE, CPU))
}

/// Executes system calls, which enter Xen, and instructions of this program.
fn work() {
    for _ in 0..200 {
        nix::unistd::getppid();
    }
    Region { first: 4_000, second: 1 }.execute(&mut 0);
}

/// Looks at the accounts of physical CPU 0 before this work and after it, until both looks take
/// equally many instructions. Returns whether the account of guests ([`EXECUTED`]), or of the
/// hypervisor ([`HYPERVISOR`]), is then exact.
fn is_exact(accounts: &Accounts<'_>, by: usize, work: impl Fn()) -> Result<Result<(), String>> {
    for _ in 0..ATTEMPTS {
        let from = Look::narrow(accounts, by)?;
        work();
        let to = Look::narrow(accounts, by)?;
        let found = compare(&from, &to, Some(by), of_cpu);
        if found.is_err() || same_width(&from, &to, by) {
            return Ok(found);
        }
    }
    Ok(Err(NEVER_SAME.to_owned()))
}

/// Checks that the account of a virtual CPU that is alone on its physical CPU is exact.
fn account_of_vcpu(accounts: &Accounts<'_>, tally: &mut Tally) -> Result<()> {
    let found = is_exact(accounts, EXECUTED, || (0..100).for_each(|_| work()))?;
    tally.check("what a virtual CPU executes is accounted to the instruction", found);
    let looked = Look::here(accounts)?;
    let idle = looked.sum(|one| one.domain == IDLE)[EXECUTED];
    tally.check("idle virtual CPUs execute nothing themselves", equal(idle, 0));
    Ok(())
}

/// Checks that the account grows by the known count plus the cost of reading it.
fn account_of_known_instructions(accounts: &Accounts<'_>, tally: &mut Tally) -> Result<()> {
    let least = |region: Region| -> Result<u64> {
        let mut least = u64::MAX;
        for _ in 0..ATTEMPTS {
            let from = Look::here(accounts)?;
            region.execute(&mut 0);
            let to = Look::here(accounts)?;
            let got = [to, from].map(|look| look.sum(|one| (one.domain, one.vcpu) == (0, 0))[0]);
            least = least.min(got[0] - got[1]);
        }
        Ok(least)
    };
    let (short, long) = (Region { first: 1, second: 1 }, Region { first: 1_234, second: 777 });
    let difference = least(long)?.checked_sub(least(short)?);
    let expected = long.instructions() - short.instructions();
    tally.check("known instructions are in the account", equal(difference, Some(expected)));
    Ok(())
}

/// Checks that no instruction of the hypervisor is lost or counted twice at a switch.
///
/// A look also waits for the other CPU, after this CPU's accounts are up to date. The narrowest of
/// many looks has not waited.
fn account_of_hypervisor(accounts: &Accounts<'_>, tally: &mut Tally) -> Result<()> {
    let found = is_exact(accounts, HYPERVISOR, || {
        for _ in 0..SWITCHES / 2 {
            // This switches to the idle virtual CPU, and back.
            sleep(Duration::from_micros(20));
        }
    })?;
    tally.check("what the hypervisor executes is accounted to the instruction", found);
    Ok(())
}

/// Checks that all accounts together lose nothing while virtual CPUs change their physical CPUs.
fn accounts_in_storm(accounts: &Accounts<'_>, all: &[usize], tally: &mut Tally) -> Result<()> {
    for &cpu in all.iter().skip(2) {
        accounts.0.set_affinity(CONTROL_DOMAIN, cpu as u32, 1 << CPU | 1 << OTHER)?;
    }
    let stop = AtomicBool::new(false);
    let (from, to) = thread::scope(|scope| -> Result<(Look, Look)> {
        for &cpu in all {
            let stop = &stop;
            scope.spawn(move || {
                run_on(SELF, &[cpu]).expect("the CPU is online");
                while !stop.load(Ordering::Relaxed) {
                    work();
                    sleep(Duration::from_micros(100));
                }
            });
        }
        let looks = (|| {
            let from = Look::everywhere(accounts)?;
            let start = Instant::now();
            // Frequent reads of the accounts must not make them less exact.
            while start.elapsed() < STORM {
                accounts.read_all()?;
                sleep(Duration::from_millis(2));
            }
            Ok((from, Look::everywhere(accounts)?))
        })();
        stop.store(true, Ordering::Relaxed);
        looks
    })?;
    tally.check(
        "all accounts together are what all CPUs execute",
        compare(&from, &to, None, |_| true),
    );
    Ok(())
}

/// Checks that the command shows the same accounts, and serves them to Prometheus.
fn accounts_by_command(vcpus_of_this: usize, tally: &mut Tally) -> Result<()> {
    let before = both_executed()?;
    let shown = output_of(&["domains", "counts", "--json", "--", THIS, "busy"])?;
    let after = both_executed()?;
    let most: u64 = [0, 1].map(|n| after[n].wrapping_sub(before[n])).iter().sum();
    let shown: Value = serde_json::from_str(&shown)?;
    let vcpus = shown["vcpus"].as_array().context("no list")?;
    let sum = vcpus.iter().filter_map(|one| one["sum"].as_u64()).sum::<u64>();
    let is_idle = |one: &&Value| one["name"] == "idle" && one["executed"] == 0;
    let names = [vcpus.iter().filter(is_idle).count(), vcpus.len()];
    tally.check("the command shows each virtual CPU", equal(names, [2, 2 + vcpus_of_this]));
    let least: u64 = fs::read_to_string(WORKED)?.parse()?;
    let why = format!("{sum} instructions, {least} to {most} expected");
    let fits = (least..=most).contains(&sum);
    println!("{why}");
    tally.check("the command shows what all CPUs execute", fits.then_some(()).ok_or(why));
    let served = output_of(&["export", "--host", "--once"])?;
    let first = "perfctr_domain_events_total{domain=\"0\",name=\"";
    let by = ["by=\"domain\"", "by=\"hypervisor\""]
        .map(|by| served.lines().any(|line| line.starts_with(first) && line.contains(by)));
    tally.check("the command serves accounts", equal(by, [true; 2]));
    Ok(())
}

/// Works beside the command, and prints how much physical CPU 0 has executed meanwhile.
fn work_beside_command() -> Result<ExitCode> {
    let session = move_to_cpu(&Xen::open()?, &cpus()?)?;
    let before = executed_here();
    (0..100).for_each(|_| work());
    let after = executed_here();
    let worked: u64 = [0, 1].map(|n| after[n].wrapping_sub(before[n])).iter().sum();
    fs::write(WORKED, worked.to_string())?;
    drop(session);
    Ok(ExitCode::SUCCESS)
}

/// Returns what the command writes to its standard output.
fn output_of(words: &[&str]) -> Result<String> {
    let output = Command::new("/work/perfctr").args(words).output().context("/work/perfctr")?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{words:?}: {}: {error}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Checks that guests' counts stay exact while events are accounted.
fn counts_beside_accounts(accounts: &Accounts<'_>, tally: &mut Tally) -> Result<()> {
    let witness = Witness::new()?;
    let start = Instant::now();
    let mut outcome = Ok(());
    while outcome.is_ok() && start.elapsed() < STORM {
        accounts.read_all()?;
        outcome = witness.unchanged();
    }
    tally.check("a guest's counts are exact while events are accounted", outcome);
    Ok(())
}

/// Accounts the execution of a PVH tenant that does not know of it.
fn account_of_passive_tenant() -> Result<ExitCode> {
    let xen = Xen::open().context("this is not Xen's control domain")?;
    let (tenant, _) = start_passive_tenant(&xen)?;
    let session = move_to_cpu(&xen, &cpus()?)?;
    let (accounts, mut tally) = (Accounts(&xen), Tally::default());
    accounts.start(INSTRUCTIONS)?;
    let domain = u32::from(tenant.domain);
    let here = |one: &HvAccount| of_cpu(one) || one.domain == domain;
    let mut found = Err(NEVER_SAME.to_owned());
    let mut share = Err(String::new());
    for _ in 0..ATTEMPTS {
        let kernel = || Hardware.counter(GUESTS_RING_0);
        let from = (Look::narrow(&accounts, EXECUTED)?, kernel());
        sleep(TENANT);
        let to = (kernel(), Look::narrow(&accounts, EXECUTED)?);
        let got = [&to.1, &from.0].map(|look| look.sum(|one| one.domain == domain));
        let (got, kernel) = (got[0][0] - got[1][0], to.0 - from.1);
        let why = format!("{got} executed by the tenant, {kernel} in its kernel");
        println!("{why}");
        // The tenant also executes in user mode, in which otherwise only the control domain
        // executes.
        share = if kernel > 0 && got > kernel { Ok(()) } else { Err(why) };
        found = compare(&from.0, &to.1, Some(EXECUTED), here);
        if found.is_err() || share.is_err() || same_width(&from.0, &to.1, EXECUTED) {
            break;
        }
        found = Err(NEVER_SAME.to_owned());
    }
    tally.check(
        "what a PVH tenant and its neighbour execute is accounted to the instruction",
        found,
    );
    tally.check("a PVH tenant's kernel is in what the tenant has executed", share);
    tenant.destroy()?;
    let gone = accounts.read_all()?.iter().all(|one| one.domain != domain);
    let why = if gone { Ok(()) } else { Err("it is there".to_owned()) };
    tally.check("the account of a domain that has ended is gone", why);
    accounts.stop()?;
    drop(session);
    Ok(tally.finish())
}

/// Checks that there is one session at a time, which ends by itself when nobody reads accounts any
/// more.
fn sessions_end(accounts: &Accounts<'_>, tally: &mut Tally) -> Result<()> {
    accounts.start(INSTRUCTIONS)?;
    let busy = accounts.start(INSTRUCTIONS);
    tally.check("there is one accounting at a time", equal(busy, Err(Refusal::EBUSY)));
    // This accounting must have more instructions than a new one. Otherwise the check below could
    // not fail if the next accounting continued this one.
    while Look::here(accounts)?.sum(|one| one.domain == 0)[EXECUTED] < 2 * LAST_SESSION {
        work();
    }
    sleep(Duration::from_millis(ACCOUNTS_LEASE_MS + 1_000));
    let ended = accounts.batch(0, 0).map(drop);
    let what = "an accounting ends when nobody reads accounts";
    tally.check(what, equal(ended, Err(Refusal::ENXIO)));
    accounts.start(INSTRUCTIONS)?;
    let first = Look::here(accounts)?.sum(|one| one.domain == 0)[EXECUTED];
    let fits = if first < LAST_SESSION { Ok(()) } else { Err(format!("{first} instructions")) };
    tally.check("the next accounting begins anew", fits);
    tally.check("an accounting can be ended", equal(accounts.stop(), Ok(())));
    Ok(())
}
