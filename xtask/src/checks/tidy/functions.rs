// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks that no function is longer than a screen.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use proc_macro2::Span;
use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, Signature, TraitItemFn};

use super::{Tree, kind};

/// The longest function, in lines from its signature to its closing brace.
const LINES: usize = 70;

/// Checks Rust and C. `allowed` has longer functions as `FILE: NAME`.
pub fn faults(tree: &Tree, allowed: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut excused = Vec::new();
    for (file, text) in tree.files(&["rs", "c"])? {
        let functions = match kind(file) {
            "rs" => of_rust(&text).with_context(|| file.to_owned())?,
            _ => of_c(&text),
        };
        for (name, lines) in functions.into_iter().filter(|(_, lines)| *lines > LINES) {
            let name = format!("{file}: {name}");
            if allowed.contains_key(&name) {
                excused.push(name);
            } else {
                faults.push(format!("{name} has {lines} lines, more than {LINES}"));
            }
        }
    }
    let vain = allowed.keys().filter(|name| !excused.contains(name));
    faults.extend(vain.map(|name| format!("xtask/tidy.toml: {name} is not longer than others")));
    Ok(faults)
}

/// Returns the functions of a Rust file, with their lengths.
fn of_rust(text: &str) -> Result<Vec<(String, usize)>> {
    let mut lengths = Lengths::default();
    lengths.visit_file(&syn::parse_file(text)?);
    Ok(lengths.0)
}

#[derive(Default)]
struct Lengths(Vec<(String, usize)>);

impl Lengths {
    fn add(&mut self, signature: &Signature, block: &Block) {
        let line = |span: Span| span.start().line;
        let lines = line(block.brace_token.span.close()) - line(signature.fn_token.span) + 1;
        self.0.push((signature.ident.to_string(), lines));
    }
}

impl<'ast> Visit<'ast> for Lengths {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Returns the functions of a C file with their lengths. They are in the styles of Linux and Xen,
/// whose braces are in column 1.
fn of_c(text: &str) -> Vec<(String, usize)> {
    let mut functions = Vec::new();
    // The last line that starts something. It is the signature if a brace follows.
    let mut start = (0, "");
    let mut is_inside = false;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('{') {
            is_inside = true;
        } else if line.starts_with('}') && is_inside {
            let before = start.1.split('(').next().unwrap_or_default();
            let name = before.split_whitespace().last().unwrap_or_default();
            functions.push((name.trim_start_matches('*').to_owned(), number - start.0 + 1));
            is_inside = false;
        } else if !is_inside && line.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            start = (number, line);
        }
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_the_lines_from_its_signature_to_its_brace() {
        let text = "/// Long.\nfn a(\n    x: u32,\n) {\n    b(x)\n}\nimpl S {\n    fn c() {}\n}\n";
        assert_eq!(of_rust(text).unwrap(), [("a".to_owned(), 5), ("c".to_owned(), 1)]);
        let text = "static int *f(int a,\n              int b)\n{\n    g();\n}\n";
        assert_eq!(of_c(text), [("f".to_owned(), 5)]);
    }

    #[test]
    fn a_function_that_is_too_long_is_found() {
        let long = format!("fn long() {{\n{}}}\n", "    a();\n".repeat(LINES));
        let tree = Tree::planted("functions", &[("src/long.rs", &long)]);
        let none = BTreeMap::new();
        let found = faults(&tree, &none).unwrap();
        assert_eq!(found, ["src/long.rs: long has 72 lines, more than 70"]);
        let reason = ("src/long.rs: long".to_owned(), "a table".to_owned());
        assert!(faults(&tree, &BTreeMap::from([reason])).unwrap().is_empty());
        let reason = ("src/long.rs: short".to_owned(), "none".to_owned());
        assert_eq!(faults(&tree, &BTreeMap::from([reason])).unwrap().len(), 2);
    }
}
