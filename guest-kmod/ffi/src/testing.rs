// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A fake kernel and hypervisor for tests of the entries: the functions that C provides for the
//! core, for a guest of two vCPUs.

use core::cell::{Cell, RefCell};
use core::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::string::String;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use guest_kmod::LocalVcpu;
use guest_kmod::perf::{EventTime, Progress, Registers};
use guest_kmod::ring::{Frame, RingPlace};
use guest_kmod::shown::{Identity, Subject};
use shared_abi::caps::{CAPS_GLOBAL_INTEL, CAPS_SAMPLING, VENDOR_INTEL};
use shared_abi::hypercall::{
    FEATURE_ENABLED, HvPlace, HvQuery, HvRegister, OP_GO_ON, OP_QUERY, OP_REGISTER, OP_SHOW,
    OP_UNREGISTER,
};
use shared_abi::limits::PAGE_BYTES;
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use shared_abi::{CounterWidth, Errno, PmuCaps, VcpuPage, WireCaps};
use zerocopy::{FromBytes, IntoBytes};

use crate::call::Call;
use crate::called::perfctr_core_called;
use crate::machine::perfctr_core_handshake;
use crate::on_vcpu::{OnVcpu, Present};
use crate::users::{
    User, perfctr_core_user_find, perfctr_core_user_get, perfctr_core_users_free,
    perfctr_core_users_take_back,
};
use crate::vcpu::{
    perfctr_core_vcpu_new, perfctr_core_vcpu_offline, perfctr_core_vcpu_online,
    perfctr_core_vcpus_free,
};
use crate::watch::perfctr_core_watch_end;
use crate::{
    THREAD_BYTES, ThreadObject, VcpuObject, perfctr_core_thread_init, perfctr_core_thread_release,
};

pub(crate) const VCPUS: usize = 2;

/// One vCPU, as the fake kernel and hypervisor see it.
#[derive(Clone, Copy, Default)]
struct FakeVcpu {
    object: Option<&'static VcpuObject>,
    is_online: bool,
    /// The frame and the observer of the registered page, if a page is registered.
    registered: Option<(u64, u32)>,
}

/// An interrupt, which learns whether the hypervisor has already done what it interrupts.
type Interrupt = Box<dyn Fn(bool)>;

/// The guest's kernel and its hypervisor.
#[derive(Default)]
pub(crate) struct Fake {
    vcpus: [Cell<FakeVcpu>; VCPUS],
    /// The vCPU that executes.
    here: Cell<usize>,
    /// What the hypervisor offers beside counters, `FEATURE_*`.
    features: Cell<u32>,
    /// The error with which the hypervisor refuses an operation.
    refusals: RefCell<BTreeMap<u32, Errno>>,
    /// The hypercalls since the last look: vCPU and operation.
    hypercalls: RefCell<Vec<(usize, u32)>>,
    /// The vCPUs that were called since the last look.
    called: RefCell<Vec<usize>>,
    /// Memory in use, by its address.
    memory: RefCell<BTreeMap<usize, Layout>>,
    /// The number of further allocations for which there is memory, if that is bounded.
    room: Cell<Option<u32>>,
    /// Pages that may not be used for anything else.
    kept: RefCell<Vec<usize>>,
    /// The address of the user at whom somebody looks in an RCU read section.
    looks_at: Cell<Option<usize>>,
    /// References to containers that were given back.
    put: RefCell<Vec<u64>>,
    log: RefCell<Vec<String>>,
    /// What perf was given of an event's count since the last look.
    counted: Cell<u64>,
    /// How often the core has asked to look again at who counts.
    looks_again: Cell<u32>,
    /// The only capability of the calling thread.
    capability: Cell<Option<c_int>>,
    is_locked_down: Cell<bool>,
    /// The signals that were sent since the last look: number and counters.
    signals: RefCell<Vec<(u32, u32)>>,
    /// The records that were written since the last look: counter and count.
    records: RefCell<Vec<(u32, u64)>>,
    /// What interrupts the next `OP_SHOW` before the hypervisor has done it, and after that.
    interrupts: RefCell<Option<Interrupt>>,
    /// What another caller does meanwhile, before a vCPU is called next.
    meanwhile: RefCell<Option<Box<dyn FnOnce()>>>,
}

/// The fake, which only the test that has the guest uses.
struct Turns(LazyLock<Fake>);

// SAFETY: only the test that holds the lock `GUEST` uses it.
unsafe impl Sync for Turns {}

static FAKE: Turns = Turns(LazyLock::new(Fake::default));

/// The core has one state for the whole kernel, so only one test at a time has a guest.
static GUEST: Mutex<()> = Mutex::new(());

/// A guest in which the module is loaded. Dropping it unloads the module.
pub(crate) struct Guest {
    _turn: MutexGuard<'static, ()>,
    /// The number of allocations in use before the module was loaded.
    before: usize,
}

/// A thread's counters.
pub(crate) struct Thread(pub(crate) &'static ThreadObject);

impl Guest {
    /// Makes a guest whose vCPUs are online.
    pub(crate) fn new() -> Self {
        Self::offering(0)
    }

    /// Makes a guest whose vCPUs are online, on a host that offers these features.
    pub(crate) fn offering(features: u32) -> Self {
        let guest = Self::offline_at(features);
        (0..VCPUS).for_each(|vcpu| assert_eq!(guest.online(vcpu, 0), 0));
        guest.hypercalls();
        guest
    }

    /// Makes a guest whose vCPUs are not online yet.
    pub(crate) fn offline() -> Self {
        Self::offline_at(0)
    }

    /// Makes a guest whose vCPUs are not online yet, on a host that offers these features.
    fn offline_at(features: u32) -> Self {
        let turn = GUEST.lock().unwrap_or_else(PoisonError::into_inner);
        let before = Fake::with(|fake| {
            fake.features.set(features);
            fake.memory.borrow().len()
        });
        let mut found = core::ptr::null();
        assert_eq!(perfctr_core_handshake(VCPUS as u32, &mut found), 0);
        for vcpu in 0..VCPUS {
            // SAFETY: the object stays until the module is unloaded.
            let object = unsafe { perfctr_core_vcpu_new(vcpu as u32).as_ref() };
            Fake::with(|fake| fake.vcpus[vcpu].set(FakeVcpu { object, ..FakeVcpu::default() }));
        }
        Self { _turn: turn, before }
    }

    pub(crate) fn vcpu(&self, vcpu: usize) -> &'static VcpuObject {
        object(vcpu)
    }

    /// Executes this on a vCPU.
    pub(crate) fn on<R>(&self, vcpu: usize, run: impl FnOnce(OnVcpu<'static>) -> R) -> R {
        on(vcpu, run)
    }

    /// Brings a vCPU online. Binding its interrupt has returned this error.
    pub(crate) fn online(&self, vcpu: usize, error: c_int) -> c_int {
        Fake::with(|fake| fake.change(vcpu, |vcpu| vcpu.is_online = true));
        on(vcpu, |vcpu| perfctr_core_vcpu_online(vcpu, error))
    }

    /// Takes a vCPU offline.
    pub(crate) fn go_offline(&self, vcpu: usize) {
        on(vcpu, |vcpu| perfctr_core_vcpu_offline(vcpu));
        Fake::with(|fake| fake.change(vcpu, |vcpu| vcpu.is_online = false));
    }

    /// Makes counters of a user's thread.
    pub(crate) fn thread(&self, uid: u32) -> Thread {
        self.thread_in(uid, None).expect("there is memory")
    }

    /// Makes counters of a user's thread, with memory for this many more allocations.
    ///
    /// # Errors
    ///
    /// The error that C gets.
    pub(crate) fn thread_in(&self, uid: u32, room: Option<u32>) -> Result<Thread, c_int> {
        Fake::with(|fake| fake.room.set(room));
        self.thread_of(uid, uid)
    }

    /// Makes counters of a thread whose user has another owner.
    ///
    /// # Errors
    ///
    /// The error that C gets.
    pub(crate) fn thread_of(&self, uid: u32, owner: u32) -> Result<Thread, c_int> {
        let room = Fake::with(|fake| fake.room.take());
        let memory = perfctr_glue_alloc(THREAD_BYTES);
        Fake::with(|fake| fake.room.set(room));
        let made = user(&identity(uid), false, owner).map_or_else(
            |error| error,
            // SAFETY: the memory has this size and alignment, and nobody else uses it.
            |user| unsafe { perfctr_core_thread_init(memory.cast(), 7, user) },
        );
        Fake::with(|fake| fake.room.set(None));
        if made == 0 {
            // SAFETY: the object was made just now, and only `end` frees it.
            return Ok(Thread(unsafe { &*memory.cast() }));
        }
        // SAFETY: the memory was allocated above, and nobody uses it.
        unsafe { kfree(memory) };
        Err(made)
    }

    /// Returns the number of allocations in use.
    pub(crate) fn allocations(&self) -> usize {
        Fake::with(|fake| fake.memory.borrow().len())
    }

    /// Makes the hypervisor refuse an operation from now on, or accept it again.
    pub(crate) fn refuse(&self, op: u32, errno: Option<Errno>) {
        Fake::with(|fake| match errno {
            Some(errno) => _ = fake.refusals.borrow_mut().insert(op, errno),
            None => _ = fake.refusals.borrow_mut().remove(&op),
        });
    }

    /// Makes the hypervisor offer these features beside counters from now on.
    pub(crate) fn offer(&self, features: u32) {
        Fake::with(|fake| fake.features.set(features));
    }

    /// Returns what perf was given of an event's count since the last look.
    pub(crate) fn counted(&self) -> u64 {
        Fake::with(|fake| fake.counted.take())
    }

    /// Registers the page of a thread's user with a vCPU in the middle of a call. Returns what is
    /// registered then.
    pub(crate) fn show_meanwhile(
        vcpu: usize,
        thread: &ThreadObject,
    ) -> Option<(*const VcpuPage, u32)> {
        on(vcpu, |mut vcpu| _ = vcpu.show_page_of(thread.user));
        Self::registered_at(vcpu)
    }

    /// Gives the calling thread this capability and no other.
    pub(crate) fn give(&self, capability: Option<c_int>) {
        Fake::with(|fake| fake.capability.set(capability));
    }

    pub(crate) fn lock_down(&self, is_locked_down: bool) {
        Fake::with(|fake| fake.is_locked_down.set(is_locked_down));
    }

    /// Makes another caller do something before a vCPU is called next.
    pub(crate) fn meanwhile(&self, run: impl FnOnce() + 'static) {
        Fake::with(|fake| *fake.meanwhile.borrow_mut() = Some(Box::new(run)));
    }

    /// Interrupts the next `OP_SHOW` before the hypervisor has done it, and after that. The
    /// argument says which.
    pub(crate) fn interrupt_show(&self, run: impl Fn(bool) + 'static) {
        Fake::with(|fake| *fake.interrupts.borrow_mut() = Some(Box::new(run)));
    }

    /// Returns the page that is registered with a vCPU, and for which observer.
    pub(crate) fn registered(&self, vcpu: usize) -> Option<(*const VcpuPage, u32)> {
        Self::registered_at(vcpu)
    }

    /// Moves the guest to another host, which has no page of a vCPU.
    pub(crate) fn move_vcpu(vcpu: usize) {
        Fake::with(|fake| fake.change(vcpu, |vcpu| vcpu.registered = None));
    }

    pub(crate) fn registered_at(vcpu: usize) -> Option<(*const VcpuPage, u32)> {
        let registered = Fake::with(|fake| fake.vcpus[vcpu].get().registered);
        registered.map(|(frame, observer)| {
            (core::ptr::without_provenance(frame as usize * PAGE_BYTES), observer)
        })
    }

    /// Returns the hypercalls since the last look: vCPU and operation.
    pub(crate) fn hypercalls(&self) -> Vec<(usize, u32)> {
        Fake::with(|fake| fake.hypercalls.take())
    }

    /// Returns the vCPUs that were called since the last look.
    pub(crate) fn called(&self) -> Vec<usize> {
        Fake::with(|fake| fake.called.take())
    }

    /// Returns how often the core has asked since the last time to look again at who counts.
    pub(crate) fn looks_again(&self) -> u32 {
        Fake::with(|fake| fake.looks_again.take())
    }

    /// Returns the signals that were sent since the last look: number and counters.
    pub(crate) fn signals(&self) -> Vec<(u32, u32)> {
        Fake::with(|fake| fake.signals.take())
    }

    /// Returns the records that were written since the last look: counter and count.
    pub(crate) fn records(&self) -> Vec<(u32, u64)> {
        Fake::with(|fake| fake.records.take())
    }

    /// Returns whether memory is in use. Pages that may not be used for anything else are in use,
    /// too.
    pub(crate) fn is_in_use<T>(&self, memory: *const T) -> bool {
        Fake::with(|fake| {
            let address = memory.addr();
            fake.memory.borrow().contains_key(&address) || fake.kept.borrow().contains(&address)
        })
    }

    /// Has somebody who has no lock look at the user of a thread.
    pub(crate) fn look_at(&self, thread: &Thread) {
        let user = core::ptr::from_ref(thread.0.user).addr();
        Fake::with(|fake| fake.looks_at.set(Some(user)));
    }

    /// Returns whether nobody without a lock looks at a user any more.
    pub(crate) fn nobody_looks(&self) -> bool {
        Fake::with(|fake| fake.looks_at.get().is_none())
    }

    /// Frees users without counters, as C does after a while.
    pub(crate) fn take_back_users(&self) {
        // SAFETY: only this thread uses the guest.
        unsafe { perfctr_core_users_free(perfctr_core_users_take_back()) }
    }

    /// Returns what was written to the kernel's log since the last look.
    pub(crate) fn log(&self) -> Vec<String> {
        Fake::with(|fake| fake.log.take())
    }

    /// Returns the references to containers that were given back since the last look.
    pub(crate) fn put(&self) -> Vec<u64> {
        Fake::with(|fake| fake.put.take())
    }

    /// Returns the pages that may not be used for anything else.
    pub(crate) fn kept(&self) -> Vec<usize> {
        Fake::with(|fake| fake.kept.take())
    }
}

impl Drop for Guest {
    /// Unloads the module, as C does. Nothing of it may be left.
    fn drop(&mut self) {
        Fake::with(|fake| fake.refusals.take());
        self.give(None);
        self.lock_down(false);
        self.offer(0);
        for vcpu in 0..VCPUS {
            let FakeVcpu { is_online, registered, .. } = Fake::with(|fake| fake.vcpus[vcpu].get());
            if !is_online && registered.is_some() {
                // The hypervisor had refused to unregister the page.
                self.online(vcpu, 0);
            }
            if is_online || registered.is_some() {
                self.go_offline(vcpu);
            }
        }
        perfctr_core_watch_end(true);
        self.take_back_users();
        // SAFETY: no other code executes.
        unsafe { perfctr_core_vcpus_free() };
        // Each test has checked those of these lists that it is about.
        drop((self.log(), self.kept(), self.put(), self.hypercalls(), self.called()));
        drop((self.looks_again(), self.signals(), self.records(), self.counted()));
        if !std::thread::panicking() {
            assert_eq!(self.allocations(), self.before, "allocations that nobody has freed");
        }
    }
}

/// Returns the identity of a user's programs in the container. Only root's have capabilities.
pub(crate) fn identity(uid: u32) -> Identity {
    let capabilities = if uid == 0 { !0 } else { 0 };
    Identity { container: CONTAINER, capabilities, ids: uid.into(), ..Identity::default() }
}

/// Returns the user with this identity, who has counters, as C does.
///
/// # Errors
///
/// The error that C gets.
pub(crate) fn user(
    identity: &Identity,
    is_initial: bool,
    owner: u32,
) -> Result<&'static User, c_int> {
    // SAFETY: nobody frees users meanwhile.
    let found = unsafe { perfctr_core_user_find(identity).as_ref() };
    found.map_or_else(|| user_by_lock(identity, is_initial, owner), Ok)
}

/// Returns the same user as a caller that holds C's lock of users and references to the identity.
///
/// # Errors
///
/// The error that C gets.
pub(crate) fn user_by_lock(
    identity: &Identity,
    is_initial: bool,
    owner: u32,
) -> Result<&'static User, c_int> {
    let (mut found, mut to_free) = (core::ptr::null(), core::ptr::null());
    // SAFETY: only this thread uses the guest.
    let error = unsafe {
        let error = perfctr_core_user_get(identity, is_initial, owner, &mut found, &mut to_free);
        perfctr_core_users_free(to_free);
        error
    };
    if error != 0 {
        return Err(error);
    }
    // SAFETY: only users without counters are freed, and this one has some.
    Ok(unsafe { &*found })
}

impl Thread {
    /// Frees the counters.
    pub(crate) fn end(self) {
        // SAFETY: nobody uses them any more.
        unsafe {
            perfctr_core_thread_release(self.0);
            kfree(core::ptr::from_ref(self.0).cast());
        }
    }
}

/// The address of the container that all threads are in.
pub(crate) const CONTAINER: u64 = 0x70_0010;

fn object(vcpu: usize) -> &'static VcpuObject {
    Fake::with(|fake| fake.vcpus[vcpu].get().object).expect("the module is loaded")
}

fn on<R>(vcpu: usize, run: impl FnOnce(OnVcpu<'static>) -> R) -> R {
    let before = Fake::with(|fake| fake.here.replace(vcpu));
    // SAFETY: only this thread uses the guest, so it has the only right to use the vCPU. An
    // `OnVcpu` has only the reference.
    let done = run(unsafe { core::mem::transmute::<&VcpuObject, OnVcpu<'_>>(object(vcpu)) });
    Fake::with(|fake| fake.here.set(before));
    done
}

impl Fake {
    fn with<R>(run: impl FnOnce(&Self) -> R) -> R {
        run(&FAKE.0)
    }

    fn change(&self, vcpu: usize, change: impl FnOnce(&mut FakeVcpu)) {
        let mut changed = self.vcpus[vcpu].get();
        change(&mut changed);
        self.vcpus[vcpu].set(changed);
    }

    fn alloc(&self, layout: Layout) -> *mut c_void {
        match self.room.get() {
            Some(0) => return core::ptr::null_mut(),
            room => self.room.set(room.map(|room| room - 1)),
        }
        // SAFETY: the layout's size is not 0.
        let memory = unsafe { alloc_zeroed(layout) };
        self.memory.borrow_mut().insert(memory.addr(), layout);
        memory.cast()
    }

    fn free(&self, memory: *mut c_void) {
        if memory.is_null() {
            return;
        }
        let layout = self.memory.borrow_mut().remove(&memory.addr()).expect("is in use");
        if self.kept.borrow().contains(&memory.addr()) {
            return;
        }
        // SAFETY: the memory was allocated with this layout.
        unsafe { dealloc(memory.cast(), layout) }
    }

    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let here = self.here.get();
        self.hypercalls.borrow_mut().push((here, op));
        if let Some(errno) = self.refusals.borrow().get(&op) {
            return Err(*errno);
        }
        let registered = self.vcpus[here].get().registered;
        match op {
            OP_QUERY => argument.copy_from_slice(answer(self.features.get()).as_bytes()),
            OP_REGISTER if registered.is_some() => return Err(Errno::EXIST),
            OP_SHOW if self.interrupts.borrow().is_some() => {
                let interrupt = self.interrupts.take().expect("it is there");
                interrupt(false);
                let shown = self.hypercall(op, argument);
                interrupt(true);
                return shown;
            }
            OP_REGISTER | OP_SHOW | OP_GO_ON => {
                let (wanted, _) =
                    HvRegister::read_from_prefix(argument).map_err(|_| Errno::INVAL)?;
                let registered = Some((wanted.gfn, wanted.observer));
                self.change(here, |vcpu| vcpu.registered = registered);
            }
            OP_UNREGISTER if registered.is_none() => return Err(Errno::NXIO),
            OP_UNREGISTER => self.change(here, |vcpu| vcpu.registered = None),
            _ => {}
        }
        Ok(())
    }

    fn call(&self, vcpu: usize, call: *const c_void) {
        self.called.borrow_mut().push(vcpu);
        let meanwhile = self.meanwhile.borrow_mut().take();
        meanwhile.into_iter().for_each(|run| run());
        // SAFETY: the core passes the address of a `Call`, and the thread that executes has no
        // counters.
        on(vcpu, |vcpu| unsafe {
            let nobody = core::mem::transmute::<Option<&ThreadObject>, Present<'_>>(None);
            perfctr_core_called(&*call.cast::<Call<'_>>(), vcpu, nobody);
        });
    }
}

/// Returns what the hypervisor answers to a query if it offers these features beside counters.
fn answer(features: u32) -> HvQuery {
    let [general_width, fixed_width] =
        [48, 40].map(|bits| CounterWidth::new(bits).expect("a width"));
    let caps = PmuCaps {
        vendor: VENDOR_INTEL,
        version: 3,
        features: CAPS_GLOBAL_INTEL | CAPS_SAMPLING,
        general: 4,
        fixed: 3,
        general_width,
        fixed_width,
    };
    HvQuery {
        abi_major: ABI_MAJOR.into(),
        abi_minor: ABI_MINOR.into(),
        features: FEATURE_ENABLED | features,
        caps: WireCaps::from(&caps),
        ..HvQuery::default()
    }
}

// From here on: the functions that C provides.

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_hypercall(op: u32, argument: *mut c_void, length: u32) -> c_int {
    let argument = match length {
        0 => &mut [],
        // SAFETY: the core passes this many bytes.
        _ => unsafe { core::slice::from_raw_parts_mut(argument.cast::<u8>(), length as usize) },
    };
    crate::to_return(Fake::with(|fake| fake.hypercall(op, argument)))
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_gfn(page: *const VcpuPage) -> u64 {
    (page.addr() / PAGE_BYTES) as u64
}

core::arch::global_asm!(
    ".globl perfctr_glue_rdpmc",
    "perfctr_glue_rdpmc:",
    "xor eax, eax",
    "xor edx, edx",
    "ret",
);

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_alloc(bytes: usize) -> *mut c_void {
    let layout = Layout::from_size_align(bytes, 8).expect("a size");
    Fake::with(|fake| fake.alloc(layout))
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_alloc_page() -> *mut c_void {
    let layout = Layout::from_size_align(PAGE_BYTES, PAGE_BYTES).expect("a size");
    Fake::with(|fake| fake.alloc(layout))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn kfree(memory: *const c_void) {
    Fake::with(|fake| fake.free(memory.cast_mut()));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free_pages(page: c_ulong, _: c_uint) {
    let page = core::ptr::with_exposed_provenance_mut(page as usize);
    Fake::with(|fake| fake.free(page));
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_log(what: *const c_char, _: c_int) {
    // SAFETY: the core passes a text that ends with a null byte.
    let what = unsafe { CStr::from_ptr(what) }.to_string_lossy().into_owned();
    Fake::with(|fake| fake.log.borrow_mut().push(what));
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_keep_page(page: *const VcpuPage) {
    Fake::with(|fake| fake.kept.borrow_mut().push(page.addr()));
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_put_identity(identity: &Identity) {
    Fake::with(|fake| fake.put.borrow_mut().push(identity.container));
}

/// Reads a frame of the stack, which is in the test's own memory.
#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_read_frame(address: u64, frame: &mut Frame) -> bool {
    let stack = core::ptr::with_exposed_provenance::<Frame>(address as usize);
    // SAFETY: the tests chain frames that are still valid.
    *frame = unsafe { stack.read() };
    true
}

// No test has an event of perf's that stalls or overflows.

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_event_time(_: u32, _: EventTime) -> u64 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_event_progress(_: u32, progress: &Progress) {
    Fake::with(|fake| fake.counted.set(fake.counted.get().wrapping_add(progress.count)));
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_event_stall(_: u32, _: u64) {
    unreachable!("no event stalls")
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_event_sample(_: u32, _: Registers, _: &HvPlace, _: u64) {
    unreachable!("no event overflows")
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_report_later() {
    unreachable!("no event overflows")
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_send_signal(number: u32, counters: u32) -> bool {
    Fake::with(|fake| fake.signals.borrow_mut().push((number, counters)));
    true
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_ring_write(_: *const c_void, place: &RingPlace) {
    Fake::with(|fake| fake.records.borrow_mut().push((place.counter, place.count)));
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_ring_wake(_: *const c_void) {
    unreachable!("no event overflows")
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_users_look_in(_: u32) {}

/// Checks that a user at whom somebody looks was not freed yet. Afterwards nobody looks at a user
/// any more.
#[unsafe(no_mangle)]
extern "C" fn synchronize_rcu() {
    let still = Fake::with(|fake| fake.looks_at.take());
    if let Some(user) = still {
        assert!(Fake::with(|fake| fake.memory.borrow().contains_key(&user)), "it was freed");
    }
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_call_all(call: *const c_void) {
    Fake::with(|fake| {
        for vcpu in (0..VCPUS).filter(|&vcpu| fake.vcpus[vcpu].get().is_online) {
            fake.call(vcpu, call);
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_call_one(cpu: u32, call: *const c_void) -> c_int {
    Fake::with(|fake| {
        if !fake.vcpus[cpu as usize].get().is_online {
            return Errno::NXIO.to_return();
        }
        fake.call(cpu as usize, call);
        0
    })
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_present(present: *mut Subject) {
    // SAFETY: the core passes room for a `Subject`.
    unsafe { *present = Subject::default() }
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_watch_begin(_interrupts: bool) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_stop_if_idle() {
    Fake::with(|fake| fake.looks_again.set(fake.looks_again.get() + 1));
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_watch() -> c_int {
    crate::watch::perfctr_core_watch_join()
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_unwatch() {
    crate::watch::perfctr_core_watch_leave();
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_has_capability(capability: c_int, is_quiet: bool) -> bool {
    Fake::with(|fake| {
        let has = fake.capability.get() == Some(capability);
        if !has && !is_quiet {
            fake.log.borrow_mut().push(std::format!("no capability {capability}"));
        }
        has
    })
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_is_locked_down() -> bool {
    Fake::with(|fake| fake.is_locked_down.get())
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_perf_allows_kernel() -> c_int {
    Errno::ACCES.to_return()
}

#[unsafe(no_mangle)]
extern "C" fn cpus_read_lock() {}

#[unsafe(no_mangle)]
extern "C" fn cpus_read_unlock() {}

/// Makes counters of root.
#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_counters_new() -> *mut c_void {
    let memory = perfctr_glue_alloc(THREAD_BYTES);
    let root = user(&identity(0), true, 0).expect("there is memory");
    // SAFETY: the memory has this size and alignment, and nobody else uses it.
    assert_eq!(unsafe { perfctr_core_thread_init(memory.cast(), 0, root) }, 0);
    memory
}

#[unsafe(no_mangle)]
extern "C" fn perfctr_glue_counters_free(counters: *mut c_void) {
    // SAFETY: the function above has returned these counters, and nobody uses them any more.
    unsafe {
        perfctr_core_thread_release(&*counters.cast());
        kfree(counters);
    }
}
