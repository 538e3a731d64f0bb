// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs a small part of the simulator's `--all` as tests, for `cargo xtask mutants`.
#![cfg(sim)]

use sim::growth::{SIZES, measure};
use sim::run::campaign;
use sim::search::{scopes, search};

#[test]
fn seeds_break_no_rule() {
    let result = campaign(0, 300, 10_000, 1);
    assert_eq!(result.violations.first(), None);
    assert!(result.readings > 100_000, "{} readings", result.readings);
}

#[test]
fn one_preemption_breaks_no_rule() {
    for scope in scopes(false) {
        assert_eq!(search(&scope, Some(1)).violation, None, "{}", scope.name);
    }
}

#[test]
fn cost_does_not_grow() {
    let costs = SIZES.map(|size| measure(size).expect("no rule is broken"));
    assert!(costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
}
