// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests Linux's perf on the module's PMU. It compares counts and samples with the truth, while
//! threads are moved between vCPUs, and vCPUs between physical CPUs. It tests in the control domain
//! and in a tenant that it creates.

mod bolted;
mod bpf;
mod branches;
mod cgroup;
mod counted;
mod exporter;
mod forbidden;
mod inherited;
mod own;
mod place;
mod precise;
mod record;
mod refused;
mod sampled;
mod signalled;
mod stat;
mod tenant;
mod tool;
mod wide;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use anyhow::{Context, Result, bail};
use clap::Parser;
use nix::unistd::gettid;
use perfctr::{Provider, Session};
use shared_abi::PmuCaps;
use vm_tests::disturb;
use vm_tests::host::{Host, host};
use vm_tests::module;
use vm_tests::tally::Tally;
use vm_tests::threads::cpus;

/// The number of the testbed's physical CPUs.
const PCPUS: u32 = 2;
const SEED: u64 = 1;

/// The least number of times that vCPUs are switched in while they are disturbed.
const SWITCHES_MIN: u64 = 100;

/// The most rounds of something until that has happened.
const ROUNDS_MAX: u32 = 20;

/// The machine on which the tests run.
pub struct Machine {
    /// Its host. A tenant has none here: the control domain disturbs it.
    host: Option<Box<dyn Host>>,
    /// Its vCPUs' numbers.
    pub cpus: Vec<usize>,
    /// Its counters.
    pub caps: PmuCaps,
}

impl Machine {
    fn new(host: Option<Box<dyn Host>>) -> Result<Self> {
        let session = Session::open_with(Provider::Paravirt)?;
        let caps = session.description().caps.context("nobody says what counters there are")?;
        Ok(Self { host, cpus: cpus()?, caps })
    }

    /// Does something again and again while vCPUs are moved, until they were switched often enough.
    pub fn disturbed(&self, mut once: impl FnMut() -> Result<()>) -> Result<()> {
        let Some(host) = self.host.as_deref() else { return once() };
        let enough = host.switches()? + SWITCHES_MIN;
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            let disturber = scope.spawn(|| {
                disturb::vcpus(host, &self.cpus, PCPUS, SEED, stop);
            });
            let mut go_on = || -> Result<()> {
                for _ in 0..ROUNDS_MAX {
                    once()?;
                    if host.switches()? >= enough {
                        return Ok(());
                    }
                }
                bail!("fewer than {SWITCHES_MIN} switches of vCPUs in {ROUNDS_MAX} rounds")
            };
            let result = go_on();
            stop.store(true, Ordering::Relaxed);
            // The scope waits for the thread's work, but not for the thread's end.
            disturber.join().expect("no thread panics");
            result
        })
    }

    /// Moves threads between vCPUs while all of them do something.
    pub fn scattered(
        &self,
        threads: usize,
        each: impl Fn(usize) -> Result<()> + Sync,
    ) -> Result<()> {
        let (movable, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let (gate, each) = (Barrier::new(threads + 1), &each);
        thread::scope(|scope| {
            let start = |id| {
                let (movable, gate) = (&movable, &gate);
                scope.spawn(move || {
                    movable.lock().expect("no thread panics").push(gettid());
                    gate.wait();
                    each(id)
                })
            };
            let all: Vec<_> = (0..threads).map(start).collect();
            gate.wait();
            let movable = movable.lock().expect("no thread panics").clone();
            let mover = scope.spawn(|| disturb::threads(&{ movable }, &self.cpus, SEED, &stop));
            let results = all.into_iter().map(|thread| thread.join().expect("no thread panics"));
            let result = results.collect();
            stop.store(true, Ordering::Relaxed);
            mover.join().expect("no thread panics");
            result
        })
    }
}

/// Where the tests count.
#[derive(Debug, Parser)]
enum Role {
    /// In this guest, which is Xen's control domain or a machine of KVM's.
    Here {
        /// Only tests whose names contain this text.
        #[arg(long, default_value = "")]
        only: String,
        /// The emulator does not say where an overflow was.
        #[arg(long)]
        without_places: bool,
    },
    /// In a PVH tenant, which this creates.
    Pvh,
    /// In this domain, which is the tenant and executes this as its first program.
    Tenant,
    /// The branches in samples, here and in a PV tenant, which this creates.
    Branches {
        /// Also in a PVH tenant.
        #[arg(long)]
        pvh: bool,
    },
    /// The same in this domain, which is the tenant.
    BranchesTenant,
    /// A program, and the same one optimised by a profile of its branches.
    Bolted,
    /// Precise samples, where an overflow's interrupt comes late.
    Precise {
        /// How many instructions late it comes.
        #[arg(long)]
        skid: usize,
    },
}

fn main() -> Result<ExitCode> {
    match Role::parse() {
        Role::Here { only, without_places } => here(&only, without_places),
        Role::Pvh => tenant::control(),
        Role::Tenant => tenant::run(),
        Role::Branches { pvh } => branches::control(&Machine::new(Some(host()?))?, pvh),
        Role::BranchesTenant => branches::tenant(),
        Role::Bolted => bolted::check(),
        Role::Precise { skid } => precise::check_all(&Machine::new(Some(host()?))?, skid),
    }
}

fn here(only: &str, without_places: bool) -> Result<ExitCode> {
    let host = host()?;
    let machine = Machine::new(Some(host))?;
    let mut tally = Tally::default();
    let mut test = |name: &str, test: fn(&Machine) -> Result<()>| {
        if name.contains(only) {
            tally.check(name, test(&machine).map_err(|error| format!("{error:#}")));
        }
    };
    // This test is first. Otherwise perf's contexts of this process would hold the module.
    test("the module stays while perf counts, and goes with who counted", counted::unload);
    test("events that cannot be right are refused", refused::all);
    test("users may count what perf's policy says", refused::by_policy);
    test("threads count exactly", counted::threads);
    test("threads count exactly on counters that others have sampled with", counted::after_samples);
    test("threads with counters of their own count exactly beside", counted::with_threads_counters);
    test("events take turns, and say so", counted::in_turns);
    test("who comes where counters do not suffice is refused, or waits", counted::without_room);
    test("what both modes count is what each counts", counted::of_both_modes);
    test("a raw event may be a whole select word", counted::raw_words);
    test("a process and its heir of another user count exactly", inherited::by_another_user);
    test("CPUs count what threads do", wide::equal_to_threads);
    test("CPUs count what threads do until they are unplugged", wide::equal_until_unplugged);
    test("CPUs count what users do who count themselves", wide::equal_to_users);
    test("threads count exactly while CPUs come and go", counted::hotplug);
    test("every period is a sample, in its own thread", sampled::threads);
    test("a limit of overflows is kept", sampled::limited);
    test("a thread is told of its own overflows, also when perf's events change", own::found);
    test("an overflow's signal comes where the period ends, however short", signalled::exactly);
    test("a period that is set while the event counts begins there", signalled::while_it_counts);
    if !without_places {
        test(
            "samples of the kernel are where it was, also with interrupts disabled",
            place::of_the_kernel,
        );
    }
    test("perf stat counts the same each time", stat::exact);
    test("perf stat counts the events that the PMU lists", stat::listed);
    test("perf stat -r has no spread", stat::repeated);
    test("perf stat -I tells all in its intervals", stat::intervals);
    test("perf stat counts groups as a whole", stat::groups);
    test("perf stat tells how long events had their turns", stat::in_turns);
    test("perf stat -p and --per-thread count from the first instruction on", stat::attached);
    test("perf stat -a counts where the program is", stat::everywhere);
    test("perf stat says what the host has not let it count", forbidden::not_counted);
    test("perf stat says for which share the host has let it count", forbidden::partly_counted);
    test("perf stat counts what each cgroup executes", cgroup::each);
    test("CPUs and processes count the same of perf bench", cgroup::inherited);
    test("perf record tells where every period has ended", record::exact);
    test("perf record -p tells of another process", record::attached);
    test("perf record -a tells of all, or of a cgroup", record::everywhere);
    test("perf record finds its own frequency, and callers", record::frequency);
    test("perf report has all in one function", record::reported);
    test("perf top has the busy function on top", record::top);
    test("bpftrace executes at each overflow", bpf::samples);
    test("prometheus-node-exporter exports what is counted", exporter::agrees);
    test("the kernel has complained of nothing", |_| module::complains_of_nothing());
    Ok(tally.finish())
}
