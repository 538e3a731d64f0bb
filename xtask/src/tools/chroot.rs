// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A Debian system that is a directory, and commands in it.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::tools::sh::{self, cmd};

/// What every command has for its environment.
const ENVIRONMENT: [&str; 3] =
    ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8"];

/// A system's directory, whose files are root's.
pub struct Chroot {
    dir: PathBuf,
}

impl Chroot {
    /// Unpacks a system from an archive, in place of what was in `dir`.
    pub fn unpack(archive: &Path, dir: &Path) -> Result<Self> {
        let chroot = Self { dir: dir.to_owned() };
        chroot.remove()?;
        sh::as_root(cmd("mkdir", ["-p"]).arg(dir))?;
        let mut tar = cmd("tar", ["-x", "--numeric-owner", "-p", "-f"]);
        sh::as_root(tar.arg(archive).arg("-C").arg(dir))?;
        Ok(chroot)
    }

    /// Where a file of it is.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.dir.join(inside.trim_start_matches('/'))
    }

    /// Copies files into its directory `to`, which holds nothing else afterwards.
    pub fn put<P: AsRef<Path>>(&self, files: &[P], to: &str) -> Result<()> {
        let to = self.path(to);
        sh::as_root(cmd("rm", ["-rf"]).arg(&to))?;
        sh::as_root(cmd("mkdir", ["-p"]).arg(&to))?;
        let mut copy = cmd("cp", ["-r", "-t"]);
        copy.arg(&to);
        for file in files {
            copy.arg(file.as_ref());
        }
        sh::as_root(&mut copy).map(drop)
    }

    /// Runs a shell's script as root, with processes of its own and without a network, until a
    /// command fails; gives what it wrote, error messages included.
    pub fn run(&self, script: &str) -> Result<String> {
        let mut unshare = cmd("unshare", ["--mount", "--pid", "--fork", "--kill-child", "--net"]);
        unshare.arg("--root").arg(&self.dir).args(["--mount-proc", "env", "-i"]);
        unshare.args(ENVIRONMENT).args(["sh", "-ec", &format!("exec 2>&1; cd /; {script}")]);
        let out = sh::root_command(&unshare)?.output()?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        ensure!(out.status.success(), "{script}\n{}\n{said}", out.status);
        Ok(said)
    }

    /// Removes it.
    pub fn remove(&self) -> Result<()> {
        sh::as_root(cmd("rm", ["-rf", "--one-file-system"]).arg(&self.dir)).map(drop)
    }
}
