// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds which Rust files use which others of their crate, by the paths in them that begin with
//! `crate`, `super` or `self`. If a module re-exports a name from another one, the name is followed
//! to its definition.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Uses;
use crate::checks::tidy::Tree;
use crate::checks::tidy::code::names_test;

/// A module's place in its crate.
type Place = Vec<String>;

/// The files of a crate by their places, and what each names.
#[derive(Default)]
struct Crate {
    files: BTreeMap<Place, String>,
    paths: BTreeMap<Place, Vec<Named>>,
}

/// A path of names in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    path: Vec<String>,
    /// The name that a `use` gives it.
    alias: Option<String>,
}

pub fn uses(tree: &Tree) -> Result<Uses> {
    let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
    for (name, text) in tree.files(&["rs"])? {
        let Some((root, place)) = place(name) else { continue };
        let tokens: TokenStream =
            text.parse().map_err(|error| anyhow!("{error}")).with_context(|| name.to_owned())?;
        let of = crates.entry(root).or_default();
        let mut paths = Vec::new();
        named(tokens, &place, &mut paths);
        of.files.insert(place.clone(), name.to_owned());
        of.paths.insert(place, paths);
    }
    Ok(crates.values().flat_map(Crate::uses).collect())
}

/// Returns the crate that a file belongs to, and its place there, or `None` for tests. A program is
/// a crate of its own if its package has several.
fn place(name: &str) -> Option<(String, Place)> {
    let (package, inside) = name.split_once("/src/")?;
    if name.ends_with("/tests.rs") || name.ends_with("/testing.rs") || inside.contains("/tests/") {
        return None;
    }
    let (root, inside) = match inside.strip_prefix("bin/") {
        Some(program) => match program.split_once('/') {
            Some((folder, rest)) => (format!("{package}/src/bin/{folder}"), rest),
            None => return Some((name.to_owned(), Place::new())),
        },
        None => (package.to_owned(), inside),
    };
    let path = Path::new(inside).with_extension("");
    let mut place: Place = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if place.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        place.pop();
    }
    Some((root, place))
}

impl Crate {
    fn uses(&self) -> Vec<(String, BTreeSet<String>)> {
        self.files.iter().map(|(place, name)| (name.clone(), self.used_by(place))).collect()
    }

    /// Returns the files that one needs beside its own parts.
    fn used_by(&self, place: &Place) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        for named in &self.paths[place] {
            let target = self.home(&named.path, 0);
            if !target.starts_with(place) {
                used.extend(self.files.get(&target).cloned());
            }
        }
        used
    }

    /// Returns the module that defines what a path leads to.
    fn home(&self, path: &[String], depth: u32) -> Place {
        let known = |length: &usize| self.files.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(known).unwrap_or(0);
        let module = path[..length].to_vec();
        let Some(name) = path.get(length) else { return module };
        let taken = self.paths.get(&module).into_iter().flatten();
        let mut taken = taken.filter(|named| named.alias.as_ref() == Some(name));
        match taken.next() {
            // Re-exports in a circle define nothing.
            Some(named) if depth < 8 && named.path != path => {
                self.home(&[&named.path[..], &path[length + 1..]].concat(), depth + 1)
            }
            _ => module,
        }
    }
}

/// Adds every path that the tokens name, as one from the crate's root. `place` is the module's.
fn named(tokens: TokenStream, place: &Place, paths: &mut Vec<Named>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    let mut skips = false;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => {
                let is_attribute = at > 0 && is_punct(&tokens[at - 1], '#');
                let content = group.stream().to_string();
                if is_attribute && content.starts_with("cfg") && names_test(&content) {
                    skips = true;
                } else if !skips {
                    named(group.stream(), &inside(&tokens, at, place), paths);
                }
                skips &= group.delimiter() != Delimiter::Brace;
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => skips = false,
            TokenTree::Ident(_) if !skips => {
                let is_start = at == 0 || !is_punct(&tokens[at - 1], ':');
                if let Some(base) = base(&tokens, at, place).filter(|_| is_start) {
                    at = follow(&tokens, at, base, paths);
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// Returns the place of the code in the braces at `at`. If the braces are a module's, it is that
/// module's place.
fn inside(tokens: &[TokenTree], at: usize, place: &Place) -> Place {
    let mut place = place.clone();
    if let [.., TokenTree::Ident(keyword), TokenTree::Ident(name)] = &tokens[..at]
        && keyword == "mod"
    {
        place.push(name.to_string());
    }
    place
}

/// Returns the start of a path that begins with this word, if the path begins at the crate's root
/// or here.
fn base(tokens: &[TokenTree], at: usize, place: &Place) -> Option<Place> {
    let TokenTree::Ident(word) = &tokens[at] else { return None };
    if !tokens.get(at + 1).is_some_and(|token| is_punct(token, ':')) {
        return None;
    }
    match word.to_string().as_str() {
        "crate" => Some(Place::new()),
        "self" => Some(place.clone()),
        "super" => Some(place[..place.len().checked_sub(1)?].to_vec()),
        _ => None,
    }
}

/// Follows a path from the word at `at`, which is at the place `path`. Returns the index at which
/// the path has ended.
fn follow(tokens: &[TokenTree], at: usize, mut path: Place, paths: &mut Vec<Named>) -> usize {
    let mut at = at + 1;
    let colon = |at: usize| tokens.get(at).is_some_and(|token| is_punct(token, ':'));
    while colon(at) && colon(at + 1) {
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(word)) if word == "super" => drop(path.pop()),
            Some(TokenTree::Ident(word)) => path.push(word.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                branches(group.stream(), &path, paths);
                return at + 3;
            }
            _ => break,
        }
        at += 3;
    }
    let alias = match &tokens[at.min(tokens.len())..] {
        [TokenTree::Ident(word), TokenTree::Ident(alias), ..] if word == "as" => alias.to_string(),
        _ => path.last().cloned().unwrap_or_default(),
    };
    paths.push(Named { path, alias: Some(alias) });
    at
}

/// Adds every branch of a `use` whose braces have opened.
fn branches(tokens: TokenStream, path: &Place, paths: &mut Vec<Named>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for branch in tokens.split(|token| is_punct(token, ',')) {
        match branch.first() {
            Some(TokenTree::Ident(word)) if word == "self" => {
                paths.push(Named { path: path.clone(), alias: path.last().cloned() });
            }
            Some(TokenTree::Ident(word)) => {
                let path = [&path[..], &[word.to_string()]].concat();
                follow(branch, 0, path, paths);
            }
            _ => paths.push(Named { path: path.clone(), alias: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(files: &[(&str, &str)], file: &str) -> Vec<String> {
        let tree = Tree::planted(&format!("rust-uses-{}", file.replace('/', "-")), files);
        uses(&tree).unwrap()[file].iter().cloned().collect()
    }

    #[test]
    fn paths_of_each_kind_are_found() {
        let text = "use crate::b::{B, c::{self, C}};\nuse crate::d as other;\n\
                    fn f() { println!(\"{}\", super::e::E) }\n\
                    mod inline { use super::super::g::G; }\n\
                    #[cfg(test)]\nmod tests { use crate::h; }\n\
                    // crate::h\nfn g() { other::x(); std::crate_like() }\n";
        let files = [
            ("k/src/a.rs", text),
            ("k/src/b.rs", ""),
            ("k/src/b/c.rs", ""),
            ("k/src/d.rs", ""),
            ("k/src/e.rs", ""),
            ("k/src/g.rs", ""),
            ("k/src/h.rs", ""),
        ];
        let expected = ["b", "b/c", "d", "e", "g"].map(|name| format!("k/src/{name}.rs"));
        assert_eq!(used(&files, "k/src/a.rs"), expected);
    }

    #[test]
    fn a_name_is_followed_to_where_it_is() {
        let files = [
            ("k/src/m/mod.rs", "pub use self::deep::{Deep as Other, Thing};\n"),
            ("k/src/m/deep.rs", ""),
            ("k/src/m/user.rs", "use super::Thing;\n"),
            ("k/src/far.rs", "use crate::m::Other;\nuse crate::m::Own;\n"),
        ];
        assert_eq!(used(&files, "k/src/m/user.rs"), ["k/src/m/deep.rs"]);
        assert_eq!(used(&files, "k/src/far.rs"), ["k/src/m/deep.rs", "k/src/m/mod.rs"]);
        // A module's own parts are not other files.
        assert_eq!(used(&files, "k/src/m/mod.rs"), [""; 0]);
    }

    #[test]
    fn a_program_of_several_is_a_crate_of_its_own() {
        let files = [
            ("k/src/lib.rs", ""),
            ("k/src/a.rs", ""),
            ("k/src/bin/one/main.rs", "mod a;\nuse crate::a::A;\n"),
            ("k/src/bin/one/a.rs", "use crate::main_thing;\n"),
        ];
        assert_eq!(used(&files, "k/src/bin/one/a.rs"), ["k/src/bin/one/main.rs"]);
    }
}
