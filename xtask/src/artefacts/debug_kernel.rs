// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds kernels of Debian's source that check themselves. One reports accesses to memory that the
//! accessor does not own (KASAN), orders of locks that can deadlock (lockdep), and calls that sleep
//! where nothing may sleep. The other one reports that a module's C reads or writes memory which
//! somebody else changes at the same time, without an access that says so (KCSAN).
//!
//! They boot in a guest of KVM. The first one does not boot as a PV guest of Xen: Linux 6.1 builds
//! the function that Xen starts there with KASAN's checks, so the function reads KASAN's shadow
//! memory before there is any.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::rootfs::{BOOT_MODULES, XEN_MODULES};
use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

/// The packages that a kernel is built with.
const PACKAGES: &[&str] =
    &["bc", "bison", "build-essential", "flex", "kmod", "libelf-dev", "libssl-dev", "xz-utils"];

/// A kernel that checks itself.
pub struct DebugKernel {
    /// Its version, as [`super::kernel::of`] takes it.
    pub version: &'static str,
    /// What its release ends in.
    suffix: &'static str,
    /// The options that are switched on.
    options: &'static [&'static str],
    /// The arguments of `make` for the kernel itself. Modules of others are built without them.
    make: &'static [&'static str],
}

/// All of them.
const ALL: [DebugKernel; 2] = [
    DebugKernel {
        version: "6.1-debug",
        suffix: "-debug",
        options: &[
            "KASAN",
            "KASAN_GENERIC",
            "KASAN_OUTLINE",
            "KASAN_VMALLOC",
            "PROVE_LOCKING",
            "DEBUG_ATOMIC_SLEEP",
            "DEBUG_LIST",
            "DEBUG_INFO_NONE",
        ],
        make: &[],
    },
    DebugKernel {
        version: "6.1-kcsan",
        suffix: "-kcsan",
        options: &["KCSAN", "KCSAN_REPORT_RACE_UNKNOWN_ORIGIN", "DEBUG_INFO_NONE"],
        // Linux has many races of its own. So only the module's accesses are watched, and a race
        // with the kernel shows itself as a value that changes meanwhile.
        make: &["KCSAN_SANITIZE=n"],
    },
];

/// Returns the kernel of this version if it is one that checks itself.
pub fn of(version: &str) -> Option<&'static DebugKernel> {
    ALL.iter().find(|kernel| kernel.version == version)
}

/// The parts that are left out, since no virtual machine has them or they take long to build.
const LEFT_OUT: &str = "\
ACCESSIBILITY CHROME_PLATFORMS CRYPTO_HW DCB DEBUG_INFO_BTF \
DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT DMADEVICES EDAC ENCRYPTED_KEYS ETHERNET EVM FB \
FRAMEBUFFER_CONSOLE FUSION GENERIC_PHY HWMON I2C IMA INPUT_MISC INPUT_MOUSE \
INTEGRITY IOMMU_SUPPORT IPV6 LIVEPATCH MD MEMORY MFD_CORE MICROCODE MPLS MPTCP \
NETFILTER NETWORK_FILESYSTEMS NET_SCHED NEW_LEDS PCIEAER PM_DEVFREQ POWERCAP \
POWER_SUPPLY PPS PTP_1588_CLOCK PWM QUOTA REGULATOR SECURITY_APPARMOR \
SECURITY_SELINUX SECURITY_TOMOYO SPI STAGING SURFACE_PLATFORMS TCG_TPM USB_SUPPORT \
VGA_SWITCHEROO VHOST_MENU WAN WATCHDOG WIRELESS WLAN X86_PLATFORM_DEVICES ZSWAP";

/// The directory with the source and the build products, against which modules are built.
pub const TREE: &str = "tree";

impl DebugKernel {
    /// Returns the key of what is built from Debian's kernel of this release.
    pub fn key(&self, release: &str) -> Key {
        let key = Key::new("debug kernel 1").text(release).text(&self.options.join(" "));
        self.make.iter().fold(key.text(LEFT_OUT), |key, argument| key.text(argument))
    }

    /// Builds the kernel from Debian's source, which is in `archive`, and from Debian's
    /// configuration. Leaves in `dir` the same files as in Debian's packages: the boot image and
    /// the modules.
    pub fn build(&self, archive: &Path, config: &Path, dir: &Path) -> Result<()> {
        apt::install(PACKAGES, "building a kernel")?;
        let tree = dir.join(TREE);
        fs::create_dir_all(&tree)?;
        let mut tar = cmd("tar", ["--strip-components=1", "--no-same-owner", "-xf"]);
        sh::output(tar.arg(archive).arg("-C").arg(&tree))?;
        self.configure(config, &tree)?;
        let log = cache::log("debug-kernel")?;
        sh::step("a kernel that watches itself", || {
            let targets = ["bzImage", "modules"];
            let mut make = cmd("make", [&sh::jobs(), "LOCALVERSION="]);
            sh::logged(make.args(targets).args(self.make).current_dir(&tree), &log)
        })?;
        let mut install = cmd("make", ["LOCALVERSION=", "modules_install"]);
        install.arg(format!("INSTALL_MOD_PATH={}", dir.display())).current_dir(&tree);
        sh::logged(&mut install, &log)?;
        let release = fs::read_to_string(tree.join("include/config/kernel.release"))?;
        let release = release.trim();
        fs::create_dir_all(dir.join("boot"))?;
        fs::copy(tree.join("arch/x86/boot/bzImage"), dir.join(format!("boot/vmlinuz-{release}")))?;
        fs::write(dir.join("release"), release)?;
        // This deletes files that are not needed for building modules. The tools of the build stay.
        let mut find = cmd("find", [tree.as_os_str()]);
        find.args(["-type", "f", "-not", "-path", "*/tools/*", "-not", "-path", "*/scripts/*"]);
        find.args(["(", "-name", "*.[aco]", "-o", "-name", "vmlinux*", ")", "-delete"]);
        sh::output(&mut find).map(drop)
    }

    /// Writes the configuration: Debian's, with the checks, without any module but those that the
    /// testbed loads.
    fn configure(&self, debians: &Path, tree: &Path) -> Result<()> {
        fs::copy(debians, tree.join(".config")).context("Debian's configuration")?;
        let mut config = cmd("./scripts/config", ["--set-str", "SYSTEM_TRUSTED_KEYS", ""]);
        config.args(["--set-str", "LOCALVERSION", self.suffix]);
        for option in LEFT_OUT.split_whitespace() {
            config.args(["-d", option]);
        }
        for option in self.options {
            config.args(["-e", option]);
        }
        sh::output(config.current_dir(tree))?;
        // `localmodconfig` keeps the modules of this list, which is in the format of `lsmod`. The
        // list has KVM because KVM's option selects PREEMPT_NOTIFIERS, which the project's module
        // needs.
        let mut loaded = String::from("Module Size Used by\nkvm 1 0\n");
        for module in BOOT_MODULES.iter().chain(XEN_MODULES) {
            let name = Path::new(module).file_stem().context("a module has a name")?;
            loaded += &format!("{} 1 0\n", name.to_string_lossy().replace('-', "_"));
        }
        fs::write(tree.join("loaded"), loaded)?;
        // The command asks about new options. An empty answer takes the default.
        let mut make = cmd("sh", ["-c", "yes '' | make LSMOD=loaded localmodconfig"]);
        sh::logged(make.current_dir(tree), &cache::log("debug-kernel")?)?;
        let written = fs::read_to_string(tree.join(".config"))?;
        for option in self.options {
            let line = format!("CONFIG_{option}=y");
            ensure!(written.lines().any(|found| found == line), "the kernel would not have {line}");
        }
        Ok(())
    }
}
