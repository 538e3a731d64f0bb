// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts Debian's programs that execute the same instructions in user mode in each run. On the
//! bare machine Linux' perf counts each alone. Under Xen the module counts all at once, while
//! threads and vCPUs are moved.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::artefacts::rootfs;
use crate::machine::{self, Spec, Status};
use crate::suites::report::{Report, all};
use crate::tools::cache;

/// Short programs of different kinds. The compiler looks for an optional header, and fails if none
/// of the directories in which it would look exists. So `-I .` names a directory that exists.
pub const COMMANDS: &str = "\
/usr/bin/gzip -9nc words
/usr/bin/bzip2 -c words
/usr/bin/xz -0c -T1 words
/usr/bin/sqlite3 -batch :memory: -init query.sql
/usr/bin/python3.11 -s -S -B words.py
/usr/lib/gcc/x86_64-linux-gnu/12/cc1 -quiet -frandom-seed=0 -O2 -I . -o /dev/null program.i
";
const QUERY: &str = "\
create table t(a integer primary key, b text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000)
insert into t select i, hex(i * 2654435761) from n;
create index u on t(b);
select sum(a), count(distinct substr(b, 1, 3)) from t where b > '4';
";
const PYTHON: &str = "\
words = {}
for n in range(2000):
    word = 'w%x' % (n * 2654435761 % 4093)
    words[word] = words.get(word, 0) + 1
print(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:10])
";
const C: &str = "\
int collatz(unsigned long n) { int steps = 0; \
while (n != 1) { n = n % 2 ? 3 * n + 1 : n / 2; steps++; } return steps; }
int sum(const int *v, int n) { int s = 0; for (int i = 0; i < n; i++) s += v[i] * i; return s; }
void sort(int *v, int n) { for (int i = 1; i < n; i++) { int x = v[i], j = i; \
for (; j && v[j - 1] > x; j--) v[j] = v[j - 1]; v[j] = x; } }
";
/// The number of events that are counted of each program: instructions, branches and cycles.
const EVENTS: usize = 3;
/// How often each program runs in the storm.
const TIMES: usize = 3;

/// Boots two machines.
pub fn run(report: &mut Report) -> Result<()> {
    let dir = files(COMMANDS)?;
    let alone = counted(machine("native", "", &dir)?)?;
    let stormed = counted(machine("pv", &format!(" --storm {TIMES}"), &dir)?)?;
    for command in COMMANDS.lines() {
        let (truth, counts) = (&alone[command], &stormed[command]);
        let (name, times) = (name(command), counts.len());
        report.note(format!("{name}: {truth:?} instructions, branches and cycles, {times} times"));
        report.test(&format!("{name} is counted to the instruction"), || {
            ensure!(truth.len() == 1 && counts.len() >= TIMES, "{truth:?}, {counts:?}");
            ensure!(counts.iter().all(|count| *count == truth[0]), "{truth:?}, not {counts:?}");
            Ok(())
        });
    }
    Ok(())
}

/// Returns the short name of a command.
pub fn name(command: &str) -> &str {
    let program = command.split(' ').next().unwrap_or_default();
    program.rsplit('/').next().unwrap_or_default()
}

/// Returns the directory with these commands and the files that they work on.
pub fn files(commands: &str) -> Result<PathBuf> {
    let dir = cache::scratch("programs")?;
    fs::create_dir_all(&dir)?;
    let words: Vec<u8> = (0..20_000_u32)
        .flat_map(|n| format!("{:x} ", n.wrapping_mul(2_654_435_761) >> 12 & 0xff0f).into_bytes())
        .collect();
    fs::write(dir.join("words"), words)?;
    for (name, text) in
        [("commands", commands), ("query.sql", QUERY), ("words.py", PYTHON), ("program.i", C)]
    {
        fs::write(dir.join(name), text)?;
    }
    Ok(dir)
}

/// Describes a machine that counts the commands.
pub fn machine(topology: &str, options: &str, dir: &Path) -> Result<Spec> {
    let script = format!("/work/programs /work/commands{options}");
    let mut spec = Spec::new(topology, ["sh", "-c", &script])?;
    spec.module = topology == "pv";
    // The code that the kernel maps into programs depends on the machine's clocks.
    spec.topology.linux.push_str(" vdso=0");
    spec.copy.push(dir.to_owned());
    spec.files.push((rootfs::programs()?, "/".into()));
    spec.add_program("vm-tests", "programs")?;
    Ok(spec)
}

/// Returns all counts of each command.
pub fn counted(spec: Spec) -> Result<BTreeMap<String, Vec<[u64; EVENTS]>>> {
    let outcome = machine::run(&spec)?;
    ensure!(outcome.status == Status::Exited(0), "{}", all(&outcome));
    let mut counts = BTreeMap::<_, Vec<_>>::new();
    for line in String::from_utf8_lossy(&outcome.stdout).lines() {
        let words: Vec<&str> = line.splitn(1 + EVENTS, ' ').collect();
        let (command, numbers) = words.split_last().context("an empty line")?;
        let numbers: Vec<u64> = numbers.iter().map(|n| n.parse()).collect::<Result<_, _>>()?;
        let numbers = <[u64; EVENTS]>::try_from(numbers.as_slice()).context("few numbers")?;
        counts.entry((*command).to_owned()).or_default().push(numbers);
    }
    Ok(counts)
}
