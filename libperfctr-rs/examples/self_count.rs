// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts what a piece of this very program does.

use perfctr::{Event, Session};

fn main() -> Result<(), perfctr::Error> {
    let mut session = Session::open()?;
    session.start(&[Event::INSTRUCTIONS.user(), Event::BRANCHES.user()])?;
    let before = session.read::<2>()?;
    let squares: u64 = (0..1000_u64).map(|n| std::hint::black_box(n) * n).sum();
    let spent = session.read::<2>()? - before;
    println!("{squares}: {} instructions, {} branches", spent.counts[0], spent.counts[1]);
    Ok(())
}
