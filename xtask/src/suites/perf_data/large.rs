// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A file of perf's that is larger than the memory in which it is reported.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tools::sh;

/// The file's least length. Unit: bytes.
const FILE_BYTES: usize = 1 << 30;
/// The address space of the process that reports it. Unit: KiB.
const MEMORY_KIB: usize = FILE_BYTES / 2 / 1024;
/// How often the recorded samples are in the file before the next round of perf's reader begins.
const TIMES_IN_ROUND: usize = 1_000;

/// Where a file has the length of its records, and the bits of the sections behind them.
const RECORDS: usize = 40;
const FEATURES: Range<usize> = 72..104;
/// Kinds of records.
const SAMPLE: u32 = 9;
const FINISHED_ROUND: u32 = 68;

/// Reports a file of 1 GiB in half as much memory.
pub fn is_reported_in_less_memory(perfctr: &Path, dir: &Path) -> Result<()> {
    let path = dir.join("large.data");
    let samples = write(&path)?;
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v $0 && exec \"$@\"", &MEMORY_KIB.to_string()]);
    let printed = sh::output(limited.arg(perfctr).args(["report", "-i"]).arg(&path));
    fs::remove_file(&path)?;
    let printed = printed?;
    ensure!(printed.contains(&format!("{samples} samples of ")), "{samples} expected: {printed}");
    Ok(())
}

/// Writes the file, which has the samples of a recorded one again and again, and returns how many.
fn write(path: &Path) -> Result<usize> {
    let recorded = fs::read(sh::project().join("cli/src/perf_data/recorded.data"))?;
    let number = |at: usize| -> Result<usize> {
        Ok(u64::from_le_bytes(recorded[at..at + 8].try_into()?) as usize)
    };
    let (first, bytes) = (number(RECORDS)?, number(RECORDS + 8)?);
    let records = records(&recorded[first..first + bytes])?;
    let is_sample = |(kind, _): &&(u32, &[u8])| *kind == SAMPLE;
    let of = |records: &mut dyn Iterator<Item = &(u32, &[u8])>| -> Vec<u8> {
        records.flat_map(|(_, bytes)| bytes.to_vec()).collect()
    };
    // Names and mappings come before the samples.
    let before = of(&mut records.iter().take_while(|record| !is_sample(record)));
    let samples = of(&mut records.iter().filter(is_sample));
    let end = of(&mut records.iter().filter(|(kind, _)| *kind == FINISHED_ROUND));
    ensure!(!samples.is_empty() && !end.is_empty(), "the recorded file has samples and a round");
    let round = [samples.repeat(TIMES_IN_ROUND), end].concat();
    let rounds = FILE_BYTES.div_ceil(round.len());
    let mut head = recorded[..first].to_vec();
    head[FEATURES].fill(0);
    let length = (before.len() + rounds * round.len()) as u64;
    head[RECORDS + 8..RECORDS + 16].copy_from_slice(&length.to_le_bytes());
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&head)?;
    file.write_all(&before)?;
    for _ in 0..rounds {
        file.write_all(&round)?;
    }
    file.flush()?;
    Ok(records.iter().filter(is_sample).count() * TIMES_IN_ROUND * rounds)
}

/// Returns the kind and the bytes of each record.
fn records(mut bytes: &[u8]) -> Result<Vec<(u32, &[u8])>> {
    let mut records = Vec::new();
    while let Some((head, _)) = bytes.split_first_chunk::<8>() {
        let [k, i, n, d, _, _, low, high] = *head;
        let length = usize::from(u16::from_le_bytes([low, high]));
        let (record, rest) = bytes.split_at_checked(length).context("a record is cut short")?;
        ensure!(length >= head.len(), "a record of {length} bytes found");
        records.push((u32::from_le_bytes([k, i, n, d]), record));
        bytes = rest;
    }
    Ok(records)
}
