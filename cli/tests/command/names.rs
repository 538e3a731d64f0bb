// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests where names come from: code that is compiled at run time, debugging information that is
//! elsewhere, and the instructions of a function.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::run::{build, compile, file, output_of, perfctr, run};

#[test]
fn functions_in_a_dump_of_compiled_code_have_their_names() {
    let (program, profile, folder) =
        (build("compiled.c", &["-O1"]), file("dumped.profile"), file("dumps"));
    fs::create_dir_all(&folder).unwrap();
    let (program, profile, at) = (program.display(), profile.display(), folder.display());
    let printed = run(&format!("record -e instructions:u -c 1000003 -o {profile} {program} {at}"));
    assert_eq!(printed.status, 0, "{printed:?}");
    let report = run(&format!("report -i {profile} -s module,symbol"));
    let row = report.out.lines().find(|line| line.ends_with("js::hot at /srv/app.js:7"));
    let row = row.unwrap_or_else(|| panic!("{report:?}"));
    assert!(row.contains(".dump"), "{row}");
    let samples: u64 = row.split_whitespace().next().unwrap().parse().unwrap();
    assert!(samples > 50, "{report:?}");
}

#[test]
fn a_functions_samples_are_shown_by_lines_and_instructions() {
    let (program, profile) = (file("annotated"), file("annotated.profile"));
    let source = format!("{}/tests/command/inlined.c", env!("CARGO_MANIFEST_DIR"));
    compile(&["-O2", "-g", &source], &program);
    let (program, profile) = (program.display(), profile.display());
    let printed = run(&format!("record -g -e instructions:u -c 1000003 -o {profile} {program}"));
    assert_eq!(printed.status, 0, "{printed:?}");
    let table = run(&format!("report -i {profile}")).out;
    let row = table.lines().find(|line| line.ends_with(" around")).unwrap();
    let all: u64 = row.split_whitespace().next().unwrap().parse().unwrap();
    let shown = run(&format!("report -i {profile} --annotate around"));
    assert_eq!((shown.status, &*shown.err), (0, ""), "{shown:?}");
    let head = shown.out.lines().next().unwrap();
    assert!(head.starts_with(&format!("around in {program}: {all} of ")), "{head}");
    let is_line = |line: &&str| line.contains("inlined.c:9") || line.contains("inlined.c:10");
    assert!(shown.out.lines().any(|line| is_line(&line)), "{}", shown.out);
    // The loop ends with a branch, and the function with a return.
    assert!(shown.out.contains("  ret\n") && shown.out.contains("  j"), "{}", shown.out);
    let samples = |line: &str| -> Option<u64> {
        let mut words = line.split_whitespace();
        let number = words.next()?.parse().ok()?;
        words.next()?.contains('.').then_some(number)
    };
    let sum: u64 = shown.out.lines().skip(2).filter_map(samples).sum();
    assert_eq!(sum, all, "{}", shown.out);
    let none = run(&format!("report -i {profile} --annotate nothing"));
    assert!(none.status == 125 && none.err.contains("no samples found in a function nothing"));
    let both = run(&format!("report -i {profile} --annotate around -f folded"));
    assert_eq!(both.status, 2, "{both:?}");
}

/// Builds a program whose debugging information is in another file of this folder, and records it.
/// Returns its build-id.
fn without_names(folder: &Path) -> String {
    fs::create_dir_all(folder).unwrap();
    let script = "
        echo 'long work(long n) { long s = 0; while (n) s += n--; return s; }' > program.c
        echo 'int main(int c, char **v) { return work(c * 400000000L); }' >> program.c
        cc -O1 -g -fno-inline -Wl,--build-id=sha1 -o program program.c
        objcopy --only-keep-debug program elsewhere
        objcopy --strip-all program
    ";
    let mut shell = Command::new("sh");
    assert!(shell.args(["-ec", script]).current_dir(folder).status().unwrap().success());
    let (profile, program) = (folder.join("profile"), folder.join("program"));
    let (profile, program) = (profile.display(), program.display());
    let printed = run(&format!("record -e instructions:u -c 1000003 -o {profile} {program}"));
    assert_eq!(printed.status, 0, "{printed:?}");
    let notes = Command::new("readelf").args(["-n", &program.to_string()]).output().unwrap();
    let notes = String::from_utf8(notes.stdout).unwrap();
    let (_, id) = notes.split_once("Build ID: ").unwrap();
    id.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn debugging_information_comes_from_the_systems_client_of_debuginfod() {
    let folder = file("debuginfod");
    let id = without_names(&folder);
    let [cache, bin, profile] = ["cache", "bin", "profile"].map(|name| folder.join(name));
    fs::create_dir_all(&bin).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let report = |servers: &str| {
        let mut report = perfctr(["report", "-s", "symbol,line", "-i"]);
        report.arg(&profile).env("DEBUGINFOD_CACHE_PATH", &cache).env("PATH", &path);
        output_of(report.env("DEBUGINFOD_URLS", servers))
    };
    let named = |out: &str| out.lines().any(|l| l.contains(" work ") && l.contains("program.c:1"));
    let unnamed = report("");
    assert!(unnamed.status == 0 && !named(&unnamed.out) && unnamed.err.is_empty(), "{unnamed:?}");
    let missing = report("http://127.0.0.1:1/");
    assert!(missing.err.contains("asking the servers of DEBUGINFOD_URLS for"), "{missing:?}");
    assert!(missing.err.contains("debuginfod-find is not installed"), "{missing:?}");
    assert_eq!(missing.err.matches("asking").count(), 1, "{missing:?}");
    // This client finds only this file.
    let client = bin.join("debuginfod-find");
    let answer = format!(
        "#!/bin/sh\n[ \"$*\" = 'debuginfo {id}' ] || exit 1\necho {}/elsewhere\n",
        folder.display()
    );
    fs::write(&client, answer).unwrap();
    fs::set_permissions(&client, fs::Permissions::from_mode(0o755)).unwrap();
    let fetched = report("http://127.0.0.1:1/");
    assert!(fetched.status == 0 && named(&fetched.out), "{fetched:?}");
    assert!(!named(&report("").out), "without servers nobody is asked");
    // What was fetched once is kept, and nobody is asked again for it.
    let kept = cache.join(&id).join("debuginfo");
    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    fs::write(&kept, "").unwrap();
    assert!(!named(&report("").out), "an empty file has no names");
    assert!(named(&report("http://127.0.0.1:1/").out), "an empty file is no reason not to ask");
    fs::copy(folder.join("elsewhere"), &kept).unwrap();
    let found = report("");
    assert!(named(&found.out) && found.err.is_empty(), "{found:?}");
}
