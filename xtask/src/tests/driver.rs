// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The module with and without a driver beneath it, and the programs that test both in the guest.

use anyhow::{Result, bail, ensure};

use crate::testing::{Report, all};
use crate::vm::{self, Spec, Status};
use crate::xen::Flavour;

/// Where there is no driver, the module refuses to load and nothing else happens.
pub fn absent(report: &mut Report) -> Result<()> {
    report.test("the module refuses a machine without Xen", || {
        refuses(&Spec::new("native", ["true"])?).map(drop)
    });
    report.test("the module refuses an unmodified Xen", || {
        let mut spec = Spec::new("pv", ["true"])?;
        if let Some(xen) = &mut spec.topology.xen {
            xen.flavour = Flavour::Stock;
        }
        refuses(&spec).map(drop)
    });
    report.test("the module refuses Xen booted without perfctr", || {
        refuses(&with_xen_args("dom0_max_vcpus=4")?).map(drop)
    });
    report.test("the driver refuses beside vpmu and says so", || {
        let console = refuses(&with_xen_args("dom0_max_vcpus=4 perfctr vpmu=on")?)?;
        let said = console
            .lines()
            .any(|l| l.contains("perfctr") && l.contains("vpmu") && !l.contains("Command line"));
        ensure!(said, "Xen's console does not say why\n{console}");
        Ok(())
    });
    Ok(())
}

/// Requests that must be refused.
pub fn refusals(report: &mut Report) -> Result<()> {
    report.program(Spec::new("pv", ["/work/refusals"])?, "refusals")
}

/// How threads, processes, CPUs and the module begin and end.
pub fn lifecycle(report: &mut Report) -> Result<()> {
    report.program(Spec::new("pv", ["/work/lifecycle"])?, "lifecycle")
}

fn with_xen_args(args: &str) -> Result<Spec> {
    let mut spec = Spec::new("pv", ["true"])?;
    if let Some(xen) = &mut spec.topology.xen {
        xen.args = args.to_owned();
    }
    Ok(spec)
}

/// Loading the module must fail with `ENODEV`; returns the console.
fn refuses(spec: &Spec) -> Result<String> {
    let outcome = vm::run(spec)?;
    let Status::Failed(reason) = &outcome.status else {
        bail!("the module was loaded: {}", all(&outcome));
    };
    ensure!(reason.contains("loading") && reason.contains("ENODEV"), "{}", all(&outcome));
    Ok(String::from_utf8_lossy(&std::fs::read(&outcome.console)?).into_owned())
}
