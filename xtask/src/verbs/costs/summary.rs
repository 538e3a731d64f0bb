// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The table of all operations, each in each kind of guest, beside everybody who can do it. It is
//! made of the rows of the other tables.

use super::places::Guest;
use super::places::Implementation::{self, KvmMediated, KvmPmu, Library, Linux, Perf, XenVpmu};
use super::reasons::{NOISE, NONE, REASONS};
use super::{Costs, READS, Subject, noise, total, written};
use crate::suites::noise::NOISE_PERCENT;

/// An operation, which has a line for each kind of guest.
struct Operation {
    /// The table that it is in.
    table: &'static str,
    /// What distinguishes it from the others of that table.
    detail: &'static str,
    /// What the table's rows about it have in the first column. If somebody can do the operation in
    /// several ways, the cheapest counts.
    hows: &'static [&'static str],
    /// Who can do it as well, but is not measured.
    unmeasured: &'static [Implementation],
}

const fn operation(
    table: &'static str,
    detail: &'static str,
    hows: &'static [&'static str],
    unmeasured: &'static [Implementation],
) -> Operation {
    Operation { table, detail, hows, unmeasured }
}

/// Everybody but the library.
const OTHERS: &[Implementation] = &[Perf, XenVpmu, KvmPmu, KvmMediated, Linux];

const OPERATIONS: &[Operation] = &[
    operation(
        READS,
        "1 counter",
        &[
            "libperfctr, 1 counter",
            "perf_event, rdpmc, 1 counter",
            "perf_event, read(2), 1 counter",
        ],
        &[Perf, XenVpmu],
    ),
    operation(
        READS,
        "1 counter without the TSC",
        &["libperfctr without the TSC, 1 counter", "perf_event, rdpmc without the TSC, 1 counter"],
        &[Perf, XenVpmu, KvmPmu, KvmMediated],
    ),
    operation(
        READS,
        "4 counters",
        &["libperfctr, 4 counters", "perf_event, rdpmc, 4 counters"],
        &[Perf, XenVpmu, KvmPmu, KvmMediated],
    ),
    operation(
        READS,
        "by a system call",
        &["ioctl of /dev/perfctr, all counters", "perf_event, read(2), 1 counter"],
        &[Perf, XenVpmu],
    ),
    operation(
        "a sample",
        "a signal for each",
        &["libperfctr, a signal for each", "perf_event, a signal for each"],
        &[],
    ),
    operation(
        "a sample",
        "a record for each",
        &["libperfctr, records in a ring", "perf_event, records in memory"],
        &[],
    ),
    operation(
        "a sample",
        "a record for each instruction",
        &["libperfctr, a record for each instruction", "perf_event, a record for each instruction"],
        &[],
    ),
    operation(
        "a null system call",
        "4 counters",
        &["libperfctr, 4 counters", "perf_event, 4 counters"],
        &[],
    ),
    operation("a switch", "counting", &["libperfctr, counting", "perf_event, counting"], &[]),
    operation("a switch", "sampling", &["libperfctr, sampling", "perf_event, sampling"], &[]),
    operation("a switch", "a third thread counts", &["none, a third thread counts"], OTHERS),
    operation(
        "a switch",
        "a third thread has stopped",
        &["none, a third thread has stopped"],
        OTHERS,
    ),
    operation("a switch", "two users, both counting", &["two users, both counting"], OTHERS),
    operation("a switch", "two users, one counting", &["two users, one counting"], OTHERS),
    operation("a switch", "the module, nobody counts", &["the module, nobody counts"], &[]),
    operation(
        "a switch of vCPUs",
        "counting",
        &["libperfctr, counting", "perf_event, counting"],
        &[],
    ),
    operation(
        "a switch of vCPUs",
        "the option profile, nobody samples",
        &["the option profile, nobody samples"],
        &[],
    ),
    operation(
        "a switch of vCPUs",
        "the option profile, libperfctr counting",
        &["the option profile, libperfctr counting"],
        &[],
    ),
    operation(
        "a switch of vCPUs",
        "somebody samples the host",
        &["somebody samples the host"],
        &[],
    ),
    operation("an exit without a switch", "nobody counts", &["nobody counts"], &[]),
    operation(
        "an exit without a switch",
        "counting",
        &["libperfctr, counting", "perf_event, counting"],
        &[],
    ),
    operation("RDPMC", "", &["libperfctr", "perf_event"], &[Linux]),
    operation("another event", "", &["libperfctr", "perf_event"], &[Linux]),
    operation("another event", "WRMSR of a selector", &["WRMSR of a selector"], &[]),
    operation(
        "a sample of the host",
        "of the hypervisor, or without one of the kernel",
        &["perfctr, of the hypervisor", "perf_event, of the kernel"],
        &[],
    ),
    operation(
        "a sample of the host",
        "of the hypervisor, at its guest",
        &["perfctr, of the hypervisor, at its guest"],
        &[],
    ),
    operation(
        "a sample of the host",
        "of user mode",
        &["perfctr, of user mode", "perf_event, of user mode"],
        &[],
    ),
    operation(
        "reading out a sample of the host",
        "",
        &["perfctr, by hypercall", "perf_event, from its memory"],
        &[],
    ),
];

/// What somebody executes.
#[derive(Clone, Copy)]
struct Cell {
    instructions: f64,
    noise: f64,
}

/// A line of the table.
struct Line {
    operation: &'static Operation,
    guest: Guest,
    /// In the order of [`Implementation::ALL`].
    cells: [Option<Cell>; Implementation::ALL.len()],
}

/// Returns the table and its notes, as the page has them.
pub fn table(costs: &Costs) -> String {
    let columns = Implementation::ALL.map(Implementation::name).join(" | ");
    let mut text = format!("| operation | guest | {columns} | note |\n");
    text += &format!("|---|---|{}---|\n", "---:|".repeat(Implementation::ALL.len()));
    let lines: Vec<Line> = lines(costs).collect();
    let mut notes: Vec<&str> = Vec::new();
    for note in lines.iter().flat_map(Line::notes) {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    for line in &lines {
        let its = line.notes();
        let letters = ('a'..).zip(&notes).filter(|(_, note)| its.contains(note));
        let letters: Vec<String> = letters.map(|(letter, _)| letter.to_string()).collect();
        text += &format!("{} {} |\n", line.written(), letters.join(", "));
    }
    text.push('\n');
    for (letter, note) in ('a'..).zip(notes) {
        text += &format!("- **{letter}**: {}\n", note.replace('\n', "\n  "));
    }
    text.push('\n');
    text
}

/// Returns a line for each operation and each kind of guest in which it was measured.
fn lines(costs: &Costs) -> impl Iterator<Item = Line> {
    OPERATIONS
        .iter()
        .flat_map(|operation| Guest::ALL.map(|guest| Line::of(costs, operation, guest)))
        .filter(|line| {
            Implementation::ALL.iter().any(|&who| who != Linux && line.cell(who).is_some())
        })
}

impl Operation {
    fn name(&self) -> String {
        let Self { table, detail, .. } = self;
        if detail.is_empty() { (*table).to_owned() } else { format!("{table}, {detail}") }
    }

    fn has(&self, subject: &Subject) -> bool {
        self.table == subject.operation && self.hows.contains(&subject.how.as_str())
    }
}

impl Line {
    fn of(costs: &Costs, operation: &'static Operation, guest: Guest) -> Self {
        let mut cells = [None; Implementation::ALL.len()];
        for (subject, cost) in costs.rows().filter(|(subject, _)| operation.has(subject)) {
            let Some(who) = Implementation::of(subject, guest) else { continue };
            let instructions = total(cost);
            let cell = &mut cells[who as usize];
            if cell.is_none_or(|other: Cell| instructions < other.instructions) {
                let noise = noise(instructions, 0, cost.len(), NOISE_PERCENT);
                *cell = Some(Cell { instructions, noise });
            }
        }
        Self { operation, guest, cells }
    }

    const fn cell(&self, who: Implementation) -> Option<Cell> {
        self.cells[who as usize]
    }

    /// Returns the line without its notes.
    fn written(&self) -> String {
        let all: Vec<f64> = self.cells.iter().flatten().map(|cell| cell.instructions).collect();
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let mut text = format!("| {} | {} |", self.operation.name(), self.guest.name());
        for who in Implementation::ALL {
            let is_possible = self.operation.unmeasured.contains(&who) && who.is_beside(self.guest);
            let cell = match self.cell(who).map(|cell| cell.instructions) {
                // A number that stands alone is not the best of several.
                Some(number) if number == least && all.len() > 1 => {
                    format!("**{}**", written(Some(number)))
                }
                None if is_possible => "?".to_owned(),
                None => "-".to_owned(),
                number => written(number),
            };
            text += &format!(" {cell} |");
        }
        text
    }

    /// Returns who needs fewer instructions than the library, or all if the library cannot do it.
    fn cheaper(&self) -> impl Iterator<Item = (Implementation, Cell)> {
        let ours = self.cell(Library);
        Implementation::ALL
            .into_iter()
            .filter_map(|who| Some((who, self.cell(who)?)))
            .filter(move |(_, cell)| ours.is_none_or(|ours| cell.instructions < ours.instructions))
    }

    /// Returns why they do. Several may have one reason.
    fn notes(&self) -> Vec<&'static str> {
        let ours = self.cell(Library);
        let name = self.operation.name();
        let note = |(who, cell): (Implementation, Cell)| {
            if ours.is_some_and(|ours| ours.instructions - cell.instructions <= ours.noise) {
                return NOISE;
            }
            let mut reasons = REASONS.iter();
            let reason = reasons.find(|reason| reason.explains(&name, self.guest, who));
            reason.map_or(NONE, |reason| reason.text)
        };
        self.cheaper().map(note).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tools::sh;
    use crate::verbs::costs::page;
    use crate::verbs::costs::places::MACHINES;
    use crate::verbs::costs::reasons::Reason;

    fn subject(operation: &str, how: &str, machine: &str) -> Subject {
        let [operation, how, machine] = [operation, how, machine].map(str::to_owned);
        Subject { operation, how, machine }
    }

    /// Returns the page's numbers of an operation's row.
    fn row(costs: &Costs, operation: &str, how: &str, machine: &str) -> [f64; 4] {
        let cost = costs.get(&subject(operation, how, machine)).expect(how);
        std::array::from_fn(|column| cost[column].unwrap_or_default())
    }

    fn page() -> Costs {
        page::read(&page::path()).unwrap()
    }

    #[test]
    fn a_line_has_everybody_and_marks_the_best() {
        let mut costs = Costs::default();
        let mut add = |operation: &str, how: &str, machine: &str, cost: &[f64]| {
            costs
                .insert(subject(operation, how, machine), cost.iter().copied().map(Some).collect());
        };
        add(READS, "libperfctr, 1 counter", "PVH with perfctr", &[56.0]);
        add(READS, "perf_event, read(2), 1 counter", "PVH with vpmu", &[1264.0]);
        add(READS, "perf_event, read(2), 1 counter", "no hypervisor", &[1291.0]);
        add(READS, "perf_event, rdpmc, 1 counter", "no hypervisor", &[143.0]);
        let system_call = "a null system call";
        add(system_call, "libperfctr, 4 counters", "Xen with perfctr", &[257.0, 1.0, 9.0, 9.0]);
        add(system_call, "perf_event, 4 counters", "Xen with perfctr", &[226.0, 5.0, 0.0, 0.0]);
        add(system_call, "perf_event, 4 counters", "Xen with vpmu", &[-1.0, -3.0, 0.0, 0.0]);
        add("a switch", "libperfctr, counting", "KVM with perfctr", &[0.0, 252.0, 0.0, 0.0]);
        add("a switch", "perf_event, counting", "KVM with its PMU", &[50.0, 10.0, 0.0, 0.0]);
        add("a switch", "two users, both counting", "KVM with perfctr", &[9e4, 1e4, 0.0, 0.0]);
        let table = table(&costs);
        let lines: Vec<&str> = table.lines().collect();
        let expected = [
            "| one read, 1 counter | PVH | **56** | ? | 1264 | - | - | 143 |  |",
            "| one read, by a system call | PVH | - | ? | **1264** | - | - | 1291 | a |",
            "| a null system call, 4 counters | PV | 258 | 231 | **-4** | - | - | - | b, c |",
            "| a switch, counting | KVM | 252 | - | - | **60** | - | - | a |",
            "| a switch, two users, both counting | KVM | 100,000 | ? | - | ? | ? | ? |  |",
            "",
            &format!("- **a**: {NONE}"),
            &format!("- **b**: {NOISE}"),
        ];
        assert_eq!(lines[2..10], expected, "{table}");
        assert!(lines[10].starts_with("- **c**: The processor executes both modes"), "{table}");
        assert!(lines[11].starts_with("  values of a running counter"), "{table}");
    }

    #[test]
    fn every_row_of_the_page_is_in_the_table() {
        for (subject, _) in page().rows() {
            let is_known = MACHINES.iter().any(|machine| machine.name == subject.machine);
            assert!(is_known || subject.machine == "KVM without a PMU", "{subject:?}");
            assert!(OPERATIONS.iter().any(|operation| operation.has(subject)), "{subject:?}");
        }
    }

    #[test]
    fn every_difference_of_the_page_has_a_reason_and_every_reason_a_difference() {
        let page = page();
        let lines: Vec<Line> = lines(&page).collect();
        for line in &lines {
            assert!(!line.notes().contains(&NONE), "{}", line.written());
        }
        let needed = |operation: &str, guest, who| {
            lines.iter().any(|line| {
                line.operation.name() == operation
                    && line.guest == guest
                    && line.cheaper().any(|(cheaper, _)| cheaper == who)
            })
        };
        for Reason { operations, guests, whose, .. } in REASONS {
            for operation in *operations {
                let is_needed = |who| guests.iter().any(|&guest| needed(operation, guest, who));
                assert!(whose.iter().all(|&who| is_needed(who)), "{operation}, {whose:?}");
                let is_needed = |guest| whose.iter().any(|&who| needed(operation, guest, who));
                assert!(guests.iter().all(|&guest| is_needed(guest)), "{operation}, {guests:?}");
            }
        }
    }

    /// Checks what the reasons say about numbers that are on the page.
    #[test]
    fn the_reasons_are_true_of_the_tables() {
        const ALONE: &str = "no hypervisor";
        let page = page();
        let row = |operation, how, machine| row(&page, operation, how, machine);
        let hosts = ["PVH with perfctr", "KVM with perfctr", "KVM on VT-x with perfctr"];
        let alone = |operation, how| row(operation, how, ALONE)[1];
        let [signal, record] = ["perf_event, a signal for each", "perf_event, records in memory"]
            .map(|how| alone("a sample", how));
        let switch = alone("a switch", "perf_event, sampling");
        for host in hosts.iter().chain(&["Xen with perfctr"]) {
            let guest = |operation, how| row(operation, how, host)[1];
            assert!(guest("a sample", "libperfctr, a signal for each") < signal, "{host}");
            assert!(guest("a sample", "libperfctr, records in a ring") < record, "{host}");
        }
        for host in hosts {
            let [_, guest, entries, _] = row("a switch", "libperfctr, sampling", host);
            assert!(guest < switch && entries == 1.0, "{host}");
        }
        let [host, guest, ..] =
            row("an exit without a switch", "nobody counts", "KVM without a PMU");
        assert!(host + guest > record.max(switch), "an exit of KVM on AMD's virtualisation");
        for host in &hosts[1..] {
            let [_, library, entries, _] = row("another event", "libperfctr", host);
            let [_, perf, none, _] = row("another event", "perf_event", host);
            assert!(library < perf && [entries, none] == [1.0, 0.0], "{host}");
        }
        let read_out = "reading out a sample of the host";
        let [taken, shared] = [
            alone("a sample of the host", "perf_event, of the kernel"),
            alone(read_out, "perf_event, from its memory"),
        ];
        let [host, guest, ..] = row(read_out, "perfctr, by hypercall", "Xen with perfctr");
        assert!(guest < shared, "{guest}, {shared}");
        let ours = row("a sample of the host", "perfctr, of the hypervisor", "Xen with perfctr");
        assert!(ours[0] + ours[1] + host + guest < taken, "{ours:?}");
        let entries = |how| row("a sample", how, "Xen with perfctr")[2];
        assert_eq!(
            ["libperfctr, a signal for each", "libperfctr, records in a ring"].map(entries),
            [7.0, 3.0]
        );
        let benches = fs::read_to_string(sh::project().join("benches/README.md")).unwrap();
        let others =
            benches.lines().find(|line| line.starts_with("| all other code, and")).unwrap();
        let others: f64 =
            others.split('|').filter_map(|cell| cell.trim().parse::<f64>().ok()).sum();
        assert!(others > record, "a record's other code executes {others} instructions");
    }
}
