// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Atomics that call the simulator before every access, so that it can let something else happen
//! first. Only builds with `--cfg sim` have them.

use core::sync::atomic::{self, Ordering};
use std::sync::OnceLock;

/// The kind of an access that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Load,
    /// A store.
    Store,
}

/// A function that is called with the address of the atomic before each access.
pub type Hook = fn(usize, Access);

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Sets the hook, once for the whole process.
pub fn set_hook(hook: Hook) {
    // A second call passes the same hook, because there is one simulator.
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
        /// The atomic of the same name in `core`, which announces each access.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $atomic(atomic::$atomic);

        impl $atomic {
            /// Makes an atomic that holds `value`.
            pub const fn new(value: $value) -> Self {
                Self(atomic::$atomic::new(value))
            }

            /// Announces a load, and then loads the value.
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                announce(self, Access::Load);
                self.0.load(order)
            }

            /// Announces a store, and then stores `value`.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                announce(self, Access::Store);
                self.0.store(value, order);
            }

            /// Does the same as the function of this name in `core`, and announces its load and
            /// each attempt to store.
            ///
            /// # Errors
            ///
            /// Returns the value that the atomic holds, if `next` returns nothing for it.
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
