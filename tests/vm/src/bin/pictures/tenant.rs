// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The tenant's part: it serves pages, and fetches the control domain's pages on request.

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::json;
use vm_tests::network;
use vm_tests::toolstack::{live, receive, send};

use crate::web;

/// Runs as the tenant's first program.
pub fn run() -> Result<ExitCode> {
    live(|| {
        network::connect()?;
        let _server = web::serve()?;
        send(&json!("ready"));
        web::answers(network::CONTROL)?;
        loop {
            let seconds = receive()?.as_u64().context("a number of seconds expected")?;
            send(&json!(web::pages(network::CONTROL, seconds)?));
        }
    })
}
