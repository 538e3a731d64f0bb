// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Fuzz targets: functions that take any bytes, and panic if a promise is broken.
//!
//! The binary of this crate runs them on mutations of a corpus, on any compiler. They take bytes
//! as libFuzzer gives them, so `fuzz_target!(|data: &[u8]| fuzz::hypercall(data))` is all that
//! cargo-fuzz needs to drive them by coverage.

use std::cell::Cell;

use guest_kmod::hal::{Hypervisor, Kernel};
use guest_kmod::publish::published;
use guest_kmod::shown::ShownWords;
use guest_kmod::{Counting, Stats, ThisVcpu, ThreadPmu, Vcpu};
use hv_driver::hypercall::{Request, decode};
use hv_driver::settings::Rate;
use hv_driver::{Driver, Identity, Settings};
use shared_abi::arch::{EVNTSEL_ANY, EVNTSEL_INT, EVNTSEL_PC};
use shared_abi::ioctl::{Control, Sums};
use shared_abi::limits::{MAX_COUNTERS, MAX_SLOTS, READ_ATTEMPTS_MAX};
use shared_abi::read::{Counters, read_thread};
use shared_abi::slot::slots_of;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_REGISTERED};
use shared_abi::{Config, CounterConfig, Errno, ThreadPage, VcpuPage};
use zerocopy::{FromBytes, IntoBytes};

/// A fuzz target.
pub type Target = fn(&[u8]);

/// Every target, with the name of its corpus.
pub const TARGETS: [(&str, Target); 3] =
    [("hypercall", hypercall), ("ioctl", ioctl), ("reader", reader)];

fn driver() -> Driver {
    let word = |text: &str| u32::from_le_bytes(text.as_bytes().try_into().expect("four letters"));
    let cpuid = Identity {
        vendor: ["Genu", "ineI", "ntel"].map(word),
        signature: 0x106a0,
        perfmon: [3 | 4 << 8 | 48 << 16, 0, 0, 3 | 48 << 5],
        ..Identity::NONE
    };
    let rate = Rate { window_tsc: 1_000_000, overflows_max: 50 };
    let settings = Settings { all_events: true, ..Settings::new(rate) };
    Driver::new(&cpuid, &settings).expect("a usable PMU")
}

/// Has a guest make any hypercall: an operation and its argument.
pub fn hypercall(data: &[u8]) {
    let [op, _, argument @ ..] = data else { return };
    let driver = driver();
    match decode(&driver, u32::from(*op), argument) {
        Err(errno) => assert!(errno.to_return() < 0, "an error is negative"),
        Ok(Request::Load(counters) | Request::Show { counters, .. }) => {
            if let Ok(config) = Config::new(&driver.caps, counters) {
                check_config(&driver, &config);
            }
        }
        Ok(_) => (),
    }
}

/// Checks that an accepted configuration is within the guest's rights, and means the same when it
/// is passed on.
fn check_config(driver: &Driver, config: &Config) {
    assert_eq!(config.slots() & !driver.caps.slots(), 0, "a counter that is not the guest's");
    assert_eq!(config.sampling() & !config.slots(), 0);
    for slot in slots_of(config.slots()) {
        let privileged = EVNTSEL_PC | EVNTSEL_INT | EVNTSEL_ANY;
        assert_eq!(config.evntsel(slot) & privileged, 0, "a bit that is not the guest's");
    }
    let mut wire = [CounterConfig::default(); MAX_SLOTS];
    let used = config.encode(&mut wire) as usize;
    assert_eq!(Config::new(&driver.caps, &wire[..used]), Ok(*config));
}

/// A kernel on a hypervisor that decodes requests, and accepts every well-formed one.
struct Agreeable {
    driver: Driver,
    hypercalls: Cell<u32>,
}

impl Counters for Agreeable {
    fn counter(&self, _: u32) -> u64 {
        1_000
    }

    fn clock(&self) -> u64 {
        1_000_000
    }
}

impl Hypervisor for Agreeable {
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.hypercalls.set(self.hypercalls.get() + 1);
        match decode(&self.driver, op, argument)? {
            Request::Load(counters) | Request::Show { counters, .. } => {
                Config::new(&self.driver.caps, counters).map(|_| ()).map_err(|error| error.errno())
            }
            _ => Ok(()),
        }
    }
}

impl Kernel for Agreeable {
    fn frame_of(&self, _: &VcpuPage) -> u64 {
        1
    }
}

/// Has a user pass any two control blocks, one after the other.
pub fn ioctl(data: &[u8]) {
    let kernel = Agreeable { driver: driver(), hypercalls: Cell::new(0) };
    let (vcpu_page, page) = (VcpuPage::default(), ThreadPage::default());
    vcpu_page.flags.store(VCPU_REGISTERED | VCPU_DIRECT, Relaxed);
    let (mut vcpu, stats, counting) = (Vcpu::default(), Stats::default(), Counting::new());
    let mut cpu = ThisVcpu {
        number: 0,
        page: &vcpu_page,
        vcpu: &mut vcpu,
        shown: &ShownWords::default(),
        stats: &stats,
        kernel: &kernel,
    };
    cpu.register(1, 0).expect("a well-formed registration");
    let mut thread = ThreadPmu::new(&page, 1);
    for block in data.chunks(size_of::<Control>()) {
        let mut control = Control::default();
        control.as_mut_bytes()[..block.len()].copy_from_slice(block);
        let (before, hypercalls) = (published(&page), kernel.hypercalls.get());
        let result = thread.control(&page, &mut cpu, &counting, &kernel.driver.caps, &control);
        match result {
            Err(_) => {
                assert_eq!(published(&page), before, "a refusal changes nothing");
                assert_eq!(kernel.hypercalls.get(), hypercalls, "the hypervisor would refuse, too");
            }
            Ok(()) => {
                let counters = &control.counter[..control.counters as usize];
                assert!(Config::new(&kernel.driver.caps, counters).is_ok());
                assert!(thread.read(&cpu, &mut Sums::default()).is_ok());
            }
        }
    }
    thread.stop(&page, &mut cpu, &counting);
    assert!(counting.is_idle());
}

/// Counters that hold the values of the input. Only existing ones may be read.
struct Given(Vec<u64>);

impl Counters for Given {
    fn counter(&self, index: u32) -> u64 {
        self.0.get(index as usize % 8).copied().unwrap_or(u64::MAX)
    }

    fn clock(&self) -> u64 {
        self.0.first().copied().unwrap_or(0)
    }
}

/// Has a hostile kernel publish any pages. A reader has to return, with a result or an error.
pub fn reader(data: &[u8]) {
    let (rest, words) = (data, data.len() / 8);
    let words = <[[u8; 8]]>::ref_from_prefix_with_elems(rest, words);
    let words: Vec<u64> = match words {
        Ok((words, _)) => words.iter().map(|word| u64::from_le_bytes(*word)).collect(),
        Err(_) => return,
    };
    let mut next = words.iter().copied().cycle().take(4 * MAX_COUNTERS + 3 * MAX_SLOTS + 16);
    let mut take = || next.next().unwrap_or(0);
    let (thread, vcpus) = (ThreadPage::default(), [VcpuPage::default(), VcpuPage::default()]);
    thread.state.store(take() as u32, Relaxed);
    thread.vcpu.store(take() as u32, Relaxed);
    thread.counters.store(take() as u32, Relaxed);
    thread.tsc_sum.store(take(), Relaxed);
    thread.tsc_start.store(take(), Relaxed);
    thread.error.store(take() as i32, Relaxed);
    let (mut thread_writes, mut vcpu_writes) = (take(), take());
    let used = take() as usize % (MAX_COUNTERS + 1);
    for slot in &thread.slots {
        slot.slot.store(take() as u32, Relaxed);
        slot.counter_index.store(take() as u32, Relaxed);
        slot.sum.store(take(), Relaxed);
        slot.start.store(take(), Relaxed);
    }
    drop(thread.seq.write(&mut thread_writes));
    for vcpu in &vcpus {
        vcpu.flags.store(take() as u32, Relaxed);
        drop(vcpu.seq.write(&mut vcpu_writes));
        for slot in &vcpu.slots {
            slot.sum.store(take(), Relaxed);
            slot.start.store(take(), Relaxed);
            slot.mask.store(take(), Relaxed);
        }
    }
    let mut counts = [0; MAX_COUNTERS];
    let pages = |number: u32| vcpus.get(number as usize);
    if let Ok(snapshot) = read_thread(&thread, pages, &Given(words), &mut counts[..used]) {
        assert!(snapshot.retries < READ_ATTEMPTS_MAX);
        assert!(used <= thread.counters.load(Relaxed) as usize, "counts that are not there");
    }
}

/// Makes one to eight changes of an input, which `rng` chooses.
pub fn mutate(rng: &mut fastrand::Rng, input: &mut Vec<u8>) {
    const TELLING: [u64; 8] = [0, 1, 2, 18, 24, 1 << 16, 1 << 31, u64::MAX];
    for _ in 0..rng.usize(1..=8) {
        let place = rng.usize(..=input.len());
        match rng.u8(..6) {
            0 if place < input.len() => input[place] ^= 1 << rng.u8(..8),
            1 if place < input.len() => input[place] = rng.u8(..),
            2 | 3 => {
                let value =
                    if rng.bool() { rng.u64(..) } else { *rng.choice(&TELLING).unwrap_or(&0) };
                for (byte, new) in input[place..].iter_mut().zip(value.to_le_bytes()) {
                    *byte = new;
                }
            }
            4 => input.truncate(place),
            _ => input.extend((0..rng.usize(..40)).map(|_| rng.u8(..))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_survive_random_input() {
        let mut rng = fastrand::Rng::with_seed(1);
        for (_, target) in TARGETS {
            for _ in 0..200 {
                let mut input = Vec::new();
                mutate(&mut rng, &mut input);
                target(&input);
            }
        }
    }
}
