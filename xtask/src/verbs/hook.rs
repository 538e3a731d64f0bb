// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask hook` has git run the quick checks before each commit.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::tools::sh::{self, cmd};

/// The hook's script. The checks read all changes, even if only a part of them is committed.
const SCRIPT: &str = "#!/bin/sh\n\
                      # Installed by `cargo xtask hook`; `git commit --no-verify` goes past it.\n\
                      exec cargo xtask check --quick\n";

/// Installs the hook where git looks for it.
pub fn run() -> Result<()> {
    let path = ["rev-parse", "--path-format=absolute", "--git-path", "hooks/pre-commit"];
    let hook = sh::output(cmd("git", path).current_dir(sh::project()))?;
    install(Path::new(hook.trim()))?;
    println!("installed {}", hook.trim());
    Ok(())
}

/// Writes the hook, unless somebody else's hook is there.
fn install(hook: &Path) -> Result<()> {
    let found = fs::read_to_string(hook).unwrap_or_default();
    ensure!(
        found.is_empty() || found == SCRIPT,
        "{} is another hook; add `cargo xtask check --quick` to it",
        hook.display()
    );
    if let Some(dir) = hook.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(hook, SCRIPT)?;
    Ok(fs::set_permissions(hook, fs::Permissions::from_mode(0o755))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_installed_once_and_nobody_elses_is_lost() {
        let dir = std::env::temp_dir().join(format!("xtask-hook-{}", std::process::id()));
        let hook = dir.join("hooks/pre-commit");
        install(&hook).unwrap();
        install(&hook).unwrap();
        assert_eq!(fs::metadata(&hook).unwrap().permissions().mode() & 0o111, 0o111);
        fs::write(&hook, "#!/bin/sh\nmine\n").unwrap();
        assert!(install(&hook).unwrap_err().to_string().contains("another hook"));
        assert_eq!(fs::read_to_string(&hook).unwrap(), "#!/bin/sh\nmine\n");
        fs::remove_dir_all(dir).unwrap();
    }
}
