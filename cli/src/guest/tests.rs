// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests guests' files with records that are made by hand.

use std::io::Cursor;

use perf_event_open_sys::bindings as perf;
use perfctr::watch::Turns;

use super::about::File;
use super::clock::Moment;
use super::*;
use crate::elf::Segment;
use crate::perf_data::Mapped;
use crate::perf_data::stream::Stream;
use crate::profile::{ClockOf, KvmHost, SampleOrigin};

/// The domain that is active, and one that is not.
const ACTIVE: u32 = 3;
const PASSIVE: u32 = 4;
/// By how much the clocks differ at most in these tests. Unit: ns.
const WITHIN: u64 = 2;

/// A guest's file while it is made. Its counter ticks once in a ns.
struct Made {
    stream: Stream<Cursor<Vec<u8>>>,
    about: About,
}

impl Made {
    fn new() -> Self {
        let mut about =
            About::new((0..3).map(|cpu| (cpu, vec![moment(1_000), moment(1_000_000)])).collect());
        about.kind = Some("PV".to_owned());
        about.kernel =
            vec![(0xffff_ffff_8000_0000, "work".into()), (0xffff_ffff_9000_0000, "end".into())];
        Self { stream: Stream::new(Cursor::default(), &Turns::records()).unwrap(), about }
    }

    /// Adds a record that a CPU has written while it executed a thread.
    fn record(
        &mut self,
        kind: u32,
        misc: u32,
        words: &[u32],
        time: u64,
        cpu: u32,
        by: ThreadId,
    ) -> &mut Self {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_le_bytes());
        bytes.extend((misc as u16).to_le_bytes());
        let length = 8 + 4 * words.len() + 24;
        bytes.extend((length as u16).to_le_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend([by.0, by.1].map(u32::to_le_bytes).as_flattened());
        bytes.extend(time.to_le_bytes());
        bytes.extend([cpu, 0].map(u32::to_le_bytes).as_flattened());
        self.stream.add(&bytes).unwrap();
        self
    }

    /// Adds both records of a switch, of which each has this time.
    fn switch(&mut self, time: u64, cpu: u32, from: ThreadId, to: ThreadId) -> &mut Self {
        let (kind, out) = (perf::PERF_RECORD_SWITCH_CPU_WIDE, perf::PERF_RECORD_MISC_SWITCH_OUT);
        self.record(kind, out, &[to.0, to.1], time, cpu, from);
        self.record(kind, 0, &[from.0, from.1], time, cpu, to)
    }

    /// Adds that a thread has made another one, whose process is a new one.
    fn fork(&mut self, time: u64, cpu: u32, parent: ThreadId, child: ThreadId) -> &mut Self {
        let words = [child.0, parent.0, child.1, parent.1, 0, 0];
        self.record(perf::PERF_RECORD_FORK, 0, &words, time, cpu, parent)
    }

    fn lost(&mut self, time: u64, cpu: u32, by: ThreadId) -> &mut Self {
        self.record(perf::PERF_RECORD_LOST, 0, &[0, 0, 9, 0], time, cpu, by)
    }

    /// Adds what a thread is called, and that its process has mapped a file, as was known before.
    fn known(&mut self, (pid, tid): ThreadId, name: &str, path: &str, time: u64) -> &mut Self {
        self.stream.name(pid, tid, name.as_bytes(), time).unwrap();
        let build_id = Some("aa01");
        let map = Mapped {
            pid,
            start: 0x5000,
            size: 0x1000,
            offset: 0x1000,
            path: path.as_bytes(),
            build_id,
        };
        self.stream.map(&map, time).unwrap();
        let functions =
            vec![(0x1000, 0x10, format!("{name}_first")), (0x1010, 0x10, format!("{name}_second"))];
        let code = vec![Segment { offset: 0x1000, size: 0x1000, address: 0x1000 }];
        let path = path.to_owned();
        self.about.files.push(File { path, build_id: Some("aa01".into()), code, functions });
        self
    }

    fn bytes(self) -> Vec<u8> {
        let about = serde_json::to_vec(&self.about).unwrap();
        self.stream.finish(&about).unwrap().into_inner()
    }
}

type ThreadId = (u32, u32);

const IDLE: ThreadId = (0, 0);
const PROGRAM_A: ThreadId = (70, 70);
const A_WORKER: ThreadId = (70, 71);
const PROGRAM_B: ThreadId = (80, 80);

fn moment(time: u64) -> Moment {
    Moment { tsc: time + TSC, ns: time, within: 0 }
}

/// The host's counter when the guest's clock was 0.
const TSC: u64 = 5_000_000;

/// A place in a domain: its number, the virtual CPU, and the address and the layer.
type HostPlace = (u32, u32, u64, Layer);

/// Returns the profile of a host with samples at these places and times of the guest's clock.
fn host(samples: &[(HostPlace, u64)]) -> Profile {
    let mut profile = Profile::new(Vec::new(), "xen".into(), "cycles".into(), 10);
    profile.host = Some(Host {
        hypervisor: "Xen".into(),
        build_id: None,
        cpus: vec![0],
        tsc: TSC,
        tsc_per_second: 1_000_000_000,
        at_guests: false,
        clocks: Vec::new(),
        kvm: None,
    });
    let mut collected = Samples::default();
    for &((domain, vcpu, address, layer), time) in samples {
        let path = match layer {
            Layer::Hypervisor => "[xen]".to_owned(),
            Layer::Kernel => kernel_of(domain),
            Layer::User => user_mode_of(domain),
        };
        let known = profile.modules.iter().position(|module| module.path == path);
        let module = known.unwrap_or_else(|| {
            let mut module = Module::new(path.as_ref(), Facts::default());
            module.layer = Some(layer);
            profile.modules.push(module);
            profile.modules.len() - 1
        });
        let frame = Frame { module: Some(module as u32), address };
        let thread = collected.thread(&mut profile, domain, vcpu, || format!("d{domain}"));
        collected.add(
            SampleOrigin { cpu: Some(0), ..SampleOrigin::new(thread, &[frame]) },
            1,
            Some(time),
        );
    }
    collected.fill(&mut profile);
    profile.count_by_samples();
    profile
}

/// Joins, and returns each sample of the domain in the order of time: its thread and its function.
fn joined(profile: &mut Profile, made: Made) -> (Vec<String>, Found) {
    let found = add(profile, ACTIVE, &mut Opened::new(&mut Cursor::new(made.bytes())).unwrap());
    profile.check().unwrap();
    (shown(profile), found.unwrap())
}

fn shown(profile: &Profile) -> Vec<String> {
    let names = crate::report::symbols::name(profile, |why| panic!("{why}"));
    let mut all = Vec::new();
    for stack in &profile.stacks {
        let thread = &profile.threads[stack.thread as usize];
        let named = &names[stack.frames[0] as usize];
        for &time in &stack.times {
            let who = match &thread.task {
                Some(task) => {
                    format!("{}/{} {} of {}", task.pid, task.tid, task.name, task.process)
                }
                None => profile.name(thread),
            };
            all.push((time, format!("{who}: {}", named.symbol())));
        }
    }
    all.sort();
    all.into_iter().map(|(_, text)| text).collect()
}

const fn user(vcpu: u32, address: u64) -> HostPlace {
    (ACTIVE, vcpu, address, Layer::User)
}

const fn kernel(vcpu: u32) -> HostPlace {
    (ACTIVE, vcpu, 0xffff_ffff_8000_0010, Layer::Kernel)
}

#[test]
fn samples_between_switches_are_of_the_thread_between_them() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).known(PROGRAM_B, "b", "/bin/b", 0);
    made.stream.name(PROGRAM_A.0, A_WORKER.1, b"worker", 0).unwrap();
    made.switch(10_000, 0, PROGRAM_A, PROGRAM_B)
        .switch(20_000, 0, PROGRAM_B, IDLE)
        .switch(12_000, 1, IDLE, A_WORKER);
    made.switch(30_000, 0, IDLE, PROGRAM_A);
    let mut profile = host(&[
        (user(0, 0x5004), 9_000),
        (kernel(0), 9_500),
        (user(0, 0x5014), 15_000),
        (user(1, 0x5014), 15_001),
        ((ACTIVE, 0, 0xffff_82d0_0000_0000, Layer::Hypervisor), 16_000),
        ((PASSIVE, 0, 0x5004, Layer::User), 16_001),
        (kernel(0), 25_000),
        (user(0, 0x5004), 40_000),
        (user(0, 0x6004), 40_001),
    ]);
    let (all, found) = joined(&mut profile, made);
    let expected = [
        "70/70 a of a: a_first",
        "70/70 a of a: work",
        "80/80 b of b: b_second",
        "70/71 worker of a: a_second",
        "80/80 b of b: [xen]",
        "d4 vCPU 0: [user mode of domain 4]",
        "0/0 idle of idle: work",
        "70/70 a of a: a_first",
        "70/70 a of a: [user mode of domain 3]",
    ];
    assert_eq!(all, expected);
    let none = Found { domain: "d3".into(), error: WITHIN, ..Found::default() };
    assert_eq!(found, Found { samples: 8, named: 8, unmapped: 1, ..none });
    let text = "d3: the threads of 8 of 8 samples are known; 0 of these are within 2 ns of a \
                switch of threads; 1 sample in memory of which the guest does not say what it is";
    assert_eq!(found.to_string(), text);
    assert_eq!(profile.number_of_threads(), 3);
    assert_eq!((profile.samples(), profile.missed()), (9, 0));
}

#[test]
fn perfs_format_has_the_threads_and_processes() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).known(PROGRAM_B, "b", "/bin/b", 0);
    made.stream.name(PROGRAM_A.0, A_WORKER.1, b"worker", 0).unwrap();
    made.switch(10_000, 0, PROGRAM_A, PROGRAM_B).switch(10_000, 1, IDLE, A_WORKER);
    // Some address of each file is the same, and one is where nothing is known.
    let mut profile = host(&[
        (user(0, 0x5004), 9_000),
        (user(0, 0x5004), 11_000),
        (user(1, 0x5004), 12_000),
        (user(1, 0x1004), 13_000),
        ((PASSIVE, 0, 0x5004, Layer::User), 14_000),
    ]);
    joined(&mut profile, made);
    let bytes = crate::perf_data::encode(&[profile]).unwrap();
    let read = &crate::perf_data::read(&mut Cursor::new(bytes)).unwrap()[0];
    let names: BTreeSet<&str> = read.threads.iter().map(|thread| &*thread.name).collect();
    assert_eq!(names, BTreeSet::from(["d3 70 a", "d3 71 worker", "d3 80 b", "d4 vCPU 0"]));
    let processes: BTreeSet<u32> = read.threads.iter().map(|thread| thread.pid).collect();
    assert_eq!((processes.len(), read.samples()), (3, 5));
}

#[test]
fn either_record_of_a_switch_is_enough() {
    let (kind, out) = (perf::PERF_RECORD_SWITCH_CPU_WIDE, perf::PERF_RECORD_MISC_SWITCH_OUT);
    let made = || {
        let mut made = Made::new();
        made.known(PROGRAM_A, "a", "/bin/a", 0).known(PROGRAM_B, "b", "/bin/b", 0);
        made
    };
    let [mut by_first, mut by_second] = [made(), made()];
    by_first.record(kind, out, &[PROGRAM_B.0, PROGRAM_B.1], 10_000, 0, PROGRAM_A);
    by_second.record(kind, 0, &[PROGRAM_A.0, PROGRAM_A.1], 10_000, 0, PROGRAM_B);
    for made in [by_first, by_second] {
        let mut profile = host(&[9_000, 11_000].map(|time| (user(0, 0x5004), time)));
        let (all, _) = joined(&mut profile, made);
        assert_eq!(all, ["70/70 a of a: a_first", "80/80 b of b: b_first"]);
    }
}

#[test]
fn samples_before_and_after_the_guests_recording_keep_their_virtual_cpu() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).switch(500_000, 0, PROGRAM_A, PROGRAM_B);
    let times = [999, 1_000, 1_000_000, 1_000_001];
    let mut profile = host(&times.map(|time| (user(0, 0x5004), time)));
    let (all, found) = joined(&mut profile, made);
    let unknown = "d3 vCPU 0: [user mode of domain 3]";
    let nameless = "80/80  of : [user mode of domain 3]";
    assert_eq!(all, [unknown, "70/70 a of a: a_first", nameless, unknown]);
    assert_eq!((found.samples, found.named, found.outside), (4, 2, 2));
    assert!(found.to_string().contains("; 2 samples before or after"), "{found}");
}

#[test]
fn a_recording_of_another_time_is_refused() {
    let mut made = Made::new();
    made.switch(500_000, 0, PROGRAM_A, PROGRAM_B);
    let mut profile = host(&[(user(0, 0x5004), 999)]);
    let before = profile.clone();
    let bytes = made.bytes();
    let error = add(&mut profile, ACTIVE, &mut Opened::new(&mut Cursor::new(bytes)).unwrap());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("and the host has no samples of it then"), "{error}");
    assert_eq!(profile, before);
}

#[test]
fn between_records_that_were_lost_nothing_is_known() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).known(PROGRAM_B, "b", "/bin/b", 0);
    made.switch(10_000, 0, IDLE, PROGRAM_A).switch(10_000, 1, IDLE, A_WORKER);
    made.lost(20_000, 0, PROGRAM_B).switch(30_000, 0, PROGRAM_B, IDLE);
    // Afterwards the guest has read anew what its processes are.
    made.known(PROGRAM_A, "new", "/bin/new", 25_000);
    let mut profile = host(&[
        (user(0, 0x5004), 9_000),
        (user(0, 0x5004), 10_500),
        (user(1, 0x5004), 10_501),
        (user(0, 0x5004), 19_999),
        (user(0, 0x5004), 21_000),
        (user(1, 0x5004), 26_000),
    ]);
    let (all, found) = joined(&mut profile, made);
    let expected = [
        "d3 vCPU 0: [user mode of domain 3]",
        "d3 vCPU 0: [user mode of domain 3]",
        // Another CPU goes on, but its process may have executed another program.
        "70/71  of : [user mode of domain 3]",
        "d3 vCPU 0: [user mode of domain 3]",
        "80/80  of : [user mode of domain 3]",
        "70/71  of new: new_first",
    ];
    assert_eq!(all, expected);
    // Before the first switch this CPU was idle, which programs cannot execute in.
    assert_eq!((found.lost, found.contradicting, found.named), (2, 1, 3));
}

#[test]
fn a_program_that_is_executed_has_its_own_functions_from_then_on() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).switch(2_000, 0, IDLE, PROGRAM_A);
    let exec = perf::PERF_RECORD_MISC_COMM_EXEC;
    let name = [PROGRAM_A.0, PROGRAM_A.1, u32::from_le_bytes(*b"next"), 0];
    made.record(perf::PERF_RECORD_COMM, exec, &name, 10_000, 0, PROGRAM_A);
    made.known(PROGRAM_A, "next", "/bin/next", 11_000);
    let times = [9_999, 10_500, 11_500];
    let mut profile = host(&times.map(|time| (user(0, 0x5004), time)));
    let (all, _) = joined(&mut profile, made);
    let between = "70/70 next of next: [user mode of domain 3]";
    assert_eq!(all, ["70/70 a of a: a_first", between, "70/70 next of next: next_first"]);
}

#[test]
fn a_child_has_its_parents_name_and_memory() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).switch(2_000, 0, IDLE, PROGRAM_A);
    made.fork(3_000, 0, PROGRAM_A, PROGRAM_B);
    made.switch(4_000, 0, PROGRAM_A, PROGRAM_B);
    let mut profile = host(&[(user(0, 0x5014), 5_000)]);
    let (all, _) = joined(&mut profile, made);
    assert_eq!(all, ["80/80 a of a: a_second"]);
}

/// Returns the control group of each sample, in the order of time.
fn groups(profile: &Profile) -> Vec<String> {
    let stacks = profile.stacks.iter();
    let mut all: Vec<(u64, String)> = stacks
        .flat_map(|stack| {
            let group = profile.threads[stack.thread as usize].cgroup();
            stack.times.iter().map(move |&time| (time, group.clone()))
        })
        .collect();
    all.sort();
    all.into_iter().map(|(_, group)| group).collect()
}

#[test]
fn a_process_is_in_the_group_that_was_read_last_or_in_its_parents() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).switch(2_000, 0, IDLE, A_WORKER);
    made.stream.cgroup(PROGRAM_A.0, b"/first.slice", 0).unwrap();
    made.fork(3_000, 0, PROGRAM_A, PROGRAM_B).switch(3_500, 1, IDLE, PROGRAM_B);
    made.stream.cgroup(PROGRAM_A.0, b"/second.slice/a", 4_000).unwrap();
    made.stream.cgroup(PROGRAM_B.0, b"/third", 6_000).unwrap();
    // Of a process that has ended, the group is not known.
    made.stream.cgroup(PROGRAM_A.0, b"", 8_000).unwrap();
    made.switch(8_800, 2, IDLE, IDLE).lost(9_000, 2, IDLE);
    let mut profile = host(&[
        (user(0, 0x5004), 2_500),
        (user(0, 0x5004), 3_999),
        (user(0, 0x5004), 4_001),
        (user(1, 0x5004), 5_000),
        (user(1, 0x5004), 7_000),
        (user(0, 0x5004), 8_500),
        (user(1, 0x5004), 9_500),
    ]);
    joined(&mut profile, made);
    let expected =
        ["/first.slice", "/first.slice", "/second.slice/a", "/first.slice", "/third", "-", "-"];
    assert_eq!(groups(&profile), expected);
}

#[test]
fn groups_with_any_names_are_shown_and_too_long_ones_are_not() {
    let longest = format!("/{}", "x".repeat(4094));
    let paths = ["/a\u{1b}[2J", &longest, &format!("{longest}y"), "no path"];
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).switch(2_000, 0, IDLE, PROGRAM_A);
    let times = [3_000, 4_000, 5_000, 6_000];
    for (path, time) in paths.iter().zip(times) {
        made.stream.cgroup(PROGRAM_A.0, path.as_bytes(), time).unwrap();
    }
    made.stream.cgroup(PROGRAM_A.0, b"/\xff", 7_000).unwrap();
    let mut profile =
        host(&[3_500, 4_500, 5_500, 6_500, 7_500].map(|time| (user(0, 0x5004), time)));
    joined(&mut profile, made);
    assert_eq!(groups(&profile), ["/a\\u{1b}[2J", &longest, "-", "no path", "/\u{fffd}"]);
}

#[test]
fn a_recording_notices_which_processes_have_executed_a_program() {
    let mut stream = Stream::new(Cursor::<Vec<u8>>::default(), &Turns::records()).unwrap();
    let mut record = Vec::new();
    let (kind, exec) = (perf::PERF_RECORD_COMM, perf::PERF_RECORD_MISC_COMM_EXEC);
    for (pid, misc, time) in [(70_u32, exec, 5_000_u64), (80, 0, 6_000), (90, exec, 7_000)] {
        record.extend(kind.to_le_bytes());
        record.extend([misc as u16, 48].map(u16::to_le_bytes).as_flattened());
        record.extend([pid, pid + 1, 0x61, 0, pid, pid].map(u32::to_le_bytes).as_flattened());
        record.extend(time.to_le_bytes());
        record.extend([3, 0].map(u32::to_le_bytes).as_flattened());
    }
    assert_eq!(stream.add(&record).unwrap().executed, [(70, 5_000), (90, 7_000)]);
    record.truncate(8);
    record[6] = 8;
    assert_eq!(stream.add(&record).unwrap().executed, [], "a record that is too short");
}

#[test]
fn samples_too_close_to_a_switch_are_counted() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).known(PROGRAM_B, "b", "/bin/b", 0);
    made.switch(10_000, 0, PROGRAM_A, PROGRAM_B).switch(10_003, 1, PROGRAM_A, PROGRAM_B);
    let around = [9_997, 9_998, 9_999, 10_000, 10_002, 10_003];
    let mut profile = host(&around.map(|time| (user(0, 0x5004), time)));
    let (all, found) = joined(&mut profile, made);
    let of_a = all.iter().filter(|text| text.starts_with("70/70")).count();
    assert_eq!((of_a, found.near), (3, 4), "{all:?}");
}

#[test]
fn the_virtual_cpu_counts_and_not_the_physical_one() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).known(PROGRAM_B, "b", "/bin/b", 0);
    made.switch(2_000, 0, IDLE, PROGRAM_A).switch(2_000, 1, IDLE, PROGRAM_B);
    let mut profile = host(&[(user(0, 0x5004), 3_000), (user(1, 0x5004), 3_001)]);
    for (n, stack) in profile.stacks.iter_mut().enumerate() {
        stack.cpu = Some(1 - n as u32);
    }
    assert_eq!(joined(&mut profile, made).0, ["70/70 a of a: a_first", "80/80 b of b: b_first"]);
}

#[test]
fn each_sample_keeps_its_physical_cpu() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).switch(2_000, 0, IDLE, PROGRAM_A);
    let other = (PASSIVE, 0, 0x5004, Layer::User);
    // The first three are of a thread, of nobody known, and of another domain.
    let mut profile = host(&[(user(0, 0x5004), 3_000), (user(0, 0x5008), 900), (other, 3_001)]);
    for stack in &mut profile.stacks {
        stack.cpu = Some(stack.times[0] as u32);
    }
    joined(&mut profile, made);
    let cpus: BTreeSet<_> =
        profile.stacks.iter().map(|stack| (stack.times[0], stack.cpu)).collect();
    assert_eq!(cpus, BTreeSet::from([3_000, 900, 3_001].map(|at| (at, Some(at as u32)))));
}

#[test]
fn the_host_may_be_as_wrong_as_it_says() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).switch(10_000, 0, IDLE, PROGRAM_A);
    let mut profile = host(&[9_990, 9_994, 10_006, 10_008].map(|time| (user(0, 0x5004), time)));
    let domain_clock = ClockOf::new(ACTIVE, DomainClock::native());
    let described = profile.host.as_mut().unwrap();
    described.clocks = vec![domain_clock];
    described.kvm = Some(KvmHost { clock_error: 5, missing: 0 });
    let (_, found) = joined(&mut profile, made);
    assert_eq!(found.error, WITHIN + 5);
    // In user mode, the CPU was not idle.
    assert_eq!((found.near, found.named, found.contradicting), (1, 2, 2));
}

#[test]
fn another_build_of_a_file_names_nothing() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).switch(2_000, 0, IDLE, PROGRAM_A);
    made.about.files[0].build_id = Some("bb02".into());
    let mut profile = host(&[(user(0, 0x5004), 3_000)]);
    assert_eq!(joined(&mut profile, made).0, ["70/70 a of a: [a]"]);
}

#[test]
fn no_file_of_the_host_is_opened_by_a_guests_word() {
    let path = std::env::current_exe().unwrap().display().to_string();
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", &path, 0).switch(2_000, 0, IDLE, PROGRAM_A);
    made.about.files.clear();
    let mut profile = host(&[(user(0, 0x5004), 3_000)]);
    joined(&mut profile, made);
    let module = profile.modules.last().unwrap();
    assert_eq!(module.path, format!("domain 3:{path}"));
    assert!(!module.file().is_absolute() && module.code.is_empty());
}

#[test]
fn a_guest_with_a_counter_of_its_own_is_on_the_hosts_axis() {
    for (scale, bits) in [(0, 0), (1 << 32, 32), (3 << 31, 32)] {
        let mut made = Made::new();
        made.about.kind = Some("PVH".into());
        made.known(PROGRAM_A, "a", "/bin/a", 0).switch(500_000, 0, PROGRAM_A, PROGRAM_B);
        let counter = DomainClock::scaled(77, scale, bits);
        for moment in made.about.moments.values_mut().flatten() {
            moment.tsc = counter.at(moment.tsc);
        }
        let mut profile = host(&[499_998, 500_002].map(|time| (user(0, 0x5004), time)));
        let clock = ClockOf { domain: ACTIVE, offset: 77, scale, fraction_bits: bits };
        profile.host.as_mut().unwrap().clocks = vec![clock];
        let (all, _) = joined(&mut profile, made);
        let expected = ["70/70 a of a: a_first", "80/80  of : [user mode of domain 3]"];
        assert_eq!(all, expected, "{clock:?}");
    }
}

#[test]
fn a_sample_is_compared_by_the_clock_of_its_cpu() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0);
    for cpu in 0..2 {
        made.switch(500_000, cpu, PROGRAM_A, PROGRAM_B);
    }
    // The clock of CPU 1 is ahead: it showed 500,000 when that of CPU 0 showed 499,000.
    for moment in made.about.moments.get_mut(&1).unwrap() {
        moment.ns += 1_000;
    }
    let at = 499_500;
    let (all, found) = joined(&mut host(&[(user(0, 0x5004), at), (user(1, 0x5004), at)]), made);
    assert_eq!(all, ["70/70 a of a: a_first", "80/80  of : [user mode of domain 3]"]);
    assert_eq!(found.outside, 0);
}

#[test]
fn a_cpu_whose_clock_is_not_known_keeps_its_samples_without_a_thread() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).switch(2_000, 1, IDLE, PROGRAM_A);
    made.about.moments.get_mut(&1).unwrap().truncate(1);
    let mut profile = host(&[(user(0, 0x5004), 3_000), (user(1, 0x5004), 3_000)]);
    let (_, found) = joined(&mut profile, made);
    assert_eq!((found.samples, found.named, found.outside), (2, 0, 1));
}

#[test]
fn other_guests_and_clocks_are_refused() {
    type Spoil = fn(&mut Made);
    let cases: [(Spoil, &str); 4] = [
        (|made| made.about.kind = Some("PVH".into()), "domain 3 has read, whose kind is PVH"),
        (|made| made.about.kind = None, "domain 3 has read, whose kind is none"),
        (
            |made| made.about.moments.clear(),
            "two times of both clocks expected, and found on no CPU",
        ),
        (
            |made| made.about.moments.get_mut(&1).unwrap()[1].tsc += 999_000,
            "counter with 2000000000 ticks",
        ),
    ];
    for (spoil, expected) in cases {
        let mut made = Made::new();
        made.switch(2_000, 0, IDLE, PROGRAM_A);
        spoil(&mut made);
        let mut profile = host(&[(user(0, 0x5004), 3_000)]);
        let bytes = made.bytes();
        let error = add(&mut profile, ACTIVE, &mut Opened::new(&mut Cursor::new(bytes)).unwrap());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut profile = Profile::new(Vec::new(), "native".into(), "cycles".into(), 10);
    let bytes = Made::new().bytes();
    let error = add(&mut profile, ACTIVE, &mut Opened::new(&mut Cursor::new(bytes)).unwrap());
    assert_eq!(error.unwrap_err().to_string(), "the profile is not that of a host");
}

#[test]
fn files_that_were_cut_or_changed_end_in_an_error_or_in_names() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0)
        .switch(2_000, 0, IDLE, PROGRAM_A)
        .lost(2_500, 0, PROGRAM_A);
    made.fork(3_000, 0, PROGRAM_A, PROGRAM_B);
    made.switch(4_000, 0, PROGRAM_A, PROGRAM_B);
    made.stream.cgroup(PROGRAM_B.0, b"/b", 4_500).unwrap();
    let whole = made.bytes();
    let read = |bytes: &[u8]| {
        let mut profile = host(&[(user(0, 0x5004), 3_000), (kernel(1), 5_000)]);
        let mut file = Cursor::new(bytes);
        let found =
            Opened::new(&mut file).and_then(|mut file| add(&mut profile, ACTIVE, &mut file));
        profile.check().unwrap();
        assert_eq!(profile.samples(), 2);
        found
    };
    assert!(read(&whole).is_ok());
    for end in 0..whole.len() {
        assert!(read(&whole[..end]).is_err(), "{end} bytes of {}", whole.len());
    }
    let mut changed = whole.clone();
    for at in 0..whole.len() {
        for bit in [1, 0x80] {
            changed[at] ^= bit;
            // Whatever it says, nothing panics and no sample is lost.
            let _ = read(&changed);
            changed[at] ^= bit;
        }
    }
}

#[test]
fn threads_of_a_machines_process_stay_what_the_host_says() {
    let mut made = Made::new();
    made.known(PROGRAM_A, "a", "/bin/a", 0).switch(10_000, 0, IDLE, PROGRAM_A);
    let worker = (ACTIVE, 900, 0xffff_82d0_0000_0000, Layer::Hypervisor);
    let mut profile = host(&[(user(0, 0x5004), 11_000), (worker, 11_001)]);
    let task = Task {
        pid: ACTIVE,
        tid: 900,
        name: "worker".into(),
        process: "qemu".into(),
        cgroup: "".into(),
    };
    profile.threads.iter_mut().filter(|thread| thread.tid == 900).for_each(|thread| {
        thread.task = Some(task.clone());
    });
    let (all, found) = joined(&mut profile, made);
    assert_eq!(all, ["70/70 a of a: a_first", "3/900 worker of qemu: [xen]"]);
    assert_eq!((found.samples, profile.samples()), (1, 2), "the guest knows nothing of the other");
}
