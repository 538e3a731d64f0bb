// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reasons why a provider gives no counters, with their remedies.

use std::{fmt, fs, io};

use super::types::Provider;

/// A provider's refusal to give counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The provider that refuses.
    pub provider: Provider,
    /// The reason.
    pub cause: Cause,
    /// The error number that the kernel gave.
    pub errno: i32,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { provider, cause, errno } = self;
        write!(f, "{provider}: {cause} [{}]", io::Error::from_raw_os_error(*errno))
    }
}

/// The reason why a provider gives no counters. Its displayed form also contains the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// This is not a guest of Xen or KVM, so the kernel module cannot work.
    NoHypervisor,
    /// The guest does not have the kernel module.
    NoModule,
    /// The device's mode does not let the caller open it.
    DeviceAccess,
    /// The hypervisor has no driver.
    NoDriver,
    /// The hypervisor's driver is off.
    DriverOff,
    /// The host does not let this domain count.
    Forbidden,
    /// The driver does not serve this kind of domain.
    DomainKind,
    /// The domain was restored on a host whose counters are not those that the module knows.
    OtherCounters,
    /// Whole CPUs are being counted, which excludes threads; or perf has the counters of the host.
    CpusCounted,
    /// The module's parameter `paranoid`, or lockdown, forbids such counts to the caller.
    ModulePolicy,
    /// There is no PMU, or the kernel has no driver for it.
    NoPmu,
    /// `perf_event_paranoid` has this value, which forbids the caller all events.
    Paranoid(i32),
    /// `perf_event_paranoid` has this value, which lets the caller count only user mode.
    KernelMode(i32),
    /// `perf_event_paranoid` has this value, which lets the caller count threads but not CPUs.
    WholeCpus(i32),
    /// The thread or process is another user's.
    OthersThread,
    /// A seccomp filter forbids `perf_event_open` to the caller.
    Seccomp,
    /// The kernel's security module forbids `perf_event_open` to the caller.
    SecurityModule,
    /// The kernel was built without perf events, or a filter answers as if it were.
    NoPerfEvents,
    /// Samples of this event can have no branches on this machine.
    NoBranches,
    /// Samples can have only branches of user mode on this machine.
    KernelBranches,
    /// This provider works on x86-64 only.
    NotX86,
    /// Another reason, of which only the error number is known.
    Other,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reason, remedy) = self.words();
        write!(f, "{reason}; {remedy}")
    }
}

/// The reasons and remedies for machines that cannot have these counters.
const NO_HYPERVISOR: (&str, &str) =
    ("this machine is no guest of Xen or KVM", "nothing is to be done");
const NOT_X86: (&str, &str) = (
    "this machine is no x86-64",
    "the provider native counts on other machines whose kernel has a PMU",
);

impl Cause {
    /// Returns the reason, as a text.
    #[must_use]
    pub fn reason(self) -> String {
        self.words().0
    }

    /// Returns the remedy, as a text.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        self.words().1
    }

    /// Returns the reason and the remedy.
    fn words(self) -> (String, &'static str) {
        self.words_of_perf().unwrap_or_else(|| {
            let (reason, remedy) = self.words_of_device();
            (reason.to_owned(), remedy)
        })
    }

    /// Returns the reason and the remedy of a cause that concerns the device.
    fn words_of_device(self) -> (&'static str, &'static str) {
        match self {
            Self::NoHypervisor => NO_HYPERVISOR,
            Self::NoModule => (
                "the kernel module is not loaded",
                "`modprobe perfctr` loads it, or says in the kernel's log whether the hypervisor \
                 has no driver, has it off, or does not let this domain count",
            ),
            Self::DeviceAccess => (
                "the caller may not open /dev/perfctr",
                "root may, and so may the members of the device's group, which Debian's package \
                 calls perfctr",
            ),
            Self::NoDriver => {
                ("this hypervisor has no perfctr driver", "the host needs one that has")
            }
            Self::DriverOff => (
                "the hypervisor's driver is off",
                "the host's `xl dmesg`, or `dmesg` with KVM, says why, and the option perfctr on \
                 Xen's command line, or of the module kvm, turns it on",
            ),
            Self::Forbidden => (
                "the host does not let this domain count",
                "its administrator does so for all domains by perfctr=all on Xen's command line, \
                 or of the module kvm",
            ),
            Self::DomainKind => (
                "the driver does not serve this kind of domain",
                "64-bit PV guests with tsc_mode=\"native\" are served, and 64-bit PVH, HVM and \
                 KVM guests on AMD's CPUs",
            ),
            Self::OtherCounters => (
                "this host has other counters than the one before, where the kernel module was \
                 loaded",
                "`modprobe -r perfctr` and `modprobe perfctr` take them",
            ),
            Self::CpusCounted => (
                "whole CPUs are being counted, or perf on the KVM host has the counters",
                "threads can count when that ends",
            ),
            Self::ModulePolicy => (
                "the module's parameter paranoid keeps this count from the caller, as may lockdown",
                "CAP_PERFMON or a lower value lets the caller count",
            ),
            Self::NotX86 => NOT_X86,
            _ => ("the kernel refused", "its error number says why"),
        }
    }

    /// Returns the reason and the remedy of a cause that concerns the kernel's perf events.
    fn words_of_perf(self) -> Option<(String, &'static str)> {
        let (reason, remedy) = match self {
            Self::NoPmu => {
                ("the kernel knows no PMU here", "in a virtual machine the host has to offer one")
            }
            Self::Paranoid(level) => {
                return Some((
                    format!("kernel.perf_event_paranoid is {level}"),
                    "`sysctl kernel.perf_event_paranoid=2` or CAP_PERFMON lets the caller count",
                ));
            }
            Self::KernelMode(level) => {
                return Some((
                    format!(
                        "kernel.perf_event_paranoid is {level}: the caller may count user mode only"
                    ),
                    "`:u` behind the event counts that; root, CAP_PERFMON or `sysctl \
                     kernel.perf_event_paranoid=1` lets the caller count both modes",
                ));
            }
            Self::WholeCpus(level) => {
                return Some((
                    format!(
                        "kernel.perf_event_paranoid is {level}: the caller may not count whole CPUs"
                    ),
                    "root, CAP_PERFMON or `sysctl kernel.perf_event_paranoid=0` lets the caller \
                     count them",
                ));
            }
            Self::OthersThread => (
                "the thread or process is another user's",
                "that user, root, or whoever has CAP_PERFMON may count it",
            ),
            Self::Seccomp => (
                "a seccomp filter forbids perf_event_open",
                "the container's profile has to allow it",
            ),
            Self::SecurityModule => {
                ("a security module forbids perf_event_open", "its policy has to allow it")
            }
            Self::NoPerfEvents => (
                "the kernel has no perf events (CONFIG_PERF_EVENTS), or a filter hides them",
                "a kernel that has them, or another filter, would count",
            ),
            Self::NoBranches => (
                "no branches are recorded here for samples of this event",
                "processors that record branches do so for their own events; for a guest of Xen, \
                 the host has to allow it by the driver's option `branches`",
            ),
            Self::KernelBranches => (
                "only branches of user mode are recorded here",
                "`:u` behind the event samples user mode with its branches",
            ),
            _ => return None,
        };
        Some((reason.to_owned(), remedy))
    }
}

/// The purpose of a perf event; it decides who may open the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// To count the caller's own thread, in kernel mode, too, or in user mode alone.
    Own { kernel: bool },
    /// To count another thread, which may belong to another user.
    Others { kernel: bool },
    /// To count whole CPUs, or a group of processes on them.
    Cpu,
}

/// The file that lists the kernel's clocks, among which a guest of KVM has KVM's.
const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Facts about this process and machine that distinguish causes with the same error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Surroundings {
    /// Whether this is a guest of Xen or KVM.
    pub guest: bool,
    /// The process has a seccomp filter.
    pub seccomp: bool,
    /// `kernel.perf_event_paranoid`.
    pub paranoid: Option<i32>,
}

impl Surroundings {
    /// Collects the facts about the calling process.
    #[must_use]
    pub fn here() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let status = text("/proc/self/status");
        let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        Self {
            guest: text("/sys/hypervisor/type").trim() == "xen"
                || text(CLOCKS).contains("kvm-clock"),
            seccomp: seccomp.is_some_and(|mode| mode.trim() != "0"),
            paranoid: text("/proc/sys/kernel/perf_event_paranoid").trim().parse().ok(),
        }
    }

    /// Returns why the device could not be opened.
    fn cause_at_device(self, errno: i32) -> Cause {
        match errno {
            libc::ENOENT | libc::ENXIO | libc::ENODEV if self.guest => Cause::NoModule,
            libc::ENOENT | libc::ENXIO | libc::ENODEV => Cause::NoHypervisor,
            libc::EACCES | libc::EPERM => Cause::DeviceAccess,
            _ => Cause::Other,
        }
    }

    /// Returns why a request to the module failed; the module passes on the hypervisor's errors.
    fn cause_at_module(errno: i32) -> Cause {
        match errno {
            libc::ENOSYS => Cause::NoDriver,
            libc::ENODEV => Cause::DriverOff,
            libc::EPERM => Cause::Forbidden,
            libc::EACCES => Cause::ModulePolicy,
            libc::EOPNOTSUPP => Cause::DomainKind,
            libc::ESTALE => Cause::OtherCounters,
            libc::EBUSY => Cause::CpusCounted,
            _ => Cause::Other,
        }
    }

    /// Returns why a perf event of user mode could not be opened.
    ///
    /// No level of `perf_event_paranoid` up to 2 refuses one (`perf_event_open(2)`); Debian has
    /// added level 3, which refuses such events.
    fn cause_at_perf(self, errno: i32) -> Cause {
        match errno {
            libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV => Cause::NoPmu,
            libc::EACCES | libc::EPERM => {
                self.cause_of_denial(errno, Wanted::Own { kernel: false })
            }
            libc::ENOSYS => Cause::NoPerfEvents,
            _ => Cause::Other,
        }
    }

    /// Returns why the caller may not open a perf event (`perf_event_open(2)` says which level of
    /// `perf_event_paranoid` forbids what).
    fn cause_of_denial(self, errno: i32, wanted: Wanted) -> Cause {
        let level = self.paranoid.filter(|_| errno == libc::EACCES).unwrap_or(i32::MIN);
        match wanted {
            _ if level > 2 => Cause::Paranoid(level),
            Wanted::Cpu if level > 0 => Cause::WholeCpus(level),
            Wanted::Own { kernel: true } | Wanted::Others { kernel: true } if level > 1 => {
                Cause::KernelMode(level)
            }
            _ if self.seccomp => Cause::Seccomp,
            Wanted::Others { .. } => Cause::OthersThread,
            Wanted::Own { .. } | Wanted::Cpu => Cause::SecurityModule,
        }
    }
}

impl Refusal {
    fn new(provider: Provider, error: &io::Error, cause: impl FnOnce(i32) -> Cause) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self { provider, cause: cause(errno), errno }
    }

    /// Makes the refusal of a perf event that the caller may not open.
    pub(crate) fn of_denial(error: &io::Error, wanted: Wanted) -> Self {
        let surroundings = Surroundings::here();
        Self::new(Provider::Native, error, |errno| surroundings.cause_of_denial(errno, wanted))
    }

    /// Makes the refusal of a perf event for the sake of the branches in its samples.
    pub(crate) fn of_branches(error: &io::Error, cause: Cause) -> Self {
        Self::new(Provider::Native, error, |_| cause)
    }

    /// Makes the refusal of a provider that works on x86-64 only.
    pub(crate) fn not_x86(provider: Provider) -> Self {
        Self { provider, cause: Cause::NotX86, errno: libc::ENOSYS }
    }

    /// Makes the refusal for a device that could not be opened.
    pub(crate) fn at_device(error: &io::Error) -> Self {
        let surroundings = Surroundings::here();
        Self::new(Provider::Paravirt, error, |errno| surroundings.cause_at_device(errno))
    }

    /// Makes the refusal for a module that did not give the thread counters.
    pub(crate) fn at_module(error: &io::Error) -> Self {
        Self::new(Provider::Paravirt, error, Surroundings::cause_at_module)
    }

    /// Makes the refusal for perf events of which none could be opened.
    pub(crate) fn at_perf(error: &io::Error) -> Self {
        let surroundings = Surroundings::here();
        Self::new(Provider::Native, error, |errno| surroundings.cause_at_perf(errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAUSES: [Cause; 22] = [
        Cause::NoHypervisor,
        Cause::NoModule,
        Cause::DeviceAccess,
        Cause::NoDriver,
        Cause::DriverOff,
        Cause::Forbidden,
        Cause::DomainKind,
        Cause::OtherCounters,
        Cause::CpusCounted,
        Cause::ModulePolicy,
        Cause::NoPmu,
        Cause::Paranoid(3),
        Cause::KernelMode(2),
        Cause::WholeCpus(1),
        Cause::OthersThread,
        Cause::Seccomp,
        Cause::SecurityModule,
        Cause::NoPerfEvents,
        Cause::NoBranches,
        Cause::KernelBranches,
        Cause::NotX86,
        Cause::Other,
    ];
    const BARE: Surroundings = Surroundings { guest: false, seccomp: false, paranoid: Some(2) };

    #[test]
    fn each_answer_of_the_device_has_its_cause() {
        let guest = Surroundings { guest: true, ..BARE };
        assert_eq!(BARE.cause_at_device(libc::ENOENT), Cause::NoHypervisor);
        assert_eq!(guest.cause_at_device(libc::ENOENT), Cause::NoModule);
        assert_eq!(guest.cause_at_device(libc::ENXIO), Cause::NoModule);
        assert_eq!(guest.cause_at_device(libc::EACCES), Cause::DeviceAccess);
        assert_eq!(guest.cause_at_device(libc::EMFILE), Cause::Other);
        for (errno, cause) in [
            (libc::ENOSYS, Cause::NoDriver),
            (libc::ENODEV, Cause::DriverOff),
            (libc::EPERM, Cause::Forbidden),
            (libc::EACCES, Cause::ModulePolicy),
            (libc::EOPNOTSUPP, Cause::DomainKind),
            (libc::ESTALE, Cause::OtherCounters),
            (libc::EBUSY, Cause::CpusCounted),
            (libc::ENOMEM, Cause::Other),
        ] {
            assert_eq!(Surroundings::cause_at_module(errno), cause);
        }
    }

    #[test]
    fn each_answer_of_perf_has_its_cause() {
        let filtered = Surroundings { seccomp: true, ..BARE };
        let paranoid = Surroundings { paranoid: Some(3), ..BARE };
        for (surroundings, errno, cause) in [
            (BARE, libc::ENOENT, Cause::NoPmu),
            (BARE, libc::EOPNOTSUPP, Cause::NoPmu),
            (paranoid, libc::EACCES, Cause::Paranoid(3)),
            (filtered, libc::EPERM, Cause::Seccomp),
            (filtered, libc::EACCES, Cause::Seccomp),
            (BARE, libc::EACCES, Cause::SecurityModule),
            (BARE, libc::ENOSYS, Cause::NoPerfEvents),
            (filtered, libc::EMFILE, Cause::Other),
        ] {
            assert_eq!(surroundings.cause_at_perf(errno), cause, "{errno}");
        }
    }

    #[test]
    fn each_denial_of_perf_has_the_cause_that_keeps_the_caller_out() {
        let at = |paranoid| Surroundings { paranoid: Some(paranoid), ..BARE };
        let [own, others] = [|kernel| Wanted::Own { kernel }, |kernel| Wanted::Others { kernel }];
        let filtered = Surroundings { seccomp: true, ..at(1) };
        for (surroundings, wanted, errno, cause) in [
            (at(3), own(false), libc::EACCES, Cause::Paranoid(3)),
            (at(4), Wanted::Cpu, libc::EACCES, Cause::Paranoid(4)),
            (at(2), own(true), libc::EACCES, Cause::KernelMode(2)),
            (at(2), others(true), libc::EACCES, Cause::KernelMode(2)),
            (at(1), Wanted::Cpu, libc::EACCES, Cause::WholeCpus(1)),
            (at(2), others(false), libc::EACCES, Cause::OthersThread),
            (at(1), others(true), libc::EACCES, Cause::OthersThread),
            (at(2), own(false), libc::EACCES, Cause::SecurityModule),
            (at(2), own(true), libc::EPERM, Cause::SecurityModule),
            (at(0), Wanted::Cpu, libc::EACCES, Cause::SecurityModule),
            (filtered, own(true), libc::EPERM, Cause::Seccomp),
        ] {
            assert_eq!(surroundings.cause_of_denial(errno, wanted), cause, "{wanted:?}");
        }
    }

    #[test]
    fn every_cause_has_words_of_its_own_and_says_what_to_do() {
        for words in [CAUSES.map(Cause::reason), CAUSES.map(|cause| cause.remedy().to_owned())] {
            let distinct: std::collections::BTreeSet<_> = words.into();
            assert_eq!(distinct.len(), CAUSES.len());
        }
        let refusal =
            Refusal { provider: Provider::Native, cause: Cause::Paranoid(4), errno: libc::EACCES };
        assert_eq!(
            refusal.to_string(),
            "native: kernel.perf_event_paranoid is 4; `sysctl kernel.perf_event_paranoid=2` or \
             CAP_PERFMON lets the caller count [Permission denied (os error 13)]"
        );
    }

    #[test]
    fn the_book_explains_every_cause() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/troubleshooting.md");
        let page = fs::read_to_string(page).unwrap();
        for cause in CAUSES {
            assert!(page.contains(&format!("| {} |", cause.reason())), "{cause}");
        }
    }
}
