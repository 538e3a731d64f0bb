// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What executes on each CPU from when to when, without counting anything.

use std::io;

use perf_event_open_sys::bindings as perf;

use super::ring::Ring;
use super::{ALL, number, online};
use crate::error::Error;
use crate::sys::PerfEvent;

/// The kernel's records of which thread executes on which CPU, which program it executes, and what
/// memory the program maps. The kernel writes them into a ring of each CPU that is online.
///
/// The records have the form that `perf_event_open(2)` describes. Each ends with the fields that
/// [`TurnsForm`] names.
#[derive(Debug)]
pub struct Turns {
    rings: Vec<(PerfEvent, Ring)>,
    form: TurnsForm,
}

/// The form of the records, by the words of `perf_event_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TurnsForm {
    /// The kind of the event: `type`.
    pub kind: u32,
    /// The event: `config`.
    pub config: u64,
    /// The fields at the end of each record: `sample_type`.
    pub fields: u64,
    /// The flags, which are bits of one word.
    pub flags: u64,
    /// The clock whose time the records have: `clockid`.
    pub clock: i32,
}

impl Turns {
    /// Begins to record everything that executes on the CPUs that are online.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: `EACCES` or `EPERM` if the caller may not observe all CPUs.
    pub fn open() -> Result<Self, Error> {
        let mut attributes = attributes();
        let mut rings = Vec::new();
        for cpu in online()? {
            let place = (ALL, number(cpu)?);
            let mut opened = PerfEvent::open_where(place, &mut attributes, None, 0);
            if opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput) {
                // Linux before 5.12 does not put build-ids into its records.
                attributes.set_build_id(0);
                opened = PerfEvent::open_where(place, &mut attributes, None, 0);
            }
            let opened = opened.map_err(Error::kernel("record which threads execute"))?;
            let ring = Ring::new(&opened).map_err(Error::kernel("map a ring of records"))?;
            rings.push((opened, ring));
        }
        Ok(Self { rings, form: form(&attributes) })
    }

    /// Returns the form that records have on Linux 5.12 and later.
    pub fn records() -> TurnsForm {
        form(&attributes())
    }

    /// Returns the form of the records.
    pub fn form(&self) -> TurnsForm {
        self.form
    }

    /// Takes the records that the kernel has written since the last call, those of each CPU in
    /// their order.
    pub fn take(&self) -> impl Iterator<Item = Vec<u8>> {
        self.rings.iter().map(|(_, ring)| ring.drain())
    }
}

fn form(attributes: &perf::perf_event_attr) -> TurnsForm {
    TurnsForm {
        kind: attributes.type_,
        config: attributes.config,
        fields: attributes.sample_type,
        flags: attributes._bitfield_1.get(0, 64),
        clock: attributes.clockid,
    }
}

/// Returns the attributes of an event that counts nothing, and has the kernel write these records.
fn attributes() -> perf::perf_event_attr {
    let mut attributes = perf::perf_event_attr {
        type_: perf::PERF_TYPE_SOFTWARE,
        size: size_of::<perf::perf_event_attr>() as u32,
        config: perf::PERF_COUNT_SW_DUMMY.into(),
        // Samples, of which there are none, would have the address.
        sample_type: u64::from(
            perf::PERF_SAMPLE_IP
                | perf::PERF_SAMPLE_TID
                | perf::PERF_SAMPLE_TIME
                | perf::PERF_SAMPLE_CPU,
        ),
        // No program can set this clock, and nobody slows it down or speeds it up.
        clockid: libc::CLOCK_MONOTONIC_RAW,
        ..Default::default()
    };
    attributes.set_use_clockid(1);
    attributes.set_sample_id_all(1);
    attributes.set_context_switch(1);
    attributes.set_task(1);
    attributes.set_comm(1);
    attributes.set_comm_exec(1);
    attributes.set_mmap(1);
    attributes.set_mmap2(1);
    attributes.set_build_id(1);
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_say_by_whom_and_when_and_where_they_were_written() {
        let form = Turns::records();
        let [tid, time, cpu] = [1 << 1, 1 << 2, 1 << 7];
        assert_eq!(form.fields & (tid | time | cpu), tid | time | cpu);
        assert_eq!((form.kind, form.config), (1, 9), "an event of software that counts nothing");
        // These are the bits of `perf_event_attr` by the kernel's header.
        let [mmap, comm, task, id_all, mmap2] = [8, 9, 13, 18, 23].map(|bit| 1_u64 << bit);
        let [comm_exec, clock, switch, build_id] = [24, 25, 26, 34].map(|bit| 1_u64 << bit);
        let all = mmap | comm | task | id_all | mmap2 | comm_exec | clock | switch | build_id;
        assert_eq!(form.flags, all);
        assert_eq!(form.clock, libc::CLOCK_MONOTONIC_RAW);
    }
}
