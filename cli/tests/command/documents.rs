// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that what `--json` prints says what it is.

use serde_json::Value;

use crate::run::run;

#[test]
fn every_document_says_its_format_and_version() {
    for (line, format) in [
        ("info --json", "perfctr info"),
        ("list --json", "perfctr list"),
        ("selftest --json", "perfctr selftest"),
        ("stat --json true", "perfctr stat"),
    ] {
        let printed = run(line);
        let text = if printed.out.is_empty() { &printed.err } else { &printed.out };
        let document: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{printed:?}"));
        assert_eq!(document["format"], format);
        assert_eq!(document["version"], 1, "{line}");
    }
}
