// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The driver's C files for a hypervisor, and where its lines go in that hypervisor's own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::tools::overlay::{self, Files};
use crate::tools::{cache, hooks, sh};

/// The folder of each hypervisor that describes the insertions into its files.
const HOOKS: &str = "hooks";

/// One hypervisor's.
pub struct Glue {
    /// Its folder in `hv-driver/glue`.
    pub host: &'static str,
    /// Where the driver lives in its tree.
    pub dir: &'static str,
}

impl Glue {
    fn folder(&self) -> PathBuf {
        sh::project().join("hv-driver/glue").join(self.host)
    }

    /// Which lines go where in the hypervisor's own files.
    fn anchors(&self) -> PathBuf {
        self.folder().join(HOOKS).join("anchors.toml")
    }

    /// The releases that lines can be inserted into.
    pub fn releases(&self) -> Result<Vec<String>> {
        hooks::releases(&self.anchors())
    }

    /// The hypervisor's own files in `source`, which is of this release, with the driver's lines.
    pub fn insertions(&self, source: &Path, release: &str) -> Result<Files> {
        hooks::apply(source, &self.anchors(), release)
    }

    /// The driver's own files: its C, and the headers that declare the Rust object.
    pub fn files(&self) -> Result<Files> {
        let dir = self.dir;
        let mut files = overlay::read(&self.folder(), dir)?;
        files.retain(|name, _| !name.starts_with(&format!("{dir}/{HOOKS}/")));
        files.extend(overlay::read(&sh::project().join("shared-abi/include"), dir)?);
        let core = fs::read(sh::project().join("hv-driver/glue/perfctr_core.h"))?;
        files.insert(format!("{dir}/perfctr_core.h"), core);
        Ok(files)
    }

    /// What the project changes in `source`, which is of this release, as a patch.
    pub fn patch(&self, source: &Path, release: &str) -> Result<String> {
        let mut files = self.files()?;
        files.extend(self.insertions(source, release)?);
        let scratch = cache::root()?.join("work");
        fs::create_dir_all(&scratch)?;
        overlay::diff(source, &files, &scratch)
    }
}
