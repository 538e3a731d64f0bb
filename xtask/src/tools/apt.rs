// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Debian packages and source packages by name.
//!
//! A private apt configuration is derived from the machine's own entries for its Debian release,
//! with `deb-src` added. Nothing under `/etc/apt` changes and no mirror is named here.
//!
//! A mirror's index is sometimes newer than its pool. Where a file is missing, the same is asked of
//! the release without its update suites, whose files do not disappear.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

/// How old the package lists may be before they are fetched again.
const LISTS_FRESH: Duration = Duration::from_secs(24 * 3600);

/// Which suites of the release to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suites {
    /// The release with its updates and security suites.
    All,
    /// The release as it was published.
    Release,
}

/// Installs those of `packages` that are missing.
pub fn install(packages: &[&str], why: &str) -> Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|name| !installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let _lock = cache::lock("apt-install")?;
    let log = cache::log("apt-install")?;
    sh::step(&format!("Debian packages for {why}: {}", missing.join(" ")), || {
        with_fallback(|suites| {
            let mut args = vec!["install", "-y", "--no-install-recommends"];
            args.extend(&missing);
            let apt = apt("apt-get", suites)?;
            let mut command = as_root(&apt)?;
            command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
            sh::logged(&mut command, &log)
        })
    })
}

/// The directory with the unpacked source package `name`, whose version starts with `upstream`.
pub fn source(name: &str, upstream: &str) -> Result<PathBuf> {
    let key = Key::new("source 1").text(name).text(upstream);
    let dir = cache::artefact(&format!("source-{name}"), key, |dir| {
        install(&["dpkg-dev", "xz-utils"], "unpacking sources")?;
        let versions = source_versions(name, upstream)?;
        let log = cache::log(&format!("source-{name}"))?;
        let fetched = versions.iter().find(|version| {
            let mut command = apt("apt-get", Suites::All).expect("the lists were read above");
            command.args(["source", "--download-only", &format!("{name}={version}")]);
            sh::logged(command.current_dir(dir), &log).is_ok()
        });
        ensure!(
            fetched.is_some(),
            "no source of {name} could be fetched; tried {}\n{}",
            versions.join(", "),
            sh::tail(&log)
        );
        let dsc = cache::files(dir)?.into_iter().find(|(file, _)| file.ends_with(".dsc"));
        let (dsc, _) = dsc.context("apt-get source fetched no .dsc file")?;
        let mut unpack = cmd("dpkg-source", ["--no-check", "-x", &dsc, "tree"]);
        sh::logged(unpack.current_dir(dir), &log)
    })?;
    Ok(dir.join("tree"))
}

/// The packages that `name` depends on directly.
pub fn depends(name: &str) -> Result<Vec<String>> {
    let text = sh::output(apt("apt-cache", Suites::All)?.args(["depends", name]))?;
    Ok(text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .map(str::to_owned)
        .collect())
}

/// Fetches packages into `dir`, without installing them; with `closure`, everything that they
/// need on an empty system as well. Returns the package files.
pub fn fetch(packages: &[&str], closure: bool, dir: &Path) -> Result<Vec<PathBuf>> {
    let debs = dir.join("debs");
    fs::create_dir_all(debs.join("partial"))?;
    let status = dir.join("status");
    fs::write(&status, "")?;
    let log = cache::log("apt-fetch")?;
    with_fallback(|suites| {
        let mut command = apt("apt-get", suites)?;
        if closure {
            command
                .arg("-o")
                .arg(format!("Dir::State::Status={}", status.display()))
                .arg("-o")
                .arg(format!("Dir::Cache::Archives={}", debs.display()))
                .args(["-o", "Debug::NoLocking=1", "-o", "APT::Install-Recommends=0"])
                .args(["install", "-y", "--download-only"]);
        } else {
            command.arg("download");
        }
        sh::logged(command.args(packages).current_dir(&debs), &log)
    })?;
    let found = cache::files(&debs)?;
    Ok(found.into_iter().map(|(_, path)| path).filter(|p| extension(p) == "deb").collect())
}

/// Unpacks package files into `dir`, keeping links to directories such as `/bin`.
pub fn unpack(debs: &[PathBuf], dir: &Path) -> Result<()> {
    for deb in debs {
        let script = "dpkg-deb --fsys-tarfile \"$1\" | tar -x --keep-directory-symlink -C \"$2\"";
        sh::output(cmd("sh", ["-c", script, "sh"]).arg(deb).arg(dir))?;
    }
    Ok(())
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|e| e.to_str()).unwrap_or_default()
}

fn installed(package: &str) -> bool {
    sh::output(&mut cmd("dpkg-query", ["-W", "-f", "${db:Status-Status}", package]))
        .is_ok_and(|status| status == "installed")
}

/// The versions of a source package, newest first.
fn source_versions(name: &str, upstream: &str) -> Result<Vec<String>> {
    let text = sh::output(apt("apt-cache", Suites::All)?.args(["showsrc", "--only-source", name]))?;
    let mut versions: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("Version: "))
        .filter(|version| version.split_once(':').map_or(*version, |v| v.1).starts_with(upstream))
        .map(str::to_owned)
        .collect();
    versions.sort_by(|a, b| {
        let newer = cmd("dpkg", ["--compare-versions", a, "gt", b]).status();
        if newer.is_ok_and(|s| s.success()) {
            std::cmp::Ordering::Less
        } else {
            std::cmp::Ordering::Greater
        }
    });
    versions.dedup();
    ensure!(!versions.is_empty(), "Debian has no source package {name} {upstream}");
    Ok(versions)
}

/// Tries all suites first, then the release alone; reports the first failure if both fail.
fn with_fallback(mut attempt: impl FnMut(Suites) -> Result<()>) -> Result<()> {
    attempt(Suites::All).or_else(|first| {
        eprintln!("  apt failed; once more without the update suites ...");
        attempt(Suites::Release).map_err(|_| first)
    })
}

/// A command of the apt family that uses the private configuration.
fn apt(program: &str, suites: Suites) -> Result<Command> {
    static CONFIG: OnceLock<PathBuf> = OnceLock::new();
    let base = match CONFIG.get() {
        Some(base) => base,
        None => {
            let base = prepare()?;
            CONFIG.get_or_init(|| base)
        }
    };
    Ok(cmd(program, options(base, suites)))
}

fn options(base: &Path, suites: Suites) -> Vec<String> {
    let base = base.display();
    let suites = match suites {
        Suites::All => "all",
        Suites::Release => "release",
    };
    [
        "Dir::Etc::SourceList=/dev/null".to_owned(),
        format!("Dir::Etc::SourceParts={base}/{suites}"),
        format!("Dir::State::Lists={base}/lists-{suites}"),
        format!("Dir::Cache={base}/cache"),
        // The unprivileged download user cannot enter a cache below root's home.
        "APT::Sandbox::User=root".to_owned(),
        "DPkg::Lock::Timeout=600".to_owned(),
        "Acquire::Retries=2".to_owned(),
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
    ]
    .into_iter()
    .flat_map(|option| ["-o".to_owned(), option])
    .collect()
}

fn as_root(command: &Command) -> Result<Command> {
    if sh::output(&mut cmd("id", ["-u"]))?.trim() == "0" {
        let mut same = Command::new(command.get_program());
        same.args(command.get_args());
        return Ok(same);
    }
    if cmd("sudo", ["--version"]).output().is_err() {
        bail!("packages must be installed: run this once as root, or install sudo");
    }
    let mut sudo = Command::new("sudo");
    sudo.arg(command.get_program()).args(command.get_args());
    Ok(sudo)
}

/// Writes the private sources and fetches the package lists if they are old.
fn prepare() -> Result<PathBuf> {
    let _lock = cache::lock("apt-lists")?;
    let base = cache::root()?.join("apt");
    fs::create_dir_all(base.join("cache/archives/partial"))?;
    let codename = codename()?;
    for (suites, name) in [(Suites::All, "all"), (Suites::Release, "release")] {
        let parts = base.join(name);
        fs::create_dir_all(&parts)?;
        fs::create_dir_all(base.join(format!("lists-{name}/partial")))?;
        let (lines, stanzas) = private_sources(&codename, suites)?;
        fs::write(parts.join("lines.list"), lines)?;
        fs::write(parts.join("stanzas.sources"), stanzas)?;
    }
    let stamp = base.join("updated");
    let age = stamp.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
    if age.is_none_or(|age| age > LISTS_FRESH) {
        let log = cache::log("apt-update")?;
        sh::step("package lists", || {
            for suites in [Suites::All, Suites::Release] {
                sh::logged(cmd("apt-get", options(&base, suites)).arg("update"), &log)?;
            }
            Ok(())
        })?;
        fs::write(&stamp, "")?;
    }
    Ok(base)
}

fn codename() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release has no VERSION_CODENAME")?.trim_matches('"').to_owned())
}

/// The machine's entries for its release, in both formats of apt, with sources added.
fn private_sources(codename: &str, suites: Suites) -> Result<(String, String)> {
    let wanted = |suite: &str| {
        suite == codename || suites == Suites::All && suite.starts_with(&format!("{codename}-"))
    };
    let mut lines = String::new();
    let mut stanzas = String::new();
    let mut sources = vec![PathBuf::from("/etc/apt/sources.list")];
    sources.extend(cache::files(Path::new("/etc/apt/sources.list.d"))?.into_iter().map(|f| f.1));
    for file in sources.iter().filter(|file| file.exists()) {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        match extension(file) {
            "list" => lines += &one_line_sources(&text, wanted),
            "sources" => stanzas += &deb822_sources(&text, wanted),
            _ => {}
        }
    }
    ensure!(
        !(lines.is_empty() && stanzas.is_empty()),
        "apt has no entry for the component main of {codename}; Debian 12 (bookworm) is expected"
    );
    Ok((lines, stanzas))
}

/// `deb [options] URI SUITE COMPONENT...` entries, each as a `deb` and a `deb-src` line.
fn one_line_sources(text: &str, wanted: impl Fn(&str) -> bool) -> String {
    let mut result = String::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("deb ") else { continue };
        let rest = rest.trim();
        let options_end = if rest.starts_with('[') { rest.find(']') } else { None };
        let plain = options_end.map_or(rest, |end| &rest[end + 1..]);
        let words: Vec<&str> = plain.split_whitespace().collect();
        let is_wanted = words.len() >= 3
            && !words[0].starts_with("cdrom:")
            && wanted(words[1])
            && words[2..].contains(&"main");
        if is_wanted {
            result += &format!("deb {rest}\ndeb-src {rest}\n");
        }
    }
    result
}

/// Stanzas of `Field: value` lines, with both types and only the wanted suites.
fn deb822_sources(text: &str, wanted: impl Fn(&str) -> bool) -> String {
    let mut result = String::new();
    let uncommented: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for stanza in uncommented.split(|line| line.trim().is_empty()) {
        let field = |name: &str| {
            stanza.iter().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        let suites: Vec<&str> = field("Suites").map_or(Vec::new(), |value| {
            value.split_whitespace().filter(|suite| wanted(suite)).collect()
        });
        let has_main =
            field("Components").is_some_and(|v| v.split_whitespace().any(|c| c == "main"));
        let is_binary = field("Types").is_some_and(|v| v.split_whitespace().any(|t| t == "deb"));
        if suites.is_empty() || !has_main || !is_binary || field("Enabled") == Some("no") {
            continue;
        }
        result += &format!("Types: deb deb-src\nSuites: {}\n", suites.join(" "));
        for line in stanza {
            let key = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
            if key != "types" && key != "suites" {
                result += &format!("{line}\n");
            }
        }
        result.push('\n');
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bookworm(suite: &str) -> bool {
        suite == "bookworm" || suite.starts_with("bookworm-")
    }

    #[test]
    fn one_line_entries_get_a_source_line() {
        let text = "# deb http://m/debian bookworm main\n\
                    deb [signed-by=/k] http://m/debian bookworm main contrib\n\
                    deb http://other/apt tool-bookworm main\n\
                    deb cdrom:[Debian]/ bookworm main\n";
        assert_eq!(
            one_line_sources(text, bookworm),
            "deb [signed-by=/k] http://m/debian bookworm main contrib\n\
             deb-src [signed-by=/k] http://m/debian bookworm main contrib\n"
        );
    }

    #[test]
    fn deb822_entries_keep_their_key_and_lose_other_suites() {
        let text = "Types: deb\nURIs: http://m/debian\nSuites: bookworm trixie\n\
                    Components: main\nSigned-By: /k\n\n\
                    Types: deb\nURIs: http://n/\nSuites: nodistro\nComponents: main\n";
        assert_eq!(
            deb822_sources(text, bookworm),
            "Types: deb deb-src\nSuites: bookworm\nURIs: http://m/debian\n\
             Components: main\nSigned-By: /k\n\n"
        );
    }
}
