// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The driver's C files for a hypervisor, and where its lines go in that hypervisor's own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::tools::overlay::{self, Files};
use crate::tools::{cache, hooks, sh};

/// The folder of each hypervisor that describes the insertions into its releases.
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

    /// Where hooks files are.
    pub fn hooks(&self) -> PathBuf {
        self.folder().join(HOOKS)
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

    /// What the project changes in `source`, by this hooks file, as a patch.
    pub fn patch(&self, source: &Path, hooks: &Path) -> Result<String> {
        let mut files = self.files()?;
        files.extend(hooks::apply(source, hooks)?);
        let scratch = cache::root()?.join("work");
        fs::create_dir_all(&scratch)?;
        overlay::diff(source, &files, &scratch)
    }
}
