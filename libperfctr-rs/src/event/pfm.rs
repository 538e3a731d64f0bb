// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Access to libpfm4, which knows names and encodings of each CPU's own events.
//!
//! The library is opened only when an event's name is otherwise unknown, so that programs start
//! without it. Types and numbers are those of `perfmon/pfmlib.h` of libpfm 4.
#![expect(unsafe_code, reason = "calls a C library")]

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_RINGS};

use super::Event;

const LIBRARY: &str = "libpfm.so.4";

const SUCCESS: c_int = 0;
const ERROR_NOTFOUND: c_int = -4;
/// User and kernel mode.
const PLM_ALL: c_int = 1 | 8;
/// Encodings are those of the hardware.
const OS_NONE: c_int = 0;
/// A PMU of cores.
const TYPE_CORE: c_int = 1;
/// A number that is greater than the number of PMUs that any version of the library knows.
const PMUS: c_int = 4_096;
const ATTRIBUTE_UNIT_MASK: c_int = 1;

/// Bits of an event select that do not belong to the event: pin control and the interrupt (SDM
/// volume 3, figure 20-1).
const EVNTSEL_NOT_OF_EVENT: u64 = EVNTSEL_RINGS | EVNTSEL_EN | 1 << 19 | 1 << 20;
/// The encoding that stands for the third fixed counter, which no general one can replace.
const REFERENCE_CYCLES: u64 = 0x0300;

/// `pfm_pmu_info_t`.
#[repr(C)]
struct PmuInfo {
    name: *const c_char,
    desc: *const c_char,
    size: usize,
    pmu: c_int,
    kind: c_int,
    events: c_int,
    first_event: c_int,
    max_encoding: c_int,
    counters: c_int,
    fixed_counters: c_int,
    /// Bit 0 says that the PMU is this machine's.
    flags: c_uint,
}

/// `pfm_event_info_t`.
#[repr(C)]
struct EventInfo {
    name: *const c_char,
    desc: *const c_char,
    equivalent: *const c_char,
    size: usize,
    code: u64,
    pmu: c_int,
    dtype: c_int,
    index: c_int,
    attributes: c_int,
    reserved: c_int,
    flags: c_uint,
}

/// `pfm_event_attr_info_t`.
#[repr(C)]
struct AttributeInfo {
    name: *const c_char,
    desc: *const c_char,
    equivalent: *const c_char,
    size: usize,
    code: u64,
    kind: c_int,
    index: c_int,
    control: c_int,
    flags: c_uint,
    default: u64,
}

/// `pfm_pmu_encode_arg_t`.
#[repr(C)]
struct EncodeArgument {
    codes: *mut u64,
    text: *mut *mut c_char,
    size: usize,
    count: c_int,
    index: c_int,
}

const _: () = assert!(size_of::<PmuInfo>() == 56 && size_of::<EventInfo>() == 64);
const _: () = assert!(size_of::<AttributeInfo>() == 64 && size_of::<EncodeArgument>() == 32);

/// The library's functions. They stay valid, since the library is never closed.
struct Pfm {
    pmu_info: unsafe extern "C" fn(c_int, *mut PmuInfo) -> c_int,
    event_info: unsafe extern "C" fn(c_int, c_int, *mut EventInfo) -> c_int,
    attribute_info: unsafe extern "C" fn(c_int, c_int, c_int, *mut AttributeInfo) -> c_int,
    next_event: unsafe extern "C" fn(c_int) -> c_int,
    encode: unsafe extern "C" fn(*const c_char, c_int, c_int, *mut EncodeArgument) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// An event of this CPU, as libpfm4 knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Described {
    /// The name, from which an [`Event`] can be parsed.
    pub name: String,
    /// The library's description of what the event counts.
    pub description: String,
}

/// Calls `work` with the library, under a lock because the library is not thread-safe.
///
/// It returns `None` where the library is not installed.
fn with<R>(work: impl FnOnce(&Pfm) -> R) -> Option<R> {
    static PFM: OnceLock<Option<Mutex<Pfm>>> = OnceLock::new();
    let pfm = PFM.get_or_init(|| Pfm::open().map(Mutex::new)).as_ref()?;
    Some(work(&pfm.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// The reason why the library gives no event of a name.
#[derive(Debug)]
pub(super) enum Missing {
    /// The library is not installed, or does not know the name.
    Name,
    /// A counter alone cannot count the event, for this reason.
    Encoding(String),
}

/// Finds the event of this name.
pub(super) fn find(name: &str) -> Result<Event, Missing> {
    with(|pfm| pfm.find(name)).ok_or(Missing::Name)?
}

/// Returns the names of this CPU's events, without unit masks.
pub(super) fn names() -> Vec<String> {
    let names = |pfm: &Pfm| {
        let mut names = Vec::new();
        pfm.each_event(|event| names.push(text(event.name)));
        names
    };
    with(names).unwrap_or_default()
}

/// Returns this CPU's events, each with every unit mask; none where libpfm4 is not installed.
pub fn catalogue() -> Vec<Described> {
    let describe = |pfm: &Pfm| {
        let mut all = Vec::new();
        pfm.each_event(|event| pfm.describe(event, &mut all));
        all
    };
    with(describe).unwrap_or_default()
}

/// Copies the text at `pointer`, which the library never changes; null gives an empty text.
fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the library's texts end with a 0 and stay where they are.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// Returns a copy of the name that lives as long as the program; there is one of each name.
fn kept(name: &str) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    match names.get(name) {
        Some(name) => name,
        None => {
            let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
            names.insert(name);
            name
        }
    }
}

impl Pfm {
    fn open() -> Option<Self> {
        // SAFETY: loading executes the library's initialisers, which have no effect outside it.
        let library = Box::leak(Box::new(unsafe { Library::new(LIBRARY) }.ok()?));
        // SAFETY: the functions have these types in version 4, which the library's name promises.
        unsafe {
            let initialize =
                library.get::<unsafe extern "C" fn() -> c_int>(b"pfm_initialize\0").ok()?;
            let pfm = Self {
                pmu_info: *library.get(b"pfm_get_pmu_info\0").ok()?,
                event_info: *library.get(b"pfm_get_event_info\0").ok()?,
                attribute_info: *library.get(b"pfm_get_event_attr_info\0").ok()?,
                next_event: *library.get(b"pfm_get_event_next\0").ok()?,
                encode: *library.get(b"pfm_get_os_event_encoding\0").ok()?,
                error: *library.get(b"pfm_strerror\0").ok()?,
            };
            (initialize() == SUCCESS).then_some(pfm)
        }
    }

    fn find(&self, name: &str) -> Result<Event, Missing> {
        let (words, index) = self.encode(name).map_err(|error| match error {
            ERROR_NOTFOUND => Missing::Name,
            // SAFETY: the function accepts any number, and returns a text for each.
            _ => Missing::Encoding(text(unsafe { (self.error)(error) })),
        })?;
        let pmu = self.event(index).and_then(|event| self.pmu(event.pmu));
        let Some(pmu) = pmu.filter(|pmu| pmu.kind == TYPE_CORE) else {
            return Err(Missing::Encoding("it is no event of a core's PMU".to_owned()));
        };
        let select = match *words {
            [word] => word & !EVNTSEL_NOT_OF_EVENT,
            _ => {
                return Err(Missing::Encoding(
                    "it needs registers beside the event select".to_owned(),
                ));
            }
        };
        // AMD's cores have no fixed counters, and some of them have events of their own with number
        // 0.
        let is_fixed = pmu.fixed_counters > 0 && select & 0xff == 0 && select >> 32 == 0;
        match select {
            REFERENCE_CYCLES if is_fixed => Ok(Event::REF_CYCLES),
            _ if is_fixed => Err(Missing::Encoding(
                "only a fixed counter that is not offered counts it".to_owned(),
            )),
            _ => {
                let here = pmu.flags & 1 == 1;
                Ok(Event { name: here.then(|| kept(name)), ..Event::raw(select) })
            }
        }
    }

    /// Returns the words that program the event, and its number in the library.
    fn encode(&self, name: &str) -> Result<(Vec<u64>, c_int), c_int> {
        let name = CString::new(name).map_err(|_| ERROR_NOTFOUND)?;
        let mut argument = EncodeArgument {
            codes: std::ptr::null_mut(),
            text: std::ptr::null_mut(),
            size: size_of::<EncodeArgument>(),
            count: 0,
            index: 0,
        };
        // SAFETY: `size` is the size of the argument. `codes` is null, so the library allocates
        // the words.
        let error = unsafe { (self.encode)(name.as_ptr(), PLM_ALL, OS_NONE, &raw mut argument) };
        if error != SUCCESS {
            return Err(error);
        }
        let count = usize::try_from(argument.count).unwrap_or(0);
        // SAFETY: the library has allocated `count` words with `malloc`, and the caller has to free
        // them.
        let words = unsafe {
            let words = std::slice::from_raw_parts(argument.codes, count).to_vec();
            libc::free(argument.codes.cast());
            words
        };
        Ok((words, argument.index))
    }

    fn pmu(&self, number: c_int) -> Option<PmuInfo> {
        // SAFETY: the structure has only numbers and pointers, which may be 0.
        let mut info: PmuInfo = unsafe { std::mem::zeroed() };
        info.size = size_of::<PmuInfo>();
        // SAFETY: the library writes at most `info.size` bytes, which are all of `info`.
        (unsafe { (self.pmu_info)(number, &raw mut info) } == SUCCESS).then_some(info)
    }

    fn event(&self, index: c_int) -> Option<EventInfo> {
        // SAFETY: the structure has only numbers and pointers, which may be 0.
        let mut info: EventInfo = unsafe { std::mem::zeroed() };
        info.size = size_of::<EventInfo>();
        // SAFETY: the library writes at most `info.size` bytes, which are all of `info`.
        (unsafe { (self.event_info)(index, OS_NONE, &raw mut info) } == SUCCESS).then_some(info)
    }

    fn attribute(&self, event: c_int, number: c_int) -> Option<AttributeInfo> {
        // SAFETY: the structure has only numbers and pointers, which may be 0.
        let mut info: AttributeInfo = unsafe { std::mem::zeroed() };
        info.size = size_of::<AttributeInfo>();
        // SAFETY: the library writes at most `info.size` bytes, which are all of `info`.
        let error = unsafe { (self.attribute_info)(event, number, OS_NONE, &raw mut info) };
        (error == SUCCESS).then_some(info)
    }

    /// Calls `show` for every event of this machine's cores.
    fn each_event(&self, mut show: impl FnMut(&EventInfo)) {
        for pmu in (0..PMUS).filter_map(|number| self.pmu(number)) {
            if pmu.flags & 1 == 0 || pmu.kind != TYPE_CORE {
                continue;
            }
            let mut index = pmu.first_event;
            while index >= 0 {
                if let Some(event) = self.event(index) {
                    show(&event);
                }
                // SAFETY: the function only returns a number, and accepts any.
                index = unsafe { (self.next_event)(index) };
            }
        }
    }

    /// Adds the event with each of its unit masks, or alone if it has none.
    fn describe(&self, event: &EventInfo, all: &mut Vec<Described>) {
        let (name, before) = (text(event.name), all.len());
        for attribute in (0..event.attributes).filter_map(|n| self.attribute(event.index, n)) {
            if attribute.kind == ATTRIBUTE_UNIT_MASK {
                let name = format!("{name}:{}", text(attribute.name));
                let description = format!("{}: {}", text(event.desc), text(attribute.desc));
                all.push(Described { name, description });
            }
        }
        if all.len() == before {
            all.push(Described { name, description: text(event.desc) });
        }
    }
}
