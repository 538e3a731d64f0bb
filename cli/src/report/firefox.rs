// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Writes the Firefox Profiler's format, which <https://profiler.firefox.com> reads.

use std::collections::HashMap;

use anyhow::{Context, Result};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Profile as Document,
    ReferenceTimestamp, SamplingInterval, Timestamp, WeightType,
};

use super::symbols::Named;
use super::{framed, layer, summary};
use crate::profile::{Layer, Profile};

/// The time between two samples of profiles without times. The profiler wants some, so a thread's
/// samples follow each other there, one in each ms.
const PERIOD_NS: u64 = 1_000_000;

/// Returns the whole document, in which all names are resolved.
pub fn encode(profile: &Profile, names: &[Named]) -> Result<Vec<u8>> {
    let title = profile.command.join(" ");
    let epoch = ReferenceTimestamp::from_millis_since_unix_epoch(0.0);
    let mut document = Document::new(&title, epoch, SamplingInterval::from_nanos(PERIOD_NS));
    document.set_product(&format!("{title}: {}", summary(profile)));
    document.set_symbolicated(true);
    let start = at(0);
    let (mut processes, mut threads) = (HashMap::new(), Vec::new());
    for thread in &profile.threads {
        let title = profile.name(thread);
        let process = *processes
            .entry(thread.pid)
            .or_insert_with(|| document.add_process(&title, thread.pid, start));
        let handle = document.add_thread(process, thread.tid, start, thread.tid == thread.pid);
        document.set_thread_name(handle, &title);
        document.set_thread_samples_weight_type(handle, WeightType::Samples);
        threads.push((handle, 0));
    }
    let kernel = document.add_category("Kernel", CategoryColor::Blue);
    let mut samples = Vec::new();
    for stack in &profile.stacks {
        let (thread, before) = &mut threads[stack.thread as usize];
        let category = |frame| match layer(profile, frame) {
            Some(Layer::Kernel) => kernel,
            _ => CategoryHandle::OTHER,
        };
        let frames: Vec<FrameInfo> = framed(names, stack)
            .map(|(frame, function)| FrameInfo {
                frame: Frame::Label(document.intern_string(function)),
                category_pair: category(frame).into(),
                flags: FrameFlags::empty(),
            })
            .collect();
        let frames = document.intern_stack_frames(*thread, frames.into_iter());
        samples.extend(stack.times.iter().map(|&time| (time, *thread, frames, 1)));
        if stack.times.is_empty() {
            let weight = i32::try_from(stack.samples).with_context(|| {
                let found = stack.samples;
                format!("{found} samples of one stack found, {} at most expected", i32::MAX)
            })?;
            samples.push((*before * PERIOD_NS, *thread, frames, weight));
            *before += stack.samples;
        }
    }
    samples.sort_by_key(|(time, ..)| *time);
    for (time, thread, frames, weight) in samples {
        document.add_sample(thread, at(time), frames, CpuDelta::ZERO, weight);
    }
    Ok(serde_json::to_vec(&document)?)
}

/// Returns the profiler's form of a time since the recording began.
fn at(ns: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(ns)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::tests::{of_host, profile, with_kernel};
    use super::*;

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
    fn a_hosts_tracks_are_its_virtual_cpus() {
        let (profile, names) = of_host();
        let document: Value = serde_json::from_slice(&encode(&profile, &names).unwrap()).unwrap();
        let threads = document["threads"].as_array().unwrap();
        let names: Vec<_> = threads.iter().map(|thread| thread["name"].as_str()).collect();
        assert_eq!(names, [Some("Domain-0 vCPU 1"), Some("domain 3 vCPU 1")]);
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
