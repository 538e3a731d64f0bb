// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the entries in the order in which C calls them, on a guest of two vCPUs.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::vec;
use std::vec::Vec;

use guest_kmod::LocalVcpu;
use guest_kmod::perf::{EventAttr, EventConfig};
use guest_kmod::policy::Rights;
use guest_kmod::ring::Frame;
use guest_kmod::shown::{Identity, Subject};
use guest_kmod::users::USERS_OF_OWNER_MAX;
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_INSTRUCTIONS, EVNTSEL_USR};
use shared_abi::config::MODE_SAMPLING;
use shared_abi::hypercall::{
    FEATURE_BRANCHES, FEATURE_INTERRUPTS, OP_LOAD, OP_QUERY, OP_RECORD, OP_REGISTER, OP_SHOW,
    OP_STOP, OP_UNREGISTER,
};
use shared_abi::ioctl::{
    CONTROL_KEEP_PERIOD, CONTROL_RING, Control, CpuState, IOC_CONTROL, IOC_CPU_CONTROL,
    IOC_CPU_READ, IOC_CPU_START, IOC_CPU_STOP, Sums,
};
use shared_abi::ring::RingRequest;
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_REGISTERED};
use shared_abi::{CounterConfig, Errno};

use crate::cpu_wide::{
    perfctr_core_close_cpus, perfctr_core_owns_cpus, perfctr_core_request_of_cpus,
    perfctr_core_thread_begins, perfctr_core_thread_ends,
};
use crate::events::{
    perfctr_core_event_add, perfctr_core_event_open, perfctr_core_event_read,
    perfctr_core_event_start, perfctr_core_events_enable,
};
use crate::machine::{perfctr_core_handshake_again, perfctr_core_restored, subtracts};
use crate::observers::{GIVEN_TO_PERF, GIVEN_TO_USERS};
use crate::on_vcpu::{OnThread, OnVcpuOrAsleep, Present};
use crate::requests::{
    Caller, perfctr_core_last_control, perfctr_core_mapped_page, perfctr_core_operate,
};
use crate::restore::{perfctr_core_restore_interrupted, perfctr_core_restore_look};
use crate::ring::{perfctr_core_ring_begin, perfctr_core_ring_callers};
use crate::shown::{perfctr_core_become, perfctr_core_leave_to};
use crate::surplus::perfctr_core_traced;
use crate::testing::{CONTAINER, Guest, Thread, VCPUS, identity, user, user_by_lock};
use crate::users::perfctr_core_user_find;
use crate::watch::{
    perfctr_core_stop_delay, perfctr_core_stop_if_idle, perfctr_core_watch_end,
    perfctr_core_watch_join, perfctr_core_watch_leave,
};
use crate::{ThreadObject, VcpuObject, perfctr_core_read, perfctr_core_stop};

/// Branches retired in user mode.
const BRANCHES_OF_USER: u64 = 0xc4 | EVNTSEL_USR | EVNTSEL_EN;
/// `PERF_TYPE_RAW` of `linux/perf_event.h`.
const TYPE_RAW: u32 = 4;
/// The bit `exclude_kernel` of `linux/perf_event.h`.
const EXCLUDE_KERNEL: u64 = 1 << 5;

/// Two users, which are enough for most tests.
const ALICE: u32 = 1001;
const BOB: u32 = 1002;

/// Registers the page of a thread's user with a vCPU.
fn show(guest: &Guest, vcpu: usize, thread: &Thread) {
    guest.on(vcpu, |mut vcpu| _ = vcpu.show_page_of(thread.0.user));
}

/// Returns the page of a thread's user for a vCPU, as the user sees it, and the user's number.
fn page(thread: &Thread, vcpu: usize) -> (*const shared_abi::VcpuPage, u32) {
    // SAFETY: there is such a vCPU.
    let page = unsafe { perfctr_core_mapped_page(thread.0, vcpu as u32 + 1) };
    (page.cast(), thread.0.user.observer.number)
}

#[test]
fn a_users_page_of_each_vcpu_is_registered_there() {
    let guest = Guest::new();
    let (alice, bob) = (guest.thread(ALICE), guest.thread(BOB));
    for vcpu in 0..VCPUS {
        assert_eq!(guest.registered(vcpu), None);
        for thread in [&alice, &bob, &alice] {
            show(&guest, vcpu, thread);
            assert_eq!(guest.registered(vcpu), Some(page(thread, vcpu)));
            guest.hypercalls();
            show(&guest, vcpu, thread);
            assert_eq!(guest.hypercalls(), [], "it is registered already");
        }
    }
    assert_ne!(page(&alice, 0), page(&alice, 1));
    assert_ne!(page(&alice, 1), page(&bob, 1));
    alice.end();
    bob.end();
}

#[test]
fn threads_of_a_user_share_its_pages() {
    let guest = Guest::new();
    let (first, second) = (guest.thread(ALICE), guest.thread(ALICE));
    assert_eq!(page(&first, 1), page(&second, 1));
    assert_eq!(guest.put(), [], "the caller has taken no reference");
    first.end();
    guest.take_back_users();
    assert!(guest.is_in_use(page(&second, 1).0), "the other thread has it mapped");
    let pages = [0, 1].map(|vcpu| page(&second, vcpu).0);
    second.end();
    assert_eq!(guest.put(), []);
    guest.take_back_users();
    assert_eq!(guest.put(), [CONTAINER]);
    assert!(pages.iter().all(|&page| !guest.is_in_use(page)));
}

#[test]
fn a_thread_that_has_ended_has_no_user() {
    let guest = Guest::new();
    let ended = Identity { container: 0, ..identity(ALICE) };
    let before = guest.allocations();
    assert_eq!(user(&ended, false, ALICE).err(), Some(Errno::SRCH.to_return()));
    assert_eq!(guest.put(), [], "no reference was taken");
    assert_eq!(guest.allocations(), before);
}

#[test]
fn users_of_one_owner_are_bounded() {
    let guest = Guest::new();
    let full = Some(Errno::NOSPC.to_return());
    let made = |uid| guest.thread_of(uid, ALICE);
    let uids = 100_000..100_000 + USERS_OF_OWNER_MAX as u32;
    let mut threads: Vec<_> = uids.clone().map(|uid| made(uid).expect("there is room")).collect();
    let before = guest.allocations();
    assert_eq!(made(uids.end).err(), full);
    assert_eq!(guest.allocations(), before);
    assert_eq!(guest.put(), [CONTAINER]);

    let others = [made(uids.start), guest.thread_of(BOB, BOB), guest.thread_of(uids.end, 0)];
    for other in others {
        other.expect("a user that there is, another owner's, and root's").end();
    }
    assert_eq!(made(uids.end + 1).err(), full);
    threads.swap_remove(3).end();
    threads.push(made(uids.end + 1).expect("a user without counters gives way"));
    assert_eq!(made(uids.start + 3).err(), full, "which is not there any more");
    threads.into_iter().for_each(Thread::end);
}

/// Registers perf's page with a vCPU for programs of a user. Returns the page's number.
fn show_perfs(guest: &Guest, vcpu: usize, uid: u32) -> u32 {
    let subject = Subject { identity: identity(uid), ..Subject::default() };
    guest.on(vcpu, |mut vcpu| vcpu.show_perfs(&subject)).expect("nobody refuses");
    guest.registered(vcpu).expect("it is registered").1
}

#[test]
fn perf_takes_a_number_only_for_another_subject() {
    let guest = Guest::new();
    let first = show_perfs(&guest, 0, ALICE);
    let alice = guest.thread(ALICE);
    show(&guest, 0, &alice);
    assert_eq!(show_perfs(&guest, 0, ALICE), first);
    assert_eq!(show_perfs(&guest, 0, ALICE), first);
    assert_eq!(show_perfs(&guest, 0, BOB), first + 1, "none was taken meanwhile");
    alice.end();
}

#[test]
fn a_number_that_somebody_has_is_given_to_nobody_else() {
    let guest = Guest::new();
    let (alice, bobs) = (guest.thread(ALICE), show_perfs(&guest, 0, BOB));
    let alices = page(&alice, 0).1;
    // After 2^31 numbers, users get their first numbers again, and so does perf. perf's numbers
    // have bit 31 set.
    let round = 1 << 31;
    GIVEN_TO_USERS.store(round + u64::from(alices) - 1, Relaxed);
    let bob = guest.thread(BOB);
    assert_eq!(page(&bob, 0).1, alices + 1);
    show(&guest, 0, &alice);
    GIVEN_TO_PERF.store(u64::from(bobs) - 1, Relaxed);
    assert_eq!(show_perfs(&guest, 1, ALICE), bobs + 1, "vCPU 0 keeps the other one");
    assert_eq!(show_perfs(&guest, 0, BOB), bobs);
    alice.end();
    bob.end();
}

#[test]
fn a_user_whom_another_thread_has_made_meanwhile_needs_no_more_references() {
    let guest = Guest::new();
    let alice = guest.thread(ALICE);
    let found = user_by_lock(&identity(ALICE), true, ALICE).expect("the list has the user");
    assert!(std::ptr::eq(found, alice.0.user));
    assert_eq!(guest.put(), [CONTAINER], "the caller's reference");
    found.put();
    alice.end();
}

#[test]
fn a_user_is_found_without_the_lock_until_it_is_freed() {
    let guest = Guest::new();
    // SAFETY: nobody frees users meanwhile.
    let find = |uid| unsafe { perfctr_core_user_find(&identity(uid)).as_ref() };
    assert!(find(ALICE).is_none());
    let (alice, bob) = (guest.thread(ALICE), guest.thread(BOB));
    for thread in [&alice, &bob] {
        let uid = thread.0.user.observer.identity.uid();
        let found = find(uid).expect("the user has counters");
        assert!(std::ptr::eq(found, thread.0.user));
        assert_eq!(guest.put(), [], "the caller has taken no reference");
        found.put();
    }
    alice.end();
    let found = find(ALICE).expect("the user's pages are kept for a while");
    guest.take_back_users();
    found.put();
    guest.take_back_users();
    assert!(find(ALICE).is_none() && find(BOB).is_some_and(|user| std::ptr::eq(user, bob.0.user)));
    bob.0.user.put();
    drop(guest.put());
    bob.end();
}

#[test]
fn a_user_is_freed_when_nobody_can_still_look_at_it() {
    let guest = Guest::new();
    let (alice, bob) = (guest.thread(ALICE), guest.thread(BOB));
    guest.look_at(&alice);
    let pages = [page(&alice, 0).0, page(&bob, 0).0];
    alice.end();
    bob.end();
    guest.take_back_users();
    assert!(guest.nobody_looks(), "it was waited for");
    assert!(pages.iter().all(|&page| !guest.is_in_use(page)));
}

#[test]
fn what_one_user_gives_back_is_not_taken_from_another() {
    let guest = Guest::new();
    let (alice, bob) = (guest.thread(ALICE), guest.thread(BOB));
    show(&guest, 0, &alice);
    show(&guest, 1, &bob);
    let (of_alice, of_bob) = (guest.registered(0), guest.registered(1));
    bob.end();
    guest.take_back_users();
    assert_eq!([guest.registered(0), guest.registered(1)], [of_alice, None]);
    assert!(of_bob.is_some_and(|(page, _)| !guest.is_in_use(page)));
    alice.end();
}

#[test]
fn a_vcpu_that_shows_another_user_by_then_keeps_that_ones_page() {
    let guest = Guest::new();
    let (alice, bob) = (Rc::new(guest.thread(ALICE)), guest.thread(BOB));
    show(&guest, 1, &bob);
    bob.end();
    let (shown, switched) = (Rc::clone(&alice), Rc::new(Cell::new(false)));
    let noted = Rc::clone(&switched);
    guest.meanwhile(move || noted.set(Guest::show_meanwhile(1, shown.0).is_some()));
    guest.take_back_users();
    assert!(switched.get(), "the vCPU was called, and executed alice's thread before");
    assert_eq!(guest.registered(1), Some(page(&alice, 1)));
    Rc::into_inner(alice).expect("the closure is gone").end();
}

#[test]
fn a_page_is_freed_when_the_hypervisor_has_let_it_go() {
    let guest = Guest::new();
    let alice = guest.thread(ALICE);
    show(&guest, 1, &alice);
    let (page, _) = page(&alice, 1);
    alice.end();
    guest.refuse(OP_UNREGISTER, Some(Errno::NODEV));
    for _ in 0..2 {
        guest.take_back_users();
        assert!(guest.is_in_use(page), "the hypervisor writes there");
    }
    guest.refuse(OP_UNREGISTER, None);
    guest.take_back_users();
    assert!(!guest.is_in_use(page));
    assert_eq!(guest.registered(1), None);
    assert_eq!(guest.vcpu(1).page.get(), guest.vcpu(1).perfs);
}

#[test]
fn a_page_that_cannot_be_replaced_stays_chosen_until_it_is_unregistered() {
    let guest = Guest::new();
    let (alice, bob) = (guest.thread(ALICE), guest.thread(BOB));
    let user = bob.0.user;
    let show_bobs = || guest.on(0, |mut vcpu| vcpu.show_page_for(user, None));
    show(&guest, 0, &alice);
    for op in [OP_SHOW, OP_UNREGISTER] {
        guest.refuse(op, Some(Errno::NODEV));
    }
    assert_eq!(show_bobs(), Err(Errno::NODEV));
    assert_eq!(guest.vcpu(0).page.get(), page(&alice, 0).0, "the hypervisor writes there");
    guest.refuse(OP_UNREGISTER, None);
    for _ in 0..2 {
        assert_eq!(show_bobs(), Ok(()));
        assert_eq!(guest.registered(0), Some(page(&bob, 0)));
        assert_eq!(guest.vcpu(0).page.get(), page(&bob, 0).0);
        show(&guest, 0, &alice);
        guest.refuse(OP_SHOW, None);
    }
    alice.end();
    bob.end();
}

#[test]
fn an_interrupt_while_a_page_takes_the_place_of_another_finds_the_one_that_is_registered() {
    let guest = Guest::new();
    let (alice, bob) = (guest.thread(ALICE), guest.thread(BOB));
    for is_shown in [false, true] {
        show(&guest, 0, &alice);
        let (object, left) = (guest.vcpu(0), page(if is_shown { &bob } else { &alice }, 0));
        let went_on = Rc::new(Cell::new(None));
        let noted = Rc::clone(&went_on);
        guest.interrupt_show(move |now| {
            if now == is_shown {
                Guest::move_vcpu(0);
                // SAFETY: the user's pages are there, and nobody else uses them.
                let page = unsafe { &*left.0 };
                page.flags.store(VCPU_REGISTERED, Relaxed);
                let explained = perfctr_core_restore_interrupted(object);
                page.flags.store(0, Relaxed);
                noted.set(Guest::registered_at(0).filter(|_| explained == 1));
            }
        });
        assert_eq!(guest.on(0, |mut vcpu| vcpu.show_page_for(bob.0.user, None)), Ok(()));
        assert_eq!(went_on.get(), Some(left), "after the hypervisor has shown it: {is_shown}");
        assert_eq!(guest.registered(0), Some(page(&bob, 0)));
        assert_eq!(guest.vcpu(0).page.get(), page(&bob, 0).0);
    }
    guest.hypercalls();
    alice.end();
    bob.end();
}

#[test]
fn a_page_whose_registration_is_refused_is_not_looked_at_any_more() {
    let guest = Guest::new();
    let alice = guest.thread(ALICE);
    for vcpu in [0, 1] {
        guest.refuse(OP_REGISTER, Some(Errno::NOMEM));
        show(&guest, vcpu, &alice);
        assert_eq!(guest.vcpu(vcpu).page.get(), guest.vcpu(vcpu).perfs);
        guest.refuse(OP_REGISTER, None);
    }
    alice.end();
    guest.take_back_users();
    for vcpu in [0, 1] {
        assert!(guest.is_in_use(guest.vcpu(vcpu).page.get()));
    }
}

#[test]
fn a_vcpu_that_goes_offline_looks_at_no_users_page_any_more() {
    let guest = Guest::new();
    let alice = guest.thread(ALICE);
    for _ in 0..2 {
        show(&guest, 1, &alice);
        guest.go_offline(1);
        assert_eq!(guest.registered(1), None);
        assert_eq!(guest.vcpu(1).page.get(), guest.vcpu(1).perfs);
        assert_eq!(guest.online(1, 0), 0);
    }
    assert_eq!(guest.kept(), []);
    alice.end();
}

#[test]
fn a_page_that_an_offline_vcpu_cannot_take_back_is_never_used_again() {
    let guest = Guest::new();
    let alice = guest.thread(ALICE);
    show(&guest, 1, &alice);
    let (page, _) = page(&alice, 1);
    guest.refuse(OP_UNREGISTER, Some(Errno::NODEV));
    guest.go_offline(1);
    assert_eq!(guest.log(), ["cannot take back its page"]);
    assert_eq!(guest.kept(), [page.addr()]);
    alice.end();
}

#[test]
fn the_watch_ends_with_the_module_even_if_a_page_stays_registered() {
    let guest = Guest::new();
    assert_eq!(perfctr_core_watch_join(), 0);
    let alice = guest.thread(ALICE);
    show(&guest, 1, &alice);
    perfctr_core_watch_leave();
    guest.refuse(OP_UNREGISTER, Some(Errno::NODEV));
    assert!(!perfctr_core_watch_end(false), "who executes there has to be watched");
    assert!(guest.registered(1).is_some());
    (0..VCPUS).for_each(|vcpu| guest.go_offline(vcpu));
    assert!(perfctr_core_watch_end(true), "nothing may call the module after it is unloaded");
    assert!(!perfctr_core_watch_end(true), "it has ended already");
    alice.end();
}

#[test]
fn the_watch_ends_when_nobody_needs_pages_any_more() {
    let guest = Guest::new();
    for _ in 0..2 {
        assert_eq!(perfctr_core_watch_join(), 0);
        let alice = guest.thread(ALICE);
        show(&guest, 0, &alice);
        assert!(!perfctr_core_watch_end(false));
        assert!(guest.registered(0).is_some(), "somebody needs it");
        perfctr_core_watch_leave();
        assert!(perfctr_core_watch_end(false));
        assert_eq!(guest.registered(0), None);
        alice.end();
    }
}

#[test]
fn a_vcpu_that_was_refused_tries_again_when_the_domain_is_asked_for() {
    let guest = Guest::offline();
    guest.refuse(OP_REGISTER, Some(Errno::PERM));
    assert_eq!([guest.online(0, 0), guest.online(1, 0)], [Errno::PERM.to_return(); 2]);
    assert_eq!(guest.log(), ["nothing can be counted there"; 2]);
    guest.refuse(OP_REGISTER, None);
    guest.hypercalls();
    assert_eq!(perfctr_core_handshake_again(), 0);
    let asked = guest.hypercalls();
    for vcpu in [0, 1] {
        assert!(asked.contains(&(vcpu, OP_REGISTER)), "{asked:?}");
    }
    assert_eq!(perfctr_core_handshake_again(), 0);
    assert_eq!(guest.hypercalls(), [(0, OP_QUERY)], "each has registered already");
}

#[test]
fn what_a_restoration_has_refused_is_tried_again_when_the_host_lets_the_domain_count() {
    let guest = Guest::new();
    guest.refuse(OP_QUERY, Some(Errno::PERM));
    perfctr_core_restored();
    assert_eq!(guest.log()[0], "this host cannot count what the one before did");
    assert_eq!(perfctr_core_handshake_again(), Errno::PERM.to_return());
    guest.refuse(OP_QUERY, None);
    for vcpu in [0, 1] {
        assert!(guest.vcpu(vcpu).is_refused.load(Relaxed), "vCPU {vcpu}");
    }
    guest.hypercalls();
    assert_eq!(perfctr_core_handshake_again(), 0);
    let asked = guest.hypercalls();
    for vcpu in [0, 1] {
        assert!(asked.contains(&(vcpu, OP_REGISTER)), "vCPU {vcpu}: {asked:?}");
        assert!(!guest.vcpu(vcpu).is_refused.load(Relaxed), "vCPU {vcpu}");
    }
}

#[test]
fn a_vcpu_that_another_caller_had_try_again_keeps_what_is_registered_there() {
    let guest = Guest::offline();
    guest.refuse(OP_REGISTER, Some(Errno::PERM));
    assert_eq!(guest.online(1, 0), Errno::PERM.to_return());
    guest.refuse(OP_REGISTER, None);
    let alice = Rc::new(guest.thread(ALICE));
    let (shown, registered) = (Rc::clone(&alice), Rc::new(Cell::new(None)));
    let noted = Rc::clone(&registered);
    guest.meanwhile(move || {
        assert_eq!(perfctr_core_handshake_again(), 0);
        noted.set(Some(Guest::show_meanwhile(1, shown.0)));
    });
    assert_eq!(perfctr_core_handshake_again(), 0);
    assert_eq!(registered.get(), Some(guest.registered(1)));
    assert_eq!(guest.registered(1), Some(page(&alice, 1)), "a thread counts there");
    drop(guest.hypercalls());
    Rc::into_inner(alice).expect("the closure is gone").end();
}

#[test]
fn a_vcpu_without_its_interrupt_never_counts() {
    let guest = Guest::offline();
    let error = Errno::NOMEM;
    for _ in 0..2 {
        assert_eq!(guest.online(1, error.to_return()), error.to_return());
        guest.hypercalls();
        assert_eq!(perfctr_core_handshake_again(), 0);
        perfctr_core_restored();
        // SAFETY: vCPU 1 executes this.
        guest.on(1, |vcpu| unsafe { perfctr_core_restore_look(vcpu.object()) });
        let registers = guest.hypercalls().into_iter().filter(|(_, op)| *op == OP_REGISTER);
        assert_eq!(registers.collect::<Vec<_>>(), []);
        guest.go_offline(1);
    }
    assert_eq!(guest.online(1, 0), 0);
    assert!(guest.hypercalls().contains(&(1, OP_REGISTER)), "it has its interrupt now");
}

#[test]
fn a_restored_vcpu_registers_its_page_anew() {
    let guest = Guest::new();
    let alice = guest.thread(ALICE);
    show(&guest, 0, &alice);
    guest.hypercalls();
    perfctr_core_restored();
    let asked = guest.hypercalls();
    for vcpu in [0, 1] {
        assert!(asked.contains(&(vcpu, OP_REGISTER)), "{asked:?}");
        assert_eq!(guest.vcpu(vcpu).page.get(), guest.vcpu(vcpu).perfs);
    }
    alice.end();
}

#[test]
fn a_cpu_that_is_counted_as_a_whole_stops_when_its_guest_is_restored() {
    let guest = Guest::new();
    // Whole CPUs are counted in root's pages.
    let (root, alice) = (guest.thread(0), guest.thread(ALICE));
    // Has the hypervisor count instructions in a user's page of the CPU.
    let count = |user: &Thread, instructions| {
        show(&guest, 1, user);
        // SAFETY: the user has this page until its last thread ends.
        let page = unsafe { &*page(user, 1).0 };
        page.flags.store(VCPU_REGISTERED | VCPU_DIRECT, Relaxed);
        page.slots[0].sum.store(instructions, Relaxed);
    };
    let read = || {
        let mut state = CpuState { cpu: 1, ..CpuState::default() };
        (of_cpus(IOC_CPU_READ, &mut state), state.sums.counter[0])
    };
    count(&root, 500);
    let mut state = CpuState { cpu: 1, control: control(1), ..CpuState::default() };
    assert_eq!(of_cpus(IOC_CPU_CONTROL, &mut state), 1);
    assert_eq!(of_cpus(IOC_CPU_START, &mut state), 1);
    count(&root, 600);
    assert_eq!(read(), (0, 100));
    Guest::move_vcpu(1);
    perfctr_core_restored();
    assert_eq!(read(), (0, 100), "no page is registered any more");
    count(&alice, 7_500);
    assert_eq!(read(), (0, 100), "what a thread counts there now is not the CPU's");
    assert_eq!(of_cpus(IOC_CPU_STOP, &mut state), 0);
    assert_eq!(read(), (0, 100), "when all CPUs have stopped");
    perfctr_core_close_cpus(5);
    alice.end();
    root.end();
}

#[test]
fn a_guest_subtracts_interrupts_where_its_present_host_says_so() {
    let guest = Guest::new();
    assert!(!subtracts());
    guest.offer(FEATURE_INTERRUPTS);
    perfctr_core_restored();
    assert!(subtracts(), "the CPUs of this host count them");
    guest.offer(0);
    assert_eq!(perfctr_core_handshake_again(), 0);
    assert!(!subtracts());
}

#[test]
fn a_thread_without_memory_leaves_nothing() {
    let guest = Guest::new();
    let before = guest.allocations();
    // The allocations are the user, its table, its page of each vCPU, and the thread's page.
    let needed = 1 + 1 + VCPUS as u32 + 1;
    for room in 0..needed {
        let made = guest.thread_in(ALICE, Some(room));
        assert_eq!(made.err(), Some(Errno::NOMEM.to_return()), "{room} allocations");
        guest.take_back_users();
        assert_eq!(guest.allocations(), before, "{room} allocations");
        assert_eq!(guest.put(), [CONTAINER], "{room} allocations");
    }
    guest.thread_in(ALICE, Some(needed)).unwrap().end();
}

/// Numbers of capabilities in Linux.
const CAP_IPC_LOCK: i32 = 14;
const CAP_SYS_PTRACE: i32 = 19;
const CAP_SYS_ADMIN: i32 = 21;
const CAP_PERFMON: i32 = 38;

#[test]
fn a_right_needs_its_own_capability() {
    let guest = Guest::new();
    let rights = || {
        [Caller.has_perfmon(), Caller.has_ipc_lock(), Caller.has_ptrace(), Caller::is_privileged()]
    };
    let expected = [
        (CAP_IPC_LOCK, [false, true, false, false]),
        (CAP_SYS_PTRACE, [false, false, true, false]),
        (CAP_SYS_ADMIN, [true, false, false, true]),
        (CAP_PERFMON, [true, false, false, true]),
    ];
    for (capability, expected) in expected {
        guest.give(Some(capability));
        assert_eq!(rights(), expected, "capability {capability}");
    }
    guest.give(None);
    assert_eq!(rights(), [false; 4]);
}

#[test]
fn what_is_refused_for_a_capability_is_logged_once() {
    let guest = Guest::new();
    assert!(!Caller::is_privileged());
    assert!(guest.log().is_empty(), "nothing is refused");
    assert!(!Caller.has_perfmon());
    assert_eq!(guest.log(), ["no capability 38"], "not the older one, too");
    guest.thread(ALICE).end();
    assert!(guest.log().is_empty(), "anybody may count");
}

#[test]
fn a_locked_down_kernel_says_so() {
    let guest = Guest::new();
    for is_locked_down in [true, false] {
        guest.lock_down(is_locked_down);
        assert_eq!(Caller.is_locked_down(), is_locked_down);
    }
    assert_eq!(Caller.perf_allows_kernel(), Err(Errno::ACCES));
}

/// Makes a request of descriptor 5 about CPUs.
fn of_cpus(number: u32, state: &mut CpuState) -> i32 {
    of_cpus_by(5, number, state)
}

fn of_cpus_by(descriptor: u64, number: u32, state: &mut CpuState) -> i32 {
    // SAFETY: the argument is of the requests' type, and only this thread uses the guest.
    unsafe { perfctr_core_request_of_cpus(number, descriptor, std::ptr::from_mut(state).cast()) }
}

#[test]
fn a_cpu_answers_what_it_is_set_to_and_nothing_that_the_caller_has_passed() {
    let guest = Guest::new();
    let mut wanted = CpuState { cpu: 1, control: control(1), ..CpuState::default() };
    assert_eq!(of_cpus(IOC_CPU_CONTROL, &mut wanted), 1, "one CPU is set");
    let asked = |cpu| {
        let control = Control { counters: 9, signal: 34, ..Control::default() };
        let mut state = CpuState { cpu, control, ..CpuState::default() };
        state.sums = Sums { tsc: 77, counter: [78; 18] };
        assert_eq!(of_cpus(IOC_CPU_READ, &mut state), 0, "CPU {cpu}");
        let CpuState { control, sums, .. } = state;
        (control.counters, control.signal, control.counter[0].evntsel, sums)
    };
    assert_eq!(asked(0), (0, 0, 0, Sums::default()), "nothing is set there");
    let evntsel = wanted.control.counter[0].evntsel;
    assert_eq!(asked(1), (1, 0, evntsel, Sums::default()), "nothing was counted yet");
    perfctr_core_close_cpus(5);
    assert_eq!(asked(1), (0, 0, 0, Sums::default()), "it is forgotten");
    drop(guest);
}

#[test]
fn a_cpu_that_is_offline_cannot_be_set() {
    let guest = Guest::new();
    guest.go_offline(1);
    let mut wanted = CpuState { cpu: 1, control: control(1), ..CpuState::default() };
    assert_eq!(of_cpus(IOC_CPU_CONTROL, &mut wanted), Errno::INVAL.to_return());
    assert!(!perfctr_core_owns_cpus(5), "no CPU is set");
    wanted.cpu = 0;
    assert_eq!(of_cpus(IOC_CPU_CONTROL, &mut wanted), 1);
    perfctr_core_close_cpus(5);
    drop(guest);
}

#[test]
fn threads_get_no_counters_before_all_cpus_have_stopped() {
    let guest = Guest::new();
    let alice = Rc::new(guest.thread(ALICE));
    let mut state = CpuState { cpu: 1, control: control(1), ..CpuState::default() };
    assert_eq!(of_cpus(IOC_CPU_CONTROL, &mut state), 1);
    assert_eq!(of_cpus(IOC_CPU_START, &mut state), 1);
    let (comes, begun) = (Rc::clone(&alice), Rc::new(Cell::new(0)));
    let noted = Rc::clone(&begun);
    guest.meanwhile(move || noted.set(perfctr_core_thread_begins(comes.0)));
    assert_eq!(of_cpus(IOC_CPU_STOP, &mut state), 0);
    assert_eq!(begun.get(), Errno::BUSY.to_return());
    perfctr_core_close_cpus(5);
    Rc::into_inner(alice).expect("the closure is gone").end();
    drop(guest);
}

/// Sets a thread's counters: by the thread itself on a vCPU, or by its tracer while the thread is
/// asleep. Returns whether the thread then needs its page.
fn needs_page_after(thread: &Thread, vcpu: Option<&VcpuObject>, control: &Control) -> bool {
    assert_eq!(set_control(thread, vcpu, control), 0);
    thread.0.needs_page.get()
}

/// Sets a thread's counters in the same way. Returns what the core has answered.
fn set_control(thread: &Thread, vcpu: Option<&VcpuObject>, control: &Control) -> i32 {
    // SAFETY: only this thread uses the guest, so it has the only rights to use the arguments. Each
    // of these types has only the reference.
    unsafe {
        let vcpu = std::mem::transmute::<Option<&VcpuObject>, OnVcpuOrAsleep<'_>>(vcpu);
        perfctr_core_operate(OnThread::new(thread.0), vcpu, IOC_CONTROL, control)
    }
}

/// Has a thread count with one counter, or with none.
fn control(counters: u32) -> Control {
    let mut control = Control { counters, ..Control::default() };
    if counters > 0 {
        control.counter[0].evntsel = EVNTSEL_INSTRUCTIONS | EVNTSEL_USR | EVNTSEL_EN;
    }
    control
}

/// Makes this the thread that executes.
fn present(thread: &Thread) -> Present<'_> {
    // SAFETY: only this thread uses the guest, so it has the only right to operate the counters.
    // The type has only the reference.
    unsafe { std::mem::transmute::<Option<&ThreadObject>, Present<'_>>(Some(thread.0)) }
}

/// The period of a thread that samples, and its signal.
const PERIOD: u64 = 1_000;
const SIGNAL: u32 = 10;

/// Has a thread sample with one counter.
fn sampling(flags: u32, signal: u32) -> Control {
    let mut sampling = Control { flags, signal, ..control(1) };
    (sampling.counter[0].mode, sampling.counter[0].period) = (MODE_SAMPLING, PERIOD);
    sampling
}

#[test]
fn an_overflow_that_a_request_notices_is_reported_by_it() {
    let guest = Guest::new();
    let alice = guest.thread(ALICE);
    show(&guest, 1, &alice);
    // SAFETY: the user has this page until its last thread ends.
    let page = unsafe { &*page(&alice, 1).0 };
    page.flags.store(VCPU_REGISTERED | VCPU_DIRECT, Relaxed);
    let set = |control: &Control| {
        guest.on(1, |on| needs_page_after(&alice, Some(on.object()), control));
        (guest.signals(), guest.records())
    };
    let count_up_to = |periods: u64| page.slots[0].sum.store(periods * PERIOD, Relaxed);

    let goes_on = sampling(CONTROL_KEEP_PERIOD, SIGNAL);
    assert_eq!(set(&goes_on), (vec![], vec![]), "nothing was counted yet");
    count_up_to(1);
    assert_eq!(set(&goes_on), (vec![(SIGNAL, 1)], vec![]));
    set(&control(0));

    let ring = RingRequest { pages: 1, watermark: 32, ..RingRequest::default() };
    guest.on(1, |_| {
        // SAFETY: only this thread uses the guest, so it has the only right to operate the
        // counters.
        assert_eq!(perfctr_core_ring_begin(unsafe { OnThread::new(alice.0) }, &ring), 0);
    });
    let recorded = sampling(CONTROL_RING, 0);
    assert_eq!(set(&recorded), (vec![], vec![]), "nothing was counted yet");
    count_up_to(2);
    assert_eq!(set(&control(0)), (vec![], vec![(0, PERIOD)]));

    set(&recorded);
    count_up_to(3);
    guest.on(1, |on| {
        // SAFETY: as above. The vCPU's type has only the reference.
        let vcpu = unsafe {
            std::mem::transmute::<Option<&VcpuObject>, OnVcpuOrAsleep<'_>>(Some(on.object()))
        };
        // SAFETY: as above.
        perfctr_core_stop(unsafe { OnThread::new(alice.0) }, vcpu);
    });
    assert_eq!(guest.records(), [(0, PERIOD)]);
    alice.end();
}

/// Has an event of perf's with these attributes count the instructions of user mode on vCPU 1,
/// where this thread executes. Returns the event's index.
fn begin_event(guest: &Guest, thread: &Thread, attr: &EventAttr) -> u32 {
    let (kind, config, flags) = (TYPE_RAW, EVNTSEL_INSTRUCTIONS, EXCLUDE_KERNEL);
    let attr = EventAttr { kind, config, flags, ..*attr };
    let (mut event, mut period) = (EventConfig::default(), 0);
    assert_eq!(perfctr_core_event_open(&attr, &mut event, &mut period), 0);
    let added = guest.on(1, |on| perfctr_core_event_add(on, &event, present(thread), false));
    let index = added.try_into().expect("there is a counter");
    guest.on(1, |on| perfctr_core_event_start(on, index, attr.period, 0, 0));
    guest.on(1, |on| perfctr_core_events_enable(on, present(thread)));
    index
}

#[test]
fn perfs_events_leave_the_present_thread_its_counters() {
    let guest = Guest::new();
    let alice = guest.thread(ALICE);
    let mut all = Control { counters: 4, ..Control::default() };
    for (slot, counter) in (0..).zip(&mut all.counter[..4]) {
        *counter = CounterConfig { slot, evntsel: BRANCHES_OF_USER, ..CounterConfig::default() };
    }
    // A threshold, which only a general counter has.
    let config = EVNTSEL_INSTRUCTIONS | 1 << 24;
    let attr = EventAttr { kind: TYPE_RAW, config, ..EventAttr::default() };
    let (mut event, mut period) = (EventConfig::default(), 0);
    assert_eq!(perfctr_core_event_open(&attr, &mut event, &mut period), 0);
    let add = |vcpu, thread: &Thread| {
        guest.on(vcpu, |on| perfctr_core_event_add(on, &event, present(thread), false))
    };
    show(&guest, 1, &alice);
    // SAFETY: the user has this page until its last thread ends.
    let flags = unsafe { &(*page(&alice, 1).0).flags };
    flags.store(VCPU_REGISTERED | VCPU_DIRECT, Relaxed);
    guest.on(1, |on| needs_page_after(&alice, Some(on.object()), &all));
    assert_eq!(add(1, &alice), Errno::AGAIN.to_return());
    guest.on(1, |on| needs_page_after(&alice, Some(on.object()), &control(1)));
    assert_eq!(add(1, &alice), 0, "three of the four are free");
    guest.on(1, |on| needs_page_after(&alice, Some(on.object()), &control(0)));
    alice.end();
}

#[test]
fn an_interrupt_is_subtracted_from_a_threads_counts_and_from_those_of_events_beside_them() {
    let guest = Guest::new();
    guest.offer(FEATURE_INTERRUPTS);
    assert_eq!(perfctr_core_handshake_again(), 0);
    let alice = guest.thread(ALICE);
    show(&guest, 1, &alice);
    // SAFETY: the user has this page until its last thread ends.
    let shown = unsafe { &*page(&alice, 1).0 };
    shown.flags.store(VCPU_REGISTERED | VCPU_DIRECT, Relaxed);
    guest.on(1, |on| needs_page_after(&alice, Some(on.object()), &control(1)));
    let index = begin_event(&guest, &alice, &EventAttr::default());
    shown.slots.iter().for_each(|slot| slot.sum.store(100, Relaxed));
    // The kernel traces it twice. What perf was given since the last look is 0 the second time.
    for of_event in [99, 0] {
        guest.on(1, |on| perfctr_core_traced(on, present(&alice), true, true, -1, 0));
        let mut sums = Sums::default();
        // SAFETY: only this thread uses the guest, so it has the only right to use the counters.
        let thread = unsafe { OnThread::new(alice.0) };
        let read = guest.on(1, |on| perfctr_core_read(thread, on, &mut sums));
        assert_eq!((read, sums.counter[0]), (0, 99));
        guest.on(1, |on| perfctr_core_event_read(on, index));
        assert_eq!(guest.counted(), of_event);
    }
    guest.on(1, |on| needs_page_after(&alice, Some(on.object()), &control(0)));
    alice.end();
}

#[test]
fn only_vcpus_that_count_are_interrupted_when_nobody_counts_any_more() {
    let guest = Guest::new();
    let alice = guest.thread(ALICE);
    let set = |vcpu, counters| {
        guest.on(vcpu, |on| needs_page_after(&alice, Some(on.object()), &control(counters)))
    };
    set(1, 1);
    perfctr_core_stop_if_idle();
    assert_eq!((guest.called(), guest.looks_again()), (vec![], 0), "somebody counts");
    set(1, 0);
    guest.hypercalls();
    for _ in 0..3 {
        set(1, 1);
        set(1, 0);
        perfctr_core_stop_if_idle();
        assert_eq!((guest.called(), guest.looks_again()), (vec![], 1), "it starts all the time");
    }
    guest.hypercalls();
    perfctr_core_stop_if_idle();
    assert_eq!((guest.called(), guest.hypercalls()), (vec![1], vec![(1, OP_STOP)]));
    perfctr_core_stop_if_idle();
    assert_eq!((guest.called(), guest.looks_again()), (vec![], 0), "it has stopped");
    for vcpu in 0..VCPUS {
        set(vcpu, 1);
        set(vcpu, 0);
    }
    perfctr_core_stop_if_idle();
    assert_eq!(guest.called(), []);
    perfctr_core_stop_if_idle();
    let mut called = guest.called();
    called.sort_unstable();
    assert_eq!(called, [0, 1]);
    alice.end();
}

#[test]
fn counters_are_stopped_as_soon_as_before_when_the_watch_has_ended() {
    let guest = Guest::new();
    let watch_ends = || {
        assert_eq!(perfctr_core_watch_join(), 0);
        perfctr_core_watch_leave();
        assert!(perfctr_core_watch_end(false));
        perfctr_core_stop_delay()
    };
    let soon = watch_ends();
    let alice = guest.thread(ALICE);
    for counters in [1, 0] {
        guest.on(1, |on| needs_page_after(&alice, Some(on.object()), &control(counters)));
    }
    (0..2).for_each(|_| perfctr_core_stop_if_idle());
    assert_eq!((guest.called(), guest.looks_again()), (vec![1], 1));
    assert_eq!(perfctr_core_stop_delay(), 2 * soon, "a vCPU was interrupted");
    assert_eq!(watch_ends(), soon);
    alice.end();
}

#[test]
fn only_vcpus_with_a_page_are_interrupted_to_give_it_back() {
    let guest = Guest::new();
    assert_eq!(perfctr_core_watch_join(), 0);
    let (alice, bob) = (guest.thread(ALICE), guest.thread(BOB));
    show(&guest, 1, &alice);
    bob.end();
    guest.take_back_users();
    assert_eq!(guest.called(), [], "no page of that user is registered");
    perfctr_core_watch_leave();
    assert!(perfctr_core_watch_end(false));
    assert_eq!(guest.called(), [1]);
    show(&guest, 0, &alice);
    alice.end();
    guest.take_back_users();
    assert_eq!(guest.called(), [0]);
}

#[test]
fn only_the_descriptor_that_has_set_cpus_owns_them() {
    let guest = Guest::new();
    assert!(!perfctr_core_owns_cpus(5));
    let mut wanted = CpuState { cpu: 1, control: control(1), ..CpuState::default() };
    assert_eq!(of_cpus(IOC_CPU_CONTROL, &mut wanted), 1);
    assert!(perfctr_core_owns_cpus(5) && !perfctr_core_owns_cpus(6));
    perfctr_core_close_cpus(5);
    assert!(!perfctr_core_owns_cpus(5));
    drop(guest);
}

#[test]
fn switches_are_not_watched_for_cpus_that_do_not_start() {
    let guest = Guest::new();
    let mut nothing = CpuState::default();
    assert_eq!(of_cpus(IOC_CPU_START, &mut nothing), 0, "no CPU is set");
    assert!(perfctr_core_watch_end(false), "somebody still watches");
    let mut wanted = CpuState { cpu: 1, control: control(1), ..CpuState::default() };
    assert_eq!(of_cpus(IOC_CPU_CONTROL, &mut wanted), 1);
    assert_eq!(of_cpus_by(6, IOC_CPU_START, &mut nothing), Errno::BUSY.to_return());
    assert!(perfctr_core_watch_end(false), "somebody still watches after a refusal");
    perfctr_core_close_cpus(5);
    drop(guest);
}

#[test]
fn cpus_of_which_one_is_refused_have_all_stopped() {
    let guest = Guest::new();
    for cpu in 0..2 {
        let mut wanted = CpuState { cpu, control: control(1), ..CpuState::default() };
        assert_eq!(of_cpus(IOC_CPU_CONTROL, &mut wanted), 1 + cpu as i32);
    }
    guest.refuse(OP_LOAD, Some(Errno::PERM));
    let mut nothing = CpuState::default();
    assert_eq!(of_cpus(IOC_CPU_START, &mut nothing), Errno::PERM.to_return());
    guest.refuse(OP_LOAD, None);
    assert!(perfctr_core_watch_end(false), "somebody still watches");
    let alice = guest.thread(ALICE);
    assert_eq!(perfctr_core_thread_begins(alice.0), 0, "no CPU counts");
    perfctr_core_thread_ends(alice.0);
    assert_eq!(of_cpus(IOC_CPU_START, &mut nothing), 2, "both are set as before");
    perfctr_core_close_cpus(5);
    alice.end();
}

#[test]
fn no_more_callers_are_written_than_a_record_has_room_for() {
    // Each frame leads to the next one above it. The last frame leads nowhere.
    let mut stack = [Frame::default(); 8];
    let frame_address =
        |stack: &[Frame; 8], n: usize| stack.as_ptr().wrapping_add(n).expose_provenance() as u64;
    for n in 0..7 {
        stack[n] = Frame { caller: frame_address(&stack, n + 1), address: 0x40_0000 + n as u64 };
    }
    for room in 0..4 {
        let mut words = [7; 6];
        // SAFETY: there are more words than there is room.
        let written = unsafe {
            perfctr_core_ring_callers(frame_address(&stack, 0), words.as_mut_ptr(), room)
        };
        let mut expected = [7; 6];
        for (n, word) in expected[..room as usize].iter_mut().enumerate() {
            *word = 0x40_0000 + n as u64;
        }
        assert_eq!((written, words), (room, expected));
    }
}

#[test]
fn a_control_that_is_refused_is_not_the_last_one() {
    let guest = Guest::new();
    let alice = guest.thread(ALICE);
    let (last, mut wrong) = (control(1), control(1));
    wrong.counter[0].slot = 17;
    for on_vcpu in [true, false] {
        let set = |control: &Control| match on_vcpu {
            true => guest.on(0, |vcpu| set_control(&alice, Some(vcpu.object()), control)),
            false => set_control(&alice, None, control),
        };
        assert_eq!(set(&last), 0);
        assert_ne!(set(&wrong), 0);
        let mut answer = Control::default();
        // SAFETY: only this thread sets controls.
        unsafe { perfctr_core_last_control(alice.0, &mut answer) };
        assert_eq!((answer.counters, answer.counter[0].slot), (1, 0));
    }
    guest.on(0, |vcpu| set_control(&alice, Some(vcpu.object()), &control(0)));
    alice.end();
}

#[test]
fn a_thread_that_comes_finds_no_branches_of_the_one_before() {
    let guest = Guest::offering(FEATURE_BRANCHES);
    let alice = guest.thread(ALICE);
    show_perfs(&guest, 1, ALICE);
    let (shown, _) = guest.registered(1).expect("perf's page is registered");
    // SAFETY: the page stays until the module is unloaded.
    let flags = unsafe { &(*shown).flags };
    flags.store(VCPU_REGISTERED | VCPU_DIRECT, Relaxed);
    let records_at_switch = || {
        guest.hypercalls();
        let next = Subject { identity: identity(ALICE), ..Subject::default() };
        guest.on(1, |on| perfctr_core_leave_to(on, present(&alice), &next, None));
        guest.hypercalls().iter().filter(|(_, op)| *op == OP_RECORD).count()
    };
    assert_eq!(records_at_switch(), 0, "nothing is recorded");
    // PERF_SAMPLE_BRANCH_STACK of any branches in user mode.
    let (sample_type, branch_sample_type) = (1 << 11, 0x1 | 0x8);
    let attr = EventAttr { period: 5_000, sample_type, branch_sample_type, ..EventAttr::default() };
    begin_event(&guest, &alice, &attr);
    assert_eq!(records_at_switch(), 1, "what was recorded is discarded");
    alice.end();
}

#[test]
fn only_a_thread_that_counts_keeps_its_users_page_while_it_is_another_users() {
    let guest = Guest::new();
    let (alice, bob) = (guest.thread(ALICE), guest.thread(BOB));
    // A thread with counters of Alice's, which has become Bob's.
    let bobs = Subject { identity: identity(BOB), ..Subject::default() };
    let comes = || {
        guest.on(1, |on| perfctr_core_leave_to(on, present(&bob), &bobs, Some(alice.0)));
        guest.registered(1)
    };
    // The fake kernel says of every program that it is of no user.
    let becomes = || {
        guest.on(1, |on| perfctr_core_become(on, present(&alice)));
        guest.registered(1)
    };
    for changes in [&comes as &dyn Fn() -> _, &becomes] {
        show(&guest, 1, &alice);
        let counts = |n| guest.on(1, |on| needs_page_after(&alice, Some(on.object()), &control(n)));
        assert!(counts(1));
        assert_eq!(changes(), Some(page(&alice, 1)), "it counts what it executes itself");
        assert!(!counts(0));
        assert_eq!(changes(), None, "nobody counts it any more");
    }
    alice.end();
    bob.end();
}

#[test]
fn a_thread_that_is_asleep_keeps_the_page_that_it_may_be_reading() {
    let guest = Guest::new();
    let alice = guest.thread(ALICE);
    let (nothing, counting) = (control(0), control(1));
    assert!(!needs_page_after(&alice, None, &nothing), "it has never counted");
    assert!(needs_page_after(&alice, None, &counting));
    assert!(needs_page_after(&alice, None, &nothing), "it may be in the middle of a read");
    let awake = guest.on(0, |vcpu| needs_page_after(&alice, Some(vcpu.object()), &nothing));
    assert!(!awake, "it reads nothing now");
    alice.end();
}
