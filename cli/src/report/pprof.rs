// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Writes pprof's format: the messages of its `proto/profile.proto`, as far as they are used here.

use std::collections::HashMap;

use prost::Message;

use super::Key;
use super::symbols::Named;
use super::table::cell;
use crate::profile;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

/// Numbers called `type` and `unit` are indices into the table of strings, here and below.
#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
    #[prost(int64, tag = "3")]
    num: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    has_inline_frames: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// A table with each string once. The first one is empty.
struct Strings {
    table: Vec<String>,
    places: HashMap<String, i64>,
}

impl Strings {
    fn new() -> Self {
        let mut strings = Self { table: Vec::new(), places: HashMap::new() };
        strings.of("");
        strings
    }

    fn of(&mut self, text: &str) -> i64 {
        if let Some(&place) = self.places.get(text) {
            return place;
        }
        let place = self.table.len() as i64;
        self.table.push(text.to_owned());
        self.places.insert(text.to_owned(), place);
        place
    }
}

/// Returns the whole document. Readers take it without compression, too.
pub fn encode(profile: &profile::Profile, names: &[Named]) -> Vec<u8> {
    let mut strings = Strings::new();
    let samples = ValueType { r#type: strings.of("samples"), unit: strings.of("count") };
    let events = ValueType { r#type: strings.of(&profile.event), unit: samples.unit };
    let mapping = mappings(profile, &mut strings);
    let (location, function) = locations(profile, names, &mut strings);
    let [tid, pid, thread] = ["tid", "pid", "thread"].map(|key| strings.of(key));
    let sample = |stack: &profile::Stack| {
        let of = &profile.threads[stack.thread as usize];
        let numbers = of.task.as_ref().map_or((of.tid, of.pid), |task| (task.tid, task.pid));
        let mut label = vec![
            Label { key: thread, str: strings.of(&profile.name(of)), num: 0 },
            Label { key: tid, str: 0, num: numbers.0.into() },
            Label { key: pid, str: 0, num: numbers.1.into() },
        ];
        if profile.host.is_some() {
            let labels = labels_of_host(profile, names, stack).into_iter();
            label.extend(labels.map(|[key, text]| Label {
                key: strings.of(&key),
                str: strings.of(&text),
                num: 0,
            }));
        }
        Sample {
            location_id: stack.frames.iter().map(|&frame| u64::from(frame) + 1).collect(),
            value: [stack.samples, stack.samples * profile.period].map(|n| n as i64).to_vec(),
            label,
        }
    };
    let sample = profile.stacks.iter().map(sample).collect();
    let document = Profile {
        sample_type: vec![samples, events],
        sample,
        mapping,
        location,
        function,
        string_table: strings.table,
        period_type: Some(events),
        period: profile.period as i64,
    };
    document.encode_to_vec()
}

/// Returns the labels of a host's sample, each with its text. Numbers are texts here, too, because
/// `go tool pprof` ignores a number that is 0, and the first CPU has this number.
fn labels_of_host(
    profile: &profile::Profile,
    names: &[Named],
    stack: &profile::Stack,
) -> Vec<[String; 2]> {
    let column = |key: Key| [key.heading(), cell(profile, names, stack, key, 0)];
    let thread = &profile.threads[stack.thread as usize];
    let vcpu = ["vcpu".to_owned(), thread.tid.to_string()];
    let mut labels = vec![column(Key::Layer), column(Key::Domain), vcpu, column(Key::Cpu)];
    if let Some(task) = &thread.task {
        labels.push(column(Key::Process));
        if !task.cgroup.is_empty() {
            labels.push(column(Key::Cgroup));
        }
    }
    labels
}

fn mappings(profile: &profile::Profile, strings: &mut Strings) -> Vec<Mapping> {
    let mapping = |(id, module): (u64, &profile::Module)| Mapping {
        id,
        filename: strings.of(&module.path),
        build_id: strings.of(module.build_id.as_deref().unwrap_or_default()),
        // The reader need not find out anything more.
        has_functions: true,
        has_filenames: true,
        has_line_numbers: true,
        has_inline_frames: true,
    };
    (1..).zip(&profile.modules).map(mapping).collect()
}

/// Returns a location for each frame, and the functions in which they are.
fn locations(
    profile: &profile::Profile,
    names: &[Named],
    strings: &mut Strings,
) -> (Vec<Location>, Vec<Function>) {
    let mut functions: Vec<Function> = Vec::new();
    let mut places = HashMap::new();
    let mut function = |name: i64, filename: i64| {
        *places.entry((name, filename)).or_insert_with(|| {
            let id = functions.len() as u64 + 1;
            functions.push(Function { id, name, filename });
            id
        })
    };
    let mut locations = Vec::new();
    for ((id, frame), named) in (1..).zip(&profile.frames).zip(names) {
        let line = named.places.iter().map(|place| {
            let filename = strings.of(place.file.as_deref().unwrap_or_default());
            let function_id = function(strings.of(&place.function), filename);
            Line { function_id, line: place.line.into() }
        });
        locations.push(Location {
            id,
            mapping_id: frame.module.map_or(0, |module| u64::from(module) + 1),
            address: frame.address,
            line: line.collect(),
        });
    }
    (locations, functions)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{of_host, profile, task};
    use super::*;

    /// Returns each sample's thread, numbers of thread and process, and values, as a reader finds
    /// them.
    fn samples(document: &Profile) -> Vec<(String, i64, i64, Vec<i64>)> {
        let text = |n: i64| document.string_table[n as usize].clone();
        let sample = |sample: &Sample| {
            let label = |key| *sample.label.iter().find(|label| text(label.key) == key).unwrap();
            let [thread, tid, pid] = ["thread", "tid", "pid"].map(label);
            (text(thread.str), tid.num, pid.num, sample.value.clone())
        };
        document.sample.iter().map(sample).collect()
    }

    fn read(profile: &profile::Profile, names: &[Named]) -> Profile {
        Profile::decode(&*encode(profile, names)).unwrap()
    }

    #[test]
    fn each_sample_says_its_thread_and_the_events_for_which_it_stands() {
        let (profile, names) = profile();
        let document = read(&profile, &names);
        let expected = [
            ("one".to_owned(), 7, 7, vec![3, 300]),
            ("two".to_owned(), 8, 7, vec![1, 100]),
            ("two".to_owned(), 8, 7, vec![2, 200]),
        ];
        assert_eq!(samples(&document), expected);
        let text = |n: i64| &*document.string_table[n as usize];
        let kinds = document.sample_type.iter().map(|kind| (text(kind.r#type), text(kind.unit)));
        assert_eq!(kinds.collect::<Vec<_>>(), [("samples", "count"), ("instructions:u", "count")]);
        assert_eq!((text(0), document.period), ("", 100));
        let (host, names) = of_host();
        let vcpu = |n: usize| samples(&read(&host, &names))[n].clone();
        assert_eq!(vcpu(1), ("Domain-0 vCPU 1".to_owned(), 1, 0, vec![2, 20_000]));
        assert_eq!(vcpu(3), ("domain 3 vCPU 1".to_owned(), 1, 3, vec![3, 30_000]));
    }

    #[test]
    fn samples_of_a_host_have_labels_by_which_they_can_be_chosen() {
        let labels = |document: &Profile, n: usize| {
            let text = |n: i64| document.string_table[n as usize].clone();
            let labels = document.sample[n].label.iter().skip(3);
            labels.map(|label| (text(label.key), text(label.str), label.num)).collect::<Vec<_>>()
        };
        let (mut host, names) = of_host();
        host.threads[1].tid = 0;
        let document = read(&host, &names);
        let expected = |texts: [&str; 4]| {
            let keys = ["layer", "domain", "vcpu", "cpu"].into_iter().zip(texts);
            keys.map(|(key, text)| (key.to_owned(), text.to_owned(), 0)).collect::<Vec<_>>()
        };
        assert_eq!(labels(&document, 0), expected(["hypervisor", "Domain-0", "1", "0"]));
        assert_eq!(labels(&document, 1), expected(["kernel", "Domain-0", "1", "1"]));
        assert_eq!(labels(&document, 3), expected(["user", "domain 3", "0", "1"]));
        let (program, names) = profile();
        assert_eq!(labels(&read(&program, &names), 0), []);
        // A domain has said which of its threads this was.
        let (mut host, names) = of_host();
        host.threads[1].task = Some(task());
        let document = read(&host, &names);
        let process = ("process".to_owned(), "70 web".to_owned(), 0);
        let cgroup = ("cgroup".to_owned(), "/web.slice".to_owned(), 0);
        assert_eq!(labels(&document, 3)[4..], [process, cgroup]);
        let numbers: Vec<i64> = document.sample[3].label[1..3].iter().map(|l| l.num).collect();
        assert_eq!(numbers, [71, 70]);
    }

    #[test]
    fn each_place_has_its_file_its_functions_and_their_lines() {
        let (profile, names) = profile();
        let document = read(&profile, &names);
        let text = |n: i64| &*document.string_table[n as usize];
        let line = |line: &Line| {
            let function = &document.function[line.function_id as usize - 1];
            assert_eq!(function.id, line.function_id);
            (text(function.name), text(function.filename), line.line)
        };
        let place = |id: &u64| {
            let location = &document.location[*id as usize - 1];
            let mapping = &document.mapping[location.mapping_id as usize - 1];
            assert_eq!((location.id, mapping.id), (*id, location.mapping_id));
            let lines: Vec<_> = location.line.iter().map(line).collect();
            (text(mapping.filename), text(mapping.build_id), location.address, lines)
        };
        let places: Vec<_> = document.sample[0].location_id.iter().map(place).collect();
        let inlined = vec![("g;<inlined>", "a.c", 3), ("f", "a.c", 5)];
        let main = vec![("main", "a.c", 9)];
        assert_eq!(places, [("/bin/a", "cd", 0x10, inlined), ("/bin/a", "cd", 0x30, main)]);
        let places: Vec<_> = document.sample[2].location_id.iter().map(place).collect();
        assert_eq!(places, [("/bin/a", "cd", 0x20, vec![("f", "", 0)])]);
    }
}
