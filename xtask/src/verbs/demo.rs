// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask demo` shows the main job on the testbed.
//!
//! It boots a real Xen with the driver, and a Debian guest with the module. In the guest, threads
//! of two programs measure and sample regions of known length, while threads and vCPUs are moved.
//! The programs themselves compare every reading, and every overflow, with the truth; see
//! `counting` and `overflow` in `tests/vm/src/bin`.
//!
//! With `--system` it shows one profile of a whole host instead, from applications to the
//! hypervisor; see `pictures` there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::machine::{self, HostLinux, Spec, Status};
use crate::suites::{browser, kvm, pictures, tenants};
use crate::tools::cache;

/// The programs in the control domain. Each leaves a report of its name, in which each of the
/// verdicts has to be true.
struct Programs {
    names: &'static [&'static str],
    verdicts: &'static [&'static str],
}

/// The control domain's programs: one counts, one samples.
const PV: Programs = Programs { names: &["counting", "overflow"], verdicts: &["ok", "imode_ok"] };
/// The program that counts in a tenant and in the control domain that has created it, or in a guest
/// of KVM.
const TENANT: Programs = Programs { names: &["tenants"], verdicts: &["ok"] };
/// How long it may run: emulation on a busy machine is slow.
const TIMEOUT: Duration = Duration::from_secs(1500);

/// Who counts in the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// The control domain, paravirtualised, on an Intel CPU.
    Pv,
    /// The control domain, paravirtualised, on an AMD CPU.
    AmdPv,
    /// A PVH tenant, and the control domain beside it, on an AMD CPU.
    Pvh,
    /// An HVM tenant, and the control domain beside it, on an AMD CPU.
    Hvm,
    /// A guest of KVM, on an AMD CPU.
    Kvm,
    /// The same on an Intel CPU, in Bochs; half an hour.
    VmxKvm,
    /// The same as pv, in Bochs.
    VmxPv,
    /// The same as pvh, on an Intel CPU, in Bochs.
    VmxPvh,
    /// The same as hvm, on an Intel CPU, in Bochs.
    VmxHvm,
}

/// Boots Xen with the driver and a guest with the module, lets competing threads read their own
/// counters and sample themselves, and prints the tables of truth against reading and of periods
/// against overflows. Fails if any reading or overflow is wrong.
#[derive(clap::Args)]
pub struct Args {
    /// Write the results as JSON, too.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Choose who counts.
    #[arg(long, value_enum, default_value_t = Kind::Pv)]
    topology: Kind,
    #[command(flatten)]
    host_linux: HostLinux,
    /// Start all random sequences, of the topologies pv, amd-pv and vmx-pv, from this number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Sample a host instead on which web servers are under load, in a PV guest and in a PVH tenant
    /// on an AMD CPU, and draw its layers in a browser. Fails if any layer of a guest is missing.
    #[arg(long, conflicts_with_all = ["report", "topology", "host_linux", "seed"])]
    system: bool,
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.host_linux.choose();
    let out = cache::root()?.join("demo");
    if args.system {
        return whole_host(&out);
    }
    let (mut spec, programs) = match args.topology {
        Kind::Pv => (spec("pv", args.seed)?, &PV),
        Kind::AmdPv => {
            let mut spec = spec("pv-amd", args.seed)?;
            // Guests on AMD sample on counters of version 2 only.
            spec.topology.cpu.push_str(tenants::V2);
            (spec, &PV)
        }
        Kind::Pvh => (tenant_spec("pvh", false)?, &TENANT),
        Kind::Hvm => (tenant_spec("pvh", true)?, &TENANT),
        Kind::Kvm => (kvm::demo("kvm")?, &TENANT),
        Kind::VmxKvm => (kvm::demo("vmx-kvm")?, &TENANT),
        Kind::VmxPv => (spec("vmx-pv", args.seed)?, &PV),
        Kind::VmxPvh => (tenant_spec("vmx-pv", false)?, &TENANT),
        Kind::VmxHvm => (tenant_spec("vmx-pv", true)?, &TENANT),
    };
    spec.keep_out(&out)?;
    spec.stream = true;
    let outcome = machine::run(&spec)?;
    if let Some(reason) = outcome.explain() {
        eprintln!("xtask demo: {reason}");
    }
    if let Some(report) = &args.report {
        fs::write(report, merged(&out, programs)?)
            .with_context(|| format!("cannot write the report {}", report.display()))?;
    }
    Ok(if outcome.status == Status::Exited(0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Samples a host under load, and opens the flame graph of all its layers.
fn whole_host(out: &Path) -> Result<ExitCode> {
    let mut spec = pictures::spec(out)?;
    spec.stream = true;
    let outcome = machine::run(&spec)?;
    if let Some(reason) = outcome.explain() {
        eprintln!("xtask demo: {reason}");
    }
    if outcome.status != Status::Exited(0) {
        return Ok(ExitCode::FAILURE);
    }
    let picture = out.join("host.svg");
    let opened = browser::opens(&picture, "demo-system")?;
    let samples = pictures::layers(&opened)?;
    println!("\nsamples that Chromium has drawn:\n{}", pictures::table(&samples));
    println!("flame graph, for any browser: {}", picture.display());
    println!("screenshot: {}", opened.screenshot.display());
    Ok(ExitCode::SUCCESS)
}

/// Merges the programs' reports into one flat JSON object.
fn merged(out: &Path, programs: &Programs) -> Result<String> {
    let mut all = Map::new();
    for program in programs.names {
        let path = out.join(format!("{program}.json"));
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{program} has left no report {}", path.display()))?;
        all.extend(serde_json::from_str::<Map<String, Value>>(&text)?);
    }
    let ok = programs.verdicts.iter().all(|key| all.get(*key) == Some(&Value::Bool(true)));
    all.insert("ok".to_owned(), ok.into());
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// Describes the demo's run. Driver and module count their own instructions as well.
fn spec(topology: &str, seed: u64) -> Result<Spec> {
    // Both programs run, whatever the first one finds.
    let run = |program| format!("/work/{program} --report /out/{program}.json --seed {seed}");
    let [counting, sampling] = ["counting", "overflow"].map(run);
    let script = format!("{counting}; counted=$?; echo; {sampling} && exit $counted");
    let mut spec = Spec::new(topology, ["sh", "-c", &script])?.with_cost()?;
    for program in PV.names {
        spec.add_program("vm-tests", program)?;
    }
    spec.timeout = TIMEOUT;
    Ok(spec)
}

/// Describes the run of a PVH tenant, or of an HVM one, on a topology.
fn tenant_spec(topology: &str, hvm: bool) -> Result<Spec> {
    let mut spec = tenants::demo(topology, hvm, None)?;
    spec.add_program("vm-tests", "tenants")?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_become_one_and_both_have_to_be_good() {
        let out = std::env::temp_dir().join(format!("xtask-demo-{}", std::process::id()));
        fs::create_dir_all(&out).unwrap();
        let write = |name: &str, text: &str| fs::write(out.join(name), text).unwrap();
        write("counting.json", r#"{"ok": true, "threads": 8}"#);
        write("overflow.json", r#"{"imode_ok": false, "imode_lost": 1}"#);
        let all: Map<String, Value> = serde_json::from_str(&merged(&out, &PV).unwrap()).unwrap();
        assert_eq!((&all["ok"], &all["threads"]), (&false.into(), &8.into()));
        assert_eq!(all["imode_lost"], 1);
        fs::remove_file(out.join("overflow.json")).unwrap();
        assert!(merged(&out, &PV).unwrap_err().to_string().contains("overflow has left no report"));
        fs::remove_dir_all(out).unwrap();
    }
}
