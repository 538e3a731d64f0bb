// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the same tests in a PVH tenant, whose vCPUs the control domain moves.

use std::process::ExitCode;

use anyhow::Result;
use vm_tests::in_tenant::{Moves, Tests};
use vm_tests::module;
use vm_tests::toolstack::{Kind, Tenant, Tsc, Wanted, live, mount_statistics};

use crate::{Machine, PCPUS, SEED, SWITCHES_MIN, counted, place, sampled, wide};

const VCPUS: usize = 2;

/// The tests of the tenant.
const TESTS: Tests<fn(&Machine) -> Result<()>> = Tests {
    at_rest: &[
        (
            "samples of the kernel are where it was, also with interrupts disabled",
            place::of_the_kernel,
        ),
        ("a limit of overflows is kept", sampled::limited),
    ],
    moved: &[
        ("threads count exactly", counted::threads),
        ("threads with counters of their own count exactly beside", counted::with_threads_counters),
        ("events take turns, and say so", counted::in_turns),
        ("who comes where counters do not suffice is refused, or waits", counted::without_room),
        ("what both modes count is what each counts", counted::of_both_modes),
        ("CPUs count what threads do", wide::equal_to_threads),
        ("CPUs count what threads do until they are unplugged", wide::equal_until_unplugged),
        ("CPUs count what users do who count themselves", wide::equal_to_users),
        ("every period is delivered, in its own thread", sampled::threads_merged),
    ],
    saved: &[],
};

/// Runs in the control domain.
pub fn control() -> Result<ExitCode> {
    let wanted = Wanted::usual(Kind::Pvh, "perf", VCPUS, Tsc::Native, "tenant");
    let moves = Moves { pcpus: PCPUS, seed: SEED, switches_min: SWITCHES_MIN };
    TESTS.control(&wanted, moves, Tenant::receive)
}

/// Runs in the tenant.
pub fn run() -> Result<ExitCode> {
    run_tests(|| Ok(&TESTS))
}

/// Makes the tests that `choose` returns in a tenant, and ends with the domain. `choose` is called
/// when the kernel's files are there.
pub fn run_tests(
    choose: impl FnOnce() -> Result<&'static Tests<fn(&Machine) -> Result<()>>>,
) -> Result<ExitCode> {
    live(|| {
        mount_statistics()?;
        module::load()?;
        let machine = Machine::new(None)?;
        choose()?.run_in_tenant(|test| test(&machine));
        Ok(())
    })
}
