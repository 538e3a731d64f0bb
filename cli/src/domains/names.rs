// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds the names that the host's tools have given virtual machines.
//!
//! A process can call itself what it likes: anybody can start one with the arguments of a machine,
//! and change them later. So a name is *verified* only if nobody but the host's root can have given
//! it, and nothing that depends on a name uses another one.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use perfctr_gate::text::harmless;

/// The names that Xen's toolstack has given domains, by their numbers.
pub type Names = HashMap<u32, String>;

/// What `xl` appends to the name of a domain that migrates to this host.
const INCOMING: &str = "--incoming";

/// The name of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub text: String,
    /// Whether only the host's root can have given it.
    pub verified: bool,
}

/// The text behind a name that somebody other than root may have given.
const UNVERIFIED: &str = " (unverified)";

impl Name {
    /// Returns the name as it is shown.
    pub fn shown(&self) -> String {
        harmless(&self.text) + if self.verified { "" } else { UNVERIFIED }
    }

    /// Gives a domain of Xen that migrates to this host the name that it will have: until it goes
    /// on, `xl` calls it otherwise.
    pub fn arrive(&mut self) {
        let name = self.text.strip_suffix(INCOMING).map_or(self.text.len(), str::len);
        self.text.truncate(name);
    }
}

/// Returns the names that Xen's toolstack knows, if there is a toolstack.
pub fn names_of_xl() -> Names {
    let listed = Command::new("xl").arg("list").output();
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, number) = (words.next()?, words.next()?.parse().ok()?);
        Some((number, name.to_owned()))
    };
    listed.unwrap_or_default().lines().filter_map(parse).collect()
}

/// Returns the name of the machine that this process runs. `proc` is the directory of its files.
///
/// systemd names the control group that it makes for a machine of libvirt's, and nobody but root
/// moves a process there or out of it. That name is the machine's. For any other process, its
/// arguments state the machine's name. That name is verified if the process is root's and is in no
/// container: it has the process numbers and the users of this program.
pub fn name_of_process(proc: &Path, id: u32) -> Option<Name> {
    let of = |process: &str, file: &str| {
        let bytes = fs::read(proc.join(process).join(file)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = |file| of(&id.to_string(), file);
    if let Some(text) = text("cgroup").and_then(|groups| groups.lines().find_map(name_of_group)) {
        return Some(Name { text, verified: true });
    }
    let users = text("uid_map").filter(|users| !users.is_empty());
    let verified = text("status").is_some_and(|status| is_roots(&status) && is_here(&status))
        && users.is_some_and(|users| of("self", "uid_map") == Some(users));
    let text = name_of_arguments(text("cmdline")?.split('\0'))?;
    Some(Name { text, verified })
}

/// Parses the machine's name in a line of `/proc/PID/cgroup`, such as
/// `0::/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/emulator`.
///
/// All scopes that a user's own systemd makes are below the service in which this systemd runs. So
/// if only slices contain a scope, the host's systemd has made it.
fn name_of_group(line: &str) -> Option<String> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if number != "0" && controllers != "name=systemd" {
        return None;
    }
    let mut units = path.strip_prefix('/')?.split('/').skip_while(|unit| unit.ends_with(".slice"));
    let escaped = units.next()?.strip_prefix("machine-")?.strip_suffix(".scope")?;
    let registered = unescape(escaped)?;
    let (number, name) = registered.strip_prefix("qemu-")?.split_once('-')?;
    number.parse::<u32>().ok()?;
    Some(name.to_owned())
}

/// Replaces systemd's substitutes, such as `\x2d`, for characters that unit names cannot have.
fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split(r"\x");
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// Returns whether `/proc/PID/status` says that every user of the process is root.
fn is_roots(status: &str) -> bool {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    users.is_some_and(|users| users.split_whitespace().eq(["0"; 4]))
}

/// Returns whether this `/proc/PID/status` is of a process in the same namespace of process numbers
/// as this `/proc`. Such a process has one number. One in a namespace below has another one there.
///
/// `/proc/PID/ns` says the same, but the service that allows machines may not read it: it executes
/// without root's capabilities.
fn is_here(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() == 1)
}

/// Parses the name that QEMU's arguments give its machine, in `-name NAME,...` or `-name
/// guest=NAME,...`.
fn name_of_arguments<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut options = words.skip_while(|word| !matches!(*word, "-name" | "--name")).skip(1);
    let mut parts = options.next()?.split(',');
    let first = parts.clone().next().filter(|first| !first.contains('='));
    let named = || parts.find_map(|part| part.strip_prefix("guest="));
    Some(first.or_else(named)?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const ROOT: &str = "Name:\tqemu\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nNSpid:\t7\n";
    /// All users, as the first namespace maps them.
    const ALL_USERS: &str = "         0          0 4294967295\n";
    const USER: &str = "Name:\tqemu\nUid:\t1000\t1000\t1000\t1000\n";
    const SESSION: &str = "0::/user.slice/user-1000.slice/session-3.scope\n";

    /// Processes as files of a test.
    struct Proc(PathBuf);

    impl Proc {
        fn new(test: &str) -> Self {
            let name = format!("perfctr-names-{test}-{}", std::process::id());
            let proc = Self(std::env::temp_dir().join(name));
            proc.write("self", "uid_map", ALL_USERS);
            proc
        }

        fn write(&self, process: &str, file: &str, text: &str) {
            let directory = self.0.join(process);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(file), text).unwrap();
        }

        fn add(&self, id: u32, arguments: &str, status: &str, cgroup: &str) {
            let process = id.to_string();
            self.write(&process, "cmdline", &arguments.replace(' ', "\0"));
            self.write(&process, "status", status);
            self.write(&process, "cgroup", cgroup);
            self.write(&process, "uid_map", ALL_USERS);
        }

        fn name(&self, id: u32) -> Option<(String, bool)> {
            name_of_process(&self.0, id).map(|name| (name.text, name.verified))
        }
    }

    impl Drop for Proc {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn named(text: &str, verified: bool) -> Option<(String, bool)> {
        Some((text.to_owned(), verified))
    }

    #[test]
    fn arguments_name_a_machine_for_root_only() {
        let proc = Proc::new("arguments");
        let arguments = "qemu-system-x86_64 -name guest=web,debug-threads=on -m 1G";
        proc.add(7, arguments, ROOT, "0::/system.slice/mine.service\n");
        proc.add(8, arguments, USER, SESSION);
        proc.add(9, arguments, USER, "0::/system.slice/apache2.service\n");
        proc.add(10, "cat -m 1G", ROOT, SESSION);
        let names = [7, 8, 9, 10, 11].map(|id| proc.name(id));
        assert_eq!(
            names,
            [named("web", true), named("web", false), named("web", false), None, None]
        );
        // A program that became another user, or that may become root again, is not root's.
        for (id, users) in
            ["0\t1000\t0\t0", "1000\t0\t0\t0", "0\t0\t1000\t0", "0\t0\t0\t1000"].iter().enumerate()
        {
            let id = 20 + id as u32;
            proc.add(id, arguments, &format!("Uid:\t{users}\nNSpid:\t{id}\n"), SESSION);
            assert_eq!(proc.name(id), named("web", false), "{users}");
        }
        proc.add(30, arguments, "", "");
        assert_eq!(proc.name(30), named("web", false));
    }

    #[test]
    fn arguments_name_a_machine_for_root_outside_of_containers_only() {
        let proc = Proc::new("contained");
        let (arguments, group) = ("qemu-system-x86_64 -name web", "0::/docker/1\n");
        let users = "Uid:\t0\t0\t0\t0\n";
        for (id, numbers, map, verified) in [
            (7, "NSpid:\t7\n", ALL_USERS, true),
            (8, "NSpid:\t8\t1\n", ALL_USERS, false),
            (9, "NSpid:\t9\t2\t1\n", ALL_USERS, false),
            (10, "NSpid:\t10\n", "         0          0          1\n", false),
            // A kernel that does not say it, or a process that ends meanwhile.
            (11, "", ALL_USERS, false),
            (12, "NSpid:\n", ALL_USERS, false),
            (13, "NSpid:\t13\n", "", false),
        ] {
            proc.add(id, arguments, &format!("{users}{numbers}"), group);
            proc.write(&id.to_string(), "uid_map", map);
            assert_eq!(proc.name(id), named("web", verified), "{id}");
        }
        proc.write("self", "uid_map", "");
        assert_eq!(proc.name(13), named("web", false), "nobody knows it of either");
    }

    #[test]
    fn linux_says_which_processes_are_in_containers() {
        let printed = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let files = ["cat", "/proc/self/status", "/proc/self/uid_map"];
        let here = printed(files[0], &files[1..]);
        let there = printed("unshare", &[&["-U", "-r", "-p", "-f"], &files[..]].concat());
        assert!(is_here(&here), "{here}");
        assert!(!is_here(&there), "{there}");
        assert_ne!(here.lines().last(), there.lines().last());
    }

    #[test]
    fn systemd_names_libvirts_machines_whatever_their_arguments_say() {
        let proc = Proc::new("registered");
        let imitates = "qemu-system-x86_64 -name guest=mail -uuid 1-2-3";
        for (id, (group, name)) in [
            (r"0::/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/emulator", "web"),
            (r"0::/machine.slice/machine-qemu\x2d12\x2dweb\x2d2.example.scope", "web-2.example"),
            (r"0::/machine.slice/machine-shop.slice/machine-qemu\x2d1\x2dweb.scope", "web"),
            (r"1:name=systemd:/machine.slice/machine-qemu\x2d1\x2dweb.scope", "web"),
            (
                "4:cpu:/elsewhere\n1:name=systemd:/machine.slice/machine-qemu\\x2d1\\x2dweb.scope",
                "web",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let id = id as u32;
            proc.add(id, imitates, USER, &format!("{group}\n"));
            assert_eq!(proc.name(id), named(name, true), "{group}");
        }
    }

    #[test]
    fn a_group_that_a_user_can_make_names_nobody() {
        let proc = Proc::new("imitated");
        let imitates = "qemu-system-x86_64 -name guest=mail -uuid 1-2-3";
        let user = "/user.slice/user-1000.slice/user@1000.service";
        let scope = r"machine-qemu\x2d1\x2dweb.scope";
        for (id, group) in [
            // A user's own systemd makes slices and scopes with any name.
            format!("0::{user}/machine.slice/{scope}"),
            format!("0::{user}/{scope}"),
            format!("1:name=systemd:{user}/machine.slice/{scope}"),
            // Whole other hierarchies may belong to users.
            format!("4:cpu:/machine.slice/{scope}"),
            format!("0::/system.slice/docker.service/{scope}"),
            format!("0::machine.slice/{scope}"),
            // systemd-nspawn's containers have no number.
            r"0::/machine.slice/machine-web.scope".to_owned(),
            r"0::/machine.slice/machine-qemu\x2dweb\x2d1.scope".to_owned(),
            r"0::/machine.slice/machine-qemu\x2d1\x2dweb.service".to_owned(),
            r"0::/machine.slice/machine-qemu\x2d1\x2dw\xzzeb.scope".to_owned(),
            r"0::/machine.slice/machine-qemu\x2d1\x2dweb\x2.scope".to_owned(),
        ]
        .iter()
        .enumerate()
        {
            let id = id as u32;
            proc.add(id, imitates, USER, &format!("{group}\n"));
            assert_eq!(proc.name(id), named("mail", false), "{group}");
        }
    }

    #[test]
    fn machines_are_called_what_qemu_was_told() {
        let name = |line: &str| name_of_arguments(line.split(' '));
        assert_eq!(name("qemu -name guest=web,debug-threads=on -m 1G").unwrap(), "web");
        assert_eq!(name("qemu -m 1G -name web,debug-threads=on").unwrap(), "web");
        assert_eq!(name("qemu -name debug-threads=on,guest=web").unwrap(), "web");
        for nameless in ["qemu -m 1G", "qemu -name", "qemu -name debug-threads=on"] {
            assert_eq!(name(nameless), None, "{nameless}");
        }
    }
}
