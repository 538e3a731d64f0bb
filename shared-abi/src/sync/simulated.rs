// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Atomics that announce every access before they make it, so that the simulator can let anything
//! happen in between.  Only builds with `--cfg sim` have them.

use core::sync::atomic::{self, Ordering};
use std::sync::OnceLock;

/// What is about to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Load,
    /// A store.
    Store,
}

/// Called with the address of the atomic before each access.
pub type Hook = fn(usize, Access);

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Sets the hook, once for the whole process.
pub fn set_hook(hook: Hook) {
    // A second call brings the same hook: there is one simulator.
    let _ = HOOK.set(hook);
}

#[inline]
fn announce<T>(atomic: &T, access: Access) {
    if let Some(hook) = HOOK.get() {
        hook(core::ptr::from_ref(atomic).addr(), access);
    }
}

macro_rules! atomics {
    ($($atomic:ident: $value:ty,)+) => {$(
        /// The atomic of the same name in `core`, announced.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $atomic(atomic::$atomic);

        impl $atomic {
            /// An atomic that holds `value`.
            pub const fn new(value: $value) -> Self {
                Self(atomic::$atomic::new(value))
            }

            /// Announces and loads.
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                announce(self, Access::Load);
                self.0.load(order)
            }

            /// Announces and stores.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                announce(self, Access::Store);
                self.0.store(value, order);
            }

            /// As `core`'s: announces its load and each attempt to store.
            ///
            /// # Errors
            ///
            /// What was there, if `next` gives nothing for it.
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut before = self.load(fetch);
                while let Some(after) = next(before) {
                    announce(self, Access::Store);
                    match self.0.compare_exchange(before, after, set, fetch) {
                        Ok(_) => return Ok(before),
                        Err(now) => before = now,
                    }
                }
                Err(before)
            }
        }
    )+};
}

atomics! {
    AtomicI32: i32,
    AtomicU32: u32,
    AtomicU64: u64,
}
