// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests groups of processes: CPUs count what a group executes.

use std::process::Command;

use anyhow::{Result, ensure};
use vm_tests::cgroup::Cgroup;
use vm_tests::step::Held;

use crate::Machine;
use crate::stat::equal;
use crate::tool::{
    EVENTS, LONG, LONG_EXECUTED, LOOP, LOOP_EXECUTED, Row, RunningPerf, executed, held, rows,
};

/// Tests `-G` and `--for-each-cgroup`: each group's programs are counted, and nothing else.
pub fn each(machine: &Machine) -> Result<()> {
    let groups = [Cgroup::new("one")?, Cgroup::new("two")?];
    let names = "one,two";
    let [instructions, branches] = ["instructions:u", "branches:u"];
    let twice = [instructions, instructions, branches, branches].join(",");
    let by_event = ["-x,", "-a", "-e", &twice, "-G", "one,two,one,two"];
    let by_group = ["-x,", "-a", "-e", EVENTS, "--for-each-cgroup", names];
    for options in [&by_event[..], &by_group] {
        machine.disturbed(|| {
            let programs = held(&[LOOP, LONG, LOOP])?;
            for (group, program) in groups.iter().zip(&programs) {
                group.add(program.pid())?;
            }
            let counted = rows(&crate::tool::watch_programs("stat", options, programs)?, 0);
            for (group, truth) in groups.iter().zip([LOOP_EXECUTED, LONG_EXECUTED]) {
                equal(executed(&of_group(&counted, group))?, truth, &counted)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn of_group(rows: &[Row], group: &Cgroup) -> Vec<Row> {
    rows.iter().filter(|row| row.more.first().is_some_and(|of| of == group.name)).cloned().collect()
}

/// Checks two counts of perf's own benchmark, which starts dozens of processes in a group: the
/// count of CPUs for the group has to equal the count of an event that these processes inherit.
pub fn inherited(machine: &Machine) -> Result<()> {
    let group = Cgroup::new("bench")?;
    let bench = ["bench", "sched", "messaging", "-g", "1", "-l", "1"];
    machine.disturbed(|| {
        let program = Held::start(Command::new("perf").args(bench))?;
        group.add(program.pid())?;
        let options = ["-x,", "-a", "-e", EVENTS, "--for-each-cgroup", group.name];
        let cpus = RunningPerf::start("stat", &options)?;
        let pid = program.pid().to_string();
        let processes = RunningPerf::start("stat", &["-x,", "-e", EVENTS, "-p", &pid])?;
        program.run()?;
        let [processes, cpus] = [processes.end()?, cpus.end()?].map(|printed| rows(&printed, 0));
        let (inherited, on_cpus) = (executed(&processes)?, executed(&of_group(&cpus, &group))?);
        ensure!(inherited == on_cpus, "{inherited:?} of processes, {on_cpus:?} of CPUs");
        Ok(())
    })
}
