// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What the PMU cannot count, or not so.

use anyhow::{Result, ensure};
use nix::errno::Errno;
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_INSTRUCTIONS, PERF_COUNT_HW_STALLED_CYCLES_FRONTEND, PERF_TYPE_HW_CACHE,
    perf_event_attr,
};
use vm_tests::perf::{Event, Whose, generic, raw};
use vm_tests::threads::SELF;

use crate::Machine;

pub fn all(_: &Machine) -> Result<()> {
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
        ("the hypervisor's bit", raw(0xc0 | 1 << 20), Errno::EPERM),
        ("the ring's bit", raw(0xc0 | 1 << 16), Errno::EINVAL),
        ("no bit", raw(0xc0 | 1 << 40), Errno::EINVAL),
        ("not of the host", with(|of| of.set_exclude_host(1)), Errno::EINVAL),
        ("not of the idle", with(|of| of.set_exclude_idle(1)), Errno::EINVAL),
        ("precise", with(|of| of.set_precise_ip(1)), Errno::EOPNOTSUPP),
        ("more of the event", with(|of| of.__bindgen_anon_3.config1 = 1), Errno::EOPNOTSUPP),
    ];
    for (what, attributes, errno) in refused {
        let opened = Event::open(attributes, Whose::Thread(SELF), None).err();
        ensure!(opened == Some(errno), "{what}: {opened:?}, expected {errno}");
    }
    let counted = Event::open(generic(PERF_COUNT_HW_INSTRUCTIONS), Whose::Thread(SELF), None)?;
    // PAPI asks for that, and perf's own PMUs take it.
    let nowhere = Event::open(with(|of| of.set_exclude_user(1)), Whose::Thread(SELF), None)?;
    counted.enable()?;
    nowhere.enable()?;
    let (user, none) = (counted.count()?, nowhere.count()?);
    ensure!(user > 0 && none == 0, "in user mode {user}, in neither mode {none}");
    Ok(())
}
