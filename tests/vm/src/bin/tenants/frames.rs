// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A PVH tenant that may count, whose kernel names frames as its vCPU's page that are no memory of
//! its own, or that it takes away later.
//!
//! The tenant does what it is told; the control domain, which counts beside, knows what it must be
//! answered.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use nix::errno::Errno;
use serde_json::{Value, json};
use vm_tests::module;
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{Kind, Tenant, Tsc, Wanted, hear, say};
use vm_tests::xen::{Grant, MemoryType};

use crate::control::{Host, begins, exact, gone};
use crate::counting::{CROSSED, Domain};
use crate::peek;

/// The module that names frames, in the tenant.
pub const MODULE: &str = "/lib/perfctr/frames.ko";
/// What it offers.
const PARAMETERS: &str = "/sys/module/frames/parameters";
/// Regions that each thread of the control domain measures at least.
const BESIDE: u64 = 200;

/// A frame of the emulator's display, and where the tenant has it.
const DEVICE: &str = "iomem = [ \"a0,1@fd000\" ]";
/// Frames that are not there, or no memory.
const ELSEWHERE: [(&str, u64); 6] = [
    ("is the largest number", u64::MAX),
    ("is beyond all memory", 1 << 40),
    ("is beyond the tenant's memory", 0x2_0000),
    ("is its local APIC's", 0xfee00),
    ("would be an I/O APIC's", 0xfec00),
    ("is a device's", 0xfd000),
];

/// The control domain's part.
pub fn control(tally: &mut Tally, host: &Host) -> Result<()> {
    let mut tenant = Tenant::create_wanted(&Wanted {
        config: DEVICE,
        ..Wanted::usual(Kind::Pvh, "framer", 1, Tsc::Native, "frames")
    })?;
    host.invite(&tenant)?;
    begins(&mut tenant)?;
    let (domain, stop) = (tenant.domain, &AtomicBool::new(false));
    let control = Domain::new(CROSSED[0])?;
    let (ours, named) = thread::scope(|scope| {
        let naming = scope.spawn(|| {
            let named = name(tally, host, &mut tenant);
            stop.store(true, Ordering::Relaxed);
            named
        });
        let ours = control.count(1, |measured| measured < BESIDE || !stop.load(Ordering::Relaxed));
        (ours, naming.join().expect("no thread panics"))
    });
    named?;
    let whose = "control domain beside a PVH tenant that names frames";
    println!("{whose}: {:#}", ours.as_ref().unwrap_or(&Value::Null));
    exact(tally, whose, &ours?);
    tenant.destroy()?;
    tally.check("a PVH tenant whose page it gave back leaves nothing", gone(&host.xen, domain));
    Ok(())
}

/// Has it name one frame after another.
fn name(tally: &mut Tally, host: &Host, tenant: &mut Tenant) -> Result<()> {
    let own = tenant.ask("own", "")?;
    let own = own["is"].as_u64().with_context(|| format!("its frame is {own}"))?;
    let mut frames = Frames { tally, tenant };
    frames.is_page(own, "its own")?;
    for (what, frame) in ELSEWHERE {
        frames.is_refused(frame, what)?;
    }
    host.xen.set_memory_type(frames.tenant.domain, own, MemoryType::ReadOnly)?;
    frames.is_refused(own, "is read-only")?;
    host.xen.set_memory_type(frames.tenant.domain, own, MemoryType::Writable)?;
    frames.is_page(own, "its own, writable again")?;

    frames.does("release", "")?;
    frames.is_refused(own, "was given back to the hypervisor")?;
    let grant = Grant::new(frames.tenant.domain)?;
    for (is_read_only, what) in [(0, "is another domain's, granted"), (1, "is granted read-only")] {
        frames.does("map", &format!("0 {} {is_read_only}", grant.reference()))?;
        frames.is_refused(own, what)?;
        frames.does("unmap", "")?;
    }
    frames.does("populate", "")?;
    frames.is_page(own, "its own, populated again")?;

    // What is a page already stays what it was for the hypervisor.
    frames.answers("register", &own.to_string(), "page that is given back later", &Value::Null)?;
    frames.does("release", "")?;
    frames.reads_counters(true, "a page that was given back")?;
    frames.does("populate", "")?;
    frames.answers("unregister", "", "taking back a page that was given back", &Value::Null)?;
    frames.reads_counters(false, "no page any more")?;
    host.xen.set_memory_type(frames.tenant.domain, own, MemoryType::DeviceModel)?;
    frames.is_refused(own, "is a device model's")?;
    Ok(())
}

/// A tenant that names frames, and the list of checks.
struct Frames<'a> {
    tally: &'a mut Tally,
    tenant: &'a mut Tenant,
}

impl Frames<'_> {
    /// The frame can be a page, once, and can be none again.
    fn is_page(&mut self, frame: u64, what: &str) -> Result<()> {
        let number = frame.to_string();
        let name = format!("page whose frame is {what}");
        self.answers("register", &number, &name, &Value::Null)?;
        self.reads_counters(true, &name)?;
        self.answers("register", &number, "second page of a PVH vCPU", &json!("EEXIST"))?;
        self.answers("unregister", "", &format!("taking back the {name}"), &Value::Null)?;
        self.answers("unregister", "", "taking back no page", &json!("ENXIO"))
    }

    /// The frame cannot be a page, and nothing has changed for the vCPU.
    fn is_refused(&mut self, frame: u64, what: &str) -> Result<()> {
        let name = format!("page whose frame {what}");
        self.answers("register", &frame.to_string(), &name, &json!("EINVAL"))?;
        self.reads_counters(false, &name)
    }

    fn answers(&mut self, file: &str, text: &str, what: &str, expected: &Value) -> Result<()> {
        let answer = self.tenant.ask(file, text)?;
        let gives = expected.as_str().unwrap_or("no error");
        let outcome = equal(&answer["error"], expected);
        self.tally.check(&format!("PVH tenant: {what} gives {gives}"), outcome);
        Ok(())
    }

    /// What is no test but has to be done.
    fn does(&mut self, file: &str, text: &str) -> Result<()> {
        let answer = self.tenant.ask(file, text)?;
        anyhow::ensure!(answer["error"].is_null(), "{file} {text}: {answer}");
        Ok(())
    }

    /// Whether RDPMC is the tenant's kernel's: with a page it reads, without it faults.
    fn reads_counters(&mut self, expected: bool, with: &str) -> Result<()> {
        let reads = self.tenant.ask("rdpmc", "")?;
        let name =
            format!("PVH tenant: RDPMC with {with} {}", ["faults", "reads"][usize::from(expected)]);
        self.tally.check(&name, equal(&reads["is"], &json!(expected)));
        Ok(())
    }
}

/// The tenant's part, which ends with the domain.
pub fn tenant() -> Result<()> {
    module::load_file(MODULE, c"")?;
    module::load_file(peek::MODULE, c"")?;
    say(&json!("ready"));
    loop {
        let asked = hear()?;
        let [file, text] = [0, 1].map(|n| asked[n].as_str().unwrap_or_default());
        say(&match file {
            "own" => {
                let own = fs::read_to_string(format!("{PARAMETERS}/own"))?;
                json!({ "is": own.trim().parse::<u64>()? })
            }
            "rdpmc" => json!({ "is": peek::reads_counters()? }),
            _ => json!({ "error": wrote(file, text) }),
        });
    }
}

/// The name of the error with which writing to one of the module's files fails.
pub fn wrote(file: &str, text: &str) -> Option<String> {
    // Nothing written would be no call.
    let error = fs::write(format!("{PARAMETERS}/{file}"), format!("{text}\n")).err()?;
    Some(
        error
            .raw_os_error()
            .map_or(error.to_string(), |errno| format!("{:?}", Errno::from_raw(errno))),
    )
}
