// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds an emulator of a source package, with the project's files over it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::overlay::{self, Files};
use crate::tools::sh;

/// The description of an emulator's build, beside its sources.
pub struct Recipe {
    /// The folder below `testbed/` that has the project's files `src/` and `hooks.patch`. The
    /// artefact has the same name.
    pub name: &'static str,
    /// The name of the package's authors, for messages.
    pub title: &'static str,
    /// Debian packages that the build needs.
    pub packages: &'static [&'static str],
    /// Options of the source's `configure`.
    pub configure: &'static [&'static str],
    /// The name of the program that is built.
    pub program: &'static str,
}

/// Returns the program that `build` makes of `source`. `build` gets a work folder, the files to
/// put over the source, and a log. It returns the program that it has built.
pub fn program(
    recipe: &Recipe,
    source: &Path,
    build: impl FnOnce(&Path, &Files, &Path) -> Result<PathBuf>,
) -> Result<PathBuf> {
    let ours = sh::project().join("testbed").join(recipe.name);
    let (patch, files) = (ours.join("hooks.patch"), ours.join("src"));
    let key = Key::new(&format!("{} 1", recipe.name))
        .text(&source.to_string_lossy())
        .text(&recipe.configure.join(" "))
        .path(&files)?
        .path(&patch)?;
    let dir = cache::artefact(recipe.name, key, |dir| {
        apt::install(recipe.packages, &format!("building {}", recipe.title))?;
        let work = cache::root()?.join("work").join(recipe.name);
        let mut files = overlay::read(&files, "")?;
        files.extend(overlay::patched(source, &patch, &work)?);
        let built = build(&work, &files, &cache::log(recipe.name)?)?;
        fs::copy(built, dir.join(recipe.program))?;
        Ok(())
    })?;
    Ok(dir.join(recipe.program))
}
