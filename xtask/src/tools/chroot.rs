// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs commands in a Debian system that is a directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tools::apt;
use crate::tools::sh::{self, cmd};

/// The environment of every command.
const ENVIRONMENT: [&str; 3] =
    ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8"];

/// The size of a disk. Its image is sparse, and takes room only for what is written.
const DISK_SIZE: &str = "8G";

/// A script that mounts a disk on a directory, with devices, in a mount namespace of its own, and
/// runs a command. The loop device's number has two digits, since GRUB's scripts replace other loop
/// devices by their files. The device is freed when the last command has ended.
const WITH_DISK: &str = r#"
n=10
until losetup "/dev/loop$n" "$1" 2> /dev/null; do n=$((n + 1)); test $n -lt 99; done
mount "/dev/loop$n" "$2"
losetup -d "/dev/loop$n"
mount --rbind /dev "$2/dev"
shift 2
"$@"
"#;

/// A script that runs a command in a system as on a machine: with this machine's devices, network
/// and certificates, and its way to Debian's mirrors. The system's root is a mount point, as on
/// every machine.
const AS_MACHINE: &str = r#"
mount --bind "$1" "$1"
for dir in dev sys etc/ssl/certs; do mount --rbind "/$dir" "$1/$dir"; done
mount -t proc proc "$1/proc"
cp -L /etc/resolv.conf /etc/hosts "$1/etc"
reached='^Acquire::(https?|Check-Valid-Until)'
apt-config dump | grep -E "$reached" > "$1/etc/apt/apt.conf.d/90machine" || true
exec chroot "$@"
"#;

/// A system's directory. Its files belong to root.
pub struct Chroot {
    dir: PathBuf,
    /// Its file system's image, if it has one of its own.
    disk: Option<PathBuf>,
}

impl Chroot {
    /// Unpacks a system from an archive, in place of what was in `dir`.
    pub fn unpack(archive: &Path, dir: &Path) -> Result<Self> {
        let chroot = Self { dir: dir.to_owned(), disk: None };
        chroot.remove()?;
        sh::as_root(cmd("mkdir", ["-p"]).arg(dir))?;
        chroot.fill(archive)
    }

    /// Returns the system that was unpacked from this archive into `dir` earlier, in its present
    /// state, or unpacks it.
    pub fn kept(archive: &Path, dir: &Path) -> Result<Self> {
        let name = dir.file_name().context("a system has a directory")?.to_string_lossy();
        let unpacked = dir.with_file_name(format!("{name}.unpacked"));
        let from = archive.to_string_lossy();
        if fs::read_to_string(&unpacked).is_ok_and(|text| text == from) {
            return Ok(Self { dir: dir.to_owned(), disk: None });
        }
        fs::remove_file(&unpacked).ok();
        let chroot = Self::unpack(archive, dir)?;
        fs::write(unpacked, from.as_bytes())?;
        Ok(chroot)
    }

    /// Unpacks a system on a disk of its own, which boot loaders need.
    pub fn on_disk(archive: &Path, dir: &Path) -> Result<Self> {
        apt::install(&["e2fsprogs"], "a file system for a whole Debian")?;
        let disk = dir.with_extension("disk");
        let chroot = Self { dir: dir.to_owned(), disk: Some(disk.clone()) };
        chroot.remove()?;
        sh::as_root(cmd("mkdir", ["-p"]).arg(dir.join("dev")))?;
        sh::as_root(cmd("truncate", ["-s", DISK_SIZE]).arg(&disk))?;
        let mut format = cmd("mkfs.ext4", ["-q", "-F", "-E", "root_owner=0:0"]);
        sh::as_root(format.arg("-d").arg(dir).arg(&disk))?;
        chroot.fill(archive)
    }

    fn fill(self, archive: &Path) -> Result<Self> {
        let mut tar = cmd("tar", ["-x", "--numeric-owner", "-p", "-f"]);
        tar.arg(archive).arg("-C").arg(&self.dir);
        if self.disk.is_some() {
            tar.arg("--exclude=./dev/*");
        }
        sh::as_root(&mut self.seen_by(tar))?;
        Ok(self)
    }

    /// Returns a command of this machine's that sees the system's files.
    fn seen_by(&self, command: Command) -> Command {
        let Some(disk) = &self.disk else { return command };
        let mut with = cmd("unshare", ["--mount", "sh", "-ec", WITH_DISK, "sh"]);
        with.arg(disk).arg(&self.dir).arg(command.get_program()).args(command.get_args());
        with
    }

    /// Copies a file of the system to `to`.
    pub fn get(&self, file: &str, to: &Path) -> Result<()> {
        let mut copy = cmd("cp", ["--no-preserve=all"]);
        copy.arg(self.path(file)).arg(to);
        sh::as_root(&mut self.seen_by(copy)).map(drop)
    }

    /// Returns the path of a file of the system, if it has no disk of its own.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.dir.join(inside.trim_start_matches('/'))
    }

    /// Copies files into the system's directory `to`, which holds nothing else afterwards.
    pub fn put<P: AsRef<Path>>(&self, files: &[P], to: &str) -> Result<()> {
        let script = "to=$0; rm -rf \"$to\"; mkdir -p \"$to\"; cp -r -t \"$to\" \"$@\"";
        let mut copy = cmd("sh", ["-ec", script]);
        copy.arg(self.path(to)).args(files.iter().map(AsRef::as_ref));
        sh::as_root(&mut self.seen_by(copy)).map(drop)
    }

    /// Runs a shell script as root on a machine with this system, whose environment also has these
    /// variables. The output is appended to `log`.
    pub fn run_on_machine(&self, script: &str, variables: &[&str], log: &Path) -> Result<()> {
        let mut unshare = cmd("unshare", ["--mount", "--pid", "--fork", "--kill-child"]);
        unshare.args(["sh", "-ec", AS_MACHINE, "sh"]).arg(&self.dir).args(["env", "-i"]);
        unshare.args(ENVIRONMENT).args(variables).args(["sh", "-ec", script]);
        sh::logged(&mut sh::root_command(&unshare)?, log)
    }

    /// Runs a shell script as root, with processes of its own and without a network, until a
    /// command fails. Returns the output, with error messages.
    pub fn run(&self, script: &str) -> Result<String> {
        let mut unshare = cmd("unshare", ["--mount", "--pid", "--fork", "--kill-child", "--net"]);
        unshare.arg("--root").arg(&self.dir).args(["--mount-proc", "env", "-i"]);
        unshare.args(ENVIRONMENT).args(["sh", "-ec", &format!("exec 2>&1; cd /; {script}")]);
        let out = sh::root_command(&self.seen_by(unshare))?.output()?;
        let printed = String::from_utf8_lossy(&out.stdout).into_owned();
        // These are the messages of `unshare` itself.
        let refused = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "{script}\n{}\n{refused}{printed}", out.status);
        Ok(printed)
    }

    /// Removes the system.
    pub fn remove(&self) -> Result<()> {
        let mut remove = cmd("rm", ["-rf", "--one-file-system"]);
        sh::as_root(remove.arg(&self.dir).args(&self.disk)).map(drop)
    }
}
