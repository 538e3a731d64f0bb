// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the C library with perfctr's interface, with C and C++ programs that know only its
//! installed headers.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::artefacts::shim;
use crate::machine::{self, Spec};
use crate::suites::report::{Report, ended_well};
use crate::tools::{apt, cache, sh};

const WARNINGS: &[&str] = &["-Wall", "-Wextra", "-pedantic", "-Werror", "-O2"];

/// Both languages: compiler, language, and the ending of their programs' names.
const LANGUAGES: &[(&str, &str, &str)] = &[("gcc", "c", ""), ("g++", "c++", "-cpp")];

/// Compiles every program in both languages, against both libraries, and runs all in the guest.
pub fn run(report: &mut Report) -> Result<()> {
    apt::install(&["gcc", "g++", "libc6-dev"], "compiling the C library's tests")?;
    let dir = cache::root()?.join("shim-tests");
    cache::empty(&dir)?;
    let prefix = dir.join("prefix");
    let programs = dir.join("work");
    let out = dir.join("out");
    fs::create_dir_all(&programs)?;
    shim::install(&prefix)?;
    let mut names = Vec::new();
    for (file, path) in cache::files(&sh::project().join("papi-shim/tests/c"))? {
        let Some(name) = file.strip_suffix(".c") else { continue };
        for (compiler, language, ending) in LANGUAGES {
            let program = format!("{name}{ending}");
            report.test(&format!("{name}.c compiles as {language}"), || {
                compile(compiler, language, &path, &prefix, &programs.join(&program))
            });
            names.push(program);
        }
    }
    let mut spec = Spec::new(report.topology, ["/work/all.sh"])?.driver("events=all")?.beside();
    if spec.topology.cpu.starts_with("EPYC") {
        // perfctr's interface has no type for it, so programs say that it is like Family 10h.
        spec.environment.push("LIBPFM_FORCE_PMU=16".into());
    }
    spec.files.push((sh::project().join("papi-shim/tests/all.sh"), "/work/all.sh".into()));
    spec.files.push(shim::LIBRARY.in_guest(&prefix));
    spec.files.push((prefix.join("bin/perfex"), "/usr/bin/perfex".into()));
    spec.copy.push(programs);
    spec.out = Some(out.clone());
    let outcome = machine::run(&spec)?;
    names.push("perfex".to_owned());
    for name in names {
        report.test(&name, || ended_well(&out.join(&name), &outcome));
    }
    Ok(())
}

/// Compiles programs. The C++ programs are linked to the archive, the C programs to the shared
/// library.
fn compile(
    compiler: &str,
    language: &str,
    source: &Path,
    prefix: &Path,
    program: &Path,
) -> Result<()> {
    let mut command = sh::cmd(compiler, WARNINGS);
    command.args(["-x", language]).arg(source).args(["-x", "none", "-o"]).arg(program);
    command.arg("-I").arg(prefix.join("include"));
    if language == "c" {
        command.arg("-L").arg(prefix.join("lib")).arg("-lperfctr");
    } else {
        command.arg(prefix.join("lib/libperfctr.a"));
    }
    sh::output(command.arg("-pthread")).map(drop)
}
