// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds and installs the command `perfctr`.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::artefacts::guest;
use crate::tools::cache;
use crate::tools::sh::{self, cmd};

/// Where shells look for completions of `perfctr`, with the name of the file that clap writes.
const COMPLETIONS: [(&str, &str); 3] = [
    ("perfctr.bash", "share/bash-completion/completions/perfctr"),
    ("_perfctr", "share/zsh/site-functions/_perfctr"),
    ("perfctr.fish", "share/fish/vendor_completions.d/perfctr.fish"),
];

/// Builds the command and installs it with its man pages and completions below `prefix`.
pub fn install(prefix: &Path) -> Result<()> {
    replace(&guest::dynamic("perfctr", "pfm")?.join("perfctr"), &prefix.join("bin/perfctr"))?;
    // The man pages and completions are generated from the command's own description of its
    // options, which is written nowhere else.
    let generated = cache::scratch("generated")?;
    if generated.exists() {
        fs::remove_dir_all(&generated)?;
    }
    let program = prefix.join("bin/perfctr").canonicalize()?;
    sh::output(cmd(&program.to_string_lossy(), ["generate"]).arg(&generated))?;
    for (name, path) in cache::files(&generated.join("man1"))? {
        replace(&path, &prefix.join("share/man/man1").join(name))?;
    }
    for (from, to) in COMPLETIONS {
        replace(&generated.join("completions").join(from), &prefix.join(to))?;
    }
    Ok(())
}

/// Copies a file in place of an old version that may be in use.
fn replace(from: &Path, to: &Path) -> Result<()> {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory)?;
    }
    if to.exists() {
        fs::remove_file(to)?;
    }
    fs::copy(from, to)?;
    Ok(())
}
