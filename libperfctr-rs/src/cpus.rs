// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The list of the CPUs that are online.

use std::{fs, io};

/// Returns the numbers of the CPUs that are online.
///
/// # Errors
///
/// The kernel's list cannot be read.
pub fn online() -> io::Result<Vec<u32>> {
    Ok(cpus_in(&fs::read_to_string("/sys/devices/system/cpu/online")?))
}

/// Parses a list of CPUs like `0-3,8`.
fn cpus_in(list: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            cpus.extend(first..=last);
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_understood() {
        assert_eq!(cpus_in("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpus_in("0-3,5\n"), [0, 1, 2, 3, 5]);
        assert_eq!(cpus_in("0\n"), [0]);
        assert!(cpus_in("\n").is_empty());
    }
}
