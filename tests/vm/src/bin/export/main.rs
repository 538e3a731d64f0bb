// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what is exported for Prometheus and shown live, and what a host's administrator may set.

mod command;
mod domains;
mod export;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use vm_tests::tally::Tally;

fn main() -> Result<ExitCode> {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return worker::run().map(|()| ExitCode::SUCCESS);
    }
    let mut tally = Tally::default();
    domains::policy(&mut tally)?;
    export::live(&mut tally)?;
    export::scraped(&mut tally, Path::new(export::PROMETHEUS_PATH).exists())?;
    Ok(tally.finish())
}
