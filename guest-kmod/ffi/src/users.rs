// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Manages users as C sees them, each with a page of every vCPU.
//!
//! C has a lock of users: who is in the list changes only while that is held.

use core::cell::Cell;
use core::iter::successors;
use core::ptr::null;

use guest_kmod::shown::Observer;
use guest_kmod::users::{IdleUsers, UsersCounters, may_add};
use shared_abi::{Errno, VcpuPage};

use crate::machine::vcpus;
use crate::memory::{alloc, alloc_page, free, free_page};
use crate::observers::{new_observer, take_back};

unsafe extern "C" {
    /// Gives back a reference to a container.
    fn perfctr_glue_put_container(container: u64);
    /// Has `perfctr_core_users_take_back` called after a while, and not sooner.
    fn perfctr_glue_users_look_in(milliseconds: u32);
}

/// A user, with the pages that its threads see of vCPUs.
pub(crate) struct User {
    next: Cell<*const User>,
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
    first: Cell<*const User>,
    idle: IdleUsers,
}

// SAFETY: the list is looked at and changed only by who holds C's lock of users.
unsafe impl Sync for Users {}

static USERS: Users = Users { first: Cell::new(null()), idle: IdleUsers::new() };

/// Returns all users.
///
/// # Safety
///
/// C holds its lock of users, and nobody frees users meanwhile.
unsafe fn all() -> impl Iterator<Item = &'static User> {
    // SAFETY: users in the list are freed under the lock only.
    let user = |link: &Cell<*const User>| unsafe { link.get().as_ref() };
    successors(user(&USERS.first), move |before| user(&before.next))
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

/// Returns the user of a container, to which the caller gives its reference. It has to be
/// [put](User::put) back.
///
/// # Errors
///
/// `NOMEM`; `NOSPC` its owner has too many users.
///
/// # Safety
///
/// C holds its lock of users. `container` is the address of a container, which exists as long as
/// the reference to it.
pub(crate) unsafe fn get(
    container: u64,
    uid: u32,
    is_initial: bool,
    owner: u32,
) -> Result<&'static User, Errno> {
    // SAFETY: C holds the lock.
    let found = unsafe { all() }.find(|user| user.observer.is_of(container, uid));
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
        User::make(Observer::new(container, uid, new_observer(), is_initial), owner)?
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
            memory.write(Self { next: USERS.first.clone(), observer, owner, counters, pages });
            &*memory
        };
        if let Err(errno) = user.alloc_pages() {
            // SAFETY: nobody knows it yet.
            unsafe { user.free() };
            return Err(errno);
        }
        USERS.first.set(user);
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
/// C holds its lock of users.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_users_take_back() {
    let mut link = &USERS.first;
    // SAFETY: those in the list are freed here only.
    while let Some(user) = unsafe { link.get().as_ref() } {
        if user.counters.is_idle() && take_back(&user.observer) {
            link.set(user.next.get());
            USERS.idle.user_freed();
            // SAFETY: not in the list any more, and without counters.
            unsafe { user.free() };
        } else {
            link = &user.next;
        }
    }
}
