// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Prints `include/perfctr_abi.h`.

fn main() -> std::fmt::Result {
    let mut header = String::new();
    shared_abi::c_header::write(&mut header)?;
    print!("{header}");
    Ok(())
}
