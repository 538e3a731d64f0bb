// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a host of virtual machines: Debian with QEMU and libvirt, on which the packages put KVM's
//! modules with the driver before Debian's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{
    WAIT_FOR, check_files, enabled_and_confined, install_as, inventory, pack_system, purged,
};
use crate::artefacts::debian;
use crate::artefacts::kernel::{self, Kernel};
use crate::artefacts::kvm::{AMD, COMMON, MODULES};
use crate::artefacts::packages::{Built, kvm};
use crate::machine::{self, Spec, Status};
use crate::suites::pmu;
use crate::suites::report::{Report, Volume, all};
use crate::tools::cache;
use crate::tools::chroot::Chroot;
use crate::tools::sh;

/// The page of the book that says how the packages are installed and signed.
const PAGE: &str = "docs/hosts.md";

/// The hosts' own package.
pub const HOSTS: &str = "perfctr-kvm";

/// The script of that package that is run when a kernel is installed.
const HOOK: &str = "/etc/kernel/postinst.d/perfctr-kvm";

/// The files of that package, beside documents.
const FILES: &[&str] = &[
    HOOK,
    "/etc/modprobe.d/perfctr-kvm.conf",
    "/etc/perfctr/domains",
    "/lib/systemd/system/perfctr-domains.service",
    "/lib/udev/rules.d/60-perfctr-kvm.rules",
];

/// The kernel's own modules that a booted host needs, and those that it loads after the purge.
const KERNELS_OWN: [&str; 4] = [
    "virt/lib/irqbypass.ko",
    "drivers/crypto/ccp/ccp.ko",
    "arch/x86/kvm/kvm.ko",
    "arch/x86/kvm/kvm-amd.ko",
];

/// The most that systemd may rate the exposure of the service. Unit: tenths of systemd's points.
const EXPOSURE_MAX: u32 = 15;

/// Takes a host with Debian's KVM to one with ours, and back. In the long tier the host is booted
/// and its virtual machines count.
pub fn run(report: &mut Report, now: &Built) -> Result<()> {
    let kernel = kernel::kernel()?;
    let release = &kernel.release;
    let work = cache::scratch("packages-kvm")?;
    let _lock = cache::lock("packages-test")?;
    let debian = Chroot::unpack(&debian::kvm_host(&kernel)?, &work)?;
    let before = inventory(&debian)?;
    let modules = kvm::package(release);
    report.test("on a host of virtual machines, KVM's names mean our modules", || {
        ensure!(modules_that_would_load(&debian, release)?.is_empty(), "ours are there already");
        install_ours(&debian, now, release)
    });
    report.test("its files are where they belong, and Debian's are as they were", || {
        check_files(&debian, &[HOSTS], FILES)?;
        let changed = debian.run(&format!("dpkg --verify linux-image-{release}"))?;
        ensure!(changed.is_empty(), "{changed}");
        Ok(())
    });
    report.test("the service is enabled, and confined", || {
        enabled_and_confined(&debian, "perfctr-domains", EXPOSURE_MAX)
    });
    report.test("a kernel without such modules is named when it is installed", || {
        let hook = |release: &str| debian.run(&format!("{HOOK} {release} /boot/vmlinuz"));
        ensure!(hook(release)?.is_empty(), "{release} has them");
        let printed = hook("6.1.0-999-amd64")?;
        let expected = "the package perfctr-kvm-modules-6.1.0-999-amd64 is not installed\n";
        ensure!(printed.ends_with(expected), "{printed}");
        Ok(())
    });
    if report.volume == Volume::Long {
        report.test("each package has modules for the kernel that it names", || {
            check_kernel_of_each(&debian, now)
        });
        count_in_machines(report, &debian, &kernel)?;
    }
    report.test("the modules are signed as the book says", || {
        sign_as_the_book_says(&debian, &kernel)
    });
    report.test("purged, KVM is Debian's, and nothing is left", || {
        purged(&debian, &["perfctr", HOSTS, &modules], None, &before)?;
        ensure!(modules_that_would_load(&debian, release)?.is_empty(), "ours are still there");
        Ok(())
    });
    debian.remove()
}

/// Installs the packages as the book says. Fails unless the kernel of this release would then load
/// our modules, with the options of the packages.
fn install_ours(debian: &Chroot, now: &Built, release: &str) -> Result<()> {
    let packages = ["perfctr", HOSTS, &kvm::package(release)];
    let is_for_it = |deb: &&PathBuf| packages.contains(&super::name_of(deb));
    let debs: Vec<PathBuf> = now.debs.iter().filter(is_for_it).cloned().collect();
    let printed = install_as(debian, &debs, PAGE, HOSTS, &[("$(uname -r)", release)])?;
    ensure!(printed.contains("perfctr: modprobe -r kvm-amd kvm-intel kvm;"), "{printed}");
    let ours = format!("/{}", kvm::directory(release));
    let expected = [format!("{ours}/{COMMON} enable_pmu=0 perfctr=on"), format!("{ours}/{AMD}")];
    let found = modules_that_would_load(debian, release)?;
    ensure!(found == expected, "{expected:?} expected, found {found:?}");
    let found = debian.run(&format!("modinfo -k {release} -n kvm kvm-amd kvm-intel"))?;
    let expected: String = MODULES.iter().map(|module| format!("{ours}/{module}\n")).collect();
    ensure!(found == expected, "{expected} expected, found {found}");
    Ok(())
}

/// Fails unless the modules of each package are for the kernel in its name, and the package depends
/// on one version of that kernel.
fn check_kernel_of_each(debian: &Chroot, now: &Built) -> Result<()> {
    debian.put(&now.debs, "debs")?;
    let prefix = kvm::package("");
    let mut releases: Vec<&str> =
        now.debs.iter().filter_map(|deb| super::name_of(deb).strip_prefix(&prefix)).collect();
    releases.dedup();
    ensure!(releases.len() == kvm::VERSIONS.len(), "packages for {releases:?} were built");
    for release in releases {
        let printed = debian.run(&format!(
            "dpkg -x debs/{prefix}{release}_*.deb debs/{release}; \
             for module in debs/{release}/{}/*; do modinfo -F vermagic $module; done; \
             dpkg -f debs/{prefix}{release}_*.deb Depends",
            kvm::directory(release)
        ))?;
        let magic = format!("{release} ");
        let count = printed.lines().filter(|line| line.starts_with(&magic)).count();
        let version = format!(" linux-image-{release} (= ");
        ensure!(count == MODULES.len() && printed.contains(&version), "{printed}");
    }
    Ok(())
}

/// Returns the modules, each with its options, that a kernel of this release would load for KVM on
/// AMD, and that are not the kernel's own.
fn modules_that_would_load(debian: &Chroot, release: &str) -> Result<Vec<String>> {
    let printed = debian.run(&format!("modprobe -S {release} --show-depends kvm-amd"))?;
    let modules: Option<Vec<&str>> =
        printed.lines().map(|line| line.strip_prefix("insmod ")).collect();
    let modules = modules.with_context(|| printed.clone())?;
    ensure!(modules.iter().any(|module| module.contains("/kvm-amd.ko")), "{printed}");
    let is_ours = |module: &&str| !module.contains("/kernel/");
    Ok(modules.into_iter().filter(is_ours).map(|module| module.trim().to_owned()).collect())
}

/// Signs the modules with the commands of the book, without those that need the firmware.
fn sign_as_the_book_says(debian: &Chroot, kernel: &Kernel) -> Result<()> {
    let page = fs::read_to_string(sh::project().join(PAGE))?;
    let (_, after) = page.split_once("openssl req").context("the page makes no key")?;
    let (commands, _) = after.split_once("```").context("the commands end nowhere")?;
    let commands: Vec<&str> =
        commands.lines().filter(|line| !line.starts_with("mokutil ")).collect();
    let script = format!("openssl req{}", commands.join("\n"));
    debian.run(&script.replace("$(uname -r)", &kernel.release))?;
    for module in MODULES {
        let file = format!("/{}/{module}", kvm::directory(&kernel.release));
        let signer = debian.run(&format!("modinfo -F signer {file}"))?;
        ensure!(signer == "perfctr\n", "{module} is signed by `{signer}`");
    }
    debian.run("rm root/mok.*").map(drop)
}

/// The kernel's arguments of the virtual machines.
const GUESTS_LINUX: &str = "console=ttyS0 panic=-1 oops=panic quiet nmi_watchdog=0";

/// The ports of a virtual machine, each of which is a file of the host's.
const PORTS: [&str; 4] = ["control", "stdout", "stderr", "out"];

/// The script that the host executes after it has booted. It starts two virtual machines: `web`
/// through libvirt, and `mail` with QEMU alone. `/etc/perfctr/domains` names `web` from the start.
/// The script adds the name `mail` while that machine runs.
const HOST: &str = r#"
said_by() {
    # What libvirt's machine writes goes through another program.
    wait_for "grep -Eq '^(exit|signal|refused|error)' /machine/$1.control"
    for port in control stdout stderr; do sed "s/^/$1 $port: /" /machine/$1.$port; done
}
options() {
    echo "$1 $(cd /sys/module/kvm/parameters; cat enable_pmu perfctr 2> /dev/null | paste -sd ' ')"
}
trap 'systemctl status --no-pager perfctr-domains libvirtd >&2; dmesg | tail -40 >&2' EXIT
udevadm settle
options booted
wait_for 'systemctl is-active -q perfctr-domains'

virsh define /machine/web.xml
virsh start web
wait_for 'perfctr domains list | grep -Eq " yes +web$"'
wait_for 'virsh domstate web | grep -q "shut off"'
said_by web

sh -ec "$(cat /machine/mail.sh)" &
wait_for 'perfctr domains list | grep -Eq " no +mail$"'
echo mail >> /etc/perfctr/domains
wait_for 'perfctr domains list | grep -Eq " yes +mail$"'
wait $!
said_by mail

systemctl stop perfctr-domains
modprobe -r kvm-amd
modprobe kvm-amd
wait_for 'systemctl is-active -q perfctr-domains'
echo "the service is started with the module"
dpkg --purge "$(cat /machine/package)"
modprobe -r kvm-amd
modprobe kvm-amd
options purged
wait_for 'test $(systemctl is-active perfctr-domains) = inactive'
trap - EXIT
"#;

/// Boots the host as it is now, whose virtual machines count.
fn count_in_machines(report: &mut Report, debian: &Chroot, kernel: &Kernel) -> Result<()> {
    let page = fs::read_to_string(sh::project().join(PAGE))?;
    let enter = page.lines().find(|line| line.ends_with(">> /etc/perfctr/domains"));
    debian.run(enter.context("the page enters no name")?)?;
    let work = cache::scratch("packages-kvm-host")?;
    cache::empty(&work)?;
    let outcome = machine::run(&host(debian, kernel, &work)?)?;
    fs::remove_dir_all(work)?;
    let printed = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let says = |line: &str| -> Result<()> {
        ensure!(printed.lines().any(|printed| printed == line), "no `{line}`\n{}", all(&outcome));
        Ok(())
    };
    report.test("booted, it has loaded our modules with their options", || says("booted N on"));
    for (name, whose) in [("web", "libvirt's"), ("mail", "QEMU's")] {
        let test = format!("{whose} machine counts exactly when its name is in the file");
        report.test(&test, || {
            for line in pmu::PERF_LINES {
                let begins = format!("{name} stdout: {line}");
                let is_there = printed.lines().any(|printed| printed.starts_with(&begins));
                ensure!(is_there, "no `{begins}`\n{}", all(&outcome));
            }
            says(&format!("{name} control: exit 0"))
        });
    }
    report.test("the service begins and ends with the module that has the driver", || {
        says("the service is started with the module")?;
        says("purged N")?;
        ensure!(outcome.status == Status::Exited(0), "{}", all(&outcome));
        Ok(())
    });
    Ok(())
}

/// Describes a run of the host, with the files from which its virtual machines are booted. Files of
/// the run are made in `work`.
fn host(debian: &Chroot, kernel: &Kernel, work: &Path) -> Result<Spec> {
    let [system, initrd] = ["system", "initrd"].map(|name| work.join(name));
    pack_system(debian, &["./usr/lib/modules/*/kernel", "./boot/[!S]*"], &system)?;

    let mut guest = Spec::new("kvm", ["sh", "-c", GUEST])?;
    guest.add_program("perfctr", "perfctr")?;
    guest.files.push((pmu::known(pmu::ITERATIONS)?, "/work/loop".into()));
    let content = machine::initramfs(&guest)?;
    // The files are in memory twice while they are unpacked.
    let memory_mib = guest.host()?.memory_mib + 3 * (content.len() as u64 >> 20);
    fs::write(&initrd, content)?;

    let mut spec = Spec::new("kvm", ["sh", "-ec", &format!("{WAIT_FOR}{HOST}")])?;
    let host = spec.topology.kvm.take().context("the topology has no host")?;
    spec.topology.linux = host.linux;
    spec.topology.memory_mib += memory_mib;
    spec.module = false;
    spec.system = Some(system);
    spec.timeout = Duration::from_secs(2400);
    for name in KERNELS_OWN {
        let to = format!("/usr/lib/modules/{}/kernel/{name}", kernel.release);
        spec.files.push((kernel.modules.join(name), to));
    }
    spec.files.push((kernel.for_qemu().to_owned(), "/machine/kernel".into()));
    spec.files.push((initrd, "/machine/initrd".into()));
    for (name, text) in [
        ("web.xml", libvirt_description("web", memory_mib)),
        ("mail.sh", qemu_command("mail", memory_mib)),
        ("package", kvm::package(&kernel.release)),
    ] {
        let file = work.join(name);
        fs::write(&file, text)?;
        spec.files.push((file, format!("/machine/{name}")));
    }
    Ok(spec)
}

/// What a virtual machine executes.
const GUEST: &str = "perfctr stat --csv -e instructions:u,branches:u -- /work/loop 2>&1";

/// Describes a machine in libvirt's words.
fn libvirt_description(name: &str, memory_mib: u64) -> String {
    let channels: String = PORTS
        .iter()
        .map(|port| {
            format!(
                "<channel type='file'><source path='/machine/{name}.{port}'/>\
                 <target type='virtio' name='{port}'/></channel>\n"
            )
        })
        .collect();
    format!(
        "<domain type='kvm'>
<name>{name}</name>
<memory unit='MiB'>{memory_mib}</memory>
<vcpu>2</vcpu>
<os>
<type arch='x86_64' machine='q35'>hvm</type>
<kernel>/machine/kernel</kernel>
<initrd>/machine/initrd</initrd>
<cmdline>{GUESTS_LINUX}</cmdline>
</os>
<features><acpi/><apic/><pmu state='off'/></features>
<cpu mode='host-passthrough'/>
<on_reboot>destroy</on_reboot>
<devices>
<controller type='usb' model='none'/>
<memballoon model='none'/>
<serial type='file'><source path='/machine/{name}.console'/></serial>
{channels}</devices>
</domain>
"
    )
}

/// Returns the command by which QEMU runs a machine.
fn qemu_command(name: &str, memory_mib: u64) -> String {
    let ports: String = PORTS
        .iter()
        .map(|port| {
            format!(
                "-chardev file,id={port},path=/machine/{name}.{port} \
                 -device virtserialport,chardev={port},name={port} "
            )
        })
        .collect();
    format!(
        "exec qemu-system-x86_64 -name {name} -machine q35,accel=kvm -cpu host,pmu=off -smp 2 \
         -m {memory_mib}M -nodefaults -display none -no-reboot \
         -serial file:/machine/{name}.console -kernel /machine/kernel -initrd /machine/initrd \
         -append '{GUESTS_LINUX}' -device virtio-serial-pci {ports}\n"
    )
}
