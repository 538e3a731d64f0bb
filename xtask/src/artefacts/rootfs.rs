// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes the guest's root file system: a small Debian userland in an initramfs.
//!
//! Packages are unpacked, not configured. Where programs need the work of the packages' scripts,
//! this module does it. The archive stays uncompressed, since reading it is cheaper in an emulated
//! machine than decompressing it.

use std::fs::{self, File};
use std::io::BufWriter;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::cpio::Archive;
use crate::tools::sh::{self, cmd};

/// The packages in the guest, beside the libraries that these need.
const PACKAGES: &[&str] = &[
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "findutils",
    "gawk",
    "grep",
    "gzip",
    "hostname",
    "kmod",
    "less",
    "libc-bin",
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "mount",
    "ncurses-base",
    "procps",
    "psmisc",
    "sed",
    "strace",
    "tar",
    "util-linux",
];

/// Packages that these depend on formally, but that no program in the guest needs.
const PACKAGES_LEFT_OUT: &[&str] =
    &["debconf", "dpkg", "libdb5.3", "libperl5.36", "perl", "perl-base", "perl-modules-5.36"];

/// Large files and directories that no program needs to run.
const PATHS_LEFT_OUT: &[&str] = &[
    "usr/share/bash-completion",
    "usr/share/bug",
    "usr/share/common-licenses",
    "usr/share/doc",
    "usr/share/i18n",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/zoneinfo",
];

/// Kernel modules that the guest's init loads, in the order of their dependencies.
pub const BOOT_MODULES: &[&str] = &[
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "drivers/char/virtio_console.ko",
    "arch/x86/kernel/msr.ko",
];

/// Kernel modules that are loaded on Xen, too: hypercalls, event channels and grants for user
/// programs.
pub const XEN_MODULES: &[&str] = &[
    "drivers/xen/xen-privcmd.ko",
    "drivers/xen/xen-evtchn.ko",
    "drivers/xen/xen-gntalloc.ko",
    "drivers/xen/xen-gntdev.ko",
    "drivers/xen/xenfs/xenfs.ko",
];

/// Debian's tools that create further domains, with those libraries that only they need.
const TOOLSTACK: &[&str] = &[
    "libxencall1",
    "libxendevicemodel1",
    "libxenevtchn1",
    "libxenforeignmemory1",
    "libxengnttab1",
    "libxenhypfs1",
    "libxenmisc4.17",
    "libxenstore4",
    "libxentoolcore1",
    "libxentoollog1",
    "libyajl2",
    "xen-utils-4.17",
    "xenstore-utils",
];

/// Files that the tools need for other kinds of domains only.
const TOOLSTACK_LEFT_OUT: &[&str] = &["usr/lib/xen-4.17/boot", "usr/lib/xen-4.17/lib", "usr/share"];

/// Packages that HVM domains need in addition: a device model, firmware and a loader, with the
/// libraries that only they need.
const DEVICE_MODEL: &[&str] = &[
    "libbz2-1.0",
    "libcap2",
    "libdw1",
    "libelf1",
    "libfdt1",
    "libffi8",
    "libglib2.0-0",
    "libgstreamer-plugins-base1.0-0",
    "libgstreamer1.0-0",
    "libjpeg62-turbo",
    "liblz4-1",
    "liblzma5",
    "libmount1",
    "libopus0",
    "liborc-0.4-0",
    "libpcre2-8-0",
    "libpixman-1-0",
    "libsasl2-2",
    "libspice-server1",
    "libssl3",
    "libudev1",
    "libunwind8",
    "libusb-1.0-0",
    "qemu-system-data",
    "qemu-system-xen",
    "seabios",
    "xen-utils-4.17",
    "zlib1g",
];

/// Files that the tools have already, documents, and programs of the libraries' own.
const DEVICE_MODEL_LEFT_OUT: &[&str] = &[
    "etc",
    "usr/bin",
    "usr/lib/xen-4.17/bin",
    "usr/lib/xen-4.17/lib",
    "usr/sbin",
    "usr/share/applications",
    "usr/share/bug",
    "usr/share/doc",
    "usr/share/glib-2.0",
    "usr/share/icons",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
];

/// Linux's `perf`, with those libraries that only it needs.
const PERF: &[&str] = &[
    "libbabeltrace1",
    "libcap2",
    "libdw1",
    "libelf1",
    "libexpat1",
    "libglib2.0-0",
    "libnuma1",
    "libopencsd1",
    "libperl5.36",
    "libpython3.11",
    "libslang2",
    "libunwind8",
    "libuuid1",
    "linux-perf",
];

/// Libraries that `perf` needs where there is no userland, beside those of [`TENANT`].
const PERF_ALONE: &[&str] = &["libbz2-1.0", "libcrypt1", "liblzma5", "libzstd1", "zlib1g"];

/// Documents, and libraries that only its libraries need.
const PERF_LEFT_OUT: &[&str] = &["usr/lib/x86_64-linux-gnu/perl", "usr/share"];

/// rr, which records programs and replays them, with the libraries that only it needs.
const RR: &[&str] = &["libcapnp-0.9.2", "rr", "zlib1g"];

/// Documents, and what records programs of another architecture.
const RR_LEFT_OUT: &[&str] = &[
    "usr/bin/rr-collect-symbols",
    "usr/share/bash-completion",
    "usr/share/doc",
    "usr/share/lintian",
    "usr/share/man",
];

/// Other programs that use perf's events, with those libraries that `perf` does not need: a
/// language for eBPF, which brings a compiler, and an exporter of metrics.
const CLIENTS: &[&str] = &[
    "bpftrace",
    "libbpf1",
    "libbpfcc",
    "libbsd0",
    "libbz2-1.0",
    "libclang1-14",
    "libedit2",
    "libffi8",
    "libicu72",
    "libllvm14",
    "liblzma5",
    "libmd0",
    "libxml2",
    "libz3-4",
    "prometheus-node-exporter",
    "zlib1g",
];

/// Documents, and files of services.
const CLIENTS_LEFT_OUT: &[&str] = &["usr/share", "etc", "var"];

/// Programs to be counted, with those libraries that only they need.
const PROGRAMS: &[&str] = &[
    "bzip2",
    "cpp-12",
    "libbz2-1.0",
    "libexpat1",
    "libgmp10",
    "libisl23",
    "liblzma5",
    "libmpc3",
    "libmpfr6",
    "libpython3.11-minimal",
    "libreadline8",
    "libsqlite3-0",
    "libzstd1",
    "python3.11-minimal",
    "sqlite3",
    "xz-utils",
    "zlib1g",
];

/// Packages that these programs need, and programs of the userland, for a tenant that has nothing
/// else.
const TENANT: &[&str] = &[
    "coreutils",
    "gzip",
    "libacl1",
    "libattr1",
    "libc6",
    "libgcc-s1",
    "libpcre2-8-0",
    "libselinux1",
    "libssl3",
    "libstdc++6",
    "libtinfo6",
];

/// Documents, and conversions between characters.
const TENANT_LEFT_OUT: &[&str] = &["usr/share", "usr/lib/x86_64-linux-gnu/gconv"];

/// Documents.
const PROGRAMS_LEFT_OUT: &[&str] = &["usr/share"];

/// Python with the module that calls C, and pytest, with the libraries that only they need.
const PYTHON: &[&str] = &[
    "libexpat1",
    "libffi8",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "python3-attr",
    "python3-iniconfig",
    "python3-packaging",
    "python3-pluggy",
    "python3-pytest",
    "python3.11-minimal",
    "zlib1g",
];

/// Documents, and modules that pytest does not read.
const PYTHON_LEFT_OUT: &[&str] = &[
    "usr/lib/python3.11/distutils",
    "usr/lib/python3.11/ensurepip",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/pydoc_data",
    "usr/lib/python3.11/sqlite3",
    "usr/lib/python3.11/tkinter",
    "usr/share",
];

/// A debugger, and Python's module that drives one, with the libraries that only they need. They
/// are laid over the tree of Python.
const DEBUGGER: &[&str] = &[
    "gdb",
    "libbabeltrace1",
    "libboost-regex1.74.0",
    "libbrotli1",
    "libbz2-1.0",
    "libcom-err2",
    "libcurl3-gnutls",
    "libdebuginfod1",
    "libdw1",
    "libelf1",
    "libglib2.0-0",
    "libgmp10",
    "libgnutls30",
    "libgssapi-krb5-2",
    "libhogweed6",
    "libicu72",
    "libidn2-0",
    "libipt2",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "libldap-2.5-0",
    "liblzma5",
    "libmpfr6",
    "libncursesw6",
    "libnettle8",
    "libnghttp2-14",
    "libp11-kit0",
    "libpsl5",
    "libpython3.11",
    "libreadline8",
    "librtmp1",
    "libsasl2-2",
    "libsource-highlight4v5",
    "libssh2-1",
    "libtasn1-6",
    "libunistring2",
    "libuuid1",
    "libxxhash0",
    "libzstd1",
    "python3-minimal",
    "python3-pexpect",
    "python3-ptyprocess",
];

/// Documents, and conversions and texts of other languages.
const DEBUGGER_LEFT_OUT: &[&str] = &[
    "etc",
    "usr/share/doc",
    "usr/share/doc-base",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/python3",
];

/// Packages that run a virtual machine on KVM, with those libraries that only they need. The
/// firmware is that of the machine that this runs on.
const VMM: &[&str] = &[
    "libaio1",
    "libbpf1",
    "libcapstone4",
    "libdaxctl1",
    "libelf1",
    "libfdt1",
    "libffi8",
    "libfuse3-3",
    "libglib2.0-0",
    "libgmp10",
    "libgnutls30",
    "libhogweed6",
    "libibverbs1",
    "libidn2-0",
    "libjpeg62-turbo",
    "libkmod2",
    "liblzma5",
    "libndctl6",
    "libnettle8",
    "libnl-3-200",
    "libnl-route-3-200",
    "libnuma1",
    "libp11-kit0",
    "libpixman-1-0",
    "libpmem1",
    "libpng16-16",
    "librdmacm1",
    "libsasl2-2",
    "libseccomp2",
    "libslirp0",
    "libtasn1-6",
    "libudev1",
    "libunistring2",
    "liburing2",
    "libuuid1",
    "libvdeplug2",
    "libzstd1",
    "qemu-system-x86",
    "zlib1g",
];

/// Documents, and the files for another kind of machine.
const VMM_LEFT_OUT: &[&str] = &[
    "usr/share",
    "etc",
    "usr/bin/qemu-system-x86_64-microvm",
    "usr/lib/x86_64-linux-gnu/libibverbs",
];

/// The server that stores what exporters export.
const PROMETHEUS: &[&str] = &["prometheus"];

/// Its tool, documents, and files of services.
const PROMETHEUS_LEFT_OUT: &[&str] = &["usr/bin/promtool", "usr/share", "etc", "var"];

/// Small programs in one, among them a web server, which needs no library.
const BUSYBOX: &[&str] = &["busybox-static"];

/// Documents.
const BUSYBOX_LEFT_OUT: &[&str] = &["usr/share"];

/// Makes the archive with the userland.
pub fn rootfs() -> Result<PathBuf> {
    let key = Key::new("rootfs 2").text(&PACKAGES.join(" ")).text(&PATHS_LEFT_OUT.join(" "));
    let key = key.text(&PACKAGES_LEFT_OUT.join(" "));
    let dir = cache::artefact("rootfs", key, |dir| {
        let mut debs = apt::fetch(PACKAGES, true, dir)?;
        debs.retain(|deb| !PACKAGES_LEFT_OUT.contains(&package_of(deb)));
        let tree = dir.join("tree");
        merged_usr(&tree)?;
        apt::unpack(&debs, &tree)?;
        configure(&tree)?;
        for path in PATHS_LEFT_OUT {
            remove(&tree.join(path))?;
        }
        let out = BufWriter::new(File::create(dir.join("rootfs.cpio"))?);
        let mut archive = Archive::new(out);
        archive.tree("", &tree)?;
        archive.finish()?;
        fs::remove_dir_all(dir.join("debs"))?;
        fs::remove_dir_all(tree)?;
        Ok(())
    })?;
    Ok(dir.join("rootfs.cpio"))
}

/// Makes the directory tree of Xen's tools, which is laid over the userland.
pub fn toolstack() -> Result<PathBuf> {
    tree("toolstack", TOOLSTACK, TOOLSTACK_LEFT_OUT)
}

/// Makes the directory tree of a device model for HVM domains, which is laid over that of Xen's
/// tools.
pub fn device_model() -> Result<PathBuf> {
    tree("device-model", DEVICE_MODEL, DEVICE_MODEL_LEFT_OUT)
}

/// Makes the directory tree of Linux's `perf`, which is laid over the userland.
pub fn perf() -> Result<PathBuf> {
    tree("perf", PERF, PERF_LEFT_OUT)
}

/// Makes the directory tree that is laid over those of [`perf`] and [`tenant`], so that a tenant
/// has all that `perf` needs.
pub fn perf_in_tenant() -> Result<PathBuf> {
    tree("perf-in-tenant", PERF_ALONE, TENANT_LEFT_OUT)
}

/// Makes the directory tree of rr, which is laid over the userland.
pub fn rr() -> Result<PathBuf> {
    tree("rr", RR, RR_LEFT_OUT)
}

/// Makes the directory tree of other programs that use perf's events, which is laid over that of
/// `perf`.
pub fn clients() -> Result<PathBuf> {
    tree("clients", CLIENTS, CLIENTS_LEFT_OUT)
}

/// Makes the directory tree of programs to be counted, which is laid over the userland.
pub fn programs() -> Result<PathBuf> {
    tree("programs", PROGRAMS, PROGRAMS_LEFT_OUT)
}

/// Makes the directory tree of Python and pytest, which is laid over the userland. Their modules
/// are compiled by this machine's Python, since the emulated machine takes a minute to do so.
pub fn python() -> Result<PathBuf> {
    // A module's time may change on the way to the guest, so the time does not decide whether it
    // must be compiled again.
    let compile = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s"];
    finished_tree("python", PYTHON, PYTHON_LEFT_OUT, |tree| {
        let modules = tree.join("usr/lib");
        sh::output(cmd("/usr/bin/python3", compile).arg(tree).arg(modules)).map(drop)
    })
}

/// Makes the directory tree of a debugger that Python drives, which is laid over that of Python.
pub fn debugger() -> Result<PathBuf> {
    tree("debugger", DEBUGGER, DEBUGGER_LEFT_OUT)
}

/// Makes the directory tree that runs a virtual machine, which is laid over the userland.
pub fn vmm() -> Result<PathBuf> {
    tree("vmm", VMM, VMM_LEFT_OUT)
}

/// Makes the directory tree of Prometheus, which is laid over the userland.
pub fn prometheus() -> Result<PathBuf> {
    tree("prometheus", PROMETHEUS, PROMETHEUS_LEFT_OUT)
}

/// Makes the directory tree of a tenant without a userland, over which the programs are laid: it
/// has what they need.
pub fn tenant() -> Result<PathBuf> {
    tree("tenant", TENANT, TENANT_LEFT_OUT)
}

/// Gets the program that is many small programs.
pub fn busybox() -> Result<PathBuf> {
    Ok(tree("busybox", BUSYBOX, BUSYBOX_LEFT_OUT)?.join("usr/bin/busybox"))
}

/// Makes a directory tree from these packages, without some paths.
fn tree(name: &str, packages: &[&str], left_out: &[&str]) -> Result<PathBuf> {
    finished_tree(name, packages, left_out, |_| Ok(()))
}

/// Makes a directory tree from these packages, without some paths, and finishes it.
fn finished_tree(
    name: &str,
    packages: &[&str],
    left_out: &[&str],
    finish: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let key = Key::new("tree 2").text(&packages.join(" ")).text(&left_out.join(" "));
    let dir = cache::artefact(name, key, |dir| {
        let tree = dir.join("tree");
        merged_usr(&tree)?;
        apt::unpack(&apt::fetch(packages, false, dir)?, &tree)?;
        for path in left_out {
            remove(&tree.join(path))?;
        }
        // The userland has these links, and nothing may replace them.
        for link in MERGED {
            fs::remove_file(tree.join(link))?;
        }
        finish(&tree)?;
        Ok(fs::remove_dir_all(dir.join("debs"))?)
    })?;
    Ok(dir.join("tree"))
}

/// Returns the package's name from that of a file `NAME_VERSION_ARCHITECTURE.deb`.
fn package_of(deb: &Path) -> &str {
    let name = deb.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split('_').next().unwrap_or_default()
}

/// The links of a Debian system whose `/bin` and `/lib` have moved below `/usr`.
pub const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

fn merged_usr(tree: &Path) -> Result<()> {
    for name in MERGED {
        fs::create_dir_all(tree.join("usr").join(name))?;
        symlink(format!("usr/{name}"), tree.join(name))?;
    }
    Ok(())
}

/// Does what the packages' installation scripts would have done.
fn configure(tree: &Path) -> Result<()> {
    let etc = tree.join("etc");
    let base = tree.join("usr/share/base-passwd");
    fs::copy(base.join("passwd.master"), etc.join("passwd"))?;
    fs::copy(base.join("group.master"), etc.join("group"))?;
    fs::write(etc.join("hostname"), "testbed\n")?;
    fs::write(etc.join("hosts"), "127.0.0.1 localhost testbed\n")?;
    fs::write(etc.join("nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files\n")?;
    link_if_absent("gawk", &tree.join("usr/bin/awk"))?;
    link_if_absent("dash", &tree.join("usr/bin/sh"))?;
    for dir in ["proc", "sys", "dev", "run", "tmp", "root", "work", "out"] {
        fs::create_dir_all(tree.join(dir))?;
    }
    Ok(())
}

fn link_if_absent(target: &str, link: &Path) -> Result<()> {
    if fs::symlink_metadata(link).is_err() {
        symlink(target, link)?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    if path.is_dir() {
        fs::remove_dir_all(path)?;
    } else if path.exists() {
        fs::remove_file(path)?;
    }
    Ok(())
}
