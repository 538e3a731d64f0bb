// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Manages users as C sees them, each with a page of every vCPU.
//!
//! C has a lock of users: who is in the list changes only while that is held.  A user who has
//! counters is found without it, in an RCU read section, so that threads of such a user get
//! counters at the same time.

use core::cell::Cell;
use core::ffi::c_int;
use core::iter::successors;
use core::ptr::{null, null_mut};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use guest_kmod::numbers::{Whose, new_number};
use guest_kmod::shown::Observer;
use guest_kmod::users::{IdleUsers, UsersCounters, may_add};
use shared_abi::{Errno, VcpuPage};

use crate::machine::vcpus;
use crate::memory::{alloc, alloc_page, free, free_page};
use crate::observers::{GIVEN_TO_USERS, take_back};
use crate::to_return;

unsafe extern "C" {
    /// Gives back a reference to a container.
    fn perfctr_glue_put_container(container: u64);
    /// Has `perfctr_core_users_take_back` called after a while, and not sooner.
    fn perfctr_glue_users_look_in(milliseconds: u32);
    /// Returns when every RCU read section has ended that has begun before; sleeps.
    fn synchronize_rcu();
}

/// A user, with the pages that its threads see of vCPUs.
pub struct User {
    next: AtomicPtr<User>,
    /// The user that is to be freed after this one, or null. Changed under C's lock of users.
    next_to_free: Cell<*const User>,
    pub(crate) observer: Observer,
    /// The owner to whom the user's pages are charged, as of when the user got them.
    owner: u32,
    counters: UsersCounters,
    /// The user's page of each vCPU, by the vCPU's number. Entries are null only while the user is
    /// made.
    pages: *mut *mut VcpuPage,
}

/// All users.
struct Users {
    first: AtomicPtr<User>,
    idle: IdleUsers,
}

static USERS: Users = Users { first: AtomicPtr::new(null_mut()), idle: IdleUsers::new() };

/// Returns the user that a link of the list leads to.
///
/// # Safety
///
/// As [`all`].
unsafe fn linked(link: &AtomicPtr<User>) -> Option<&'static User> {
    // ATOMICS: pairs with `User::make`, which has written the user before.
    // SAFETY: a user that is not in the list any more is freed when nobody can still see it.
    unsafe { link.load(Acquire).as_ref() }
}

/// Returns all users.
///
/// # Safety
///
/// C holds its lock of users, and nobody frees users meanwhile; or C is in an RCU read section.
unsafe fn all() -> impl Iterator<Item = &'static User> {
    // SAFETY: the caller's.
    unsafe { successors(linked(&USERS.first), move |before| linked(&before.next)) }
}

/// Returns a user of a container.
///
/// # Safety
///
/// As [`all`].
unsafe fn user_of(container: u64, uid: u32) -> Option<&'static User> {
    // SAFETY: the caller's.
    unsafe { all() }.find(|user| user.observer.is_of(container, uid))
}

/// Returns a user of a container, or null if the user has no counters.
///
/// A user who is returned has one reference more. The caller has to pass it to
/// `perfctr_core_thread_init`, and its own reference to the container is given back. If this is
/// null the caller keeps that reference.
///
/// # Safety
///
/// C is in an RCU read section. `container` is the address of a container, which exists as long as
/// the reference to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_user_find(container: u64, uid: u32) -> *const User {
    // SAFETY: the caller's.
    let found = unsafe { user_of(container, uid) };
    let Some(user) = found.filter(|user| user.counters.give_more()) else { return null() };
    // SAFETY: the caller's; the user has one of its own.
    unsafe { perfctr_glue_put_container(container) };
    user
}

/// Makes sure that an owner may have one more user. Its users without counters go before it is
/// refused.
///
/// # Safety
///
/// C holds its lock of users.
unsafe fn make_room(owner: u32) -> Result<(), Errno> {
    // SAFETY: the caller's.
    let users = || unsafe { all() }.filter(|user| user.owner == owner).count();
    may_add(owner, users()).or_else(|_| {
        // SAFETY: the caller's.
        unsafe { perfctr_core_users_take_back() };
        may_add(owner, users())
    })
}

/// Stores a user of a container in `found`, and makes the user if there is none.
///
/// The user has one reference more. The caller has to pass it to `perfctr_core_thread_init`, and
/// its own reference to the container belongs to the user, or is given back. `is_initial` says that
/// this is the initial container. Returns 0, or an error if there is no memory, or if too many
/// users are charged to `owner`.
///
/// # Safety
///
/// C holds its lock of users. `container` is the address of a container, which exists as long as
/// the reference to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_user_get(
    container: u64,
    uid: u32,
    is_initial: bool,
    owner: u32,
    found: &mut *const User,
) -> c_int {
    // SAFETY: the caller's.
    to_return(unsafe { get(container, uid, is_initial, owner) }.map(|user| *found = user))
}

/// See [`perfctr_core_user_get`].
///
/// # Errors
///
/// `NOMEM`; `NOSPC` its owner has too many users.
///
/// # Safety
///
/// As [`perfctr_core_user_get`].
unsafe fn get(
    container: u64,
    uid: u32,
    is_initial: bool,
    owner: u32,
) -> Result<&'static User, Errno> {
    // SAFETY: C holds the lock.
    let found = unsafe { user_of(container, uid) };
    let user = if let Some(user) = found {
        // SAFETY: the caller's; the user has one of its own.
        unsafe { perfctr_glue_put_container(container) };
        user
    } else {
        // SAFETY: C holds the lock, and nobody has looked at a user yet that could go.
        if let Err(errno) = unsafe { make_room(owner) } {
            // SAFETY: the caller's.
            unsafe { perfctr_glue_put_container(container) };
            return Err(errno);
        }
        let number = new_number(&GIVEN_TO_USERS, Whose::Users, |number| {
            // SAFETY: C holds the lock.
            unsafe { all() }.any(|user| user.observer.number == number)
        });
        User::make(Observer::new(container, uid, number, is_initial), owner)?
    };
    USERS.idle.counters_given(&user.counters);
    Ok(user)
}

impl User {
    /// Makes a user without counters, and puts it into the list.
    fn make(observer: Observer, owner: u32) -> Result<&'static Self, Errno> {
        let Ok(memory) = alloc::<Self>(1) else {
            // SAFETY: the caller of `get` has given it.
            unsafe { perfctr_glue_put_container(observer.container) };
            return Err(Errno::NOMEM);
        };
        let pages = alloc(vcpus().count()).unwrap_or_default();
        let counters = UsersCounters::default();
        // SAFETY: memory of this size and alignment, which is nobody else's.
        let user = unsafe {
            memory.write(Self {
                next: AtomicPtr::new(USERS.first.load(Relaxed)),
                next_to_free: Cell::new(null()),
                observer,
                owner,
                counters,
                pages,
            });
            &*memory
        };
        if let Err(errno) = user.alloc_pages() {
            // SAFETY: nobody knows it yet.
            unsafe { user.free() };
            return Err(errno);
        }
        // ATOMICS: pairs with `linked`.
        USERS.first.store(memory, Release);
        USERS.idle.user_made();
        Ok(user)
    }

    fn alloc_pages(&self) -> Result<(), Errno> {
        if self.pages.is_null() {
            return Err(Errno::NOMEM);
        }
        vcpus().try_for_each(|vcpu| {
            let page = alloc_page()?;
            // SAFETY: there is room for each possible vCPU.
            unsafe { self.pages.add(vcpu.number as usize).write(page) };
            Ok(())
        })
    }

    /// Returns the user's page of this vCPU.
    ///
    /// # Safety
    ///
    /// `vcpu` is the number of a possible vCPU.
    pub(crate) unsafe fn page(&self, vcpu: u32) -> *const VcpuPage {
        // SAFETY: the table has a place for each number of a possible vCPU.
        unsafe { *self.pages.add(vcpu as usize) }
    }

    /// Gives back one result of [`get`]. If it was the user's last one, the user is freed after a
    /// while.
    pub(crate) fn put(&self) {
        if let Some(delay) = USERS.idle.counters_returned(&self.counters) {
            // SAFETY: does not sleep, and needs no lock that the caller could hold.
            unsafe { perfctr_glue_users_look_in(delay) };
        }
    }

    /// # Safety
    ///
    /// Nobody knows the user any more, and none of its pages is registered.
    unsafe fn free(&self) {
        if !self.pages.is_null() {
            // SAFETY: nobody uses them any more.
            vcpus().for_each(|vcpu| unsafe { free_page(self.page(vcpu.number)) });
        }
        // SAFETY: the user's own reference, and its memory, which nobody uses any more.
        unsafe {
            perfctr_glue_put_container(self.observer.container);
            free(self.pages);
            free(self);
        }
    }
}

/// Frees users that have no counters, and whose pages the hypervisor has unpinned.
///
/// # Safety
///
/// C holds its lock of users, and is in no RCU read section.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_users_take_back() {
    let mut link = &USERS.first;
    let mut to_free: *const User = null();
    // SAFETY: those in the list are freed here only.
    while let Some(user) = unsafe { linked(link) } {
        if user.counters.is_idle() && take_back(&user.observer) {
            // ATOMICS: whoever is at this user goes on to the next one from here, which is in the
            // list.
            link.store(user.next.load(Relaxed), Release);
            USERS.idle.user_freed();
            user.next_to_free.set(to_free);
            to_free = user;
        } else {
            link = &user.next;
        }
    }
    if to_free.is_null() {
        return;
    }
    // SAFETY: sleeps, as who has this called may.
    unsafe { synchronize_rcu() };
    // SAFETY: not in the list any more, without counters, and nobody is still looking at them.
    while let Some(user) = unsafe { to_free.as_ref() } {
        to_free = user.next_to_free.get();
        // SAFETY: as above.
        unsafe { user.free() };
    }
}
