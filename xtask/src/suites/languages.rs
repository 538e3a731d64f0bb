// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the library for C, and what is made of it for other languages, with programs that know
//! nothing but what is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::artefacts::{counts, shim};
use crate::machine::{self, Spec};
use crate::suites::report::{Report, ended_well};
use crate::tools::sh::{self, cmd};
use crate::tools::{apt, cache};

/// The folder of the programs' sources.
const SOURCES: &str = "libperfctr-rs/c/tests";

const WARNINGS: &[&str] = &["-Wall", "-Wextra", "-pedantic", "-Werror", "-O2", "-pthread"];

/// A program: its source, its name, how it is compiled, and whether the library's archive is linked
/// into it.
struct Program<'a> {
    source: &'a str,
    name: &'static str,
    compiler: &'static [&'static str],
    is_static: bool,
}

const C: &[&str] = &["gcc", "-std=c11", "-D_GNU_SOURCE"];
const CPP: &[&str] = &["g++", "-std=c++17", "-x", "c++"];

/// The programs. C programs are compiled as C++, too.
const PROGRAMS: &[Program<'_>] = &[
    Program { source: "exact.c", name: "exact", compiler: C, is_static: false },
    Program { source: "exact.c", name: "exact-cpp", compiler: CPP, is_static: true },
    Program { source: "refused.c", name: "refused", compiler: C, is_static: true },
    Program { source: "refused.c", name: "refused-cpp", compiler: CPP, is_static: false },
    Program { source: "raii.cpp", name: "raii", compiler: CPP, is_static: false },
];

/// The page of the book whose programs are run, too.
const PAGE: &str = "docs/c.md";
/// Its programs: the name of each, the language of its block, which is the ending of its source,
/// too, and how it is compiled.
const BLOCKS: [(&str, &str, &[&str]); 2] = [("page-c", "c", C), ("page-cpp", "cpp", CPP)];

/// The programs that are also run where nobody counts.
const ANYWHERE: &[&str] = &["refused", "refused-cpp", "raii"];

/// Compiles every program, and runs all in the guest, and those that need no counters here.
pub fn c(report: &mut Report) -> Result<()> {
    report.test("no symbol is that of the library with perfctr's interface", distinct);
    apt::install(&["gcc", "g++", "libc6-dev", "pkgconf"], "compiling the C library's tests")?;
    let (dir, prefix) = installed("c-api")?;
    let (programs, out) = (dir.join("work"), dir.join("out"));
    fs::create_dir(&programs)?;
    for program in PROGRAMS {
        let name = format!("{} compiles with {}", program.source, program.compiler[0]);
        report.test(&name, || program.compile(&prefix, &programs));
    }
    for (name, language, compiler) in BLOCKS {
        report.test(&format!("the book's program in {language} compiles"), || {
            let source = dir.join(format!("{name}.{language}"));
            fs::write(&source, block(PAGE, language)?)?;
            let source = source.to_str().context("a path is text")?;
            Program { source, name, compiler, is_static: false }.compile(&prefix, &programs)
        });
    }
    for name in ANYWHERE {
        report.test(&format!("{name}, on the machine that the testbed runs on"), || {
            let mut program = Command::new(programs.join(name));
            program.arg("perhaps").env("LD_LIBRARY_PATH", prefix.join("lib"));
            sh::output(&mut program).map(drop)
        });
    }
    let mut spec = Spec::new(report.topology, ["/work/all.sh"])?;
    spec.files.push((sh::project().join(SOURCES).join("all.sh"), "/work/all.sh".into()));
    spec.files.push(counts::LIBRARY.in_guest(&prefix));
    spec.copy.push(programs);
    spec.keep_out(&out)?;
    let outcome = machine::run(&spec)?;
    let pages = BLOCKS.iter().map(|(name, ..)| *name);
    for name in PROGRAMS.iter().map(|program| program.name).chain(pages) {
        report.test(name, || ended_well(&out.join(name), &outcome));
    }
    for name in ANYWHERE {
        let log = format!("{name}-none");
        report
            .test(&format!("{name}, where nobody counts"), || ended_well(&out.join(log), &outcome));
    }
    report.notes_of(&fs::read_to_string(out.join("exact"))?);
    Ok(())
}

/// The folder of the package for Python.
const PYTHON: &str = "libperfctr-rs/python";

/// Installs the package as a user does, and tests it with the library and with what stands in for
/// it. The tests read the sources, the wheel, and the page of the book.
pub fn python(report: &mut Report) -> Result<()> {
    let packages = ["python3", "python3-pip", "python3-pytest", "gcc", "libc6-dev"];
    apt::install(&packages, "testing the package for Python")?;
    let (dir, prefix) = installed("python")?;
    let site = dir.join("site");
    let package = sh::project().join(PYTHON);
    let stand_in = |name: &str, defines: &[&str]| {
        let library = dir.join(name);
        let mut gcc = cmd("gcc", WARNINGS);
        gcc.args(["-shared", "-fPIC", "-I"]).arg(prefix.join("include")).args(defines);
        gcc.arg("-o").arg(&library).arg(package.join("tests/stand_in.c"));
        sh::output(&mut gcc).map(|_| library)
    };
    let told = stand_in("told.so", &[])?;
    let stepping = stand_in("stepping.so", &["-DSTEPPING"])?;
    let python = |arguments: &[&str]| {
        // The system's own, for which its pytest and its pip are.
        let mut command = cmd("/usr/bin/python3", arguments);
        command.current_dir(&package).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    let wheel = dir.join(sh::output(python(&["backend.py"]).arg(&dir))?.trim());
    report.test("pip installs it without a network", || {
        let pip = ["-m", "pip", "install", "--no-index", "--target"];
        sh::output(python(&pip).arg(&site).arg(&package)).map(drop)
    });
    let (library, _) = counts::LIBRARY.in_guest(&prefix);
    let mut said = String::new();
    report.test("its tests that need no counters", || {
        let mut tests = python(&["tests/test_anywhere.py"]);
        tests.env("PYTHONPATH", &site).env("PERFCTR_WHEEL", &wheel);
        tests.env("PERFCTR_COUNTS_LIBRARY", &library).env("PERFCTR_STAND_IN", &told);
        said = sh::output(tests.env("PERFCTR_STEPPING", &stepping))?;
        Ok(())
    });
    report.notes_of(&said);
    Ok(())
}

/// Installs the library for a suite. Returns the suite's directory, which has nothing else, and the
/// directory in it below which the library is installed.
fn installed(suite: &str) -> Result<(PathBuf, PathBuf)> {
    let dir = cache::root()?.join("work").join(suite);
    cache::empty(&dir)?;
    let prefix = dir.join("prefix");
    counts::LIBRARY.install(&prefix)?;
    Ok((dir, prefix))
}

impl Program<'_> {
    fn compile(&self, prefix: &Path, programs: &Path) -> Result<()> {
        let Self { source, name, compiler, is_static } = self;
        let mut command = cmd(compiler[0], WARNINGS);
        command.args(&compiler[1..]).arg(sh::project().join(SOURCES).join(source));
        command.args(["-x", "none", "-o"]).arg(programs.join(name));
        let flags = |what: &[&str]| {
            let mut pkg_config = cmd("pkg-config", what);
            pkg_config.arg("perfctr-counts");
            pkg_config.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
            sh::output(&mut pkg_config)
        };
        let said = if *is_static {
            command.arg(prefix.join("lib/libperfctr-counts.a"));
            flags(&["--cflags"])?
        } else {
            flags(&["--cflags", "--libs"])?
        };
        sh::output(command.args(said.split_whitespace())).map(drop)
    }
}

/// Returns the text of a page's only block in this language.
fn block(page: &str, language: &str) -> Result<String> {
    let text = fs::read_to_string(sh::project().join(page))?;
    let parts: Vec<&str> = text.split(&format!("\n```{language}\n")).collect();
    let [_, rest] = parts[..] else {
        bail!("{page} has {} blocks in {language}, 1 expected", parts.len() - 1);
    };
    let (block, _) = rest.split_once("```\n").context("a block has no end")?;
    Ok(block.to_owned())
}

/// Checks that a program can be linked to both libraries.
fn distinct() -> Result<()> {
    let (ours, other) = (counts::LIBRARY.exports()?, shim::LIBRARY.exports()?);
    let both: Vec<&String> = ours.iter().filter(|name| other.contains(name)).collect();
    ensure!(!ours.is_empty() && both.is_empty(), "in both libraries: {both:?}");
    Ok(())
}
