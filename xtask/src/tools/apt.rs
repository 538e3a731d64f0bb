// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gets Debian packages and source packages by name.
//!
//! A private apt configuration is derived from the machine's own entries for its Debian release,
//! with `deb-src` added. Nothing under `/etc/apt` changes, and no mirror is named here. A mirror
//! has all releases. The testbed's packages and sources are always of one release, and later
//! sources are used where these are too old. Only packages that are installed on this machine are
//! of the machine's own release.
//!
//! A mirror's index is sometimes newer than its pool. If a file is missing, it is fetched from the
//! release without its update suites, whose files do not disappear.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

/// How old the package lists may be before they are fetched again.
const LISTS_FRESH: Duration = Duration::from_secs(24 * 3600);

/// The release that the testbed consists of: Debian 12.
pub const TESTBED: &str = "bookworm";

/// The release after it: Debian 13.
pub const NEWER: &str = "trixie";

/// The releases after the testbed's.
const LATER: &[&str] = &[NEWER, "forky", "sid"];

/// The suites to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Suites {
    /// The machine's own release with its updates and security suites, where it is not the
    /// testbed's.
    Own,
    /// The testbed's release with its updates and security suites.
    All,
    /// The testbed's release as it was published.
    Release,
    /// Sources of later releases.
    Later,
    /// These suites of another release.
    Other(Vec<String>),
}

impl Suites {
    fn name(&self) -> String {
        match self {
            Self::Own => "own".into(),
            Self::All => "all".into(),
            Self::Release => "release".into(),
            Self::Later => "later".into(),
            Self::Other(suites) => suites.join("+"),
        }
    }

    /// Returns the types of entries.
    fn types(&self) -> &'static [&'static str] {
        match self {
            Self::Later => &["deb-src"],
            Self::Own | Self::Other(_) => &["deb"],
            Self::All | Self::Release => &["deb", "deb-src"],
        }
    }

    /// Returns the suites to ask a mirror for if the machine asks it for `suite`, which has its
    /// release's name in it.
    fn of(&self, suite: &str, codename: &str) -> Vec<String> {
        let Some(kind) = suite.strip_prefix(codename) else { return Vec::new() };
        let names = |names: &[&str]| names.iter().copied().map(str::to_owned).collect();
        match (self, kind) {
            (Self::Later, "") => names(LATER),
            (Self::Other(suites), "") => suites.clone(),
            (Self::Release, "") => names(&[TESTBED]),
            (Self::All, kind) if kind.is_empty() || kind.starts_with('-') => {
                vec![format!("{TESTBED}{kind}")]
            }
            (Self::Own, kind) if kind.is_empty() || kind.starts_with('-') => names(&[suite]),
            _ => Vec::new(),
        }
    }
}

/// Installs those of `packages` that are missing.
pub fn install(packages: &[&str], why: &str) -> Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|name| !installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let _lock = cache::lock("apt-install")?;
    let log = cache::log("apt-install")?;
    let attempt = |suites: &Suites| {
        let mut args = vec!["install", "-y", "--no-install-recommends"];
        args.extend(&missing);
        let apt = apt("apt-get", suites)?;
        let mut command = sh::root_command(&apt)?;
        command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
        sh::logged(&mut command, &log)
    };
    sh::step(&format!("Debian packages for {why}: {}", missing.join(" ")), || {
        if is_testbeds()? { with_fallback(attempt) } else { attempt(&Suites::Own) }
    })
}

/// Returns the directory with the unpacked source package `name`, whose version starts with
/// `upstream`.
pub fn source(name: &str, upstream: &str) -> Result<PathBuf> {
    let key = Key::new("source 1").text(name).text(upstream);
    let dir = cache::artefact(&format!("source-{name}"), key, |dir| {
        install(&["dpkg-dev", "xz-utils"], "unpacking sources")?;
        let versions = source_versions(name, upstream, &Suites::All)?;
        let dsc = fetch_source(name, &versions, &Suites::All, &[], dir, ".dsc")?;
        let mut unpack = cmd("dpkg-source", ["--no-check", "-x"]);
        unpack.arg(dsc).arg("tree").current_dir(dir);
        sh::logged(&mut unpack, &cache::log(&format!("source-{name}"))?)
    })?;
    Ok(dir.join("tree"))
}

/// Returns the directory with the sources of `name` as its authors have released them, without
/// Debian's changes. They come from a later release: the newest available ones whose version starts
/// with one of `upstream`.
pub fn unpatched(name: &str, upstream: &[&str]) -> Result<PathBuf> {
    let key = Key::new("unpatched 1").text(name).text(&upstream.join(" "));
    let dir = cache::artefact(&format!("unpatched-{name}"), key, |dir| {
        install(&["xz-utils"], "unpacking sources")?;
        let mut versions = Vec::new();
        for upstream in upstream {
            versions.extend(source_versions(name, upstream, &Suites::Later)?);
        }
        let only = ["--tar-only"];
        let archive = fetch_source(name, &versions, &Suites::Later, &only, dir, ".orig.tar.")?;
        let tree = dir.join("tree");
        fs::create_dir_all(&tree)?;
        let mut tar = cmd("tar", ["-x", "--no-same-owner", "--strip-components=1", "-f"]);
        sh::output(tar.arg(archive).arg("-C").arg(tree)).map(drop)
    })?;
    Ok(dir.join("tree"))
}

/// Fetches the first available one of these versions of a source package. Returns the file whose
/// name contains `part`.
fn fetch_source(
    name: &str,
    versions: &[String],
    suites: &Suites,
    options: &[&str],
    dir: &Path,
    part: &str,
) -> Result<PathBuf> {
    let log = cache::log(&format!("source-{name}"))?;
    let mut is_fetched = false;
    for version in versions {
        let mut command = apt("apt-get", suites)?;
        command.args(["source", "--download-only"]).args(options);
        command.arg(format!("{name}={version}")).current_dir(dir);
        is_fetched = sh::logged(&mut command, &log).is_ok();
        if is_fetched {
            break;
        }
    }
    ensure!(
        is_fetched,
        "no source of {name} could be fetched; tried {}\n{}",
        versions.join(", "),
        sh::tail(&log)
    );
    let found = cache::files(dir)?.into_iter().find(|(file, _)| file.contains(part));
    found.map(|(_, path)| path).with_context(|| format!("apt-get source fetched no {part}"))
}

/// Returns the packages that `name` depends on directly.
pub fn depends(name: &str) -> Result<Vec<String>> {
    let text = sh::output(apt("apt-cache", &Suites::All)?.args(["depends", name]))?;
    Ok(text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .map(str::to_owned)
        .collect())
}

/// Returns the packages whose names start with `prefix`.
pub fn names(prefix: &str) -> Result<Vec<String>> {
    let text = sh::output(apt("apt-cache", &Suites::All)?.args(["pkgnames", prefix]))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Makes a system of `packages`, the essential ones and apt, as an archive. The shell command
/// `hook` gets the system's directory when all is installed.
pub fn system(packages: &[&str], hook: &str, archive: &Path) -> Result<()> {
    with_fallback(|suites| make_system(TESTBED, suites, packages, hook, archive))
}

/// Makes such a system of another release, which is the first of these suites.
pub fn system_of(suites: &[String], packages: &[&str], hook: &str, archive: &Path) -> Result<()> {
    let release = suites.first().context("a system is made of at least one suite")?;
    make_system(release, &Suites::Other(suites.to_vec()), packages, hook, archive)
}

fn make_system(
    release: &str,
    suites: &Suites,
    packages: &[&str],
    hook: &str,
    archive: &Path,
) -> Result<()> {
    install(&["mmdebstrap", "zstd"], "making a Debian system")?;
    let log = cache::log("system")?;
    let base = cache::root()?.join("apt");
    write_sources(&base, suites)?;
    let mut make = cmd("mmdebstrap", ["--variant=apt", "--dpkgopt=force-unsafe-io"]);
    make.arg("--dpkgopt=path-exclude=/usr/share/locale/*");
    make.arg(format!("--include={}", packages.join(",")));
    make.arg(format!("--customize-hook={hook}")).arg(release).arg(archive);
    for (_, sources) in cache::files(&base.join(suites.name()))? {
        if sources.metadata()?.len() > 0 {
            make.arg(sources);
        }
    }
    sh::logged(&mut sh::root_command(&make)?, &log)
}

/// Fetches packages into `dir`, without installing them. With `closure`, it also fetches everything
/// that they need on an empty system. Returns the package files.
pub fn fetch(packages: &[&str], closure: bool, dir: &Path) -> Result<Vec<PathBuf>> {
    let debs = dir.join("debs");
    fs::create_dir_all(debs.join("partial"))?;
    let status = dir.join("status");
    fs::write(&status, "")?;
    let log = cache::log("apt-fetch")?;
    with_fallback(|suites| {
        let mut command = apt("apt-get", suites)?;
        // Packages that are installed on this machine may be of another release, and a mirror of
        // the testbed's release does not have them.
        command.arg("-o").arg(format!("Dir::State::Status={}", status.display()));
        if closure {
            command
                .arg("-o")
                .arg(format!("Dir::Cache::Archives={}", debs.display()))
                .args(["-o", "Debug::NoLocking=1", "-o", "APT::Install-Recommends=0"])
                .args(["install", "-y", "--download-only"]);
        } else {
            command.arg("download");
        }
        sh::logged(command.args(packages).current_dir(&debs), &log)
    })?;
    package_files(&debs)
}

/// Fetches a package into `dir` from the last of these suites. Returns its file.
pub fn fetch_of(suites: &[String], package: &str, dir: &Path) -> Result<Vec<PathBuf>> {
    let debs = dir.join("debs");
    fs::create_dir_all(&debs)?;
    let suite = suites.last().context("a package is in a suite")?;
    let mut command = apt("apt-get", &Suites::Other(suites.to_vec()))?;
    command.arg("download").arg(format!("{package}/{suite}")).current_dir(&debs);
    sh::logged(&mut command, &cache::log("apt-fetch")?)?;
    package_files(&debs)
}

fn package_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let found = cache::files(dir)?;
    Ok(found.into_iter().map(|(_, path)| path).filter(|p| extension(p) == "deb").collect())
}

/// Takes Debian's packages apart, and returns the folder with all their files. `name` is that of
/// the artefact.
pub fn unpacked(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let key = Key::new("packages 1").text(&packages.join(" "));
    let dir = cache::artefact(name, key, |dir| {
        let tree = dir.join("tree");
        fs::create_dir_all(&tree)?;
        unpack(&fetch(packages, false, dir)?, &tree)?;
        Ok(fs::remove_dir_all(dir.join("debs"))?)
    })?;
    Ok(dir.join("tree"))
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

/// Returns the versions of a source package, newest first.
fn source_versions(name: &str, upstream: &str, suites: &Suites) -> Result<Vec<String>> {
    let text = sh::output(apt("apt-cache", suites)?.args(["showsrc", "--only-source", name]))?;
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

/// Tries all suites first, then the release alone. Reports the first failure if both fail.
fn with_fallback(mut attempt: impl FnMut(&Suites) -> Result<()>) -> Result<()> {
    attempt(&Suites::All).or_else(|first| {
        eprintln!("  apt failed; once more without the update suites ...");
        attempt(&Suites::Release).map_err(|_| first)
    })
}

/// Returns a command of the apt family that uses the private configuration.
fn apt(program: &str, suites: &Suites) -> Result<Command> {
    static PREPARED: Mutex<Vec<Suites>> = Mutex::new(Vec::new());
    let base = cache::root()?.join("apt");
    // If another thread has panicked, the list is still consistent.
    let mut prepared = PREPARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !prepared.contains(suites) {
        prepare(&base, suites)?;
        prepared.push(suites.clone());
    }
    Ok(cmd(program, options(&base, suites)))
}

fn options(base: &Path, suites: &Suites) -> Vec<String> {
    let (base, suites) = (base.display(), suites.name());
    [
        "Dir::Etc::SourceList=/dev/null".to_owned(),
        format!("Dir::Etc::SourceParts={base}/{suites}"),
        format!("Dir::State::Lists={base}/lists-{suites}"),
        format!("Dir::Cache={base}/cache"),
        // apt's unprivileged user for downloads cannot enter a cache below root's home.
        "APT::Sandbox::User=root".to_owned(),
        "DPkg::Lock::Timeout=600".to_owned(),
        "Acquire::Retries=2".to_owned(),
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
    ]
    .into_iter()
    .flat_map(|option| ["-o".to_owned(), option])
    .collect()
}

/// Writes the private sources and fetches the package lists if they are old.
fn prepare(base: &Path, suites: &Suites) -> Result<()> {
    let _lock = cache::lock("apt-lists")?;
    let name = suites.name();
    fs::create_dir_all(base.join("cache/archives/partial"))?;
    fs::create_dir_all(base.join(format!("lists-{name}/partial")))?;
    write_sources(base, suites)?;
    let stamp = base.join(format!("updated-{name}"));
    let age = stamp.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
    if age.is_none_or(|age| age > LISTS_FRESH) {
        let log = cache::log("apt-update")?;
        sh::step(&format!("package lists ({name})"), || {
            sh::logged(cmd("apt-get", options(base, suites)).arg("update"), &log)
        })?;
        fs::write(&stamp, "")?;
    }
    Ok(())
}

fn write_sources(base: &Path, suites: &Suites) -> Result<()> {
    let parts = base.join(suites.name());
    fs::create_dir_all(&parts)?;
    let (lines, stanzas) = private_sources(&codename()?, suites)?;
    fs::write(parts.join("lines.list"), lines)?;
    Ok(fs::write(parts.join("stanzas.sources"), stanzas)?)
}

/// Returns whether this machine is of the testbed's release.
pub fn is_testbeds() -> Result<bool> {
    Ok(codename()? == TESTBED)
}

fn codename() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release has no VERSION_CODENAME")?.trim_matches('"').to_owned())
}

/// Returns the machine's entries for its release, in both formats of apt, rewritten for `suites`.
fn private_sources(codename: &str, suites: &Suites) -> Result<(String, String)> {
    let mut lines = String::new();
    let mut stanzas = String::new();
    let mut sources = vec![PathBuf::from("/etc/apt/sources.list")];
    sources.extend(cache::files(Path::new("/etc/apt/sources.list.d"))?.into_iter().map(|f| f.1));
    for file in sources.iter().filter(|file| file.exists()) {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        match extension(file) {
            "list" => lines += &one_line_sources(&text, codename, suites),
            "sources" => stanzas += &deb822_sources(&text, codename, suites),
            _ => {}
        }
    }
    ensure!(
        !(lines.is_empty() && stanzas.is_empty()),
        "apt has no entry for the component main of {codename}, expected one of a Debian mirror"
    );
    Ok((lines, stanzas))
}

/// Rewrites `deb [options] URI SUITE COMPONENT...` entries, each into one of every wanted type and
/// suite.
fn one_line_sources(text: &str, codename: &str, suites: &Suites) -> String {
    let mut result = String::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("deb ") else { continue };
        let rest = rest.trim();
        let options_end = if rest.starts_with('[') { rest.find(']') } else { None };
        let (options, plain) = rest.split_at(options_end.map_or(0, |end| end + 1));
        let words: Vec<&str> = plain.split_whitespace().collect();
        if words.len() < 3 || words[0].starts_with("cdrom:") || !words[2..].contains(&"main") {
            continue;
        }
        for suite in suites.of(words[1], codename) {
            let words = [&[options, words[0], &suite], &words[2..]].concat().join(" ");
            for kind in suites.types() {
                result += &format!("{kind} {}\n", words.trim_start());
            }
        }
    }
    result
}

/// Rewrites stanzas of `Field: value` lines, with the wanted types and suites.
fn deb822_sources(text: &str, codename: &str, wanted: &Suites) -> String {
    let mut result = String::new();
    let uncommented: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for stanza in uncommented.split(|line| line.trim().is_empty()) {
        let field = |name: &str| {
            stanza.iter().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        let suites: Vec<String> = field("Suites").map_or(Vec::new(), |value| {
            value.split_whitespace().flat_map(|suite| wanted.of(suite, codename)).collect()
        });
        let has_main =
            field("Components").is_some_and(|v| v.split_whitespace().any(|c| c == "main"));
        let is_binary = field("Types").is_some_and(|v| v.split_whitespace().any(|t| t == "deb"));
        if suites.is_empty() || !has_main || !is_binary || field("Enabled") == Some("no") {
            continue;
        }
        let (types, suites) = (wanted.types().join(" "), suites.join(" "));
        result += &format!("Types: {types}\nSuites: {suites}\n");
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

    const LINES: &str = "# deb http://m/debian bookworm main\n\
                         deb [signed-by=/k] http://m/debian bookworm main contrib\n\
                         deb http://m/security bookworm-security main\n\
                         deb http://other/apt tool-bookworm main\n\
                         deb cdrom:[Debian]/ bookworm main\n";
    const STANZAS: &str = "Types: deb\nURIs: http://m/debian\nSuites: bookworm trixie\n\
                           Components: main\nSigned-By: /k\n\n\
                           Types: deb\nURIs: http://n/\nSuites: nodistro\nComponents: main\n";

    #[test]
    fn one_line_entries_get_a_source_line() {
        assert_eq!(
            one_line_sources(LINES, "bookworm", &Suites::Release),
            "deb [signed-by=/k] http://m/debian bookworm main contrib\n\
             deb-src [signed-by=/k] http://m/debian bookworm main contrib\n"
        );
        let all = one_line_sources(LINES, "bookworm", &Suites::All);
        assert!(all.ends_with("deb-src http://m/security bookworm-security main\n"), "{all}");
    }

    #[test]
    fn deb822_entries_keep_their_key_and_lose_other_suites() {
        assert_eq!(
            deb822_sources(STANZAS, "bookworm", &Suites::All),
            "Types: deb deb-src\nSuites: bookworm\nURIs: http://m/debian\n\
             Components: main\nSigned-By: /k\n\n"
        );
    }

    #[test]
    fn a_mirror_of_the_release_is_asked_for_sources_of_later_ones() {
        assert_eq!(
            one_line_sources(LINES, "bookworm", &Suites::Later),
            "deb-src [signed-by=/k] http://m/debian trixie main contrib\n\
             deb-src [signed-by=/k] http://m/debian forky main contrib\n\
             deb-src [signed-by=/k] http://m/debian sid main contrib\n"
        );
        assert_eq!(
            deb822_sources(STANZAS, "bookworm", &Suites::Later),
            "Types: deb-src\nSuites: trixie forky sid\nURIs: http://m/debian\n\
             Components: main\nSigned-By: /k\n\n"
        );
    }

    #[test]
    fn a_later_machine_has_its_own_packages_and_the_testbeds() {
        let lines = LINES.replace("bookworm", "trixie");
        let own = "deb [signed-by=/k] http://m/debian trixie main contrib\n\
                   deb http://m/security trixie-security main\n";
        assert_eq!(one_line_sources(&lines, "trixie", &Suites::Own), own);
        let testbeds = own.replace("trixie", TESTBED);
        let all = one_line_sources(&lines, "trixie", &Suites::All);
        let packages: Vec<&str> = all.lines().filter(|line| line.starts_with("deb ")).collect();
        assert_eq!(packages, testbeds.lines().collect::<Vec<_>>());
    }

    #[test]
    fn a_mirror_of_the_release_is_asked_for_another_one() {
        let other = Suites::Other(vec!["trixie".into(), "trixie-backports".into()]);
        assert_eq!(
            one_line_sources(LINES, "bookworm", &other),
            "deb [signed-by=/k] http://m/debian trixie main contrib\n\
             deb [signed-by=/k] http://m/debian trixie-backports main contrib\n"
        );
    }
}
