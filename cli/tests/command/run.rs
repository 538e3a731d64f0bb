// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the command with a PMU that needs no hardware.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::json;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// Returns the path of a file of this test run.
pub fn file(name: impl AsRef<Path>) -> PathBuf {
    let directory = Path::new(TMP).join(format!("command-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    directory.join(name)
}

/// Builds the library that is preloaded: with it, hardware events count the time that their threads
/// execute. Unit: ns.
fn soft_pmu() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("soft_pmu.c", &["-shared", "-fPIC"]))
}

/// Builds the program `calls.c`, which has two threads and a child process.
pub fn calls() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("calls.c", &["-O1", "-pthread"]))
}

/// Builds what is beside this file in C, with these options, and returns where it is.
pub fn build(source: &str, options: &[&str]) -> PathBuf {
    let built = file(source).with_extension("");
    let source = format!("{}/tests/command/{source}", env!("CARGO_MANIFEST_DIR"));
    compile(&[options, &[&source]].concat(), &built);
    built
}

/// Has the C compiler make the file `to` with these arguments.
pub fn compile(arguments: &[&str], to: &Path) {
    let status = Command::new("cc").args(arguments).arg("-o").arg(to).status().unwrap();
    assert!(status.success(), "cc {arguments:?}");
}

/// Returns the command with these arguments.
pub fn perfctr<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perfctr"));
    command.env("LD_PRELOAD", soft_pmu()).args(arguments);
    command
}

/// The output of a command and its exit status.
#[derive(Debug)]
pub struct Printed {
    /// The status as shells tell it: 128 and the signal if one has ended the command.
    pub status: i32,
    pub out: String,
    pub err: String,
}

/// Runs a command line that is split at spaces.
pub fn run(line: &str) -> Printed {
    output_of(&mut perfctr(line.split(' ')))
}

pub fn output_of(command: &mut Command) -> Printed {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let status = status.code().or_else(|| Some(128 + status.signal()?)).unwrap();
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    Printed { status, out, err }
}

/// Writes a baseline by which a benchmark had this many events.
pub fn set_baseline(path: &Path, name: &str, count: u64) {
    let events = json!({ "instructions:u": { "min": count, "max": count } });
    let baseline = json!({
        "format": "perfctr baseline", "version": 1,
        "benchmarks": { name: { "events": events }, "another": { "events": {} } },
    });
    fs::write(path, baseline.to_string()).unwrap();
}

/// A process that has said that it is ready, and is ended when this is dropped.
pub struct Process(Child);

impl Process {
    /// Starts a shell that executes this after it has printed a line.
    pub fn shell(script: &[u8]) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let mut command = Command::new("sh");
        command.arg("-c").arg(OsStr::from_bytes(script)).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = child.stdout.take().unwrap();
        assert_ne!(BufReader::new(output).read_line(&mut String::new()).unwrap(), 0);
        Self(child)
    }

    /// Starts a shell of this name that executes all the time.
    pub fn busy(name: &[u8]) -> Self {
        let octal: String = name.iter().map(|byte| format!("\\{byte:03o}")).collect();
        let script = format!("printf '{octal}' >/proc/$$/comm; echo; while :; do :; done");
        Self::shell(script.as_bytes())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Writes a program that ends when this process and its children have executed for 200 ms
    /// more, however long that takes on a busy machine, and returns the program's path.
    ///
    /// The process's name may not have spaces.
    pub fn waiter(&self) -> String {
        let pid = self.pid();
        let program = file(format!("until-{pid}-has-executed"));
        // proc_pid_stat(5): times in user mode and in the kernel, then the children's. Unit: 10 ms.
        let script = format!(
            "#!/bin/sh\n\
             read_ticks() {{\n\
             set -- $(cat /proc/{pid}/stat)\n\
             ticks=$((${{14}} + ${{15}} + ${{16}} + ${{17}}))\n\
             }}\n\
             read_ticks\n\
             end=$((ticks + 20))\n\
             while [ $ticks -lt $end ]; do sleep 0.05; read_ticks; done\n"
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        program.display().to_string()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Returns a number that no process has.
pub fn nobody() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}
