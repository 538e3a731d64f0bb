// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Writes the Firefox Profiler's format, which <https://profiler.firefox.com> reads.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context, Result};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, ProcessHandle,
    Profile as Document, ReferenceTimestamp, SamplingInterval, StackHandle, ThreadHandle,
    Timestamp, WeightType,
};
use serde_json::Value;

use super::symbols::Named;
use super::{framed, layer, summary};
use crate::host::CONTROL_DOMAIN;
use crate::profile::{Layer, Profile, Stack};

/// The time between two samples of profiles without times. The profiler wants some, so a track's
/// samples follow each other there, one in each ms.
const PERIOD_NS: u64 = 1_000_000;

/// The number of the process whose threads are the physical CPUs. No domain has it.
const PHYSICAL: u32 = u32::MAX;

/// A sample: its time, its track, its frames and its weight.
type Sample = (u64, ThreadHandle, Option<StackHandle>, i32);

/// Returns the whole document, in which all names are resolved.
pub fn encode(profile: &Profile, names: &[Named]) -> Result<Vec<u8>> {
    let title = profile.command.join(" ");
    let epoch = ReferenceTimestamp::from_millis_since_unix_epoch(0.0);
    let mut document = Document::new(&title, epoch, SamplingInterval::from_nanos(PERIOD_NS));
    document.set_product(&format!("{title}: {}", summary(profile)));
    document.set_symbolicated(true);
    let mut threads = threads(&mut document, profile);
    let mut cpus = cpus(&mut document, profile);
    let (mut categories, mut samples) = (HashMap::new(), Vec::new());
    for stack in &profile.stacks {
        let frame = |(frame, function): (u32, &str)| {
            let category = category(profile, stack, frame).map(|(name, colour)| {
                *categories.entry(name).or_insert_with(|| document.add_category(name, colour))
            });
            label(&mut document, function, category.unwrap_or(CategoryHandle::OTHER))
        };
        let mut frames: Vec<FrameInfo> = framed(names, stack).map(frame).collect();
        let thread = stack.thread as usize;
        let (tracks, of_threads) = &mut threads;
        samples.extend(tracks[of_threads[thread]].samples(&mut document, stack, &frames)?);
        if let Some(cpu) = stack.cpu.and_then(|cpu| cpus.get_mut(&cpu)) {
            let vcpu = profile.name(&profile.threads[thread]);
            frames.insert(0, label(&mut document, &vcpu, CategoryHandle::OTHER));
            samples.extend(cpu.samples(&mut document, stack, &frames)?);
        }
    }
    samples.sort_by_key(|(time, ..)| *time);
    for (time, thread, frames, weight) in samples {
        document.add_sample(thread, at(time), frames, CpuDelta::ZERO, weight);
    }
    let mut document = serde_json::to_value(&document)?;
    remove_cpu_times(&mut document);
    Ok(serde_json::to_vec(&document)?)
}

/// Removes the samples' CPU times, which nobody has measured. The profiler draws a track as high as
/// the share of CPU time in it, so it would draw nothing if all of these times were 0.
fn remove_cpu_times(document: &mut Value) {
    for thread in document["threads"].as_array_mut().into_iter().flatten() {
        if let Some(samples) = thread["samples"].as_object_mut() {
            samples.remove("threadCPUDelta");
        }
    }
}

/// Adds a track for each thread. In the profile of a host these are virtual CPUs, and the threads
/// of domains that are known, which several virtual CPUs may have executed. Returns the tracks, and
/// the index of each thread's track.
fn threads(document: &mut Document, profile: &Profile) -> (Vec<Track>, Vec<usize>) {
    let (mut processes, mut known) = (HashMap::new(), HashMap::new());
    let (mut tracks, mut of_threads) = (Vec::new(), Vec::new());
    for (n, thread) in profile.threads.iter().enumerate() {
        let is_vcpu = profile.host.is_some();
        let title = profile.name(thread);
        let (domain, task) = (thread.pid, thread.task.as_ref());
        let process = *processes.entry((domain, task.map(|task| task.pid))).or_insert_with(|| {
            let (name, pid) = match task {
                Some(task) => (format!("{} {}", thread.domain(), thread.process()), task.pid),
                None if is_vcpu => (thread.domain(), domain),
                None => (title.clone(), domain),
            };
            document.add_process(&name, pid, at(0))
        });
        // The numbers of a domain and of its virtual CPUs have nothing to do with each other.
        let (pid, tid) = task.map_or((domain, thread.tid), |task| (task.pid, task.tid));
        let is_main = (!is_vcpu || task.is_some()) && tid == pid;
        let key = (domain, task, task.is_none().then_some(n));
        of_threads.push(*known.entry(key).or_insert_with(|| {
            tracks.push(Track::new(document, process, tid, is_main, &title));
            tracks.len() - 1
        }));
    }
    (tracks, of_threads)
}

/// Adds a track for each physical CPU that has samples.
fn cpus(document: &mut Document, profile: &Profile) -> BTreeMap<u32, Track> {
    let cpus: BTreeSet<u32> = profile.stacks.iter().filter_map(|stack| stack.cpu).collect();
    let process = document.add_process("physical CPUs", PHYSICAL, at(0));
    let track = |cpu| (cpu, Track::new(document, process, cpu, false, &format!("CPU {cpu}")));
    cpus.into_iter().map(track).collect()
}

/// A line of the profiler's picture, which it calls a thread.
struct Track {
    thread: ThreadHandle,
    /// The samples without times that are in it already.
    before: u64,
}

impl Track {
    fn new(
        document: &mut Document,
        process: ProcessHandle,
        tid: u32,
        is_main: bool,
        title: &str,
    ) -> Self {
        let thread = document.add_thread(process, tid, at(0), is_main);
        document.set_thread_name(thread, title);
        document.set_thread_samples_weight_type(thread, WeightType::Samples);
        Self { thread, before: 0 }
    }

    /// Returns the samples of a stack in this track.
    fn samples(
        &mut self,
        document: &mut Document,
        stack: &Stack,
        frames: &[FrameInfo],
    ) -> Result<Vec<Sample>> {
        let frames = document.intern_stack_frames(self.thread, frames.iter().cloned());
        if !stack.times.is_empty() {
            let sample = |&time: &u64| (time, self.thread, frames, 1);
            return Ok(stack.times.iter().map(sample).collect());
        }
        let weight = i32::try_from(stack.samples).with_context(|| {
            let found = stack.samples;
            format!("{found} samples of one stack found, {} at most expected", i32::MAX)
        })?;
        let time = self.before * PERIOD_NS;
        self.before += stack.samples;
        Ok(vec![(time, self.thread, frames, weight)])
    }
}

/// Returns the name and the colour of a frame's category, if it has a layer. The control domain's
/// user mode is not that of a tenant: there the host's own programs execute.
fn category(profile: &Profile, stack: &Stack, frame: u32) -> Option<(&'static str, CategoryColor)> {
    let domain = profile.threads[stack.thread as usize].pid;
    Some(match layer(profile, frame)? {
        Layer::Hypervisor => ("Hypervisor", CategoryColor::Orange),
        Layer::Kernel => ("Kernel", CategoryColor::Blue),
        Layer::User if domain == CONTROL_DOMAIN => ("Host user", CategoryColor::Purple),
        Layer::User => ("User", CategoryColor::Green),
    })
}

/// Returns a frame with this text.
fn label(document: &mut Document, text: &str, category: CategoryHandle) -> FrameInfo {
    FrameInfo {
        frame: Frame::Label(document.intern_string(text)),
        category_pair: category.into(),
        flags: FrameFlags::empty(),
    }
}

/// Returns the profiler's form of a time since the recording began.
fn at(ns: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(ns)
}

#[cfg(test)]
mod tests {
    use super::super::symbols;
    use super::super::tests::{of_host, profile, task, with_kernel};
    use super::*;
    use crate::elf::Facts;
    use crate::profile::{self, Module};

    /// Returns a thread's stacks, the outermost function first, with their weights, as the format's
    /// description has them: tables whose columns are arrays.
    fn stacks(thread: &Value) -> Vec<(String, u64)> {
        let column = |table: &Value, name: &str, row: u64| table[name][row as usize].clone();
        let strings = &thread["stringArray"];
        let samples = &thread["samples"];
        let stack = |n: u64| {
            let (mut words, mut at) = (Vec::new(), column(samples, "stack", n));
            while let Some(row) = at.as_u64() {
                let frame = column(&thread["stackTable"], "frame", row).as_u64().unwrap();
                let func = column(&thread["frameTable"], "func", frame).as_u64().unwrap();
                let name = column(&thread["funcTable"], "name", func).as_u64().unwrap();
                words.push(strings[name as usize].as_str().unwrap().to_owned());
                at = column(&thread["stackTable"], "prefix", row);
            }
            words.reverse();
            (words.join(" > "), column(samples, "weight", n).as_u64().unwrap())
        };
        (0..samples["length"].as_u64().unwrap()).map(stack).collect()
    }

    #[test]
    fn threads_have_their_stacks_and_samples() {
        let (profile, names) = profile();
        let document: Value = serde_json::from_slice(&encode(&profile, &names).unwrap()).unwrap();
        let threads = document["threads"].as_array().unwrap();
        let found: Vec<_> =
            threads.iter().map(|thread| (thread["tid"].clone(), stacks(thread))).collect();
        let of = |stacks: &[(&str, u64)]| -> Vec<(String, u64)> {
            stacks.iter().map(|&(words, samples)| (words.to_owned(), samples)).collect()
        };
        let inlined = "main > f > g;<inlined>";
        assert_eq!(found[0].1, of(&[(inlined, 3)]));
        assert_eq!(found[1].1, of(&[(inlined, 1), ("f", 2)]));
        assert_eq!((found[0].0.as_str(), found[1].0.as_str()), (Some("7"), Some("8")));
        assert_eq!(threads[1]["samples"]["weightType"], "samples");
        let deltas = threads[1]["samples"]["timeDeltas"].as_array().unwrap();
        let deltas: Vec<f64> = deltas.iter().map(|delta| delta.as_f64().unwrap()).collect();
        assert_eq!(deltas, [0.0, 1.0], "the second stack begins behind the first one's sample");
        assert_eq!(threads[1]["samples"].get("threadCPUDelta"), None, "tracks have a height");
        assert_eq!(document["meta"]["symbolicated"], true);
    }

    #[test]
    fn the_kernels_functions_are_of_a_category_of_their_own() {
        let (profile, names) = with_kernel();
        let document: Value = serde_json::from_slice(&encode(&profile, &names).unwrap()).unwrap();
        let categories = document["meta"]["categories"].as_array().unwrap();
        let kernel = categories.iter().position(|category| category["name"] == "Kernel").unwrap();
        let of = |thread: usize| {
            let frames = &document["threads"][thread]["frameTable"]["category"];
            let all = frames.as_array().unwrap().iter();
            all.filter(|category| category.as_u64() == Some(kernel as u64)).count()
        };
        assert_eq!([of(0), of(1)], [0, 1]);
    }

    #[test]
    fn a_thread_of_a_domain_has_one_track_on_whatever_virtual_cpus_it_was() {
        let (mut profile, names) = of_host();
        profile.threads[1].task = Some(task());
        let other = profile::Thread { tid: 0, ..profile.threads[1].clone() };
        profile.threads.push(other);
        profile.stacks[2].thread = 2;
        let document: Value = serde_json::from_slice(&encode(&profile, &names).unwrap()).unwrap();
        let track = |thread: &Value| {
            let text = |key: &str| thread[key].as_str().unwrap().to_owned();
            (text("processName"), text("name"), text("tid"), stacks(thread).len())
        };
        let tracks: Vec<_> = document["threads"].as_array().unwrap().iter().map(track).collect();
        let expected = ("domain 3 70 web".into(), "domain 3 71 worker".into(), "71".into(), 4);
        assert!(tracks.contains(&expected) && tracks.len() == 4, "{tracks:?}");
    }

    #[test]
    fn processes_of_two_domains_with_the_same_number_are_two() {
        let (mut profile, names) = of_host();
        for thread in &mut profile.threads {
            thread.task = Some(task());
        }
        let document: Value = serde_json::from_slice(&encode(&profile, &names).unwrap()).unwrap();
        let track = |thread: &Value| {
            let text = |key: &str| thread[key].as_str().unwrap().to_owned();
            (text("processName"), text("pid"), stacks(thread).len())
        };
        let mut all: Vec<_> = document["threads"].as_array().unwrap().iter().map(track).collect();
        all.retain(|(process, ..)| process != "physical CPUs");
        let [web, other] = &all[..] else { panic!("{all:?}") };
        assert_eq!([&*web.0, &*other.0], ["Domain-0 70 web", "domain 3 70 web"]);
        assert_ne!(web.1, other.1, "the profiler shows what has one number as one process");
        assert_eq!([web.2, other.2], [6, 4]);
    }

    #[test]
    fn each_layer_of_a_host_has_a_colour_of_its_own() {
        let (mut profile, _) = of_host();
        let mut module = Module::new("[user mode of domain 0]".as_ref(), Facts::default());
        module.layer = Some(Layer::User);
        profile.modules.push(module);
        profile.frames.push(profile::Frame { module: Some(3), address: 0x10 });
        profile.stacks[1].frames = vec![1, 3];
        let names = symbols::name(&profile, |why| panic!("{why}"));
        let document: Value = serde_json::from_slice(&encode(&profile, &names).unwrap()).unwrap();
        let mut found = BTreeSet::new();
        for thread in document["threads"].as_array().unwrap() {
            let frames = &thread["frameTable"];
            for n in 0..frames["length"].as_u64().unwrap() as usize {
                let func = frames["func"][n].as_u64().unwrap() as usize;
                let name = thread["funcTable"]["name"][func].as_u64().unwrap() as usize;
                let category = frames["category"][n].as_u64().unwrap() as usize;
                let category = &document["meta"]["categories"][category];
                let words = [&thread["stringArray"][name], &category["name"], &category["color"]];
                found.insert(words.map(|word| word.as_str().unwrap().to_owned()));
            }
        }
        let expected = [
            ["Domain-0 vCPU 1", "Other", "grey"],
            ["[user mode of domain 0]", "Host user", "purple"],
            ["[user mode of domain 3]", "User", "green"],
            ["do_idle", "Kernel", "blue"],
            ["domain 3 vCPU 1", "Other", "grey"],
            ["schedule", "Hypervisor", "orange"],
        ];
        assert_eq!(found, BTreeSet::from(expected.map(|words| words.map(str::to_owned))));
    }

    #[test]
    fn a_hosts_tracks_are_its_virtual_and_its_physical_cpus() {
        let (mut profile, names) = of_host();
        // A virtual CPU may have the number of its domain.
        profile.threads[0].tid = 0;
        let document: Value = serde_json::from_slice(&encode(&profile, &names).unwrap()).unwrap();
        let track = |thread: &Value| {
            let name = |key: &str| thread[key].as_str().unwrap().to_owned();
            let mut samples = BTreeMap::<String, u64>::new();
            for (words, weight) in stacks(thread) {
                *samples.entry(words).or_default() += weight;
            }
            (name("processName"), name("name"), samples)
        };
        let tracks: Vec<_> = document["threads"].as_array().unwrap().iter().map(track).collect();
        let expected = |process: &str, name: &str, samples: &[(&str, u64)]| {
            let samples = samples.iter().map(|&(words, number)| (words.to_owned(), number));
            (process.to_owned(), name.to_owned(), samples.collect::<BTreeMap<_, _>>())
        };
        let user = "[user mode of domain 3]";
        let expected = [
            expected("Domain-0", "Domain-0 vCPU 0", &[("schedule", 4), ("do_idle", 2)]),
            expected("domain 3", "domain 3 vCPU 1", &[("schedule", 1), (user, 3)]),
            expected("physical CPUs", "CPU 0", &[("Domain-0 vCPU 0 > schedule", 4)]),
            expected(
                "physical CPUs",
                "CPU 1",
                &[
                    ("Domain-0 vCPU 0 > do_idle", 2),
                    ("domain 3 vCPU 1 > schedule", 1),
                    ("domain 3 vCPU 1 > [user mode of domain 3]", 3),
                ],
            ),
        ];
        assert_eq!(tracks, expected);
    }

    #[test]
    fn each_sample_is_shown_when_it_was_taken() {
        let (mut profile, names) = profile();
        profile.stacks[1].times = vec![2_000_000];
        profile.stacks[2].times = vec![500_000, 4_500_000];
        let document: Value = serde_json::from_slice(&encode(&profile, &names).unwrap()).unwrap();
        let thread = &document["threads"][1];
        let of = |words: &str| (words.to_owned(), 1);
        assert_eq!(stacks(thread), [of("f"), of("main > f > g;<inlined>"), of("f")]);
        let deltas = thread["samples"]["timeDeltas"].as_array().unwrap();
        let deltas: Vec<f64> = deltas.iter().map(|delta| delta.as_f64().unwrap()).collect();
        assert_eq!(deltas, [0.5, 1.5, 2.5]);
    }

    #[test]
    fn more_samples_than_the_format_has_room_for_are_refused() {
        let (mut profile, names) = profile();
        profile.stacks[0].samples = 1 << 31;
        let error = encode(&profile, &names).unwrap_err().to_string();
        assert_eq!(error, "2147483648 samples of one stack found, 2147483647 at most expected");
    }
}
