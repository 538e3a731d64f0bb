// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads how much of their code the module and the driver have executed.

use std::fs;

use anyhow::{Context, Result};
use vm_tests::xen::Xen;

/// Only a build of the module for fuzzing has this.
const MODULE: &str = "/sys/module/perfctr/parameters/coverage";
/// Only a build of Xen for fuzzing has this.
const DRIVER: &str = "/params/perfctr-coverage";

/// Whose code is looked at.
#[derive(Debug)]
pub enum Coverage {
    /// The module's.
    Module,
    /// The driver's.
    Driver(Xen),
    /// Nobody's, since there is no build for fuzzing.
    Nobody,
}

impl Coverage {
    /// Opens the coverage of the driver, or of the module. There is no feedback if that is not
    /// built for fuzzing.
    pub fn open(of_driver: bool) -> Self {
        if !of_driver {
            return if fs::exists(MODULE).unwrap_or(false) { Self::Module } else { Self::Nobody };
        }
        match Xen::open() {
            Ok(xen) if xen.parameter(DRIVER).is_ok() => Self::Driver(xen),
            _ => Self::Nobody,
        }
    }

    /// Returns the number of places that were reached so far.
    pub fn reached(&self) -> Result<u32> {
        match self {
            Self::Module => Ok(fs::read_to_string(MODULE).context(MODULE)?.trim().parse()?),
            Self::Driver(xen) => xen.parameter(DRIVER).context(DRIVER),
            Self::Nobody => Ok(0),
        }
    }
}
