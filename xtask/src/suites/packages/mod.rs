// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the Debian packages in a whole Debian system: they are installed, used, upgraded and
//! purged.

mod host;
mod kvm;
mod release;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::artefacts::debian::{self, Other};
use crate::artefacts::kernel;
use crate::artefacts::packages::{self, Built, kvm::VERSIONS};
use crate::machine::{self, BESIDE, Spec, Status};
use crate::suites::report::{Report, Volume, all};
use crate::suites::{languages, pmu};
use crate::tools::cache;
use crate::tools::chroot::Chroot;
use crate::tools::sh::{self, cmd};

/// A version that is higher than the project's.
const NEXT: &str = "99.0";

/// All packages but those for hosts of virtual machines, in the order of their names.
const PACKAGES: &[&str] = &[
    "libperfctr-counts-dev",
    "libperfctr-counts1",
    "libperfctr-dev",
    "libperfctr6",
    "perfctr",
    "perfctr-dkms",
    "perfctr-papi",
    "python3-perfctr",
    "xen-hypervisor-4.17-perfctr",
];

const INSTALL: &str = "apt-get install -y --no-install-recommends -o Dpkg::Use-Pty=0";

/// The rules by which udev gives the module's device to its users.
const RULES: &str = "/lib/udev/rules.d/60-perfctr.rules";

/// The files that they install, beside documents and the module's sources.
const FILES: &[&str] = &[
    "/boot/xen-4.17-perfctr.gz",
    "/etc/default/grub.d/xen-perfctr.cfg",
    "/etc/perfctr/xen-domains",
    "/lib/systemd/system/perfctr-xen-domains.service",
    RULES,
    "/usr/bin/perfctr",
    "/usr/bin/perfex",
    "/usr/include/libperfctr.h",
    "/usr/include/linux/perfctr.h",
    "/usr/include/perfctr_counts.h",
    "/usr/include/perfctr_counts.hpp",
    "/usr/include/perfctr_event_codes.h",
    "/usr/include/x86_64-linux-gnu/asm/perfctr.h",
    "/usr/lib/modules-load.d/perfctr.conf",
    "/usr/lib/python3/dist-packages/perfctr-0.1.0.dist-info/METADATA",
    "/usr/lib/python3/dist-packages/perfctr-0.1.0.dist-info/WHEEL",
    "/usr/lib/python3/dist-packages/perfctr-0.1.0.dist-info/entry_points.txt",
    "/usr/lib/python3/dist-packages/perfctr/__init__.py",
    "/usr/lib/python3/dist-packages/perfctr/_library.py",
    "/usr/lib/python3/dist-packages/perfctr/gate.py",
    "/usr/lib/python3/dist-packages/perfctr/pytest_plugin.py",
    "/usr/lib/python3/dist-packages/perfctr/regions.py",
    "/usr/lib/sysusers.d/perfctr.conf",
    "/usr/lib/x86_64-linux-gnu/libperfctr-counts.a",
    "/usr/lib/x86_64-linux-gnu/libperfctr-counts.so",
    "/usr/lib/x86_64-linux-gnu/libperfctr-counts.so.1",
    "/usr/lib/x86_64-linux-gnu/libperfctr-counts.so.1.0.1.0",
    "/usr/lib/x86_64-linux-gnu/libperfctr.a",
    "/usr/lib/x86_64-linux-gnu/libperfctr.so",
    "/usr/lib/x86_64-linux-gnu/libperfctr.so.6",
    "/usr/lib/x86_64-linux-gnu/libperfctr.so.6.2.6.42",
    "/usr/lib/x86_64-linux-gnu/perfctr-papi/libpapi.so.7.0",
    "/usr/lib/x86_64-linux-gnu/perfctr-papi/libpfm.so.3",
    "/usr/lib/x86_64-linux-gnu/pkgconfig/perfctr-counts.pc",
    "/usr/lib/x86_64-linux-gnu/pkgconfig/perfctr.pc",
    "/usr/share/bash-completion/completions/perfctr",
    "/usr/share/fish/vendor_completions.d/perfctr.fish",
    "/usr/share/man/man1/perfctr-diff.1.gz",
    "/usr/share/man/man1/perfctr-domains-allow.1.gz",
    "/usr/share/man/man1/perfctr-domains-apply.1.gz",
    "/usr/share/man/man1/perfctr-domains-counts.1.gz",
    "/usr/share/man/man1/perfctr-domains-forbid.1.gz",
    "/usr/share/man/man1/perfctr-domains-limits.1.gz",
    "/usr/share/man/man1/perfctr-domains-list.1.gz",
    "/usr/share/man/man1/perfctr-domains.1.gz",
    "/usr/share/man/man1/perfctr-export.1.gz",
    "/usr/share/man/man1/perfctr-gate.1.gz",
    "/usr/share/man/man1/perfctr-info.1.gz",
    "/usr/share/man/man1/perfctr-list.1.gz",
    "/usr/share/man/man1/perfctr-record.1.gz",
    "/usr/share/man/man1/perfctr-report.1.gz",
    "/usr/share/man/man1/perfctr-selftest.1.gz",
    "/usr/share/man/man1/perfctr-stat.1.gz",
    "/usr/share/man/man1/perfctr-top.1.gz",
    "/usr/share/man/man1/perfctr.1.gz",
    "/usr/share/man/man1/perfex.1.gz",
    "/usr/share/zsh/vendor-completions/_perfctr",
];

/// A C program that asks for counters. A machine without the module has none.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <libperfctr.h>
int main(void)
{
	struct vperfctr *counters = vperfctr_open();
	perror("perfctr");
	return counters != NULL;
}
"#;

/// Tests the packages' contents, and how they are installed and purged. The long tier also boots
/// systems with them, which count, upgrades them, and tests hosts.
pub fn run(report: &mut Report) -> Result<()> {
    let now = packages::build(packages::VERSION, report.volume.pick(&VERSIONS[..1], VERSIONS))?;
    report.test("lintian finds nothing that is not explained", || unexplained(&now));
    system(report, &now)?;
    kvm::run(report, &now)?;
    if report.volume == Volume::Usual {
        return Ok(());
    }
    host::run(report, &now)?;
    release::run(report)
}

/// Tests one system, from the first installation to the last purge.
fn system(report: &mut Report, now: &Built) -> Result<()> {
    let kernel = kernel::kernel()?;
    let work = cache::scratch("packages")?;
    let _lock = cache::lock("packages-test")?;
    let debian = Chroot::unpack(&debian::guest(&kernel)?, &work)?;
    let before = inventory(&debian)?;
    report.test("apt installs all, where DKMS builds the module without Rust", || {
        debian.run("! command -v rustc cargo")?;
        for (page, package) in [
            ("docs/tenant.md", "perfctr"),
            ("docs/bare.md", "perfctr"),
            ("docs/python.md", "python3-perfctr"),
            ("docs/papi.md", "perfctr-papi"),
        ] {
            install_as(&debian, &now.debs, page, package, &[])?;
        }
        install(&debian, now)?;
        modules(&debian, packages::VERSION, &[&kernel.release])
    });
    report.test("files are where they belong", || files(&debian));
    report.test("C programs find headers and libraries", || programs(&debian, &work));
    let mut other = None;
    if report.volume == Volume::Long {
        report.test("booted, a user of the group counts exactly, and nobody else", || {
            counts(&debian, None, "")
        });
        let (next, second) = (packages::build(NEXT, &[])?, debian::other(&kernel)?);
        report.test("a second kernel gets its module", || {
            install_files(&debian, &second.headers)?;
            modules(&debian, packages::VERSION, &[&kernel.release, &second.release])
        });
        report.test("an upgrade replaces each module", || {
            install(&debian, &next)?;
            modules(&debian, NEXT, &[&kernel.release, &second.release])?;
            debian.run(&format!("! test -e /usr/src/perfctr-{}", packages::VERSION)).map(drop)
        });
        other = Some(second);
    }
    report.test("purged, nothing is left", || purged(&debian, PACKAGES, other.as_ref(), &before));
    debian.remove()
}

/// Installs all packages but those for hosts of virtual machines.
fn install(debian: &Chroot, built: &Built) -> Result<()> {
    let is_here = |deb: &&PathBuf| !name_of(deb).starts_with(kvm::HOSTS);
    let debs: Vec<PathBuf> = built.debs.iter().filter(is_here).cloned().collect();
    install_files(debian, &debs)
}

/// Installs packages by apt, without those that are only recommended.
fn install_files(debian: &Chroot, debs: &[PathBuf]) -> Result<()> {
    debian.put(debs, "debs")?;
    debian.run(&format!("{INSTALL} /debs/*.deb")).map(drop)
}

/// Installs packages with the command of a page of the book that names this package, as in `apt
/// install ./perfctr_*.deb`. Each of `known` has a part of that command, such as `$(uname -r)`, and
/// its replacement, such as a release. Returns the output.
fn install_as(
    debian: &Chroot,
    debs: &[PathBuf],
    page: &str,
    package: &str,
    known: &[(&str, &str)],
) -> Result<String> {
    debian.put(debs, "debs")?;
    let text = fs::read_to_string(sh::project().join(page))?;
    let file = format!("./{package}_");
    let lines = text.lines().filter_map(|line| line.strip_prefix("apt install "));
    let mut lines = lines.filter(|line| line.contains(&file));
    let packages = lines.next().with_context(|| format!("{page} does not install {package}"))?;
    ensure!(lines.next().is_none(), "{page} installs {package} twice");
    let packages =
        known.iter().fold(packages.to_owned(), |packages, (what, by)| packages.replace(what, by));
    debian.run(&format!("cd /debs; {INSTALL} {packages}"))
}

/// Returns the package's name from that of a file `NAME_VERSION_ARCHITECTURE.deb`.
fn name_of(deb: &Path) -> &str {
    let name = deb.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split('_').next().unwrap_or_default()
}

fn unexplained(built: &Built) -> Result<()> {
    ensure!(built.tags.is_empty(), "{}", built.tags.join("\n"));
    Ok(())
}

/// Fails unless DKMS has this version installed for these kernels, and no other version for any
/// kernel.
fn modules(debian: &Chroot, version: &str, releases: &[&str]) -> Result<()> {
    let status = debian.run("dkms status")?;
    let mut expected: Vec<String> = releases
        .iter()
        .map(|release| format!("perfctr/{version}, {release}, x86_64: installed"))
        .collect();
    let mut found: Vec<&str> = status.lines().collect();
    expected.sort_unstable();
    found.sort_unstable();
    ensure!(found == expected, "{expected:?} expected of dkms\n{status}");
    for release in releases {
        let module = format!("/lib/modules/{release}/updates/dkms/perfctr.ko");
        let magic = debian.run(&format!("modinfo -F vermagic {module}"))?;
        ensure!(magic.starts_with(&format!("{release} ")), "{module} is for {magic}");
    }
    Ok(())
}

/// Fails unless these packages have installed these files, beside documents and sources, and no
/// others, and nobody has changed one.
fn check_files(debian: &Chroot, packages: &[&str], files: &[&str]) -> Result<()> {
    let list = format!(
        "dpkg -L {} | while read f; do test ! -f \"$f\" || echo \"$f\"; done | LC_ALL=C sort -u",
        packages.join(" ")
    );
    let all = debian.run(&list)?;
    let known = |file: &&str| !["/usr/share/doc/", "/usr/src/"].iter().any(|d| file.starts_with(d));
    let kept = |file: &&str| known(file) && !file.starts_with("/usr/share/lintian/");
    let found: Vec<&str> = all.lines().filter(kept).collect();
    ensure!(found == files, "{files:#?} expected, found {found:#?}");
    let changed = debian.run(&format!("dpkg --verify {}", packages.join(" ")))?;
    ensure!(changed.is_empty(), "{changed}");
    Ok(())
}

fn files(debian: &Chroot) -> Result<()> {
    check_files(debian, PACKAGES, FILES)?;
    debian.run("getent group perfctr; ldconfig -p | grep -q libperfctr.so.6")?;
    let version = debian.run("perfctr --version; perfex -h")?;
    ensure!(version.starts_with(&format!("perfctr {}\n", packages::VERSION)), "{version}");
    let rules = fs::read(sh::project().join("guest-kmod/udev/60-perfctr.rules"))?;
    ensure!(fs::read(debian.path(RULES))? == rules, "{RULES} differs");
    Ok(())
}

/// Compiles a C program for each library, with the shared and with the static one, by the answers
/// of pkg-config, and runs all. They find no device here, and neither does Python. The book's
/// program for C stays, as `program/squares`.
fn programs(debian: &Chroot, work: &Path) -> Result<()> {
    fs::create_dir_all(work.with_extension("program"))?;
    let [packages, squares, page] = ["packages.c", "squares.c", "page.py"]
        .map(|name| work.with_extension("program").join(name));
    fs::write(&packages, PROGRAM)?;
    fs::write(&squares, languages::c_example()?)?;
    fs::write(&page, languages::python_example()?)?;
    debian.put(&[&packages, &squares, &page], "program")?;
    let version = debian.run("pkg-config --modversion perfctr perfctr-counts")?;
    let expected = format!("2.6.42\n{}\n", packages::VERSION);
    ensure!(version == expected, "versions of the interfaces: {version}, expected: {expected}");
    for link in ["-static", ""] {
        let kind = link.replace('-', "--");
        let compile = |name: &str, library: &str| {
            debian.run(&format!(
                "cd program; gcc -Wall -Werror -O2 {link} -o {name} {name}.c \
                 $(pkg-config {kind} --cflags --libs {library})"
            ))
        };
        compile("packages", "perfctr")?;
        let printed = debian.run("program/packages")?;
        ensure!(printed == "perfctr: No such file or directory\n", "{link}: {printed}");
        compile("squares", "perfctr-counts")?;
        let printed = debian.run("! program/squares 2>&1")?;
        ensure!(printed.starts_with("no counters for instructions:u\n"), "{link}: {printed}");
    }
    for (program, library) in
        [("packages", "libperfctr.so.6"), ("squares", "libperfctr-counts.so.1")]
    {
        let shared = debian.run(&format!("ldd program/{program}"))?;
        ensure!(shared.contains(&format!("{library} => /lib/x86_64-linux-gnu/")), "{shared}");
    }
    let printed = debian.run("! python3 program/page.py 2>&1")?;
    ensure!(
        printed.contains("perfctr._library.Error: no counters for instructions:u\n"),
        "{printed}"
    );
    Ok(())
}

/// Fails unless a service is enabled, and systemd rates its exposure no higher than this. Unit:
/// tenths of systemd's points.
fn enabled_and_confined(debian: &Chroot, service: &str, exposure_max: u32) -> Result<()> {
    let script = format!(
        "test $(systemctl is-enabled {service}) = enabled; systemd-analyze security \
         --offline=true --threshold={exposure_max} {service}.service; rm -r /run/systemd"
    );
    debian.run(&script).map(drop)
}

/// A function of a booted system's scripts that waits until a command succeeds.
const WAIT_FOR: &str = r#"
wait_for() {
    for n in $(seq 200); do
        if eval "$1"; then return; fi
        sleep 2
    done
    echo "this never came: $1" >&2
    exit 1
}
"#;

/// The script that a guest that is this system runs, with systemd, udev and the module at boot.
const GUEST: &str = "
grep -q '^perfctr ' /proc/modules
systemctl is-active systemd-modules-load systemd-udevd
udevadm settle
stat -c '%U %G %a' /dev/perfctr
stat='perfctr stat --csv -e instructions:u,branches:u -- /work/loop'
runuser -u counter -- $stat 2>&1
! runuser -u stranger -- $stat
runuser -u counter -- /work/squares
runuser -u counter -- /work/squares
runuser -u counter -- python3 /work/page.py
papi='env LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/perfctr-papi'
runuser -u counter -- $papi papi_component_avail | sed -n '/^Active/,$s/^Name: */active: /p'
runuser -u counter -- $papi papi_command_line PAPI_TOT_INS
";

/// How the line of the book's program for C begins: the sum of the squares below 1000.
const SQUARES: &str = "332833500: ";

/// How the line with PAPI's count begins.
const PAPI_COUNT: &str = "PAPI_TOT_INS : ";

/// Files of a system that a machine does not need to boot it.
const NOT_BOOTED: &[&str] = &[
    "./debs",
    "./proc",
    "./program",
    "./system.cpio",
    "./usr/lib/gcc",
    "./usr/share/doc",
    "./usr/share/man",
    "./usr/src",
    "./var/cache/apt",
    "./var/lib/apt",
    "./var/lib/dkms",
];

/// Makes an archive of a system's files for a machine that is to boot them, without those that
/// these patterns of names also leave out.
fn pack_system(debian: &Chroot, left_out: &[&str], archive: &Path) -> Result<()> {
    let names: Vec<String> =
        NOT_BOOTED.iter().chain(left_out).map(|name| format!("-path '{name}'")).collect();
    debian.run(&format!(
        "find . -xdev \\( {} \\) -prune -o -print0 | cpio -0 -o -H newc --quiet > system.cpio",
        names.join(" -o ")
    ))?;
    debian.get("system.cpio", archive)?;
    debian.run("rm system.cpio").map(drop)
}

/// Boots a guest from the system's files on the packages' hypervisor, and counts there, also with
/// the programs of [`programs`]. `xen_args` replaces the hypervisor's usual arguments. `first` is a
/// script that the guest runs before it counts.
fn counts(debian: &Chroot, xen_args: Option<&str>, first: &str) -> Result<()> {
    debian.run("useradd -M -G perfctr counter; useradd -M stranger")?;
    let [system, packed, image] = ["packages-guest.cpio", "packages-xen.gz", "packages-xen"]
        .map(|name| cache::root().map(|root| root.join("work").join(name)));
    let (system, packed, image) = (system?, packed?, image?);
    pack_system(debian, &["./boot", "./usr/lib/modules/*/kernel"], &system)?;
    debian.get(packages::HYPERVISOR, &packed)?;
    debian.run("userdel counter; userdel stranger")?;
    let xen = cmd("gzip", ["-dc"]).arg(&packed).output()?;
    ensure!(xen.status.success(), "{} is not packed", packages::HYPERVISOR);
    fs::write(&image, xen.stdout)?;

    let mut spec = Spec::new("pv", ["sh", "-ec", &format!("{first}{GUEST}")])?;
    spec.module = false;
    let hypervisor = spec.hypervisor()?;
    hypervisor.image = Some(image);
    if let Some(args) = xen_args {
        args.clone_into(&mut hypervisor.args);
    }
    spec.system = Some(system.clone());
    spec.timeout = BESIDE;
    spec.files.push((pmu::known(pmu::ITERATIONS)?, "/work/loop".into()));
    for name in ["squares", "page.py"] {
        let copy = cache::scratch(name)?;
        debian.get(&format!("program/{name}"), &copy)?;
        spec.files.push((copy, format!("/work/{name}")));
    }
    let outcome = machine::run(&spec)?;
    fs::remove_file(system)?;
    ensure!(outcome.status == Status::Exited(0), "{}", all(&outcome));
    let printed = String::from_utf8_lossy(&outcome.stdout);
    let squares: Vec<&str> = printed.lines().filter(|line| line.starts_with(SQUARES)).collect();
    ensure!(squares.len() == 2 && squares[0] == squares[1], "{}", all(&outcome));
    let python: Vec<u64> = printed.lines().filter_map(|line| line.parse().ok()).collect();
    ensure!(python.len() == 2 && python.iter().all(|&count| count > 5_000), "{}", all(&outcome));
    let papi = printed.lines().find_map(|line| line.strip_prefix(PAPI_COUNT)?.trim().parse().ok());
    ensure!(papi.is_some_and(|count: u64| count > 1_000_000), "{}", all(&outcome));
    ensure!(printed.contains("\nactive: perfctr"), "{}", all(&outcome));
    for line in ["active\nactive\nroot perfctr 660\n", pmu::PERF_LINES[0], pmu::PERF_LINES[1]] {
        ensure!(printed.contains(line), "`{line}` expected\n{}", all(&outcome));
    }
    Ok(())
}

/// Lists every file with its kind, mode and owner, and the content of those that describe the
/// system. Logs and caches are left out, since they are apt's and dpkg's.
fn inventory(debian: &Chroot) -> Result<String> {
    debian.run(
        "find / -xdev \\( -path /proc -o -path /sys -o -path /tmp -o -path /debs -o -path /program \
         -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -name '*-old' \
         -o -path '/etc/*-' \\) -prune -o -printf '%p %y %m %u %g %l\\n' | LC_ALL=C sort; \
         find /etc /lib/modules/* -type f ! -name '*-' ! -name ld.so.cache | LC_ALL=C sort | \
         xargs sha256sum; ! command -v dkms || dkms status; dpkg-query -W",
    )
}

/// Purges these packages. Fails if anything then differs from the state before the first
/// installation, except for the other kernel if there is one.
fn purged(debian: &Chroot, packages: &[&str], other: Option<&Other>, before: &str) -> Result<()> {
    debian.run(&format!("apt-get purge -y -o Dpkg::Use-Pty=0 {}", packages.join(" ")))?;
    let other = other.map(|other| other.release.trim_end_matches("-amd64"));
    let after = inventory(debian)?;
    let lines = |text: &str| -> Vec<String> {
        let ours = |line: &&str| other.is_none_or(|other| !line.contains(other));
        text.lines().filter(ours).map(str::to_owned).collect()
    };
    let (before, after) = (lines(before), lines(&after));
    let left: Vec<&String> = after.iter().filter(|line| !before.contains(line)).collect();
    let lost: Vec<&String> = before.iter().filter(|line| !after.contains(line)).collect();
    ensure!(left.is_empty() && lost.is_empty(), "left: {left:#?}\nlost: {lost:#?}");
    let ours = debian.run(
        "rm -rf debs program; find / -xdev \\( -path /proc -o -path '/usr/src/linux-*' \\) -prune \
         -o -name '*perfctr*' -print",
    )?;
    ensure!(ours.is_empty(), "left:\n{ours}");
    Ok(())
}
