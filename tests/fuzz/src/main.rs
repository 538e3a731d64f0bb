// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs every target on its corpus and on mutations of it, which are the same for the same seed.

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use fuzz::{TARGETS, mutate};

/// Fuzzes the boundaries between user, guest kernel and hypervisor.
#[derive(Parser)]
struct Options {
    /// Number of inputs for each target, in addition to the corpus.
    #[arg(long, default_value_t = 200_000)]
    inputs: u64,
    /// Seed of the mutations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

thread_local! {
    /// The input that is being tried, for the message of a panic.
    static TRIED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn main() -> Result<()> {
    let options = Options::parse();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let hex: String = TRIED.take().iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("the input was {hex}");
        hook(info);
    }));
    for (name, target) in TARGETS {
        let corpus = corpus(name)?;
        for input in &corpus {
            TRIED.set(input.clone());
            target(input);
        }
        let mut rng = fastrand::Rng::with_seed(options.seed);
        for _ in 0..options.inputs {
            let mut input = corpus[rng.usize(..corpus.len())].clone();
            mutate(&mut rng, &mut input);
            TRIED.set(input.clone());
            target(&input);
        }
        println!("{name}: {} of the corpus and {} inputs, no panic", corpus.len(), options.inputs);
    }
    Ok(())
}

fn corpus(name: &str) -> Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    // The order of a directory is not the same everywhere.
    paths.sort();
    ensure!(!paths.is_empty(), "{} is empty", folder.display());
    paths.iter().map(|path| Ok(fs::read(path)?)).collect()
}
