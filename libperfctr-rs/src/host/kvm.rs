// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Access to the driver in KVM's module by the module's parameters.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use shared_abi::hypercall::HvQuery;
use zerocopy::FromBytes;

use super::{Domain, Driver};
use crate::error::Error;

const PARAMETERS: &str = "/sys/module/kvm/parameters";
/// The parameter that turns the driver on.  A KVM without the driver does not have it.
pub(super) const OPTION: &str = "/sys/module/kvm/parameters/perfctr";

/// Where the parameters are.
#[derive(Debug)]
pub(super) struct Kvm(PathBuf);

impl Kvm {
    /// Finds the parameters.  Returns `None` if no module of KVM's contains the driver.
    pub(super) fn find() -> Option<Self> {
        Path::new(OPTION).exists().then(|| Self(PARAMETERS.into()))
    }

    fn read(&self, name: &str) -> io::Result<String> {
        fs::read_to_string(self.0.join(name))
    }

    /// Asks the driver what it can do.  The parameter has one 64-bit word of the answer in each
    /// line.
    pub(super) fn driver(&self) -> Result<Driver, Error> {
        let text = self.read("perfctr_query").map_err(Error::kernel("ask KVM's driver"))?;
        let words = text.lines().map(str::parse::<u64>).collect::<Result<Vec<_>, _>>();
        let words = words.map_err(|_| Error::Malformed("answer of KVM's driver"))?;
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        let query = HvQuery::read_from_bytes(&bytes);
        Driver::new(&query.map_err(|_| Error::Malformed("answer of KVM's driver"))?)
    }

    pub(super) fn allow(&self, id: u32, allowed: bool) -> Result<(), Error> {
        let name = if allowed { "perfctr_allow" } else { "perfctr_forbid" };
        let written = fs::write(self.0.join(name), id.to_string());
        written.map_err(Error::kernel("change what a virtual machine may do"))
    }

    /// Lists the virtual machines.  The parameter has a process and 0 or 1 in each line.
    pub(super) fn domains(&self) -> Result<Vec<Domain>, Error> {
        let text = self.read("perfctr_domains").map_err(Error::kernel("list virtual machines"))?;
        let domain = |line: &str| {
            let (id, allowed) = line.split_once(' ')?;
            let allowed = match allowed {
                "0" => false,
                "1" => true,
                _ => return None,
            };
            Some(Domain { id: id.parse().ok()?, allowed })
        };
        let domains: Option<_> = text.lines().map(domain).collect();
        domains.ok_or(Error::Malformed("list of virtual machines"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_abi::WireCaps;
    use shared_abi::caps::{CAPS_SAMPLING, VENDOR_AMD};
    use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
    use zerocopy::IntoBytes;

    /// Parameters as files of a test.
    struct Files(Kvm);

    impl Files {
        fn new(test: &str) -> Self {
            let name = format!("perfctr-{test}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            fs::create_dir_all(&directory).unwrap();
            Self(Kvm(directory))
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.0.join(name), text).unwrap();
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
            fs::remove_dir_all(&self.0.0).unwrap();
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
        for text in ["1234\n", "1234 2\n", "-1 1\n", "1234 1\nx 0\n"] {
            files.write("perfctr_domains", text);
            assert!(matches!(files.0.domains(), Err(Error::Malformed(_))), "{text:?}");
        }
    }

    #[test]
    fn machines_are_listed_allowed_and_forbidden_by_their_processes() {
        let files = Files::new("domains");
        files.write("perfctr_domains", "");
        assert_eq!(files.0.domains().unwrap(), []);
        files.write("perfctr_domains", "1234 1\n7 0\n");
        let expected = [(1234, true), (7, false)].map(|(id, allowed)| Domain { id, allowed });
        assert_eq!(files.0.domains().unwrap(), expected);
        files.0.allow(1234, true).unwrap();
        files.0.allow(7, false).unwrap();
        let read = |name| files.0.read(name).unwrap();
        assert_eq!([read("perfctr_allow"), read("perfctr_forbid")], ["1234", "7"]);
    }
}
