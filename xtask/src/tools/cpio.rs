// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Writes a cpio archive in the "newc" format, which the Linux kernel unpacks at boot.
//!
//! Everything belongs to root in the guest, whoever owns it here.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

use anyhow::{Context, Result};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

/// An archive being written. A later entry of the same name replaces an earlier one when unpacked.
pub struct Archive<W: Write> {
    out: W,
    entries: u32,
    directories: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    /// Starts an archive.
    pub fn new(out: W) -> Self {
        Self { out, entries: 0, directories: BTreeSet::new() }
    }

    /// Adds a file with the given permission bits, and its parent directories.
    pub fn file(&mut self, name: &str, permissions: u32, content: &[u8]) -> Result<()> {
        self.parents(name)?;
        self.entry(name, REGULAR | permissions, content)
    }

    /// Adds a symbolic link, and its parent directories.
    pub fn symlink(&mut self, name: &str, target: &[u8]) -> Result<()> {
        self.parents(name)?;
        self.entry(name, SYMLINK | 0o777, target)
    }

    /// Adds a directory, and its parents.
    pub fn directory(&mut self, name: &str, permissions: u32) -> Result<()> {
        self.parents(name)?;
        if self.directories.insert(name.to_owned()) {
            self.entry(name, DIRECTORY | permissions, &[])?;
        }
        Ok(())
    }

    /// Adds the contents of `source` under the directory `name` ("" for the root).
    ///
    /// Files, directories and symbolic links are kept; devices and sockets are left out.
    pub fn tree(&mut self, name: &str, source: &Path) -> Result<()> {
        let mut children: Vec<_> = fs::read_dir(source)
            .with_context(|| format!("cannot read the directory {}", source.display()))?
            .collect::<Result<_, _>>()?;
        children.sort_by_key(fs::DirEntry::file_name);
        for child in children {
            let path = child.path();
            let base = child
                .file_name()
                .into_string()
                .ok()
                .with_context(|| format!("{}: the name is not UTF-8", path.display()))?;
            let inner = if name.is_empty() { base } else { format!("{name}/{base}") };
            let metadata = fs::symlink_metadata(&path)?;
            let permissions = metadata.permissions().mode() & 0o7777;
            if metadata.is_dir() {
                self.directory(&inner, permissions)?;
                self.tree(&inner, &path)?;
            } else if metadata.is_symlink() {
                self.symlink(&inner, fs::read_link(&path)?.as_os_str().as_bytes())?;
            } else if metadata.is_file() {
                let content = fs::read(&path).with_context(|| path.display().to_string())?;
                self.file(&inner, permissions, &content)?;
            }
        }
        Ok(())
    }

    /// Ends the archive and returns the writer.
    pub fn finish(mut self) -> Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn parents(&mut self, name: &str) -> Result<()> {
        let mut prefix = String::new();
        let parent = Path::new(name).parent().unwrap_or(Path::new(""));
        for component in parent.components() {
            let Component::Normal(part) = component else { continue };
            if !prefix.is_empty() {
                prefix.push('/');
            }
            prefix += &part.to_string_lossy();
            if self.directories.insert(prefix.clone()) {
                self.entry(&prefix.clone(), DIRECTORY | 0o755, &[])?;
            }
        }
        Ok(())
    }

    /// Writes one entry: 13 fields of 8 hexadecimal digits after the magic, the name, and the
    /// content, each padded to 4 bytes.
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.entries += 1;
        let size = u32::try_from(content.len()).with_context(|| format!("{name} is too large"))?;
        let links = 1;
        let name_size = u32::try_from(name.len() + 1)?;
        let fields = [self.entries, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        let mut header = b"070701".to_vec();
        for field in fields {
            write!(header, "{field:08X}")?;
        }
        header.extend_from_slice(name.as_bytes());
        header.push(0);
        self.padded(&header)?;
        self.padded(content)
    }

    fn padded(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes)?;
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.out.write_all(&[0; 3][..padding])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_first_and_once() {
        let mut archive = Archive::new(Vec::new());
        archive.file("a/b/c", 0o644, b"hello").unwrap();
        archive.symlink("a/b/d", b"c").unwrap();
        let bytes = archive.finish().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let names: Vec<&str> =
            text.split("070701").skip(1).map(|e| e[104..].split('\0').next().unwrap()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/c", "a/b/d", "TRAILER!!!"]);
        assert_eq!(bytes.len() % 4, 0);
    }
}
