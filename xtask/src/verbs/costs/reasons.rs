// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The notes of the table of all operations, which say why somebody does an operation with fewer
//! instructions than the library. `docs/costs.md` shows them as they are here.

use super::places::Guest::{self, Kvm, Pv, Pvh, VmxKvm};
use super::places::Implementation::{self, KvmMediated, KvmPmu, Linux, Perf, XenVpmu};

/// A reason.
pub struct Reason {
    /// The operations, as the table calls them.
    pub operations: &'static [&'static str],
    /// The kinds of guests.
    pub guests: &'static [Guest],
    /// Who needs fewer instructions.
    pub whose: &'static [Implementation],
    /// What the page says.
    pub text: &'static str,
}

impl Reason {
    /// Returns whether this is why somebody does the operation with fewer instructions.
    pub fn explains(&self, operation: &str, guest: Guest, who: Implementation) -> bool {
        self.operations.contains(&operation)
            && self.guests.contains(&guest)
            && self.whose.contains(&who)
    }
}

/// The reason if the difference is not larger than noise.
pub const NOISE: &str = "\
Two measurements of one number may differ by more, so the numbers do not say who needs fewer.";

/// What the page says if nobody has written a reason. A test demands that it does not say so.
pub const NONE: &str = "\
Nobody has explained this difference yet.";

/// Every other reason. Numbers are left to the tables, since they change.
pub const REASONS: &[Reason] = &[
    Reason {
        operations: &["a sample, a signal for each", "a sample, a record for each"],
        guests: &[Pv],
        whose: &[Linux],
        text: "\
Linux alone has no hypervisor. The guest's part of libperfctr's cost is less than the whole cost
on Linux alone, so the difference is the hypervisor's part: a record enters the hypervisor three
times, and a signal seven times ([ADR 25](adr/0025-rings-that-the-guests-kernel-writes.md)). For a
record, code that is neither the driver's nor the module's executes more instructions than Linux
alone does for everything ([the parts of a record](../benches/#a-sample-without-a-signal)). So no
change to driver or module can make a record with these three entries cheaper than there. For a
signal there is no such proof.",
    },
    Reason {
        operations: &["a sample, a signal for each", "a sample, a record for each"],
        guests: &[Pvh, Kvm, VmxKvm],
        whose: &[Linux],
        text: "\
Linux alone has no hypervisor. The guest's part of libperfctr's cost is less than the whole cost
on Linux alone, so the difference is the hypervisor's part. Here each entry into the hypervisor is
an exit from the guest. The table of [samples](#a-sample) has their number, and the first of them
is the PMU's interrupt. In KVM on AMD's virtualisation, an exit by CPUID
([exits](#an-exit-without-a-switch)) alone executes more instructions than Linux does for a
record, so a record that takes an exit of this price cannot be cheaper than there. It is not
proven that samples cannot take fewer or cheaper exits than they do.",
    },
    Reason {
        operations: &["a null system call, 4 counters"],
        guests: &[Pv],
        whose: &[XenVpmu, Linux],
        text: "\
The processor executes both modes of a PV guest in ring 3 and does not distinguish them. Only the
values of a running counter at both changes of mode separate the kernel's events from the
program's, so the driver reads each of the four counters at both, and can omit none of these eight
RDPMCs ([ADR 4](adr/0004-rings-of-pv-guests.md)). Xen's vPMU reads nothing, and counts the kernel
as user mode, which is wrong ([caveats](caveats.md)). On Linux alone the processor distinguishes
the modes.",
    },
    Reason {
        operations: &["a switch, sampling"],
        guests: &[Pvh, Kvm, VmxKvm],
        whose: &[Linux],
        text: "\
To let the next period begin where the last one stopped, a switch to a thread that samples loads
its counters anew. This takes one hypercall, as for perf's events
([ADR 17](adr/0017-perf-counts-with-the-same-counters.md)), which is an exit from the guest. The
guest's part is less than the whole cost on Linux alone, so the difference is this exit. In KVM on
AMD's virtualisation even an exit by CPUID ([exits](#an-exit-without-a-switch)) executes more
instructions than Linux does for the whole switch. It is not proven that the switch needs an
exit.",
    },
    Reason {
        operations: &["another event"],
        guests: &[Kvm, VmxKvm],
        whose: &[Perf],
        text: "\
perf's two events are both open, and take turns. The module leaves the selector of an event that
does not count loaded, since the event often comes back, so nothing has to be loaded and the
hypervisor is not entered ([another event](#another-event)). With libperfctr the program starts
its counters anew, which loads their configuration by one hypercall. The guest's part of
libperfctr's cost is less than perf's, so the difference is this hypercall.",
    },
    Reason {
        operations: &["another event, WRMSR of a selector"],
        guests: &[Kvm, VmxKvm],
        whose: &[KvmPmu, KvmMediated],
        text: "\
Guests that use perfctr write no selectors. Their hypercall loads a whole configuration, and the
line of another event contains it.",
    },
    Reason {
        operations: &["reading out a sample of the host"],
        guests: &[Pv],
        whose: &[Linux],
        text: "\
perf reads samples in memory that it shares with the kernel. The hypervisor shares no memory with
the control domain for this; one hypercall copies up to 23 samples
([ADR 37](adr/0037-the-host-samples-itself-with-a-counter-of-its-own.md)). The guest's part is
less than the whole cost on Linux alone, so the difference is the hypervisor's part of the copy. A
sample that is taken and read out costs less than a sample that is only taken on Linux alone.",
    },
];
