// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Says which thread executed on a CPU at some moment, by the kernel's records of when which thread
//! began and ceased to execute.
//!
//! The file may have any contents. It is read twice: first to find out which records were lost, and
//! then in the order of time.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::io::{Read, Seek};

use anyhow::{Result, ensure};

use super::input::{Event, Opened, Ordered, Record, in_file, in_order};
use super::tasks::Tasks;
use super::{flag, perf};
use crate::profile::{Module, Task};

/// What is asked about a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// By the clock of the records. Unit: ns.
    pub time: u64,
    pub cpu: u32,
    /// An address of the process, if code there was executed.
    pub address: Option<u64>,
}

/// What is known of a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub executed: Executed,
    /// The index of the file that the process had mapped at the address, and the address as the
    /// file states it.
    pub code: Option<(usize, u64)>,
    /// Whether another thread began or ceased to execute on the CPU at so short a distance that the
    /// clocks cannot tell which came first.
    pub near: bool,
}

/// What a CPU executed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Executed {
    /// The records do not say it.
    #[default]
    Unknown,
    /// Records of this moment were lost.
    Lost,
    /// Nothing.
    Idle,
    /// A thread. Names are empty if they are not known.
    Thread(Task),
}

/// The answers to all questions, and the files that they name.
pub struct Answers {
    pub each: Vec<Answer>,
    pub files: Vec<Module>,
}

/// The numbers of a process and of one of its threads.
type ThreadId = (u32, u32);

/// The number of a thread that has ended and has none any more.
const NOBODY: u32 = u32::MAX;
/// The number of the idle threads.
const IDLE: u32 = 0;
/// The CPU of records that the kernel has not written.
pub const NO_CPU: u32 = u32::MAX;

/// Answers the questions, which are in the order of time. Clocks that differ by up to `within`
/// cannot tell the order of two moments, unit: ns. `describe` says what is known of a file.
pub fn answer<F: Read + Seek>(
    opened: &mut Opened<'_, F>,
    questions: &[Question],
    within: u64,
    describe: impl Fn(&OsStr, Option<String>) -> Module,
) -> Result<Answers> {
    let event = opened.events.swap_remove(0);
    ensure!(
        event.flags & flag::SAMPLE_ID_ALL != 0
            && event.flags & flag::CONTEXT_SWITCH != 0
            && [perf::PERF_SAMPLE_TID, perf::PERF_SAMPLE_TIME, perf::PERF_SAMPLE_CPU]
                .iter()
                .all(|&field| event.has(field)),
        "records without switches, threads, times or CPUs found, those of `perfctr record --names` \
         expected"
    );
    let losses = Losses::find(&event, opened.records()?)?;
    let answers = vec![Answer::default(); questions.len()];
    let mut walk = Walk {
        event,
        questions,
        within,
        answers,
        next: 0,
        cpus: losses.first.iter().map(|(&cpu, &id)| (cpu, Turn::of(id))).collect(),
        gone: 0,
        losses,
        tasks: Tasks::new(describe),
    };
    in_order(opened.records()?, &mut walk)?;
    walk.until(u64::MAX);
    Ok(Answers { each: walk.answers, files: walk.tasks.files })
}

/// The fields at the end of a kernel's record.
struct Written {
    time: u64,
    cpu: u32,
    /// The thread that was executing there.
    by: ThreadId,
}

impl Written {
    fn of(event: &Event, record: &Record<'_>) -> Result<Self> {
        let field = |field| event.at_end(record, field).map(|word| word.unwrap_or(0));
        let by = halves(field(perf::PERF_SAMPLE_TID)?);
        let (cpu, _) = halves(field(perf::PERF_SAMPLE_CPU)?);
        Ok(Self { time: field(perf::PERF_SAMPLE_TIME)?, cpu, by })
    }
}

/// Returns the two numbers that share a word.
const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// Returns whether a record says something about threads.
fn is_known(kind: u32) -> bool {
    matches!(
        kind,
        perf::PERF_RECORD_MMAP
            | perf::PERF_RECORD_MMAP2
            | perf::PERF_RECORD_COMM
            | perf::PERF_RECORD_FORK
            | perf::PERF_RECORD_EXIT
            | perf::PERF_RECORD_LOST
            | perf::PERF_RECORD_SWITCH_CPU_WIDE
            | perf::PERF_RECORD_CGROUP
    )
}

/// Returns the thread before or behind a switch that is not the one that executed when the record
/// was written.
fn other(record: &Record<'_>) -> Result<ThreadId> {
    let mut input = super::input::Input(record.body);
    Ok((input.u32()?, input.u32()?))
}

/// The records that were lost.
#[derive(Default)]
struct Losses {
    /// The thread that each CPU executed when its first record was written.
    first: HashMap<u32, ThreadId>,
    /// From when to when each CPU has lost records, in the order of time.
    gaps: HashMap<u32, Vec<(u64, u64)>>,
    /// The times from which on records of any CPU are missing, in order.
    from: Vec<u64>,
}

impl Losses {
    fn find(event: &Event, input: impl Read) -> Result<Self> {
        let (mut losses, mut last) = (Self::default(), HashMap::new());
        in_file(input, |record| {
            if !is_known(record.kind) {
                return Ok(());
            }
            let Written { time, cpu, by } = Written::of(event, &record)?;
            if cpu == NO_CPU {
                return Ok(());
            }
            let is_switch = record.kind == perf::PERF_RECORD_SWITCH_CPU_WIDE;
            let comes = is_switch && !record.has(perf::PERF_RECORD_MISC_SWITCH_OUT);
            let before = if comes { other(&record)? } else { by };
            losses.first.entry(cpu).or_insert(before);
            if record.kind == perf::PERF_RECORD_LOST {
                let from = last.get(&cpu).copied().unwrap_or(0);
                losses.gaps.entry(cpu).or_default().push((from, time));
                losses.from.push(from);
            }
            last.insert(cpu, time);
            Ok(())
        })?;
        losses.gaps.values_mut().for_each(|gaps| gaps.sort_unstable());
        losses.from.sort_unstable();
        Ok(losses)
    }

    /// Returns whether a CPU has lost records at this time.
    fn hide(&self, cpu: u32, time: u64) -> bool {
        let Some(gaps) = self.gaps.get(&cpu) else { return false };
        let after = gaps.partition_point(|&(from, _)| from < time);
        after.checked_sub(1).is_some_and(|n| time < gaps[n].1)
    }
}

/// A thread's turn on a CPU.
struct Turn {
    id: ThreadId,
    /// When the last switch was, if there was one.
    since: Option<u64>,
    /// The questions about the turn's last moments.
    last: VecDeque<usize>,
}

impl Turn {
    fn of(id: ThreadId) -> Self {
        Self { id, since: None, last: VecDeque::new() }
    }
}

/// Reads the records in the order of time, and answers the questions meanwhile.
struct Walk<'a> {
    event: Event,
    questions: &'a [Question],
    within: u64,
    answers: Vec<Answer>,
    /// The first question that was not answered yet.
    next: usize,
    /// What each CPU executes.
    cpus: HashMap<u32, Turn>,
    losses: Losses,
    /// How many losses there have been until now.
    gone: usize,
    tasks: Tasks<'a>,
}

impl Ordered for Walk<'_> {
    fn time_of(&self, record: &Record<'_>) -> Result<Option<u64>> {
        if !is_known(record.kind) {
            return Ok(None);
        }
        Written::of(&self.event, record).map(|written| Some(written.time))
    }

    fn take(&mut self, record: Record<'_>) -> Result<()> {
        let Written { time, cpu, by } = Written::of(&self.event, &record)?;
        self.until(time);
        self.tasks.take(&record)?;
        if cpu == NO_CPU {
            let is_group = record.kind == perf::PERF_RECORD_CGROUP;
            return if is_group { self.tasks.take_cgroup(&record) } else { Ok(()) };
        }
        let turn = self.cpus.entry(cpu).or_insert_with(|| Turn::of(by));
        turn.id = by;
        if record.kind == perf::PERF_RECORD_SWITCH_CPU_WIDE {
            if record.has(perf::PERF_RECORD_MISC_SWITCH_OUT) {
                turn.id = other(&record)?;
            }
            turn.since = Some(time);
            for asked in turn.last.drain(..) {
                let distance = time.saturating_sub(self.questions[asked].time);
                self.answers[asked].near |= distance <= self.within;
            }
        }
        Ok(())
    }
}

impl Walk<'_> {
    /// Answers the questions about moments before this time.
    fn until(&mut self, time: u64) {
        let rest = &self.questions[self.next..];
        let due = self.next + rest.partition_point(|question| question.time < time);
        for asked in self.next..due {
            self.lose(self.questions[asked].time);
            self.answers[asked] = self.answer(asked);
        }
        self.next = due;
        self.lose(time);
    }

    /// Forgets what is known of processes if records that are older than this are missing.
    fn lose(&mut self, time: u64) {
        let lost = self.losses.from[self.gone..].iter().take_while(|&&from| from < time).count();
        if lost > 0 {
            self.gone += lost;
            self.tasks.forget();
        }
    }

    fn answer(&mut self, asked: usize) -> Answer {
        let Question { time, cpu, address } = self.questions[asked];
        if self.losses.hide(cpu, time) {
            return Answer { executed: Executed::Lost, ..Answer::default() };
        }
        let Some(turn) = self.cpus.get_mut(&cpu) else { return Answer::default() };
        let within = self.within;
        let near = turn.since.is_some_and(|since| time.saturating_sub(since) <= within);
        while turn
            .last
            .front()
            .is_some_and(|&n| self.questions[n].time.saturating_add(within) < time)
        {
            turn.last.pop_front();
        }
        turn.last.push_back(asked);
        let (pid, tid) = turn.id;
        let executed = match tid {
            NOBODY => return Answer { near, ..Answer::default() },
            IDLE => Executed::Idle,
            _ => {
                let [name, process] = [tid, pid].map(|id| self.tasks.name(id).to_owned());
                Executed::Thread(Task { pid, tid, name, process, cgroup: self.tasks.group(pid) })
            }
        };
        let code = address.and_then(|address| self.tasks.code(pid, address));
        Answer { executed, code, near }
    }
}
