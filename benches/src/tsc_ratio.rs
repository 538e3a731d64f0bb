// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures how long the core takes to read a thread's TSC, compared with a bare RDTSC. The ratio
//! is that of one run, so it has a meaning on any machine.
//!
//! The pages are this program's own, as the kernel and the hypervisor would publish them.

#![expect(unsafe_code, reason = "RDTSC is an intrinsic function")]

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use perfctr::rdpmc::Hardware;
use shared_abi::read::{Counters, read_thread};
use shared_abi::thread_page::{THREAD_ACTIVE, THREAD_DIRECT, THREAD_TSC};
use shared_abi::vcpu_page::VCPU_DIRECT;
use shared_abi::{ThreadPage, VcpuPage};

/// The number of readings in a row.
const READS: u32 = 10_000;
/// The number of rows of each kind, in turn; enough that some are not interrupted.
const ROWS: u32 = 1_000;

fn main() {
    let (thread, vcpu) = (ThreadPage::default(), VcpuPage::default());
    thread.state.store(THREAD_ACTIVE | THREAD_DIRECT | THREAD_TSC, Relaxed);
    vcpu.flags.store(VCPU_DIRECT, Relaxed);
    let pages = black_box((&thread, &vcpu));
    let logical = || {
        let page = |n| (n == 0).then_some(pages.1);
        black_box(read_thread(pages.0, page, &Hardware, &mut []).ok());
    };
    let fenced = || {
        black_box(Hardware.clock());
    };
    let bare = || {
        // SAFETY: reading the time-stamp counter has no effect.
        black_box(unsafe { std::arch::x86_64::_rdtsc() });
    };
    let mut least = [Duration::MAX; 3];
    for _ in 0..ROWS {
        for (least, took) in least.iter_mut().zip([row(logical), row(fenced), row(bare)]) {
            *least = took.min(*least);
        }
    }
    let [logical, fenced, bare] = least.map(|row| row.as_secs_f64() / f64::from(READS) * 1e9);
    println!("{:<40}{logical:>10.1} ns", "a thread's TSC");
    println!("{:<40}{fenced:>10.1} ns, ratio {:.2}", "LFENCE and RDTSC", logical / fenced);
    println!("{:<40}{bare:>10.1} ns, ratio {:.2}", "RDTSC", logical / bare);
}

fn row(read: impl Fn()) -> Duration {
    let start = Instant::now();
    for _ in 0..READS {
        read();
    }
    start.elapsed()
}
