// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr report`, which shows recorded profiles, for people and for programs.

mod annotate;
mod branches;
mod caused;
mod debuginfod;
pub mod diff;
mod firefox;
mod graph;
mod pprof;
pub mod symbols;
pub mod table;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use inferno::flamegraph::color::{Color, PaletteMap};
use perfctr_gate::text::harmless;

use self::symbols::Named;
use crate::guest;
use crate::host::DomainFile;
use crate::perf_data;
use crate::profile::{Layer, Profile, Stack};
use crate::text::{counted, print_bytes, print_note};

/// The options of `perfctr report`.
#[derive(Debug, Args)]
pub struct Options {
    /// Reads this file, which `perfctr record` or Linux's `perf record` has written.
    #[arg(short, long, default_value = "perfctr.data")]
    input: PathBuf,
    /// Shows only this one of several events that were recorded.
    #[arg(short, long)]
    event: Option<String>,
    /// Distinguishes samples by these columns, separated by commas. Without it, this is the symbol,
    /// with the layer if there are samples of the kernel, and of a host layer, domain and symbol.
    #[arg(short, long, value_enum, value_delimiter = ',')]
    sort: Vec<Key>,
    /// Shows callers, too; needs a profile that was recorded with callers.
    #[arg(short = 'g', long)]
    call_graph: bool,
    /// Shows the instructions of this function in place of the table, with their samples, and the
    /// lines of source that they come from.
    #[arg(
        short,
        long,
        value_name = "FUNCTION",
        conflicts_with_all = ["sort", "call_graph", "format"]
    )]
    annotate: Option<String>,
    /// Shows the branches that samples have in place of the table: how often each was recorded, and
    /// how often the processor had predicted it wrongly. Needs a profile that was recorded with
    /// branches.
    #[arg(
        short,
        long,
        conflicts_with_all = ["sort", "call_graph", "annotate", "caused", "format"]
    )]
    branches: bool,
    /// Shows what a host's domains execute themselves, what the hypervisor executes for them, and
    /// both. Without `--sort`, it distinguishes domains and their functions, for which the profile
    /// must have been recorded with `--at-guests`.
    #[arg(long, conflicts_with_all = ["call_graph", "annotate", "format"])]
    caused: bool,
    /// Adds to a host's profile what a domain has recorded of its own threads and programs with
    /// `perfctr record --names`. May be given once for each domain.
    #[arg(long, value_name = "DOMAIN=FILE")]
    guest: Vec<DomainFile>,
    /// Writes this format.
    #[arg(short, long, value_enum, default_value = "text")]
    format: Format,
    /// Writes it to this file in place of the standard output.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// Columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Key {
    /// The thread's number and name. In a host's profile this is the virtual CPU, or the thread of
    /// the domain if `--guest` names it.
    Thread,
    /// The number and the name of the domain's process, in a host's profile with `--guest`.
    Process,
    /// The control group (cgroup v2) of that process. On a KVM host, the host's own processes have
    /// one, too.
    Cgroup,
    /// The file that the code is in.
    Module,
    /// The function.
    Symbol,
    /// The line of source, if there is debugging information.
    Line,
    /// The kernel or user mode; in a host's profile the hypervisor, a domain's kernel or its user
    /// mode.
    Layer,
    /// The domain, in a host's profile.
    Domain,
    /// The physical CPU, in a host's profile.
    Cpu,
    /// The tenth of a second in which samples were taken, since the recording began. Unit: s. As
    /// the first column, it orders the rows.
    Time,
}

impl Key {
    /// Returns the columns of a table of this profile, which are these if there are any.
    pub fn columns(keys: &[Self], profile: &Profile) -> Result<Vec<Self>> {
        let is_host = profile.host.is_some();
        let has_layers = profile.modules.iter().any(|module| module.layer.is_some());
        let has_tasks = profile.threads.iter().any(|thread| thread.task.is_some());
        if keys.is_empty() {
            return Ok(match (is_host, has_layers) {
                (true, _) if has_tasks => {
                    vec![Self::Layer, Self::Domain, Self::Process, Self::Symbol]
                }
                (true, _) => vec![Self::Layer, Self::Domain, Self::Symbol],
                (false, true) => vec![Self::Layer, Self::Symbol],
                (false, false) => vec![Self::Symbol],
            });
        }
        for key in keys {
            let is_hosts = matches!(key, Self::Domain | Self::Cpu);
            ensure!(
                is_host || has_layers || *key != Self::Layer,
                "the profile has no samples of the kernel, so it has no layers"
            );
            ensure!(
                has_tasks || !matches!(key, Self::Process | Self::Cgroup),
                "the profile does not say which processes its domains executed: `--guest` adds that"
            );
            ensure!(
                is_host || !is_hosts,
                "the column {} is one of hosts' profiles, which `perfctr record --host` writes",
                key.heading()
            );
        }
        let known = |stack: &Stack| stack.times.len() as u64 == stack.samples;
        ensure!(
            !keys.contains(&Self::Time) || profile.stacks.iter().all(known),
            "the profile does not say when samples were taken: an earlier release has recorded it"
        );
        Ok(keys.to_vec())
    }

    fn headings(keys: &[Self]) -> Vec<String> {
        keys.iter().map(|key| key.heading()).collect()
    }

    pub fn heading(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table, for people.
    Text,
    /// A line for each stack, as tools for flame graphs read them.
    Folded,
    /// An SVG picture, for browsers.
    FlameGraph,
    /// The format that `go tool pprof` and others read.
    Pprof,
    /// The format that profiler.firefox.com reads.
    Firefox,
    /// A perf.data file, which Linux's perf and others read.
    Perf,
}

/// Runs `perfctr report`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut profiles = Profile::read(&options.input)?;
    if let Some(event) = &options.event {
        choose(&mut profiles, event)?;
    }
    for guest in &options.guest {
        for profile in &mut profiles {
            print_note(guest::join(profile, guest)?);
        }
    }
    for profile in &profiles {
        ensure!(
            !options.call_graph || profile.call_graph,
            "{} has no callers: `perfctr record -g` notes them",
            options.input.display()
        );
    }
    let bytes = match options.format {
        Format::Perf => perf_data::encode(&profiles)?,
        Format::Text => {
            let texts = profiles.iter().map(|profile| text(options, profile));
            texts.collect::<Result<Vec<String>>>()?.join("\n").into_bytes()
        }
        Format::Folded => {
            of_one(&profiles, |profile, names| Ok(folded(profile, names, usual(profile)).into()))?
        }
        Format::FlameGraph => of_one(&profiles, flame_graph)?,
        Format::Pprof => of_one(&profiles, |profile, names| Ok(pprof::encode(profile, names)))?,
        Format::Firefox => of_one(&profiles, firefox::encode)?,
    };
    match &options.output {
        Some(path) => {
            fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => print_bytes(&bytes)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Keeps only this event's profile.
fn choose(profiles: &mut Vec<Profile>, event: &str) -> Result<()> {
    let all = events(profiles);
    profiles.retain(|profile| profile.event == event);
    ensure!(!profiles.is_empty(), "{all} found, and not {event}");
    Ok(())
}

/// Returns the names of the recorded events.
pub fn events(profiles: &[Profile]) -> String {
    let names: Vec<String> = profiles.iter().map(|profile| harmless(&profile.event)).collect();
    names.join(", ")
}

/// Returns the output for people.
fn text(options: &Options, profile: &Profile) -> Result<String> {
    let names = || symbols::name(profile, |text| print_note(text));
    if let Some(function) = &options.annotate {
        return annotate::annotate(profile, &names(), function);
    }
    if options.branches {
        return branches::table(profile, &names());
    }
    if options.caused {
        let keys = caused::columns(&options.sort, profile)?;
        return Ok(caused::table(profile, &names(), &keys));
    }
    let keys = Key::columns(&options.sort, profile)?;
    let names = names();
    let graph = options.call_graph.then(|| graph::tree(profile, &names));
    Ok(table::table(profile, &names, &keys) + &graph.unwrap_or_default())
}

/// Returns a document that has one event, and the names of its functions.
fn of_one(
    profiles: &[Profile],
    document: impl FnOnce(&Profile, &[Named]) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let [profile] = profiles else { bail!("{} found: `--event` chooses one", events(profiles)) };
    document(profile, &symbols::name(profile, |text| print_note(text)))
}

/// Returns the thread of a stack.
fn thread(profile: &Profile, stack: &Stack) -> String {
    let thread = &profile.threads[stack.thread as usize];
    match profile.host {
        Some(_) => profile.name(thread),
        None => format!("{} {}", thread.tid, harmless(&thread.name)),
    }
}

/// Returns who executes at a frame: a layer of a host, or in another profile the kernel.
fn layer(profile: &Profile, frame: u32) -> Option<Layer> {
    let module = profile.frames[frame as usize].module?;
    profile.modules[module as usize].layer
}

/// Returns the functions of a stack, the outermost first, inlined ones included.
fn functions<'a>(names: &'a [Named], stack: &'a Stack) -> impl Iterator<Item = &'a str> {
    framed(names, stack).map(|(_, function)| function)
}

/// Returns the same, each with its frame.
fn framed<'a>(names: &'a [Named], stack: &'a Stack) -> impl Iterator<Item = (u32, &'a str)> {
    stack.frames.iter().rev().flat_map(|&frame| {
        let places = names[frame as usize].places.iter().rev();
        places.map(move |place| (frame, place.function.as_str()))
    })
}

/// Returns a line for each stack: thread and functions, the outermost first, and the number of
/// samples. If they are a host's functions, their layer comes before them. `mark` returns the mark
/// behind each word of a layer, and behind words without a layer, such as the thread.
fn folded(
    profile: &Profile,
    names: &[Named],
    mark: impl Fn(Option<Layer>) -> &'static str,
) -> String {
    let line = |stack: &Stack| {
        // A stack has at least one frame.
        let of_host = layer(profile, stack.frames[0]).filter(|_| profile.host.is_some());
        let words = of_host.map(|layer| layer.name().to_owned() + mark(of_host)).into_iter();
        let words = words.chain(
            framed(names, stack)
                .map(|(frame, function)| function.to_owned() + mark(layer(profile, frame))),
        );
        let words = [thread(profile, stack) + mark(None)].into_iter().chain(words);
        // The separators may not be in the names.
        let words: Vec<String> = words.map(|word| word.replace([';', '\n'], ":")).collect();
        format!("{} {}\n", words.join(";"), stack.samples)
    };
    let mut lines: Vec<String> = profile.stacks.iter().map(line).collect();
    lines.sort_unstable();
    lines.concat()
}

/// The colours of a host's layers.
const COLOURS: &str = "orange: hypervisor, blue: kernels, green: user mode";

/// Returns the mark that gives a word of a layer, or a virtual CPU, its colour. A mark is needed
/// because functions of several layers may have the same name. The picture does not show the mark.
fn mark(layer: Option<Layer>) -> &'static str {
    match layer {
        Some(Layer::Hypervisor) => "_[k]",
        Some(Layer::Kernel) => "_[i]",
        Some(Layer::User) => "_[j]",
        None => "_[w]",
    }
}

/// Returns the marks for folded stacks that other tools read. Tools for flame graphs recognise
/// functions of the kernel by perf's mark. They know nothing of a host's layers.
fn usual(profile: &Profile) -> fn(Option<Layer>) -> &'static str {
    match profile.host {
        Some(_) => |_| "",
        None => |layer| if layer == Some(Layer::Kernel) { KERNEL_MARK } else { "" },
    }
}

/// The mark behind the kernel's functions.
const KERNEL_MARK: &str = "_[k]";

/// Returns the colour of a marked word. Neighbours in one layer have different shades of it.
fn colour(word: &str) -> Color {
    let hash = word.bytes().fold(0_u32, |hash, byte| hash.wrapping_mul(31) + u32::from(byte));
    let shade = (hash % 48) as u8;
    let is_marked = |layer| word.ends_with(mark(Some(layer)));
    let [r, g, b] = if is_marked(Layer::Hypervisor) {
        [232 + shade / 4, 128 + shade, 48 + shade]
    } else if is_marked(Layer::Kernel) {
        [96 + shade, 152 + shade, 232 + shade / 4]
    } else if is_marked(Layer::User) {
        [112 + shade, 192 + shade, 96 + shade]
    } else {
        [208; 3]
    };
    Color { r, g, b }
}

/// Returns the colours of all words of a host's folded stacks, and of the box below them.
fn colours(folded: &str) -> PaletteMap {
    let mut colours = PaletteMap::default();
    let stacks = folded.lines().filter_map(|line| line.rsplit_once(' '));
    for word in stacks.flat_map(|(stack, _)| stack.split(';')).chain([""]) {
        colours.insert(word, colour(word));
    }
    colours
}

/// Returns the colours of the kernel's functions in a program's folded stacks. They are the colours
/// of kernels in the picture of a host.
fn kernels_colours(folded: &str) -> PaletteMap {
    let mut colours = PaletteMap::default();
    let stacks = folded.lines().filter_map(|line| line.rsplit_once(' '));
    for word in stacks.flat_map(|(stack, _)| stack.split(';')) {
        if let Some(name) = word.strip_suffix(KERNEL_MARK) {
            colours.insert(word, colour(&format!("{name}{}", mark(Some(Layer::Kernel)))));
        }
    }
    colours
}

fn flame_graph(profile: &Profile, names: &[Named]) -> Result<Vec<u8>> {
    ensure!(!profile.stacks.is_empty(), "there are no samples to draw");
    let mut options = inferno::flamegraph::Options::default();
    options.title = harmless(&profile.command.join(" "));
    options.subtitle = Some(summary(profile));
    let mut picture = Vec::new();
    let mut of_layers;
    let text = if profile.host.is_some() {
        let text = folded(profile, names, mark);
        of_layers = colours(&text);
        options.palette_map = Some(&mut of_layers);
        options.subtitle = Some(format!("{}; {COLOURS}", summary(profile)));
        text
    } else {
        let text = folded(profile, names, usual(profile));
        of_layers = kernels_colours(&text);
        if text.contains(KERNEL_MARK) {
            options.palette_map = Some(&mut of_layers);
            options.subtitle = Some(format!("{}; blue: the kernel", summary(profile)));
        }
        text
    };
    inferno::flamegraph::from_lines(&mut options, text.lines(), &mut picture)?;
    Ok(picture)
}

/// Returns a line that describes the samples.
pub fn summary(profile: &Profile) -> String {
    let Profile { period, frequency, event, provider, .. } = profile;
    let samples = counted(profile.samples(), "sample");
    let threads = counted(profile.number_of_threads(), profile.thread_noun());
    let [event, provider] = [event, provider].map(|text| harmless(text));
    let every = match frequency {
        Some(frequency) => {
            format!("{frequency} in a second, one every {period} {event} on average")
        }
        None => format!("one every {period} {event}"),
    };
    format!("{samples} of {threads}, {every}, from {provider}")
}

#[cfg(test)]
mod tests {
    use super::symbols::Place;
    use super::*;
    use crate::elf::Facts;
    use crate::profile::{Frame, Host, Module, Symbol, Task, Thread};

    /// Returns a profile of two threads in `f`. One sample is in a function that was inlined there.
    /// `main` calls `f`.
    pub fn profile() -> (Profile, Vec<Named>) {
        let words = vec!["./a".to_owned(), "b".to_owned()];
        let mut profile = Profile::new(words, "native".into(), "instructions:u".into(), 100);
        profile.call_graph = true;
        let facts = Facts { build_id: Some("cd".into()), code: Vec::new() };
        profile.modules.push(Module::new("/bin/a".as_ref(), facts));
        for address in [0x10, 0x20, 0x30] {
            profile.frames.push(Frame { module: Some(0), address });
        }
        for (tid, name) in [(7, "one"), (8, "two")] {
            profile.threads.push(Thread { tid, pid: 7, name: name.into(), count: 450, task: None });
        }
        for (thread, samples, frames) in [(0, 3, vec![0, 2]), (1, 1, vec![0, 2]), (1, 2, vec![1])] {
            profile.stacks.push(Stack { thread, samples, frames, ..Stack::default() });
        }
        let place = |function: &str, line| Place {
            function: function.into(),
            file: Some("a.c".into()),
            line,
        };
        let named = |places, offset| Named { module: "a".into(), places, offset };
        let names = vec![
            named(vec![place("g;<inlined>", 3), place("f", 5)], Some(0x10)),
            named(vec![Place { function: "f".into(), file: None, line: 0 }], Some(0x20)),
            named(vec![place("main", 9)], None),
        ];
        (profile, names)
    }

    #[test]
    fn stacks_are_folded_from_the_outermost_on() {
        let (profile, names) = profile();
        assert_eq!(
            folded(&profile, &names, |_| ""),
            "7 one;main;f;g:<inlined> 3\n8 two;f 2\n8 two;main;f;g:<inlined> 1\n"
        );
    }

    /// Returns a thread that a domain has named.
    pub fn task() -> Task {
        let (name, process) = ("worker".to_owned(), "web".to_owned());
        Task { pid: 70, tid: 71, name, process, cgroup: "/web.slice".into() }
    }

    /// Returns a profile of a host: the hypervisor for two domains, a kernel, and a user mode.
    pub fn of_host() -> (Profile, Vec<Named>) {
        let mut profile = Profile::new(Vec::new(), "xen".into(), "cycles".into(), 10_000);
        profile.host = Some(Host {
            hypervisor: "Xen 4.17".into(),
            build_id: Some("cd".into()),
            cpus: vec![0, 1],
            tsc: 5,
            tsc_per_second: 1_000_000_000,
            at_guests: false,
            clocks: Vec::new(),
            kvm: None,
        });
        for (n, (path, layer)) in [
            ("[xen]", Layer::Hypervisor),
            ("[kernel]", Layer::Kernel),
            ("[user mode of domain 3]", Layer::User),
        ]
        .into_iter()
        .enumerate()
        {
            let mut module = Module::new(path.as_ref(), Facts::default());
            module.layer = Some(layer);
            profile.modules.push(module);
            profile.frames.push(Frame { module: Some(n as u32), address: 0xffff_8000_0000_0010 });
        }
        profile.frames[2].address = 0x10;
        let function =
            |start: u64, name: &str| vec![Symbol { start, end: start + 0x20, name: name.into() }];
        profile.modules[0].symbols = function(0xffff_8000_0000_0000, "schedule");
        profile.modules[1].symbols = function(0xffff_8000_0000_0008, "do_idle");
        for (domain, name) in [(0, "Domain-0"), (3, "")] {
            let thread = Thread { tid: 1, pid: domain, name: name.into(), count: 0, task: None };
            profile.threads.push(thread);
        }
        for (thread, cpu, samples, frame) in
            [(0, 0, 4, 0), (0, 1, 2, 1), (1, 1, 1, 0), (1, 1, 3, 2)]
        {
            let times = (0..samples).collect();
            profile.stacks.push(Stack {
                thread,
                cpu: Some(cpu),
                samples,
                frames: vec![frame],
                times,
                ..Stack::default()
            });
        }
        profile.lost = 5;
        profile.count_by_samples();
        profile.check().unwrap();
        let names = symbols::name(&profile, |why| panic!("{why}"));
        (profile, names)
    }

    #[test]
    fn a_host_is_folded_and_drawn_by_layers() {
        let (profile, names) = of_host();
        assert_eq!(
            folded(&profile, &names, |_| ""),
            "Domain-0 vCPU 1;hypervisor;schedule 4\nDomain-0 vCPU 1;kernel;do_idle 2\n\
             domain 3 vCPU 1;hypervisor;schedule 1\n\
             domain 3 vCPU 1;user;[user mode of domain 3] 3\n"
        );
        let text = String::from_utf8(flame_graph(&profile, &names).unwrap()).unwrap();
        let colour = |function: &str| {
            let (_, rest) = text.split_once(&format!("<title>{function} (")).unwrap();
            let (_, rest) = rest.split_once("fill=\"rgb(").unwrap();
            let numbers = rest.split(')').next().unwrap().split(',');
            let rgb: Vec<u32> = numbers.map(|number| number.parse().unwrap()).collect();
            <[u32; 3]>::try_from(rgb).unwrap()
        };
        let [red, green, blue] = colour("schedule");
        assert!(red > green && green > blue, "orange");
        let [red, green, blue] = colour("do_idle");
        assert!(red < green && green < blue, "blue");
        let [red, green, blue] = colour("[user mode of domain 3]");
        assert!(red < green && blue < green, "green");
        let [red, green, blue] = colour("Domain-0 vCPU 1");
        assert!(red == green && green == blue, "a virtual CPU is of no layer");
        assert!(text.contains(COLOURS) && !text.contains("_["));
    }

    /// Returns the profile above, in which the kernel once executes for the function in `f`.
    pub fn with_kernel() -> (Profile, Vec<Named>) {
        let (mut profile, mut names) = profile();
        let mut kernel = Module::new("[kernel]".as_ref(), Facts::default());
        kernel.layer = Some(Layer::Kernel);
        profile.modules.push(kernel);
        profile.frames.push(Frame { module: Some(1), address: 0xffff_ffff_8100_0010 });
        let place = Place { function: "do_idle".into(), file: None, line: 0 };
        names.push(Named { module: "[kernel]".into(), places: vec![place], offset: None });
        profile.stacks[1].frames.insert(0, 3);
        (profile, names)
    }

    #[test]
    fn the_kernels_functions_are_marked_behind_those_of_user_mode() {
        let (profile, names) = with_kernel();
        assert_eq!(
            folded(&profile, &names, usual(&profile)),
            "7 one;main;f;g:<inlined> 3\n8 two;f 2\n8 two;main;f;g:<inlined>;do_idle_[k] 1\n"
        );
        let text = String::from_utf8(flame_graph(&profile, &names).unwrap()).unwrap();
        assert!(text.contains("blue: the kernel") && !text.contains("_["), "{text}");
        let (_, rest) = text.split_once("<title>do_idle (").unwrap();
        let (_, rest) = rest.split_once("fill=\"rgb(").unwrap();
        let numbers = rest.split(')').next().unwrap().split(',');
        let rgb: Vec<u32> = numbers.map(|number| number.parse().unwrap()).collect();
        assert!(rgb[0] < rgb[1] && rgb[1] < rgb[2], "{rgb:?} is not blue");
        assert_eq!(Key::columns(&[], &profile).unwrap(), [Key::Layer, Key::Symbol]);
        let table = table::table(&profile, &names, &[Key::Layer, Key::Symbol]);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        let expected = [
            "   samples       %  layer   symbol",
            "         5   83.33  user    f",
            "         1   16.67  kernel  do_idle",
        ];
        assert_eq!(rows, expected);
        let error = Key::columns(&[Key::Layer], &self::profile().0).unwrap_err().to_string();
        assert!(error.contains("no samples of the kernel"), "{error}");
    }

    #[test]
    fn an_event_is_chosen_from_those_that_were_recorded() {
        let mut two = vec![profile().0, profile().0];
        two[1].event = "cycles:u".to_owned();
        let mut chosen = two.clone();
        choose(&mut chosen, "cycles:u").unwrap();
        assert_eq!(chosen, two[1..]);
        let error = choose(&mut two, "branches:u").unwrap_err().to_string();
        assert_eq!(error, "instructions:u, cycles:u found, and not branches:u");
    }

    #[test]
    fn columns_of_hosts_are_refused_for_programs() {
        let [mut host, program] = [of_host().0, profile().0];
        assert_eq!(Key::columns(&[], &program).unwrap(), [Key::Symbol]);
        assert_eq!(Key::columns(&[], &host).unwrap(), [Key::Layer, Key::Domain, Key::Symbol]);
        assert_eq!(Key::columns(&[Key::Cpu], &host).unwrap(), [Key::Cpu]);
        // A live view begins with a host from which nothing was sampled yet.
        host.modules.clear();
        assert_eq!(Key::columns(&[Key::Layer], &host).unwrap(), [Key::Layer]);
        let error = Key::columns(&[Key::Symbol, Key::Domain], &program).unwrap_err().to_string();
        assert!(error.starts_with("the column domain is one of hosts' profiles"), "{error}");
    }

    #[test]
    fn the_flame_graph_is_a_picture_of_the_functions() {
        let (profile, names) = profile();
        let text = String::from_utf8(flame_graph(&profile, &names).unwrap()).unwrap();
        for part in ["<svg", "./a b", "6 samples of 2 threads", "g:&lt;inlined&gt; (3 samples"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn threads_of_domains_are_shown_where_they_are_known() {
        let (mut profile, names) = of_host();
        for key in [Key::Process, Key::Cgroup] {
            let why = Key::columns(&[key], &profile).unwrap_err().to_string();
            assert!(why.ends_with("`--guest` adds that"), "{why}");
        }
        profile.threads[1].task = Some(task());
        let columns = Key::columns(&[], &profile).unwrap();
        assert_eq!(columns, [Key::Layer, Key::Domain, Key::Process, Key::Symbol]);
        let keys = [Key::Process, Key::Thread];
        let rows: Vec<_> = table::rows(&profile, &names, &keys).into_iter().collect();
        let row = |process: &str, thread: &str, samples| {
            (vec![process.to_owned(), thread.to_owned()], samples)
        };
        let expected = [row("-", "Domain-0 vCPU 1", 6), row("70 web", "domain 3 71 worker", 4)];
        assert_eq!(rows, expected);
        let groups = |profile: &Profile| {
            let rows = table::rows(profile, &names, &[Key::Cgroup]).into_iter();
            rows.map(|(row, samples)| (row.concat(), samples)).collect::<Vec<_>>()
        };
        assert_eq!(groups(&profile), [("-".to_owned(), 6), ("/web.slice".to_owned(), 4)]);
        let mut hostile = profile.clone();
        let task = Task { cgroup: "/a\u{1b}[31m".into(), ..task() };
        hostile.threads[1].task = Some(task);
        assert_eq!(groups(&hostile)[1].0, "/a\\u{1b}[31m");
        hostile.threads[1].task = Some(Task { cgroup: "".into(), ..self::task() });
        assert_eq!(groups(&hostile), [("-".to_owned(), 10)]);
        let folded = folded(&profile, &names, usual(&profile));
        let line = "domain 3 71 worker;user;[user mode of domain 3] 3";
        assert!(folded.lines().any(|found| found == line), "{folded}");
        profile.threads.push(Thread { task: None, ..profile.threads[1].clone() });
        assert!(summary(&profile).starts_with("10 samples of 2 vCPUs"), "{}", summary(&profile));
    }
}
