// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The address spaces of the processes of a file.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context, Result};
use perfctr_gate::text::harmless;
use shared_abi::limits::PAGE_BYTES;

use super::super::perf;
use super::who;
use crate::elf::Segment;
use crate::host::{ANONYMOUS, user_mode_of};
use crate::profile::{Frame, Module, Profile, Thread};

/// The first address that is no process's.
const ADDRESS_END: u64 = 1 << 47;
/// The lowest address at which Linux lets programs map memory.
const ADDRESS_MIN: u64 = 1 << 16;
/// Files that may be anywhere begin at multiples of this. Unit: bytes.
const ROOM: u64 = 1 << 30;

/// The address space of one process.
#[derive(Default)]
pub struct Space<'a> {
    /// For each file, the number that has to be added to an address that the file states to get the
    /// address in the process.
    pub biases: HashMap<&'a Module, u64>,
    pub maps: Vec<Map<'a>>,
    /// Code without a file, whose addresses are the process's own.
    anonymous: BTreeSet<u64>,
    /// The ranges that are taken: the first byte of each, and the one behind its last.
    taken: BTreeMap<u64, u64>,
    /// The address behind the last module that may be anywhere.
    next: u64,
}

/// A part of a file that is mapped.
pub struct Map<'a> {
    pub module: &'a Module,
    pub start: u64,
    pub size: u64,
    /// Where it begins in the file.
    pub offset: u64,
}

/// Makes the address space of each process that has samples.
pub fn spaces(profiles: &[Profile]) -> Result<HashMap<u32, Space<'_>>> {
    let mut spaces: HashMap<u32, Space<'_>> = HashMap::new();
    // The lowest and the highest address that a process uses in a file.
    let mut used: HashMap<(u32, &Module), (u64, u64)> = HashMap::new();
    for profile in profiles {
        for stack in &profile.stacks {
            let thread = &profile.threads[stack.thread as usize];
            let pid = who::process(profile, thread);
            let space = spaces.entry(pid).or_default();
            for frame in profile.places(stack) {
                if !is_users(profile, thread, frame) {
                    continue;
                }
                let Frame { module, address } = frame;
                let module = module.map(|index| &profile.modules[index as usize]);
                // If a domain's process is known, the user mode of the domain is the memory in
                // which it is not known what the process has mapped.
                let is_file = |module: &&Module| {
                    let is_unknown = who::is_known(pid) && module.path == user_mode_of(thread.pid);
                    !is_unknown && module.path != ANONYMOUS
                };
                let Some(module) = module.filter(is_file) else {
                    space.anonymous.insert(address);
                    continue;
                };
                let (low, high) = used.entry((pid, module)).or_insert((address, address));
                (*low, *high) = ((*low).min(address), (*high).max(address));
            }
        }
    }
    let mut used: Vec<_> = used.into_iter().collect();
    // The file must be the same whenever it is written.
    used.sort_by_key(|((pid, module), _)| (*pid, &module.path, &module.build_id));
    for ((pid, module), (low, high)) in used {
        spaces.entry(pid).or_default().put(module, low, high, !who::is_known(pid))?;
    }
    Ok(spaces)
}

/// Returns whether a frame is in a process's memory. In user mode a domain may have been anywhere.
pub fn is_users(profile: &Profile, thread: &Thread, frame: Frame) -> bool {
    let mode = who::mode(profile, thread, frame);
    let is_user = matches!(mode, perf::PERF_RECORD_MISC_USER | perf::PERF_RECORD_MISC_GUEST_USER);
    is_user && (profile.host.is_none() || frame.address < ADDRESS_END)
}

impl<'a> Space<'a> {
    /// Finds a place for a file in which these addresses are used. `is_domain` says whether the
    /// process stands for a domain, if the profile is that of a host.
    fn put(&mut self, module: &'a Module, low: u64, high: u64, is_domain: bool) -> Result<()> {
        let page = PAGE_BYTES as u64;
        let start = low - low % page;
        // Code without a file has the extent that is used.
        let all =
            [Segment { offset: start, size: (high - start).saturating_add(1), address: start }];
        let code = if module.code.is_empty() { &all[..] } else { &module.code };
        let end = |segment: &Segment| {
            let end = segment.address.checked_add(segment.size)?.checked_next_multiple_of(page)?;
            (end <= ADDRESS_END && segment.offset < ADDRESS_END).then_some(end)
        };
        let name = harmless(&module.path);
        let ends: Option<Vec<u64>> = code.iter().map(end).collect();
        let ends = ends.with_context(|| {
            format!("{name}: addresses from {ADDRESS_END:#x} on found, lower ones expected")
        })?;
        let first = code.iter().map(|segment| segment.address).min().unwrap_or(0);
        let last = ends.iter().copied().max().unwrap_or(0);
        // In user mode only modules of a host's profile have a layer. The user mode of a domain is
        // the only module of its process, so its addresses conflict with no other module's. This is
        // not so if the domain has said what its processes have mapped.
        let is_hosts = module.layer.is_some() && module.code.is_empty() && is_domain;
        let bias = if is_hosts || (first >= ADDRESS_MIN && self.is_free(first, last)) {
            0
        } else {
            let size = last - first;
            let mut places = (self.next.max(ROOM)..=ADDRESS_END - size).step_by(ROOM as usize);
            let place = places.find(|&place| self.is_free(place, place + size));
            let place = place.with_context(|| format!("{name}: no room for {size} bytes"))?;
            self.next = (place + size).next_multiple_of(ROOM);
            place.wrapping_sub(first)
        };
        self.taken.insert(first.wrapping_add(bias), last.wrapping_add(bias));
        self.biases.insert(module, bias);
        for (segment, end) in code.iter().zip(ends) {
            let start = segment.address.wrapping_add(bias);
            let size = end - segment.address;
            self.maps.push(Map { module, start, size, offset: segment.offset });
        }
        Ok(())
    }

    fn is_free(&self, start: u64, end: u64) -> bool {
        let before = self.taken.range(..end).next_back();
        before.is_none_or(|(_, &taken)| taken <= start)
            && self.anonymous.range(start..end).next().is_none()
    }

    /// Returns the address of a frame that belongs to the process.
    pub fn address(&self, profile: &Profile, frame: Frame) -> u64 {
        let module = frame.module.map(|index| &profile.modules[index as usize]);
        // Each file that has samples was put somewhere.
        let bias = module.and_then(|module| self.biases.get(module));
        frame.address.wrapping_add(bias.copied().unwrap_or(0))
    }
}
