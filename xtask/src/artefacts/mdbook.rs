// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds mdBook, which makes pages of the book.

use std::path::PathBuf;

use anyhow::Result;

use crate::tools::cache::{self, Key};
use crate::tools::{apt, sh, toolchain};

const VERSION: &str = "0.5.4";

/// Builds the program, without the parts that serve and search books.
pub fn mdbook() -> Result<PathBuf> {
    let dir = cache::artefact("mdbook", Key::new("mdbook 1").text(VERSION), |dir| {
        apt::install(&["gcc", "libc6-dev"], "building mdBook")?;
        let mut cargo = toolchain::cargo();
        cargo.args([
            "install",
            "mdbook",
            "--version",
            VERSION,
            "--locked",
            "--no-default-features",
        ]);
        // This is built without optimisation: the program makes only one small book, so most of the
        // time goes into compiling it.
        cargo.args(["--debug", "--root"]).arg(dir);
        sh::logged(&mut cargo, &cache::log("mdbook")?)
    })?;
    Ok(dir.join("bin/mdbook"))
}
