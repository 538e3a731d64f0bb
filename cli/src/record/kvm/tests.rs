// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what becomes of a KVM host's samples.

use perfctr::watch::Total;

use super::machines::tests::Files;
use super::*;

/// A machine's process, its virtual CPU's thread, and the virtual CPU.
const WEB: u32 = 4_000_000;
const WEBS_VCPU: [u32; 2] = [WEB, WEB + 9];
/// Places in the machine's kernel and program, and in the host's kernel.
const KERNEL: u64 = 0xffff_ffff_8100_0010;
const PROGRAM: u64 = 0x40_1000;

fn collector() -> Collector {
    let mut profile = Profile::new(Vec::new(), PROVIDER.into(), "instructions".into(), 1_000);
    profile.host = Some(host());
    let machines = Machines::known(WEB, "web", &[(WEBS_VCPU[1], 3)]);
    let mut collector = Collector::of(profile, machines);
    // Nothing is read of this machine.
    collector.own =
        Kernel::of_functions(vec![(KERNEL, "vcpu_run".into()), (KERNEL + 64, "end".into())]);
    collector
}

fn sample(mode: CpuMode, ip: Option<u64>, who: [u32; 2]) -> MachineSample {
    let mut sample = MachineSample::at(mode, ip, who, 7);
    (sample.cpu, sample.period) = (1, 1_000);
    sample
}

/// Returns the thread, the layer, the module and the functions of each stack.
fn all(profile: &Profile) -> Vec<(String, Layer, String, String)> {
    profile.check().unwrap();
    let stack = |stack: &crate::profile::Stack| {
        let frame = profile.frames[stack.frames[0] as usize];
        let module = &profile.modules[frame.module.unwrap() as usize];
        let is_there =
            |symbol: &&crate::profile::Symbol| (symbol.start..symbol.end).contains(&frame.address);
        let function = module.symbols.iter().find(is_there).map(|symbol| symbol.name.clone());
        let thread = profile.name(&profile.threads[stack.thread as usize]);
        (thread, module.layer.unwrap(), module.path.clone(), function.unwrap_or_default())
    };
    profile.stacks.iter().map(stack).collect()
}

fn expected(rows: &[(&str, Layer, &str, &str)]) -> Vec<(String, Layer, String, String)> {
    let row = |&(thread, layer, module, function): &(&str, Layer, &str, &str)| {
        (thread.to_owned(), layer, module.to_owned(), function.to_owned())
    };
    rows.iter().map(row).collect()
}

#[test]
fn a_machine_has_its_guest_and_what_the_host_executes_for_it() {
    let mut collector = collector();
    for (mode, ip, who) in [
        (CpuMode::GuestUser, PROGRAM, WEBS_VCPU),
        (CpuMode::GuestKernel, KERNEL, WEBS_VCPU),
        (CpuMode::HostKernel, KERNEL, WEBS_VCPU),
        (CpuMode::HostUser, PROGRAM, WEBS_VCPU),
        (CpuMode::HostKernel, KERNEL, [WEB, WEB]),
        (CpuMode::HostKernel, KERNEL, [0, 0]),
    ] {
        collector.add(&sample(mode, Some(ip), who));
    }
    let profile = collector.profile();
    let [guests_kernel, guests_user] = [kernel_of(WEB), user_mode_of(WEB)];
    let rows = [
        ("web vCPU 3", Layer::User, &*guests_user, ""),
        ("web vCPU 3", Layer::Kernel, &*guests_kernel, ""),
        ("web vCPU 3", Layer::Hypervisor, "[kernel]", "vcpu_run"),
        ("web vCPU 3", Layer::Hypervisor, "[anon]", ""),
        ("web 4000000", Layer::Hypervisor, "[kernel]", "vcpu_run"),
        ("host 0 idle", Layer::Kernel, "[kernel]", "vcpu_run"),
    ];
    assert_eq!(all(&profile), expected(&rows));
    assert!(profile.stacks.iter().all(|stack| stack.cpu == Some(1)));
    assert_eq!((profile.samples(), profile.missed()), (6, 0));
    assert_eq!((profile.thread_noun(), profile.number_of_threads()), ("thread", 3));
    let tasks = profile.threads.iter().map(|thread| thread.task.is_some());
    assert_eq!(tasks.collect::<Vec<_>>(), [false, true, true], "a virtual CPU's is the guest's");
}

#[test]
fn programs_of_the_host_have_their_files_and_their_names() {
    let mut collector = collector();
    let pid = std::process::id();
    let here = programs_of_the_host_have_their_files_and_their_names as *const () as u64;
    collector.add(&sample(CpuMode::HostUser, Some(here), [pid, pid]));
    let profile = collector.profile();
    let path = std::env::current_exe().unwrap().display().to_string();
    let thread = format!("host {pid} {}", name(pid.cast_signed()));
    assert_eq!(all(&profile), expected(&[(&thread, Layer::User, &path, "")]));
    assert!(!profile.modules[0].code.is_empty() && profile.frames[0].address < here);
    assert_eq!(profile.threads[0].process(), format!("{pid} {}", name(pid.cast_signed())));
}

#[test]
fn a_sample_whose_mode_was_left_has_its_layer_and_no_place() {
    let mut collector = collector();
    for mode in [CpuMode::GuestUser, CpuMode::GuestKernel, CpuMode::HostKernel, CpuMode::HostUser] {
        collector.add(&sample(mode, None, WEBS_VCPU));
    }
    let profile = collector.profile();
    let [guests_kernel, guests_user] = [kernel_of(WEB), user_mode_of(WEB)];
    let rows = [
        ("web vCPU 3", Layer::User, &*guests_user, ""),
        ("web vCPU 3", Layer::Kernel, &*guests_kernel, ""),
        ("web vCPU 3", Layer::Hypervisor, "[kernel]", ""),
        ("web vCPU 3", Layer::Hypervisor, "[anon]", ""),
    ];
    assert_eq!(all(&profile), expected(&rows));
    let notes = collector.notes();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].starts_with("4 samples have no address: "), "{notes:?}");
    assert!(notes[0].contains("1 of guests' user mode in an unknown mode"), "{notes:?}");
}

#[test]
fn what_the_host_executes_before_it_enters_a_guest_or_returns_is_shown_so() {
    let mut collector = collector();
    for arrived in [CpuMode::GuestUser, CpuMode::GuestKernel, CpuMode::HostUser] {
        let mut sample = sample(CpuMode::HostKernel, None, WEBS_VCPU);
        sample.arrived = Some(arrived);
        collector.add(&sample);
    }
    collector.add(&sample(CpuMode::HostKernel, Some(KERNEL), WEBS_VCPU));
    let profile = collector.profile();
    let of_vcpu = |function| ("web vCPU 3", Layer::Hypervisor, "[kernel]", function);
    let rows =
        ["[before entry to a guest]", "[before return to user mode]", "vcpu_run"].map(of_vcpu);
    assert_eq!(all(&profile), expected(&rows));
    assert_eq!(profile.stacks[0].samples, 2);
}

#[test]
fn a_process_that_executes_a_guest_is_a_machine() {
    let mut collector = collector();
    let other = [WEB + 1, WEB + 1];
    collector.add(&sample(CpuMode::HostKernel, Some(KERNEL), other));
    collector.add(&sample(CpuMode::GuestUser, Some(PROGRAM), other));
    let profile = collector.profile();
    let domain = |stack: &crate::profile::Stack| profile.threads[stack.thread as usize].pid;
    let domains: Vec<u32> = profile.stacks.iter().map(domain).collect();
    assert_eq!(domains, [CONTROL_DOMAIN, WEB + 1]);
    assert_eq!(profile.threads[1].domain(), "domain 4000001");
}

#[test]
fn a_virtual_cpu_that_is_new_is_found_by_its_first_sample() {
    let files = Files::new("new");
    files.process(WEB, WEB, "web");
    files.vcpu("4000000-9", 0, WEB + 9, 0);
    let mut collector = Collector { machines: files.machines(), ..collector() };
    collector.look_for_machines();
    files.vcpu("4000000-9", 1, WEB + 10, 0);
    for tid in [WEB + 9, WEB + 10] {
        collector.add(&sample(CpuMode::GuestUser, Some(PROGRAM), [WEB, tid]));
    }
    let profile = collector.profile();
    let threads: Vec<u32> = profile.threads.iter().map(|thread| thread.tid).collect();
    assert_eq!(threads, [0, 1]);
    assert!(profile.threads.iter().all(|thread| thread.task.is_none()), "they are virtual CPUs");
}

#[test]
fn each_profile_has_the_samples_since_the_last_one() {
    let mut collector = collector();
    for mode in [CpuMode::GuestUser, CpuMode::GuestKernel] {
        let mut sample = sample(mode, Some(PROGRAM), WEBS_VCPU);
        sample.period = 3_000;
        collector.add(&sample);
        let profile = collector.profile();
        profile.check().unwrap();
        assert_eq!((profile.samples(), profile.stacks.len()), (3, 1), "three periods at once");
    }
}

#[test]
fn samples_that_are_missing_are_told_of_and_kept() {
    let ended = |counted: Vec<Counted>, lost, throttled| {
        let mut collector = collector();
        (collector.ended, collector.lost) = (Ended { counted, throttled }, lost);
        collector.moments = Some(Moments::begin().unwrap());
        (collector.profile().missed(), collector.notes())
    };
    let counted = |count, [enabled, running]: [u64; 2], samples| {
        let mut total = Total::default();
        total.count = count;
        total.enabled = Duration::from_secs(enabled);
        total.running = Duration::from_secs(running);
        Counted::new(2, CpuMode::GuestUser, total, samples)
    };
    assert_eq!(ended(vec![counted(5_999, [9, 9], 5)], 0, 0), (0, Vec::new()), "one is on its way");
    assert_eq!(ended(vec![counted(9_000, [9, 9], 5)], 4, 0), (4, Vec::new()), "these are lost");
    let late = |samples: [u64; 2]| {
        let (missed, notes) = ended(samples.map(|n| counted(9_000, [9, 9], n)).into(), 1, 0);
        (missed, notes.concat())
    };
    assert_eq!(late([8, 8]), (1, String::new()), "two are on their way, and one is lost");
    assert_eq!(late([9, 7]), (1, String::new()), "the lost one is the one that is missing");
    let (missed, note) = late([9, 6]);
    assert!(missed == 3 && note.starts_with("2 samples more are missing: the kernel"), "{note}");
    let (missed, notes) = ended(vec![counted(9_000, [9, 3], 9)], 0, 2);
    assert_eq!((missed, notes.len()), (18, 2));
    assert!(notes[0].starts_with("18 samples more are missing"), "{notes:?}");
    assert_eq!(notes[1], "the kernel has paused sampling 2 times: too many samples");
    let (_, notes) = ended(vec![counted(0, [9, 0], 0)], 0, 0);
    assert_eq!(notes, ["CPU 2 has no samples of guests' user mode: others have used all counters"]);
}

#[test]
fn places_in_guests_are_not_sought_on_a_kvm_host() {
    let wanted = Wanted::Guest;
    let error = collector().begin(Event::CYCLES.every(10_000), None, wanted).unwrap_err();
    assert!(error.to_string().contains("do not say at which instruction"), "{error}");
}
