// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Adds to a host's profile what only a guest knows: which of its threads each sample is of, and
//! which functions of its programs and of its kernel the sample is in.
//!
//! The guest's file says when each of its CPUs began to execute which thread. A sample of the host
//! has the domain, the virtual CPU and the time, which is enough to find the thread. The file may
//! have any contents: with a wrong file, samples of that guest get wrong names, and nothing else
//! happens.

pub mod about;
pub mod clock;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::BufReader;

use anyhow::{Context, Result, bail, ensure};
use perfctr::host::DomainClock;
use perfctr_gate::text::harmless;

use self::about::About;
use self::clock::{Clock, Clocks};
use crate::elf::Facts;
use crate::host::{DomainFile, Kernel, kernel_of, user_mode_of};
use crate::perf_data::turns::{Answer, Answers, Executed, Question, answer};
use crate::perf_data::{Opened, names_section};
use crate::profile::{
    Frame, Host, Layer, Module, Profile, SampleOrigin, Samples, Stack, Task, Thread,
};
use crate::text::counted;

/// The kind of guest whose time-stamp counter is the host's.
const PV: &str = "PV";
/// By how much the rates of the guest's counter and of the host's may differ, as a share of the
/// rate: the host's clock is adjusted while the rate is measured.
const RATES_SHARE: u64 = 100;

/// How many samples of a domain there are, and what is known of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    domain: String,
    samples: u64,
    /// Samples whose thread is known.
    named: u64,
    /// Of these, samples that are so close to a switch that the clocks cannot tell which thread
    /// they are of.
    near: u64,
    /// By how much the clocks may differ. Unit: ns.
    error: u64,
    /// Samples before the guest has begun to record, or after it has ended.
    outside: u64,
    /// Samples whose records the guest has lost.
    lost: u64,
    /// Samples in user mode at moments when the guest says that its CPU was idle.
    contradicting: u64,
    /// Samples in user mode in memory of which it is not known what is mapped there.
    unmapped: u64,
}

impl Display for Found {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { domain, named, near, error, .. } = self;
        let samples = counted(self.samples, "sample");
        write!(f, "{domain}: the threads of {named} of {samples} are known")?;
        write!(f, "; {near} of these are within {error} ns of a switch of threads")?;
        for (number, what) in [
            (self.outside, "before or after the guest's recording"),
            (self.lost, "of which the guest has lost records"),
            (self.contradicting, "in user mode while the guest says that its CPU was idle"),
            (self.unmapped, "in memory of which the guest does not say what it is"),
        ] {
            if number > 0 {
                write!(f, "; {} {what}", counted(number, "sample"))?;
            }
        }
        Ok(())
    }
}

/// Adds to a host's profile what a guest knows. `guest` is the domain, and the file that `perfctr
/// record --names` has written there.
pub fn join(profile: &mut Profile, guest: &DomainFile) -> Result<Found> {
    let mut read = || {
        let domain = guest.number(profile)?;
        let mut file = BufReader::new(fs::File::open(&guest.file)?);
        add(profile, domain, &mut Opened::new(&mut file)?)
    };
    read().with_context(|| {
        let file = guest.file.display();
        format!("cannot read {file}, which `perfctr record --names` writes")
    })
}

fn add(
    profile: &mut Profile,
    domain: u32,
    opened: &mut Opened<'_, impl std::io::Read + std::io::Seek>,
) -> Result<Found> {
    let about = About::parse(names_section(opened)?)?;
    let host = profile.host.as_ref().context("the profile is not that of a host")?;
    let label = profile.threads.iter().find(|thread| thread.pid == domain);
    let label = label.with_context(|| format!("the profile has no samples of domain {domain}"))?;
    let label = label.domain();
    let clocks = Clocks::new(&about.moments)?;
    let counter = counter(&about, host, domain)?;
    check(&clocks, counter, host)?;
    let error = clocks.error().saturating_add(host.kvm.map_or(0, |kvm| kvm.clock_error));
    let asked = Asked::of(profile, domain, &clocks, counter)?;
    let describe = |path: &OsStr, id: Option<String>| describe(&about, domain, path, id);
    let Answers { each, files } = answer(opened, &asked.questions, error, describe)?;
    let mut joined = Joined::new(profile, domain, label, error);
    for &(stack, n) in &asked.outside {
        joined.sample(stack, n, &Answer::default(), &files);
        joined.found.outside += 1;
    }
    for (&(stack, n), answer) in asked.samples.iter().zip(&each) {
        joined.sample(stack, n, answer, &files);
    }
    let (joined, found) = joined.finish(about);
    *profile = joined;
    Ok(found)
}

/// Returns the relation of the guest's counter to the host's. The driver has said it, if it is not
/// of an earlier release. A PV guest reads the host's counter.
fn counter(about: &About, host: &Host, domain: u32) -> Result<DomainClock> {
    if let Some(known) = host.clocks.iter().find(|known| known.domain == domain) {
        return Ok(known.clock());
    }
    let kind = about.kind.as_deref().unwrap_or("none");
    ensure!(
        host.kvm.is_none(),
        "the profile does not say which time-stamp counter machine {domain} has read: KVM has \
         changed it while the host was sampled, or its virtual CPUs have different ones, or \
         /sys/kernel/debug was not there"
    );
    ensure!(
        kind == PV,
        "the profile does not say which time-stamp counter domain {domain} has read, whose kind is \
         {}: its counter was emulated or set anew, or the driver is of an earlier release",
        harmless(kind)
    );
    Ok(DomainClock::native())
}

/// Checks that the guest's counter has, on each CPU, the rate that it has by the host's.
fn check(clocks: &Clocks, counter: DomainClock, host: &Host) -> Result<()> {
    let expected = counter.ticks(host.tsc_per_second);
    for found in clocks.all().map(Clock::ticks_per_second) {
        ensure!(
            found.abs_diff(expected) <= expected / RATES_SHARE,
            "a time-stamp counter with {found} ticks in a second found, {expected} expected"
        );
    }
    Ok(())
}

/// Returns what a guest says about one of its files.
fn describe(about: &About, domain: u32, path: &OsStr, id: Option<String>) -> Module {
    let path = path.to_string_lossy();
    let known = about.file(&path, id.as_deref());
    let code = known.map_or_else(Vec::new, |file| file.code.clone());
    let build_id = id.or_else(|| known?.build_id.clone());
    // Nobody takes this for a path of the host.
    let path = format!("domain {domain}:{path}");
    Module::new(path.as_ref(), Facts { build_id, code })
}

/// What is asked about the samples of a domain.
struct Asked {
    questions: Vec<Question>,
    /// The stack of each question, and the number of its sample there.
    samples: Vec<(usize, usize)>,
    /// The samples of moments when the guest has not recorded.
    outside: Vec<(usize, usize)>,
}

impl Asked {
    fn of(profile: &Profile, domain: u32, clocks: &Clocks, counter: DomainClock) -> Result<Self> {
        // The profile has a host.
        let host = profile.host.as_ref().context("no host")?;
        let (mut all, mut outside) = (Vec::new(), Vec::new());
        for (n, stack) in profile.stacks.iter().enumerate() {
            let thread = &profile.threads[stack.thread as usize];
            if thread.pid != domain || thread.task.is_some() {
                continue;
            }
            ensure!(
                stack.times.len() as u64 == stack.samples,
                "the profile does not say when samples were taken: an earlier release has \
                 recorded it"
            );
            let (cpu, address) = (thread.tid, users_address(profile, domain, stack));
            let clock = clocks.of_cpu(cpu);
            for (k, &time) in stack.times.iter().enumerate() {
                match clock.and_then(|clock| clock.ns(counter.at(host.tsc_at(time)))) {
                    Some(time) => {
                        all.push((Question { time, cpu, address }, (n, k)));
                    }
                    None => outside.push((n, k)),
                }
            }
        }
        if all.is_empty() {
            let spans = clocks.all().map(Clock::span);
            let [first, last] = spans
                .fold([u64::MAX, 0], |whole, one| [whole[0].min(one[0]), whole[1].max(one[1])]);
            bail!(
                "the guest has recorded while its time-stamp counter went from {first} to {last}, \
                 and the host has no samples of it then; the host's recording began at {}",
                counter.at(host.tsc)
            );
        }
        all.sort_by_key(|(question, _)| question.time);
        let (questions, samples) = all.into_iter().unzip();
        Ok(Self { questions, samples, outside })
    }
}

/// Returns the address in user mode where a sample of a domain is, if it is in user mode.
fn users_address(profile: &Profile, domain: u32, stack: &Stack) -> Option<u64> {
    let frame = profile.frames[stack.frames[0] as usize];
    let module = &profile.modules[frame.module? as usize];
    (module.path == user_mode_of(domain)).then_some(frame.address)
}

/// The profile as it becomes with what a guest knows.
struct Joined<'a> {
    profile: &'a Profile,
    domain: u32,
    found: Found,
    threads: Vec<Thread>,
    /// The index of each thread, by what it was before and by the guest's thread.
    indices: HashMap<(u32, Option<Task>), u32>,
    samples: Samples,
    modules: Vec<Module>,
    /// The index of the module of each of the guest's files, by the layer.
    files: HashMap<(usize, Option<Layer>), u32>,
    /// The addresses in each of these modules.
    addresses: BTreeMap<u32, BTreeSet<u64>>,
}

impl<'a> Joined<'a> {
    fn new(profile: &'a Profile, domain: u32, label: String, error: u64) -> Self {
        let mut joined = Self {
            profile,
            domain,
            found: Found { domain: label, error, ..Found::default() },
            threads: Vec::new(),
            indices: HashMap::new(),
            samples: Samples::default(),
            modules: profile.modules.clone(),
            files: HashMap::new(),
            addresses: BTreeMap::new(),
        };
        for stack in &profile.stacks {
            let thread = &profile.threads[stack.thread as usize];
            if thread.pid != domain || thread.task.is_some() {
                joined.keep(stack);
            }
        }
        joined
    }

    /// Keeps a stack of which the guest knows nothing.
    fn keep(&mut self, stack: &Stack) {
        let thread = self.thread(stack.thread, None);
        let frames: Vec<Frame> = self.frames(stack);
        let origin = SampleOrigin { cpu: stack.cpu, ..SampleOrigin::new(thread, &frames) };
        if stack.times.is_empty() {
            self.samples.add(origin, stack.samples, None);
        }
        for &time in &stack.times {
            self.samples.add(origin, 1, Some(time));
        }
    }

    fn frames(&self, stack: &Stack) -> Vec<Frame> {
        stack.frames.iter().map(|&frame| self.profile.frames[frame as usize]).collect()
    }

    /// Returns the index of a thread, which was this one before.
    fn thread(&mut self, before: u32, task: Option<Task>) -> u32 {
        let known = &self.profile.threads[before as usize];
        *self.indices.entry((before, task)).or_insert_with_key(|(_, task)| {
            self.threads.push(Thread {
                count: 0,
                task: task.clone().or(known.task.clone()),
                ..known.clone()
            });
            self.threads.len() as u32 - 1
        })
    }

    /// Adds one sample of a stack, with what the guest knows of it.
    fn sample(&mut self, stack: usize, n: usize, answer: &Answer, files: &[Module]) {
        let stack = &self.profile.stacks[stack];
        let mut frames = self.frames(stack);
        let layer = frames[0].module.and_then(|module| self.modules[module as usize].layer);
        self.found.samples += 1;
        let task = match &answer.executed {
            Executed::Thread(task) => Some(task.clone()),
            Executed::Idle if layer == Some(Layer::User) => {
                self.found.contradicting += 1;
                None
            }
            Executed::Idle => Some(Task::idle()),
            Executed::Lost => {
                self.found.lost += 1;
                None
            }
            Executed::Unknown => None,
        };
        if task.is_some() {
            self.found.named += 1;
            self.found.near += u64::from(answer.near);
            if let Some((file, address)) = answer.code {
                frames[0] = Frame { module: Some(self.file(file, layer, files)), address };
                self.addresses.entry(frames[0].module.unwrap_or(0)).or_default().insert(address);
            } else if users_address(self.profile, self.domain, stack).is_some() {
                self.found.unmapped += 1;
            }
        }
        let thread = self.thread(stack.thread, task);
        let origin = SampleOrigin { cpu: stack.cpu, ..SampleOrigin::new(thread, &frames) };
        self.samples.add(origin, 1, Some(stack.times[n]));
    }

    /// Returns the index of the module of one of the guest's files.
    fn file(&mut self, file: usize, layer: Option<Layer>, files: &[Module]) -> u32 {
        *self.files.entry((file, layer)).or_insert_with(|| {
            let mut module = files[file].clone();
            module.layer = layer;
            self.modules.push(module);
            self.modules.len() as u32 - 1
        })
    }

    fn finish(mut self, about: About) -> (Profile, Found) {
        for (&index, addresses) in &self.addresses {
            let module = &mut self.modules[index as usize];
            // The domain comes before the path.
            let path = module.path.split_once(':').map_or("", |(_, path)| path);
            let file = about.file(path, module.build_id.as_deref());
            module.symbols = file.map_or_else(Vec::new, |file| file.with(addresses));
        }
        let mut profile = self.profile.clone();
        (profile.threads, profile.modules) = (self.threads, self.modules);
        self.samples.fill(&mut profile);
        profile.count_by_samples();
        name_kernel(&mut profile, self.domain, about.kernel);
        (profile, self.found)
    }
}

/// Names the functions of a domain's kernel, if the host has not named them.
fn name_kernel(profile: &mut Profile, domain: u32, functions: Vec<(u64, String)>) {
    let kernel = Kernel::of_functions(functions);
    for (n, module) in profile.modules.iter_mut().enumerate() {
        if module.path == kernel_of(domain) && module.symbols.is_empty() {
            let is_there = |frame: &&Frame| frame.module == Some(n as u32);
            let addresses = profile.frames.iter().filter(is_there).map(|frame| frame.address);
            module.symbols = kernel.functions(&addresses.collect());
        }
    }
}

#[cfg(test)]
mod tests;
