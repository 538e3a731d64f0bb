// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes processes of other users, and gives them the device.
#![expect(unsafe_code, reason = "fork, prctl, capset, and setxattr")]

use std::ffi::CStr;
use std::fs::{self, Permissions};
use std::io::{PipeReader, Read, Write, pipe};
use std::os::unix::fs::{PermissionsExt, chown};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Gid, Pid, Uid, fork, setgroups, setresgid, setresuid};
use shared_abi::ioctl::DEVICE_PATH;

/// A user, with the group that an administrator gives the device to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

/// The group that may use the device.
const GROUP: u32 = 65534;

/// User nobody, who may use the device.
pub const NOBODY: User = User { uid: 65534, gid: GROUP };
/// Another user who may use the device.
pub const SOMEBODY: User = User { uid: 4242, gid: GROUP };
/// A user who may not use the device.
pub const STRANGER: User = User { uid: 4343, gid: 4343 };

/// Gives the device to the group, as an administrator does who lets its users count.
///
/// # Errors
///
/// The kernel's error.
pub fn admit(mode: u32) -> Result<()> {
    chown(DEVICE_PATH, Some(0), Some(GROUP)).context(DEVICE_PATH)?;
    fs::set_permissions(DEVICE_PATH, Permissions::from_mode(mode)).context(DEVICE_PATH)
}

/// Makes the calling process one of this user, which processes of that user may trace.
///
/// # Errors
///
/// The kernel's error.
pub fn become_user(user: User) -> Result<()> {
    setgroups(&[])?;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    let_others_look()
}

/// Makes the calling process one of this user that keeps one capability, which is that of
/// [`make_capable`], also when it executes a program.
///
/// # Errors
///
/// The kernel's error.
pub fn become_capable_user(user: User) -> Result<()> {
    // SAFETY: the call only sets a flag of this process.
    ensure!(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) } == 0, "PR_SET_KEEPCAPS");
    become_user(user)?;
    set_capabilities(1 << CAPABILITY)?;
    let raise = libc::PR_CAP_AMBIENT_RAISE;
    // SAFETY: the call only changes the capabilities of this process.
    let raised = unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, CAPABILITY, 0, 0) };
    ensure!(raised == 0, "PR_CAP_AMBIENT_RAISE");
    Ok(())
}

/// Lets other processes of its user look into the calling process.
///
/// # Errors
///
/// The kernel's error.
pub fn let_others_look() -> Result<()> {
    // SAFETY: the call only sets a flag of this process.
    ensure!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) } == 0, "PR_SET_DUMPABLE");
    Ok(())
}

/// Makes the calling thread alone another user's, since the C library's function changes all
/// threads. Others may still look into the process, as into most processes, which a change of users
/// would prevent.
///
/// # Errors
///
/// The kernel's error.
pub fn become_user_alone(uid: u32) -> Result<()> {
    let uid = libc::c_long::from(uid);
    // SAFETY: changes the thread's users and nothing in memory.
    let set = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
    Errno::result(set).context("setresuid")?;
    let_others_look()
}

/// Makes the calling process one that other processes of its user may not look into.
///
/// # Errors
///
/// The kernel's error.
pub fn hide() -> Result<()> {
    // SAFETY: the call only sets a flag of this process.
    ensure!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) } == 0, "PR_SET_DUMPABLE");
    Ok(())
}

/// Makes the calling process one that has no more rights than any other process of its user.
///
/// # Errors
///
/// The kernel's error.
pub fn give_up_capabilities() -> Result<()> {
    set_capabilities(0)
}

/// Gives the calling process these of the first 32 capabilities, and no other one.
fn set_capabilities(capabilities: u32) -> Result<()> {
    /// The third layout, for the calling thread (`struct __user_cap_header_struct`).
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    // Effective, permitted and inheritable ones (two `struct __user_cap_data_struct`).
    let all: [u32; 6] = [capabilities, capabilities, capabilities, 0, 0, 0];
    // SAFETY: the kernel reads a header and capabilities, which have this layout.
    let set = unsafe { libc::syscall(libc::SYS_capset, HEADER.as_ptr(), all.as_ptr()) };
    Errno::result(set).context("capset")?;
    Ok(())
}

/// A capability that users lack: to use ports below 1024 (`CAP_NET_BIND_SERVICE`).
const CAPABILITY: u32 = 10;

/// Gives a program's file a capability that users lack: to use ports below 1024. Every process that
/// executes the program then has it.
///
/// # Errors
///
/// The kernel's error.
pub fn make_capable(program: &CStr) -> Result<()> {
    /// The second layout, in which the capabilities are effective at once: the words of the
    /// permitted and of the inherited ones (`struct vfs_cap_data`).
    const CAPABILITIES: [u32; 5] = [0x0200_0001, 1 << CAPABILITY, 0, 0, 0];
    let words = CAPABILITIES.map(u32::to_le_bytes);
    let (name, bytes) = (c"security.capability".as_ptr(), size_of_val(&words));
    // SAFETY: the strings end with 0, and the words have this many bytes.
    let set = unsafe { libc::setxattr(program.as_ptr(), name, words.as_ptr().cast(), bytes, 0) };
    Errno::result(set).with_context(|| format!("{program:?}"))?;
    Ok(())
}

/// A forked process, which prints its error.
#[derive(Debug)]
pub struct Child {
    /// Its number.
    pub pid: Pid,
    printed: PipeReader,
}

impl Child {
    /// Forks. The child calls `act` and ends.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn fork(act: impl FnOnce() -> Result<()>) -> Result<Self> {
        let (printed, mut to_parent) = pipe()?;
        // SAFETY: no other thread of this program runs now, so the child may do anything.
        match unsafe { fork()? } {
            ForkResult::Child => {
                drop(printed);
                let code = match act() {
                    Ok(()) => 0,
                    Err(error) => {
                        write!(to_parent, "{error:#}").ok();
                        1
                    }
                };
                // SAFETY: this ends the process at once, as a process must that shares buffers.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => Ok(Self { pid: child, printed }),
        }
    }

    /// Waits for its end. Fails with the error that it has printed.
    ///
    /// # Errors
    ///
    /// The error that the child has printed, or how else it ended.
    pub fn join(mut self) -> Result<()> {
        let status = waitpid(self.pid, None)?;
        let mut why = String::new();
        self.printed.read_to_string(&mut why)?;
        match status {
            WaitStatus::Exited(_, 0) => Ok(()),
            WaitStatus::Exited(_, 1) if !why.is_empty() => bail!(why),
            status => bail!("the process ended otherwise: {status:?} {why}"),
        }
    }

    /// Kills it, and waits for its end.
    ///
    /// # Errors
    ///
    /// The child has been waited for already.
    pub fn kill(self) -> Result<()> {
        kill(self.pid, Signal::SIGKILL)?;
        waitpid(self.pid, None)?;
        Ok(())
    }
}

/// Calls `act` as another user, and waits for its end.
///
/// # Errors
///
/// What went wrong in the other process.
pub fn as_user(user: User, act: impl FnOnce() -> Result<()>) -> Result<()> {
    Child::fork(|| {
        become_user(user)?;
        act()
    })?
    .join()
}

/// Waits until `holds` returns true, at most five seconds.
///
/// # Errors
///
/// It did not in that time.
pub fn wait_until(mut holds: impl FnMut() -> bool, what: &str) -> Result<()> {
    for _ in 0..5000 {
        if holds() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("waited for {what} in vain")
}
