// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The numbers that others were built with.
#![cfg(not(loom))]

use shared_abi::c_header;

/// No number of the interface changes unless the header that C is built with does.
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
