// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The places of the table of all operations: the kinds of guests, which are its lines, and who
//! does an operation there, which are its columns.

use super::Subject;

/// A kind of guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    Pv,
    Pvh,
    Kvm,
    VmxKvm,
}

/// A library and the counters that it counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// This project's library on its own counters.
    Library,
    /// perf on this project's counters.
    Perf,
    /// perf on the virtual PMU of Xen.
    XenVpmu,
    /// perf on the virtual PMU of KVM.
    KvmPmu,
    /// perf on the PMU that a later KVM gives to its guests.
    KvmMediated,
    /// perf without a hypervisor.
    Linux,
}

use Guest::{Kvm, Pv, Pvh, VmxKvm};
use Implementation::{KvmMediated, KvmPmu, Library, Linux, Perf, XenVpmu};

/// A machine of the other tables.
pub struct Machine {
    /// Its name there.
    pub name: &'static str,
    /// The kind of its guest. Linux alone has none, and is compared with every kind.
    guest: Option<Guest>,
    /// Who does what perf does there.
    perf: Implementation,
}

/// Every machine but the guest of KVM that has no counters, which nobody can use.
pub const MACHINES: &[Machine] = &[
    machine("Xen with perfctr", Some(Pv), Perf),
    machine("Xen with vpmu", Some(Pv), XenVpmu),
    machine("PVH with perfctr", Some(Pvh), Perf),
    machine("PVH with vpmu", Some(Pvh), XenVpmu),
    machine("KVM with perfctr", Some(Kvm), Perf),
    machine("KVM with its PMU", Some(Kvm), KvmPmu),
    machine("KVM with its mediated PMU", Some(Kvm), KvmMediated),
    machine("KVM on VT-x with perfctr", Some(VmxKvm), Perf),
    machine("KVM on VT-x with its PMU", Some(VmxKvm), KvmPmu),
    machine("no hypervisor", None, Linux),
];

const fn machine(name: &'static str, guest: Option<Guest>, perf: Implementation) -> Machine {
    Machine { name, guest, perf }
}

impl Machine {
    /// Returns whether the machine is one of those that are compared for this kind of guest.
    fn is_beside(&self, guest: Guest) -> bool {
        self.guest.is_none_or(|its| its == guest)
    }
}

impl Guest {
    /// Every kind, in the order of the lines.
    pub const ALL: [Self; 4] = [Pv, Pvh, Kvm, VmxKvm];

    /// Returns its name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Pv => "PV",
            Pvh => "PVH",
            Kvm => "KVM",
            VmxKvm => "KVM on VT-x",
        }
    }
}

impl Implementation {
    /// Everybody, in the order of the columns.
    pub const ALL: [Self; 6] = [Library, Perf, XenVpmu, KvmPmu, KvmMediated, Linux];

    /// Returns the name of the column.
    pub const fn name(self) -> &'static str {
        match self {
            Library => "libperfctr",
            Perf => "perf on perfctr",
            XenVpmu => "Xen's vPMU",
            KvmPmu => "KVM's PMU",
            KvmMediated => "KVM's mediated PMU",
            Linux => "Linux alone",
        }
    }

    /// Returns who does what a row of the other tables is about, if it is compared for this kind of
    /// guest.
    pub fn of(subject: &Subject, guest: Guest) -> Option<Self> {
        let is_its = |machine: &&Machine| machine.name == subject.machine;
        let machine = MACHINES.iter().find(is_its)?;
        let who = match machine.perf {
            // Whatever is not perf's there is the library's, also if nobody counts.
            Perf if !subject.how.starts_with("perf_event") => Library,
            who => who,
        };
        machine.is_beside(guest).then_some(who)
    }

    /// Returns whether a machine for this kind of guest has this.
    pub fn is_beside(self, guest: Guest) -> bool {
        MACHINES.iter().any(|machine| machine.perf == self && machine.is_beside(guest))
    }
}
