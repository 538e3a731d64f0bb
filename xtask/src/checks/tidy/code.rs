// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks words of Rust code: `unsafe` is only where it is allowed, `unwrap` is only in tests, and
//! no floor of this program uses one above it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow};
use proc_macro2::{TokenStream, TokenTree};

use super::Tree;

pub fn faults(
    tree: &Tree,
    unsafe_files: &BTreeMap<String, String>,
    floors: &[String],
) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut is_used = BTreeMap::new();
    for (name, text) in tree.files(&["rs"])? {
        let tokens: TokenStream =
            text.parse().map_err(|error| anyhow!("{error}")).context(name.to_owned())?;
        let words = words(tokens, !is_test(name));
        if words.iter().any(|word| word.text == "unsafe") {
            is_used.insert(name.to_owned(), ());
            if !unsafe_files.contains_key(name) {
                faults.push(format!("{name}: unsafe code in a file that may have none"));
            }
        }
        let unwrap = |word: &&Word| word.text == "unwrap" && word.follows == "." && !word.in_test;
        for word in words.iter().filter(unwrap) {
            faults.push(format!("{name}:{}: unwrap outside tests", word.line));
        }
        faults.extend(floor_faults(name, &words, floors));
    }
    let vain = unsafe_files.keys().filter(|name| !is_used.contains_key(*name));
    faults.extend(vain.map(|name| format!("xtask/tidy.toml: {name} has no unsafe code")));
    Ok(faults)
}

/// Returns whether the file has nothing but tests.
fn is_test(name: &str) -> bool {
    let is_folder = name.starts_with("tests/") || name.contains("/tests/");
    is_folder || name.ends_with("/tests.rs") || name.ends_with("/testing.rs")
}

/// Finds where a file of one floor uses a floor above it.
fn floor_faults(name: &str, words: &[Word], floors: &[String]) -> Vec<String> {
    let Some(inside) = name.strip_prefix("xtask/src/") else { return Vec::new() };
    let Some(own) = floors.iter().position(|floor| inside.starts_with(&format!("{floor}/"))) else {
        return Vec::new();
    };
    let is_above = |text: &str| floors[..own].iter().any(|floor| floor == text);
    words
        .windows(2)
        .filter(|pair| pair[0].text == "crate" && is_above(&pair[1].text))
        .map(|pair| format!("{name}:{}: uses {}, which is above", pair[1].line, pair[1].text))
        .collect()
}

/// An identifier or keyword.
struct Word {
    text: String,
    line: usize,
    /// The punctuation in front of it.
    follows: String,
    /// Whether it belongs to an item that only tests have.
    in_test: bool,
}

/// Returns all words in their order, without those in comments and strings.
fn words(tokens: TokenStream, judges_tests: bool) -> Vec<Word> {
    let mut words = Vec::new();
    collect(tokens, !judges_tests, &mut words);
    words
}

fn collect(tokens: TokenStream, in_test: bool, words: &mut Vec<Word>) {
    let mut follows = String::new();
    // This is true from `#[cfg(test)]` to the end of its item.
    let mut is_test_item = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let content = group.stream().to_string();
                if follows == "#" && content.starts_with("cfg") && names_test(&content) {
                    is_test_item = true;
                }
                collect(group.stream(), in_test || is_test_item, words);
                if group.delimiter() == proc_macro2::Delimiter::Brace {
                    is_test_item = false;
                }
                follows.clear();
            }
            TokenTree::Ident(ident) => {
                let line = ident.span().start().line;
                let in_test = in_test || is_test_item;
                let follows = std::mem::take(&mut follows);
                words.push(Word { text: ident.to_string(), line, follows, in_test });
            }
            TokenTree::Punct(punct) => {
                is_test_item &= punct.as_char() != ';';
                follows = punct.as_char().to_string();
            }
            TokenTree::Literal(_) => follows.clear(),
        }
    }
}

/// Returns whether a condition is true for tests, rather than for their absence.
pub fn names_test(condition: &str) -> bool {
    let is_word = |part: &str| part == "test";
    condition.split(|c: char| !c.is_alphanumeric() && c != '_').any(is_word)
        && !condition.replace(' ', "").contains("not(test")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_where_it_may_be() {
        let tree = Tree::planted(
            "unsafe",
            &[
                ("a.rs", "// unsafe\nfn f() { g(\"unsafe\") }\n"),
                ("b.rs", "fn f() { unsafe { g() } }\n"),
            ],
        );
        let found = faults(&tree, &BTreeMap::new(), &[]).unwrap();
        assert_eq!(found, ["b.rs: unsafe code in a file that may have none"]);
        let listed = |name: &str| BTreeMap::from([(name.to_owned(), "reason".to_owned())]);
        assert!(faults(&tree, &listed("b.rs"), &[]).unwrap().is_empty());
        assert_eq!(faults(&tree, &listed("a.rs"), &[]).unwrap().len(), 2);
    }

    #[test]
    fn unwrap_is_for_tests() {
        let used = "fn f() { g().unwrap(); assert!(h().unwrap()); unwrap(); i().unwrap_or(1) }\n";
        let tested = "#[cfg(test)]\nmod tests {\n    fn f() { g().unwrap() }\n}\n\
                      #[cfg(all(test, not(loom)))]\nuse a::b;\nfn h() { i().unwrap() }\n";
        let tree =
            Tree::planted("unwrap", &[("a.rs", used), ("b.rs", tested), ("tests/c.rs", used)]);
        assert_eq!(
            faults(&tree, &BTreeMap::new(), &[]).unwrap(),
            [
                "a.rs:1: unwrap outside tests",
                "a.rs:1: unwrap outside tests",
                "b.rs:7: unwrap outside tests"
            ]
        );
    }

    #[test]
    fn a_floor_does_not_use_those_above() {
        let text = "use crate::tools::sh;\nuse crate::verbs;\n";
        let tree = Tree::planted("floors", &[("xtask/src/suites/a.rs", text)]);
        let floors = ["verbs", "suites", "tools"].map(str::to_owned);
        let found = faults(&tree, &BTreeMap::new(), &floors).unwrap();
        assert_eq!(found, ["xtask/src/suites/a.rs:2: uses verbs, which is above"]);
    }
}
