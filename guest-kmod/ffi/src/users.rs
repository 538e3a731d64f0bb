// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Manages users as C sees them, each with a page of every vCPU.
//!
//! C has a lock of users, and the list of users changes only while C holds it ([`UsersLock`]). A
//! user in the list is found in an RCU read section without the lock ([`UsersReader`]), so that
//! threads of such users wait for nobody when they get counters.

use core::cell::Cell;
use core::ffi::c_int;
use core::iter::successors;
use core::marker::PhantomData;
use core::ptr::{null, null_mut};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use guest_kmod::numbers::{Whose, new_number};
use guest_kmod::shown::{Identity, Observer};
use guest_kmod::users::{IdleUsers, UsersCounters, may_add};
use shared_abi::{Errno, VcpuPage};

use crate::machine::vcpus;
use crate::memory::{alloc, alloc_page, free, free_page};
use crate::observers::{GIVEN_TO_USERS, take_back};
use crate::to_return;

unsafe extern "C" {
    /// Gives back the references to the container and to the namespace of users of an identity.
    fn perfctr_glue_put_identity(identity: &Identity);
    /// Has C call `perfctr_core_users_take_back` after this time, and not sooner.
    fn perfctr_glue_users_look_in(milliseconds: u32);
    /// Returns when every RCU read section that had begun has ended; sleeps.
    fn synchronize_rcu();
}

/// A user, with the pages of vCPUs that its threads see.
pub struct User {
    next: AtomicPtr<User>,
    /// The user that is freed after this one, or null. Changed under C's lock of users, and then by
    /// the caller that frees both.
    next_to_free: Cell<*const User>,
    pub(crate) observer: Observer,
    /// The owner to whom the user's pages are charged, as it was when the user got them.
    owner: u32,
    counters: UsersCounters,
    /// The user's page of each vCPU, by the vCPU's number. Entries are null only while `make` has
    /// not finished the user.
    pages: *mut *mut VcpuPage,
}

/// All users.
struct Users {
    first: AtomicPtr<User>,
    idle: IdleUsers,
}

static USERS: Users = Users { first: AtomicPtr::new(null_mut()), idle: IdleUsers::new() };

/// The right to look at the users in the list. No user is freed while this exists.
struct UsersReader<'a>(PhantomData<&'a Users>);

impl<'a> UsersReader<'a> {
    /// Makes the right to look at the users.
    ///
    /// # Safety
    ///
    /// For as long as the result lives, C is in an RCU read section or holds its lock of users, and
    /// a holder of that lock frees no users that it has taken out of the list.
    const unsafe fn new() -> Self {
        Self(PhantomData)
    }

    /// Returns the user that a link of the list leads to.
    fn follow(&self, link: &AtomicPtr<User>) -> Option<&'a User> {
        // ATOMICS: pairs with `User::make`, which has written the user before.
        // SAFETY: the pointer is null, or points to a user who was in the list while this right
        // existed. Such a user is not freed before the right has ended.
        unsafe { link.load(Acquire).as_ref() }
    }

    /// Returns all users.
    fn all(&self) -> impl Iterator<Item = &'a User> {
        successors(self.follow(&USERS.first), |before| self.follow(&before.next))
    }

    /// Returns the user with this identity, after it was given counters. There may be none, or it
    /// is being freed.
    fn find_and_give(&self, identity: &Identity) -> Option<&'a User> {
        let user = self.all().find(|user| user.observer.identity == *identity)?;
        USERS.idle.give_counters(&user.counters).then_some(user)
    }
}

/// The right to change the list of users. Its holder may sleep.
struct UsersLock(());

impl UsersLock {
    /// Makes the right to change the list.
    ///
    /// # Safety
    ///
    /// For as long as the result lives, C holds its lock of users and is in no RCU read section.
    const unsafe fn new() -> Self {
        Self(())
    }

    /// Returns the right to look at the users.
    const fn read(&self) -> UsersReader<'_> {
        // SAFETY: C holds its lock of users, and only `take_back` takes users out of the list. It
        // borrows this object exclusively, so it cannot run while the result lives.
        unsafe { UsersReader::new() }
    }

    /// Makes sure that an owner may have one more user. Before it refuses one, it takes users
    /// without counters out of the list, and stores them in `to_free`.
    fn make_room(&mut self, owner: u32, to_free: &mut *const User) -> Result<(), Errno> {
        let users = |lock: &Self| lock.read().all().filter(|user| user.owner == owner).count();
        may_add(owner, users(self)).or_else(|_| {
            *to_free = self.take_back();
            may_add(owner, users(self))
        })
    }

    /// Returns the user with this identity, and makes the user if there is none. Stores in
    /// `to_free` the users that had to give way.
    ///
    /// # Errors
    ///
    /// `SRCH` if the thread has ended, so that it is in no container; `NOMEM` if there is no
    /// memory; `NOSPC` if its owner has too many users.
    ///
    /// # Safety
    ///
    /// The caller gives this function the references of the identity, if it is in a container.
    unsafe fn get(
        &mut self,
        identity: &Identity,
        is_initial: bool,
        owner: u32,
        to_free: &mut *const User,
    ) -> Result<*const User, Errno> {
        if identity.container == 0 {
            return Err(Errno::SRCH);
        }
        if let Some(user) = self.read().find_and_give(identity) {
            // SAFETY: the caller has given these references, and the user has some of its own.
            unsafe { perfctr_glue_put_identity(identity) };
            return Ok(user);
        }
        if let Err(errno) = self.make_room(owner, to_free) {
            // SAFETY: the caller has given these references, and nobody keeps them.
            unsafe { perfctr_glue_put_identity(identity) };
            return Err(errno);
        }
        let number = new_number(&GIVEN_TO_USERS, Whose::Users, |number| {
            self.read().all().any(|user| user.observer.number == number)
        });
        User::make(Observer::new(*identity, number, is_initial), owner).map(core::ptr::from_ref)
    }

    /// Takes users out of the list that have no counters, and whose pages the hypervisor has
    /// unpinned. Returns the first of those that are to be freed, or null.
    fn take_back(&mut self) -> *const User {
        let mut link = &USERS.first;
        let mut to_free: *const User = null();
        while let Some(user) = self.read().follow(link) {
            if !user.counters.may_free() {
                link = &user.next;
            } else if take_back(&user.observer) {
                // ATOMICS: a reader that is at this user goes on from it to the next one, which is
                // in the list.
                link.store(user.next.load(Relaxed), Release);
                USERS.idle.user_freed();
                user.next_to_free.set(to_free);
                to_free = user;
            } else {
                user.counters.stays();
                link = &user.next;
            }
        }
        to_free
    }
}

/// Returns the user with this identity, or null if the list does not have it or it is being freed.
///
/// The user carries a reference, which the caller must pass on to `perfctr_core_thread_init`.
///
/// # Safety
///
/// C is in an RCU read section, in which the container and the namespace of users stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_user_find(identity: &Identity) -> *const User {
    // SAFETY: C is in an RCU read section until this function returns, and no user is freed in it.
    let found = unsafe { UsersReader::new() }.find_and_give(identity);
    found.map_or(null(), core::ptr::from_ref)
}

/// Stores the user with this identity in `found`, and makes the user if there is none.
///
/// The user carries a reference, which the caller must pass on to `perfctr_core_thread_init`. This
/// function also takes over the caller's references to the container and to the namespace of users:
/// a new user keeps them, and otherwise they are given back. `is_initial` says whether both are the
/// initial ones. Returns 0, or an error if the thread has ended, if there is no memory, or if too
/// many users are charged to `owner`.
///
/// `to_free` is null. This function stores in it the users that had to give way, if there are any;
/// the caller passes them to `perfctr_core_users_free` when it has released the lock, also after an
/// error.
///
/// # Safety
///
/// C holds its lock of users, and is in no RCU read section. The caller has references to the
/// container and to the namespace of users, or the container is 0 since the thread has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_user_get(
    identity: &Identity,
    is_initial: bool,
    owner: u32,
    found: &mut *const User,
    to_free: &mut *const User,
) -> c_int {
    // SAFETY: C holds its lock of users until this function returns.
    let mut users = unsafe { UsersLock::new() };
    // SAFETY: the caller gives its references.
    let user = unsafe { users.get(identity, is_initial, owner, to_free) };
    to_return(user.map(|user| *found = user))
}

impl User {
    /// Makes a user, gives it counters, and puts it into the list.
    fn make(observer: Observer, owner: u32) -> Result<&'static Self, Errno> {
        let Ok(memory) = alloc::<Self>(1) else {
            // SAFETY: the caller of `get` has given these references, and nobody keeps them.
            unsafe { perfctr_glue_put_identity(&observer.identity) };
            return Err(Errno::NOMEM);
        };
        let pages = alloc(vcpus().count()).unwrap_or_default();
        let counters = UsersCounters::default();
        // SAFETY: `alloc` has returned memory of this size and alignment, and nobody else has it.
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
            // SAFETY: the user is not in the list, so nobody else has it, and it has no registered
            // page.
            unsafe { user.free() };
            return Err(errno);
        }
        USERS.idle.user_made();
        USERS.idle.give_counters(&user.counters);
        // ATOMICS: pairs with `UsersReader::follow`.
        USERS.first.store(memory, Release);
        Ok(user)
    }

    fn alloc_pages(&self) -> Result<(), Errno> {
        if self.pages.is_null() {
            return Err(Errno::NOMEM);
        }
        vcpus().try_for_each(|vcpu| {
            let page = alloc_page()?;
            // SAFETY: the table has a place for the number of each possible vCPU.
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

    /// Gives back one reference that [`UsersLock::get`] or [`perfctr_core_user_find`] has returned.
    /// A user that has lost its last reference is freed after a while, unless it gets another one.
    pub(crate) fn put(&self) {
        if let Some(delay) = USERS.idle.counters_returned(&self.counters) {
            // SAFETY: C does not sleep in this function, and takes no lock that the caller could
            // hold.
            unsafe { perfctr_glue_users_look_in(delay) };
        }
    }

    /// Frees the user and its pages.
    ///
    /// # Safety
    ///
    /// Nobody has the user any more, and none of its pages is registered.
    unsafe fn free(&self) {
        if !self.pages.is_null() {
            // SAFETY: `alloc_page` has returned each page, or the pointer is null, and nobody uses
            // the user's pages any more.
            vcpus().for_each(|vcpu| unsafe { free_page(self.page(vcpu.number)) });
        }
        // SAFETY: the references are the user's own. `alloc` has returned both blocks of memory,
        // and nobody uses them any more.
        unsafe {
            perfctr_glue_put_identity(&self.observer.identity);
            free(self.pages);
            free(self);
        }
    }
}

/// Takes users out of the list that have no counters, and whose pages the hypervisor has unpinned.
/// Returns the first one, or null. The caller passes it to `perfctr_core_users_free` when it has
/// released the lock.
///
/// # Safety
///
/// C holds its lock of users, and is in no RCU read section.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_users_take_back() -> *const User {
    // SAFETY: C holds its lock of users until this function returns.
    unsafe { UsersLock::new() }.take_back()
}

/// Frees users that were taken out of the list.
///
/// This waits for everybody who may still look at them, so that nobody should wait for the caller.
/// `first` may be null.
///
/// # Safety
///
/// `perfctr_core_users_take_back` or `perfctr_core_user_get` has returned `first`, which the caller
/// passes once. C is in no RCU read section and may sleep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_users_free(first: *const User) {
    let mut to_free = first;
    if to_free.is_null() {
        return;
    }
    // SAFETY: C may sleep.
    unsafe { synchronize_rcu() };
    // SAFETY: these users are no longer in the list and never get counters, and every RCU read
    // section that could have found them has ended. Each is freed once.
    while let Some(user) = unsafe { to_free.as_ref() } {
        to_free = user.next_to_free.get();
        // SAFETY: nobody has this user any more, as said above, and `take_back` has unregistered
        // its pages.
        unsafe { user.free() };
    }
}
