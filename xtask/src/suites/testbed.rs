// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the testbed itself: the caller sees the effects of a command in the guest, and each way of
//! failing is reported correctly.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::machine::{self, Failure, Outcome, Spec, Status};
use crate::suites::report::{Report, Volume, all};
use crate::tools::cache;

/// Returns the content that a command has to pass through: every byte value, and more bytes than
/// any buffer on the way holds.
fn binary() -> Vec<u8> {
    (0..4_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Describes a run of a shell command on a topology, without our module.
fn shell(topology: &str, script: &str) -> Result<Spec> {
    Ok(Spec::new(topology, ["sh", "-c", script])?.stock("dom0_max_vcpus=4"))
}

fn expect(outcome: &Outcome, status: &Status) -> Result<()> {
    ensure!(outcome.status == *status, "expected {status:?}, found {}", all(outcome));
    Ok(())
}

/// Tests Linux without a hypervisor. The long tier boots a machine for each further way to end.
pub fn native(report: &mut Report) -> Result<()> {
    copies_both_ways(report, "native")?;
    report.test("a command that hangs is ended", || {
        let mut spec = shell("native", "echo before; exec sleep 1000")?;
        spec.timeout = Duration::from_secs(3);
        let outcome = machine::run(&spec)?;
        expect(&outcome, &Status::TimedOut(spec.timeout))?;
        ensure!(outcome.stdout == b"before\n", "{}", all(&outcome));
        ensure!(outcome.explain().is_some_and(|text| text.contains("still ran after 3 s")));
        Ok(())
    });
    if report.volume == Volume::Usual {
        return Ok(());
    }
    report.test("a command that does not exist is reported", || {
        let spec = Spec::new("native", ["/no/such/program"])?.stock("");
        let outcome = machine::run(&spec)?;
        let Status::Failed(Failure::NotStarted(reason)) = &outcome.status else {
            anyhow::bail!("expected a failure, found {}", all(&outcome));
        };
        ensure!(reason.contains("/no/such/program"), "{reason}");
        Ok(())
    });
    report.test(
        "what the command leaves, running or stopped, does no harm to its status 0",
        || {
            let script = "sleep 1000 & kill -STOP $!; (sleep 1 &); sleep 3; exit 0";
            let outcome = machine::run(&shell("native", script)?)?;
            expect(&outcome, &Status::Exited(0))
        },
    );
    report.test("a kernel's panic is reported at once", || panics("native"));
    report.test("a boot that stands still is given up and counted", stands_still);
    Ok(())
}

/// Tests Debian as the control domain of an unmodified Xen. The long tier boots a machine for each
/// further way to end.
pub fn xen(report: &mut Report) -> Result<()> {
    let out = copies_both_ways(report, "pv")?;
    report.test("it has four vCPUs under Xen", || {
        let place = fs::read_to_string(out.join("place")).context("no file place")?;
        ensure!(place == "xen\n4\n", "{place}");
        Ok(())
    });
    if report.volume == Volume::Usual {
        return Ok(());
    }
    report.test("a kernel's panic is reported at once", || panics("pv"));
    report.test("a signal is told from a status", || {
        expect(&machine::run(&shell("pv", "kill -9 $$")?)?, &Status::Signaled(9))
    });
    report.test("a control domain that dies early is reported at once", dies_early);
    Ok(())
}

/// Boots a CPU with SMAP and SMEP, on which the paravirtualised kernel dies before it has a
/// console.
fn dies_early() -> Result<()> {
    let mut spec = shell("pv-amd", "exit 0")?;
    spec.topology.cpu = spec.topology.cpu.replace(",-smap,-smep", "");
    let outcome = machine::run(&spec)?;
    let Status::Failed(Failure::Crashed(line)) = &outcome.status else {
        anyhow::bail!("expected a crash, found {}", all(&outcome));
    };
    ensure!(line.contains("Hardware Dom0 crashed"), "{line}");
    Ok(())
}

/// Boots one machine. Checks that files are copied in, that both output streams come back separate
/// and complete, and that the status and `/out` come back, too. Returns the directory with the
/// files of `/out`.
fn copies_both_ways(report: &mut Report, topology: &str) -> Result<PathBuf> {
    let dir = cache::scratch("copies")?;
    let (one, two, out) = (dir.join("one"), dir.join("two"), dir.join("out"));
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(one.join("sub"))?;
    fs::create_dir_all(&two)?;
    let content = binary();
    fs::write(one.join("sub/data"), &content)?;
    fs::write(one.join("name"), "first")?;
    fs::write(two.join("name"), "second")?;
    let script = "cat sub/data; cat name >&2; sha256sum < sub/data > /out/sum; \
                  { cat /sys/hypervisor/type 2>&1; nproc; } > /out/place; exit 42";
    let mut spec = shell(topology, script)?;
    spec.copy = vec![one, two];
    spec.out = Some(out.clone());
    let outcome = machine::run(&spec)?;

    report.test("status 42", || expect(&outcome, &Status::Exited(42)));
    report.test("binary output is whole", || {
        let length = outcome.stdout.len();
        ensure!(outcome.stdout == content, "{length} bytes, different from what was copied in");
        Ok(())
    });
    report.test("later copies win, standard error stays apart", || {
        ensure!(outcome.stderr == b"second", "{:?}", String::from_utf8_lossy(&outcome.stderr));
        Ok(())
    });
    report.test("what is left in /out comes back", || {
        let sum = fs::read_to_string(out.join("sum")).context("no file sum")?;
        let expected: String =
            Sha256::digest(&content).iter().map(|b| format!("{b:02x}")).collect();
        ensure!(sum.starts_with(&expected), "{sum}");
        Ok(())
    });
    Ok(out)
}

/// Boots a machine whose first program waits for input for ever. That takes two attempts of a
/// minute each.
fn stands_still() -> Result<()> {
    let mut spec = shell("native", "exit 0")?;
    spec.topology.linux.push_str(" rdinit=/bin/cat");
    let before = machine::boots();
    let start = Instant::now();
    let outcome = machine::run(&spec)?;
    let Status::Failed(Failure::NeverUp(_)) = &outcome.status else {
        anyhow::bail!("expected that it never comes up, found {}", all(&outcome));
    };
    ensure!(start.elapsed() < Duration::from_secs(400), "took {:?}", start.elapsed());
    let boots = machine::boots().since(&before);
    ensure!(boots.count == 2 && boots.repeated.len() == 1, "{boots:?}");
    let state = fs::read_to_string(boots.repeated[0].log.join("machine-state"))?;
    ensure!(state.matches("RIP=").count() >= 2, "{state}");
    Ok(())
}

fn panics(topology: &str) -> Result<()> {
    let spec = shell(topology, "echo c > /proc/sysrq-trigger; sleep 1000")?;
    let start = Instant::now();
    let outcome = machine::run(&spec)?;
    let after_boot = start.elapsed().saturating_sub(outcome.boot_time.unwrap_or_default());
    let Status::Failed(Failure::Crashed(_)) = &outcome.status else {
        anyhow::bail!("expected a crash, found {}", all(&outcome));
    };
    ensure!(after_boot < Duration::from_secs(60), "reported only after {after_boot:?}");
    let console = fs::read_to_string(&outcome.console)?;
    ensure!(console.contains("sysrq"), "the console log does not say who crashed it");
    Ok(())
}
