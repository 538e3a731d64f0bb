// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Bugs planted on purpose, each of which the simulator must find.
//!
//! [`planted!`](crate::planted!) marks the place of each.  It is its correct expression in every
//! build except the simulator's (`--cfg sim`), where one bug at a time can be switched on.

/// Expands to `$good`; in the simulator to `$bad` while bug `$bug` is switched on.
#[macro_export]
macro_rules! planted {
    ($bug:ident, $good:expr, $bad:expr $(,)?) => {{
        #[cfg(not(sim))]
        {
            $good
        }
        #[cfg(sim)]
        {
            if $crate::planted::Bug::$bug.is_on() { $bad } else { $good }
        }
    }};
}

#[cfg(sim)]
pub use switch::Bug;

#[cfg(sim)]
mod switch {
    use core::cell::Cell;

    macro_rules! bugs {
        ($($(#[doc = $doc:literal])+ $bug:ident,)+) => {
            /// A planted bug.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Bug {
                $($(#[doc = $doc])+ $bug,)+
            }

            impl Bug {
                /// Every bug.
                pub const ALL: &[Self] = &[$(Self::$bug),+];
            }
        };
    }

    bugs! {
        /// A reader does not look at the vCPU page's sequence word again.
        VcpuSeqNotRechecked,
        /// A reader does not look at the thread page's sequence word again.
        ThreadSeqNotRechecked,
        /// The guest kernel samples a vCPU without looking at its sequence word again.
        SampleNotRechecked,
        /// A page is written while its sequence word is even.
        WriteNotAnnounced,
        /// A reader takes the first vCPU's page.
        PageOfFirstVcpu,
        /// The kernel publishes the first vCPU as every thread's.
        MigrationNotPublished,
        /// Counters are subtracted as 64-bit numbers with a sign.
        DifferenceNotModular,
        /// The guest samples `Start*` before the hypercall that loads the configuration.
        StartBeforeHypercall,
        /// Any bit of `preserve` keeps every sum.
        PreserveAllOrNone,
        /// A second order of the same counters is taken for the first.
        OrderOfFirst,
        /// Time that could not be counted is forgotten about.
        FailureForgotten,
        /// A newly registered vCPU is thought to have loaded what it had before.
        LoadedAcrossRegistration,
        /// The guest does not notice that the host has taken its configuration away.
        RevocationIgnored,
        /// Idle counters are stopped while somebody counts.
        StoppedWhileCounting,
        /// Counters are charged for a domain without pages that ran in between.
        StrangerForgotten,
        /// A domain finds the counts of the one before it in the counters.
        ResidueNotCleared,
        /// Two configurations that use the same counters are taken for equal.
        ConfigTakenForEqual,
        /// Selectors are written though they hold the value.
        SelectorsAlwaysWritten,
        /// Selectors are not written again after another vCPU's.
        SelectorsWrittenOnceOnly,
        /// A guest's kernel bit becomes the hypervisor's ring.
        GuestRingsProgrammed,
        /// The driver believes what the page says.
        StateReadFromPage,
        /// Counts of a mode are dropped when the guest leaves it.
        ModeNotFolded,
        /// Sums start again at every load.
        SumsResetAtLoad,
        /// A folded counter goes on running.
        FoldedTwice,
        /// The clock of a vCPU goes on while it does not execute.
        ClockNotRestarted,
        /// The hypervisor leaves a vCPU unfolded while its physical CPU is idle.
        LazyIdleNotFolded,
        /// The hypervisor does not tell the driver that the guest changes its mode.
        ToggleIgnored,
        /// A restored guest goes on without registering its pages again.
        NotRegisteredAgain,
        /// A destroyed vCPU's page stays pinned.
        FrameStaysPinned,
        /// An overflow that is seen when its vCPU is switched out is never told.
        OverflowOfOthersDropped,
        /// The local APIC's entry is unmasked only for an overflow of the present vCPU.
        InterruptStaysMasked,
        /// The driver does not tell the guest what it has seen.
        OverflowNotSeen,
        /// A sampling counter starts its period again whenever its vCPU is switched in.
        HeldAtLoadOnly,
        /// An overflow that nobody acknowledged gates the next one's interrupt.
        StaleOverflowGates,
        /// An overflow is acknowledged while its counter holds 0.
        AcknowledgedAtZero,
        /// A vCPU that executes goes on counting after its domain was forbidden.
        RevokedAtSwitchOnly,
        /// A thread is told again of an overflow after it has let its counters go on.
        OverflowToldTwice,
        /// A whole period begins though what was left of one is to be kept.
        PeriodBegunAnew,
        /// An overflow of which the thread has not been told is forgotten when it stops.
        PendingForgotten,
        /// A thread that starts its counters is told of an overflow when it is next switched in.
        ToldAtNextSwitch,
        /// A tracer may keep sums of counters that have failed.
        TracerKeepsFailed,
        /// A tracer's tracee stays paused though it was told to go on.
        TraceeStaysPaused,
        /// Configurations that want the same counter for different events are joined.
        ClashOverlooked,
        /// CPUs remain those of a descriptor that is closed.
        OwnerOutlivesDescriptor,
        /// CPUs start though privileged threads have counters.
        WholeBesideThreads,
        /// Threads get counters though CPUs count.
        ThreadBesideWholes,
        /// A thread without privileges keeps CPUs from starting.
        SleeperKeepsWholesOut,
        /// Threads may count on a CPU that counts as a whole.
        GateLeftOpen,
        /// What a CPU has counted since it started is lost when it goes offline.
        WholeLostOffline,
        /// A physical CPU that was down is thought to hold what it held before.
        TakenForUnchanged,
        /// A hardware guest's counters go on counting when it is left for the hypervisor.
        GateOpenAtExit,
        /// Where the hardware loads what enables counters, it lets them go on when a guest is left.
        GateOpenAfterExit,
        /// A guest in which the hardware lets counters count is switched in while they count
        /// wherever they are selected for.
        OpenWhenSwitchedIn,
        /// A PV guest counts with what enables counters where the hardware left another guest.
        GlobalOfOthersKept,
        /// What the hardware was told while it may not listen is not told again.
        RevokedAtNextLoad,
        /// The hardware goes on loading what enables counters for a vCPU that has no page any more.
        GateLeftBehind,
        /// Kernel counters of a guest with rings of its own are programmed as a PV guest's.
        RingsOfPv,
        /// A page's time is in the host's units where the guest's own should be.
        TscInHostUnits,
        /// A guest's clock remains what it was when the page was registered.
        ClockOfRegistration,
        /// RDPMC does not exit again from a vCPU that has taken its page back.
        RdpmcNotIntercepted,
        /// Where no register enables all counters, a sampling one is not stopped by its own.
        SinglyNotStopped,
        /// A restored vCPU goes on from its page without what it had counted.
        SharesForgotten,
        /// A page does not say that its vCPU has left, so nobody goes on from it.
        LeavesUnsaid,
        /// An overflow that is seen to after its vCPU has left folds counters that are another's.
        LateOverflowFolded,
        /// The hypervisor serves whoever calls.
        PermissionNotAsked,
    }

    std::thread_local! {
        static ON: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    impl Bug {
        /// Switches one bug, or none, on for this thread of the simulator.
        pub fn switch(bug: Option<Self>) {
            ON.set(bug);
        }

        /// The one that is switched on.
        pub fn switched_on() -> Option<Self> {
            ON.get()
        }

        /// Whether it is switched on.
        pub fn is_on(self) -> bool {
            ON.get() == Some(self)
        }
    }
}
