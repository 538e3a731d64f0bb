// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Shows live in which domains, layers and functions a host executes, or in which functions
//! programs execute.

use std::time::Duration;

use anyhow::Result;
use perfctr::Event;
use perfctr::host::Places;
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};

use super::{APART, Options, Screen, number};
use crate::events::every;
use crate::host::{Collector, Collects, Hypervisor, only};
use crate::info::Here;
use crate::live::Live;
use crate::profile::Profile;
use crate::program::{Target, limits};
use crate::record::attached::Recording;
use crate::record::{check_event, kvm};
use crate::report::symbols::{self, Named};
use crate::report::table::{ordered, percent, rows, table};
use crate::report::{Key, summary};

/// Collects samples.
pub trait Source {
    /// Takes what was sampled meanwhile.
    fn take(&mut self) -> Result<()>;

    /// Returns the profile of the samples since the last one.
    fn profile(&mut self) -> Profile;
}

impl<C: Collects> Source for C {
    fn take(&mut self) -> Result<()> {
        Ok(Collects::take(self)?)
    }

    fn profile(&mut self) -> Profile {
        Collects::profile(self)
    }
}

impl Source for Recording {
    fn take(&mut self) -> Result<()> {
        Self::take(self)
    }

    fn profile(&mut self) -> Profile {
        // It samples by one event.
        self.profiles().remove(0)
    }
}

/// Samples the Xen host that this is the control domain of.
pub fn of_xen(options: &Options) -> Result<View<Collector>> {
    let event = event_of_host(options)?;
    // This asks Xen for its functions, since reading them from its file takes longer, each time.
    let hypervisor = Hypervisor::here()?;
    of_host(Collector::new(hypervisor, profile_of_host("xen", event)), event, options)
}

/// Samples this KVM host.
pub fn of_kvm(options: &Options) -> Result<View<kvm::Collector>> {
    let event = event_of_host(options)?;
    of_host(kvm::Collector::new(profile_of_host(kvm::PROVIDER, event))?, event, options)
}

fn event_of_host(options: &Options) -> Result<Event> {
    Ok(every(only(&options.event.events(options.unverified))?, options.count))
}

fn profile_of_host(provider: &str, event: Event) -> Profile {
    Profile::new(Vec::new(), provider.to_owned(), event.to_string(), event.period())
}

fn of_host<C: Collects>(mut collector: C, event: Event, options: &Options) -> Result<View<C>> {
    collector.begin(event, None, Places::default())?;
    View::new(collector, &options.sort)
}

/// Samples processes, or everything that executes on all CPUs.
pub fn of_programs(options: &Options) -> Result<View<Recording>> {
    let event = every(only(&options.event.events(options.unverified))?, options.count);
    check_event(&event)?;
    limits::raise();
    let here = Here::find()?;
    here.counts(&[event])?;
    let provider = here.description.provider.to_string();
    let profile = Profile::new(Vec::new(), provider, event.to_string(), event.period());
    let mut recording = Recording::new(&[event], vec![profile]);
    let live = match &options.pid[..] {
        [] => Live::of(Target::Cpus(&[]))?,
        pids => pids.iter().map(|&pid| Live::process(pid)).collect(),
    };
    recording.begin(&live)?;
    View::new(recording, &options.sort)
}

/// The samples since the last update, and by what they are distinguished.
pub struct View<S> {
    source: S,
    wanted: Vec<Key>,
    keys: Vec<Key>,
    profile: Profile,
    symbols: symbols::Names,
    names: Vec<Named>,
}

impl<S: Source> View<S> {
    fn new(mut source: S, keys: &[Key]) -> Result<Self> {
        let profile = source.profile();
        let keys = Key::columns(keys, &profile)?;
        let (symbols, names) = (symbols::Names::default(), Vec::new());
        Ok(Self { source, wanted: keys.clone(), keys, profile, symbols, names })
    }

    fn is_of_host(&self) -> bool {
        self.profile.host.is_some()
    }
}

impl<S: Source> Screen for View<S> {
    /// The user has to learn soon if sampling has ended, and rings must not become full.
    const TICK: Duration = Duration::from_millis(100);

    fn tick(&mut self) -> Result<()> {
        self.source.take()
    }

    fn update(&mut self) -> Result<()> {
        self.source.take()?;
        self.profile = self.source.profile();
        // The view cannot report a file that has changed, whose functions have no names.
        self.names = self.symbols.name(&self.profile, |_| {});
        Ok(())
    }

    fn key(&mut self, key: KeyCode) -> Result<bool> {
        let keys: &[Key] = match (key, self.is_of_host()) {
            (KeyCode::Char('f'), _) => &self.wanted,
            (KeyCode::Char('d'), true) => &[Key::Domain, Key::Layer],
            (KeyCode::Char('p'), true) => &[Key::Cpu, Key::Layer, Key::Domain],
            (KeyCode::Char('t'), false) => &[Key::Thread, Key::Symbol],
            (KeyCode::Char('m'), false) => &[Key::Module],
            (KeyCode::Char('l'), false) => &[Key::Symbol, Key::Line],
            _ => return Ok(false),
        };
        self.keys = keys.to_vec();
        Ok(false)
    }

    fn text(&self) -> String {
        table(&self.profile, &self.names, &self.keys)
    }

    fn rows(&self) -> usize {
        rows(&self.profile, &self.names, &self.keys).len()
    }

    fn draw(&self, frame: &mut Frame<'_>, first: usize) {
        let [head, rows, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
                .areas(frame.area());
        let missed = match self.profile.missed() {
            0 => String::new(),
            missed => format!("; {missed} more were missed"),
        };
        frame.render_widget(Line::from(summary(&self.profile) + &missed), head);
        let all = self.profile.samples();
        let titles = self.keys.iter().map(|key| key.heading());
        let line = |numbers: [String; 2], words: Vec<String>| {
            Row::new(numbers.map(number).into_iter().chain(words.into_iter().map(Cell::from)))
        };
        let titles = line(["samples".to_owned(), "%".to_owned()], titles.collect()).bold();
        let cells = |(words, samples): (Vec<String>, u64)| {
            line([samples.to_string(), percent(samples, all)], words)
        };
        let width = |key: &Key| match key {
            Key::Cpu => Constraint::Length(4),
            Key::Layer => Constraint::Length(10),
            Key::Domain => Constraint::Length(16),
            _ => Constraint::Fill(1),
        };
        let widths = [Constraint::Length(8), Constraint::Length(6)];
        let widths = widths.into_iter().chain(self.keys.iter().map(width));
        let shown = ordered(&self.profile, &self.names, &self.keys).into_iter().skip(first);
        let table = Table::new(shown.map(cells), widths).header(titles).column_spacing(APART);
        frame.render_widget(table, rows);
        let what = match self.is_of_host() {
            true => "q ends, f shows functions, d domains, p physical CPUs; arrows scroll",
            false => "q ends, f shows functions, t threads, m files, l lines; arrows scroll",
        };
        frame.render_widget(Line::from(what).dim(), foot);
    }
}

#[cfg(test)]
mod tests {
    use perfctr::host::Mode;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::host::tests::sample;
    use crate::profile::{Frame, SampleOrigin, Samples};

    fn view() -> View<Collector> {
        let profile = Profile::new(Vec::new(), "xen".into(), "cycles".into(), 10_000);
        View::new(Collector::new(Hypervisor::without_file(), profile), &[]).unwrap()
    }

    /// Adds this many samples of a domain.
    fn add(view: &mut View<Collector>, domain: u32, mode: Mode, samples: u32) {
        let sample = sample(mode, domain, domain % 2, 0x20);
        (0..samples).for_each(|_| view.source.add(&sample));
        view.update().unwrap();
    }

    #[test]
    fn each_update_is_of_the_samples_since_the_last_one() {
        let mut view = view();
        add(&mut view, 3, Mode::User, 5);
        let expected = "5 samples of 1 vCPU, one every 10000 cycles, from xen\n   \
                        samples       %  layer  domain    symbol\n         \
                        5  100.00  user   domain 3  [user mode of domain 3]\n";
        assert_eq!(view.text(), expected);
        add(&mut view, 4, Mode::Kernel, 1);
        let text = view.text();
        assert!(text.starts_with("1 sample of 1 vCPU") && !text.contains("domain 3"), "{text}");
    }

    /// Samples of programs.
    struct Programs(Vec<Profile>);

    impl Source for Programs {
        fn take(&mut self) -> Result<()> {
            Ok(())
        }

        fn profile(&mut self) -> Profile {
            self.0.remove(0)
        }
    }

    /// Returns a profile of one thread: addresses, and how many samples each has.
    fn of_thread(samples: &[(u64, u64)]) -> Profile {
        let mut profile = Profile::new(Vec::new(), "native".into(), "cycles:u".into(), 1_000);
        let mut all = Samples::default();
        let thread = all.thread(&mut profile, 7, 8, || "busy".into());
        for &(address, number) in samples {
            all.add(SampleOrigin::new(thread, &[Frame { module: None, address }]), number, None);
        }
        all.fill(&mut profile);
        profile
    }

    #[test]
    fn programs_are_shown_by_function_and_thread_from_the_row_to_which_one_has_scrolled() {
        let nothing = Profile::new(Vec::new(), "native".into(), "cycles:u".into(), 1_000);
        let profiles = vec![nothing, of_thread(&[(0x20, 1), (0x10, 3)])];
        let mut view = View::new(Programs(profiles), &[]).unwrap();
        view.update().unwrap();
        let expected = "4 samples of 1 thread, one every 1000 cycles:u, from native\n   \
                        samples       %  symbol\n         3   75.00  0x10\n         \
                        1   25.00  0x20\n";
        assert_eq!((view.text().as_str(), view.rows()), (expected, 2));
        view.key(KeyCode::Char('d')).unwrap();
        assert_eq!(view.text(), expected, "programs have no domains");
        view.key(KeyCode::Char('t')).unwrap();
        assert!(view.text().contains("75.00  8 busy  0x10\n"), "{}", view.text());
        let mut terminal = Terminal::new(TestBackend::new(78, 5)).unwrap();
        terminal.draw(|frame| view.draw(frame, 1)).unwrap();
        let screen = terminal.backend().to_string();
        assert!(screen.contains("0x20") && !screen.contains("0x10"), "{screen}");
        assert!(screen.contains("m files"), "{screen}");
    }

    #[test]
    fn a_screen_has_the_rows_with_most_samples_first() {
        let mut view = view();
        let shown = |view: &View<Collector>| {
            let mut terminal = Terminal::new(TestBackend::new(78, 6)).unwrap();
            terminal.draw(|frame| view.draw(frame, 0)).unwrap();
            let cells = terminal.backend().buffer().content().chunks(78);
            let line = |cells: &[ratatui::buffer::Cell]| {
                cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()
            };
            cells.map(line).collect::<Vec<_>>()
        };
        let none = shown(&view);
        assert!(none[0].starts_with("0 samples of 0 vCPUs"), "{none:?}");
        view.source.add(&sample(Mode::User, 3, 1, 7));
        add(&mut view, 4, Mode::Kernel, 3);
        let lines = shown(&view);
        let starts = [
            "4 samples of 2 vCPUs, one every 10000 cycles, from xen",
            " samples       %  layer       domain            symbol",
            "       3   75.00  kernel      domain 4          [kernel of domain 4]",
            "       1   25.00  user        domain 3          [user mode of domain 3]",
            "",
            "q ends, f shows functions, d domains, p physical CPUs; arrows scroll",
        ];
        assert_eq!(lines, starts);
        assert!(!view.key(KeyCode::Char('d')).unwrap(), "the samples stay");
        let by_domain = shown(&view);
        assert!(by_domain[1].ends_with("domain            layer"), "{by_domain:?}");
        assert_eq!(by_domain[2], "       3   75.00  domain 4          kernel");
        view.key(KeyCode::Char('p')).unwrap();
        assert_eq!(shown(&view)[2], "       3   75.00  0     kernel      domain 4");
        view.key(KeyCode::Char('f')).unwrap();
        assert_eq!(shown(&view), starts);
    }
}
