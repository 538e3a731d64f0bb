// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds a piece of source by the text around it, and replaces it by code that can be switched on
//! while the program runs.
//!
//! An anchor is a piece of a file in which guillemets mark a part: `self.stop(«slot», 0);`.
//! White space and trailing commas do not matter, so an anchor outlives another layout of the
//! same code. It must occur once in the file, or in the block that `within` begins.

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};

/// A marked part of a file.
#[derive(Debug)]
pub struct Anchor<'a> {
    /// A text, with guillemets around the marked part.
    pub text: &'a str,
    /// A piece of the line that begins the block in which the text occurs once.
    pub within: Option<&'a str>,
}

impl Anchor<'_> {
    /// Finds the marked part in a file.
    pub fn find(&self, source: &str) -> Result<Range<usize>> {
        let (before, rest) = self.text.split_once('«').context("the anchor has no «")?;
        let (marked, after) = rest.split_once('»').context("the anchor has no » after its «")?;
        let region = match self.within {
            Some(within) => block(source, within)?,
            None => 0..source.len(),
        };
        let mut pattern = Compact::of(before);
        let first = pattern.text.len();
        pattern.push(marked, 0);
        let last = pattern.text.len();
        pattern.push(after, 0);
        let wanted = pattern.text.strip_suffix(',').unwrap_or(&pattern.text);
        ensure!(!wanted.is_empty(), "the anchor is empty");

        let compact = Compact::of(&source[region.clone()]);
        let at = compact.only(&source[region.clone()], wanted)?;
        let marked = compact.range(at + first, at + last);
        Ok(region.start + marked.start..region.start + marked.end)
    }
}

/// A text without white space and trailing commas, which a formatter may change.
#[derive(Default)]
struct Compact {
    text: String,
    /// The offset of each byte in the source.
    places: Vec<usize>,
}

impl Compact {
    fn of(source: &str) -> Self {
        let mut compact = Self::default();
        compact.push(source, 0);
        compact
    }

    fn push(&mut self, source: &str, offset: usize) {
        for (place, character) in source.char_indices() {
            if character.is_whitespace() {
                continue;
            }
            if matches!(character, ')' | ']' | '}') && self.text.ends_with(',') {
                self.text.pop();
                self.places.pop();
            }
            self.text.push(character);
            self.places.extend((0..character.len_utf8()).map(|byte| offset + place + byte));
        }
    }

    /// Returns the one place of `wanted`, between whole words.
    fn only(&self, source: &str, wanted: &str) -> Result<usize> {
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let is_whole = |at: &usize| {
            let place = self.range(*at, *at + wanted.len());
            let outside =
                [source[..place.start].chars().next_back(), source[place.end..].chars().next()];
            let inside = [wanted.chars().next(), wanted.chars().next_back()];
            (0..2).all(|side| !(is_word(outside[side]) && is_word(inside[side])))
        };
        let found: Vec<usize> =
            self.text.match_indices(wanted).map(|(at, _)| at).filter(is_whole).collect();
        match found[..] {
            [at] => Ok(at),
            [] => bail!("the anchor does not occur"),
            _ => {
                let line = |at: &usize| line_of(source, self.places[*at]).to_string();
                let lines: Vec<String> = found.iter().map(line).collect();
                bail!("the anchor occurs {} times, in lines {}", lines.len(), lines.join(", "))
            }
        }
    }

    /// Returns where a part of the compact text is in the source. An empty part follows what
    /// precedes it.
    fn range(&self, first: usize, last: usize) -> Range<usize> {
        if first == last {
            let after = first.checked_sub(1).map_or(0, |before| self.places[before] + 1);
            return after..after;
        }
        self.places[first]..self.places[last - 1] + 1
    }
}

/// Returns the number of the line at this place.
pub fn line_of(source: &str, place: usize) -> usize {
    source[..place].matches('\n').count() + 1
}

/// Returns the range from the one line that holds `within` to the first line after it that has the
/// same indentation and closes a brace.
fn block(source: &str, within: &str) -> Result<Range<usize>> {
    let mut places = source.match_indices(within);
    let (at, _) = places.next().with_context(|| format!("`{within}` does not occur"))?;
    ensure!(places.next().is_none(), "`{within}` occurs more than once");
    let start = source[..at].rfind('\n').map_or(0, |end| end + 1);
    let indentation: String =
        source[start..].chars().take_while(|c| matches!(c, ' ' | '\t')).collect();
    let close = format!("\n{indentation}}}");
    let end = source[at..].find(&close).with_context(|| format!("`{within}` begins no block"))?;
    Ok(start..at + end + close.len())
}

/// Other code for a part of a file.
#[derive(Clone, Debug)]
pub struct Part {
    /// The part.
    pub place: Range<usize>,
    /// An expression that says whether the other code is in force, or `None` if it always is.
    pub switch: Option<String>,
    /// The other code.
    pub wrong: String,
}

impl Part {
    /// Returns the part's new text: the other code, or a choice between both. The marked text is an
    /// expression, or statements if it ends like one. If it is empty, the other code is inserted
    /// there.
    fn with(&self, original: &str) -> String {
        let Self { switch, wrong, .. } = self;
        let Some(switch) = switch else { return wrong.clone() };
        match original.trim_end().chars().next_back() {
            None => format!(" if {switch} {{ {wrong} }} "),
            Some(';' | '}') => format!("if {switch} {{ {wrong} }} else {{ {original} }}"),
            Some(_) => format!("(if {switch} {{ {wrong} }} else {{ {original} }})"),
        }
    }
}

/// Returns the file with both texts of each of these parts. One part may be inside another.
pub fn weave(source: &str, mut parts: Vec<Part>) -> Result<String> {
    parts.sort_by_key(|part| (part.place.start, std::cmp::Reverse(part.place.end)));
    woven(source, 0..source.len(), &parts)
}

fn woven(source: &str, place: Range<usize>, mut parts: &[Part]) -> Result<String> {
    let (mut text, mut from) = (String::new(), place.start);
    while let [part, rest @ ..] = parts {
        let inner = rest.iter().take_while(|other| is_inside(other, part)).count();
        let (inside, after) = rest.split_at(inner);
        if let Some(next) = after.first() {
            let line = line_of(source, part.place.start);
            ensure!(next.place.start >= part.place.end, "two parts overlap in line {line}");
        }
        text += &source[from..part.place.start];
        text += &part.with(&woven(source, part.place.clone(), inside)?);
        from = part.place.end;
        parts = after;
    }
    Ok(text + &source[from..place.end])
}

/// Returns whether a part is inside another one. An empty part at the end of another one is not.
fn is_inside(part: &Part, outer: &Part) -> bool {
    part.place.start < outer.place.end && part.place.end <= outer.place.end
        || part.place == outer.place
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
impl A {
    fn load(&mut self) {
        self.start(
            slot,
            a_long_name_of_a_mask & !other,
        );
        unstale();
    }

    fn stop(&mut self) {
        self.mask = 1;
    }
}

impl B {
    fn stop(&mut self) {
        self.mask = 1;
        unmask = 1;
    }
}
";

    fn found<'a>(text: &str, within: Option<&str>) -> Result<&'a str> {
        Anchor { text, within }.find(SOURCE).map(|place| &SOURCE[place])
    }

    #[test]
    fn layout_does_not_matter() {
        let one = "self.start(slot, «a_long_name_of_a_mask & !other»);";
        assert_eq!(found(one, None).unwrap(), "a_long_name_of_a_mask & !other");
        let many = "self . start(\n    «slot»,\n    a_long_name_of_a_mask & !other,\n)";
        assert_eq!(found(many, None).unwrap(), "slot");
        let nothing = Anchor { text: "fn load(&mut self) {«»", within: None };
        let place = nothing.find(SOURCE).unwrap();
        assert!(place.is_empty() && SOURCE[..place.start].ends_with("load(&mut self) {"));
    }

    #[test]
    fn an_anchor_that_is_not_the_only_one_says_where_the_others_are() {
        let twice = found("self.mask = «1»;", None).unwrap_err().to_string();
        assert_eq!(twice, "the anchor occurs 2 times, in lines 11, 17");
        assert_eq!(found("self.mask = «1»;", Some("impl B {")).unwrap(), "1");
        assert!(found("self.mask = «2»;", None).is_err());
        assert!(found("self.mask = 1;", None).is_err());
        assert!(found("self.mask = «1»;", Some("fn stop")).is_err());
    }

    #[test]
    fn words_are_whole() {
        assert!(found("«stale»();", None).is_err());
        assert!(found("«mask = 1»;", Some("impl A {")).is_ok());
        assert!(found("(slot, «a_long»", None).is_err());
    }

    fn part(place: Range<usize>, name: &str) -> Part {
        Part { place, switch: Some(name.to_owned()), wrong: "w".to_owned() }
    }

    #[test]
    fn both_codes_are_there() {
        let text = "a = b + c;";
        let one = |place| weave(text, vec![part(place, "on")]).unwrap();
        assert_eq!(one(4..5), "a = (if on { w } else { b }) + c;");
        assert_eq!(one(0..10), "if on { w } else { a = b + c; }");
        assert_eq!(one(10..10), "a = b + c; if on { w } ");
        let always = Part { switch: None, ..part(4..5, "on") };
        assert_eq!(weave(text, vec![always]).unwrap(), "a = w + c;");
    }

    #[test]
    fn one_part_may_be_inside_another() {
        let text = "a = b + c;";
        let two = |first, second| weave(text, vec![part(first, "x"), part(second, "y")]);
        let nested = "a = (if y { w } else { (if x { w } else { b }) + c });";
        assert_eq!(two(4..5, 4..9).unwrap(), nested);
        let same = "a = (if x { w } else { (if y { w } else { b }) }) + c;";
        assert_eq!(two(4..5, 4..5).unwrap(), same);
        let beside = "a = (if x { w } else { b }) + (if y { w } else { c });";
        assert_eq!(two(4..5, 8..9).unwrap(), beside);
        assert!(two(0..5, 4..9).is_err());
    }
}
