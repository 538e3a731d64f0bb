// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Bugs planted on purpose, each of which the simulator must find.
//!
//! [`planted!`](crate::planted) marks the place of each.  It is its correct expression in every
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
        /// The hypervisor leaves a vCPU unfolded while its physical CPU is idle.
        LazyIdleNotFolded,
        /// The hypervisor does not tell the driver that the guest changes its mode.
        ToggleIgnored,
        /// A restored guest goes on without registering its pages again.
        NotRegisteredAgain,
    }

    std::thread_local! {
        static ON: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    impl Bug {
        /// Switches one bug, or none, on for this thread of the simulator.
        pub fn switch(bug: Option<Self>) {
            ON.set(bug);
        }

        /// Whether it is switched on.
        pub fn is_on(self) -> bool {
            ON.get() == Some(self)
        }
    }
}
