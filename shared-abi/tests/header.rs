// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the numbers that programs outside this crate were built with.
#![cfg(not(loom))]

use shared_abi::hypercall::HvLoad;
use shared_abi::{Errno, c_header};

/// No number of the interface may change unless the header for C changes, too.
#[test]
fn the_interface_is_what_the_header_says() {
    let mut text = String::new();
    c_header::write(&mut text).unwrap();
    let committed = include_str!("../include/perfctr_abi.h");
    for (line, (now, before)) in text.lines().zip(committed.lines()).enumerate() {
        assert_eq!(now, before, "line {}", line + 1);
    }
    assert_eq!(text.lines().count(), committed.lines().count());
}

#[test]
fn errors_are_the_systems() {
    assert_eq!([Errno::PERM, Errno::NODEV, Errno::INVAL].map(Errno::to_return), [-1, -19, -22]);
    assert_eq!(format!("{:?}", Errno::OPNOTSUPP), "EOPNOTSUPP");
}

/// An argument has a header of two words, and then 32 bytes for each counter.
#[test]
fn a_load_is_as_long_as_what_it_lists() {
    assert_eq!([0, 1, 2, 24].map(HvLoad::bytes), [8, 40, 72, 776]);
}
