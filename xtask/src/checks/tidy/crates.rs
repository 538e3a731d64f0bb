// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks which crate imports which.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Tree;

/// The dependencies of a crate, without those of tests and build scripts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dependencies {
    /// The project's own crates.
    project: BTreeSet<String>,
    /// All other crates, if they are limited: code that runs in ring 0 has few.
    others: Option<BTreeSet<String>>,
}

/// Compares every manifest with the allowed dependencies. Each allowed one has to be needed, too.
pub fn faults(tree: &Tree, allowed: &BTreeMap<String, Dependencies>) -> Result<Vec<String>> {
    let mut manifests = Vec::new();
    for (name, text) in tree.files(&["toml"])? {
        if name.ends_with("Cargo.toml") {
            let manifest: toml::Table = text.parse().with_context(|| name.to_owned())?;
            let package = manifest.get("package").and_then(|p| p.get("name"));
            if let Some(package) = package.and_then(toml::Value::as_str) {
                manifests.push((package.to_owned(), dependencies(&manifest)));
            }
        }
    }
    let ours: BTreeSet<&String> = manifests.iter().map(|(package, _)| package).collect();
    let mut faults = Vec::new();
    for (package, found) in &manifests {
        let Some(allowed) = allowed.get(package) else {
            faults.push(format!("xtask/tidy.toml: says nothing of the crate {package}"));
            continue;
        };
        for name in allowed.project.iter().filter(|name| !found.contains(*name)) {
            faults.push(format!("xtask/tidy.toml: {package} does not import {name}"));
        }
        for name in found {
            let is_allowed = if ours.contains(name) {
                allowed.project.contains(name)
            } else {
                allowed.others.as_ref().is_none_or(|others| others.contains(name))
            };
            if !is_allowed {
                faults.push(format!("{package} imports {name}, which it may not"));
            }
        }
    }
    Ok(faults)
}

/// Returns the names of all ordinary dependencies, those of single targets as well.
fn dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let of = |table: Option<&toml::Value>| -> Vec<String> {
        let table = table.and_then(toml::Value::as_table);
        table.map_or_else(Vec::new, |table| table.keys().cloned().collect())
    };
    let mut names: BTreeSet<String> = of(manifest.get("dependencies")).into_iter().collect();
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        names.extend(targets.values().flat_map(|target| of(target.get("dependencies"))));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_that_is_not_drawn_is_found() {
        let core = "[package]\nname = \"core-of-it\"\n[dependencies]\nlibc = \"0.2\"\n";
        let user = "[package]\nname = \"user\"\n[dependencies]\nlibc = \"0.2\"\n\
                    [target.'cfg(unix)'.dependencies]\ncore-of-it = \"0.1\"\n";
        let tree = Tree::planted("crates", &[("core/Cargo.toml", core), ("user/Cargo.toml", user)]);
        let allowed: BTreeMap<String, Dependencies> =
            toml::from_str("[core-of-it]\nproject = []\nothers = []\n[user]\nproject = []\n")
                .unwrap();
        assert_eq!(
            faults(&tree, &allowed).unwrap(),
            [
                "core-of-it imports libc, which it may not",
                "user imports core-of-it, which it may not"
            ]
        );
        assert_eq!(faults(&tree, &BTreeMap::new()).unwrap().len(), 2);
        let wide: BTreeMap<String, Dependencies> = toml::from_str(
            "[core-of-it]\nproject = [\"user\"]\n[user]\nproject = [\"core-of-it\"]\n",
        )
        .unwrap();
        let vain = ["xtask/tidy.toml: core-of-it does not import user"];
        assert_eq!(faults(&tree, &wide).unwrap(), vain);
    }
}
