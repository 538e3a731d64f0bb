// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests two domains: Debian's own tools create a tenant beside the control domain, with the same
//! kernel.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::artefacts::xen::Flavour;
use crate::artefacts::{guest, kernel, rootfs};
use crate::machine::Spec;
use crate::suites::report::{Report, Volume};
use crate::tools::cpio::Archive;
use crate::tools::sh::{self, cmd};
use crate::tools::{apt, cache};

/// The file with the first contents of a tenant's memory. `tests/vm/src/toolstack.rs` has the same
/// name.
const INITRAMFS: &str = "/work/tenant.cpio";
/// The same file for a tenant that starts another kernel, which is in the file.
const INITRAMFS_OF_STARTER: &str = "/work/starter.cpio";

/// AMD's core extension.
const CORE: &str = ",+perfctr-core";
/// Version 2 of its counters (PerfMonV2).
pub const V2: &str = ",+perfctr-core,perfmon-v2=on";

/// Boots a machine with a storm in a tenant, where the driver's rate is so low that emulation is
/// fast enough to exceed it. The long tier boots one more, where every domain may count, at the
/// usual rate.
pub fn run(report: &mut Report) -> Result<()> {
    report.program(spec("pv", "cost,rate=0", &["/work/tenants", "control", "0"])?, "tenants")?;
    if report.volume == Volume::Usual {
        return Ok(());
    }
    let all = ["/work/tenants", "control", "--all", "50"];
    report.program(spec("pv", "cost,all,rate=50", &all)?, "tenants")
}

/// Boots a machine with AMD CPUs, whose counters are of version 2. The long tier boots three more:
/// with counters of version 1, and for sampling with global control and without.
pub fn amd(report: &mut Report) -> Result<()> {
    for features in report.volume.pick(&[V2][..], &[V2, ""]) {
        let mut spec = beside_pvh("pv-amd")?;
        spec.topology.cpu.push_str(features);
        spec.keep_tally();
        report.program(spec, "tenants")?;
    }
    for features in report.volume.pick(&[][..], &[V2, CORE]) {
        let both = "/work/overflow --ends; ended=$?; /work/overflow && exit $ended";
        let mut spec = Spec::new("pv-amd", ["sh", "-c", both])?.with_cost()?;
        spec.topology.cpu.push_str(features);
        spec.timeout = Duration::from_secs(600);
        report.program(spec, "overflow")?;
    }
    Ok(())
}

/// Describes a run whose control domain counts beside a PV tenant and a PVH one. One tenant that
/// may not count looks on, and a 32-bit tenant asks whether it can. A PVH tenant counts its kernel
/// beside the emulator, which has to keep its tally, and loads its module anew, and one names
/// frames that are no memory of its own.
pub fn beside_pvh(topology: &str) -> Result<Spec> {
    let mut spec = spec(topology, "1", &["/work/tenants", "pvh"])?;
    // Two tenants at once.
    spec.topology.memory_mib += 512;
    spec.files.push((guest::kernel_32()?, "/work/guest32".into()));
    Ok(spec)
}

/// Boots one machine. A PVH tenant on an AMD CPU counts and samples while it is restored and
/// migrated. In the long tier a PV and an HVM tenant also count while they are saved and restored,
/// and while their memory and their vCPUs become fewer and more, and the HVM tenant starts another
/// kernel.
pub fn migrate(report: &mut Report) -> Result<()> {
    let mut spec = spec("pv-amd", "all", &["/work/tenants", "migrate"])?;
    spec.topology.cpu.push_str(V2);
    // A tenant that is migrated is in memory twice for a while.
    spec.topology.memory_mib += 512;
    spec.timeout = Duration::from_secs(1800);
    if report.volume == Volume::Long {
        let mut files = modules()?;
        let program = guest::program("vm-tests", "tenants")?;
        let next = archive("successor", &program, &files, &spec)?;
        files.push(("work/next/initrd".to_owned(), next));
        files.push(("work/next/vmlinuz".to_owned(), kernel::kernel()?.boot_image));
        let starter = archive("starter", &program, &files, &spec)?;
        spec.files.push((starter, INITRAMFS_OF_STARTER.into()));
        add_device_model(&mut spec)?;
        // There are two tenants at a time, too.
        spec.topology.memory_mib += 256;
        spec.timeout *= 4;
    }
    report.program(spec, "tenants")
}

/// Boots a machine whose hypervisor asks its security policy who may use the PMU.
pub fn labelled(report: &mut Report) -> Result<()> {
    let mut spec = spec("pv-amd", "1", &["/work/tenants", "labelled"])?;
    let hypervisor = spec.hypervisor()?;
    hypervisor.flavour = Flavour::Flask;
    hypervisor.add("flask=enforcing");
    report.program(spec, "tenants")
}

/// Tests the times of threads and vCPUs in a PVH and in an HVM tenant.
pub fn clock(report: &mut Report) -> Result<()> {
    for kind in ["pvh", "hvm"] {
        let command = ["/work/clock", "control", kind];
        let spec = with_tenant(kind, &command, "clock", &[privcmd()?])?.deterministic();
        report.program(spec, "clock")?;
    }
    Ok(())
}

/// Boots a machine in which a tenant that counts is saved, and two in which it is restored. They
/// have the same CPUs, but one has narrower counters, and the other one has a Xen without the
/// driver.
pub fn elsewhere(report: &mut Report) -> Result<()> {
    // The control domain holds the tenant's memory as a file, and this file again in the archive
    // that it is booted with or leaves.
    const MEMORY: &str = "dom0_mem=1664M,max:1664M";
    let out = cache::scratch("emigrant")?;
    let machine = |command: &[&str]| -> Result<Spec> {
        let mut spec = spec("pv", "all", &[&["/work/tenants"][..], command].concat())?;
        spec.topology.memory_mib += 640;
        spec.hypervisor()?.add(MEMORY);
        Ok(spec)
    };
    let mut from = machine(&["emigration", "/out/saved"])?;
    from.keep_out(&out)?;
    report.program(from, "tenants")?;
    let saved = (out.join("saved"), "/work/saved".to_owned());
    let mut to = machine(&["immigration", "/work/saved"])?;
    to.topology.cpu.push_str(",pmu-width=40");
    to.files.push(saved.clone());
    report.program(to, "tenants")?;
    let to = machine(&["immigration", "--without-driver", "/work/saved"])?;
    let mut to = to.stock(&format!("dom0_max_vcpus=4 sched=credit {MEMORY}"));
    to.files.push(saved);
    report.program(to, "tenants")
}

/// Describes a run of a program of `benches` in a PVH tenant of this many vCPUs, beside a control
/// domain with one vCPU that sleeps, on Xen with the driver or with its own virtual PMU.
pub fn bench(program: &str, vcpus: u32, vpmu: bool) -> Result<Spec> {
    let mut command = vec!["/work/tenants", "program"];
    command.extend(vpmu.then_some("--without-module"));
    let vcpus = vcpus.to_string();
    let inside = format!("/work/{program}");
    command.extend([&vcpus, inside.as_str()]);
    let mut spec = Spec::new("pvh", command)?.deterministic();
    if vpmu {
        spec = spec.stock("sched=credit spec-ctrl=eager-fpu vpmu=on");
    } else {
        spec = spec.driver("all")?;
        spec.module = false;
    }
    spec.hypervisor()?.add("dom0_max_vcpus=1");
    spec.timeout = Duration::from_secs(1800);
    spec.add_program("vm-tests", "tenants")?;
    let program = (inside, guest::program("benches", program)?);
    add_tenant(&mut spec, "tenants", &[program])?;
    Ok(spec)
}

/// Describes a run of a program of `benches` in a control domain with one vCPU, which samples its
/// host while a PVH tenant executes. The tenant's first program is the same one.
pub fn bench_beside(program: &str) -> Result<Spec> {
    let command = [format!("/work/{program}")];
    let mut spec = Spec::new("pvh", command)?.deterministic().driver("profile")?;
    spec.module = false;
    spec.hypervisor()?.add("dom0_max_vcpus=1");
    spec.timeout = Duration::from_secs(1800);
    spec.add_program("benches", program)?;
    add_tenant_with(&mut spec, &guest::program("benches", program)?, &[])?;
    Ok(spec)
}

/// Describes a run of a program in a tenant of this kind, beside a control domain that sleeps. The
/// tenant has these files or directories, as (path in the tenant, path here).
pub fn in_tenant(kind: &str, program: &str, files: &[(String, PathBuf)]) -> Result<Spec> {
    let command = ["/work/tenants", "program", "--kind", kind, "--memory-mib", "512", "2", program];
    let mut spec = with_tenant(kind, &command, "tenants", files)?.driver("all")?;
    spec.module = false;
    spec.topology.memory_mib += 512;
    spec.add_program("vm-tests", "tenants")?;
    Ok(spec)
}

/// Describes a run of a script of BusyBox in such a tenant, which has the command and this program,
/// as (path in the tenant, path here).
pub fn script_in_tenant(kind: &str, text: &str, program: (String, PathBuf)) -> Result<Spec> {
    let script = cache::scratch("script-in-tenant")?;
    fs::write(&script, format!("#!/usr/bin/busybox sh\n{text}"))?;
    fs::set_permissions(&script, Permissions::from_mode(0o755))?;
    let files = [
        ("usr/bin/busybox".to_owned(), rootfs::busybox()?),
        ("work/perfctr".to_owned(), guest::program("perfctr", "perfctr")?),
        ("work/script".to_owned(), script),
        program,
    ];
    in_tenant(kind, "/work/script", &files)
}

/// Describes a run of a command that creates a tenant of this kind (`pvh` or `hvm`). The tenant has
/// a program of `vm-tests`, and further files as in [`in_tenant`].
pub fn with_tenant(
    kind: &str,
    command: &[&str],
    program: &str,
    further: &[(String, PathBuf)],
) -> Result<Spec> {
    with_tenant_of(None, kind, command, program, further)
}

/// Describes such a run in which the control domain and the tenant have this version of Linux, or
/// the usual one.
pub fn with_tenant_of(
    linux: Option<&str>,
    kind: &str,
    command: &[&str],
    program: &str,
    further: &[(String, PathBuf)],
) -> Result<Spec> {
    let mut spec = Spec::new("pvh", command)?;
    spec.linux = linux.map(str::to_owned);
    spec.timeout = Duration::from_secs(1_800);
    add_tenant(&mut spec, program, further)?;
    if kind == "hvm" {
        add_device_model(&mut spec)?;
        spec.timeout *= 2;
    }
    Ok(spec)
}

/// Describes the demo's run: a PVH tenant, or an HVM one, counts and samples beside the control
/// domain, compares with the truth, and leaves a report. Both have this version of Linux, or the
/// usual one.
pub fn demo(topology: &str, hvm: bool, linux: Option<String>) -> Result<Spec> {
    let mut command = vec!["/work/tenants", "tenant-demo", "--report", "/out/tenants.json"];
    command.extend(hvm.then_some("--hvm"));
    let mut spec = host(topology, "1", &command)?;
    spec.linux = linux;
    add_tenant(&mut spec, "tenants", &[])?;
    if hvm {
        add_device_model(&mut spec)?;
    }
    Ok(spec)
}

/// Describes a run on a topology with the driver's options and this command, which may create
/// tenants.
pub fn spec(topology: &str, driver: &str, command: &[&str]) -> Result<Spec> {
    let mut spec = host(topology, driver, command)?;
    add_tenant(&mut spec, "tenants", &modules()?)?;
    Ok(spec)
}

/// Describes such a run without what creates tenants.
fn host(topology: &str, driver: &str, command: &[&str]) -> Result<Spec> {
    let mut spec = Spec::new(topology, command)?.driver(driver)?;
    spec.timeout = Duration::from_secs(1800);
    Ok(spec)
}

/// Returns the modules that test from within a tenant's kernel, as (path in the tenant, path here).
fn modules() -> Result<Vec<(String, PathBuf)>> {
    let modules = guest::test_modules(&kernel::kernel()?)?;
    let file = |name| (format!("usr/lib/perfctr/{name}"), modules.join(name));
    Ok(["frames.ko", "peek.ko"].map(file).into())
}

/// Adds what only HVM tenants need. What all tenants need is there already.
pub fn add_device_model(spec: &mut Spec) -> Result<()> {
    apt::install(&["zstd"], "packing a tenant's memory")?;
    // The archives are packed, since firmware reads the memory's first contents in small pieces.
    let archives = [INITRAMFS, INITRAMFS_OF_STARTER];
    for (path, _) in spec.files.iter_mut().filter(|(_, at)| archives.contains(&at.as_str())) {
        let packed = path.with_extension("cpio.zst");
        sh::output(cmd("zstd", ["-q", "-f", "-9"]).arg(&*path).arg("-o").arg(&packed))?;
        *path = packed;
    }
    spec.files.push((rootfs::device_model()?, "/".into()));
    let kernel = kernel::of(spec.linux.as_deref())?;
    spec.files.push((kernel.boot_image, "/work/vmlinuz".into()));
    // This is for the device model and a larger tenant.
    spec.topology.memory_mib += 256;
    Ok(())
}

/// Adds what creates tenants: tools, the control domain's kernel, and all that a tenant has: one
/// program of `vm-tests`, the module, and further files or directories, each (path in the tenant,
/// path here).
pub(super) fn add_tenant(
    spec: &mut Spec,
    program: &str,
    further: &[(String, PathBuf)],
) -> Result<()> {
    add_tenant_with(spec, &guest::program("vm-tests", program)?, further)
}

/// Does [`add_tenant`] with the file of any program.
fn add_tenant_with(spec: &mut Spec, program: &Path, further: &[(String, PathBuf)]) -> Result<()> {
    // That leaves room for a tenant.
    spec.hypervisor()?.add("dom0_mem=1024M,max:1024M");
    let name = program.file_name().and_then(OsStr::to_str).context("a program without a name")?;
    let path = archive(name, program, further, spec)?;
    let kernel = kernel::of(spec.linux.as_deref())?;
    spec.files.push((rootfs::toolstack()?, "/".into()));
    spec.files.push((kernel.image, "/work/vmlinux".into()));
    spec.files.push((path, INITRAMFS.into()));
    Ok(())
}

/// Adds what a network of the control domain and a tenant needs. Returns what the tenant needs for
/// it, as (path in the tenant, path here).
pub(super) fn add_network(spec: &mut Spec) -> Result<Vec<(String, PathBuf)>> {
    let modules = kernel::kernel()?.modules.join("drivers/net");
    let busybox = rootfs::busybox()?;
    spec.files.push((busybox.clone(), "/usr/bin/busybox".into()));
    let back = modules.join("xen-netback/xen-netback.ko");
    spec.files.push((back, "/usr/lib/perfctr/xen-netback.ko".into()));
    let front = modules.join("xen-netfront.ko");
    Ok(vec![
        ("usr/bin/busybox".to_owned(), busybox),
        ("usr/lib/perfctr/xen-netfront.ko".to_owned(), front),
    ])
}

/// Adds what a disk needs that the control domain has in its memory. Returns what the tenant needs
/// for it, as (path in the tenant, path here).
pub(super) fn add_disk(spec: &mut Spec) -> Result<(String, PathBuf)> {
    let modules = kernel::kernel()?.modules.join("drivers/block");
    for (name, path) in [("brd.ko", "brd.ko"), ("xen-blkback.ko", "xen-blkback/xen-blkback.ko")] {
        spec.files.push((modules.join(path), format!("/usr/lib/perfctr/{name}")));
    }
    Ok(("usr/lib/perfctr/xen-blkfront.ko".to_owned(), modules.join("xen-blkfront.ko")))
}

/// Returns the module by which a tenant's programs make hypercalls, and its place in the tenant.
pub(super) fn privcmd() -> Result<(String, PathBuf)> {
    let module = kernel::kernel()?.modules.join("drivers/xen/xen-privcmd.ko");
    Ok(("usr/lib/perfctr/xen-privcmd.ko".to_owned(), module))
}

/// Puts the first contents of a tenant's memory, with its first program, into a file of this name.
/// The tenant is on this machine.
fn archive(
    name: &str,
    program: &Path,
    further: &[(String, PathBuf)],
    spec: &Spec,
) -> Result<PathBuf> {
    let module = guest::module(&kernel::of(spec.linux.as_deref())?, spec.purpose())?;
    let path = cache::scratch(&format!("{name}.cpio"))?;
    let mut archive = Archive::new(BufWriter::new(fs::File::create(&path)?));
    archive.file("init", 0o755, &fs::read(program)?)?;
    for link in rootfs::MERGED {
        archive.symlink(link, format!("usr/{link}").as_bytes())?;
    }
    archive.file("usr/lib/perfctr/perfctr.ko", 0o644, &fs::read(module)?)?;
    for (name, path) in further {
        if path.is_dir() {
            archive.tree(name, path)?;
        } else {
            let mode = path.metadata()?.permissions().mode() & 0o777;
            archive.file(name, mode, &fs::read(path)?)?;
        }
    }
    archive.finish()?;
    Ok(path)
}
