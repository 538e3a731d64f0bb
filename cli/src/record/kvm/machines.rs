// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds the virtual machines of a KVM host, their virtual CPUs, and the time-stamp counters that
//! they read.
//!
//! KVM lists its machines below `/sys/kernel/debug/kvm`, each by the thread that has made it. There
//! it also says which thread executes which virtual CPU, and how the virtual CPU's time-stamp
//! counter differs from the host's. Without this directory, a machine is found by its process's
//! descriptors, and a virtual CPU by the name that its thread has.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use libc::pid_t;
use perfctr::host::DomainClock;

use crate::domains::{PROC, name_of_process};
use crate::program;

const KVM: &str = "/sys/kernel/debug/kvm";
/// What the descriptor of a machine leads to.
const MACHINE: &str = "anon_inode:kvm-vm";
/// The thread that all threads of the kernel are children of.
const KTHREADD: &str = "2";
/// The kernel's threads for a machine are called after the number of its process.
const KERNEL_THREADS: [&str; 3] = ["vhost-", "kvm-pit/", "kvm-nx-lpage-re"];

/// A virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The name as it is shown. It is empty if there is none.
    pub name: String,
    /// The number of each virtual CPU, by its thread.
    vcpus: HashMap<u32, u32>,
    /// The different counters that its virtual CPUs have read, or the first two of them. It is
    /// `None` where KVM does not say which one that is.
    clocks: Vec<Option<DomainClock>>,
}

impl Machine {
    /// Returns which virtual CPU a thread executes.
    pub fn vcpu(&self, tid: u32) -> Option<u32> {
        self.vcpus.get(&tid).copied()
    }
}

/// The machines of the host, by their processes. Those that have ended are kept.
#[derive(Debug)]
pub struct Machines {
    kvm: PathBuf,
    proc: PathBuf,
    known: BTreeMap<u32, Machine>,
}

/// A virtual CPU, as KVM describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Vcpu {
    number: u32,
    tid: Option<u32>,
    clock: Option<DomainClock>,
}

impl Machines {
    pub fn new() -> Self {
        Self { kvm: KVM.into(), proc: PROC.into(), known: BTreeMap::new() }
    }

    /// Returns one machine that is known: its process, its name, and its virtual CPUs with their
    /// threads.
    #[cfg(test)]
    pub fn known(process: u32, name: &str, vcpus: &[(u32, u32)]) -> Self {
        let vcpus = vcpus.iter().copied().collect();
        let machine = Machine { name: name.to_owned(), vcpus, clocks: Vec::new() };
        let known = BTreeMap::from([(process, machine)]);
        Self { kvm: "/nowhere".into(), proc: "/nowhere".into(), known }
    }

    pub fn of(&self, process: u32) -> Option<&Machine> {
        self.known.get(&process)
    }

    /// Looks for machines and virtual CPUs that are new.
    pub fn look(&mut self) {
        let listed = self.listed();
        let all = listed.unwrap_or_else(|| self.by_descriptors());
        for (process, vcpus) in all {
            self.add(process, &vcpus);
        }
    }

    /// Adds a machine of which only the process is known: the process has executed a guest.
    pub fn add_unlisted(&mut self, process: u32) {
        let vcpus = self.by_names(process);
        self.add(process, &vcpus);
    }

    /// Returns the machine for which a thread of the kernel works, if it is one.
    pub fn served(&self, tid: u32, name: &str) -> Option<u32> {
        let number = KERNEL_THREADS.iter().find_map(|prefix| name.strip_prefix(prefix))?;
        let process = number.trim_start_matches(|c: char| !c.is_ascii_digit());
        let process = process.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
        let parent = program::status_in(&self.proc, tid.cast_signed(), "PPid");
        (self.known.contains_key(&process) && parent.as_deref() == Some(KTHREADD))
            .then_some(process)
    }

    /// Returns the time-stamp counter that all virtual CPUs of a machine read, if it has always
    /// been the same one.
    pub fn clock(&self, process: u32) -> Option<DomainClock> {
        match self.known.get(&process)?.clocks[..] {
            [clock] => clock,
            _ => None,
        }
    }

    fn add(&mut self, process: u32, vcpus: &[Vcpu]) {
        let proc = &self.proc;
        let machine = self.known.entry(process).or_insert_with(|| Machine {
            name: name_of_process(proc, process).map_or_else(String::new, |name| name.shown()),
            ..Machine::default()
        });
        let threads = vcpus.iter().filter_map(|vcpu| Some((vcpu.tid?, vcpu.number)));
        // Other threads of the machine have their own numbers.
        machine.vcpus.extend(threads.filter(|&(_, number)| number < process));
        for vcpu in vcpus {
            if machine.clocks.len() < 2 && !machine.clocks.contains(&vcpu.clock) {
                machine.clocks.push(vcpu.clock);
            }
        }
    }

    /// Returns the virtual CPUs of each machine by KVM's list, or `None` if there is no list.
    fn listed(&self) -> Option<Vec<(u32, Vec<Vcpu>)>> {
        // A machine is named by the thread that has made it, and by the thread's descriptor of it.
        let parts = |entry: &fs::DirEntry| -> Option<(pid_t, u32)> {
            let name = entry.file_name();
            let (thread, descriptor) = name.to_str()?.split_once('-')?;
            Some((thread.parse().ok()?, descriptor.parse().ok()?))
        };
        let entries = fs::read_dir(&self.kvm).ok()?.flatten();
        // In this order, virtual CPUs keep their numbers if their process makes a further machine.
        let machines: BTreeMap<(pid_t, u32), PathBuf> =
            entries.filter_map(|entry| Some((parts(&entry)?, entry.path()))).collect();
        let mut all = BTreeMap::<u32, Vec<Vcpu>>::new();
        for ((thread, _), path) in machines {
            let Some(process) = self.process_of(thread) else { continue };
            let vcpus = all.entry(process).or_default();
            let before = vcpus.len() as u32;
            vcpus.extend(vcpus_in(&path, before));
        }
        Some(all.into_iter().collect())
    }

    /// Returns the process of a thread.
    fn process_of(&self, tid: pid_t) -> Option<u32> {
        program::status_in(&self.proc, tid, "Tgid")?.parse().ok()
    }

    /// Finds machines by the descriptors of all processes.
    fn by_descriptors(&self) -> Vec<(u32, Vec<Vcpu>)> {
        let processes = fs::read_dir(&self.proc).into_iter().flatten().flatten();
        let number =
            |entry: fs::DirEntry| -> Option<u32> { entry.file_name().to_str()?.parse().ok() };
        let has_machine = |process: &u32| {
            let descriptors = self.proc.join(process.to_string()).join("fd");
            let descriptors = fs::read_dir(descriptors).into_iter().flatten().flatten();
            descriptors.filter_map(|one| fs::read_link(one.path()).ok()).any(|to| is_machine(&to))
        };
        let machines = processes.filter_map(number).filter(has_machine);
        machines.map(|process| (process, self.by_names(process))).collect()
    }

    /// Finds virtual CPUs by the names that known programs give their threads.
    fn by_names(&self, process: u32) -> Vec<Vcpu> {
        let tasks = self.proc.join(process.to_string()).join("task");
        let vcpu = |thread: fs::DirEntry| {
            let tid = thread.file_name().to_str()?.parse().ok();
            let name = fs::read_to_string(thread.path().join("comm")).ok()?;
            Some(Vcpu { number: vcpu_of_name(name.trim_end())?, tid, clock: None })
        };
        fs::read_dir(tasks).into_iter().flatten().flatten().filter_map(vcpu).collect()
    }
}

fn is_machine(target: &Path) -> bool {
    target.as_os_str() == MACHINE
}

/// Returns the virtual CPUs of a machine by KVM's directory of it, from this number on.
///
/// KVM numbers them by their interrupt controllers, whose numbers may have gaps. The guest's kernel
/// counts them in this order.
fn vcpus_in(directory: &Path, from: u32) -> Vec<Vcpu> {
    let id = |entry: &fs::DirEntry| -> Option<u32> {
        entry.file_name().to_str()?.strip_prefix("vcpu")?.parse().ok()
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut entries: Vec<(u32, PathBuf)> =
        entries.filter_map(|entry| Some((id(&entry)?, entry.path()))).collect();
    entries.sort_unstable();
    let vcpu = |(number, (_, path)): (u32, (u32, PathBuf))| {
        let text = |file| fs::read_to_string(path.join(file)).ok();
        // A virtual CPU that has never executed has no thread.
        let tid = text("pid").and_then(|text| text.trim().parse().ok());
        let tid = tid.filter(|&tid| tid != 0);
        let offset = text("tsc-offset").and_then(|text| text.trim().parse::<i64>().ok());
        let scale = text("tsc-scaling-ratio").and_then(|text| text.trim().parse().ok());
        let bits = text("tsc-scaling-ratio-frac-bits").and_then(|text| text.trim().parse().ok());
        let clock = offset.map(|offset| match (scale, bits) {
            (Some(scale), Some(bits)) => DomainClock::scaled(offset.cast_unsigned(), scale, bits),
            _ => DomainClock::shifted(offset.cast_unsigned()),
        });
        Vcpu { number, tid, clock }
    };
    (from..).zip(entries).map(vcpu).collect()
}

/// Returns the number of the virtual CPU whose thread has this name, as QEMU (`CPU 0/KVM`),
/// Firecracker (`fc_vcpu 0`), Cloud Hypervisor (`vcpu0`) and crosvm (`crosvm_vcpu0`) name them.
fn vcpu_of_name(name: &str) -> Option<u32> {
    let qemu = name.strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM"));
    let others = ["fc_vcpu ", "crosvm_vcpu", "vcpu"];
    let number = qemu.or_else(|| others.iter().find_map(|prefix| name.strip_prefix(prefix)));
    number?.parse().ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The host's files, in a directory that a test has made.
    pub struct Files(PathBuf);

    impl Files {
        pub fn new(test: &str) -> Self {
            let name = format!("perfctr-machines-{test}-{}", std::process::id());
            let files = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(files.0.join("proc")).unwrap();
            files
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Adds a process that runs a machine: this thread of it has made the machine.
        pub fn process(&self, pid: u32, tid: u32, name: &str) {
            let arguments = format!("qemu-system-x86_64\0-name\0{name}");
            self.write(&format!("proc/{pid}/cmdline"), &arguments);
            self.write(&format!("proc/{tid}/status"), &format!("Name:\tx\nTgid:\t{pid}\n"));
        }

        pub fn vcpu(&self, machine: &str, id: u32, tid: u32, offset: i64) {
            let path = format!("kvm/{machine}/vcpu{id}");
            self.write(&format!("{path}/pid"), &format!("{tid}\n"));
            self.write(&format!("{path}/tsc-offset"), &format!("{offset}\n"));
        }

        pub fn machines(&self) -> Machines {
            let (kvm, proc) = (self.0.join("kvm"), self.0.join("proc"));
            Machines { kvm, proc, known: BTreeMap::new() }
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn kvms_list_says_which_thread_is_which_virtual_cpu() {
        let files = Files::new("listed");
        files.process(500, 500, "web");
        files.process(600, 604, "mail");
        files.vcpu("500-12", 0, 510, -7);
        files.vcpu("500-12", 2, 511, -7);
        // It has not executed yet.
        files.vcpu("500-12", 16, 0, -7);
        files.vcpu("604-9", 0, 611, 5);
        files.write("kvm/exits", "3");
        let mut machines = files.machines();
        machines.look();
        let web = machines.of(500).unwrap();
        assert_eq!(web.name, "web (unverified)");
        assert_eq!([510, 511, 500, 0].map(|tid| web.vcpu(tid)), [Some(0), Some(1), None, None]);
        let mail = machines.of(600).unwrap();
        assert_eq!((mail.vcpu(611), mail.vcpu(510)), (Some(0), None));
        assert!(machines.of(604).is_none() && machines.of(7).is_none());
        assert_eq!(machines.clock(500), Some(DomainClock::shifted(7_u64.wrapping_neg())));
        files.vcpu("500-12", 16, 512, -7);
        machines.look();
        assert_eq!(machines.of(500).unwrap().vcpu(512), Some(2));
    }

    #[test]
    fn the_virtual_cpus_of_a_second_machine_follow_those_of_the_first() {
        let files = Files::new("second");
        files.process(500, 500, "web");
        files.vcpu("500-9", 0, 510, 3);
        files.vcpu("500-9", 1, 511, 3);
        let mut machines = files.machines();
        machines.look();
        files.vcpu("500-10", 0, 520, 3);
        files.vcpu("500-10", 1, 521, 3);
        machines.look();
        let process = machines.of(500).unwrap();
        let numbers = [510, 511, 520, 521].map(|tid| process.vcpu(tid));
        assert_eq!(numbers, [Some(0), Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn a_counter_that_changes_or_differs_is_unknown() {
        let files = Files::new("clocks");
        files.process(500, 500, "web");
        files.process(600, 600, "mail");
        files.vcpu("500-1", 0, 510, 1 << 40);
        files.vcpu("500-1", 1, 511, 1 << 40);
        files.write("kvm/500-1/vcpu0/tsc-scaling-ratio", "4294967296\n");
        files.write("kvm/500-1/vcpu0/tsc-scaling-ratio-frac-bits", "32\n");
        files.vcpu("600-1", 0, 610, 3);
        let mut machines = files.machines();
        machines.look();
        assert_eq!(machines.clock(500), None, "its virtual CPUs read different counters");
        assert_eq!(machines.clock(600), Some(DomainClock::shifted(3)));
        files.vcpu("600-1", 0, 610, 4);
        machines.look();
        assert_eq!(machines.clock(600), None);
        files.vcpu("600-1", 0, 610, 3);
        machines.look();
        assert_eq!(machines.clock(600), None, "nobody knows how long it was another one");
        fs::remove_dir_all(files.0.join("kvm/500-1/vcpu1")).unwrap();
        let mut machines = files.machines();
        machines.look();
        assert_eq!(machines.clock(500), Some(DomainClock::scaled(1 << 40, 1 << 32, 32)));
    }

    #[test]
    fn a_machine_may_be_found_before_its_virtual_cpus() {
        let files = Files::new("early");
        files.process(500, 500, "web");
        fs::create_dir_all(files.0.join("kvm/500-1")).unwrap();
        let mut machines = files.machines();
        machines.look();
        assert_eq!((machines.of(500).is_some(), machines.clock(500)), (true, None));
        files.vcpu("500-1", 0, 510, 3);
        machines.look();
        assert_eq!(machines.clock(500), Some(DomainClock::shifted(3)));
    }

    #[test]
    fn a_machine_that_has_ended_keeps_its_name_and_its_counter() {
        let files = Files::new("ended");
        files.process(500, 500, "web");
        files.vcpu("500-1", 0, 510, 3);
        let mut machines = files.machines();
        machines.look();
        fs::remove_dir_all(files.0.join("kvm/500-1")).unwrap();
        machines.look();
        assert_eq!(machines.of(500).unwrap().vcpu(510), Some(0));
        assert_eq!(machines.clock(500), Some(DomainClock::shifted(3)));
    }

    #[test]
    fn without_kvms_list_a_machine_is_found_by_its_descriptor() {
        let files = Files::new("descriptors");
        for (pid, target) in [(500, MACHINE), (600, "/dev/kvm")] {
            files.process(pid, pid, "web");
            let directory = files.0.join(format!("proc/{pid}/fd"));
            fs::create_dir_all(&directory).unwrap();
            std::os::unix::fs::symlink(target, directory.join("9")).unwrap();
        }
        files.write("proc/500/task/510/comm", "CPU 3/KVM\n");
        files.write("proc/500/task/500/comm", "qemu-system-x86\n");
        let mut machines = files.machines();
        machines.look();
        let machine = machines.of(500).unwrap();
        assert_eq!([510, 500].map(|tid| machine.vcpu(tid)), [Some(3), None]);
        assert!(machines.of(600).is_none());
        assert_eq!(machines.clock(500), None);
        machines.add_unlisted(600);
        assert_eq!(machines.of(600).unwrap().name, "web (unverified)");
    }

    #[test]
    fn known_programs_number_their_threads() {
        let names = ["CPU 12/KVM", "fc_vcpu 1", "vcpu7", "crosvm_vcpu2", "CPU 1/TCG", "vcpu", "x3"];
        let numbers = names.map(vcpu_of_name);
        assert_eq!(numbers, [Some(12), Some(1), Some(7), Some(2), None, None, None]);
    }

    #[test]
    fn only_the_kernels_own_threads_serve_a_machine() {
        let files = Files::new("served");
        files.process(500, 500, "web");
        files.vcpu("500-1", 0, 510, 3);
        // Thread 2 is the parent of the kernel's threads, and no child of itself.
        for (tid, parent) in [(2, 0), (70, 2), (71, 1)] {
            files.write(&format!("proc/{tid}/status"), &format!("Name:\tx\nPPid:\t{parent}\n"));
        }
        let mut machines = files.machines();
        machines.look();
        let serve = |name: &str| [70, 71, 2, 9].map(|tid| machines.served(tid, name));
        for name in ["vhost-500", "vhost-500-1", "kvm-pit/500", "kvm-nx-lpage-re-500"] {
            assert_eq!(serve(name), [Some(500), None, None, None], "{name}");
        }
        for name in ["nginx", "vhost-501", "vhost-", "500"] {
            assert_eq!(serve(name), [None; 4], "{name}");
        }
    }
}
