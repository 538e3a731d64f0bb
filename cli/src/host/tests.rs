// SPDX-License-Identifier: MIT OR GPL-2.0-only

use super::*;

pub(crate) fn sample(mode: Mode, domain: u32, cpu: u32, ip: u64) -> HostSample {
    let mut sample = HostSample::default();
    (sample.mode, sample.domain, sample.vcpu) = (mode, domain, 1);
    (sample.cpu, sample.ip) = (cpu, ip);
    sample
}

fn hypervisor() -> Hypervisor {
    Hypervisor::without_file()
}

fn profile() -> Profile {
    Profile::new(Vec::new(), "xen".into(), "cycles".into(), 10_000)
}

#[test]
fn samples_of_a_domain_are_told_apart_by_mode_and_cpu() {
    let mut collector = Collector::new(hypervisor(), profile());
    for (n, mut sample) in [
        sample(Mode::Hypervisor, 0, 0, 0x10),
        sample(Mode::Kernel, 3, 0, 0x20),
        sample(Mode::Hypervisor, 3, 1, 0x10),
        sample(Mode::User, 3, 1, 0x20),
        sample(Mode::Hypervisor, 0, 0, 0x10),
        sample(Mode::Hypervisor, 0, 1, 0x10),
        sample(Mode::Hypervisor, IDLE_DOMAIN, 1, 0x10),
    ]
    .into_iter()
    .enumerate()
    {
        sample.tsc = collector.clock.tsc + n as u64;
        collector.add(&sample);
    }
    let expected = [(Mode::Hypervisor, 0), (Mode::Kernel, 3), (Mode::User, 3)];
    assert_eq!(collector.modules.found, expected);
    let profile = collector.profile();
    let who: Vec<_> = profile.threads.iter().map(|thread| (thread.pid, thread.tid)).collect();
    assert_eq!(who, [(0, 1), (3, 1), (IDLE_DOMAIN, 1)]);
    let of = |thread: u32| {
        let stacks = profile.stacks.iter().filter(move |stack| stack.thread == thread);
        stacks.map(|stack| (stack.cpu, stack.samples, stack.times.len())).collect::<Vec<_>>()
    };
    assert_eq!(of(0), [(Some(0), 2, 2), (Some(1), 1, 1)]);
    assert_eq!(of(1).len(), 3);
    profile.check().unwrap();
    assert_eq!((profile.samples(), profile.missed()), (7, 0));
}

#[test]
fn each_profile_has_what_came_since_the_last_one() {
    let mut collector = Collector::new(hypervisor(), profile());
    let mut look = |samples: &[HostSample], lost| {
        samples.iter().for_each(|sample| collector.add(sample));
        collector.lost = lost;
        let profile = collector.profile();
        profile.check().unwrap();
        let layer = |stack: &crate::profile::Stack| {
            let module = profile.frames[stack.frames[0] as usize].module.unwrap();
            (profile.threads[stack.thread as usize].pid, profile.modules[module as usize].layer)
        };
        let layers: Vec<_> = profile.stacks.iter().map(layer).collect();
        (layers, profile.samples(), profile.missed())
    };
    let [kernel, user] = [Layer::Kernel, Layer::User].map(Some);
    let first = [sample(Mode::Kernel, 3, 0, 0x20), sample(Mode::Kernel, 3, 0, 0x20)];
    assert_eq!(look(&first, 5), (vec![(3, kernel)], 2, 5));
    assert_eq!(look(&[], 5), (vec![], 0, 0));
    let second = [sample(Mode::User, 4, 1, 0x20), sample(Mode::Kernel, 3, 1, 0x20)];
    assert_eq!(look(&second, 6), (vec![(4, user), (3, kernel)], 2, 1));
}

#[test]
fn the_names_of_domains_are_asked_for_when_one_is_new() {
    let (mut names, mut asked) = (DomainNames::default(), 0);
    let mut named = |domains: &[u32]| {
        let mut profile = profile();
        let mut samples = Samples::default();
        for &domain in domains {
            samples.thread(&mut profile, domain, 1, String::new);
        }
        names.name(&mut profile, || {
            asked += 1;
            Names::from([(3, "web\x07".to_owned())])
        });
        let names: Vec<_> = profile.threads.iter().map(|thread| thread.name.clone()).collect();
        (names, asked)
    };
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    assert_eq!(named(&[0, 3, IDLE_DOMAIN]), (words(&["", "web\\u{7}", "idle"]), 1));
    assert_eq!(named(&[3, 0]), (words(&["web\\u{7}", ""]), 1));
    assert_eq!(named(&[4]), (words(&[""]), 2));
    assert_eq!(named(&[4]), (words(&[""]), 2), "it has no name");
}

#[test]
fn a_domain_that_is_gone_keeps_its_name() {
    let mut names = DomainNames::default();
    let list = |domains: &[(u32, &str)]| -> Names {
        domains.iter().map(|&(domain, name)| (domain, name.to_owned())).collect()
    };
    let of = |domains: &[u32]| {
        let (mut profile, mut samples) = (profile(), Samples::default());
        for &domain in domains {
            samples.thread(&mut profile, domain, 0, String::new);
        }
        profile
    };
    names.begin(|| list(&[(0, "Domain-0"), (3, "web")]));
    let known = || -> Names { panic!("both names are known") };
    names.look_up(&of(&[0, 3, IDLE_DOMAIN]), known);
    names.look_up(&of(&[0, 4]), || list(&[(0, "Domain-0"), (4, "mail")]));
    let mut all = of(&[0, 3, 4]);
    names.name(&mut all, || panic!("all names are known"));
    let found: Vec<&str> = all.threads.iter().map(|thread| &*thread.name).collect();
    assert_eq!(found, ["Domain-0", "web", "mail"]);
}

#[test]
fn a_domains_counter_is_asked_for_when_it_is_new_and_left_out_if_it_changes() {
    let (mut clocks, asked) = (Clocks::default(), std::cell::Cell::new(0));
    let of = |domains: &[u32]| {
        let (mut profile, mut samples) = (profile(), Samples::default());
        for &domain in domains {
            samples.thread(&mut profile, domain, 0, String::new);
        }
        super::domains(&profile.threads)
    };
    let first = |domain: u32| {
        asked.set(asked.get() + 1);
        (domain != 5).then(|| DomainClock::shifted(domain.into()))
    };
    clocks.look_up(of(&[0, 3, IDLE_DOMAIN]), first);
    clocks.look_up(of(&[3, 4, 5]), first);
    assert_eq!(asked.get(), 4);
    // Domain 3 has written to its counter, and domain 4 is gone.
    let last = |domain: u32| (domain != 4).then(|| DomainClock::shifted(domain as u64 / 3 * 7));
    let found = clocks.of(of(&[0, 3, 4, 5, 6, IDLE_DOMAIN]), last);
    let found: Vec<_> = found.iter().map(|clock| (clock.domain, clock.offset)).collect();
    assert_eq!(found, [(0, 0), (4, 4), (6, 14)]);
}

#[test]
fn other_domains_are_known_by_their_numbers_only() {
    let mut modules = Modules::new(hypervisor());
    for mode in [Mode::Kernel, Mode::User] {
        modules.index_of(&sample(mode, 3, 0, 0x20));
    }
    let named = modules.named(&profile());
    let named: Vec<_> = named.iter().map(|module| (&*module.path, module.layer)).collect();
    let expected = [
        ("[kernel of domain 3]", Some(Layer::Kernel)),
        ("[user mode of domain 3]", Some(Layer::User)),
    ];
    assert_eq!(named, expected);
}

/// Collects these samples, with a list of domain 3's functions. Returns each module with its layer
/// and its functions.
fn named_by_list(samples: &[HostSample]) -> Vec<(String, Option<Layer>, String)> {
    let name = format!("perfctr-own-{}-{}", std::process::id(), samples.len());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, "10 T xennet_poll\n30 T end\n").unwrap();
    let mut collector = Collector::new(hypervisor(), profile());
    let list: DomainFile = format!("3={}", file.display()).parse().unwrap();
    collector.name_kernels(Kernels::of_lists(&[list]).unwrap());
    std::fs::remove_file(&file).unwrap();
    samples.iter().for_each(|sample| collector.add(sample));
    let module = |module: &Module| {
        let names: Vec<String> = module.symbols.iter().map(|one| one.name.clone()).collect();
        (module.path.clone(), module.layer, names.join(" "))
    };
    collector.profile().modules.iter().map(module).collect()
}

#[test]
fn kernels_are_named_by_the_lists_of_their_domains() {
    let samples = [0, 3, 4, 5].map(|domain| sample(Mode::Kernel, domain, 0, 0x20));
    let expected = [
        ("[kernel]", ""),
        ("[kernel of domain 3]", "xennet_poll"),
        ("[kernel of domain 4]", ""),
        ("[kernel of domain 5]", ""),
    ];
    let expected =
        expected.map(|(path, names)| (path.to_owned(), Some(Layer::Kernel), names.to_owned()));
    assert_eq!(named_by_list(&samples), expected);
}

#[test]
fn what_the_hypervisor_executes_for_a_domain_is_at_the_domains_instructions() {
    let modes = [Mode::Kernel, Mode::ForKernel, Mode::ForUser];
    let expected = [
        ("[kernel of domain 3]", Layer::Kernel, "xennet_poll"),
        ("[kernel of domain 3]", Layer::Hypervisor, "xennet_poll"),
        ("[user mode of domain 3]", Layer::Hypervisor, ""),
    ];
    let expected =
        expected.map(|(path, layer, names)| (path.to_owned(), Some(layer), names.to_owned()));
    assert_eq!(named_by_list(&modes.map(|mode| sample(mode, 3, 0, 0x20))), expected);
}

#[test]
fn ticks_become_time() {
    assert_eq!(time(5_000, 2_000_000_000), 2_500);
    assert_eq!(time(u64::MAX, 1), u64::MAX, "it is as long as can be written");
    assert_eq!(time(7, 0), 7_000_000_000);
}
