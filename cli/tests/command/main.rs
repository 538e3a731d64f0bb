// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the command `perfctr` on any machine with Linux, with hardware events that count a
//! software clock.

mod attached;
mod ci;
mod documents;
mod ends;
mod gate;
mod kernel;
mod kernels;
mod messages;
mod names;
mod perf_data;
mod record;
mod repeatable;
mod run;
mod tables;
mod together;
mod words;
