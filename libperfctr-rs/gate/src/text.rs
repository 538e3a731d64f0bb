// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Numbers and names as people read them.

/// Returns the text with its control characters spelt out. Programs choose their threads' names and
/// their functions' names, and could otherwise send commands to the terminal.
pub fn harmless(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

/// Returns the number's digits in groups of three: "1,234".
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelt_out() {
        assert_eq!(harmless("воркер 1"), "воркер 1");
        assert_eq!(harmless("a\x1b[2Jb\nc\u{9b}"), "a\\u{1b}[2Jb\\nc\\u{9b}");
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345_678, "12,345,678")]
        {
            assert_eq!(grouped(number), text);
        }
    }
}
