// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decoding and validation of hypercall arguments.
//!
//! The glue copies the caller's bytes once; everything here works on that copy.

use shared_abi::hypercall::{
    FEATURE_COST, FEATURE_ENABLED, HvDomain, HvLoad, HvQuery, HvRegister, OP_DOMAIN, OP_LOAD,
    OP_QUERY, OP_REGISTER, OP_STATS, OP_STOP, OP_UNREGISTER,
};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use shared_abi::{Config, CounterConfig, Errno, WireCaps};
use zerocopy::{FromBytes, IntoBytes};

use crate::driver::Driver;

/// A well-formed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is no heap to put a configuration on")]
pub enum Request {
    /// The handshake; the answer is in the argument now.
    Query,
    /// Register the page with this guest frame number.
    Register {
        /// Guest frame number.
        gfn: u64,
    },
    /// Forget the page.
    Unregister,
    /// Program this configuration.
    Load(Config),
    /// Program nothing.
    Stop,
    /// Allow or forbid a domain.
    Domain {
        /// The domain's number.
        domid: u32,
        /// Whether it may count.
        enabled: bool,
    },
    /// Fill the argument with the statistics.
    Stats,
}

/// Decodes operation `op` with the argument `bytes`, all of which the caller passed.
///
/// # Errors
///
/// The error number to return; `bytes` are unchanged then.
pub fn decode(
    driver: &Driver,
    op: u32,
    bytes: &mut [u8],
    domain_enabled: bool,
) -> Result<Request, Errno> {
    match op {
        OP_QUERY => query(driver, bytes, domain_enabled),
        OP_REGISTER => {
            let argument = HvRegister::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
            if argument.reserved != 0 {
                return Err(Errno::INVAL);
            }
            Ok(Request::Register { gfn: argument.gfn })
        }
        OP_UNREGISTER | OP_STOP if !bytes.is_empty() => Err(Errno::INVAL),
        OP_UNREGISTER => Ok(Request::Unregister),
        OP_STOP => Ok(Request::Stop),
        OP_LOAD => load(driver, bytes),
        OP_DOMAIN => {
            let argument = HvDomain::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
            match argument.enabled {
                0 | 1 if argument.reserved == 0 => {
                    Ok(Request::Domain { domid: argument.domid, enabled: argument.enabled == 1 })
                }
                _ => Err(Errno::INVAL),
            }
        }
        OP_STATS if bytes.len() == size_of::<shared_abi::hypercall::HvStats>() => {
            Ok(Request::Stats)
        }
        _ => Err(Errno::INVAL),
    }
}

fn query(driver: &Driver, bytes: &mut [u8], domain_enabled: bool) -> Result<Request, Errno> {
    let guest = HvQuery::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
    if guest.abi_major != u32::from(ABI_MAJOR) {
        return Err(Errno::PROTO);
    }
    let enabled = if domain_enabled { FEATURE_ENABLED } else { 0 };
    let cost = if driver.cost.is_some() { FEATURE_COST } else { 0 };
    let answer = HvQuery {
        abi_major: u32::from(ABI_MAJOR),
        abi_minor: u32::from(ABI_MINOR),
        features: enabled | cost,
        caps: WireCaps::from(&driver.caps),
        ..HvQuery::default()
    };
    answer.write_to(bytes).map_err(|_| Errno::INVAL)?;
    Ok(Request::Query)
}

fn load(driver: &Driver, bytes: &[u8]) -> Result<Request, Errno> {
    let (&header, rest) = <[u32; 2]>::ref_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
    let [counters, reserved] = header;
    if reserved != 0 || bytes.len() != HvLoad::bytes(counters as usize) {
        return Err(Errno::INVAL);
    }
    let counters = <[CounterConfig]>::ref_from_bytes(rest).map_err(|_| Errno::INVAL)?;
    let config = Config::new(&driver.caps, counters).map_err(|error| error.errno())?;
    Ok(Request::Load(config))
}
