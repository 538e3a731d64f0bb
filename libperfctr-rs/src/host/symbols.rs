// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Xen's own symbols of functions, which Xen lists for the control domain.

use std::io;
use std::mem::offset_of;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::error::Error;

/// `__HYPERVISOR_platform_op`, and the parts of Xen's `platform.h` that are used here.
pub(super) const PLATFORM_OP: u64 = 7;
const XENPF_INTERFACE_VERSION: u32 = 0x0300_0001;
const XENPF_GET_SYMBOL: u32 = 63;
/// The largest number of symbols that is accepted. A Xen has some 10,000.
const SYMBOLS_MAX: usize = 1 << 20;

/// A function of Xen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Symbol {
    /// Its first instruction.
    pub address: u64,
    /// Its name. If several files have the name, it begins with the file's name, as in
    /// `schedule.c#schedule`.
    pub name: String,
}

/// `struct xen_platform_op` with its member for `XENPF_get_symbol`, and room for a name behind it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Question {
    command: u32,
    interface_version: u32,
    /// In: the size of the buffer for the name. Out: the name's length, including the zero at its
    /// end.
    name_bytes: u32,
    /// In: the symbol's number. Out: the next symbol's number, or the same number if there is
    /// none.
    number: u32,
    name_address: u64,
    address: u64,
    kind: u8,
    padding: [u8; 7],
    /// The union of all commands is 128 bytes.
    rest: [u64; 12],
    name: [u8; 256],
}

impl Question {
    /// Stores the address at which Xen finds the room for the name.
    pub(super) fn is_at(&mut self, address: u64) {
        self.name_address = address.wrapping_add(offset_of!(Self, name) as u64);
    }

    fn about(number: u32) -> Self {
        let mut question = Self::new_zeroed();
        question.command = XENPF_GET_SYMBOL;
        question.interface_version = XENPF_INTERFACE_VERSION;
        question.name_bytes = question.name.len() as u32;
        question.number = number;
        question
    }

    /// Returns the answer if it is a function.
    fn function(&self) -> Option<Symbol> {
        let name = self.name.split(|&byte| byte == 0).next().unwrap_or_default();
        let is_code = matches!(self.kind.to_ascii_lowercase(), b't' | b'w');
        (is_code && !name.is_empty()).then(|| Symbol {
            address: self.address,
            name: String::from_utf8_lossy(name).into_owned(),
        })
    }
}

/// Asks Xen for one symbol after the other.
pub(super) fn all(ask: impl Fn(&mut Question) -> io::Result<()>) -> Result<Vec<Symbol>, Error> {
    let (mut symbols, mut number) = (Vec::new(), 0);
    for _ in 0..SYMBOLS_MAX {
        let mut question = Question::about(number);
        ask(&mut question).map_err(Error::kernel("ask Xen for its functions"))?;
        symbols.extend(question.function());
        if question.number == number {
            symbols.sort_by_key(|symbol| symbol.address);
            return Ok(symbols);
        }
        number = question.number;
    }
    Err(Error::Malformed("list of Xen's functions"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers as Xen does: the last symbol is followed by an empty answer with the same number.
    fn xen(table: &[(u8, u64, &str)]) -> impl Fn(&mut Question) -> io::Result<()> {
        move |question| {
            assert_eq!((question.command, question.interface_version), (63, 0x0300_0001));
            let Some(&(kind, address, name)) = table.get(question.number as usize) else {
                return Ok(());
            };
            (question.kind, question.address) = (kind, address);
            let copied = name.len().min(question.name.len());
            question.name[..copied].copy_from_slice(&name.as_bytes()[..copied]);
            question.name_bytes = name.len() as u32 + 1;
            question.number += 1;
            Ok(())
        }
    }

    #[test]
    fn functions_are_in_the_order_of_their_addresses() {
        let table = [(b'T', 0x30, "b"), (b't', 0x10, "a.c#a"), (b'd', 0x20, "data")];
        let symbol = |address, name: &str| Symbol { address, name: name.to_owned() };
        assert_eq!(all(xen(&table)).unwrap(), [symbol(0x10, "a.c#a"), symbol(0x30, "b")]);
        assert_eq!(all(xen(&[])).unwrap(), []);
    }

    #[test]
    fn a_function_that_says_there_is_no_next_one_is_the_last() {
        let table = [(b'T', 0x10, "first"), (b'T', 0x20, "last")];
        let answer = xen(&table);
        let found = all(|question| {
            let number = question.number;
            answer(question)?;
            question.number = (number + 1).min(table.len() as u32 - 1);
            Ok(())
        });
        let names: Vec<String> = found.unwrap().into_iter().map(|symbol| symbol.name).collect();
        assert_eq!(names, ["first", "last"]);
    }

    #[test]
    fn a_name_without_an_end_and_a_list_without_one_do_no_harm() {
        let long = "n".repeat(300);
        assert_eq!(all(xen(&[(b't', 1, &long)])).unwrap()[0].name, "n".repeat(256));
        let error = all(|question| {
            question.number ^= 1;
            Ok(())
        });
        assert!(matches!(error, Err(Error::Malformed("list of Xen's functions"))));
        let refused = all(|_| Err(io::Error::from_raw_os_error(libc::EPERM)));
        assert_eq!(refused.unwrap_err().errno(), Some(libc::EPERM));
    }

    #[test]
    fn the_name_is_behind_the_structure() {
        assert_eq!(offset_of!(Question, name), 8 + 128);
        let mut question = Question::about(0);
        question.is_at(0x1000);
        assert_eq!(question.name_address, 0x1088);
    }
}
