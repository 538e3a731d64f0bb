// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `perfctr domains`, on a Xen host: which domains may count, and with what.

use std::collections::HashMap;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use perfctr::CAPS_SAMPLING;
use perfctr::host::Host;
use shared_abi::caps::CAPS_ALL_EVENTS;

/// What to do.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lets a domain count.
    Allow {
        /// Its number or name.
        domain: String,
    },
    /// Forbids a domain to count; it stops at once.
    Forbid {
        /// Its number or name.
        domain: String,
    },
    /// Says what guests may use.
    Limits {
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Domains' names, of which Xen knows nothing: the toolstack's list, if there is one.
fn names() -> HashMap<u32, String> {
    let listed = Command::new("xl").arg("list").output();
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, number) = (words.next()?, words.next()?.parse().ok()?);
        Some((number, name.to_owned()))
    };
    listed.unwrap_or_default().lines().filter_map(parse).collect()
}

fn number(domain: &str) -> Result<u32> {
    let named = || names().into_iter().find(|(_, name)| name == domain).map(|(number, _)| number);
    domain.parse().ok().or_else(named).with_context(|| format!("there is no domain {domain}"))
}

/// `perfctr domains`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let host = Host::open()?;
    match &options.action {
        Action::Allow { domain } => {
            host.allow(number(domain)?, true).with_context(|| format!("domain {domain}"))?;
        }
        Action::Forbid { domain } => {
            host.allow(number(domain)?, false).with_context(|| format!("domain {domain}"))?;
        }
        Action::Limits { json } => limits(&host, *json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn limits(host: &Host, json: bool) -> Result<()> {
    let caps = host.driver()?.caps;
    let samples = caps.can(CAPS_SAMPLING);
    let all_events = caps.can(CAPS_ALL_EVENTS);
    if json {
        let limits = serde_json::json!({
            "general": caps.general, "fixed": caps.fixed, "samples": samples,
            "all_events": all_events,
        });
        println!("{}", serde_json::to_string_pretty(&limits)?);
        return Ok(());
    }
    println!("counters   {} general and {} fixed for each vCPU", caps.general, caps.fixed);
    let events = if all_events {
        "all that are not known to harm others"
    } else {
        "those known to count nothing of others (perfctr=events=all lets the rest in)"
    };
    println!("events     {events}");
    println!("sampling   {}", if samples { "yes" } else { "no: these counters do not interrupt" });
    Ok(())
}
