// SPDX-License-Identifier: MIT OR GPL-2.0-only

use super::*;

fn sample(mode: Mode, domain: u32, cpu: u32, ip: u64) -> HostSample {
    HostSample { tsc: 0, ip, mode, domain, vcpu: 1, cpu }
}

fn hypervisor() -> Hypervisor {
    Hypervisor::without_file()
}

#[test]
fn samples_of_a_domain_are_told_apart_by_mode_and_cpu() {
    let (mut samples, mut modules) = (Samples::default(), Modules::new(hypervisor()));
    let mut profile = Profile::new(Vec::new(), "xen".into(), "cycles".into(), 10_000);
    for (n, sample) in [
        sample(Mode::Hypervisor, 0, 0, 0x10),
        sample(Mode::Kernel, 3, 0, 0x20),
        sample(Mode::Hypervisor, 3, 1, 0x10),
        sample(Mode::User, 3, 1, 0x20),
        sample(Mode::Hypervisor, 0, 0, 0x10),
        sample(Mode::Hypervisor, 0, 1, 0x10),
        sample(Mode::Hypervisor, IDLE_DOMAIN, 1, 0x10),
    ]
    .iter()
    .enumerate()
    {
        add(&mut samples, &mut profile, &mut modules, sample, n as u64);
    }
    samples.fill(&mut profile);
    let who: Vec<_> = profile.threads.iter().map(|thread| (thread.pid, thread.tid)).collect();
    assert_eq!(who, [(0, 1), (3, 1), (IDLE_DOMAIN, 1)]);
    let of = |thread: u32| {
        let stacks = profile.stacks.iter().filter(move |stack| stack.thread == thread);
        stacks.map(|stack| (stack.cpu, stack.samples, stack.times.clone())).collect::<Vec<_>>()
    };
    assert_eq!(of(0), [(Some(0), 2, vec![0, 4]), (Some(1), 1, vec![5])]);
    assert_eq!(of(1).len(), 3);
    let layers = [Layer::Hypervisor, Layer::Kernel, Layer::User];
    assert_eq!(modules.found, [(layers[0], 0), (layers[1], 3), (layers[2], 3)]);
    name(&mut profile, &Names::from([(3, "web\x07".to_owned())]));
    let names: Vec<&str> = profile.threads.iter().map(|thread| &*thread.name).collect();
    assert_eq!(names, ["", "web\\u{7}", "idle"]);
    profile.count_by_samples();
    profile.modules = modules.named(&profile);
    profile.check().unwrap();
    assert_eq!((profile.samples(), profile.missed()), (7, 0));
    profile.lost = 4;
    assert_eq!(profile.missed(), 4);
}

#[test]
fn other_domains_are_known_by_their_numbers_only() {
    let mut modules = Modules::new(hypervisor());
    for mode in [Mode::Kernel, Mode::User] {
        modules.of(&sample(mode, 3, 0, 0x20));
    }
    let profile = Profile::new(Vec::new(), String::new(), String::new(), 1);
    let named = modules.named(&profile);
    let named: Vec<_> = named.iter().map(|module| (&*module.path, module.layer)).collect();
    let expected = [
        ("[kernel of domain 3]", Some(Layer::Kernel)),
        ("[user mode of domain 3]", Some(Layer::User)),
    ];
    assert_eq!(named, expected);
}

#[test]
fn ticks_become_time() {
    assert_eq!(time(5_000, 2_000_000_000), 2_500);
    assert_eq!(time(u64::MAX, 1), u64::MAX, "it is as long as can be written");
    assert_eq!(time(7, 0), 7_000_000_000);
}

#[test]
fn lists_of_physical_cpus_are_numbers_and_ranges() {
    let parsed = |text: &str| text.parse::<Cpus>().map(|cpus| cpus.0);
    assert_eq!(parsed("3,0-1,1"), Ok(vec![0, 1, 3]));
    assert_eq!(parsed("63"), Ok(vec![63]));
    for text in ["", "a", "2-1", "64", "0-4294967295", "1,", "-1"] {
        assert!(parsed(text).is_err(), "{text}");
    }
}
