// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Uses Debian's Xen tools as an administrator does, and runs the program of a tenant that the
//! tools create.

use std::fs;
use std::io::{ErrorKind, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use serde_json::{Value, json};

use crate::xen::TOOLS;

/// Directories that the packages' installation would have made.
const DIRECTORIES: [&str; 6] = [
    "/var/lib/xen",
    "/var/lib/xenstored",
    "/var/log/xen",
    CONSOLES,
    "/var/run/xen",
    "/var/run/xenstored",
];
/// The folder in which the console daemon writes what each domain says.
const CONSOLES: &str = "/var/log/xen/console";
const STORE_SOCKET: &str = "/var/run/xenstored/socket";

/// A tenant's kernel, the same kernel for firmware, a 32-bit kernel that needs nothing more, and
/// the memory's first contents for the first two.
const KERNEL: &str = "/work/vmlinux";
const BOOT_IMAGE: &str = "/work/vmlinuz";
const KERNEL_32: &str = "/work/guest32";
const INITRAMFS: &str = "/work/tenant.cpio";
/// First contents that also have the kernel and the contents which the tenant starts next.
const INITRAMFS_OF_STARTER: &str = "/work/starter.cpio";

/// Arguments of the tenant's kernel.
const ARGUMENTS: &str =
    "console=hvc0 quiet panic=-1 oops=panic nmi_watchdog=0 sysctl.kernel.watchdog_thresh=60";

/// The configuration of a device model without a display, a sound card and the like.
const HEADLESS: &str = "vga = \"none\"\nvnc = 0\nnographic = 1\nusb = 0\n";

/// A tenant's memory, unless it needs more.
const MEMORY_MIB: u32 = 256;

/// The beginning of each line that a tenant's program sends to the control domain.
const MARK: &str = "tenant: ";

/// How long a tenant may take to boot and to say something. Emulation is slow.
const PATIENCE: Duration = Duration::from_secs(200);
/// The same time if firmware boots a kernel, which unpacks itself.
const PATIENCE_WITH_FIRMWARE: Duration = Duration::from_secs(2000);
const POLL: Duration = Duration::from_millis(20);

/// Starts the programs that the tools need.
///
/// # Errors
///
/// The error says why a tool failed.
pub fn start() -> Result<()> {
    for directory in DIRECTORIES {
        fs::create_dir_all(directory).with_context(|| directory.to_owned())?;
    }
    tool("xenstored", &[])?;
    wait_for(|| Ok(Path::new(STORE_SOCKET).exists().then_some(()))).context("xenstored")?;
    tool("xen-init-dom0", &[])?;
    tool("xenconsoled", &["--log=guest", &format!("--log-dir={CONSOLES}")])
}

/// Runs one of the tools to its end, or until it has become a daemon.
fn tool(name: &str, arguments: &[&str]) -> Result<()> {
    // A daemon keeps its standard error open, so that must not be a pipe whose end somebody awaits.
    let log = format!("/var/log/xen/{name}");
    let log = || fs::File::options().create(true).append(true).open(&log);
    let program = Path::new(TOOLS).join(name);
    let status = Command::new(&program).args(arguments).stdout(log()?).stderr(log()?).status();
    let status = status.with_context(|| program.display().to_string())?;
    let printed = || fs::read_to_string(format!("/var/log/xen/{name}")).unwrap_or_default();
    ensure!(status.success(), "{name} {}: {status}\n{}", arguments.join(" "), printed());
    Ok(())
}

/// Waits for the usual time until `look` finds something.
fn wait_for<T>(look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    wait(POLL, PATIENCE, look)
}

/// Calls `look` from time to time, until it finds something.
fn wait<T>(
    between: Duration,
    patience: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(start.elapsed() < patience, "nothing after {} s", patience.as_secs());
        sleep(between);
    }
}

/// Returns the file in which the console daemon writes what domains of this name say.
fn log(name: &str) -> PathBuf {
    Path::new(CONSOLES).join(format!("guest-{name}.log"))
}

/// Returns Xen's number of a domain.
fn number(name: &str) -> Result<u16> {
    let printed = Command::new(Path::new(TOOLS).join("xl")).args(["domid", name]).output()?;
    String::from_utf8_lossy(&printed.stdout).trim().parse().context("xl domid")
}

/// How a tenant reads the time-stamp counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tsc {
    /// By the instruction itself.
    Native,
    /// From Xen, which makes the instruction fault.
    Emulated,
}

/// How a tenant is virtualised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Its own kernel executes in ring 3.
    Pv,
    /// The CPU virtualises it, without a device model.
    Pvh,
    /// The CPU virtualises it, with a device model and firmware.
    Hvm,
    /// It is as [`Pvh`](Self::Pvh), with a 32-bit kernel that has only one role.
    #[value(skip)]
    Pvh32,
}

impl Kind {
    /// Returns the kind in words for people.
    pub const fn described(self) -> &'static str {
        match self {
            Self::Pv => "a tenant",
            Self::Pvh => "a PVH tenant",
            Self::Hvm => "an HVM tenant",
            Self::Pvh32 => "a 32-bit PVH tenant",
        }
    }
}

/// The domain that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// How it is virtualised.
    pub kind: Kind,
    /// The name that its administrator gives it.
    pub name: &'a str,
    /// How many virtual CPUs it has.
    pub vcpus: usize,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// How it reads the time-stamp counter.
    pub tsc: Tsc,
    /// Whether it starts another kernel, in which case the tool has to wait for its end.
    pub starts_another: bool,
    /// Further lines of its configuration.
    pub config: &'a str,
    /// Further arguments of its kernel.
    pub linux: &'a str,
    /// What its program does.
    pub role: &'a str,
}

impl<'a> Wanted<'a> {
    /// Describes a domain with the usual memory, and nothing further.
    pub const fn usual(kind: Kind, name: &'a str, vcpus: usize, tsc: Tsc, role: &'a str) -> Self {
        Self {
            kind,
            name,
            vcpus,
            memory_mib: MEMORY_MIB,
            tsc,
            starts_another: false,
            config: "",
            linux: "",
            role,
        }
    }
}

/// An unprivileged domain.
#[derive(Debug)]
pub struct Tenant {
    name: String,
    /// Xen's number of it.
    pub domain: u16,
    /// What was written to its console before it was migrated.
    earlier: String,
    /// The number of lines that it has said and that were read.
    heard: usize,
    /// How long it may take to say the next.
    patience: Duration,
}

impl Tenant {
    /// Creates a PV domain whose program has this role. It is paused.
    ///
    /// # Errors
    ///
    /// The error says why the tool failed.
    pub fn create(name: &str, vcpus: usize, tsc: Tsc, role: &str) -> Result<Self> {
        Self::create_kind(Kind::Pv, name, vcpus, tsc, role)
    }

    /// Creates a domain of any kind. It is paused.
    ///
    /// # Errors
    ///
    /// The error says why the tool failed.
    pub fn create_kind(kind: Kind, name: &str, vcpus: usize, tsc: Tsc, role: &str) -> Result<Self> {
        Self::create_wanted(&Wanted::usual(kind, name, vcpus, tsc, role))
    }

    /// Creates the domain that is described. It is paused.
    ///
    /// # Errors
    ///
    /// The error says why the tool failed.
    pub fn create_wanted(wanted: &Wanted<'_>) -> Result<Self> {
        let Wanted { kind, name, vcpus, memory_mib, tsc, starts_another, .. } = *wanted;
        let Wanted { config: further, linux, role, .. } = *wanted;
        let initramfs = if starts_another { INITRAMFS_OF_STARTER } else { INITRAMFS };
        let arguments = format!("{ARGUMENTS} {linux} -- {role}");
        let kernel = if kind == Kind::Hvm { BOOT_IMAGE } else { KERNEL };
        let linux =
            format!("kernel = \"{kernel}\"\nramdisk = \"{initramfs}\"\nextra = \"{arguments}\"\n");
        let patience = if kind == Kind::Hvm { PATIENCE_WITH_FIRMWARE } else { PATIENCE };
        let (kind, kernel) = match kind {
            Kind::Pv => ("pv", linux),
            Kind::Pvh => ("pvh", linux),
            Kind::Hvm => ("hvm", linux + HEADLESS),
            Kind::Pvh32 => ("pvh", format!("kernel = \"{KERNEL_32}\"\n")),
        };
        let tsc_mode = match tsc {
            Tsc::Native => "native",
            Tsc::Emulated => "always_emulate",
        };
        let config = format!("/run/{name}.cfg");
        let text = format!(
            "name = \"{name}\"\ntype = \"{kind}\"\n{kernel}memory = {memory_mib}\nvcpus = {vcpus}\n\
             tsc_mode = \"{tsc_mode}\"\n{further}\n"
        );
        fs::write(&config, text)?;
        // This removes the output of another domain of this name.
        match fs::remove_file(log(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => (),
        }
        // The tool need not wait for the domain's end to destroy it, since this program does that.
        let options = if starts_another { "-qp" } else { "-qpe" };
        let created = tool("xl", &["create", options, &config]);
        created.with_context(|| {
            fs::read_to_string(format!("/var/log/xen/qemu-dm-{name}.log")).unwrap_or_default()
        })?;
        let (domain, earlier) = (number(name)?, String::new());
        Ok(Self { name: name.to_owned(), domain, earlier, heard: 0, patience })
    }

    /// Sends a value to its program, which reads a line from its console.
    ///
    /// # Errors
    ///
    /// The console is not there.
    pub fn send(&self, what: &Value) -> Result<()> {
        let key = format!("/local/domain/{}/console/tty", self.domain);
        // A domain that was just restored has no console at first.
        let path = wait_for(|| {
            let printed =
                Command::new("xenstore-read").arg(&key).output().context("xenstore-read")?;
            let path = String::from_utf8(printed.stdout)?;
            Ok((!path.trim().is_empty()).then_some(path))
        })?;
        let mut console = fs::File::options().write(true).open(path.trim()).context(path)?;
        Ok(writeln!(console, "{what}")?)
    }

    /// Tells its program to do something, by a name and a text, and returns its answer.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send) and [`receive`](Self::receive).
    pub fn request(&mut self, what: &str, text: &str) -> Result<Value> {
        self.send(&json!([what, text]))?;
        self.receive()
    }

    /// Takes all its vCPUs from their CPUs, until it is unpaused.
    ///
    /// # Errors
    ///
    /// The error says why the tool failed.
    pub fn pause(&self) -> Result<()> {
        tool("xl", &["pause", &self.name])
    }

    /// Lets it execute again.
    ///
    /// # Errors
    ///
    /// The error says why the tool failed.
    pub fn unpause(&self) -> Result<()> {
        tool("xl", &["unpause", &self.name])
    }

    /// Waits for the next value that its program says.
    ///
    /// # Errors
    ///
    /// The domain has crashed, or says nothing for a long time.
    pub fn receive(&mut self) -> Result<Value> {
        self.receive_within(POLL, self.patience)
    }

    /// Does the same within this time. It looks once in each interval, because a look itself takes
    /// CPU time.
    ///
    /// # Errors
    ///
    /// The errors of [`receive`](Self::receive).
    pub fn receive_within(&mut self, between: Duration, patience: Duration) -> Result<Value> {
        let line = wait(between, patience, || {
            let text = self.console();
            let crash = text.find("Kernel panic");
            ensure!(crash.is_none(), "it has crashed");
            Ok(printed(&text).nth(self.heard).map(str::to_owned))
        });
        self.heard += 1;
        line.and_then(|line| serde_json::from_str(&line).context(line)).with_context(|| {
            let xl = fs::read_to_string(format!("/var/log/xen/xl-{}.log", self.name));
            format!("{} has said:\n{}{}", self.name, self.console(), xl.unwrap_or_default())
        })
    }

    /// Returns whether everything that its program has said was read.
    pub fn is_silent(&self) -> bool {
        printed(&self.console()).nth(self.heard).is_none()
    }

    /// Saves it to a file and lets it continue.
    ///
    /// # Errors
    ///
    /// The error says why the tool failed.
    pub fn checkpoint(&self) -> Result<()> {
        let file = self.image();
        tool("xl", &["save", "-c", &self.name, &file])?;
        Ok(fs::remove_file(file)?)
    }

    /// Saves it to a file, which ends it, and restores a domain from the file. The new domain is
    /// paused.
    ///
    /// # Errors
    ///
    /// The error says why the tool failed.
    pub fn save_and_restore(&mut self) -> Result<()> {
        let file = self.image();
        self.save(&file)?;
        self.domain = Self::restore(&self.name, &file)?.domain;
        Ok(fs::remove_file(file)?)
    }

    /// Saves it to this file, which ends it.
    ///
    /// # Errors
    ///
    /// The error says why the tool failed.
    pub fn save(&self, file: &str) -> Result<()> {
        tool("xl", &["save", &self.name, file])
    }

    /// Restores a domain from the file of one with this name, perhaps on another host. It is
    /// paused.
    ///
    /// # Errors
    ///
    /// The error says why the tool failed.
    pub fn restore(name: &str, file: &str) -> Result<Self> {
        tool("xl", &["restore", "-e", "-p", file])?;
        let (domain, earlier) = (number(name)?, String::new());
        Ok(Self { name: name.to_owned(), domain, earlier, heard: 0, patience: PATIENCE })
    }

    /// Migrates it to this very host while it executes, with Debian's own tools at both ends. It
    /// continues there at once, unless it has to be paused. The host sees it as another domain.
    ///
    /// # Errors
    ///
    /// The error says why a tool failed.
    pub fn migrate(&mut self, paused: bool) -> Result<()> {
        let receive = format!("{TOOLS}/xl migrate-receive -e{}", if paused { " -p" } else { "" });
        // The command is given instead of a host's name and a shell. It is the program that would
        // be started on that host.
        tool("xl", &["-vv", "migrate", "-s", "", &self.name, &receive])
            .with_context(|| format!("{} has said:\n{}", self.name, self.console()))?;
        self.earlier = self.console();
        // The daemon still writes to the file of the domain's first name.
        fs::rename(log(&format!("{}--incoming", self.name)), log(&self.name))?;
        self.domain = number(&self.name)?;
        Ok(())
    }

    /// Returns how much memory it has, as the tool says. Unit: MiB.
    ///
    /// # Errors
    ///
    /// The tool's error.
    pub fn memory(&self) -> Result<u32> {
        Ok(self.listed(Column::Memory)?.parse()?)
    }

    /// Makes it give memory back, or take it, until the tool shows this size. Unit: MiB.
    ///
    /// # Errors
    ///
    /// The tool's error, or the domain does not reach this size.
    pub fn set_memory(&self, mib: u32, listed: u32) -> Result<()> {
        tool("xl", &["mem-set", &self.name, &mib.to_string()])?;
        let mut found = 0;
        wait_for(|| {
            found = self.memory()?;
            Ok((found == listed).then_some(()))
        })
        .with_context(|| format!("{found} MiB found, {listed} expected"))
    }

    /// Waits until it has shut itself down, whether it starts again or not.
    ///
    /// # Errors
    ///
    /// The domain does not shut down.
    pub fn shut_down(&self) -> Result<()> {
        wait_for(|| Ok(self.listed(Column::State)?.contains('s').then_some(())))
    }

    /// Returns what the tool prints about it in a column.
    fn listed(&self, column: Column) -> Result<String> {
        let printed =
            Command::new(Path::new(TOOLS).join("xl")).args(["list", &self.name]).output()?;
        let printed = String::from_utf8(printed.stdout)?;
        let line = printed.lines().last().context("xl list says nothing")?;
        let word = line.split_whitespace().nth(column as usize);
        Ok(word.with_context(|| line.to_owned())?.to_owned())
    }

    /// Tells its kernel that it may use this many of its vCPUs.
    ///
    /// # Errors
    ///
    /// The tool's error.
    pub fn set_vcpus(&self, vcpus: usize) -> Result<()> {
        tool("xl", &["vcpu-set", &self.name, &vcpus.to_string()])
    }

    fn image(&self) -> String {
        format!("/run/{}.saved", self.name)
    }

    /// Destroys it, whatever it is doing.
    ///
    /// # Errors
    ///
    /// The error says why the tool failed.
    pub fn destroy(self) -> Result<()> {
        tool("xl", &["destroy", &self.name])
    }

    /// Returns everything that was written to its console.
    fn console(&self) -> String {
        let since = fs::read_to_string(log(&self.name));
        self.earlier.clone() + &since.unwrap_or_default()
    }
}

/// The columns of `xl list`: name, ID, memory, vCPUs, state, time.
#[derive(Clone, Copy)]
enum Column {
    Memory = 2,
    State = 4,
}

/// Returns a program's output in the text of its domain's console.
fn printed(console: &str) -> impl Iterator<Item = &str> {
    // A line without its end is still being written.
    let lines = console.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.filter_map(|line| line.trim_end().strip_prefix(MARK))
}

/// Runs as the first program of a tenant: mounts the kernel's file systems, calls `act`, reports
/// why it failed if it did, and switches the domain off.
///
/// # Errors
///
/// The domain cannot be switched off.
pub fn live(act: impl FnOnce() -> Result<()>) -> Result<ExitCode> {
    if let Err(error) = mount_all().and_then(|()| act()) {
        send(&json!({ "error": format!("{error:#}") }));
    }
    // The console has taken all output before this returns from the hypervisor.
    match reboot(RebootMode::RB_POWER_OFF)? {}
}

/// Mounts the kernel's file systems.
fn mount_all() -> Result<()> {
    for (kind, target) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        fs::create_dir_all(target)?;
        mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>).context(target)?;
    }
    Ok(())
}

/// Mounts the file system with the module's statistics.
///
/// # Errors
///
/// The kernel's error.
pub fn mount_statistics() -> Result<()> {
    let (kind, target) = ("debugfs", "/sys/kernel/debug");
    mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>).context(target)
}

/// Sends a value to the control domain, which reads it. It is for a tenant.
pub fn send(what: &Value) {
    println!("{MARK}{what}");
}

/// Returns the next value that the control domain sends. It is for a tenant.
///
/// # Errors
///
/// The console is not there, or the line is not JSON.
pub fn receive() -> Result<Value> {
    let mut line = String::new();
    // The console ends lines in several ways.
    while line.trim().is_empty() {
        line.clear();
        stdin().read_line(&mut line)?;
    }
    serde_json::from_str(line.trim()).context(line)
}
