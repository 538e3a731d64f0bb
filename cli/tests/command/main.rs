// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The command `perfctr` on any machine with Linux: its hardware events count a software clock.

mod attached;
mod ends;
mod gate;
mod messages;
mod run;
mod words;
