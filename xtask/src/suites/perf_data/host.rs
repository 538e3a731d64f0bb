// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares what Debian's perf finds in the file of a host's profile with what `perfctr report`
//! finds in the profile itself.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::Bench;
use crate::tools::sh::{self, cmd};

/// Where Xen's code begins.
const XENS: u64 = 0xffff_82d0_4020_0000;
/// Where a kernel's code begins.
const KERNELS: u64 = 0xffff_ffff_8100_0000;
/// The hypervisor's file: `cli/tests/command/hypervisor.c`, and its functions.
const FILE: &str = "xen-syms";
const FUNCTIONS: [&str; 2] = ["schedule", "do_softirq"];
/// The samples that were lost.
const LOST: u64 = 5;

/// Samples by the virtual CPU, the mode as perf shows it, and the function, if that has a name.
type Rows = BTreeMap<(String, char, Option<String>), u64>;

impl Bench {
    /// Compares a profile in which Xen has named its functions with perf's file.
    pub fn host_by_names(&self) -> Result<()> {
        let symbol = |n: u64, name: &str| {
            let start = XENS + 0x20 * n;
            json!({"start": start, "end": start + 0x20, "name": name})
        };
        let named = [symbol(0, FUNCTIONS[0]), symbol(1, FUNCTIONS[1])];
        let module = json!({"path": "[xen]", "build_id": "cd", "symbols": named});
        let starts = [XENS, XENS + 0x20];
        self.compare(&profile(module, starts), |function| format!("{function} [xen]"))
    }

    /// Compares a profile whose hypervisor functions are in a file, and makes perf notice a
    /// different file.
    pub fn host_by_file(&self) -> Result<()> {
        self.link("0xffff82d040200000")?;
        let path = self.dir.join(FILE);
        let sections = sh::output(cmd("readelf", ["-SWn"]).arg(&path))?;
        let text = sections.lines().find_map(|line| line.split_once(" .text ")?.1.into());
        let text: Vec<&str> = text.context("no .text")?.split_whitespace().collect();
        let ["PROGBITS", address, offset, size, ..] = *text else { bail!("{text:?}") };
        ensure!(hex(address)? == XENS, "{text:?}");
        let id = sections.lines().find_map(|line| Some(line.split_once("Build ID: ")?.1));
        let symbols = sh::output(cmd("nm", [""; 0]).arg(&path))?;
        let address = |name: &str| {
            let symbol = symbols.lines().find(|line| line.ends_with(&format!(" T {name}")));
            hex(symbol.and_then(|line| line.split(' ').next()).context("no such function")?)
        };
        let starts = [address(FUNCTIONS[0])?, address(FUNCTIONS[1])?];
        let code = [json!({"offset": hex(offset)?, "size": hex(size)?, "address": XENS})];
        let id = id.context("no build-id")?;
        let module = json!({"path": path, "build_id": id, "code": code});
        self.compare(&profile(module, starts), str::to_owned)?;
        // Another link has another build-id.
        self.link("0xffff82d040201000")?;
        let perf = rows_of_perf(&self.perf_report(&["report"])?)?;
        let named = |(_, _, function): &&(String, char, Option<String>)| {
            function.as_deref().is_some_and(|function| FUNCTIONS.contains(&function))
        };
        let modes: Vec<char> = perf.keys().filter(named).map(|key| key.1).collect();
        // The control domain's kernel has a function of this name, too.
        ensure!(modes == ['k'], "perf has taken names from another file: {perf:?}");
        Ok(())
    }

    fn link(&self, address: &str) -> Result<()> {
        let source = sh::project().join("cli/tests/command/hypervisor.c");
        let text = format!("-Wl,-Ttext={address}");
        let flags = ["-O1", "-static", "-nostdlib", "-no-pie", "-fno-pie", "-mcmodel=kernel"];
        let mut gcc = cmd("gcc", flags);
        gcc.args(["-Wl,--build-id", &text, "-o"]).arg(self.dir.join(FILE)).arg(source);
        sh::output(&mut gcc)?;
        Ok(())
    }

    /// Makes perf report the file that perfctr has written, with these words.
    fn perf_report(&self, words: &[&str]) -> Result<String> {
        let mut perf = cmd("perf", words);
        perf.args(["-i", "host.data", "--stdio", "-n", "--sort", "comm,sym"]);
        sh::output(perf.args(["--field-separator", "|"]).current_dir(&self.dir))
    }

    /// Writes the profile, and compares. `name` says how perf names the hypervisor's functions.
    fn compare(&self, profile: &Value, name: impl Fn(&str) -> String) -> Result<()> {
        fs::write(self.dir.join("host.profile"), profile.to_string())?;
        let write = ["report", "-i", "host.profile", "-f", "perf", "-o", "host.data"];
        sh::output(&mut self.perfctr(&write))?;
        let table = ["report", "-i", "host.profile", "-s", "thread,layer,symbol"];
        let ours = rows(&sh::output(&mut self.perfctr(&table))?, name)?;
        // Those who also want guests ask for them.
        let guest = |key: &(String, char, Option<String>)| matches!(key.1, 'g' | 'u');
        ensure!(ours.keys().any(guest), "no guest in {ours:?}");
        let report = self.perf_report(&["kvm", "--host", "--guest", "report"])?;
        let theirs = rows_of_perf(&report)?;
        ensure!(theirs == ours, "{theirs:?} by perf, {ours:?} here\n{report}");
        let hosts: Rows = ours.iter().filter(|(key, _)| !guest(key)).map(owned).collect();
        let report = self.perf_report(&["report"])?;
        let theirs = rows_of_perf(&report)?;
        ensure!(theirs == hosts, "{theirs:?} by perf, {hosts:?} here\n{report}");
        ensure!(report.contains(&format!("# Total Lost Samples: {LOST}\n")), "{report}");
        Ok(())
    }
}

fn hex(digits: &str) -> Result<u64> {
    u64::from_str_radix(digits, 16).with_context(|| digits.to_owned())
}

fn owned<K: Clone, V: Copy>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), *value)
}

/// Returns the profile of a host with samples in each layer. The hypervisor's module has functions
/// at these addresses.
fn profile(mut hypervisor: Value, functions: [u64; 2]) -> Value {
    hypervisor["layer"] = "hypervisor".into();
    let place = |path: &str, layer: &str, symbols: &Value| {
        let id = Value::Null;
        json!({"path": path, "build_id": id, "layer": layer, "symbols": symbols})
    };
    let (none, kernels) = (
        json!([]),
        json!([
            {"start": KERNELS, "end": KERNELS + 0x20, "name": "do_idle"},
            {"start": KERNELS + 0x20, "end": KERNELS + 0x80, "name": "schedule"},
        ]),
    );
    let modules = [
        hypervisor,
        place("[kernel]", "kernel", &kernels),
        place("[kernel of domain 3]", "kernel", &none),
        place("[user mode of domain 0]", "user", &none),
        place("[user mode of domain 3]", "user", &none),
    ];
    let frames = [
        (0, functions[0] + 4),
        (0, functions[1] + 5),
        // No function is there.
        (0, XENS - 0x1000),
        (1, KERNELS + 3),
        (1, KERNELS + 0x25),
        (2, KERNELS + 0x30),
        (3, 0x7f00_0000_1000),
        (4, 0x40_1000),
        (4, 0x10),
    ];
    let threads = [(0, 0, "Domain-0"), (0, 1, "Domain-0"), (3, 0, "web"), (32767, 1, "idle")];
    let stacks = [
        (0, 0, 0, 7),
        (1, 1, 1, 5),
        (0, 0, 3, 4),
        (1, 1, 4, 3),
        (0, 1, 6, 6),
        (2, 1, 0, 9),
        (2, 0, 5, 8),
        (2, 1, 7, 11),
        (2, 1, 8, 1),
        (3, 1, 2, 13),
    ];
    let frames = frames.map(|(module, address)| json!({"module": module, "address": address}));
    let threads =
        threads.map(|(pid, tid, name)| json!({"pid": pid, "tid": tid, "name": name, "count": 0}));
    let mut time = 0;
    let stacks = stacks.map(|(thread, cpu, frame, samples): (_, _, _, u64)| {
        let times: Vec<u64> = (time..time + samples).collect();
        time += samples;
        json!({"thread": thread, "cpu": cpu, "frames": [frame], "samples": samples, "times": times})
    });
    json!({
        "format": "perfctr profile", "version": 1, "command": [], "provider": "xen",
        "event": "instructions", "period": 100_003, "call_graph": false, "unobserved": 0,
        "lost": LOST, "machine": {"host": "h", "release": "6.1", "cpus": 1},
        "host": {
            "hypervisor": "Xen 4.17", "build_id": null, "cpus": [0, 1], "tsc": 5,
            "tsc_per_second": 1_000_000_000,
        },
        "modules": modules, "frames": frames, "threads": threads, "stacks": stacks,
    })
}

/// Returns the rows of perfctr's table, in perf's words.
fn rows(table: &str, name: impl Fn(&str) -> String) -> Result<Rows> {
    let mut rows = Rows::new();
    for line in table.lines() {
        let mut words = line.split_whitespace();
        let (Some(samples), Some(_)) = (words.next(), words.next()) else { continue };
        let words: Vec<&str> = words.collect();
        let [domain, "vCPU", vcpu, layer, function @ ..] = &*words else { continue };
        let (domain, vcpu, function) = (*domain, *vcpu, function.join(" "));
        let mode = match (*layer, domain) {
            ("hypervisor", _) | ("kernel", "Domain-0") => 'k',
            ("kernel", _) => 'g',
            ("user", "Domain-0") => '.',
            _ => 'u',
        };
        let function = Some(function).filter(|function| !function.starts_with('['));
        let function = function.map(|f| if *layer == "hypervisor" { name(&f) } else { f.clone() });
        *rows.entry((format!("{domain} vCPU {vcpu}"), mode, function)).or_default() +=
            samples.parse::<u64>()?;
    }
    Ok(rows)
}

/// Returns the rows of perf's table: share, samples, thread, mode and function.
fn rows_of_perf(table: &str) -> Result<Rows> {
    let mut rows = Rows::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, samples, thread, symbol] = *words else { continue };
        let symbol = symbol.strip_prefix('[').and_then(|symbol| symbol.split_once("] "));
        let (mode, function) = symbol.with_context(|| line.to_owned())?;
        let mode = mode.chars().next().with_context(|| line.to_owned())?;
        let function = Some(function).filter(|function| !function.starts_with("0x"));
        *rows.entry((thread.to_owned(), mode, function.map(str::to_owned))).or_default() +=
            samples.parse::<u64>()?;
    }
    Ok(rows)
}
