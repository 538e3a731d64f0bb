// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Collects the driver's C files for a hypervisor, and inserts its lines into that hypervisor's own
//! files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::tools::overlay::{self, Files};
use crate::tools::{hooks, sh};

/// The folder, in each hypervisor's, that describes the insertions into its files.
const HOOKS: &str = "hooks";

/// The glue of one hypervisor.
pub struct Glue {
    /// Its folder in `hv-driver/glue`.
    pub host: &'static str,
    /// The driver's directory in the hypervisor's source tree.
    pub dir: &'static str,
}

impl Glue {
    fn folder(&self) -> PathBuf {
        sh::project().join("hv-driver/glue").join(self.host)
    }

    /// Returns the file that says which lines go where in the hypervisor's own files.
    fn anchors(&self) -> PathBuf {
        self.folder().join(HOOKS).join("anchors.toml")
    }

    /// Returns the releases that lines can be inserted into.
    pub fn releases(&self) -> Result<Vec<String>> {
        hooks::releases(&self.anchors())
    }

    /// Returns the hypervisor's own files in `source` that get the driver's lines, with these lines
    /// in them. `source` is of this release.
    pub fn insertions(&self, source: &Path, release: &str) -> Result<Files> {
        hooks::apply(source, &self.anchors(), release)
    }

    /// Returns the driver's own files: its C, and the headers that declare the Rust object.
    pub fn files(&self) -> Result<Files> {
        let dir = self.dir;
        let mut files = overlay::read(&self.folder(), dir)?;
        files.retain(|name, _| !name.starts_with(&format!("{dir}/{HOOKS}/")));
        files.extend(overlay::read(&sh::project().join("shared-abi/include"), dir)?);
        let core = fs::read(sh::project().join("hv-driver/glue/perfctr_core.h"))?;
        files.insert(format!("{dir}/perfctr_core.h"), core);
        Ok(files)
    }

    /// Returns the project's changes to `source`, which is of this release, as a patch.
    pub fn patch(&self, source: &Path, release: &str) -> Result<String> {
        let mut files = self.files()?;
        files.extend(self.insertions(source, release)?);
        overlay::diff(source, &files)
    }
}
