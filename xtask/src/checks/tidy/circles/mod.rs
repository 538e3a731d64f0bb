// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks that no two files of one crate need each other, and no two files of the C of one
//! hypervisor or of the module. So a reader of one file does not have to know what the other does
//! with it.
//!
//! A module that is a folder may use its own parts. Tests are left out.

mod c;
mod rust;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::Tree;

/// The files that each file uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Finds every circle without an explanation. `allowed` are circles as their files' names, in order
/// and with commas between them, each with its reason.
pub fn faults(tree: &Tree, allowed: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let mut uses = rust::uses(tree)?;
    uses.extend(c::uses(tree)?);
    let found: BTreeSet<String> =
        circles(&uses).into_iter().map(|circle| circle.join(", ")).collect();
    let new = found.iter().filter(|circle| !allowed.contains_key(*circle));
    let new = new.map(|circle| format!("these files need each other: {circle}"));
    let vain = allowed.keys().filter(|circle| !found.contains(*circle));
    let vain = vain.map(|circle| format!("xtask/tidy.toml: there is no circle of {circle}"));
    Ok(new.chain(vain).collect())
}

/// Returns sets of files, in order, in which each file leads to all others of its set.
fn circles(uses: &Uses) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        uses.keys().map(|file| (file, reached(uses, file))).collect();
    let mut circles = Vec::new();
    for (file, all) in &reached {
        let circle: Vec<String> = all
            .iter()
            .filter(|other| leads(&reached, other, file))
            .map(|&name| name.clone())
            .collect();
        // Each circle is reported once, at its first file.
        if circle.len() > 1 && circle[0] == **file {
            circles.push(circle);
        }
    }
    circles
}

fn leads(reached: &BTreeMap<&String, BTreeSet<&String>>, from: &String, to: &String) -> bool {
    reached.get(from).is_some_and(|all| all.contains(to))
}

/// Returns all files that a file uses, directly or through others.
fn reached<'a>(uses: &'a Uses, file: &String) -> BTreeSet<&'a String> {
    let mut all = BTreeSet::new();
    let mut open: Vec<&String> = uses.get(file).into_iter().flatten().collect();
    while let Some(next) = open.pop() {
        if all.insert(next) {
            open.extend(uses.get(next).into_iter().flatten());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_once_and_its_exception_expires() {
        let files = [
            ("k/src/a.rs", "use crate::b::B;\n"),
            ("k/src/b.rs", "use crate::c;\n"),
            ("k/src/c.rs", "fn c() { crate::a::a() }\n"),
            ("k/src/d.rs", "use crate::a::A;\n"),
        ];
        let tree = Tree::planted("circles", &files);
        let all = "k/src/a.rs, k/src/b.rs, k/src/c.rs";
        let none = BTreeMap::new();
        assert_eq!(faults(&tree, &none).unwrap(), [format!("these files need each other: {all}")]);
        let allowed = BTreeMap::from([(all.to_owned(), "a reason".to_owned())]);
        assert!(faults(&tree, &allowed).unwrap().is_empty());
        let mended = [files[0], files[1], ("k/src/c.rs", "")];
        let tree = Tree::planted("no-circles", &mended);
        let vain = faults(&tree, &allowed).unwrap();
        assert_eq!(vain, [format!("xtask/tidy.toml: there is no circle of {all}")]);
    }
}
