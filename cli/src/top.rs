// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr top`. It shows live the counts of each thread or CPU, or the functions that
//! programs or a host execute.

mod sampled;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use libc::pid_t;
use perfctr::Event;
use perfctr::raw::online;
use perfctr::watch::{Total, Watched};
use perfctr_gate::text::grouped;
use ratatui::crossterm::event::{self, KeyCode, KeyEventKind};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as Cells, Table};
use ratatui::{DefaultTerminal, Frame};

use crate::events::{EventList, EventParser};
use crate::info::Here;
use crate::live::{How, Live, Thread, Threads};
use crate::program::{Signals, limits};
use crate::record::kvm;
use crate::report::Key;
use crate::stat::{Count, estimate};
use crate::text::print;

/// The options of `perfctr top`.
#[derive(Debug, Args)]
pub struct Options {
    /// Events, separated by commas. `perfctr list` shows their names. Functions are found by
    /// samples of one event: of programs in user mode, and of a host in all modes, in kernels only
    /// (`cycles:k`, on a Xen host in Xen's ring 0) or in user mode (`cycles:u`, outside of it).
    #[arg(
        short,
        long,
        value_parser = EventParser::Single,
        hide_possible_values = true,
        default_value = "instructions:u,cycles:u,branches:u",
        default_value_ifs([("host", "true", "cycles"), ("functions", "true", "cycles:u")])
    )]
    event: EventList,
    /// Counts events that are not known to be right on this CPU, too.
    #[arg(long)]
    unverified: bool,
    /// Shows only threads, or functions, of this process; may be given several times.
    #[arg(short, long, value_parser = clap::value_parser!(i32).range(1..))]
    pid: Vec<i32>,
    /// Shows CPUs (in a guest: vCPUs) first, in place of threads.
    #[arg(short = 'C', long)]
    cpus: bool,
    /// Samples processes, or everything that executes on all CPUs, and shows in which functions
    /// that is.
    #[arg(short, long, group = "sampled", conflicts_with = "cpus")]
    functions: bool,
    /// Samples the host, and shows which domains execute which functions. In the control domain of
    /// a Xen host, Xen's option `perfctr=profile` lets it. On a KVM host, root may do it while no
    /// virtual machine counts.
    #[arg(long, group = "sampled", conflicts_with_all = ["pid", "cpus"])]
    host: bool,
    /// Takes a sample after each period of this many events; an event's own `/period=N/` comes
    /// first.
    #[arg(short, long, default_value_t = 1_000_003, requires = "sampled")]
    count: u64,
    /// Distinguishes samples by these columns, separated by commas. Without it, this is the symbol,
    /// and of a host layer, domain and symbol.
    #[arg(short, long, value_enum, value_delimiter = ',', requires = "sampled")]
    sort: Vec<Key>,
    /// Updates after this many milliseconds.
    #[arg(
        short,
        long,
        value_name = "MS",
        default_value_t = 1_000,
        value_parser = clap::value_parser!(u64).range(50..)
    )]
    delay: u64,
    /// Ends after this many updates.
    #[arg(short = 'n', long, value_name = "N")]
    looks: Option<u64>,
    /// Prints all rows as text, one update after another; the default if there is no terminal.
    #[arg(long)]
    plain: bool,
}

/// The number of rows by which a page is scrolled.
const PAGE: usize = 20;

/// A screen that is shown live.
trait Screen {
    /// The longest time between two calls of `tick`.
    const TICK: Duration;

    fn tick(&mut self) -> Result<()>;

    /// Reads what has happened since the last update.
    fn update(&mut self) -> Result<()>;

    /// Does the action of a key. Returns whether that was an update.
    fn key(&mut self, key: KeyCode) -> Result<bool>;

    /// Returns the last update as text.
    fn text(&self) -> String;

    /// Returns the number of rows of the last update.
    fn rows(&self) -> usize;

    /// Draws the last update, from this row on.
    fn draw(&self, frame: &mut Frame<'_>, first: usize);
}

/// The view that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Threads,
    Cpus,
}

/// A thread or a CPU, between two updates.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    id: u32,
    name: String,
    /// The count of each event, which is an estimate if it was not counted all the time.
    counts: Vec<u64>,
    estimated: bool,
    /// The share of the time for which it executed.
    share: f64,
}

/// Everything that is counted, and the last look: the view, its counts, its time, and the resulting
/// rows.
struct Watch {
    events: Vec<Event>,
    threads: Threads,
    cpus: Vec<(u32, Watched)>,
    view: View,
    /// The index of the event by which threads are ordered.
    ordered_by: usize,
    before: BTreeMap<u32, Vec<Total>>,
    looked: Instant,
    rows: Vec<Row>,
}

impl Watch {
    fn open(options: &Options) -> Result<Self> {
        let events = options.event.events(options.unverified);
        limits::raise();
        // If there are no counters at all, this gives the reason.
        Here::find()?.counts(&events)?;
        let view = if options.cpus { View::Cpus } else { View::Threads };
        let mut watch = Self {
            threads: Threads::new(&events, &options.pid)?,
            cpus: Vec::new(),
            events,
            view,
            ordered_by: 0,
            before: BTreeMap::new(),
            looked: Instant::now(),
            rows: Vec::new(),
        };
        watch.look(view)?;
        Ok(watch)
    }

    /// Returns the events since the last update. There are none if another view was shown then.
    fn look(&mut self, view: View) -> Result<Vec<Row>> {
        let time = self.looked.elapsed();
        self.looked = Instant::now();
        let mut rows = match view {
            View::Threads => self.look_at_threads(time)?,
            View::Cpus => self.look_at_cpus(time)?,
        };
        if view == View::Threads {
            sort_threads(&mut rows, self.ordered_by);
        }
        Ok(rows)
    }

    /// Orders the threads that are shown by another event, if there is one with this index.
    fn order_by(&mut self, event: Option<usize>) {
        let known = event.filter(|&event| event < self.events.len());
        if let (View::Threads, Some(event)) = (self.view, known) {
            self.ordered_by = event;
            sort_threads(&mut self.rows, event);
        }
    }

    fn look_at_threads(&mut self, time: Duration) -> Result<Vec<Row>> {
        self.threads.refresh()?;
        let read = |(tid, thread): (&pid_t, &Thread)| {
            Ok((tid.cast_unsigned(), thread.name.clone(), thread.watched.read()?.into_values()))
        };
        let now = self.threads.live.iter().map(read).collect::<Result<Vec<_>>>()?;
        Ok(self.since(View::Threads, now, time))
    }

    /// Returns the counts of CPUs. They count from the first update on.
    fn look_at_cpus(&mut self, time: Duration) -> Result<Vec<Row>> {
        if self.cpus.is_empty() {
            let open = |cpu: u32| Ok((cpu, Live::cpu(cpu).count(How::InTurns, &self.events)?));
            self.cpus = online()?.into_iter().map(open).collect::<Result<_>>()?;
        }
        let read = |(cpu, watched): &(u32, Watched)| {
            Ok((*cpu, format!("CPU {cpu}"), watched.read()?.into_values()))
        };
        let now = self.cpus.iter().map(read).collect::<Result<Vec<_>>>()?;
        Ok(self.since(View::Cpus, now, time))
    }

    fn since(
        &mut self,
        view: View,
        now: Vec<(u32, String, Vec<Total>)>,
        time: Duration,
    ) -> Vec<Row> {
        let before = std::mem::take(&mut self.before);
        // The counts of a view while another one was shown do not belong to the last update.
        let goes_on = std::mem::replace(&mut self.view, view) == view;
        let mut rows = Vec::new();
        for (id, name, counts) in now {
            if let Some(before) = before.get(&id).filter(|_| goes_on) {
                rows.push(row(id, name, before, &counts, time));
            }
            self.before.insert(id, counts);
        }
        rows
    }
}

/// Orders threads by the event with this index, and then by the others. Those that count most come
/// first.
fn sort_threads(rows: &mut [Row], event: usize) {
    rows.sort_by(|one, other| {
        let by_event = other.counts.get(event).cmp(&one.counts.get(event));
        by_event.then_with(|| other.counts.cmp(&one.counts)).then(one.id.cmp(&other.id))
    });
}

fn row(id: u32, name: String, before: &[Total], now: &[Total], time: Duration) -> Row {
    let each: Vec<Total> = now.iter().zip(before).map(|(&now, &before)| now - before).collect();
    let enabled = each.first().map_or(Duration::ZERO, |total| total.enabled);
    let estimates: Vec<Count> = each.iter().map(estimate).collect();
    Row {
        id,
        name,
        counts: estimates.iter().map(|estimate| estimate.value).collect(),
        estimated: estimates.iter().any(|estimate| estimate.share < 1.0),
        share: enabled.as_secs_f64() / time.as_secs_f64().max(1e-9),
    }
}

impl Screen for Watch {
    /// Nothing happens between two updates, but an interrupt must not wait for the next one.
    const TICK: Duration = Duration::from_millis(100);

    fn tick(&mut self) -> Result<()> {
        Ok(())
    }

    fn update(&mut self) -> Result<()> {
        self.rows = self.look(self.view)?;
        Ok(())
    }

    fn key(&mut self, key: KeyCode) -> Result<bool> {
        let wanted = match key {
            KeyCode::Char('c') => View::Cpus,
            KeyCode::Char('t') => View::Threads,
            _ => self.view,
        };
        match key {
            KeyCode::Left | KeyCode::Char('<') => self.order_by(self.ordered_by.checked_sub(1)),
            KeyCode::Right | KeyCode::Char('>') => self.order_by(Some(self.ordered_by + 1)),
            _ => {}
        }
        let changes = wanted != self.view;
        if changes {
            // The next update covers the time from now on.
            self.rows = self.look(wanted)?;
        }
        Ok(changes)
    }

    fn text(&self) -> String {
        text(&self.events, &self.rows)
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn draw(&self, frame: &mut Frame<'_>, first: usize) {
        let ordered_by = (self.view == View::Threads).then_some(self.ordered_by);
        draw(frame, &self.events, ordered_by, self.rows.get(first..).unwrap_or_default());
    }
}

/// Runs `perfctr top`.
pub fn run(options: &Options) -> Result<ExitCode> {
    match (options.host, options.functions) {
        (true, _) if kvm::is_here() => show(options, &mut sampled::of_kvm(options)?),
        (true, _) => show(options, &mut sampled::of_xen(options)?),
        (_, true) => show(options, &mut sampled::of_programs(options)?),
        _ => show(options, &mut Watch::open(options)?),
    }
}

fn show<S: Screen>(options: &Options, screen: &mut S) -> Result<ExitCode> {
    if options.plain || !io::stdout().is_terminal() {
        return plain(options, screen);
    }
    let mut terminal = ratatui::try_init()?;
    let result = interactive(options, screen, &mut terminal);
    ratatui::try_restore()?;
    result.map(|()| ExitCode::SUCCESS)
}

/// Returns how long it is from now to this time, unless it has come.
fn remaining_until(until: Instant) -> Option<Duration> {
    until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

fn plain<S: Screen>(options: &Options, screen: &mut S) -> Result<ExitCode> {
    let signals = Signals::to_end()?;
    let mut looks = options.looks.unwrap_or(u64::MAX);
    while looks > 0 {
        let next = Instant::now() + Duration::from_millis(options.delay);
        while let Some(left) = remaining_until(next) {
            if signals.interrupted() {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(left.min(S::TICK));
            screen.tick()?;
        }
        screen.update()?;
        print(&screen.text())?;
        looks -= 1;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a line for each row, and one that names the columns.
fn text(events: &[Event], rows: &[Row]) -> String {
    let mut text = format!("{:>8} {:<16} {:>6}", "id", "name", "time");
    text += &events.iter().map(|event| format!(" {:>20}", event.to_string())).collect::<String>();
    text += "\n";
    for row in rows {
        text += &format!("{:>8} {:<16} {:>5.1}%", row.id, row.name, 100.0 * row.share);
        text += &row.counts.iter().map(|&n| format!(" {:>20}", grouped(n))).collect::<String>();
        text += if row.estimated { " estimated\n" } else { "\n" };
    }
    text
}

fn interactive<S: Screen>(
    options: &Options,
    screen: &mut S,
    terminal: &mut DefaultTerminal,
) -> Result<()> {
    let delay = Duration::from_millis(options.delay);
    let (mut next, mut looks, mut first) = (Instant::now() + delay, 0, 0);
    loop {
        first = first.min(screen.rows().saturating_sub(1));
        terminal.draw(|frame| screen.draw(frame, first))?;
        if options.looks == Some(looks) {
            return Ok(());
        }
        let pressed = loop {
            let Some(left) = remaining_until(next) else { break None };
            if event::poll(left.min(S::TICK))? {
                break Some(event::read()?);
            }
            screen.tick()?;
        };
        match pressed {
            None => {
                screen.update()?;
                (next, looks) = (Instant::now() + delay, looks + 1);
            }
            Some(event::Event::Key(key)) if key.kind == KeyEventKind::Press => {
                let control = key.modifiers.contains(event::KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if control => return Ok(()),
                    KeyCode::Up => first = first.saturating_sub(1),
                    KeyCode::Down => first += 1,
                    KeyCode::PageUp => first = first.saturating_sub(PAGE),
                    KeyCode::PageDown => first += PAGE,
                    KeyCode::Home => first = 0,
                    code if screen.key(code)? => next = Instant::now() + delay,
                    _ => {}
                }
            }
            Some(_) => {}
        }
    }
}

/// The distance between the columns of a table.
const APART: u16 = 2;

/// Returns a cell for a number, or for the name of its column.
fn number(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

/// Draws threads, and marks the event by which they are ordered, or CPUs, which have their own
/// order.
fn draw(frame: &mut Frame<'_>, events: &[Event], ordered_by: Option<usize>, rows: &[Row]) {
    let [table, keys] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    let line = |id: String, name: &str, share: String, counts: &mut dyn Iterator<Item = String>| {
        let who = [number(id), Cell::from(name.to_owned()), number(share)];
        Cells::new(who.into_iter().chain(counts.map(number)))
    };
    let mark = |n| if ordered_by == Some(n) { " ↓" } else { "" };
    let mut names = events.iter().enumerate().map(|(n, event)| format!("{event}{}", mark(n)));
    let first = if ordered_by.is_none() { "CPU" } else { "thread" };
    let head = line(first.to_owned(), "name", "time".to_owned(), &mut names).bold();
    let cells = |row: &Row| {
        let mark = if row.estimated { "~" } else { "" };
        let mut counts = row.counts.iter().map(|&count| format!("{mark}{}", grouped(count)));
        let share = format!("{:.1}%", 100.0 * row.share);
        line(row.id.to_string(), &row.name, share, &mut counts)
    };
    let widths = [Constraint::Length(8), Constraint::Length(16), Constraint::Length(7)];
    let widths = widths.into_iter().chain(events.iter().map(|_| Constraint::Length(20)));
    let rows = Table::new(rows.iter().map(cells), widths).header(head).column_spacing(APART);
    frame.render_widget(rows, table);
    let what = "q ends, t shows threads, c CPUs; arrows scroll and choose the order; ~ estimated";
    frame.render_widget(Line::from(what).dim(), keys);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn count(count: u64, enabled: u64, running: u64) -> Total {
        let mut total = Total::default();
        total.count = count;
        [total.enabled, total.running] = [enabled, running].map(Duration::from_nanos);
        total
    }

    fn rows() -> Vec<Row> {
        let time = Duration::from_secs(1);
        let busy = [count(5_000_000, 1_000, 1_000), count(7_001_234, 500_001_000, 500_001_000)];
        let turns = [count(10, 1_000, 500), count(510, 1_000_001_000, 500_000_500)];
        vec![
            row(7, "busy".into(), &busy[..1], &busy[1..], time),
            row(8, "turns".into(), &turns[..1], &turns[1..], time),
        ]
    }

    #[test]
    fn a_look_is_what_has_happened_since_the_one_before() {
        let rows = rows();
        assert_eq!((rows[0].counts[0], rows[0].estimated), (2_001_234, false));
        assert!((rows[0].share - 0.5).abs() < 1e-6, "{rows:?}");
        assert_eq!((rows[1].counts[0], rows[1].estimated), (1_000, true));
    }

    #[test]
    fn threads_are_ordered_by_the_event_that_is_chosen() {
        let row = |id, counts: [u64; 2]| Row {
            id,
            name: String::new(),
            counts: counts.to_vec(),
            estimated: false,
            share: 0.0,
        };
        let mut watch = watch();
        watch.events = vec![Event::INSTRUCTIONS, Event::CYCLES];
        watch.rows = vec![row(1, [5, 70]), row(2, [9, 60]), row(4, [5, 80]), row(3, [5, 80])];
        let mut pressed = |key| {
            watch.key(key).unwrap();
            watch.rows.iter().map(|row| row.id).collect::<Vec<_>>()
        };
        assert_eq!(pressed(KeyCode::Left), [1, 2, 4, 3], "no event is before the first");
        assert_eq!(pressed(KeyCode::Right), [3, 4, 1, 2]);
        assert_eq!(pressed(KeyCode::Char('>')), [3, 4, 1, 2], "none is behind the last");
        assert_eq!(pressed(KeyCode::Char('<')), [2, 3, 4, 1]);
    }

    /// Looks at threads, of which none is counted yet.
    fn watch() -> Watch {
        Watch {
            events: Vec::new(),
            threads: Threads::new(&[], &[]).unwrap(),
            cpus: Vec::new(),
            view: View::Threads,
            ordered_by: 0,
            before: BTreeMap::new(),
            looked: Instant::now(),
            rows: Vec::new(),
        }
    }

    #[test]
    fn a_thread_with_the_number_of_one_that_has_ended_begins_anew() {
        let mut watch = watch();
        let mut look = |now: &[(u32, u64)]| {
            let total = |&(id, n)| (id, String::new(), vec![count(n, 1_000, 1_000)]);
            let now = now.iter().map(total).collect();
            let rows = watch.since(View::Threads, now, Duration::from_secs(1));
            rows.iter().map(|row| (row.id, row.counts[0])).collect::<Vec<_>>()
        };
        assert_eq!(look(&[(7, 500), (9, 20)]), []);
        assert_eq!(look(&[(9, 26)]), [(9, 6)]);
        assert_eq!(look(&[(7, 800), (9, 30)]), [(9, 4)], "another thread 7");
        assert_eq!(look(&[(7, 803), (9, 35)]), [(7, 3), (9, 5)]);
    }

    #[test]
    fn a_view_that_is_shown_again_has_no_counts_of_the_time_before() {
        use View::{Cpus, Threads};
        let mut watch = watch();
        // Each look comes a second after the one before. Thread 7 executes all the time, and CPU 7
        // for nine tenths of it.
        let mut look = |view, counted, executed_ms: u64| {
            let executed_ns = executed_ms * 1_000_000;
            let now = vec![(7, String::new(), vec![count(counted, executed_ns, executed_ns)])];
            let rows = watch.since(view, now, Duration::from_secs(1));
            let permille = |row: &Row| (1_000.0 * row.share).round() as u64;
            rows.iter().map(|row| (row.counts[0], permille(row))).collect::<Vec<_>>()
        };
        assert_eq!(look(Threads, 500, 1_000), []);
        assert_eq!(look(Threads, 620, 2_000), [(120, 1_000)]);
        assert_eq!(look(Cpus, 10_000, 40_000), [], "CPU 7 is not thread 7");
        assert_eq!(look(Cpus, 10_011, 40_900), [(11, 900)]);
        assert_eq!(look(Threads, 1_000, 5_000), [], "it has executed 3 s since");
        assert_eq!(look(Threads, 1_130, 6_000), [(130, 1_000)]);
        assert_eq!(look(Cpus, 10_055, 44_500), [], "it has executed 3.6 s since");
        assert_eq!(look(Cpus, 10_067, 45_400), [(12, 900)]);
    }

    #[test]
    fn rows_are_drawn_and_printed() {
        let events = [Event::INSTRUCTIONS.user()];
        let mut terminal = Terminal::new(TestBackend::new(70, 6)).unwrap();
        terminal.draw(|frame| draw(frame, &events, Some(0), &rows())).unwrap();
        let screen = terminal.backend().to_string();
        let lines = [
            "  thread  name                 time      instructions:u ↓",
            "       7  busy                50.0%             2,001,234",
            "       8  turns              100.0%                ~1,000",
            "q ends",
        ];
        for text in lines {
            assert!(screen.contains(text), "`{text}` is not in\n{screen}");
        }
        let text = text(&events, &rows());
        assert!(text.contains("2,001,234\n") && text.contains("1,000 estimated\n"), "{text}");
    }
}
