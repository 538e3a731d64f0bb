// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Why nothing could be compared.

use std::io;
use std::path::PathBuf;

/// Why counts cannot be compared with earlier ones.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A baseline cannot be read.
    #[error("cannot read {}, which `--update` writes", path.display())]
    #[non_exhaustive]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A baseline cannot be written.
    #[error("cannot write {}", path.display())]
    #[non_exhaustive]
    Write {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The text of a file is not JSON, or has not the fields of a baseline.
    #[error("this is no baseline")]
    Syntax(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A file is of another program, or of a later version.
    #[error("{format:?} version {version} found, {:?} version {} expected", expected.0, expected.1)]
    #[non_exhaustive]
    Format {
        /// The format that the file says.
        format: String,
        /// The version that the file says.
        version: u32,
        /// What can be read.
        expected: (&'static str, u32),
    },
    /// The addresses of programs stay random.
    #[error(
        "cannot keep the program's addresses from being random; containers forbid it unless they \
         are started with `--security-opt seccomp=unconfined` or the like"
    )]
    Addresses(#[source] io::Error),
    /// The process that runs the benchmarks cannot be started, or has not ended well.
    #[error("the benchmarks have failed in a process of their own")]
    Process(#[source] io::Error),
    /// The counters cannot be read.
    #[error(transparent)]
    Counters(#[from] perfctr::Error),
    /// Every reading of the counters was disturbed.
    #[error("each of {attempts} runs was disturbed while the counters were read")]
    #[non_exhaustive]
    Disturbed {
        /// The number of runs.
        attempts: u32,
    },
    /// Two benchmarks have the same name, so the baseline cannot tell which is which.
    #[error("another benchmark has this name, too")]
    SameName,
}
