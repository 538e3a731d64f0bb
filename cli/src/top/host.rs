// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Shows live where a Xen host is: in which domain, in which layer, in which function.

use std::time::Duration;

use anyhow::Result;
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};

use super::{Options, Screen};
use crate::events::every;
use crate::host::{Collector, Hypervisor, only};
use crate::profile::Profile;
use crate::report::symbols::{self, Named};
use crate::report::table::{ordered, percent, table};
use crate::report::{Key, summary};

/// The columns that keys choose.
const DOMAINS: [Key; 2] = [Key::Domain, Key::Layer];
const CPUS: [Key; 3] = [Key::Cpu, Key::Layer, Key::Domain];

/// The samples since the last update, and by what they are distinguished.
pub struct View {
    collector: Collector,
    wanted: Vec<Key>,
    keys: Vec<Key>,
    profile: Profile,
    names: Vec<Named>,
}

impl View {
    pub fn open(options: &Options) -> Result<Self> {
        let event = every(only(&options.event.events(options.unverified))?, options.count);
        // Xen is asked for its functions: to read them from its file takes longer, each time.
        let hypervisor = Hypervisor::here()?;
        let profile = Profile::new(Vec::new(), "xen".into(), event.to_string(), event.period());
        let mut collector = Collector::new(hypervisor, profile);
        collector.begin(event, None)?;
        Self::new(collector, &options.sort)
    }

    fn new(mut collector: Collector, keys: &[Key]) -> Result<Self> {
        let profile = collector.profile();
        let keys = Key::columns(keys, &profile)?;
        Ok(Self { collector, wanted: keys.clone(), keys, profile, names: Vec::new() })
    }
}

impl Screen for View {
    /// It must be said soon if sampling has ended.
    const TICK: Duration = Duration::from_millis(100);

    fn tick(&mut self) -> Result<()> {
        Ok(self.collector.take()?)
    }

    fn update(&mut self) -> Result<()> {
        self.collector.take()?;
        self.profile = self.collector.profile();
        // No function is looked for in a file, so there is nothing to warn of.
        self.names = symbols::name(&self.profile, |_| {});
        Ok(())
    }

    fn key(&mut self, key: KeyCode) -> Result<bool> {
        match key {
            KeyCode::Char('f') => self.keys.clone_from(&self.wanted),
            KeyCode::Char('d') => self.keys = DOMAINS.into(),
            KeyCode::Char('p') => self.keys = CPUS.into(),
            _ => {}
        }
        Ok(false)
    }

    fn text(&self) -> String {
        table(&self.profile, &self.names, &self.keys)
    }

    fn draw(&self, frame: &mut Frame<'_>) {
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
        let titles = ["samples".to_owned(), "%".to_owned()].into_iter().chain(titles);
        let cells = |(cells, samples): (Vec<String>, u64)| {
            let numbers = [samples.to_string(), percent(samples, all)];
            Row::new(numbers.into_iter().chain(cells))
        };
        let width = |key: &Key| match key {
            Key::Cpu => Constraint::Length(4),
            Key::Layer => Constraint::Length(10),
            Key::Domain => Constraint::Length(16),
            _ => Constraint::Fill(1),
        };
        let widths = [Constraint::Length(8), Constraint::Length(6)];
        let widths = widths.into_iter().chain(self.keys.iter().map(width));
        let table = ordered(&self.profile, &self.names, &self.keys).into_iter().map(cells);
        let table = Table::new(table, widths).header(Row::new(titles).bold());
        frame.render_widget(table, rows);
        let what = "q ends, f shows functions, d domains, p physical CPUs";
        frame.render_widget(Line::from(what).dim(), foot);
    }
}

#[cfg(test)]
mod tests {
    use perfctr::host::{HostSample, Mode};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn view() -> View {
        let profile = Profile::new(Vec::new(), "xen".into(), "cycles".into(), 10_000);
        View::new(Collector::new(Hypervisor::without_file(), profile), &[]).unwrap()
    }

    /// Adds so many samples of a domain.
    fn add(view: &mut View, domain: u32, mode: Mode, samples: u32) {
        let sample = HostSample { tsc: 0, ip: 0x20, mode, domain, vcpu: 0, cpu: domain % 2 };
        (0..samples).for_each(|_| view.collector.add(&sample));
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

    #[test]
    fn a_screen_has_the_rows_with_most_samples_first() {
        let mut view = view();
        let shown = |view: &View| {
            let mut terminal = Terminal::new(TestBackend::new(78, 6)).unwrap();
            terminal.draw(|frame| view.draw(frame)).unwrap();
            let cells = terminal.backend().buffer().content().chunks(78);
            let line = |cells: &[ratatui::buffer::Cell]| {
                cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()
            };
            cells.map(line).collect::<Vec<_>>()
        };
        let none = shown(&view);
        assert!(none[0].starts_with("0 samples of 0 vCPUs"), "{none:?}");
        let sample = |mode, domain| HostSample { tsc: 0, ip: 7, mode, domain, vcpu: 0, cpu: 1 };
        view.collector.add(&sample(Mode::User, 3));
        add(&mut view, 4, Mode::Kernel, 3);
        let lines = shown(&view);
        let starts = [
            "4 samples of 2 vCPUs, one every 10000 cycles, from xen",
            "samples  %      layer      domain           symbol",
            "3        75.00  kernel     domain 4         [kernel of domain 4]",
            "1        25.00  user       domain 3         [user mode of domain 3]",
            "",
            "q ends, f shows functions, d domains, p physical CPUs",
        ];
        assert_eq!(lines, starts);
        assert!(!view.key(KeyCode::Char('d')).unwrap(), "the samples stay");
        let by_domain = shown(&view);
        assert!(by_domain[1].ends_with("domain           layer"), "{by_domain:?}");
        assert_eq!(by_domain[2], "3        75.00  domain 4         kernel");
        view.key(KeyCode::Char('p')).unwrap();
        assert_eq!(shown(&view)[2], "3        75.00  0    kernel     domain 4");
        view.key(KeyCode::Char('f')).unwrap();
        assert_eq!(shown(&view), starts);
    }
}
