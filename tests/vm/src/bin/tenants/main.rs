// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests two domains on the same physical CPUs: the control domain and a tenant that it creates.
//!
//! This program has both roles: in the control domain it uses Debian's Xen tools and judges, and it
//! is the first and only program of the tenant, where it counts, spins or storms.

mod control;
mod counting;
mod demo;
mod emigrant;
mod events;
mod frames;
mod held;
mod inside;
mod labelled;
mod limited;
mod peek;
mod pinned;
mod program;
mod registers;
mod roam;
mod sampled;
mod samples;
mod side;
mod storm;
mod successor;
mod tenant;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Counts in two domains at once.
#[derive(Debug, Parser)]
enum Role {
    /// Creates tenants and judges what they and this domain count.
    Control(control::Options),
    /// Creates PVH tenants: one that tests itself, one that names frames which are no memory of its
    /// own, and one that may not count, beside a PV one and a PVH one that do.
    Pvh,
    /// Creates tenants to which the host's security policy denies the PMU, and one that counts.
    Labelled,
    /// Creates a PVH tenant and a PV one, saves, restores and migrates them, and gives them other
    /// memory and vCPUs, while they count.
    Migrate,
    /// Creates a tenant that counts and is saved, for another host.
    Emigration {
        /// The file.
        saved: String,
    },
    /// Restores that tenant from the file, on a host with other counters.
    Immigration {
        /// The file.
        saved: String,
        /// The host has no driver.
        #[arg(long)]
        without_driver: bool,
    },
    /// Creates a tenant that the CPU virtualises, and counts beside it.
    TenantDemo {
        /// An HVM tenant instead of a PVH one.
        #[arg(long)]
        hvm: bool,
        #[command(flatten)]
        options: demo::Options,
    },
    /// Creates a tenant that executes a program, such as one that measures what something costs.
    Program(program::Options),
    /// Counts in a guest of KVM, which has no other domain to talk to.
    KvmDemo(demo::Options),
    /// Counts a little in a guest of KVM, and finds before that it is refused.
    KvmBrief(demo::Options),
    /// Counts in a guest of KVM that is moved from one process to another.
    KvmRoam,
    /// Counts in two guests of KVM, of which one may not count at first.
    KvmSide,
    /// Executes in two guests of KVM whose host is sampled.
    KvmSampled,
    /// Executes the function of a virtual CPU of such a guest while its host is sampled.
    KvmWork {
        /// The virtual CPU.
        vcpu: usize,
    },
    /// Counts in a guest of KVM, whose kernel then starts another one.
    KvmFirst,
    /// Counts in the kernel that was started that way.
    KvmNext,
    #[command(flatten)]
    Tenant(tenant::Role),
}

fn main() -> Result<ExitCode> {
    match Role::parse() {
        Role::Control(options) => control::run(&options),
        Role::Pvh => peek::control(),
        Role::Labelled => labelled::control(),
        Role::Migrate => roam::control(),
        Role::Emigration { saved } => emigrant::leaves(&saved),
        Role::Immigration { saved, without_driver: false } => emigrant::arrives(&saved),
        Role::Immigration { saved, without_driver: true } => emigrant::strands(&saved),
        Role::TenantDemo { hvm, options } => demo::control(hvm, &options),
        Role::Program(options) => program::control(&options),
        Role::KvmDemo(options) => demo::alone(&options),
        Role::KvmBrief(options) => demo::brief(&options),
        Role::KvmRoam => roam::alone(),
        Role::KvmSide => side::run(),
        Role::KvmSampled => sampled::alone(),
        Role::KvmWork { vcpu } => sampled::work(vcpu).map(|()| ExitCode::SUCCESS),
        Role::KvmFirst => successor::first(),
        Role::KvmNext => successor::next(),
        Role::Tenant(role) => tenant::run(&role),
    }
}
