// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds rr from its authors' sources, with all of its own tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::chroot::Chroot;
use crate::tools::sh::{self, cmd};

/// The versions to try. The first available one is used.
const UPSTREAM: &[&str] = &["5.9", "5.10"];

/// What it is built with, in a Debian of the testbed's release.
const PACKAGES: &[&str] = &[
    "capnproto",
    "cmake",
    "g++",
    "libcapnp-dev",
    "libzstd-dev",
    "ninja-build",
    "pkg-config",
    "python3",
    "zlib1g-dev",
];

/// Two things are left out: 32-bit programs, for which the testbed's guest lacks the libraries, and
/// the debugging information of programs that no test debugs.
const BUILD: &str = r#"
cmake -S /rr -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -Ddisable32bit=ON -DWILL_RUN_TESTS=OFF
ninja -C /build
cd /build
strip -g bin/rr
for test in $(grep basic_test.run CTestTestfile.cmake | cut -d '"' -f 6); do
    strip -g "bin/$test"
done
mkdir -p /out/obj/lib /out/src
cp -r bin share /out/obj
cp -r lib/rr /out/obj/lib
cp -r /rr/src/test /out/src
"#;

/// Where the tests' directory tree is in the guest.
pub const TESTS: &str = "/usr/lib/rr-tests";

/// The file with the list of the tests there.
const LIST: &str = "list";

/// Returns rr's sources, without Debian's changes.
pub fn source() -> Result<PathBuf> {
    apt::unpatched("rr", UPSTREAM)
}

/// Returns a directory tree that is laid over the userland: rr and its tests, and a list of the
/// tests, each as a line with its name, its script, its program and perhaps an option.
pub fn tests() -> Result<PathBuf> {
    let key =
        Key::new("rr-tests 1").text(BUILD).text(&PACKAGES.join(" ")).text(&UPSTREAM.join(" "));
    let dir = cache::artefact("rr-tests", key, |dir| {
        let source = source()?;
        let archive = dir.join("system.tar");
        sh::step("a Debian for building rr", || apt::system(PACKAGES, "true", &archive))?;
        let debian = Chroot::unpack(&archive, &cache::scratch("rr")?)?;
        fs::remove_file(archive)?;
        debian.put(&[source.join(".")], "rr")?;
        sh::step("rr and its tests", || debian.run(BUILD))?;
        let tree = dir.join("tree").join(TESTS.trim_start_matches('/'));
        fs::create_dir_all(&tree)?;
        let mut copy = cmd("cp", ["-r", "--no-preserve=ownership"]);
        sh::as_root(copy.arg(debian.path("out/.")).arg(&tree))?;
        let listed = fs::read_to_string(debian.path("build/CTestTestfile.cmake"))?;
        fs::write(tree.join(LIST), lines_of_tests(&listed)?)?;
        without_lldb(&tree)?;
        // Debian's alternatives, which the userland does not have, would make this link.
        let programs = dir.join("tree/usr/bin");
        fs::create_dir_all(&programs)?;
        symlink("which.debianutils", programs.join("which"))?;
        debian.remove()
    })?;
    Ok(dir.join("tree"))
}

/// Returns the file that lists the tests, a line for each.
pub fn list() -> Result<PathBuf> {
    Ok(tests()?.join(TESTS.trim_start_matches('/')).join(LIST))
}

/// Returns a line `NAME SCRIPT PROGRAM OPTION` for each test in CMake's own list, in which it is
/// `add_test([=[NAME]=] "bash" "source_dir/src/test/SCRIPT" "PROGRAM" "OPTION" ...)`.
fn lines_of_tests(text: &str) -> Result<String> {
    let mut list = String::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("add_test(")) {
        let (name, rest) = line.split_once(' ').context("a test without a command")?;
        let name = name.trim_start_matches("[=[").trim_end_matches("]=]");
        let words: Vec<&str> = rest.split('"').skip(1).step_by(2).collect();
        let ["bash", script, program, option, ..] = words[..] else {
            anyhow::bail!("expected bash, a script, a program and an option, found {line}");
        };
        let script = script.trim_start_matches("source_dir/");
        list += &format!("{} {script} {program} {option}\n", name.trim_matches('"'));
    }
    ensure!(!list.is_empty(), "rr's sources have no list of tests");
    Ok(list)
}

/// Makes the tests run only one debugger, gdb. The other one is larger than everything else
/// together.
fn without_lldb(tree: &Path) -> Result<()> {
    let path = tree.join("src/test/util.sh");
    let text = fs::read_to_string(&path)?;
    let both = "function debug_lldb_only { expectscript=$1; replayargs=$2\n";
    ensure!(text.contains(both), "util.sh of rr's tests does not run lldb as expected");
    Ok(fs::write(&path, text.replace(both, &format!("{both}    return\n")))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_a_name_a_script_a_program_and_perhaps_an_option() {
        let text = r#"
add_test([=[abort]=] "bash" "source_dir/src/test/basic_test.run" "abort" "" "bin_dir" "120")
set_tests_properties([=[abort]=] PROPERTIES FAIL_REGULAR_EXPRESSION "FAILED")
add_test(x86/cpuid-no-syscallbuf "bash" "source_dir/src/test/x86/cpuid.run" "cpuid" "-n" "bin_dir")
"#;
        assert_eq!(
            lines_of_tests(text).unwrap(),
            "abort src/test/basic_test.run abort \n\
             x86/cpuid-no-syscallbuf src/test/x86/cpuid.run cpuid -n\n"
        );
        assert!(lines_of_tests("").is_err());
    }
}
