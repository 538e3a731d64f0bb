// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Inserts lines into someone else's source by named anchors.
//!
//! A file of anchors names the releases that it is for, and lists what is inserted where:
//!
//! ```toml
//! releases = ["4.17", "4.20"]
//!
//! [[hook]]
//! file = "xen/arch/x86/domain.c"
//! within = "void context_switch("    # optional: the function that starts with this text
//! after = "vpmu_switch_from(prev);"  # or `before`; text that occurs exactly once there
//! insert = """
//!     perfctr_switch_from(prev);
//! """                                # or `insert-file = "NAME.c"`, a file beside this one
//!
//! [hook.release."4.20"]              # optional: where this release has another place
//! after = "vpmu_switch_from(prev, next);"
//! ```
//!
//! The inserted lines go after, or before, the whole line (or lines) that holds the anchor. An
//! anchor that is missing or ambiguous is an error: it means that the source has changed and that
//! a person has to look. A file is inserted without its first line, which names its licence.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::tools::overlay::Files;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Anchors {
    /// The releases of the source for which these anchors are known.
    releases: Vec<String>,
    #[serde(rename = "hook")]
    hooks: Vec<Hook>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Hook {
    file: String,
    within: Option<String>,
    after: Option<String>,
    before: Option<String>,
    insert: Option<String>,
    insert_file: Option<String>,
    /// The differences in a release.
    #[serde(default)]
    release: BTreeMap<String, Override>,
}

/// The place of a hook in one release. Omitted fields are as in all other releases.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Override {
    file: Option<String>,
    within: Option<String>,
    after: Option<String>,
    before: Option<String>,
}

/// Returns the releases that a file of anchors is for.
pub fn releases(anchors: &Path) -> Result<Vec<String>> {
    Ok(read(anchors)?.releases)
}

/// Inserts the lines of the file of anchors into the tree `source`, which is of this release.
/// Returns the changed files.
pub fn apply(source: &Path, anchors: &Path, release: &str) -> Result<Files> {
    let parsed = read(anchors)?;
    if !parsed.releases.iter().any(|known| known == release) {
        let known = parsed.releases.join(", ");
        bail!("{} is not for {release}; it is for {known}", anchors.display());
    }
    let mut files = Files::new();
    for hook in &parsed.hooks {
        let hook = hook.of(release);
        let inserted = hook.inserted(anchors)?;
        let original = match files.remove(&hook.file) {
            Some(content) => content,
            None => fs::read(source.join(&hook.file)).with_context(|| hook.file.clone())?,
        };
        let changed = insert(&String::from_utf8(original)?, &hook, &inserted)
            .with_context(|| format!("hook in {}", hook.file))?;
        files.insert(hook.file, changed.into_bytes());
    }
    Ok(files)
}

fn read(path: &Path) -> Result<Anchors> {
    let parse = || {
        let parsed: Anchors = toml::from_str(&fs::read_to_string(path)?)?;
        parsed.check()?;
        anyhow::Ok(parsed)
    };
    parse().with_context(|| path.display().to_string())
}

impl Anchors {
    /// Fails if an override names a release that the file is not for.
    fn check(&self) -> Result<()> {
        for hook in &self.hooks {
            for release in hook.release.keys() {
                let is_known = self.releases.contains(release);
                ensure!(is_known, "hook in {}: there is no release {release}", hook.file);
            }
        }
        Ok(())
    }
}

impl Hook {
    /// Returns the hook as it is in this release.
    fn of(&self, release: &str) -> Self {
        let mut hook = self.clone();
        let Some(own) = self.release.get(release).cloned() else { return hook };
        if own.after.is_some() || own.before.is_some() {
            (hook.after, hook.before) = (own.after, own.before);
        }
        hook.within = own.within.or(hook.within);
        hook.file = own.file.unwrap_or(hook.file);
        hook
    }

    /// Returns the lines that are inserted.
    fn inserted(&self, anchors: &Path) -> Result<String> {
        match (&self.insert, &self.insert_file) {
            (Some(text), None) => Ok(text.clone()),
            (None, Some(name)) => {
                let text =
                    fs::read_to_string(anchors.with_file_name(name)).context(name.clone())?;
                let (licence, lines) = text.split_once('\n').unwrap_or_default();
                ensure!(licence.contains("SPDX"), "{name} does not begin with its licence");
                Ok(lines.to_owned())
            }
            _ => bail!("exactly one of `insert` and `insert-file` is needed"),
        }
    }
}

fn insert(text: &str, hook: &Hook, inserted: &str) -> Result<String> {
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

/// Returns the region from the text `function` to the closing brace in the first column.
fn region(text: &str, function: &str) -> Result<(usize, usize)> {
    let start = only(text, function)?;
    let length = text[start..].find("\n}").with_context(|| format!("no end of `{function}`"))?;
    Ok((start, start + length))
}

/// Returns the position of `needle`, which must occur exactly once.
fn only(text: &str, needle: &str) -> Result<usize> {
    match text.match_indices(needle).map(|(at, _)| at).collect::<Vec<_>>()[..] {
        [at] => Ok(at),
        [] => bail!("the anchor `{needle}` is missing"),
        ref many => bail!("the anchor `{needle}` occurs {} times", many.len()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const SOURCE: &str = "void a(void)\n{\n    x();\n}\nvoid b(void)\n{\n    x();\n    y();\n}\n";

    fn hook(within: Option<&str>, after: Option<&str>, before: Option<&str>) -> Hook {
        let [within, after, before] = [within, after, before].map(|text| text.map(Into::into));
        Hook { file: "f.c".into(), within, after, before, ..Hook::default() }
    }

    #[test]
    fn inserts_after_and_before_in_the_named_function() {
        let place = |after, before| {
            insert(SOURCE, &hook(Some("void b("), after, before), "\n    new();\n").unwrap()
        };
        let expected = SOURCE.replace("    x();\n    y", "    x();\n    new();\n    y");
        assert_eq!(place(Some("x();"), None), expected);
        let expected = SOURCE.replace("    x();\n    y", "    new();\n    x();\n    y");
        assert_eq!(place(None, Some("x();")), expected);
    }

    #[test]
    fn refuses_missing_and_ambiguous_anchors() {
        let fault = |after, before| {
            insert(SOURCE, &hook(None, after, before), "new();").unwrap_err().to_string()
        };
        assert_eq!(fault(Some("x();"), None), "the anchor `x();` occurs 2 times");
        assert_eq!(fault(Some("z();"), None), "the anchor `z();` is missing");
        let both = "exactly one of `after` and `before` is needed";
        assert_eq!(fault(Some("y();"), Some("y();")), both);
        assert_eq!(fault(None, None), both);
    }

    /// Makes a directory with the source and these files.
    fn planted(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-hooks-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (name, text) in [("f.c", SOURCE)].iter().chain(files) {
            fs::write(dir.join(name), text).unwrap();
        }
        dir
    }

    fn applied(dir: &Path, release: &str) -> Result<String> {
        let files = apply(dir, &dir.join("anchors.toml"), release)?;
        Ok(String::from_utf8(files["f.c"].clone()).unwrap())
    }

    #[test]
    fn a_release_has_its_own_place_and_others_the_common_one() {
        let anchors = "releases = [\"1\", \"2\"]\n[[hook]]\nfile = \"f.c\"\nafter = \"y();\"\n\
                       insert = \"new();\"\n[hook.release.\"2\"]\nbefore = \"y();\"\n";
        let dir = planted("release", &[("anchors.toml", anchors)]);
        let of = |release| applied(&dir, release);
        assert_eq!(of("1").unwrap(), SOURCE.replace("    y();\n", "    y();\nnew();\n"));
        assert_eq!(of("2").unwrap(), SOURCE.replace("    y();\n", "new();\n    y();\n"));
        assert!(of("3").unwrap_err().to_string().ends_with("is not for 3; it is for 1, 2"));
        assert_eq!(releases(&dir.join("anchors.toml")).unwrap(), ["1", "2"]);

        fs::write(dir.join("anchors.toml"), anchors.replace(", \"2\"", "")).unwrap();
        let stale = format!("{:#}", of("1").unwrap_err());
        assert!(stale.ends_with("hook in f.c: there is no release 2"), "{stale}");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_is_inserted_without_its_licence() {
        let anchors = "releases = [\"1\"]\n[[hook]]\nfile = \"f.c\"\nbefore = \"void b(\"\n\
                       insert-file = \"c.c\"\n";
        let c = "// SPDX-License-Identifier: X\nvoid c(void);\n";
        let dir = planted("file", &[("anchors.toml", anchors), ("c.c", c)]);
        let expected = SOURCE.replace("void b(", "void c(void);\nvoid b(");
        assert_eq!(applied(&dir, "1").unwrap(), expected);
        fs::write(dir.join("c.c"), "void c(void);\nvoid d(void);\n").unwrap();
        let fault = applied(&dir, "1").unwrap_err().to_string();
        assert_eq!(fault, "c.c does not begin with its licence");
        fs::remove_dir_all(dir).unwrap();
    }
}
