// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Access to the driver in KVM's module by the module's parameters.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use shared_abi::hypercall::HvQuery;
use zerocopy::{FromBytes, IntoBytes};

use super::{Domain, Driver, LISTING, Limits};
use crate::error::Error;

const PARAMETERS: &str = "/sys/module/kvm/parameters";
/// The parameter that turns the driver on. A KVM without the driver does not have it.
pub(super) const OPTION: &str = "/sys/module/kvm/parameters/perfctr";

/// The file in which the driver lists machines.
const MACHINES: &str = "/sys/kernel/perfctr_domains";

/// The paths of the driver's files.
#[derive(Debug)]
pub(super) struct Kvm {
    parameters: PathBuf,
    machines: PathBuf,
}

impl Kvm {
    /// Finds the parameters. Returns `None` if no module of KVM's contains the driver.
    pub(super) fn find() -> Option<Self> {
        let files = || Self { parameters: PARAMETERS.into(), machines: MACHINES.into() };
        Path::new(OPTION).exists().then(files)
    }

    fn read(&self, name: &str) -> io::Result<String> {
        fs::read_to_string(self.parameters.join(name))
    }

    /// Asks the driver what it can do. The parameter has one 64-bit word of the answer in each
    /// line.
    pub(super) fn driver(&self) -> Result<Driver, Error> {
        let text = self.read("perfctr_query").map_err(Error::kernel("ask KVM's driver"))?;
        let words = text.lines().map(str::parse::<u64>).collect::<Result<Vec<_>, _>>();
        let words = words.map_err(|_| Error::Malformed("answer of KVM's driver"))?;
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        let query = HvQuery::read_from_bytes(&bytes);
        Driver::new(&query.map_err(|_| Error::Malformed("answer of KVM's driver"))?)
    }

    /// Writes the process and its limits, or the process alone if it has none.
    pub(super) fn allow_within(&self, id: u32, limits: Limits) -> Result<(), Error> {
        let Limits { counters, overflows_per_ms } = limits;
        self.write(
            "perfctr_allow",
            &match limits == Limits::default() {
                true => id.to_string(),
                false => format!("{id} {counters} {overflows_per_ms}"),
            },
        )
    }

    pub(super) fn forbid(&self, id: u32) -> Result<(), Error> {
        self.write("perfctr_forbid", &id.to_string())
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let written = fs::write(self.parameters.join(name), text);
        written.map_err(Error::kernel("change what a virtual machine may do"))
    }

    /// Lists the virtual machines. A read of the file at an offset gives the machines of processes
    /// from that number on.
    pub(super) fn domains(&self) -> Result<Vec<Domain>, Error> {
        let file = File::open(&self.machines).map_err(Error::kernel(LISTING))?;
        Domain::all(|answer| {
            let first = answer.first;
            file.read_exact_at(answer.as_mut_bytes(), first.into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_abi::WireCaps;
    use shared_abi::caps::{CAPS_SAMPLING, VENDOR_AMD};
    use shared_abi::hypercall::{DOMAINS_MAX, HvDomains};
    use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
    use zerocopy::FromZeros;

    /// The driver's files, in a directory that a test has made.
    struct Files(Kvm);

    impl Files {
        fn new(test: &str) -> Self {
            let name = format!("perfctr-{test}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            fs::create_dir_all(&directory).unwrap();
            Self(Kvm { machines: directory.join("machines"), parameters: directory })
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.parameters.join(name), text).unwrap();
        }

        /// Writes the driver's answer to a request for the machines from this number on.
        fn list(&self, first: u32, all: &[(u32, u32)]) {
            let mut answer = HvDomains { count: all.len() as u32, ..HvDomains::new_zeroed() };
            for (domain, &(domid, enabled)) in answer.domain.iter_mut().zip(all) {
                (domain.domid, domain.enabled) = (domid, enabled);
                (domain.counters_max, domain.overflows_per_ms) = (enabled, domid % 5);
            }
            let mut how = File::options();
            how.create(true).write(true).truncate(false);
            let file = how.open(&self.0.machines).unwrap();
            file.write_all_at(answer.as_bytes(), first.into()).unwrap();
        }

        fn query(&self, query: &HvQuery) {
            let words = query.as_bytes().chunks_exact(8);
            let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
            let lines = words.map(|bytes| format!("{}\n", word(bytes)));
            self.write("perfctr_query", &lines.collect::<String>());
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0.parameters).unwrap();
        }
    }

    fn query() -> HvQuery {
        HvQuery {
            abi_major: ABI_MAJOR.into(),
            abi_minor: ABI_MINOR.into(),
            caps: WireCaps {
                vendor: VENDOR_AMD,
                features: CAPS_SAMPLING,
                general: 6,
                general_width: 48,
                ..WireCaps::default()
            },
            ..HvQuery::default()
        }
    }

    #[test]
    fn the_driver_is_what_the_parameter_says() {
        let files = Files::new("query");
        files.query(&query());
        let driver = files.0.driver().unwrap();
        assert_eq!(driver.abi, (ABI_MAJOR.into(), ABI_MINOR.into()));
        assert_eq!((driver.caps.general, driver.caps.fixed), (6, 0));
        assert!(driver.caps.can(CAPS_SAMPLING) && !driver.allows);
    }

    #[test]
    fn another_version_and_nonsense_are_refused() {
        let files = Files::new("nonsense");
        files.query(&HvQuery { abi_major: 7, ..query() });
        assert!(matches!(files.0.driver(), Err(Error::Version { found: 7, .. })));
        files.query(&HvQuery { caps: WireCaps { general: 99, ..query().caps }, ..query() });
        assert!(matches!(files.0.driver(), Err(Error::Malformed("capabilities"))));
        for text in ["", "1\n2\n", "one\n"] {
            files.write("perfctr_query", text);
            assert!(matches!(files.0.driver(), Err(Error::Malformed(_))), "{text:?}");
        }
    }

    #[test]
    fn machines_are_listed_allowed_and_forbidden_by_their_processes() {
        let files = Files::new("domains");
        files.list(0, &[]);
        assert_eq!(files.0.domains().unwrap(), []);
        files.list(0, &[(7, 0), (1234, 1)]);
        let none = Limits::default();
        let limits = |counters, overflows_per_ms| Limits { counters, overflows_per_ms };
        let expected = [Domain::new(7, false, limits(0, 2)), Domain::new(1234, true, limits(1, 4))];
        assert_eq!(files.0.domains().unwrap(), expected);
        for (counters, overflows, written) in [(2, 9, "7 2 9"), (0, 9, "7 0 9"), (2, 0, "7 2 0")] {
            files.0.allow_within(7, limits(counters, overflows)).unwrap();
            assert_eq!(files.0.read("perfctr_allow").unwrap(), written);
        }
        files.0.allow_within(1234, none).unwrap();
        files.0.forbid(7).unwrap();
        let read = |name| files.0.read(name).unwrap();
        assert_eq!([read("perfctr_allow"), read("perfctr_forbid")], ["1234", "7"]);
    }

    #[test]
    fn any_number_of_machines_is_listed() {
        let files = Files::new("many");
        let all: Vec<_> = (1..=400).map(|n| (n * 1_000, u32::from(n % 3 == 0))).collect();
        let mut first = 0;
        for answer in all.chunks(DOMAINS_MAX) {
            files.list(first, answer);
            first = answer.last().unwrap().0 + 1;
        }
        let listed = files.0.domains().unwrap();
        assert!(listed.iter().map(|d| (d.id, d.allowed.into())).eq(all), "{listed:?}");
    }

    #[test]
    fn a_list_that_does_not_go_on_is_refused() {
        let files = Files::new("stuck");
        let malformed = || matches!(files.0.domains(), Err(Error::Malformed(_)));
        let most = (0..DOMAINS_MAX as u32).map(|n| (1_000 + n, 1)).collect::<Vec<_>>();
        files.list(0, &most);
        files.list(most.last().unwrap().0 + 1, &[(5, 1)]);
        assert!(malformed(), "a number that was not asked for");
        files.list(0, &[(7, 1), (7, 1)]);
        assert!(malformed(), "a number twice");
        let answer = HvDomains { count: DOMAINS_MAX as u32 + 1, ..HvDomains::new_zeroed() };
        fs::write(&files.0.machines, answer.as_bytes()).unwrap();
        assert!(malformed(), "more than there is room for");
        fs::write(&files.0.machines, &answer.as_bytes()[1..]).unwrap();
        assert!(matches!(files.0.domains(), Err(Error::Kernel { .. })), "too short");
    }
}
