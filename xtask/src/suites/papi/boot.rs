// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs PAPI's tests in one boot.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::verdict::{self, Verdict};
use crate::artefacts::papi::{Component, Papi};
use crate::machine::{self, Spec, Status};
use crate::tools::{cache, sh};

/// How long one test may run: some compute for minutes, and emulation on a busy machine is slow.
/// Unit: seconds.
const TEST_SECONDS: u64 = 3_000;
/// How long all tests of a group may run.
const GROUP_TIMEOUT: Duration = Duration::from_secs(7_200);

/// The number of programs that compete with the test for the CPUs. So host and guest preempt and
/// migrate the counted threads.
const LOAD: &str = "6";

/// The group whose counts must be exact under load, and while vCPUs are moved.
pub const EXACT: &str = "exact under load";
/// A group that runs while vCPUs are moved.
pub const DISTURBED: &str = "while vCPUs are moved";
/// The test in it that is not PAPI's: `papi-shim/papi/overflow_exact.c`.
const OVERFLOW_EXACT: &str = "overflow_exact";

/// Where tests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the guest on Xen, with our module.
    Guest,
    /// On Linux without a hypervisor, on the same machine.
    Native,
}

impl Place {
    /// Returns the topology, whose name is also used as a word for the place.
    pub fn topology(self) -> &'static str {
        match self {
            Self::Guest => "pv",
            Self::Native => "native",
        }
    }
}

/// Returns the directory in which the tests' outputs are kept.
pub fn out(component: Component) -> Result<PathBuf> {
    Ok(cache::root()?.join("papi-out").join(component.name()))
}

impl Papi {
    /// Runs tests in one boot. Returns the verdict of each test, and of the group if it failed as a
    /// whole.
    pub fn run<'a>(
        &self,
        place: Place,
        group: &'a str,
        tests: &[&'a str],
    ) -> Result<Vec<(&'a str, Verdict)>> {
        let out = out(self.component)?.join(place.topology()).join(group.replace(' ', "-"));
        let load = if place == Place::Guest && group == EXACT { LOAD } else { "0" };
        let mut spec = self.spec(place, load, tests)?;
        if place == Place::Guest && [EXACT, DISTURBED].contains(&group) {
            spec.command.insert(0, "/work/disturb".into());
            spec.add_program("vm-tests", "disturb")?;
        }
        spec.keep_out(&out)?;
        let outcome = machine::run(&spec)?;
        for (name, log) in cache::files(&out)? {
            if let Some((test, _)) = name.rsplit_once(".log.") {
                machine::repeated(format!("PAPI's {test}"), log);
            }
        }
        let of = |test: &&'a str| (*test, verdict::verdict(self.component, test, &out));
        let mut verdicts: Vec<_> = tests.iter().map(of).collect();
        if outcome.status != Status::Exited(0) {
            let reason = outcome.explain().unwrap_or_else(|| format!("{:?}", outcome.status));
            verdicts.push((group, Verdict::Failed(reason)));
        }
        Ok(verdicts)
    }

    fn spec(&self, place: Place, load: &str, tests: &[&str]) -> Result<Spec> {
        let seconds = TEST_SECONDS.to_string();
        let mut command = vec!["/work/run.sh", &seconds, load];
        command.extend(tests);
        let mut spec = Spec::new(place.topology(), command)?;
        spec.module = place == Place::Guest;
        if place == Place::Guest {
            // PAPI uses some events that are not architectural.
            spec = spec.driver("events=all")?;
        }
        spec.files.push((sh::project().join("papi-shim/papi/run.sh"), "/work/run.sh".into()));
        spec.files.push((self.built.join("ctests"), "/work/papi/ctests".into()));
        for library in self.libraries()? {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let place = if library.is_dir() { String::new() } else { format!("/{name}") };
            spec.files.push((library, format!("/work/papi/lib{place}")));
        }
        if tests.contains(&OVERFLOW_EXACT) {
            let program = self.compile(OVERFLOW_EXACT)?;
            spec.files.push((program, format!("/work/papi/ctests/{OVERFLOW_EXACT}")));
        }
        if let Some(library) = self.preloaded()? {
            spec.files.push((library, "/work/papi/preloaded.so".into()));
        }
        spec.stream = true;
        spec.timeout = GROUP_TIMEOUT;
        Ok(spec)
    }
}
