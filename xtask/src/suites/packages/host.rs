// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a host: Debian on a disk, with a boot menu that lists Debian's own Xen, and ours while it
//! is installed.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{
    WAIT_FOR, counts, enabled_and_confined, install, install_as, inventory, programs, purged,
};
use crate::artefacts::packages::{self, Built};
use crate::artefacts::{debian, kernel};
use crate::suites::report::Report;
use crate::tools::cache;
use crate::tools::chroot::Chroot;

/// The boot menu's file.
const MENU: &str = "/boot/grub/grub.cfg";

/// Debian's own hypervisor, as the menu names it.
const DEBIANS: &str = "/boot/xen-4.17-amd64.gz";

/// Arguments that the testbed adds to the menu's: fewer CPUs than the control domain has vCPUs.
const TESTBED: &str = "dom0_max_vcpus=4 sched=credit";

/// The most that systemd may rate the exposure of the service, which has root's devices and
/// capabilities, since it makes hypercalls and executes xl. Unit: tenths of systemd's points.
const EXPOSURE_MAX: u32 = 55;

/// The script that the booted host executes first. The service lets the control domain count, which
/// was forbidden, after its name has come into `/etc/perfctr/xen-domains`. It goes on while the
/// file has a malformed line.
const SERVICE: &str = r#"
trap 'systemctl status --no-pager perfctr-xen-domains xen >&2; perfctr domains list >&2' EXIT
wait_for 'systemctl is-active -q perfctr-xen-domains'
perfctr domains forbid 0
perfctr domains list | grep -Eq ' no +- +- +Domain-0$'
file=/etc/perfctr/xen-domains
cp $file /run/before
echo 'Domain-0 rate=x' >> $file
wait_for 'journalctl -u perfctr-xen-domains | grep -q "found rate=x, expected a number"'
cp /run/before $file
echo Domain-0 >> $file
wait_for 'perfctr domains list | grep -Eq " yes +- +- +Domain-0$"'
test $(systemctl show -P NRestarts perfctr-xen-domains) = 0
trap - EXIT
"#;

/// Takes a host with Debian's Xen to one with ours beside it, and back.
pub fn run(report: &mut Report, now: &Built) -> Result<()> {
    let work = cache::scratch("packages-host")?;
    let _lock = cache::lock("packages-test")?;
    let debian = Chroot::on_disk(&debian::host(&kernel::kernel()?)?, &work)?;
    debian.run("mkdir -p /boot/grub; update-grub")?;
    let (before, menu) = (inventory(&debian)?, debian.run(&format!("cat {MENU}"))?);
    report.test("on a host, Debian's Xen is in the boot menu and ours is not", || {
        ensure!(entry(&menu, DEBIANS).is_ok() && entry(&menu, &ours()).is_err(), "{menu}");
        Ok(())
    });
    let mut args = None;
    report.test("installed there, ours is in the menu beside Debian's, with its option", || {
        install_as(&debian, &now.debs, "docs/hosts.md", "xen-hypervisor-4.17-perfctr", &[])?;
        install(&debian, now)?;
        programs(&debian, &work)?;
        let menu = debian.run(&format!("grub-script-check {MENU}; cat {MENU}"))?;
        entry(&menu, DEBIANS)?;
        args = Some(entry(&menu, &ours())?);
        Ok(())
    });
    report.test("its service is enabled there, and confined", || {
        enabled_and_confined(&debian, "perfctr-xen-domains", EXPOSURE_MAX)
    });
    let name = "booted as that entry says, the service lets the control domain count by its name, \
                and a user of its group counts";
    report.test(name, || {
        let args = args.context("there is no entry")?;
        ensure!(args.split(' ').any(|arg| arg == "perfctr"), "no option perfctr: {args}");
        let first = format!("{WAIT_FOR}{SERVICE}");
        counts(&debian, Some(&format!("{TESTBED} {args}")), &first)
    });
    report.test("purged there, the menu and all else is as before", || {
        purged(&debian, super::PACKAGES, None, &before)?;
        let after = debian.run(&format!("cat {MENU}"))?;
        ensure!(after == menu, "before:\n{menu}\nafter:\n{after}");
        Ok(())
    });
    debian.remove()
}

fn ours() -> String {
    Path::new("/").join(packages::HYPERVISOR).display().to_string()
}

/// Returns the arguments with which the menu boots a hypervisor, and a kernel after it.
fn entry(menu: &str, hypervisor: &str) -> Result<String> {
    let (_, rest) = menu
        .split_once(&format!("multiboot2\t{hypervisor} placeholder "))
        .with_context(|| format!("no entry boots {hypervisor}\n{menu}"))?;
    let (args, rest) = rest.split_once('\n').context("the menu ends there")?;
    ensure!(rest.lines().any(|line| line.contains("module2\t/boot/vmlinuz-")), "{rest}");
    // The menu's own variables are for machines without a PS/2 keyboard or a video card.
    let args: Vec<&str> = args.split_whitespace().filter(|arg| !arg.starts_with("${")).collect();
    Ok(args.join(" "))
}
