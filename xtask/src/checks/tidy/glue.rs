// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks that the C around the module's core stays small: what decides belongs in the core.

use anyhow::Result;

use super::{Tree, is_generated};

/// Where the C is that the kernel calls, and that calls the kernel.
const GLUE: &str = "guest-kmod/glue/";

/// The most lines with code in all files of the glue together.
const LINES: usize = 2_200;

pub fn faults(tree: &Tree) -> Result<Vec<String>> {
    let lines: usize = tree
        .files(&["c", "h"])?
        .iter()
        .filter(|(name, _)| name.starts_with(GLUE))
        .filter(|(_, text)| !is_generated(text))
        .map(|(_, text)| lines_of_code(text))
        .sum();
    let fault = format!("{GLUE}: {lines} lines of C with code, more than {LINES}");
    Ok(if lines > LINES { vec![fault] } else { Vec::new() })
}

/// Counts the lines that hold more than comments and white space. The glue has no comments of the
/// other form, and no string in which a comment could seem to begin.
fn lines_of_code(text: &str) -> usize {
    let mut is_comment = false;
    let holds_code = |line: &&str| {
        let (mut rest, mut holds_code) = (*line, false);
        loop {
            let mark = if is_comment { "*/" } else { "/*" };
            let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
            holds_code |= !is_comment && !before.trim().is_empty();
            if before.len() == rest.len() {
                return holds_code;
            }
            is_comment = !is_comment;
            rest = after;
        }
    };
    text.lines().filter(holds_code).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_empty_lines_hold_no_code() {
        let text =
            "/* One. */\n\n/*\n * Two.\n */\nint a; /* three */\n/* four */ int b; /*\n*/\n}\n";
        assert_eq!(lines_of_code(text), 3);
    }

    #[test]
    fn glue_that_has_grown_is_found_and_what_is_generated_is_not_counted() {
        let most = "int a;\n".repeat(LINES - 1);
        let header = format!("/* Generated from src/lib.rs. */\n{most}");
        let full = [("guest-kmod/glue/a.c", most.as_str()), ("guest-kmod/glue/b/c.h", "int b;\n")];
        let other = [("guest-kmod/glue/core.h", header.as_str()), ("hv-driver/d.c", "int d;\n")];
        let tree = Tree::planted("glue", &[full, other].concat());
        assert!(faults(&tree).unwrap().is_empty());
        drop(tree);
        let more = [full[0], ("guest-kmod/glue/b/c.h", "int b;\nint c;\n")];
        let tree = Tree::planted("glue", &more);
        let found = faults(&tree).unwrap();
        assert_eq!(found, ["guest-kmod/glue/: 2201 lines of C with code, more than 2200"]);
    }
}
