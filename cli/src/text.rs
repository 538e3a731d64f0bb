// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Writes to terminals and pipes.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

/// Writes to the standard output at once.
///
/// # Errors
///
/// The reader has gone ([`is_closed_pipe`]), or there is no room.
pub fn print(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

/// Writes bytes that may be no text to the standard output at once.
///
/// # Errors
///
/// As for [`print`].
pub fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(bytes)?;
    output.flush()
}

/// Returns the document that `--json` prints. Programs recognise it by its format and its version.
/// The version changes when a field is removed or changes its meaning, and stays when one is added.
pub fn document(
    format: &str,
    version: u32,
    content: &impl Serialize,
) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Document<'a, T> {
        format: &'a str,
        version: u32,
        #[serde(flatten)]
        content: &'a T,
    }
    Ok(serde_json::to_string_pretty(&Document { format, version, content })? + "\n")
}

/// Prints a note to the user in addition to the output. If it cannot be written, nobody can be
/// told.
pub fn print_note(text: impl Display) {
    writeln!(io::stderr(), "perfctr: {text}").ok();
}

/// Returns whether the reader of a pipe has closed it, and so wants to read nothing more.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(closed))
}

/// Returns a number with its noun: "1 sample", "2 samples".
pub fn counted(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_was_closed_is_found_below_what_is_said_of_it() {
        let error = |kind: io::ErrorKind| anyhow::Error::new(io::Error::from(kind));
        let closed = || error(io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&closed()));
        assert!(is_closed_pipe(&closed().context("cannot write").context("no report")));
        assert!(!is_closed_pipe(&error(io::ErrorKind::StorageFull).context("cannot write")));
        assert!(!is_closed_pipe(&anyhow::anyhow!("broken pipe")));
    }

    #[test]
    fn documents_say_what_they_are_before_what_they_contain() {
        let text = document("perfctr list", 1, &serde_json::json!({ "events": [7] })).unwrap();
        let words: String = text.split_whitespace().collect();
        assert_eq!(words, r#"{"format":"perfctrlist","version":1,"events":[7]}"#);
        assert!(text.ends_with("}\n"), "{text}");
    }

    #[test]
    fn numbers_agree_with_their_nouns() {
        let all = [0, 1, 2].map(|n| counted(n, "thread"));
        assert_eq!(all, ["0 threads", "1 thread", "2 threads"]);
    }
}
