// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that programs get the same addresses and the same environment in each run, whatever the
//! caller's environment is.

use serde_json::Value;

use crate::run::{Printed, file, output_of, perfctr, run};

/// Prints the environment, and how addresses are chosen (personality(2)).
const LOOK: [&str; 3] = ["sh", "-c", "exec cat /proc/self/environ /proc/self/personality"];
/// ADDR_NO_RANDOMIZE.
const NOT_RANDOM: &str = "00040000";

fn look(verb: &str, options: &[&str]) -> Printed {
    let mut command = perfctr([verb]);
    command.env("PATH", "/usr/bin:/bin").env("NOISE", "n".repeat(99)).env("KEPT", "a=b");
    output_of(command.args(options).arg("--").args(LOOK))
}

#[test]
fn programs_find_the_same_in_each_run() {
    let baseline = file("surroundings.json");
    let gate = ["-r", "1", "--env", "KEPT", "--env", "ADDED=1", "-b", baseline.to_str().unwrap()];
    let stat = ["--repeatable", "--env", "KEPT", "--env", "ADDED=1", "-o", "/dev/null"];
    for (verb, options) in [("gate", &gate[..]), ("stat", &stat)] {
        let printed = look(verb, options);
        assert_eq!(printed.status, 0, "{printed:?}");
        let mut found: Vec<&str> = printed.out.lines().next().unwrap().split('\0').collect();
        assert_eq!(found.pop(), Some(NOT_RANDOM), "{verb}");
        // The shell adds its own.
        found.retain(|variable| {
            !["PWD", "_", "SHLVL", "OLDPWD"]
                .iter()
                .any(|&own| variable.split('=').next() == Some(own))
        });
        found.sort_unstable();
        let expected = [
            "ADDED=1",
            "KEPT=a=b",
            "LC_ALL=C",
            "PATH=/usr/bin:/bin",
            "PERL_HASH_SEED=0",
            "PYTHONHASHSEED=0",
        ];
        assert_eq!(found, expected, "{verb}");
    }
    let usual = look("stat", &["-o", "/dev/null"]);
    assert!(usual.out.contains("NOISE=nnn"), "{usual:?}");
}

#[test]
fn the_output_names_what_is_fixed() {
    let table = run("stat --repeatable true");
    let words = "the same in each run: addresses, environment (LC_ALL PATH PERL_HASH_SEED";
    assert!(table.err.contains(words), "{table:?}");
    let fixed = |options: &str| -> Value {
        let printed = run(&format!("stat --json {options}true"));
        let mut document: Value = serde_json::from_str(&printed.err).unwrap();
        assert_eq!(document["format"], "perfctr stat");
        assert_eq!(document["version"], 1);
        document["repeatable"].take()
    };
    let document = fixed("--repeatable ");
    assert_eq!(document["random_addresses"], Value::Bool(false), "{document}");
    assert_eq!(document["environment"][0], "LC_ALL=C", "{document}");
    assert!(fixed("").is_null());
}

#[test]
fn variables_are_passed_on_only_where_others_are_not() {
    for line in ["stat --env PATH true", "stat --repeatable -p 1", "gate --env =1 true"] {
        assert_eq!(run(line).status, 2, "{line}");
    }
}
