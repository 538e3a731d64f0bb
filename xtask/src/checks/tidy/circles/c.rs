// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds which files of the C glue use which others. A file uses another one if it includes that
//! file's header, or if it names, inside of a function or a table, a function that the other file
//! defines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Uses;
use crate::checks::tidy::Tree;

/// The folders with glue. The files of one folder are one program's.
const FOLDERS: [&str; 3] = ["guest-kmod/glue/", "hv-driver/glue/kvm/", "hv-driver/glue/xen/"];

/// What is found in one file.
#[derive(Debug, Default, PartialEq, Eq)]
struct File {
    includes: BTreeSet<String>,
    /// Functions that other files may call.
    defines: BTreeSet<String>,
    /// Words inside of braces and in macros.
    names: BTreeSet<String>,
}

pub fn uses(tree: &Tree) -> Result<Uses> {
    let mut uses = Uses::new();
    let files = tree.files(&["c", "h"])?;
    for folder in FOLDERS {
        let ours: BTreeMap<&str, File> = files
            .iter()
            .filter(|(name, _)| name.starts_with(folder))
            .map(|(name, text)| (*name, File::of(text)))
            .collect();
        for (name, file) in &ours {
            let mut used: BTreeSet<String> = BTreeSet::new();
            for include in &file.includes {
                let beside = Path::new(name).with_file_name(include);
                let above = Path::new(folder).join(include);
                let found = [beside, above]
                    .iter()
                    .map(normal)
                    .find(|path| ours.contains_key(path.as_str()));
                used.extend(found);
            }
            for (other, defined) in &ours {
                if !defined.defines.is_disjoint(&file.names) && other != name {
                    used.insert((*other).to_owned());
                }
            }
            uses.insert((*name).to_owned(), used);
        }
    }
    Ok(uses)
}

/// Returns the path without `..`.
fn normal(path: &PathBuf) -> String {
    let mut normal = PathBuf::new();
    for part in path {
        if part == ".." {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal.to_string_lossy().into_owned()
}

impl File {
    fn of(text: &str) -> Self {
        let mut file = Self::default();
        let mut reader = Reader::default();
        let code = without_comments(text).replace("\\\n", " ");
        for line in code.lines() {
            let Some(directive) = line.trim_start().strip_prefix('#') else {
                reader.read(line, &mut file);
                continue;
            };
            let directive = directive.trim_start();
            if let Some(included) = directive.strip_prefix("include") {
                file.includes.extend(included.split('"').nth(1).map(str::to_owned));
            } else if let Some(define) = directive.strip_prefix("define") {
                file.names.extend(words(define).into_iter().skip(1));
            }
        }
        file
    }
}

/// Follows the braces of a file.
#[derive(Default)]
struct Reader {
    braces: usize,
    parentheses: usize,
    is_static: bool,
    /// The last word outside of parentheses, and the word in front of the last parenthesis there.
    word: String,
    called: String,
}

impl Reader {
    fn read(&mut self, line: &str, file: &mut File) {
        for word in tokens(line) {
            if self.braces > 0 {
                file.names.insert(word.clone());
            }
            match word.as_str() {
                "{" => {
                    if self.braces == 0 && !self.called.is_empty() && !self.is_static {
                        file.defines.insert(std::mem::take(&mut self.called));
                    }
                    self.braces += 1;
                }
                "}" => self.braces = self.braces.saturating_sub(1),
                "(" => {
                    if self.braces == 0 && self.parentheses == 0 {
                        self.called.clone_from(&self.word);
                    }
                    self.parentheses += 1;
                }
                ")" => self.parentheses = self.parentheses.saturating_sub(1),
                _ if self.braces > 0 || self.parentheses > 0 => {}
                "static" => self.is_static = true,
                // A value follows, and no function.
                "=" => self.called.clear(),
                _ => {}
            }
            if self.braces == 0 && self.parentheses == 0 {
                if word == ";" || word == "}" {
                    *self = Self::default();
                } else if word != ")" {
                    self.word = word;
                }
            }
        }
    }
}

/// Splits a line into words, and punctuation into single characters.
fn tokens(line: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut in_word = false;
    for letter in line.chars() {
        let is_word = letter.is_alphanumeric() || letter == '_';
        match tokens.last_mut() {
            Some(last) if is_word && in_word => last.push(letter),
            _ if !letter.is_whitespace() => tokens.push(letter.to_string()),
            _ => {}
        }
        in_word = is_word;
    }
    tokens
}

fn words(line: &str) -> Vec<String> {
    let is_word =
        |token: &String| token.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    tokens(line).into_iter().filter(is_word).collect()
}

/// Removes comments, and the content of strings other than the names of headers.
fn without_comments(text: &str) -> String {
    let mut code = String::new();
    for (n, part) in text.split("/*").enumerate() {
        let kept = if n == 0 { part } else { part.split_once("*/").map_or("", |(_, rest)| rest) };
        code.push_str(kept);
    }
    let mut lines = String::new();
    for line in code.lines() {
        let line = line.split("//").next().unwrap_or_default();
        let is_include = line.trim_start().starts_with('#');
        let parts = line.split('"').enumerate();
        for (n, part) in parts {
            match (is_include, n) {
                (_, 0) => lines.push_str(part),
                (true, _) => lines.extend(["\"", part]),
                (false, n) if n % 2 == 0 => lines.push_str(part),
                _ => {}
            }
        }
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "#include \"abi.h\"\nvoid a(void); /* b() */\nint b(int x);\n\
                          static inline int twice(int x)\n{\n\treturn b(x) + c(\"d\");\n}\n";
    const SOURCE: &str = "#include <linux/fs.h>\n#include \"private.h\"\n\
                          static int hidden(void)\n{\n\treturn 0;\n}\n\
                          int b(int x)\n{\n\tif (x) {\n\t\ta();\n\t}\n\treturn hidden();\n}\n\
                          static const struct ops table = {\n\t.f = elsewhere,\n};\n\
                          #define M(x) macro_uses(x)\n\
                          static DEFINE_PER_CPU(struct x, y) = {};\nint __init start(void)\n{\n}\n";

    fn set(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn functions_are_defined_and_named() {
        let header = File::of(HEADER);
        assert_eq!(header.includes, set(&["abi.h"]));
        assert_eq!(header.defines, set(&[]));
        assert!(header.names.is_superset(&set(&["b", "c"])) && !header.names.contains("a"));
        assert!(!header.names.contains("d"));
        let source = File::of(SOURCE);
        assert_eq!(source.includes, set(&["private.h"]));
        assert_eq!(source.defines, set(&["b", "start"]));
        assert!(source.names.is_superset(&set(&["a", "hidden", "elsewhere", "macro_uses"])));
    }

    #[test]
    fn files_use_headers_and_each_others_functions() {
        let folder = "hv-driver/glue/xen";
        let [private, cpu, other] =
            ["private.h", "cpu.c", "sub/other.c"].map(|name| format!("{folder}/{name}"));
        let tree = Tree::planted(
            "c-uses",
            &[
                (private.as_str(), HEADER),
                (cpu.as_str(), SOURCE),
                (other.as_str(), "#include \"../private.h\"\nvoid a(void)\n{\n}\n"),
            ],
        );
        let uses = uses(&tree).unwrap();
        assert_eq!(uses[&private], BTreeSet::from([cpu.clone()]));
        assert_eq!(uses[&cpu], BTreeSet::from([private.clone(), other.clone()]));
        assert_eq!(uses[&other], BTreeSet::from([private]));
    }
}
