// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests events that the PMU cannot count at all, or not in the requested way.

use std::fs;

use anyhow::{Result, ensure};
use nix::errno::Errno;
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_INSTRUCTIONS, PERF_COUNT_HW_STALLED_CYCLES_FRONTEND, PERF_TYPE_HW_CACHE,
    perf_event_attr,
};
use vm_tests::perf::{Event, PARANOID, Whose, generic, raw};
use vm_tests::threads::SELF;
use vm_tests::users::{NOBODY, as_user};

use crate::Machine;
use crate::counted::general;

pub fn all(machine: &Machine) -> Result<()> {
    let with = |set: fn(&mut perf_event_attr)| {
        let mut attributes = generic(PERF_COUNT_HW_INSTRUCTIONS);
        set(&mut attributes);
        attributes
    };
    let refused = [
        ("no CPU counts it", generic(PERF_COUNT_HW_STALLED_CYCLES_FRONTEND), Errno::ENOENT),
        ("no such number", generic(1_000), Errno::ENOENT),
        ("caches", with(|of| of.type_ = PERF_TYPE_HW_CACHE), Errno::ENOENT),
        ("another core's", raw(0x01b7), Errno::EPERM),
        ("another thread's", raw(0xc0 | 1 << 21), Errno::EPERM),
        ("no bit", raw(0xc0 | 1 << 40), Errno::EINVAL),
        ("not of the idle", with(|of| of.set_exclude_idle(1)), Errno::EINVAL),
        ("precise", with(|of| of.set_precise_ip(1)), Errno::EOPNOTSUPP),
        ("more of the event", with(|of| of.__bindgen_anon_3.config1 = 1), Errno::EOPNOTSUPP),
    ];
    for (what, attributes, errno) in refused {
        let opened = Event::open(attributes, Whose::Thread(SELF), None).err();
        ensure!(opened == Some(errno), "{what}: {opened:?}, expected {errno}");
    }
    let counted = Event::open(generic(PERF_COUNT_HW_INSTRUCTIONS), Whose::Thread(SELF), None)?;
    // PAPI asks for this, and perf's own PMUs accept it.
    let nowhere = Event::open(with(|of| of.set_exclude_user(1)), Whose::Thread(SELF), None)?;
    let of_guests = Event::open(with(|of| of.set_exclude_host(1)), Whose::Thread(SELF), None)?;
    for event in [&counted, &nowhere, &of_guests] {
        event.enable()?;
    }
    let user = counted.count()?;
    let none = [nowhere.count()?, of_guests.count()?];
    ensure!(
        user > 0 && none == [0; 2],
        "in user mode {user}, in neither mode or in guests {none:?}"
    );
    group_without_room(machine)
}

/// Checks that a group is counted as a whole or never.
fn group_without_room(machine: &Machine) -> Result<()> {
    let open = |masked: u64, leader: Option<&Event>| {
        // Counter masks make events different.
        Event::open(raw(0xc0 | masked << 24), Whose::Thread(SELF), leader)
    };
    let room = general(machine) as u64;
    let leader = open(0, None)?;
    let members =
        (1..room).map(|masked| open(masked, Some(&leader))).collect::<Result<Vec<_>, _>>();
    let members = members?;
    let one_more = open(room, Some(&leader)).err();
    ensure!(one_more == Some(Errno::EINVAL), "{one_more:?} with {} members", members.len());
    Ok(())
}

/// Checks what users may count at each level of perf's policy, even Debian's highest: their own
/// threads in user mode, their own threads in the kernel, and CPUs.
pub fn by_policy(machine: &Machine) -> Result<()> {
    let cpu = Whose::Cpu(machine.cpus[0]);
    let before = fs::read_to_string(PARANOID)?;
    let levels = [
        ("3", [false, false, false]),
        ("2", [true, false, false]),
        ("1", [true, true, false]),
        ("0", [true, true, true]),
    ];
    let outcome = levels.into_iter().try_for_each(|(level, allowed)| {
        fs::write(PARANOID, level)?;
        as_user(NOBODY, || {
            let user = generic(PERF_COUNT_HW_INSTRUCTIONS);
            let mut kernel = user;
            kernel.set_exclude_kernel(0);
            let asked = [(user, Whose::Thread(SELF)), (kernel, Whose::Thread(SELF)), (user, cpu)];
            let opened = asked.map(|(event, whose)| Event::open(event, whose, None).err());
            let expected = allowed.map(|allowed| (!allowed).then_some(Errno::EACCES));
            ensure!(opened == expected, "{level}: {opened:?}, expected {expected:?}");
            Ok(())
        })
    });
    fs::write(PARANOID, before)?;
    outcome
}
