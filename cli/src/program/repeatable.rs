// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gives programs the same addresses and the same environment in each run, so that they execute the
//! same instructions.
#![expect(unsafe_code, reason = "changes this program's environment")]

use std::env;

use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser};
use perfctr_gate::surroundings::{self, Fixed, Variable};

/// Returns the parser of variables that the caller passes on.
pub fn parser() -> impl TypedValueParser<Value = Variable> {
    OsStringValueParser::new().try_map(surroundings::variable)
}

/// Gives the programs that this one starts from now on the same addresses and the same environment
/// in each run. It has to be called before this program has a second thread.
pub fn fix(passed: &[Variable]) -> Result<Fixed> {
    let fixed = surroundings::make_repeatable(passed)?;
    // SAFETY: there is no other thread that could read the environment meanwhile.
    unsafe {
        for (name, _) in env::vars_os() {
            env::remove_var(name);
        }
        for (name, value) in fixed.variables() {
            env::set_var(name, value);
        }
    }
    Ok(fixed)
}
