// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Inserting lines into someone else's source by named anchors.
//!
//! A hooks file is a list of
//!
//! ```toml
//! lines = "lines.toml"                # optional: beside this file, lines by name
//!
//! [[hook]]
//! file = "xen/arch/x86/domain.c"
//! within = "void context_switch("    # optional: the function that starts with this text
//! after = "vpmu_switch_from(prev);"  # or `before`; text that occurs exactly once there
//! insert = """
//!     perfctr_switch_from(prev);
//! """
//! ```
//!
//! The inserted lines go after, or before, the whole line (or lines) that holds the anchor. An
//! anchor that is missing or ambiguous is an error: it means that the source has changed and that
//! a person has to look.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::tools::overlay::Files;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HooksFile {
    lines: Option<String>,
    hook: Vec<Hook>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Hook {
    file: String,
    within: Option<String>,
    after: Option<String>,
    before: Option<String>,
    insert: Option<String>,
    line: Option<String>,
}

/// Lines by their names.
type Lines = BTreeMap<String, String>;

/// Applies the hooks file to the tree `source`; returns the changed files.
pub fn apply(source: &Path, hooks: &Path) -> Result<Files> {
    let parsed: HooksFile = read(hooks)?;
    let lines: Lines = match &parsed.lines {
        Some(name) => read(&hooks.with_file_name(name))?,
        None => Lines::new(),
    };
    let mut files = Files::new();
    for hook in &parsed.hook {
        let original = match files.remove(&hook.file) {
            Some(content) => content,
            None => fs::read(source.join(&hook.file)).with_context(|| hook.file.clone())?,
        };
        let changed = insert(&String::from_utf8(original)?, hook, &lines)
            .with_context(|| format!("hook in {}", hook.file))?;
        files.insert(hook.file.clone(), changed.into_bytes());
    }
    Ok(files)
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

fn insert(text: &str, hook: &Hook, lines: &Lines) -> Result<String> {
    let inserted = match (&hook.insert, &hook.line) {
        (Some(text), None) => text,
        (None, Some(name)) => lines.get(name).with_context(|| format!("no line `{name}`"))?,
        _ => bail!("exactly one of `insert` and `line` is needed"),
    };
    let (start, end) = match &hook.within {
        Some(function) => region(text, function)?,
        None => (0, text.len()),
    };
    let (anchor, is_after) = match (&hook.after, &hook.before) {
        (Some(anchor), None) => (anchor, true),
        (None, Some(anchor)) => (anchor, false),
        _ => bail!("exactly one of `after` and `before` is needed"),
    };
    let first = start + only(&text[start..end], anchor)?;
    let place = if is_after {
        let last = first + anchor.trim_end().len();
        text[last..].find('\n').map_or(text.len(), |newline| last + newline + 1)
    } else {
        text[..first].rfind('\n').map_or(0, |newline| newline + 1)
    };
    let lines = inserted.trim_matches('\n');
    Ok(format!("{}{lines}\n{}", &text[..place], &text[place..]))
}

/// From the text `function` to the closing brace in the first column.
fn region(text: &str, function: &str) -> Result<(usize, usize)> {
    let start = only(text, function)?;
    let length = text[start..].find("\n}").with_context(|| format!("no end of `{function}`"))?;
    Ok((start, start + length))
}

/// The position of `needle`, which must occur exactly once.
fn only(text: &str, needle: &str) -> Result<usize> {
    match text.match_indices(needle).map(|(at, _)| at).collect::<Vec<_>>()[..] {
        [at] => Ok(at),
        [] => bail!("the anchor `{needle}` is missing"),
        ref many => bail!("the anchor `{needle}` occurs {} times", many.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "void a(void)\n{\n    x();\n}\nvoid b(void)\n{\n    x();\n    y();\n}\n";

    fn hook(within: Option<&str>, after: Option<&str>, before: Option<&str>) -> Hook {
        Hook {
            file: "f.c".into(),
            within: within.map(Into::into),
            after: after.map(Into::into),
            before: before.map(Into::into),
            insert: Some("\n    new();\n".into()),
            line: None,
        }
    }

    #[test]
    fn inserts_after_and_before_in_the_named_function() {
        let after =
            insert(SOURCE, &hook(Some("void b("), Some("x();"), None), &Lines::new()).unwrap();
        assert_eq!(after, SOURCE.replace("    x();\n    y", "    x();\n    new();\n    y"));
        let before =
            insert(SOURCE, &hook(Some("void b("), None, Some("x();")), &Lines::new()).unwrap();
        assert_eq!(before, SOURCE.replace("    x();\n    y", "    new();\n    x();\n    y"));
    }

    #[test]
    fn a_line_is_found_by_its_name() {
        let lines = Lines::from([("call".to_owned(), "    new();".to_owned())]);
        let named = |name: &str| {
            let hook = hook(Some("void b("), Some("x();"), None);
            insert(SOURCE, &Hook { insert: None, line: Some(name.into()), ..hook }, &lines)
        };
        assert!(named("call").unwrap().contains("    x();\n    new();\n    y"));
        assert_eq!(named("other").unwrap_err().to_string(), "no line `other`");
    }

    #[test]
    fn refuses_missing_and_ambiguous_anchors() {
        let error =
            insert(SOURCE, &hook(None, Some("x();"), None), &Lines::new()).unwrap_err().to_string();
        assert!(error.contains("occurs 2 times"), "{error}");
        let error =
            insert(SOURCE, &hook(None, Some("z();"), None), &Lines::new()).unwrap_err().to_string();
        assert!(error.contains("is missing"), "{error}");
        assert!(insert(SOURCE, &hook(None, Some("y();"), Some("y();")), &Lines::new()).is_err());
    }
}
