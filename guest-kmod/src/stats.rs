// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Statistics of the module's work, one set for each vCPU.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One count.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds to the count. Only the vCPU that has the count calls this, with interrupts disabled, so
    /// no locked instruction is needed.
    #[inline(always)]
    pub(crate) fn add(&self, amount: u64) {
        // ATOMICS: there is one writer; readers on other vCPUs only need whole values.
        self.0.store(self.0.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident = $c_name:literal,)+) => {
        /// The statistics of one vCPU.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: Count,)+
        }

        impl Stats {
            /// Returns name and value of every count, in a fixed order.
            pub fn list(&self) -> impl Iterator<Item = (&'static CStr, &Count)> {
                [$(($c_name, &self.$name)),+].into_iter()
            }
        }
    };
}

stats! {
    /// Threads whose counters were resumed by a switch.
    switches_in = c"switches_in",
    /// Threads whose counters were suspended by a switch.
    switches_out = c"switches_out",
    /// Resumptions on another vCPU than the one before.
    migrations = c"migrations",
    /// Hypercalls of any kind.
    hypercalls = c"hypercalls",
    /// Hypercalls that loaded a configuration.
    loads = c"loads",
    /// Hypercalls that stopped all counters.
    stops = c"stops",
    /// Hypercalls that registered a page.
    registers = c"registers",
    /// Hypercalls that took a page back.
    unregisters = c"unregisters",
    /// Attempts to sample this vCPU that were disturbed.
    read_retries = c"read_retries",
    /// Virtual interrupts of overflows.
    interrupts = c"interrupts",
    /// Interrupts without an overflow of the interrupted thread.
    interrupts_stray = c"interrupts_stray",
    /// Interrupts and exceptions that the CPU has counted as instructions of user mode, and that
    /// were subtracted.
    interrupts_subtracted = c"interrupts_subtracted",
    /// Overflows that were reported at once.
    overflows = c"overflows",
    /// Overflows that were reported when the thread was resumed.
    overflows_pending = c"overflows_pending",
    /// Overflows that were merged with the one before of the same counter.
    overflows_merged = c"overflows_merged",
    /// Overflows for which no signal could be sent, so that the counters went on at once.
    signals_lost = c"signals_lost",
    /// Switches in whose cost was measured.
    switch_in_calls = c"switch_in_calls",
    /// Instructions spent in them.
    switch_in_instructions = c"switch_in_instructions",
    /// Switches out whose cost was measured.
    switch_out_calls = c"switch_out_calls",
    /// Instructions spent in them.
    switch_out_instructions = c"switch_out_instructions",
    /// Interrupts whose cost was measured; only those whose overflow was reported to a thread.
    interrupt_calls = c"interrupt_calls",
    /// Instructions spent in them.
    interrupt_instructions = c"interrupt_instructions",
    /// Resumptions after an overflow whose cost was measured.
    go_on_calls = c"go_on_calls",
    /// Instructions spent in them.
    go_on_instructions = c"go_on_instructions",
}
