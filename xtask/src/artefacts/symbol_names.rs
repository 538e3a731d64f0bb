// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gives the driver's functions names that Xen can read.
//!
//! Xen has a table of the names of its functions. It prints names from there in traces of its
//! stack, and hands them to the control domain (`XENPF_get_symbol`). Each time it copies a name,
//! with the name of a local function's file in front, into a buffer of 128 bytes, and does not look
//! at the name's length (`xen/common/symbols.c`). The length of a name in the table is one byte. So
//! a longer name destroys memory of Xen's, or makes it read all names behind it wrongly. The
//! compiler's names of generic functions are often that long.

use std::collections::HashSet;

/// The longest name that Xen can read, unit: bytes. The rest of its buffer is for the name of the
/// file, `perfctr_core.o#`, and a zero (KSYM_NAME_LEN).
pub const NAME_BYTES_MAX: usize = 127 - "perfctr_core.o#".len();

/// Returns lines for objcopy's option `--redefine-syms`: each symbol that the Rust compiler has
/// made up, and its new name, which no other symbol has.
pub fn renamed(symbols: &[&str]) -> String {
    let mut taken: HashSet<String> = symbols.iter().map(|&symbol| symbol.to_owned()).collect();
    let mut lines = String::new();
    for symbol in symbols {
        let Ok(path) = rustc_demangle::try_demangle(symbol) else { continue };
        let readable = readable(&format!("{path:#}"));
        let mut names = (1..).map(|n| if n == 1 { readable.clone() } else { with(&readable, n) });
        let Some(name) = names.find(|name| !taken.contains(name)) else { continue };
        lines += &format!("{symbol} {name}\n");
        taken.insert(name);
    }
    lines
}

/// Returns a name with a number that distinguishes it from others.
fn with(name: &str, number: usize) -> String {
    let number = format!(".{number}");
    cut(name, NAME_BYTES_MAX - number.len()).to_owned() + &number
}

/// Returns a path as one word that Xen can read: as a whole, or without the modules in it, or the
/// beginning of that. The tool that makes Xen's table ends a name at a space, and objcopy takes
/// everything behind a number sign for a comment.
fn readable(path: &str) -> String {
    let word = |path: &str| path.replace(", ", ",").replace(' ', "_").replace('#', "");
    let (whole, short) = (word(path), word(&without_modules(path)));
    if whole.len() <= NAME_BYTES_MAX { whole } else { cut(&short, NAME_BYTES_MAX).to_owned() }
}

/// Leaves out the modules in front of each name: `hv_driver::vcpu::Vcpu` becomes `Vcpu`.
fn without_modules(path: &str) -> String {
    let mut short = String::new();
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        let ends = |c: char| !c.is_alphanumeric() && c != '_';
        let (name, after) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
        if name.is_empty() {
            short.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let inner = after.strip_prefix("::").filter(|inner| inner.starts_with(char::is_alphabetic));
        rest = match inner {
            Some(inner) if name.starts_with(char::is_lowercase) && !short.ends_with(':') => inner,
            _ => {
                short += name;
                after
            }
        };
    }
    short
}

/// Returns at most `bytes` bytes of a text.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURE: &str = "_RNvMNtCslq8OZwpJXhg_9hv_driver4vcpuNtB2_4Vcpu9configure";
    const REPLACE: &str = "_RINvMs1_NtCslq8OZwpJXhg_9hv_driver4pcpuINtB6_7ThisCpuNtNtCs9c2J2lUbLAc\
        _13hv_driver_ffi3x866X86PmuE5enterNCINvMNtB8_4vcpuNtB1K_4Vcpu7replaceBP_E0EBT_";

    #[test]
    fn a_name_that_fits_keeps_its_path() {
        let lines = renamed(&[CONFIGURE, "perfctr_core_toggle", "memcpy"]);
        assert_eq!(lines, format!("{CONFIGURE} <hv_driver::vcpu::Vcpu>::configure\n"));
    }

    #[test]
    fn a_long_name_loses_its_modules() {
        let expected = "<ThisCpu<X86Pmu>>::enter::<<Vcpu>::replace<X86Pmu>::{closure0}>";
        assert_eq!(renamed(&[REPLACE]), format!("{REPLACE} {expected}\n"));
    }

    #[test]
    fn names_are_cut_to_what_fits_and_stay_different() {
        let long = "a".repeat(300);
        assert_eq!(readable(&long).len(), NAME_BYTES_MAX);
        assert_eq!(with(&readable(&long), 12).len(), NAME_BYTES_MAX);
        assert_eq!(with("short", 2), "short.2");
        let twice = renamed(&[CONFIGURE, CONFIGURE]);
        let names: Vec<&str> = twice.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        let name = "<hv_driver::vcpu::Vcpu>::configure";
        assert_eq!(names, [name, "<hv_driver::vcpu::Vcpu>::configure.2"]);
    }

    #[test]
    fn names_are_single_words_without_comments() {
        let path = "<a::B as c::D<&mut e::F, u8>>::g::{closure#1}";
        assert_eq!(readable(path), "<a::B_as_c::D<&mut_e::F,u8>>::g::{closure1}");
        assert_eq!(without_modules(path), "<B as D<&mut F, u8>>::g::{closure#1}");
    }
}
