// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Puts what a host's domains execute themselves beside what the hypervisor executes for them.

use anyhow::{Context, Result, ensure};

use super::Key;
use super::symbols::Named;
use super::table::{lines, ordered, rows, share};
use crate::profile::{Layer, Profile};

/// Returns the columns of the table, which are these if there are any.
pub fn columns(keys: &[Key], profile: &Profile) -> Result<Vec<Key>> {
    let host = profile.host.as_ref().context(
        "this is no profile of a host, as `perfctr record --host` writes it, so nobody knows what \
         the hypervisor has executed",
    )?;
    let keys = if keys.is_empty() { &[Key::Domain, Key::Symbol] } else { keys };
    let is_of_code = |key: &Key| matches!(key, Key::Module | Key::Symbol | Key::Line);
    ensure!(
        host.at_guests || !keys.iter().any(is_of_code),
        "the profile does not say for which code of a domain the hypervisor executed: `perfctr \
         record --host --at-guests` notes that, and `--sort domain` does not need it"
    );
    Key::columns(keys, profile)
}

/// Returns the table. Rows with the most samples of both kinds come first.
pub fn table(profile: &Profile, names: &[Named], keys: &[Key]) -> String {
    let by_layer = rows(profile, names, &[keys, &[Key::Layer]].concat());
    let all = profile.samples();
    let row = |(row, both): (Vec<String>, u64)| {
        let of_hypervisor = [&row[..], &[Layer::Hypervisor.name().to_owned()]].concat();
        let for_it = by_layer.get(&of_hypervisor).copied().unwrap_or(0);
        let numbers = format!("{:>10} {for_it:>10} {}", both - for_it, share(both, all));
        (row, numbers)
    };
    let rows: Vec<_> = ordered(profile, names, keys).into_iter().map(row).collect();
    let numbers = format!("{:>10} {:>10} {:>10} {:>7}", "itself", "for it", "both", "%");
    lines(profile, &Key::headings(keys), &numbers, &rows)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{of_host, profile};
    use super::super::{symbols, table::table as flat};
    use super::*;
    use crate::profile::{Stack, Thread};

    /// Returns the profile of a host whose samples of the hypervisor are where its guests were
    /// left, and of a physical CPU that has nothing to do.
    fn at_guests() -> (Profile, Vec<Named>) {
        let (mut profile, _) = of_host();
        profile.host.as_mut().unwrap().at_guests = true;
        for n in [1, 2] {
            let mut module = profile.modules[n].clone();
            module.layer = Some(Layer::Hypervisor);
            profile.modules.push(module);
            let mut frame = profile.frames[n];
            frame.module = Some(profile.modules.len() as u32 - 1);
            profile.frames.push(frame);
        }
        profile.stacks[0].frames = vec![3];
        profile.stacks[2].frames = vec![4];
        profile.threads.push(Thread {
            tid: 0,
            pid: 0x7fff,
            name: "idle".into(),
            count: 0,
            task: None,
        });
        profile.stacks.push(Stack {
            thread: 2,
            cpu: Some(0),
            samples: 5,
            frames: vec![0],
            ..Stack::default()
        });
        profile.check().unwrap();
        let names = symbols::name(&profile, |why| panic!("{why}"));
        (profile, names)
    }

    #[test]
    fn each_function_has_what_it_executes_and_what_is_executed_for_it() {
        let (profile, names) = at_guests();
        let keys = columns(&[], &profile).unwrap();
        let text = table(&profile, &names, &keys);
        let rows: Vec<&str> = text.lines().collect();
        let expected = [
            "15 samples of 3 vCPUs, one every 10000 cycles, from xen",
            "5 more were missed",
            "    itself     for it       both       %  domain    symbol",
            "         2          4          6   40.00  Domain-0  do_idle",
            "         0          5          5   33.33  idle      schedule",
            "         3          1          4   26.67  domain 3  [user mode of domain 3]",
        ];
        assert_eq!(rows, expected);
        let both = flat(&profile, &names, &keys);
        assert!(both.contains("         6   40.00  Domain-0  do_idle\n"), "{both}");
    }

    #[test]
    fn domains_are_told_apart_without_the_places_of_guests() {
        let (profile, names) = of_host();
        let keys = columns(&[Key::Domain], &profile).unwrap();
        let text = table(&profile, &names, &keys);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        let expected = [
            "    itself     for it       both       %  domain",
            "         2          4          6   60.00  Domain-0",
            "         3          1          4   40.00  domain 3",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn code_has_no_causes_if_they_were_not_recorded() {
        let (host, _) = of_host();
        for keys in [&[][..], &[Key::Domain, Key::Module], &[Key::Line]] {
            let error = columns(keys, &host).unwrap_err().to_string();
            assert!(error.contains("`perfctr record --host --at-guests` notes that"), "{error}");
        }
        let error = columns(&[Key::Symbol], &profile().0).unwrap_err().to_string();
        assert!(error.starts_with("this is no profile of a host"), "{error}");
    }
}
