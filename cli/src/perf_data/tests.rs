// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that written files can be read, also by another reader, and that no file does harm.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;

use linux_perf_data::linux_perf_event_reader::{AttrFlags, EventRecord};
use linux_perf_data::{PerfFileReader, PerfFileRecord};

use anyhow::Result;

use super::tasks::{Map, replace};
use super::*;
use crate::elf::{Facts, Segment};
use crate::host::ANONYMOUS;
use crate::profile::{
    Branch, Frame, Host, KvmHost, Layer, Machine, Module, Profile, Stack, Symbol, Task, Thread,
};

/// The file that Debian's `perf record -e cpu-clock:u -c 1000003 -g` has written about a program
/// whose `main` calls `g`, which calls `f`.
const RECORDED: &[u8] = include_bytes!("recorded.data");
const RECORDED_SAMPLES: u64 = 34;

fn read(bytes: &[u8]) -> Result<Vec<Profile>> {
    super::read(&mut Cursor::new(bytes))
}

/// Returns a profile of two threads and a process that they have started, with a file, a place of
/// the kernel's, and memory without a file.
fn profile() -> Profile {
    let words = vec!["./a".to_owned(), "b c".to_owned()];
    let mut profile = Profile::new(words, "native".into(), "instructions:u".into(), 100);
    profile.call_graph = true;
    profile.machine = Some(Machine { host: "h".into(), release: "6.1".into(), cpus: 4 });
    let code = vec![Segment { offset: 0x1000, size: 0x2345, address: 0x3000 }];
    let facts = Facts { build_id: Some("00010203".repeat(5)), code };
    profile.modules.push(Module::new("/nowhere/a".as_ref(), facts));
    profile.modules.push(Module::new("[vdso]".as_ref(), Facts::default()));
    for (module, address) in [(Some(0), 0x3010), (Some(0), 0x5000), (Some(1), 0x820), (None, 7)] {
        profile.frames.push(Frame { module, address });
    }
    for (tid, pid, name) in [(7, 7, "one"), (8, 7, "two"), (9, 9, "three")] {
        profile.threads.push(Thread { tid, pid, name: name.into(), count: 0, task: None });
    }
    for (thread, frames, times) in [
        (0, vec![0, 1], vec![20, 40, 40]),
        (1, vec![2, 3, 1], vec![10]),
        (2, vec![3], vec![30, 50]),
    ] {
        let samples = times.len() as u64;
        profile.threads[thread as usize].count += samples * profile.period;
        profile.stacks.push(Stack { thread, samples, frames, times, ..Stack::default() });
    }
    profile
}

/// A sample of ours: time, process, thread, its name, and the paths and addresses of its frames.
type Ours = (u64, u32, u32, String, Vec<(String, u64)>);

/// Returns each sample of a profile.
fn samples(profile: &Profile) -> Vec<Ours> {
    let mut samples = Vec::new();
    let first = profile.stacks.iter().flat_map(|stack| &stack.times).min().unwrap();
    for stack in &profile.stacks {
        let thread = &profile.threads[stack.thread as usize];
        let place = |&frame: &u32| {
            let Frame { module, address } = profile.frames[frame as usize];
            let module = module.map(|module| profile.modules[module as usize].path.clone());
            (module.unwrap_or_default(), address)
        };
        let places: Vec<_> = stack.frames.iter().map(place).collect();
        for time in &stack.times {
            let Thread { pid, tid, name, .. } = thread.clone();
            samples.push((time - first, pid, tid, name, places.clone()));
        }
    }
    samples.sort();
    samples
}

#[test]
fn what_is_written_can_be_read() {
    written_is_read(&profile());
}

#[test]
fn so_can_what_was_recorded_with_a_frequency() {
    let mut written = profile();
    written.frequency = Some(997);
    written_is_read(&written);
}

#[test]
fn no_file_is_put_where_code_without_a_file_is() {
    let mut written = profile();
    // Files that may be anywhere are put from this address on.
    written.frames[3].address = (1 << 30) + 0x40;
    written_is_read(&written);
}

fn written_is_read(written: &Profile) {
    let file = encode(std::slice::from_ref(written)).unwrap();
    assert!(is(&file));
    let read = read(&file).unwrap();
    let [read] = &*read else { panic!("{read:?}") };
    // The file of this name does not exist here, so an address is the same as the offset.
    let mut expected = written.clone();
    for frame in &mut expected.frames[..2] {
        frame.address -= 0x2000;
    }
    // A caller's address is treated as the one behind the call.
    let mut found = samples(read);
    for (.., places) in &mut found {
        places[1..].iter_mut().for_each(|(_, address)| *address += 1);
    }
    assert_eq!(found.len(), 6);
    assert_eq!(found, samples(&expected));
    let facts = |profile: &Profile| {
        let Profile { command, event, period, frequency, .. } = profile.clone();
        (command, event, period, frequency, profile.call_graph, profile.machine.clone())
    };
    assert_eq!(facts(read), facts(written));
    assert_eq!((read.missed(), read.samples()), (0, 6));
    let id = |profile: &Profile| profile.modules[0].build_id.clone();
    assert_eq!(read.modules.iter().find(|m| m.path == "/nowhere/a").unwrap().build_id, id(written));
}

#[test]
fn build_ids_of_all_lengths_are_kept() {
    for id in ["00", "0001020304050607", "00112233445566778899aabbccddeeff0011220a"] {
        let mut written = profile();
        written.modules[0].build_id = Some(id.to_owned());
        let bytes = encode(std::slice::from_ref(&written)).unwrap();
        let read = super::read(&mut Cursor::new(bytes)).unwrap();
        let module = read[0].modules.iter().find(|module| module.path == "/nowhere/a").unwrap();
        assert_eq!(module.build_id.as_deref(), Some(id));
    }
}

/// Returns the profile above with branches in a stack: one is in a file of the process, one leads
/// to the kernel, and one comes from memory without a file.
fn with_branches() -> Profile {
    let mut profile = profile();
    let mut kernel = Module::new("[kernel]".as_ref(), Facts::default());
    kernel.layer = Some(Layer::Kernel);
    profile.modules.push(kernel);
    profile.frames.push(Frame { module: Some(2), address: u64::MAX - 15 });
    let branch = |from, to, flags| Branch { from, to, flags };
    let flags = [2, 1 | 7 << 4, 0];
    profile.branches =
        Some(vec![branch(0, 1, flags[0]), branch(1, 4, flags[1]), branch(3, 0, flags[2])]);
    profile.stacks[0].branches = vec![2, 0, 1, 0];
    profile.check().unwrap();
    profile
}

#[test]
fn branches_are_written_and_read_with_both_ends_and_flags() {
    for (event, modes) in [("instructions:u", 1), ("instructions:k", 2), ("instructions", 3)] {
        let mut written = with_branches();
        written.event = event.to_owned();
        let file = encode(std::slice::from_ref(&written)).unwrap();
        let read = read(&file).unwrap();
        let [read] = &*read else { panic!("{read:?}") };
        // The file of this name does not exist here, so an address is the same as the offset.
        let end = |profile: &Profile, end: u32, less: u64| {
            let Frame { module, address } = profile.frames[end as usize];
            let path = module.map(|module| profile.modules[module as usize].path.clone());
            (
                path.clone(),
                if path.as_deref() == Some("/nowhere/a") { address - less } else { address },
            )
        };
        let stacks = |profile: &Profile, less| {
            let stacks = profile.stacks.iter().map(|stack| {
                let branches = stack.branches.iter().map(|&branch| {
                    let Branch { from, to, flags } = profile.branches()[branch as usize];
                    (end(profile, from, less), end(profile, to, less), flags)
                });
                (stack.times.len(), branches.collect::<Vec<_>>())
            });
            let mut stacks: Vec<_> = stacks.collect();
            // In a file, samples are in the order of their times.
            stacks.sort();
            stacks
        };
        assert_eq!(stacks(read, 0), stacks(&written, 0x2000));
        // The sections before the records have the attributes from byte 112 on.
        let kinds = u64::from_le_bytes(file[112 + 72..][..8].try_into().unwrap());
        assert_eq!(kinds, u64::from(perf::PERF_SAMPLE_BRANCH_ANY) | modes, "{event}");
        let PerfFileReader { perf_file, .. } =
            PerfFileReader::parse_file(Cursor::new(&file)).unwrap();
        assert_eq!(perf_file.event_attributes()[0].attr.branch_sample_format.bits(), kinds);
        assert_eq!(theirs(&file).0.len(), 6);
    }
    let without = encode(&[profile()]).unwrap();
    assert_eq!(read(&without).unwrap()[0].branches, None);
}

#[test]
fn branches_beyond_a_samples_end_are_refused() {
    let mut written = with_branches();
    written.stacks.truncate(1);
    let file = encode(&[written]).unwrap();
    let sample = record(&file, perf::PERF_RECORD_SAMPLE);
    // Identifier, place, thread, time, period, the number of callers, 3 words, and then branches.
    let count = sample + 8 * (1 + 5 + 1 + 3);
    assert_eq!(file[count], 4);
    for (number, expected) in [(5, "96 bytes found, 120 expected"), (u64::MAX, "branches found")] {
        let error = format!("{:#}", read(&with(&file, count, number)).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }
    // The processor kept the calls that had not returned, which are no branches taken last.
    let calls = with(&file, 112 + 72, perf::PERF_SAMPLE_BRANCH_CALL_STACK.into());
    assert_eq!(read(&calls).unwrap()[0].branches, None);
    // The index of a register stands before them.
    let with_index = with(&file, 112 + 72, perf::PERF_SAMPLE_BRANCH_HW_INDEX.into());
    let error = format!("{:#}", read(&with_index).unwrap_err());
    assert!(error.contains("88 bytes found, 96 expected"), "{error}");
}

#[test]
fn the_kernels_frames_stay_the_kernels() {
    let mut written = profile();
    let mut kernel = Module::new("[kernel]".as_ref(), Facts::default());
    kernel.layer = Some(Layer::Kernel);
    let at = 0xffff_ffff_8100_0010;
    kernel.symbols = vec![Symbol { start: at, end: at + 0x20, name: "vfs_read".into() }];
    written.event = "instructions".to_owned();
    written.modules.push(kernel);
    for address in [at, at + 1] {
        written.frames.push(Frame { module: Some(2), address });
    }
    written.stacks[1].frames = vec![4, 5, 2];
    let file = encode(std::slice::from_ref(&written)).unwrap();
    let [read] = &*read(&file).unwrap() else { panic!() };
    let of_kernel = |stack: &&Stack| {
        let module = read.frames[stack.frames[0] as usize].module;
        module.is_some_and(|module| read.modules[module as usize].layer == Some(Layer::Kernel))
    };
    let stack = read.stacks.iter().find(of_kernel).unwrap();
    let place = |&frame: &u32| {
        let Frame { module, address } = read.frames[frame as usize];
        (read.modules[module.unwrap() as usize].path.as_str(), address)
    };
    let places: Vec<_> = stack.frames.iter().map(place).collect();
    // A caller's address is treated as the one behind the call.
    assert_eq!(places[..2], [("[kernel]", at), ("[kernel]", at)]);
    assert_eq!(places[2].0, "[vdso]");
    let (theirs, ..) = theirs(&file);
    let [.., chain] = theirs.iter().find(|sample| sample.3 == at).map(|s| [&s.5]).unwrap();
    let contexts = [perf::PERF_CONTEXT_KERNEL, perf::PERF_CONTEXT_USER];
    assert_eq!([chain[0], chain[3]], contexts, "{chain:x?}");
    record(&file, perf::PERF_RECORD_KSYMBOL);
}

/// A sample as the crate `linux-perf-data` finds it: time, process, thread, address, period and the
/// words of the callers.
type Theirs = (u64, u32, u32, u64, u64, Vec<u64>);

/// A mapping as that crate finds it: process, address, length, offset in the file, and path.
type Mapping = (u32, u64, u64, u64, String);

/// Returns all samples, the mappings of all processes, and the threads' names.
fn theirs(file: &[u8]) -> (Vec<Theirs>, Vec<Mapping>, Vec<(u32, String)>) {
    let (mut samples, mut maps, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let PerfFileReader { mut perf_file, mut record_iter } =
        PerfFileReader::parse_file(Cursor::new(file)).unwrap();
    while let Some(record) = record_iter.next_record(&mut perf_file).unwrap() {
        let PerfFileRecord::EventRecord { record, .. } = record else { continue };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match record.parse().unwrap() {
            EventRecord::Sample(sample) => {
                let chain = sample.callchain.unwrap();
                let chain = (0..chain.len()).map(|n| chain.get(n).unwrap()).collect();
                let [pid, tid] = [sample.pid, sample.tid].map(|n| n.unwrap() as u32);
                let period = sample.period.unwrap_or(0);
                samples.push((
                    sample.timestamp.unwrap(),
                    pid,
                    tid,
                    sample.ip.unwrap(),
                    period,
                    chain,
                ));
            }
            EventRecord::Mmap2(map) => {
                let path = text(&map.path.as_slice());
                maps.push((map.pid as u32, map.address, map.length, map.page_offset, path));
            }
            EventRecord::Comm(name) => {
                names.push((name.tid as u32, text(&name.name.as_slice())));
            }
            _ => {}
        }
    }
    (samples, maps, names)
}

#[test]
fn another_reader_finds_what_was_written() {
    let profile = profile();
    let file = encode(std::slice::from_ref(&profile)).unwrap();
    let (found, maps, names) = theirs(&file);
    // The file's own address is free, unless it is too low: then the file is moved to the first
    // free room.
    let room = 1 << 30;
    let path = "/nowhere/a".to_owned();
    assert_eq!(
        maps,
        [
            (7, room + 0x3000 - 0x3000, 0x3000, 0x1000, path),
            (7, 2 * room, 0x1000, 0, "[vdso]".to_owned()),
        ]
    );
    let user = perf::PERF_CONTEXT_USER;
    let first = |time| (time, 7, 7, room + 0x10, 100, vec![user, room + 0x10, room + 0x2000]);
    let other = |time| (time, 9, 9, 7, 100, vec![user, 7]);
    let second = (10, 7, 8, 2 * room + 0x820, 100, vec![user, 2 * room + 0x820, 7, room + 0x2000]);
    assert_eq!(found, [second, first(20), other(30), first(40), first(40), other(50)]);
    let name = |tid, name: &str| (tid, name.to_owned());
    assert_eq!(names, [name(7, "one"), name(8, "two"), name(9, "three")]);
    let PerfFileReader { perf_file, .. } = PerfFileReader::parse_file(Cursor::new(&file)).unwrap();
    assert_eq!(perf_file.event_attributes()[0].name(), Some("instructions:u"));
    assert_eq!(perf_file.hostname().unwrap(), Some("h"));
    assert_eq!(perf_file.os_release().unwrap(), Some("6.1"));
    assert_eq!(perf_file.nr_cpus().unwrap().unwrap().nr_cpus_online, 4);
    assert_eq!(perf_file.cmdline().unwrap().unwrap(), ["./a", "b c"]);
    let range = perf_file.sample_time_range().unwrap().unwrap();
    assert_eq!((range.first_sample_time, range.last_sample_time), (10, 50));
    let ids = perf_file.build_ids().unwrap();
    let ids: Vec<_> = ids.values().map(|dso| (&dso.path[..], &dso.build_id[..])).collect();
    assert_eq!(ids, [(&b"/nowhere/a"[..], &[0, 1, 2, 3].repeat(5)[..])]);
}

#[test]
fn a_file_of_perfs_has_what_another_reader_finds() {
    let read = read(RECORDED).unwrap();
    let [profile] = &*read else { panic!("{read:?}") };
    let (found, ..) = theirs(RECORDED);
    assert_eq!((profile.samples(), found.len() as u64), (RECORDED_SAMPLES, RECORDED_SAMPLES));
    let start = found[0].0;
    let times: Vec<u64> = samples(profile).into_iter().map(|sample| sample.0).collect();
    assert_eq!(times, found.iter().map(|sample| sample.0 - start).collect::<Vec<_>>());
    // All but the kernel's words are callers.
    let depths: usize = samples(profile).iter().map(|sample| sample.4.len()).sum();
    assert_eq!(depths, found.iter().map(|sample| sample.5.len() - 1).sum::<usize>());
    let Profile { event, period, frequency, provider, .. } = profile;
    assert_eq!((&**event, *period, *frequency), ("cpu-clock:u", 1_000_003, None));
    assert_eq!((&**provider, profile.threads.len()), ("perf", 1));
    assert_eq!((&*profile.threads[0].name, profile.missed()), ("calls", 0));
    assert!(profile.command.contains(&"./calls".to_owned()), "{:?}", profile.command);
    let inner = |sample: &(_, _, _, _, Vec<(String, u64)>)| sample.4[0].0.ends_with("/calls");
    assert!(samples(profile).iter().filter(|sample| inner(sample)).count() > 30);
}

#[test]
fn several_events_are_told_apart() {
    let mut profiles = [profile(), profile()];
    profiles[1].event = "branches:u".to_owned();
    profiles[1].stacks.truncate(1);
    profiles[0].lost = 2;
    let mut file = encode(&profiles).unwrap();
    let found = |file: &[u8]| -> Vec<(String, u64, u64)> {
        let read = read(file).unwrap().into_iter();
        read.map(|found| (found.event.clone(), found.samples(), found.missed())).collect()
    };
    let [first, second] = ["instructions:u", "branches:u"].map(str::to_owned);
    assert_eq!(found(&file), [(first.clone(), 6, 2), (second.clone(), 3, 3)]);
    // The kernel's other record of lost samples begins with the event's identifier.
    let lost = record(&file, perf::PERF_RECORD_LOST_SAMPLES);
    file[lost] = perf::PERF_RECORD_LOST as u8;
    file = with(&with(&file, lost + 8, 2), lost + 16, 5);
    assert_eq!(found(&file), [(first, 6, 0), (second, 3, 3 + 5)]);
}

#[test]
fn each_events_samples_have_its_own_period() {
    let mut profiles = [profile(), profile()];
    profiles[1].event = "branches:u".to_owned();
    profiles[1].stacks.truncate(1);
    profiles[1].period = 2_000;
    let file = encode(&profiles).unwrap();
    let (found, ..) = theirs(&file);
    let with = |period| found.iter().filter(|sample| sample.4 == period).count();
    assert_eq!((with(100), with(2_000), found.len()), (6, 3, 9), "{found:?}");
    let periods = read(&file).unwrap().iter().map(|read| read.period).collect::<Vec<_>>();
    assert_eq!(periods, [100, 2_000]);
}

#[test]
fn only_an_event_of_user_mode_leaves_the_kernel_out() {
    for (event, left_out) in [("instructions:u", true), ("instructions:k", false)] {
        let mut profile = profile();
        profile.event = event.to_owned();
        let file = encode(&[profile]).unwrap();
        let PerfFileReader { perf_file, .. } =
            PerfFileReader::parse_file(Cursor::new(&file)).unwrap();
        let flags = perf_file.event_attributes()[0].attr.flags;
        assert_eq!(flags.contains(AttrFlags::EXCLUDE_KERNEL), left_out, "{event}: {flags:?}");
    }
}

/// Returns a profile of a host: the hypervisor, which executes for both domains, both kernels and
/// both domains' user modes.
fn of_host(file: bool) -> Profile {
    let mut profile = Profile::new(Vec::new(), "xen".into(), "cycles".into(), 10_000);
    profile.machine = Some(Machine { host: "h".into(), release: "6.1".into(), cpus: 1 });
    profile.host = Some(Host {
        hypervisor: "Xen 4.17".into(),
        build_id: None,
        cpus: vec![0, 6],
        tsc: 5,
        tsc_per_second: 1_000_000_000,
        at_guests: false,
        clocks: Vec::new(),
        kvm: None,
    });
    let symbol = |start, name: &str| Symbol { start, end: start + 0x20, name: name.into() };
    for (path, layer, address, symbols) in [
        ("[xen]", Layer::Hypervisor, XENS, vec![symbol(XENS, "f"), symbol(XENS + 0x20, "g")]),
        ("[kernel]", Layer::Kernel, KERNELS, vec![symbol(KERNELS, "f")]),
        ("[kernel of domain 3]", Layer::Kernel, KERNELS, Vec::new()),
        ("[user mode of domain 0]", Layer::User, 0x40_1000, Vec::new()),
        ("[user mode of domain 3]", Layer::User, 0x10, Vec::new()),
    ] {
        let mut module = Module::new(path.as_ref(), Facts::default());
        (module.layer, module.symbols) = (Some(layer), symbols);
        profile.frames.push(Frame { module: Some(profile.modules.len() as u32), address });
        profile.modules.push(module);
    }
    if file {
        let code = vec![Segment { offset: 0x8000, size: 0x3000, address: XENS }];
        let facts = Facts { build_id: Some("00010203".repeat(5)), code };
        profile.modules[0] = Module::new("/nowhere/xen-syms".as_ref(), facts);
        profile.modules[0].layer = Some(Layer::Hypervisor);
    }
    // A program may jump to any address.
    profile.frames.push(Frame { module: Some(4), address: 1 << 63 });
    for (pid, tid, name) in [(0, 1, "Domain-0"), (3, 1, ""), (3, 0, "")] {
        profile.threads.push(Thread { tid, pid, name: name.into(), count: 0, task: None });
    }
    for (n, (thread, frame)) in
        [(0, 0), (1, 0), (0, 1), (1, 2), (0, 3), (2, 4), (2, 5)].into_iter().enumerate()
    {
        profile.stacks.push(Stack {
            thread,
            cpu: Some(6),
            samples: 1,
            frames: vec![frame],
            times: vec![n as u64],
            ..Stack::default()
        });
    }
    profile.count_by_samples();
    profile.check().unwrap();
    profile
}

#[test]
fn what_guests_cause_is_refused() {
    let mut profile = of_host(false);
    encode(std::slice::from_ref(&profile)).unwrap();
    profile.host.as_mut().unwrap().at_guests = true;
    let error = encode(&[profile]).unwrap_err().to_string();
    assert!(error.contains("recorded with --at-guests"), "{error}");
}

const XENS: u64 = 0xffff_82d0_4020_0000;
const KERNELS: u64 = 0xffff_ffff_8100_0000;

/// What a file has of a host: samples, functions of kernels, names of threads, and mapped code.
/// Each begins with its mode.
#[derive(Default)]
struct OfHost {
    samples: Vec<(u32, u64, i32, i32)>,
    functions: Vec<(u32, u64, u32, String)>,
    names: Vec<(u32, i32, String)>,
    maps: Vec<(u32, i32, u64, u64, String)>,
}

impl OfHost {
    fn read(file: &[u8]) -> Self {
        let PerfFileReader { mut perf_file, mut record_iter } =
            PerfFileReader::parse_file(Cursor::new(file)).unwrap();
        assert_eq!(perf_file.nr_cpus().unwrap().unwrap().nr_cpus_online, 7);
        let mut read = Self::default();
        while let Some(record) = record_iter.next_record(&mut perf_file).unwrap() {
            let PerfFileRecord::EventRecord { record, .. } = record else { continue };
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let mode = u32::from(record.misc) & perf::PERF_RECORD_MISC_CPUMODE_MASK;
            if record.record_type.0 == perf::PERF_RECORD_KSYMBOL {
                let bytes = record.data.as_slice();
                let start = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                let size = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
                let name = bytes[16..].split(|&byte| byte == 0).next().unwrap();
                read.functions.push((mode, start, size, text(name)));
                continue;
            }
            match record.parse().unwrap() {
                EventRecord::Sample(sample) => {
                    let [pid, tid] = [sample.pid, sample.tid].map(|n| n.unwrap());
                    read.samples.push((mode, sample.ip.unwrap(), pid, tid));
                    assert_eq!(sample.cpu, Some(6));
                }
                EventRecord::Comm(name) => {
                    read.names.push((mode, name.tid, text(&name.name.as_slice())));
                }
                EventRecord::Mmap2(map) => {
                    let path = text(&map.path.as_slice());
                    read.maps.push((mode, map.pid, map.address, map.length, path));
                }
                _ => {}
            }
        }
        read
    }
}

#[test]
fn domains_of_a_host_are_guests_beside_the_control_domain() {
    let file = encode(&[of_host(false)]).unwrap();
    let OfHost { samples, functions, names, maps } = OfHost::read(&file);
    let (kernel, user) = (perf::PERF_RECORD_MISC_KERNEL, perf::PERF_RECORD_MISC_USER);
    let guest_kernel = perf::PERF_RECORD_MISC_GUEST_KERNEL;
    let guest_user = perf::PERF_RECORD_MISC_GUEST_USER;
    let expected = [
        (kernel, XENS, 1, 2),
        (kernel, XENS, 30_001, 30_002),
        (kernel, KERNELS, 1, 2),
        (guest_kernel, KERNELS, 30_001, 30_002),
        (user, 0x40_1000, 1, 2),
        (guest_user, 0x10, 30_001, 30_001),
        (guest_user, 1 << 63, 30_001, 30_001),
    ];
    assert_eq!(samples, expected);
    let function = |start, name: &str| (kernel, start, 0x20, name.to_owned());
    let expected =
        [function(KERNELS, "f"), function(XENS, "f [xen]"), function(XENS + 0x20, "g [xen]")];
    assert_eq!(functions, expected);
    let map = |mode, pid, start, name: &str| (mode, pid, start, 0x1000, name.to_owned());
    let expected = [
        map(user, 1, 0x40_1000, "[user mode of domain 0]"),
        map(guest_user, 30_001, 0, "[user mode of domain 3]"),
    ];
    assert_eq!(maps, expected);
    // perf has the guests' processes twice.
    let name = |mode, tid, name: &str| (mode, tid, name.to_owned());
    for name in [
        name(0, 2, "Domain-0 vCPU 1"),
        name(0, 30_001, "domain 3 vCPU 0"),
        name(guest_user, 30_001, "domain 3 vCPU 0"),
        name(0, 30_002, "domain 3 vCPU 1"),
        name(guest_user, 30_002, "domain 3 vCPU 1"),
    ] {
        assert!(names.contains(&name), "{name:?} in {names:?}");
    }
    let read = &read(&file).unwrap()[0];
    assert_eq!((read.samples(), read.missed()), (7, 0));
}

#[test]
fn machines_of_a_kvm_host_are_guests_and_their_processes_are_the_hosts() {
    let mut profile = of_host(false);
    profile.host.as_mut().unwrap().kvm = Some(KvmHost::default());
    // The host's kernel also executes for the machine, and so does the machine's process.
    profile.modules[0] = profile.modules[1].clone();
    profile.modules[0].layer = Some(Layer::Hypervisor);
    profile.frames[0].address = KERNELS + 0x10;
    for (path, layer, address) in [
        ("/bin/qemu", Layer::Hypervisor, 0x1010),
        ("/lib/libc", Layer::Hypervisor, 0x1010),
        (ANONYMOUS, Layer::User, 0),
        (ANONYMOUS, Layer::User, ANYWHERE),
    ] {
        let code = vec![Segment { offset: 0x1000, size: 0x1000, address: 0x1000 }];
        let code = if path == ANONYMOUS { Vec::new() } else { code };
        let mut module = Module::new(path.as_ref(), Facts { build_id: None, code });
        module.layer = Some(layer);
        let thread = if layer == Layer::User { 0 } else { 1 };
        let (frames, times) = (vec![profile.frames.len() as u32], vec![10]);
        profile.frames.push(Frame { module: Some(profile.modules.len() as u32), address });
        profile.modules.push(module);
        let stack = Stack { thread, cpu: Some(6), samples: 1, frames, times, ..Stack::default() };
        profile.stacks.push(stack);
    }
    // It is the number of a process, and the host's own threads are known.
    let web = Thread { pid: 4_000_000, name: "web".into(), ..profile.threads[1].clone() };
    profile.threads[1] = web.clone();
    profile.threads[2] = Thread { tid: 0, ..web };
    let task = Task { pid: 7, tid: 7, name: "sh".into(), ..Task::idle() };
    profile.threads[0] =
        Thread { tid: 7, name: "host".into(), task: Some(task), ..profile.threads[0].clone() };
    let OfHost { samples, functions, maps, .. } = OfHost::read(&encode(&[profile]).unwrap());
    let (kernel, user) = (perf::PERF_RECORD_MISC_KERNEL, perf::PERF_RECORD_MISC_USER);
    let guest_kernel = perf::PERF_RECORD_MISC_GUEST_KERNEL;
    let guest_user = perf::PERF_RECORD_MISC_GUEST_USER;
    let (known, web) = (1_000_000_000, 10_001);
    let place = |name: &str| {
        let map = maps.iter().find(|map| map.4 == name).unwrap();
        assert_eq!((map.0, map.1), (user, web), "{name}");
        map.2 + 0x10
    };
    let [qemu, libc] = ["/bin/qemu", "/lib/libc"].map(place);
    assert_ne!(qemu, libc);
    let expected = [
        (kernel, KERNELS + 0x10, known, known),
        (kernel, KERNELS + 0x10, web, web + 1),
        (kernel, KERNELS, known, known),
        (guest_kernel, KERNELS, web, web + 1),
        (user, 0x40_1000, known, known),
        (guest_user, 0x10, web, web),
        (guest_user, 1 << 63, web, web),
        (user, qemu, web, web + 1),
        (user, libc, web, web + 1),
        (user, 0, known, known),
        (user, ANYWHERE, known, known),
    ];
    assert_eq!(samples, expected);
    let names: BTreeSet<&str> = functions.iter().map(|function| &*function.3).collect();
    assert_eq!(names, BTreeSet::from(["f"]), "the kernel's functions are not marked");
}

/// An address where anything may be mapped.
const ANYWHERE: u64 = 0x7fff_1234_5000;

#[test]
fn the_hypervisors_file_is_named_with_its_build_id() {
    let file = encode(&[of_host(true)]).unwrap();
    let at = record(&file, perf::PERF_RECORD_MMAP2);
    let word = |n: usize| u64::from_le_bytes(file[at + n..at + n + 8].try_into().unwrap());
    let misc = perf::PERF_RECORD_MISC_KERNEL | perf::PERF_RECORD_MISC_MMAP_BUILD_ID;
    assert_eq!((word(0) >> 32) as u32 & 0xffff, misc);
    let expected = [u64::from(u32::MAX) << 32 | u64::from(u32::MAX), XENS, 0x3000, 0x8000];
    assert_eq!([8, 16, 24, 32].map(word), expected);
    assert_eq!(word(40), 0x0302_0100_0000_0014);
    assert!(file[at + 72..].starts_with(b"/nowhere/xen-syms\0"));
}

#[test]
fn virtual_cpus_whose_numbers_perf_would_mistake_are_refused() {
    for (pid, tid) in [(3, 9_999), (100_000, 0), (u32::MAX, u32::MAX)] {
        let mut profile = of_host(false);
        (profile.threads[2].pid, profile.threads[2].tid) = (pid, tid);
        let error = encode(&[profile]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("virtual CPU {tid} of domain {pid} found")), "{error}");
    }
}

/// Returns the place of the file's first record of this kind.
fn record(file: &[u8], kind: u32) -> usize {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let mut at = word(40) as usize;
    while word(at) as u32 != kind {
        at += (word(at) >> 48) as usize;
    }
    at
}

#[test]
fn a_thread_has_the_name_of_the_thread_that_has_started_it() {
    let mut written = profile();
    written.threads[2] = Thread { tid: 9, pid: 7, name: "three".into(), count: 200, task: None };
    let mut file = encode(&[written]).unwrap();
    let word = |file: &[u8], at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let (mut at, end) = (word(&file, 40) as usize, (word(&file, 40) + word(&file, 48)) as usize);
    while at < end {
        let (header, tid) = (word(&file, at), word(&file, at + 8) >> 32);
        // Process and parent, thread and the thread that has started it.
        if header as u32 == perf::PERF_RECORD_FORK && word(&file, at + 16) as u32 == 9 {
            file = with(&file, at + 16, 8 << 32 | 9);
        }
        if header as u32 == perf::PERF_RECORD_COMM && tid == 9 {
            // This puts a record without meaning in its place.
            file[at] = perf::PERF_RECORD_EXIT as u8;
        }
        at += (header >> 48) as usize;
    }
    let read = read(&file).unwrap();
    let mut names: Vec<_> =
        read[0].threads.iter().map(|thread| (thread.tid, &*thread.name)).collect();
    names.sort_unstable();
    assert_eq!(names, [(7, "one"), (8, "two"), (9, "two")], "8 has started 9");
}

#[test]
fn records_wait_until_all_earlier_ones_were_read() {
    let file = encode(&[profile()]).unwrap();
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let bytes = |kind: u32| {
        let at = record(&file, kind);
        file[at..at + (word(at) >> 48) as usize].to_vec()
    };
    let name = |name: u8, time| {
        let mut bytes = bytes(perf::PERF_RECORD_COMM);
        bytes[16..18].copy_from_slice(&[name, 0]);
        let at = bytes.len() - 16;
        with(&bytes, at, time)
    };
    let sample = |time| {
        let thread = word(record(&file, perf::PERF_RECORD_COMM) + 8);
        with(&with(&bytes(perf::PERF_RECORD_SAMPLE), 24, thread), 32, time)
    };
    // The CPU that has taken the sample is read after the one that has renamed the thread.
    let rounds = [vec![name(b'a', 1), name(b'b', 30)], vec![sample(20)], vec![]];
    let end = bytes(user_record::FINISHED_ROUND);
    let records = rounds.map(|round| [round.concat(), end.clone()].concat()).concat();
    let mut head = with(&file[..word(40) as usize], 48, records.len() as u64);
    head[72..104].fill(0);
    let read = read(&[head, records].concat()).unwrap();
    let threads: Vec<_> = read[0].threads.iter().map(|thread| &*thread.name).collect();
    assert_eq!((read[0].samples(), threads), (1, vec!["a"]), "its name at that time");
}

/// Returns the places of the file's mappings of a process.
fn mappings(file: &[u8], pid: u32) -> Vec<usize> {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let (mut at, end, mut found) = (word(40) as usize, (word(40) + word(48)) as usize, Vec::new());
    while at < end {
        let is_map = matches!(word(at) as u32, perf::PERF_RECORD_MMAP | perf::PERF_RECORD_MMAP2);
        if is_map && word(at + 8) as u32 == pid {
            found.push(at);
        }
        at += (word(at) >> 48) as usize;
    }
    found
}

/// Returns the paths of the frames of a process's samples that were interrupted.
fn interrupted(file: &[u8], pid: u32) -> Vec<String> {
    let read = read(file).unwrap();
    let samples = samples(&read[0]).into_iter().filter(|(_, of, ..)| *of == pid);
    samples.map(|(.., places)| places[0].0.clone()).collect()
}

#[test]
fn a_program_that_is_executed_has_none_of_the_mappings_before() {
    let mut written = profile();
    written.stacks.remove(1);
    written.stacks[1].frames = vec![0];
    let mut file = encode(&[written]).unwrap();
    assert_eq!(interrupted(&file, 7), ["/nowhere/a"; 3]);
    let first = mappings(&file, 7)[0];
    let last = *mappings(&file, 9).last().unwrap();
    assert!(first < last, "process 7 is the first one");
    // In place of a mapping of process 9, the record says that process 7 executes another program.
    file[last] = perf::PERF_RECORD_COMM as u8;
    file[last + 4..last + 6]
        .copy_from_slice(&(perf::PERF_RECORD_MISC_COMM_EXEC as u16).to_le_bytes());
    let file = with(&file, last + 8, 7 << 32 | 7);
    assert_eq!(interrupted(&file, 7), [""; 3]);
}

#[test]
fn a_process_that_has_forked_has_the_mappings_of_its_parent() {
    let mut written = profile();
    written.stacks[2].frames = vec![0];
    let mut file = encode(&[written]).unwrap();
    assert_eq!(interrupted(&file, 9), ["/nowhere/a"; 2]);
    let own = mappings(&file, 9);
    assert_eq!(own.len(), 1, "one file is mapped");
    // In place of that record, process 7 forks: process and parent, thread and the thread that
    // forks.
    file[own[0]] = perf::PERF_RECORD_FORK as u8;
    let file = with(&with(&file, own[0] + 8, 7 << 32 | 9), own[0] + 16, 7 << 32 | 9);
    assert_eq!(interrupted(&file, 9), ["/nowhere/a"; 2]);
}

/// Returns the file with counts of this format in each sample, and without the sections behind its
/// records.
fn with_counts(file: &[u8], format: u32, counts: &[u64]) -> Vec<u8> {
    // The places of the lengths of the file's records, of its features, and of its only event's
    // fields and format of counts.
    let (size, features, fields, format_at) = (48, 72, 104 + 8 + 24, 104 + 8 + 32);
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    // Each field has a word of its own, except the callers, which come last.
    let before = 8 * (word(fields) & !u64::from(perf::PERF_SAMPLE_CALLCHAIN)).count_ones() as usize;
    let first = word(40) as usize;
    let (mut at, end, mut records) = (first, first + word(size) as usize, Vec::new());
    while at < end {
        let header = word(at);
        let next = at + (header >> 48) as usize;
        if header as u32 == perf::PERF_RECORD_SAMPLE {
            let callers = at + 8 + before;
            records.extend((header + ((8 * counts.len() as u64) << 48)).to_le_bytes());
            records.extend(&file[at + 8..callers]);
            records.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
            records.extend(&file[callers..next]);
        } else {
            records.extend(&file[at..next]);
        }
        at = next;
    }
    let read = word(fields) | u64::from(perf::PERF_SAMPLE_READ);
    let changes = [(size, records.len() as u64), (features, 0), (features + 8, 0)];
    let mut changed = file[..first].to_vec();
    for (at, number) in changes.into_iter().chain([(fields, read), (format_at, format.into())]) {
        changed = with(&changed, at, number);
    }
    changed.extend(records);
    changed
}

#[test]
fn counts_in_samples_are_passed_over() {
    // No record is long enough for so many callers.
    const N: u64 = 1 << 40;
    let (enabled, running) =
        (perf::PERF_FORMAT_TOTAL_TIME_ENABLED, perf::PERF_FORMAT_TOTAL_TIME_RUNNING);
    let (id, lost, group) = (perf::PERF_FORMAT_ID, perf::PERF_FORMAT_LOST, perf::PERF_FORMAT_GROUP);
    let file = encode(&[profile()]).unwrap();
    let expected = samples(&read(&file).unwrap()[0]);
    for (format, counts) in [
        (0, vec![N]),
        (enabled, vec![N, N]),
        (running, vec![N, N]),
        (id, vec![N, N]),
        // Later versions of perf request this, for a single event and for a group (`:S`).
        (id | lost, vec![N, N, N]),
        (group | id | lost, vec![2, N, N, N, N, N, N]),
        (group | enabled | running, vec![3, N, N, N, N, N]),
        (group, vec![0]),
    ] {
        let read = read(&with_counts(&file, format, &counts));
        let read = read.unwrap_or_else(|error| panic!("{format:#x}: {error:#}"));
        assert_eq!(samples(&read[0]), expected, "{format:#x}");
    }
}

#[test]
fn a_profile_without_times_has_samples_without_times() {
    let mut profile = profile();
    profile.stacks.iter_mut().for_each(|stack| stack.times.clear());
    let read = read(&encode(&[profile]).unwrap()).unwrap();
    assert_eq!(read[0].samples(), 6);
    assert!(read[0].stacks.iter().all(|stack| stack.times.is_empty()));
}

#[test]
fn what_has_no_place_in_a_file_is_refused() {
    type Spoil = fn(&mut Profile);
    let cases: [(Spoil, &str); 5] = [
        (|p| p.modules[0].code[0].size = (1 << 47) - 0x3000, "/nowhere/a: no room for 140737488"),
        (|p| p.stacks[0].samples = 10_000_001, "10000004 samples found, 10000000 at most"),
        (|p| p.frames[2].address = 1 << 47, "[vdso]: addresses from 0x800000000000 on found"),
        (|p| p.frames[2].address = u64::MAX, "[vdso]: addresses from 0x800000000000 on found"),
        (
            |p| p.modules[0] = Module::new("/a".repeat(40_000).as_ref(), Facts::default()),
            "a path of 80000 bytes: a record of 80",
        ),
    ];
    for (spoil, expected) in cases {
        let mut profile = profile();
        spoil(&mut profile);
        let error = format!("{:#}", encode(&[profile]).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }
}

/// Returns the file with a number at this byte.
fn with(file: &[u8], at: usize, number: u64) -> Vec<u8> {
    let mut file = file.to_vec();
    file[at..at + 8].copy_from_slice(&number.to_le_bytes());
    file
}

#[test]
fn something_else_is_refused_by_what_it_is() {
    let file = encode(&[profile()]).unwrap();
    // The places of the header's first word of features, and of the file's first record.
    let (features, records) = (72, 104 + 8 + 112 + 16);
    let feature = |bit: u32| with(&file, features, 1 << bit);
    let mut stacks = file.clone();
    stacks[104 + 8 + 25] |= 1 << 5;
    let cases = [
        (b"PERFFILE".to_vec(), "a file of perf's old version 1 found"),
        (b"2ELIFREP".to_vec(), "a big-endian machine"),
        (b"PERFILE2".to_vec(), "0 bytes found, 8 expected"),
        (with(&file, 8, 16), "perf has written to a pipe"),
        (with(&file, 16, 1 << 40), "attributes of 1099511627776 bytes found"),
        (with(&file, 24, u64::MAX), "a section of 128 bytes from 18446744073709551615 on found"),
        (feature(feature::COMPRESSED), "compressed records found"),
        (feature(feature::AUXTRACE), "a processor's trace"),
        (feature(feature::STAT), "counts of `perf stat record` found"),
        (with(&file, records, user_record::COMPRESSED.into()), "a record of 0 bytes found"),
        (with(&file, records, 8 << 48 | 81), "compressed records found"),
        (with(&file, records, 8 << 48 | 71), "a processor's trace"),
        (stacks, "copies of stacks found"),
        (file[..file.len() - 1].to_vec(), "a section of"),
    ];
    for (file, expected) in cases {
        let error = format!("{:#}", read(&file).unwrap_err());
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn a_file_is_the_one_that_was_recorded_and_not_what_it_is_now() {
    let path = std::path::Path::new("/bin/sh");
    let (now, mut written) = (Facts::read(path), profile());
    let recorded = written.modules[0].build_id.clone();
    assert!(now.build_id.is_some() && now.build_id != recorded, "so that this tests something");
    let code = written.modules[0].code.clone();
    written.modules[0] = Module::new(path.as_os_str(), Facts { build_id: recorded.clone(), code });
    let read = read(&encode(&[written]).unwrap()).unwrap();
    let module = read[0].modules.iter().find(|module| module.path == "/bin/sh").unwrap();
    assert_eq!(module.build_id, recorded);
}

#[test]
fn a_new_mapping_hides_what_was_there() {
    let map = |end, offset| Map { end, offset, file: None };
    let mut space = BTreeMap::new();
    for (start, new) in [(10, map(50, 100)), (20, map(30, 7)), (25, map(60, 9)), (5, map(12, 3))] {
        replace(&mut space, start, new);
    }
    let found: Vec<_> = space.iter().map(|(&at, map)| (at, map.end, map.offset)).collect();
    assert_eq!(found, [(5, 12, 3), (12, 20, 102), (20, 25, 7), (25, 60, 9)]);
}

#[test]
fn no_contents_of_a_file_do_harm() {
    const FILES: usize = 4_000;
    const NUMBERS: [u64; 8] = [0, 1, 8, 0xffff, 0xffff_ffff, 1 << 62, u64::MAX - 7, u64::MAX];
    let (mut rng, mut read_whole) = (fastrand::Rng::with_seed(1), 0);
    let mut two = [profile(), profile()];
    two[1].event = "cycles:u".to_owned();
    let files = [
        RECORDED.to_vec(),
        encode(&[profile()]).unwrap(),
        encode(&two).unwrap(),
        encode(&[of_host(false)]).unwrap(),
    ];
    for _ in 0..FILES {
        let mut file = rng.choice(&files).unwrap().clone();
        for _ in 0..rng.usize(1..4) {
            // Most bytes that are worth spoiling are at the beginning.
            let within = if rng.bool() { 600 } else { file.len() };
            let at = rng.usize(..within.min(file.len() - 8));
            match rng.u8(..4) {
                0 => file[at] = rng.u8(..),
                1 => file[at] ^= 1 << rng.u8(..8),
                2 => file.truncate(at + 8),
                _ => file = with(&file, at - at % 8, *rng.choice(&NUMBERS).unwrap()),
            }
            if file.len() < 16 {
                break;
            }
        }
        // A file that can be read can be written, or is refused.
        if let Ok(profiles) = read(&file) {
            encode(&profiles).ok();
            read_whole += 1;
        }
    }
    assert!((FILES / 20..FILES).contains(&read_whole), "{read_whole} could be read");
}
