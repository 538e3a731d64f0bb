// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds the project's own programs for the guest: its init, test programs, the kernel module.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::artefacts::kernel::{self, Kernel};
use crate::artefacts::rustobj::{self, Purpose};
use crate::artefacts::sysroot;
use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::chroot::Chroot;
use crate::tools::overlay::{self, Files};
use crate::tools::sh::{self, cmd};
use crate::tools::toolchain;

/// User programs are linked statically, so that they do not depend on this machine's C library.
const USER_TARGET: &str = "x86_64-unknown-linux-gnu";
const STATIC: &[&str] = &["-C", "target-feature=+crt-static"];

/// The separator between cargo's flags, which lets a flag have spaces.
const FLAGS_SEPARATOR: &str = "\x1f";

/// Builds the guest's first program.
pub fn init() -> Result<PathBuf> {
    program("testbed-init", "testbed-init")
}

/// The package whose programs are measured. They are optimised as a user's programs are.
const MEASURED: &str = "benches";

/// Builds a program of a package for the guest, and returns its path. The package's other programs
/// are left as they are, since linking all of them takes minutes.
pub fn program(package: &str, name: &str) -> Result<PathBuf> {
    let profile = if package == MEASURED { "release" } else { "guest" };
    let what = ["--package", package, "--bin", name];
    Ok(build(profile, &what, "target/guest", STATIC)?.join(name))
}

/// Builds a package with its shared libraries and these features, for any machine with the
/// testbed's C library or a newer one.
pub fn dynamic(package: &str, features: &str) -> Result<PathBuf> {
    build("release", &["--package", package, "--features", features], "target/dynamic", &[])
}

/// Builds a program without a library that the suite `stat` and others run. Its source is beside
/// that suite's own.
pub fn beside_stat(source: &str, flags: &[&str]) -> Result<PathBuf> {
    without_library(&sh::project().join("tests/vm/src/bin/stat").join(source), flags)
}

/// Compiles `frames.S`, whose first function is at the address that the tests know. Returns it with
/// its place in the guest.
pub fn frames() -> Result<(PathBuf, String)> {
    Ok((beside_stat("frames.S", &["-Wl,-Ttext=0x401000"])?, "/work/frames".to_owned()))
}

/// Compiles a program that needs no library. It uses the compiler of the testbed's release, since
/// code of another compiler has other counts.
pub fn without_library(source: &Path, flags: &[&str]) -> Result<PathBuf> {
    let name = source.file_name().context("a source is a file")?.to_string_lossy();
    let flags = [&["-nostdlib", "-static", "-no-pie", "-Wall", "-Wextra", "-Werror"], flags];
    let flags = flags.concat().join(" ");
    let key = Key::new("without library 1").path(source)?.text(&flags);
    let program = format!("{name}.elf");
    let dir = cache::artefact(&format!("without-library-{name}"), key, |dir| {
        let compile = |from: &Path, to: &Path| {
            format!("gcc {flags} -o '{}' '{}'", to.display(), from.display())
        };
        let Some(system) = kernel::kernel()?.system else {
            apt::install(&["gcc"], "compiling a program without a library")?;
            let script = compile(source, &dir.join(&program));
            return sh::output(&mut cmd("sh", ["-ec", &script])).map(drop);
        };
        let (from, to) = (format!("/program/{name}"), format!("/program/{program}"));
        let _lock = cache::lock("kbuild")?;
        let debian = Chroot::unpack(&system, &cache::scratch("kbuild")?)?;
        debian.put(&[source], "program")?;
        debian.run(&compile(Path::new(&from), Path::new(&to)))?;
        debian.get(&to, &dir.join(&program))?;
        debian.remove()
    })?;
    Ok(dir.join(program))
}

/// Builds an example of a package for the guest; returns its path.
pub fn example(package: &str, name: &str) -> Result<PathBuf> {
    let what = ["--package", package, "--example", name];
    let built = build("guest", &what, "target/guest", STATIC)?;
    Ok(built.join("examples").join(name))
}

fn build(profile: &str, what: &[&str], target_dir: &str, flags: &[&str]) -> Result<PathBuf> {
    apt::install(&["gcc", "libc6-dev"], "linking programs for the guest")?;
    let target_dir = sh::project().join(target_dir);
    let mut flags: Vec<String> = flags.iter().copied().map(str::to_owned).collect();
    flags.extend(sysroot::options()?.iter().map(|option| format!("-Clink-arg={option}")));
    let mut cargo = toolchain::cargo();
    cargo
        .args(["build", "--quiet", "--profile", profile])
        .args(what)
        .args(["--target", USER_TARGET, "--target-dir"])
        .arg(&target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join(FLAGS_SEPARATOR))
        .current_dir(sh::project());
    sh::run(&mut cargo)?;
    Ok(target_dir.join(USER_TARGET).join(profile))
}

/// Builds the kernel module by the kernel's own rules.
pub fn module(kernel: &Kernel, purpose: Purpose) -> Result<PathBuf> {
    Ok(kbuild(kernel, "module", &module_sources(purpose)?)?.join("perfctr.ko"))
}

/// Builds a module in the directory `$0` with a copy of the headers `$1`, configured without Xen.
const WITHOUT_XEN: &str = "
cp -rL \"$1\" \"$0/headers\"
cd \"$0/headers\"
sed -i '/CONFIG_XEN[_ =]/d' .config include/config/auto.conf include/generated/autoconf.h
make -C . M=\"$0\" modules
rm -r \"$0/headers\"
";

/// Builds the kernel module for the same kernel, configured without Xen, as guests of KVM may have
/// it.
pub fn module_without_xen(kernel: &Kernel) -> Result<PathBuf> {
    const NAME: &str = "module-without-xen";
    let (files, headers) = (module_sources(Purpose::Use)?, kernel::headers(kernel)?);
    let dir = cache::artefact(NAME, key_of_module(kernel, &files), |dir| {
        write(&files, dir)?;
        let mut script = cmd("sh", ["-ec", WITHOUT_XEN]);
        sh::logged(script.arg(dir).arg(&headers), &cache::log(NAME)?)
    })?;
    Ok(dir.join("perfctr.ko"))
}

/// Returns all files that the kernel's rules need to build the module: the C glue and the Rust
/// object.
pub fn module_sources(purpose: Purpose) -> Result<Files> {
    let glue = sh::project().join("guest-kmod/glue");
    ensure!(
        cache::files(&glue)?.iter().any(|f| f.0 == "Kbuild"),
        "{} has no Kbuild",
        glue.display()
    );
    let object = fs::read(rustobj::module(purpose)?)?;
    let mut files = overlay::read(&glue, "")?;
    files.extend(overlay::read(&sh::project().join("shared-abi/include"), "")?);
    files.insert("perfctr_core.o_shipped".into(), object);
    if purpose == Purpose::Fuzzing {
        let fuzzing = sh::project().join("tests/fuzz/coverage");
        files.insert("coverage.c".into(), fs::read(fuzzing.join("linux.c"))?);
        let kbuild = files.entry("Kbuild".into()).or_default();
        kbuild.extend(fs::read(fuzzing.join("linux.kbuild"))?);
    }
    Ok(files)
}

/// Builds the test programs' own kernel modules: one that reads the counters in a guest's kernel
/// (`peek.ko`), and one that names frames as its vCPU's page (`frames.ko`). Returns their
/// directory.
pub fn test_modules(kernel: &Kernel) -> Result<PathBuf> {
    let mut files = overlay::read(&sh::project().join("tests/vm/kmod"), "")?;
    files.extend(overlay::read(&sh::project().join("shared-abi/include"), "")?);
    kbuild(kernel, "test-modules", &files)
}

/// Builds the module that checks the PMU model in and around an SVM guest.
pub fn svm_check(kernel: &Kernel) -> Result<PathBuf> {
    let files = overlay::read(&sh::project().join("testbed/qemu/check/svm"), "")?;
    Ok(kbuild(kernel, "svm-check", &files)?.join("svm-check.ko"))
}

/// Builds a 32-bit kernel, which is alone in its domain.
pub fn kernel_32() -> Result<PathBuf> {
    let (source, include) = ("tests/vm/guest32/guest32.c", "shared-abi/include");
    let [source, include] = [source, include].map(|path| sh::project().join(path));
    let key = Key::new("guest32 1").path(&source)?.path(&include)?;
    let dir = cache::artefact("guest32", key, |dir| {
        apt::install(&["gcc", "libc6-dev"], "building a 32-bit kernel")?;
        let mut gcc = cmd("gcc", ["-m32", "-ffreestanding", "-nostdlib", "-static", "-no-pie"]);
        gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-fno-pie", "-fno-stack-protector"]);
        gcc.args(["-mgeneral-regs-only", "-Wl,-Ttext-segment=0x100000,-e,start"]);
        // The kernel's types are the same for both widths.
        gcc.args(["-isystem", "/usr/include/x86_64-linux-gnu", "-I"]).arg(&include);
        sh::output(gcc.arg("-o").arg(dir.join("guest32")).arg(&source)).map(drop)
    })?;
    Ok(dir.join("guest32"))
}

/// Builds a module from `files`, one of which is its Kbuild. Returns the module's directory.
fn kbuild(kernel: &Kernel, name: &str, files: &Files) -> Result<PathBuf> {
    cache::artefact(name, key_of_module(kernel, files), |dir| {
        write(files, dir)?;
        if let Some(system) = &kernel.system {
            return kbuild_in(system, &kernel.release, dir);
        }
        let headers = kernel::headers(kernel)?;
        let mut make = cmd("make", ["-C"]);
        make.arg(headers).arg(format!("M={}", dir.display())).arg("modules");
        sh::logged(&mut make, &cache::log(name)?)
    })
}

/// Returns a key that changes with the kernel and with each file.
fn key_of_module(kernel: &Kernel, files: &Files) -> Key {
    let key = Key::new("module 1").text(&kernel.release);
    files.iter().fold(key, |key, (name, content)| key.text(name).bytes(content))
}

fn write(files: &Files, dir: &Path) -> Result<()> {
    for (name, content) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap_or(dir))?;
        fs::write(path, content)?;
    }
    Ok(())
}

/// Builds a module in another release's system: that release's headers bring programs that need its
/// C library.
fn kbuild_in(system: &Path, release: &str, dir: &Path) -> Result<()> {
    let work = cache::scratch("kbuild")?;
    let _lock = cache::lock("kbuild")?;
    let debian = Chroot::unpack(system, &work)?;
    let sources: Vec<PathBuf> = fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    debian.put(&sources, "module")?;
    debian.run(&format!("make -C /lib/modules/{release}/build M=/module modules"))?;
    for built in debian.run("ls /module/*.ko")?.lines() {
        fs::copy(debian.path(built), dir.join(built.trim_start_matches("/module/")))?;
    }
    debian.remove()
}
