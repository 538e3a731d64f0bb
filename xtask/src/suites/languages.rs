// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the library for C, and its packages for other languages, with programs that know only the
//! installed files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::artefacts::{counts, python, rootfs, shim};
use crate::machine::{self, Outcome, Spec};
use crate::suites::report::{Report, all, ended_well};
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
    Program { source: "regions.c", name: "regions", compiler: C, is_static: false },
    Program { source: "regions.c", name: "regions-cpp", compiler: CPP, is_static: true },
    Program { source: "raii.cpp", name: "raii", compiler: CPP, is_static: false },
];

/// The page of the book whose programs are run, too.
const PAGE: &str = "docs/c.md";
/// Its programs: the name of each; the language of its block, which is also the ending of its
/// source; which of the blocks in that language it is, and how many there are; and how it is
/// compiled.
const BLOCKS: [(&str, &str, [usize; 2], &[&str]); 3] = [
    ("page-c", "c", [0, 2], C),
    ("page-c-regions", "c", [1, 2], C),
    ("page-cpp", "cpp", [0, 1], CPP),
];

/// The programs that are also run where nobody counts.
const ANYWHERE: &[&str] = &["refused", "refused-cpp", "raii", "regions", "regions-cpp"];

/// Compiles every program, and runs all in the guest. Those that need no counters are also run
/// here.
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
    for (name, language, which, compiler) in BLOCKS {
        report.test(&format!("the book's program {name} compiles"), || {
            let source = dir.join(format!("{name}.{language}"));
            fs::write(&source, block(PAGE, language, which)?)?;
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
    let mut spec = Spec::new(report.topology, ["/work/all.sh"])?.beside();
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
    for name in ["exact", "regions"] {
        report.notes_of(&fs::read_to_string(out.join(name))?);
    }
    Ok(())
}

/// Where the package is installed, in a suite's directory.
const SITE: &str = "site";

/// Installs the package as a user does, in a suite's directory. Returns where it is.
fn installed_package(dir: &Path) -> Result<PathBuf> {
    let packages = ["python3", "python3-pip", "python3-pytest", "gcc", "libc6-dev"];
    apt::install(&packages, "testing the package for Python")?;
    let site = dir.join(SITE);
    let pip = ["-m", "pip", "install", "--no-index", "--target"];
    let package = sh::project().join(python::FOLDER);
    sh::output(python::command(&pip).arg(&site).arg(package))?;
    Ok(site)
}

/// Tests the package with the library and with a substitute for it. The tests read the sources, the
/// wheel, and the page of the book.
pub fn python(report: &mut Report) -> Result<()> {
    let (dir, prefix) = installed("python")?;
    report.test("pip installs it without a network", || installed_package(&dir).map(drop));
    let site = dir.join(SITE);
    let package = sh::project().join(python::FOLDER);
    let stand_in = |name: &str, defines: &[&str]| {
        let library = dir.join(name);
        let mut gcc = cmd("gcc", WARNINGS);
        gcc.args(["-shared", "-fPIC", "-I"]).arg(prefix.join("include")).args(defines);
        gcc.arg("-o").arg(&library).arg(package.join("tests/stand_in.c"));
        sh::output(&mut gcc).map(|_| library)
    };
    let counting = stand_in("counting.so", &[])?;
    let stepping = stand_in("stepping.so", &["-DSTEPPING"])?;
    let wheel = python::wheel(&dir)?;
    let (library, _) = counts::LIBRARY.in_guest(&prefix);
    let mut printed = String::new();
    report.test("its tests that need no counters", || {
        let mut tests = python::command(&["tests/test_anywhere.py"]);
        tests.env("PYTHONPATH", &site).env("PERFCTR_WHEEL", &wheel);
        tests.env("PERFCTR_COUNTS_LIBRARY", &library).env("PERFCTR_STAND_IN", &counting);
        printed = sh::output(tests.env("PERFCTR_STEPPING", &stepping))?;
        Ok(())
    });
    report.notes_of(&printed);
    Ok(())
}

/// The page of the book about Python.
const PYTHON_PAGE: &str = "docs/python.md";

/// What the guest runs: the log's name, what it shows, and what the log ends with.
const IN_GUEST: &[(&str, &str, &str)] = &[
    ("page", "the book's example counts in the guest", "exit status 0\n"),
    ("regions", "the book's example of regions counts in the guest", "exit status 0\n"),
    ("exact", "blocks, functions and competing threads count exactly", "exit status 0\n"),
    ("update", "pytest writes counts to a baseline", "exit status 0\n"),
    ("same", "a test that executes the same passes", "exit status 0\n"),
    ("worse", "a test that executes 300 rounds more in 50,000 fails", "exit status 1\n"),
    ("nobody", "a test that nobody counts fails", "exit status 1\n"),
];

/// Counts by the project's own counters, in the guest.
pub fn python_in_guest(report: &mut Report) -> Result<()> {
    let (dir, prefix) = installed("python-guest")?;
    let site = installed_package(&dir)?;
    let (page, regions, out) = (dir.join("page.py"), dir.join("regions.py"), dir.join("out"));
    fs::write(&page, python_example()?)?;
    fs::write(&regions, block(PYTHON_PAGE, "python", [1, 3])?)?;
    let mut spec = Spec::new(report.topology, ["sh", "/work/tests/guest.sh"])?.beside();
    spec.files.push((rootfs::python()?, "/".into()));
    spec.files.push((sh::project().join(python::FOLDER).join("tests"), "/work/tests".into()));
    spec.files.push((site, "/work/site".into()));
    spec.files.push((page, "/work/page.py".into()));
    spec.files.push((regions, "/work/regions.py".into()));
    spec.files.push(counts::LIBRARY.in_guest(&prefix));
    spec.keep_out(&out)?;
    let outcome = machine::run(&spec)?;
    for (log, name, ending) in IN_GUEST {
        report.test(name, || {
            let text = printed(&out, log, &outcome)?;
            ensure!(text.ends_with(ending), "{text}");
            Ok(())
        });
    }
    report.test("the example's counts are the interpreter's", || {
        let text = printed(&out, "page", &outcome)?;
        let counts: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        ensure!(counts.len() == 2 && counts.iter().all(|&count| count > 5_000), "{text}");
        Ok(())
    });
    report.test("the example's regions are in the table that is printed at the end", || {
        let text = printed(&out, "regions", &outcome)?;
        let row = |beginning: &str| text.lines().any(|line| line.starts_with(beginning));
        let rows = ["sort 3 ", "work 1 ", "region  thread ", "sort    1 ", "work    1 "];
        ensure!(rows.into_iter().all(row), "{text}");
        Ok(())
    });
    report.test("the same command counts the same, to the instruction", || {
        let [first, again] = ["same", "again"].map(|log| printed(&out, log, &outcome));
        let [first, again] = [verdicts(&first?), verdicts(&again?)];
        ensure!(first.len() == 2 && first == again, "{first:?}, then {again:?}");
        Ok(())
    });
    for (log, what) in [
        ("worse", "WORSE  loop: "),
        ("nobody", "nothing is compared: no counters for instructions:u"),
    ] {
        report.test(&format!("the failed test says `{what}`"), || {
            let text = printed(&out, log, &outcome)?;
            ensure!(text.contains(what), "{text}");
            Ok(())
        });
    }
    report.notes_of(&printed(&out, "exact", &outcome)?);
    Ok(())
}

/// Returns what a program of the guest has said.
fn printed(out: &Path, log: &str, outcome: &Outcome) -> Result<String> {
    fs::read_to_string(out.join(log)).with_context(|| all(outcome))
}

/// Returns the lines of a test whose counts are the baseline's or nearly so.
fn verdicts(printed: &str) -> Vec<String> {
    printed.lines().filter(|line| line.starts_with("same   loop: ")).map(str::to_owned).collect()
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
        let printed = if *is_static {
            command.arg(prefix.join("lib/libperfctr-counts.a"));
            flags(&["--cflags"])?
        } else {
            flags(&["--cflags", "--libs"])?
        };
        sh::output(command.args(printed.split_whitespace())).map(drop)
    }
}

/// Returns the first example of the book for C.
pub fn c_example() -> Result<String> {
    block(PAGE, "c", [0, 2])
}

/// Returns the first example of the book for Python.
pub fn python_example() -> Result<String> {
    block(PYTHON_PAGE, "python", [0, 3])
}

/// Returns the text of a page's block in this language: which one, and how many the page has.
fn block(page: &str, language: &str, [which, blocks]: [usize; 2]) -> Result<String> {
    let text = fs::read_to_string(sh::project().join(page))?;
    let parts: Vec<&str> = text.split(&format!("\n```{language}\n")).collect();
    if parts.len() != blocks + 1 {
        bail!("{page} has {} blocks in {language}, {blocks} expected", parts.len() - 1);
    }
    let (block, _) = parts[1 + which].split_once("```\n").context("a block has no end")?;
    Ok(block.to_owned())
}

/// Checks that a program can be linked to both libraries.
fn distinct() -> Result<()> {
    let (ours, other) = (counts::LIBRARY.exports()?, shim::LIBRARY.exports()?);
    let both: Vec<&String> = ours.iter().filter(|name| other.contains(name)).collect();
    ensure!(!ours.is_empty() && both.is_empty(), "in both libraries: {both:?}");
    Ok(())
}
