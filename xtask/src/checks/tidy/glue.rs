// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks that the C around the cores stays small, since decisions belong in the cores. Also
//! checks that the C around both cores uses no function that would be wrong there and yet pass
//! every test.

use anyhow::Result;

use super::{Tree, is_generated};

/// Where the C is that the kernel calls, and that calls the kernel.
const GLUE: &str = "guest-kmod/glue/";

/// The most lines with code in all files of the glue together, but for [`REAL_TIME`].
const LINES: usize = 2_200;

/// The files that are only in kernels with PREEMPT_RT, and the most lines with code in them.
const REAL_TIME: [&str; 2] = ["guest-kmod/glue/late_rt.c", "guest-kmod/glue/late_rt.h"];
const REAL_TIME_LINES: usize = 110;

/// Where the C of each hypervisor is, and the most lines with code in all of its files together.
const HOSTS: [(&str, usize); 2] = [("hv-driver/glue/xen/", 1_300), ("hv-driver/glue/kvm/", 1_350)];

/// Words that must not be in the C of a folder.
struct Banned {
    folder: &'static str,
    /// Files of the folder, and what a word may begin with there.
    except: &'static [(&'static str, &'static str)],
    is_banned: fn(&str) -> bool,
    why: &'static str,
}

const BANNED: [Banned; 3] = [
    Banned {
        folder: GLUE,
        except: &[],
        is_banned: is_subjective,
        why: "these credentials are overridden while a thread acts for another: use real_cred",
    },
    Banned {
        folder: GLUE,
        // late_rt.c calls these where a thread may sleep.
        except: &[
            ("guest-kmod/glue/sched.c", "send_sig_info"),
            ("guest-kmod/glue/sched.c", "spin_"),
            ("guest-kmod/glue/ring.c", "wake_up_poll"),
            ("guest-kmod/glue/thread.c", "wake_up_poll"),
            (REAL_TIME[0], "wake_up_poll"),
        ],
        is_banned: is_put_off,
        why: "with PREEMPT_RT this sleeps, or a thread of its own runs it: see ADR 52",
    },
    Banned {
        folder: "hv-driver/glue/kvm/",
        except: &[],
        is_banned: is_sleeping_lock,
        why: "interrupts are disabled here, and such a lock sleeps with PREEMPT_RT: use a raw one",
    },
];

/// Returns whether the word reads the calling thread's subjective credentials. By these the kernel
/// judges what a thread may do at the moment, and not whose it is. Charging memory by them is
/// right.
fn is_subjective(word: &str) -> bool {
    matches!(word, "->cred" | ".cred")
        || word.strip_prefix("current_").is_some_and(|what| {
            ["cred", "uid", "euid", "suid", "fsuid", "gid", "egid", "sgid", "fsgid", "user"]
                .iter()
                .any(|kind| what.strip_prefix(kind).is_some_and(|rest| !rest.starts_with(is_plain)))
        })
}

/// Returns whether the word is of a lock that may sleep where the kernel is built with PREEMPT_RT.
fn is_sleeping_lock(word: &str) -> bool {
    let is_type = ["spinlock_t", "DEFINE_SPINLOCK", "rwlock_t", "DEFINE_RWLOCK"].contains(&word);
    let calls = ["spin_", "read_lock", "write_lock", "local_lock"];
    is_type || calls.iter().any(|call| word.starts_with(call))
}

/// Returns whether the word is of a lock that may sleep where the kernel is built with PREEMPT_RT,
/// of a function that takes such a lock, or of one that makes work for a thread to run there.
fn is_put_off(word: &str) -> bool {
    let calls = ["wake_up", "send_sig", "init_irq_work"];
    is_sleeping_lock(word)
        || word == "IRQ_WORK_INIT"
        || calls.iter().any(|call| word.starts_with(call))
}

fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric()
}

pub fn faults(tree: &Tree) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let (mut lines, mut real_time, mut hosts) = (0, 0, [0; HOSTS.len()]);
    for (name, text) in tree.files(&["c", "h"])? {
        if is_generated(&text) {
            continue;
        }
        if REAL_TIME.contains(&name) {
            real_time += lines_of_code(&text);
        } else if name.starts_with(GLUE) {
            lines += lines_of_code(&text);
        }
        for (host, (folder, _)) in hosts.iter_mut().zip(HOSTS) {
            *host += if name.starts_with(folder) { lines_of_code(&text) } else { 0 };
        }
        for rule in BANNED.iter().filter(|rule| name.starts_with(rule.folder)) {
            faults.extend(banned(name, &text, rule));
        }
    }
    let own = [(GLUE, lines, LINES), (REAL_TIME[0], real_time, REAL_TIME_LINES)];
    let hosts = HOSTS.into_iter().zip(hosts).map(|((folder, most), lines)| (folder, lines, most));
    for (what, lines, most) in own.into_iter().chain(hosts) {
        if lines > most {
            faults.push(format!("{what}: {lines} lines of C with code, more than {most}"));
        }
    }
    Ok(faults)
}

/// Returns a fault for each word in the code of a file that must not be there.
fn banned(name: &str, text: &str, rule: &Banned) -> Vec<String> {
    let lines = code(text).into_iter().zip(1..);
    let is_allowed =
        |word: &str| rule.except.iter().any(|(file, may)| *file == name && word.starts_with(may));
    let found = lines.flat_map(|(line, number)| {
        let is_banned = |word: &&str| (rule.is_banned)(word) && !is_allowed(word);
        let banned = words(&line).into_iter().filter(is_banned);
        banned.map(move |word| format!("{name}:{number}: {word}: {}", rule.why)).collect::<Vec<_>>()
    });
    found.collect()
}

/// Returns the identifiers of a line. A field's has the sign before it.
fn words(line: &str) -> Vec<&str> {
    let is_word = |character: char| is_plain(character) || character == '_';
    let mut words = Vec::new();
    let mut from = 0;
    while let Some(start) = line[from..].find(is_word).map(|at| from + at) {
        let end = line[start..].find(|character| !is_word(character));
        from = end.map_or(line.len(), |length| start + length);
        let sign = ["->", "."].into_iter().find(|sign| line[..start].ends_with(sign));
        words.push(&line[start - sign.map_or(0, str::len)..from]);
    }
    words
}

/// Counts the lines that hold more than comments and white space.
fn lines_of_code(text: &str) -> usize {
    code(text).iter().filter(|line| !line.trim().is_empty()).count()
}

/// Returns each line without its comments. The glue has only comments of one form, and no string in
/// which a comment could seem to begin.
fn code(text: &str) -> Vec<String> {
    let mut is_comment = false;
    let without_comments = |line: &str| {
        let (mut rest, mut code) = (line, String::new());
        loop {
            let mark = if is_comment { "*/" } else { "/*" };
            let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
            if !is_comment {
                code.push_str(before);
            }
            if before.len() == rest.len() {
                return code;
            }
            is_comment = !is_comment;
            rest = after;
        }
    };
    text.lines().map(without_comments).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_empty_lines_hold_no_code() {
        let text =
            "/* One. */\n\n/*\n * Two.\n */\nint a; /* three */\n/* four */ int b; /*\n*/\n}\n";
        assert_eq!(lines_of_code(text), 3);
    }

    #[test]
    fn glue_that_has_grown_is_found_and_what_is_generated_is_not_counted() {
        let most = "int a;\n".repeat(LINES - 1);
        let header = format!("/* Generated from src/lib.rs. */\n{most}");
        let full = [("guest-kmod/glue/a.c", most.as_str()), ("guest-kmod/glue/b/c.h", "int b;\n")];
        let driver = "int d;\n".repeat(HOSTS[0].1);
        let other = [
            ("guest-kmod/glue/core.h", header.as_str()),
            ("hv-driver/glue/xen/d.c", driver.as_str()),
            ("hv-driver/glue/kvm/d.c", driver.as_str()),
        ];
        let tree = Tree::planted("glue", &[&full[..], &other].concat());
        assert!(faults(&tree).unwrap().is_empty());
        drop(tree);
        let more = [
            full[0],
            ("guest-kmod/glue/b/c.h", "int b;\nint c;\n"),
            other[1],
            ("hv-driver/glue/xen/e.h", "int e;\n"),
        ];
        let tree = Tree::planted("glue", &more);
        let found = faults(&tree).unwrap();
        let expected = [
            "guest-kmod/glue/: 2201 lines of C with code, more than 2200",
            "hv-driver/glue/xen/: 1301 lines of C with code, more than 1300",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn credentials_that_are_overridden_are_found_in_the_guests_glue() {
        let text = "/* current_euid() */\nuid = current_euid();\nif (current_cred() ||\n\
                    task->cred || task->real_cred || cred->euid || get_current_cred() ||\n\
                    current_user_ns())\nstruct cred *cred = get_task_cred(current);\n";
        let text = format!("{text}current_userdata = current_gids;\n");
        let files = [("guest-kmod/glue/a.c", text.as_str()), ("hv-driver/glue/kvm/a.c", &text)];
        let tree = Tree::planted("credentials", &files);
        let found = faults(&tree).unwrap();
        let expected = ["2: current_euid", "3: current_cred", "4: ->cred", "5: current_user_ns"];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (fault, expected) in found.iter().zip(expected) {
            assert!(fault.starts_with(&format!("guest-kmod/glue/a.c:{expected}: ")), "{fault}");
        }
    }

    #[test]
    fn what_sleeps_with_preempt_rt_is_found_in_the_guests_glue_but_where_it_may_be() {
        let text = "wake_up_poll(&a, b);\nsend_sig_info(c, &d, e);\ninit_irq_work(&f, g);\n\
                    struct irq_work h = IRQ_WORK_INIT(g);\nspin_lock(&i);\nraw_spin_lock(&j);\n\
                    h = IRQ_WORK_INIT_HARD(g);\nwq_has_sleeper(&a);\n/* wake_up() */\n";
        let files = [("guest-kmod/glue/a.c", text), ("guest-kmod/glue/ring.c", text)];
        let tree = Tree::planted("put-off", &files);
        let found = faults(&tree).unwrap();
        let sends = ["2: send_sig_info", "3: init_irq_work", "4: IRQ_WORK_INIT", "5: spin_lock"];
        let in_a = ["1: wake_up_poll"].iter().chain(&sends).map(|word| format!("a.c:{word}: "));
        let in_ring = sends.iter().map(|word| format!("ring.c:{word}: "));
        let expected: Vec<String> = in_a.chain(in_ring).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (fault, expected) in found.iter().zip(expected) {
            assert!(fault.starts_with(&format!("guest-kmod/glue/{expected}")), "{fault}");
        }
    }

    #[test]
    fn locks_that_may_sleep_are_found_in_kvms_glue() {
        let text = "static DEFINE_SPINLOCK(a);\nspinlock_t b;\nspin_lock_irqsave(&b, flags);\n\
                    raw_spinlock_t c;\nraw_spin_lock(&c);\nsrcu_read_lock(&d);\nrcu_read_lock();\n\
                    cpus_read_lock();\nread_lock(&e);\n/* spin_lock() */\n";
        let files =
            [("hv-driver/glue/kvm/b.c", text), ("guest-kmod/glue/sched.c", "spin_lock(&f);\n")];
        let tree = Tree::planted("locks", &files);
        let found = faults(&tree).unwrap();
        let expected =
            ["1: DEFINE_SPINLOCK", "2: spinlock_t", "3: spin_lock_irqsave", "9: read_lock"];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (fault, expected) in found.iter().zip(expected) {
            assert!(fault.starts_with(&format!("hv-driver/glue/kvm/b.c:{expected}: ")), "{fault}");
        }
    }
}
