// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests habits of processors that their manuals do not promise. The PMU model has each of them as
//! it is documented, and guests that count on such a processor get the results that
//! `docs/habits.md` describes.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::artefacts::{guest, kernel, qemu, rootfs};
use crate::machine::{self, Outcome, Spec};
use crate::suites::kvm::UNKNOWN_NMI;
use crate::suites::pmu::{self, AMD};
use crate::suites::report::{Report, Volume, all, console_lacks, line};
use crate::suites::tenants;
use crate::tools::sh;

/// How often a guest counts the program whose counts are known.
const RUNS: usize = 10;
/// The instructions that the program executes, by `loop.S`.
const INSTRUCTIONS: u64 = 2 * pmu::ITERATIONS as u64 + 4;
const BRANCHES: u64 = pmu::ITERATIONS as u64 + 1;
/// The command that records the program, and the number of branches between two samples.
const SAMPLE: &str = "/work/perfctr record -e branches:u -c 10007 -o /tmp/recorded -- /work/loop";
const PERIOD: u64 = 10_007;
/// The most instructions that a habit adds to one run of the program, even on a busy machine.
const SURPLUS_MAX: i64 = 1_000;

/// The command that counts the program in a tenant, which has no perf. It prints what perf prints.
const STAT: &str = "/work/perfctr stat --csv -e instructions:u,branches:u -- /work/loop";

/// How often a guest counts what its kernel executes for page faults, and the command. It also
/// counts the instructions of user mode, from which interrupts are subtracted.
const TOUCHES: usize = 3;
const TOUCH: &str = "for run in 1 2 3; do \
    /work/perfctr stat --csv -e instructions:u,instructions:k,page-faults -- /work/touch 2>&1 | \
    grep -v instructions:u; done";
/// An interrupt that is subtracted costs fewer instructions than this: Linux' tracepoint, the
/// search for the thread's counters, an RDPMC with its check, and a few stores.
const COST_MAX: f64 = 1_000.0;

/// The command that measures the processor, and prints its findings.
const SELFTEST: &str = "/work/perfctr selftest --json";

/// Habits of interrupts: they retire, come late by different numbers, and come without a reason.
/// The interrupt without a reason comes when the hypervisor has handled the one before.
const OF_INTERRUPTS: &str = "interrupts+skid:1-64+spurious:3000";
/// The most instructions by which they make a sample late. If nothing subtracts the interrupt by
/// which the sample is taken, each sample is one later.
const SKID_MAX: u64 = 64;

/// The driver's options where it is told that interrupts retire.
const SUBTRACTS: &str = "on,interrupts=counted";

/// Kinds of tenants, by their names for Xen's tools and in the names of tests.
const TENANTS: [(&str, &str); 2] = [("pvh", "a PVH guest"), ("hvm", "an HVM guest")];

/// How many instructions late the interrupts are where precise samples are tested.
const SKID_OF_PRECISE: u64 = 13;

/// By how many events RDPMC deviates where that is tested.
const WINDOW: u64 = 20;

/// Boots three machines, of which two together have most habits. The long tier boots twenty-four
/// more. Six of these are hosts of KVM, and eight are Xen with a tenant.
pub fn run(report: &mut Report) -> Result<()> {
    unknown(report)?;
    let with_habit = svm(report, "vmrun+latched", "vmrun=1 latched=1")?;
    late(report, "a PV guest", true)?;
    precise(report)?;
    if report.volume == Volume::Usual {
        return Ok(());
    }
    let parameters = "interrupts=1 skid=1 skid_most=64 spurious=100";
    let without_habit = svm(report, "interrupts+skid:1-64+spurious:100", parameters)?;
    report.test("VMRUN retires in its guest, and not in the host", || {
        let (with_habit, without_habit) = (with_habit?, without_habit?);
        ensure!(with_habit + 1 == without_habit, "{with_habit}, and {without_habit} without it");
        Ok(())
    });
    interrupts(report)?;
    late(report, "a PV guest of a host without the option", false)?;
    in_their_places(report)?;
    masked(report)?;
    moved(report)?;
    frozen(report)?;
    let unwatched = entries(report)?;
    subtracted_in_kvm(report, unwatched)?;
    for (kind, who) in TENANTS {
        late_in_tenant(report, kind, who, false)?;
        late_in_tenant(report, kind, who, true)?;
        moved_in_tenant(report, kind)?;
    }
    edges(report)?;
    frozen_by_amd(report)?;
    latched(report)
}

/// Checks that the emulator refuses an unknown habit with a reason, and that the page about habits
/// lists the habits that the emulator knows.
fn unknown(report: &mut Report) -> Result<()> {
    let emulator = qemu::qemu()?;
    let refusal = |cpu: &str, habits: &str| -> Result<String> {
        let mut command = Command::new("timeout");
        command.arg("20").arg(&emulator).args(["-machine", "pc,accel=tcg", "-S"]);
        command.args(["-nodefaults", "-display", "none"]);
        let refused = command.args(["-cpu", &format!("{cpu},pmu=on,pmu-habits={habits}")]);
        Ok(String::from_utf8_lossy(&refused.output()?.stderr).into_owned())
    };
    for (cpu, habits, reason) in [
        ("Nehalem", "skid:64+absent", "there is no habit 'absent'"),
        ("Nehalem", "interrupts+vmrun", "vmrun needs an AMD processor with pmu"),
        ("EPYC", "latched+freeze", "freeze needs an Intel processor with pmu, or an AMD one"),
        ("EPYC,pmu-full-writes=on", "vmrun", "pmu-full-writes needs an Intel processor with pmu"),
        ("Nehalem", "freeze+latched", "latched needs an AMD processor with pmu"),
        ("Nehalem,pmu-version=5", "freeze", "pmu-version has to be from 2 to 4"),
        ("Nehalem,pmu-version=4,pmu-lbr=on", "freeze", "with pmu of version 2 or 3"),
        ("EPYC,pmu-lbr=on", "vmrun", "or an AMD one with perfmon-v2"),
        ("EPYC,pmu-pebs=on", "vmrun", "pmu-pebs needs an Intel processor with pmu"),
        ("EPYC", "skid:0", "skid has to be from 1 to 1000000"),
        ("EPYC", "skid:1-1000001", "skid has to be from 1 to 1000000"),
        ("EPYC", "skid:1-", "skid has to be from 1 to 1000000"),
        ("EPYC", "skid:65-64", "skid's first number has to be the smaller one"),
        ("EPYC", "vmrun+spurious:1000001", "spurious has to be from 1 to 1000000"),
        ("EPYC", "rdpmc:0", "rdpmc has to be from 1 to 1000000"),
    ] {
        report.test(&format!("the emulator refuses {habits} for {cpu}"), || {
            let printed = refusal(cpu, habits)?;
            ensure!(printed.contains(reason), "{printed}");
            Ok(())
        });
    }
    report.test("both tables of the page about habits have each habit of the model", || {
        let printed = refusal("EPYC", "absent")?;
        let (_, names) = printed.trim_end().split_once(", only ").context(printed.clone())?;
        let names: Vec<&str> = names.split(", ").collect();
        let page = fs::read_to_string(sh::project().join("docs/habits.md"))?;
        let tables = tables(&page);
        ensure!(tables.len() == 2, "{} tables", tables.len());
        for table in tables {
            let listed: Vec<&str> = table.iter().flat_map(|row| in_code(row[0])).collect();
            ensure!(listed == names, "{listed:?}, and the model has {names:?}");
            ensure!(table.iter().flatten().all(|cell| !cell.is_empty()), "{table:?}");
        }
        Ok(())
    });
    Ok(())
}

/// Returns the cells of each table of a page, without its header.
fn tables(page: &str) -> Vec<Vec<Vec<&str>>> {
    let mut tables = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("|---") {
            let rows = lines.by_ref().take_while(|row| row.starts_with('|'));
            tables.push(rows.map(cells).collect());
        }
    }
    tables
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// Returns what a text has between grave accents.
fn in_code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Checks the model of a CPU with these habits, in and around an SVM guest. The parameters tell the
/// checking module which habits these are. Returns the number of instructions that the host retires
/// around a guest, or why the module has not said it.
fn svm(report: &mut Report, habits: &str, parameters: &str) -> Result<Result<u64>> {
    let script = format!(
        "insmod /work/svm-check.ko {parameters} && cat /sys/module/svm_check/parameters/report"
    );
    let mut spec = Spec::new("native", ["sh", "-c", &script])?.stock("");
    spec.topology.cpu = format!("{AMD},pmu-habits={habits}");
    spec.files.push((guest::svm_check(&kernel::kernel()?)?, "/work/svm-check.ko".into()));
    let outcome = machine::run(&spec)?;
    report.test(&format!("around an SVM guest the model has exactly {habits}"), || {
        line(&outcome, "svm-check: ", " checks, 0 FAILED").map(drop)
    });
    let host = line(&outcome, "svm-check: the host retires ", " instructions around a guest");
    Ok(host.and_then(|number| Ok(number.parse()?)))
}

/// Checks Linux' own perf where each interrupt and exception retires as one instruction more.
fn interrupts(report: &mut Report) -> Result<()> {
    let program = pmu::check_program()?;
    let script = format!("/work/pmu-check --interrupts && {{ {SELFTEST}; true; }}");
    let mut spec = Spec::new("native", ["sh", "-c", &script])?.stock("");
    spec.topology.cpu.push_str(",pmu-tally=on,pmu-habits=interrupts");
    spec.files.push((program, "/work/pmu-check".into()));
    spec.add_program("perfctr", "perfctr")?;
    let name = "each interrupt and exception is one instruction more";
    let outcome = report.succeeds(&spec, name)?;
    finds(report, "a bare machine", &outcome, &["interrupts"], &[]);
    Ok(())
}

/// Checks a PV guest where interrupts retire, come late by different numbers, come without a
/// reason, and would stop all counters if the driver left the CPU as the firmware has set it.
/// `subtracts` says whether the driver is told that interrupts retire.
fn late(report: &mut Report, who: &str, subtracts: bool) -> Result<()> {
    let then = format!("{SAMPLE}; {SELFTEST}");
    let (driver, found) = match subtracts {
        true => (SUBTRACTS, &["skid", "spurious"][..]),
        false => ("on", &["interrupts", "skid", "spurious"][..]),
    };
    let outcome =
        machine::run(&counting("pv", driver, &format!("{OF_INTERRUPTS}+freeze"), &then)?)?;
    judge_late(report, who, &outcome, found, &[])
}

/// Checks that a PV guest's precise samples are where they belong although each interrupt is late,
/// and that its other samples are late. By default Xen hides most of its memory from PV guests on
/// this CPU (XPTI).
fn precise(report: &mut Report) -> Result<()> {
    let skid = SKID_OF_PRECISE.to_string();
    let mut spec =
        Spec::new("pv", ["/work/perf", "precise", "--skid", &skid])?.driver("on,precise")?;
    spec.topology.cpu.push_str(&format!(",pmu-pebs=on,pmu-habits=skid:{skid}"));
    let source = sh::project().join("tests/vm/src/bin/perf/branchy.S");
    spec.files.push((guest::without_library(&source, &[])?, "/work/branchy".into()));
    report.program(spec, "perf")
}

/// Checks that each overflow of a PV guest is where it belongs if interrupts retire and the driver
/// subtracts them.
fn in_their_places(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("pv", ["/work/overflow"])?.driver("cost,interrupts=counted")?;
    spec.module_args = "cost=1".to_owned();
    spec.topology.cpu.push_str(",pmu-habits=interrupts");
    report.program(spec, "overflow")
}

/// Checks a tenant on CPUs with the same habits.
///
/// A tenant's counters count in the tenant only. An interrupt of the host makes the tenant exit
/// before it is delivered. So it does not retire in the tenant, whereas it retires in a PV guest.
/// The tenant's own exceptions and the interrupts that Xen injects do retire there. Each of them is
/// an instruction and no branch, as in a PV guest. The self-test cannot look for interrupts without
/// a reason, since only the control domain may ask Xen how many there were.
fn late_in_tenant(report: &mut Report, kind: &str, who: &str, subtracts: bool) -> Result<()> {
    let runs = format!("{STAT}\n").repeat(RUNS);
    // The self-test's status says that some promise does not hold.
    let text = format!("exec 2>&1\n{runs}{SAMPLE}\n{SELFTEST}\nexit 0\n");
    let program = ("work/loop".to_owned(), pmu::known(pmu::ITERATIONS)?);
    let mut spec = tenants::script_in_tenant(kind, &text, program)?;
    spec.topology.cpu.push_str(&format!(",pmu-habits={OF_INTERRUPTS}"));
    let found = match subtracts {
        true => &["skid"][..],
        false => &["interrupts", "skid"][..],
    };
    if subtracts {
        spec = spec.driver(&format!("all,{SUBTRACTS}"))?;
    }
    let outcome = machine::run(&spec)?;
    judge_late(report, who, &outcome, found, &["spurious"])
}

/// Checks guests of KVM whose host says that interrupts retire. What the guest's own kernel takes
/// is not counted by threads, also while many of them compete, fault, get signals and are moved,
/// and not by perf's events.
///
/// `unwatched` is what the kernel of such a guest executes for a page fault if nobody subtracts
/// interrupts.
fn subtracted_in_kvm(report: &mut Report, unwatched: Result<f64>) -> Result<()> {
    let mut spec = counting("kvm", SUBTRACTS, "interrupts", TOUCH)?;
    add_touch(&mut spec)?;
    let perf = machine::run(&spec)?;
    let watched = instructions_per_fault(&perf);
    if let (Ok(watched), Ok(unwatched)) = (&watched, &unwatched) {
        let cost = watched - unwatched;
        report.note(format!("interrupts: a page fault of {unwatched:.0} costs {cost:.0} more"));
    }
    report.test("an interrupt that is subtracted costs some hundred instructions", || {
        let (watched, unwatched) = (watched?, unwatched?);
        let cost = watched - unwatched;
        ensure!((0.0..COST_MAX).contains(&cost), "{watched}, and {unwatched} without it");
        Ok(())
    });
    let counted = counts(&perf)?;
    report.test("perf's events of a KVM guest do not count its interrupts", || {
        ensure!(counted.iter().all(Count::is_exact), "{counted:?}");
        Ok(())
    });
    let runs = format!("{STAT}; ").repeat(RUNS);
    let mut spec = counting("kvm", SUBTRACTS, OF_INTERRUPTS, "true")?;
    let told = "/work/perfctr stat -e instructions:u -- /work/loop";
    let script = format!("exec 2>&1; {runs} {told}; {SAMPLE}; {SELFTEST}; exit 0");
    spec.command = ["sh", "-c", &script].map(Into::into).to_vec();
    let outcome = machine::run(&spec)?;
    report.test("perfctr stat tells how many interrupts were subtracted", || {
        let told = "  interrupts that the CPU counted as instructions, subtracted";
        let many = line(&outcome, "", told)?;
        ensure!(many.trim().parse::<i64>()? <= SURPLUS_MAX, "{many}");
        Ok(())
    });
    judge_late(report, "a KVM guest", &outcome, &["skid"], &["spurious"])?;
    competing(report)
}

/// Checks the readings of competing threads in such a guest, where interrupts retire.
fn competing(report: &mut Report) -> Result<()> {
    let command = ["/work/counting", "--without-cycles"];
    let mut spec = Spec::new("kvm", command)?.with_cost()?.driver("cost,interrupts=counted")?;
    spec.topology.cpu.push_str(",pmu-habits=interrupts");
    spec.timeout *= 3;
    spec.add_program("vm-tests", "counting")?;
    let name = "competing threads that fault, get signals and are moved count no interrupts";
    report.succeeds(&spec, name).map(drop)
}

/// Checks a guest on CPUs with the habits of interrupts. The self-test has to find those habits of
/// `found`, and cannot look for those of `unknown`.
fn judge_late(
    report: &mut Report,
    who: &str,
    outcome: &Outcome,
    found: &[&str],
    unknown: &[&str],
) -> Result<()> {
    let counts = counts(outcome)?;
    report.test(&format!("{who}'s branches are exact"), || {
        ensure!(counts.iter().all(|count| count.branches == BRANCHES), "{counts:?}");
        Ok(())
    });
    every_sample(report, who, outcome);
    finds(report, who, outcome, found, unknown);
    report.test(&format!("{who}'s samples are late by different numbers"), || {
        let late = Selftest::printed_by(outcome)?.instructions_late()?;
        let numbers: BTreeMap<u64, usize> = late.iter().fold(BTreeMap::new(), |mut all, n| {
            *all.entry(*n).or_default() += 1;
            all
        });
        let most = numbers.values().max().copied().unwrap_or(0);
        let itself = u64::from(found.contains(&"interrupts"));
        let possible = itself..=SKID_MAX + itself;
        ensure!(late.iter().all(|n| possible.contains(n)) && 2 * most < late.len(), "{numbers:?}");
        Ok(())
    });
    if found.contains(&"interrupts") {
        let surplus = counts.iter().map(|count| count.instructions as i64 - INSTRUCTIONS as i64);
        return uncorrected(report, "interrupts", who, surplus);
    }
    report.test(&format!("{who}'s instructions are exact although interrupts retire"), || {
        ensure!(counts.iter().all(Count::is_exact), "{counts:?}");
        Ok(())
    });
    Ok(())
}

/// Checks a PV guest on CPUs that lack the third of their four general counters, where an access to
/// it faults. The guest uses those before it, of which CPUID leaf 0xA speaks. Which counters the
/// driver uses if leaf 0xA speaks of more is tested by its own unit tests.
fn masked(report: &mut Report) -> Result<()> {
    let mut spec = counting("pv", "on", "", &format!("{SAMPLE}; /work/perfctr info"))?;
    spec.topology.cpu.push_str(",pmu-mask=11");
    let outcome = machine::run(&spec)?;
    let counts = counts(&outcome)?;
    report.test("a PV guest's counts are exact where a general counter is missing", || {
        ensure!(counts.iter().all(Count::is_exact), "{counts:?}");
        ensure!(all(&outcome).contains("2 general of 48 bits"), "{}", all(&outcome));
        Ok(())
    });
    every_sample(report, "a PV guest on CPUs that lack a counter", &outcome);
    Ok(())
}

/// Checks a PV guest whose vCPUs are moved while their interrupts are on the way. Half of a period
/// passes before its interrupt comes.
fn moved(report: &mut Report) -> Result<()> {
    let script = format!("/work/overflow --late --rounds 20; status=$?; {SELFTEST}; exit $status");
    let mut spec = Spec::new("pv", ["sh", "-c", &script])?.driver("on")?;
    spec.topology.cpu.push_str(",pmu-habits=skid:10000");
    spec.add_program("perfctr", "perfctr")?;
    let outcome = report.program_outcome(spec, "overflow")?;
    finds(report, "a PV guest with a long skid", &outcome, &["skid"], &[]);
    Ok(())
}

/// Checks the same in a tenant of this kind, where interrupts without a reason come as well.
fn moved_in_tenant(report: &mut Report, kind: &str) -> Result<()> {
    let command = ["/work/overflow", "--late", "--rounds", "20", "--in-tenant", kind];
    let mut spec = tenants::with_tenant(kind, &command, "overflow", &[])?;
    spec.topology.cpu.push_str(",pmu-habits=skid:10000+spurious:1000");
    report.program(spec, "overflow")
}

/// Checks guests on CPUs where counters that overflow together interrupt by two NMIs: a guest of
/// KVM, and a PV and a PVH guest of Xen.
///
/// In Xen, the PMU interrupts by NMIs only while the control domain samples the host. Xen reports
/// an NMI of an unknown reason only on the first CPU, so the machine with Xen has one CPU. Its
/// clock counts instructions. So the second NMI comes soon after the first one, even if the
/// computer that emulates the machine is busy.
fn latched(report: &mut Report) -> Result<()> {
    let kvm = Spec::new("kvm", ["/work/overflow", "--records"])?.driver("on")?;
    let record = "/work/perfctr record --host -o /tmp/host -- /work/overflow --records";
    let both = format!("{record}; here=$?; {record} --in-tenant pvh --pcpus 1 && exit $here");
    let xen = tenants::with_tenant("pvh", &["sh", "-c", &both], "overflow", &[])?;
    let mut xen = xen.driver("profile")?.deterministic();
    xen.add_program("perfctr", "perfctr")?;
    for (host, mut spec) in [("KVM", kvm), ("Xen", xen)] {
        spec.topology.cpu.push_str(",pmu-habits=latched");
        spec.timeout = Duration::from_secs(3_600);
        let outcome = report.program_outcome(spec, "overflow")?;
        report.test(&format!("{host} knows the reason of each NMI"), || {
            console_lacks(&outcome, UNKNOWN_NMI)?;
            let printed = all(&outcome);
            ensure!(!printed.contains("sampling has ended early"), "{printed}");
            Ok(())
        });
    }
    Ok(())
}

/// Checks a PV guest on CPUs of version 4, whose firmware has left the counters frozen, and has set
/// the CPUs to freeze them at each interrupt.
fn frozen(report: &mut Report) -> Result<()> {
    let mut spec = counting("pv", "on", "freeze", SAMPLE)?;
    spec.topology.cpu.push_str(",pmu-version=4");
    let exact = "a PV guest's counts are exact where the firmware has frozen the counters";
    exact_counts_and_samples(
        report,
        exact,
        "a PV guest on counters that were frozen",
        &machine::run(&spec)?,
    )
}

/// Checks the same for AMD's version 2: first on the bare machine, where each CPU has to be as its
/// firmware has left it, and then in a PV guest.
fn frozen_by_amd(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("native", ["/work/pmu-check", "--freezing"])?.stock("");
    spec.topology.cpu = format!("{AMD},pmu-habits=freeze");
    spec.files.push((pmu::check_program()?, "/work/pmu-check".into()));
    report.succeeds(&spec, "on AMD an interrupt freezes all counters until a bit is cleared")?;
    let mut spec = counting("pv-amd", "on", "freeze", SAMPLE)?;
    spec.topology.cpu.push_str(tenants::V2);
    let exact = "a PV guest's counts are exact where AMD's firmware has frozen counters";
    exact_counts_and_samples(
        report,
        exact,
        "a PV guest on AMD's counters that were frozen",
        &machine::run(&spec)?,
    )
}

/// Checks the model of CPUs where RDPMC misses events, or reads some too early, and what is true of
/// the counts of a PV guest there: whole programs and samples are exact, and a region deviates by
/// what its own two reads do, however often its thread is switched out.
fn edges(report: &mut Report) -> Result<()> {
    let habit = format!(",pmu-habits=rdpmc:{WINDOW}");
    let window = WINDOW.to_string();
    let mut spec = Spec::new("native", ["/work/pmu-check", "--edges", &window])?.stock("");
    spec.topology.cpu.push_str(&habit);
    spec.files.push((pmu::check_program()?, "/work/pmu-check".into()));
    report.succeeds(&spec, "RDPMC deviates as far as it should, and not across fences")?;
    let script = format!("/work/edges --window {WINDOW}; status=$?; {SAMPLE}; exit $status");
    let spec = counting("pv", "on", &format!("rdpmc:{WINDOW}"), &script)?;
    let outcome = report.program_outcome(spec, "edges")?;
    let exact = "a PV guest counts whole programs exactly although RDPMC deviates";
    exact_counts_and_samples(report, exact, "a PV guest where RDPMC deviates", &outcome)
}

/// Checks that `whose` counts are exact, by the test of the name `exact`, and that its samples are
/// complete.
fn exact_counts_and_samples(
    report: &mut Report,
    exact: &str,
    whose: &str,
    outcome: &Outcome,
) -> Result<()> {
    let counts = counts(outcome)?;
    report.test(exact, || {
        ensure!(counts.iter().all(Count::is_exact), "{counts:?}");
        Ok(())
    });
    every_sample(report, whose, outcome);
    Ok(())
}

/// Checks guests of KVM where VMRUN retires in the mode that it enters.
/// Returns what the kernel of such a guest executes for a page fault.
fn entries(report: &mut Report) -> Result<Result<f64>> {
    let per_fault = corrected(report)?;
    let outcome = machine::run(&counting("kvm", "on", "vmrun", SELFTEST)?)?;
    finds(report, "a guest of KVM", &outcome, &["vmrun"], &["spurious"]);
    let counts = counts(&outcome)?;
    let surplus = || counts.iter().map(|count| count.branches as i64 - BRANCHES as i64);
    report.test("each entry into KVM's guest is an instruction and a branch of its own", || {
        let instructions = counts.iter().map(|count| count.instructions as i64);
        let same = instructions.zip(surplus()).all(|(n, more)| n - INSTRUCTIONS as i64 == more);
        ensure!(same && surplus().all(|more| more >= 0), "{counts:?}");
        Ok(())
    });
    uncorrected(report, "vmrun", "a KVM guest", surplus())?;
    Ok(per_fault)
}

/// Checks a guest of KVM whose host knows that VMRUN retires in it.
fn corrected(report: &mut Report) -> Result<Result<f64>> {
    let then = format!("{SAMPLE}; {TOUCH}; {SELFTEST}");
    let mut spec = counting("kvm", "on,entries=counted", "vmrun", &then)?;
    add_touch(&mut spec)?;
    let outcome = machine::run(&spec)?;
    finds(report, "a guest of KVM whose host takes entries back", &outcome, &[], &["spurious"]);
    let counts = counts(&outcome)?;
    report.test("entries into KVM's guest are taken back where the host says so", || {
        ensure!(counts.iter().all(Count::is_exact), "{counts:?}");
        Ok(())
    });
    every_sample(report, "a KVM guest", &outcome);
    Ok(instructions_per_fault(&outcome))
}

/// Gives the guest the program of [`TOUCH`].
fn add_touch(spec: &mut Spec) -> Result<()> {
    let source = sh::project().join("tests/vm/src/bin/stat/touch.S");
    spec.files.push((guest::without_library(&source, &[])?, "/work/touch".into()));
    Ok(())
}

/// Returns how many instructions the guest's kernel has executed in [`TOUCH`] for each page fault:
/// the least of all runs, since interrupts that come meanwhile only add to them.
fn instructions_per_fault(outcome: &Outcome) -> Result<f64> {
    let printed = all(outcome);
    let of = |event: &str| -> Vec<f64> {
        let value = |line: &str| line.split_once(&format!(",,{event},"))?.0.parse().ok();
        printed.lines().filter_map(value).collect()
    };
    let (instructions, faults) = (of("instructions:k"), of("page-faults"));
    ensure!(instructions.len() == TOUCHES && faults.len() == TOUCHES, "{printed}");
    let each = instructions.iter().zip(&faults).map(|(instructions, faults)| instructions / faults);
    Ok(each.fold(f64::INFINITY, f64::min))
}

fn every_sample(report: &mut Report, who: &str, outcome: &Outcome) {
    report.test(&format!("{who} has no sample too few or too many"), || {
        let wanted = format!("{} samples of 1 thread", BRANCHES / PERIOD);
        let printed = all(outcome);
        ensure!(printed.contains(&wanted), "not {wanted}: {printed}");
        Ok(())
    });
}

/// Checks that the surplus of a habit that nothing corrects is there and small, and notes it.
fn uncorrected(
    report: &mut Report,
    habit: &str,
    who: &str,
    surplus: impl Iterator<Item = i64>,
) -> Result<()> {
    let surplus: Vec<i64> = surplus.collect();
    let (least, most) = (surplus.iter().min(), surplus.iter().max());
    let (least, most) = least.zip(most).context("nothing was counted")?;
    report.note(format!("{habit}: {who} counts {least} to {most} more of {INSTRUCTIONS}"));
    report.test(&format!("the surplus of {habit} is what {who} sees of it"), || {
        ensure!(*least >= 0 && *most > 0 && *most <= SURPLUS_MAX, "{surplus:?}");
        Ok(())
    });
    Ok(())
}

/// Describes a guest that counts the program, and then does something else.
fn counting(topology: &str, driver: &str, habits: &str, then: &str) -> Result<Spec> {
    let script = format!("{}; {then}", pmu::perf_stat(RUNS));
    let mut spec = Spec::new(topology, ["sh", "-c", &script])?.driver(driver)?;
    spec.topology.cpu.push_str(&format!(",pmu-habits={habits}"));
    spec.files.push((pmu::known(pmu::ITERATIONS)?, "/work/loop".into()));
    spec.files.push((rootfs::perf()?, "/".into()));
    spec.add_program("perfctr", "perfctr")?;
    Ok(spec)
}

/// A part of what `perfctr selftest --json` prints.
#[derive(Deserialize)]
struct Selftest {
    habits: Vec<Habit>,
    measured: Measured,
}

#[derive(Deserialize)]
struct Measured {
    samples: Samples,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Samples {
    Measured { period: u64, taken: Vec<Taken> },
    NotMeasured(String),
}

#[derive(Deserialize)]
struct Taken {
    count: u64,
}

impl Selftest {
    fn printed_by(outcome: &Outcome) -> Result<Self> {
        let printed = String::from_utf8_lossy(&outcome.stdout);
        let lines: Vec<&str> = printed.lines().skip_while(|line| *line != "{").collect();
        let end = lines.iter().position(|line| *line == "}").with_context(|| all(outcome))?;
        Ok(serde_json::from_str(&lines[..=end].join("\n"))?)
    }

    /// Returns how many instructions after the end of its period each sample was taken.
    fn instructions_late(&self) -> Result<Vec<u64>> {
        match &self.measured.samples {
            Samples::Measured { period, taken } => {
                Ok(taken.iter().map(|sample| sample.count % period).collect())
            }
            Samples::NotMeasured(why) => bail!("{why}"),
        }
    }
}

#[derive(Deserialize)]
struct Habit {
    name: String,
    found: Option<bool>,
    because: String,
}

impl Habit {
    fn printed(&self) -> String {
        format!("{}: {:?}: {}", self.name, self.found, self.because)
    }
}

/// Checks that the self-test has found exactly these habits, and could not look for others.
fn finds(report: &mut Report, who: &str, outcome: &Outcome, habits: &[&str], unknown: &[&str]) {
    report.test(&format!("the self-test finds exactly the habits of {who}"), || {
        let found = Selftest::printed_by(outcome)?;
        let named = |is: Option<bool>| -> Vec<&str> {
            let habits = found.habits.iter().filter(|habit| habit.found == is);
            habits.map(|habit| &*habit.name).collect()
        };
        ensure!(
            named(Some(true)) == habits && named(None) == unknown,
            "{}",
            found.habits.iter().map(Habit::printed).collect::<Vec<_>>().join("\n")
        );
        Ok(())
    });
}

#[derive(Debug)]
struct Count {
    instructions: u64,
    branches: u64,
}

impl Count {
    fn is_exact(&self) -> bool {
        (self.instructions, self.branches) == (INSTRUCTIONS, BRANCHES)
    }
}

/// Returns what perf, or the project's own command, has counted in each run.
fn counts(outcome: &Outcome) -> Result<Vec<Count>> {
    let printed = all(outcome);
    let of = |event: &str| -> Vec<u64> {
        let line = |line: &str| line.split_once(&format!(",,{event},"))?.0.parse().ok();
        printed.lines().filter_map(line).collect()
    };
    let (instructions, branches) = (of("instructions:u"), of("branches:u"));
    ensure!(instructions.len() == RUNS && branches.len() == RUNS, "{}", all(outcome));
    let pairs = instructions.into_iter().zip(branches);
    Ok(pairs.map(|(instructions, branches)| Count { instructions, branches }).collect())
}
