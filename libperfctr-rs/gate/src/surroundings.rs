// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gives programs the same surroundings, which are their addresses and their environment, in each
//! run, so that they execute the same instructions.
//!
//! Two things that differ between runs decide how much a program executes although it does nothing
//! else: the addresses of its memory, and its environment, whose size moves the stack and which C
//! libraries search. The environment also carries the seeds of interpreters' hash tables.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use nix::sys::personality::{self, Persona};
use serde::Serialize;

use crate::error::Error;

/// The variables that programs get in each run.
const SET: [(&str, &str); 3] = [("LC_ALL", "C"), ("PERL_HASH_SEED", "0"), ("PYTHONHASHSEED", "0")];
/// The variable that programs get as it is: without it they would not find others.
const KEPT: &str = "PATH";

/// A variable's name and value.
pub type Variable = (OsString, OsString);

/// Parses `NAME=VALUE`, or `NAME` for the variable as it is.
///
/// # Errors
///
/// A text that says what is wrong.
pub fn variable(text: OsString) -> Result<Variable, String> {
    let bytes = text.as_bytes();
    let is_empty = bytes.is_empty() || bytes.starts_with(b"=");
    match bytes.iter().position(|&byte| byte == b'=') {
        _ if is_empty => Err("a variable has a name".to_owned()),
        Some(at) => {
            let [name, value] = [&bytes[..at], &bytes[at + 1..]];
            Ok((OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec())))
        }
        None => match env::var_os(&text) {
            Some(value) => Ok((text, value)),
            None => Err("it is not set here; NAME=VALUE sets it".to_owned()),
        },
    }
}

/// What a program finds the same in each run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Fixed {
    random_addresses: bool,
    /// The environment: `NAME=VALUE`.
    environment: Vec<String>,
    #[serde(skip)]
    variables: Vec<Variable>,
}

impl Fixed {
    fn new(variables: Vec<Variable>) -> Self {
        let words = |(name, value): &Variable| format!("{}={}", name.display(), value.display());
        let environment = variables.iter().map(words).collect();
        Self { random_addresses: false, environment, variables }
    }

    /// Returns the environment of programs, which the caller gives them.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// Returns a text for people that names what is fixed.
    pub fn words(&self) -> String {
        let names = self.environment.iter().filter_map(|variable| variable.split('=').next());
        let names: Vec<&str> = names.collect();
        format!("the same in each run: addresses, environment ({})", names.join(" "))
    }
}

/// Has the programs that this one starts from now on get addresses that are not random. Returns
/// what they find the same in each run, with these variables passed on.
///
/// # Errors
///
/// [`Error::Addresses`].
pub fn make_repeatable(passed: &[Variable]) -> Result<Fixed, Error> {
    let old = personality::get();
    let fixed = old.and_then(|old| personality::set(old | Persona::ADDR_NO_RANDOMIZE));
    fixed.map_err(|errno| Error::Addresses(errno.into()))?;
    Ok(Fixed::new(environment(passed, env::var_os(KEPT))))
}

/// Returns the whole environment of programs, sorted by name.
fn environment(passed: &[Variable], kept: Option<OsString>) -> Vec<Variable> {
    let set = SET.map(|(name, value)| (name.into(), value.into()));
    let kept = kept.map(|value| (KEPT.into(), value));
    let all: std::collections::BTreeMap<OsString, OsString> =
        set.into_iter().chain(kept).chain(passed.iter().cloned()).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_what_is_set_kept_and_passed() {
        let words = |passed: &[Variable], path: Option<&str>| {
            let all = environment(passed, path.map(OsString::from));
            let word = |(name, value): Variable| (name.into_string(), value.into_string());
            all.into_iter()
                .map(word)
                .map(|(name, value)| format!("{}={}", name.unwrap(), value.unwrap()))
                .collect::<Vec<_>>()
        };
        let path = words(&[], Some("/bin"));
        assert_eq!(path, ["LC_ALL=C", "PATH=/bin", "PERL_HASH_SEED=0", "PYTHONHASHSEED=0"]);
        let passed = words(&[variable("LC_ALL=de_DE=x".into()).unwrap()], None);
        assert_eq!((&*passed[0], passed.len()), ("LC_ALL=de_DE=x", SET.len()));
    }

    #[test]
    fn a_variable_is_passed_on_only_if_there_is_one() {
        assert_eq!(variable("A=".into()), Ok(("A".into(), "".into())));
        assert_eq!(variable("PATH".into()).unwrap().1, env::var_os("PATH").unwrap());
        for wrong in ["", "=b", "PERFCTR_NO_SUCH_VARIABLE"] {
            assert!(variable(wrong.into()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_fixed_is_named_without_its_values() {
        let fixed = Fixed::new(vec![("A".into(), "1=2".into()), ("B".into(), "".into())]);
        assert_eq!(fixed.environment, ["A=1=2", "B="]);
        let words = fixed.words();
        assert_eq!(words, "the same in each run: addresses, environment (A B)");
    }
}
