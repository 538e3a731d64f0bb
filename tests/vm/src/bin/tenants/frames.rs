// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a PVH tenant that may count. Its kernel names frames as its vCPU's page that are not its
//! own memory, or takes the frame away later.
//!
//! The tenant follows orders. The control domain, which counts at the same time, knows how each
//! request has to be answered.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use nix::errno::Errno;
use serde_json::{Value, json};
use vm_tests::module;
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{Kind, Tenant, Tsc, Wanted, receive, send};
use vm_tests::xen::{Grant, MemoryType};

use crate::control::{Host, begins, exact, gone};
use crate::counting::{CROSSED, Domain};
use crate::peek;

/// The path, in the tenant, of the module that names frames.
pub const MODULE: &str = "/lib/perfctr/frames.ko";
/// The folder of the module's files.
const PARAMETERS: &str = "/sys/module/frames/parameters";
/// The least number of regions that each thread of the control domain measures.
const BESIDE: u64 = 200;

/// A line of the tenant's configuration that maps a frame of the emulator's display into it.
const DEVICE: &str = "iomem = [ \"a0,1@fd000\" ]";
/// Frames that do not exist, or are not memory.
const ELSEWHERE: [(&str, u64); 6] = [
    ("is the largest number", u64::MAX),
    ("is beyond all memory", 1 << 40),
    ("is beyond the tenant's memory", 0x2_0000),
    ("is its local APIC's", 0xfee00),
    ("would be an I/O APIC's", 0xfec00),
    ("is a device's", 0xfd000),
];

/// Runs in the control domain.
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

/// Makes the tenant name one frame after another.
fn name(tally: &mut Tally, host: &Host, tenant: &mut Tenant) -> Result<()> {
    let own = tenant.request("own", "")?;
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

    // If a frame is a page already, the hypervisor keeps it as it was.
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
    /// Checks that the frame can be a page, only once, and can be unregistered.
    fn is_page(&mut self, frame: u64, what: &str) -> Result<()> {
        let number = frame.to_string();
        let name = format!("page whose frame is {what}");
        self.answers("register", &number, &name, &Value::Null)?;
        self.reads_counters(true, &name)?;
        self.answers("register", &number, "second page of a PVH vCPU", &json!("EEXIST"))?;
        self.answers("unregister", "", &format!("taking back the {name}"), &Value::Null)?;
        self.answers("unregister", "", "taking back no page", &json!("ENXIO"))
    }

    /// Checks that the frame is refused as a page, and that nothing has changed for the vCPU.
    fn is_refused(&mut self, frame: u64, what: &str) -> Result<()> {
        let name = format!("page whose frame {what}");
        self.answers("register", &frame.to_string(), &name, &json!("EINVAL"))?;
        self.reads_counters(false, &name)
    }

    fn answers(&mut self, file: &str, text: &str, what: &str, expected: &Value) -> Result<()> {
        let answer = self.tenant.request(file, text)?;
        let gives = expected.as_str().unwrap_or("no error");
        let outcome = equal(&answer["error"], expected);
        self.tally.check(&format!("PVH tenant: {what} gives {gives}"), outcome);
        Ok(())
    }

    /// Makes the tenant do something that is not itself a test.
    fn does(&mut self, file: &str, text: &str) -> Result<()> {
        let answer = self.tenant.request(file, text)?;
        anyhow::ensure!(answer["error"].is_null(), "{file} {text}: {answer}");
        Ok(())
    }

    /// Checks whether the tenant's kernel may execute RDPMC: with a page it reads, and without one
    /// RDPMC faults.
    fn reads_counters(&mut self, expected: bool, with: &str) -> Result<()> {
        let reads = self.tenant.request("rdpmc", "")?;
        let name =
            format!("PVH tenant: RDPMC with {with} {}", ["faults", "reads"][usize::from(expected)]);
        self.tally.check(&name, equal(&reads["is"], &json!(expected)));
        Ok(())
    }
}

/// Runs in the tenant, and ends with the domain.
pub fn tenant() -> Result<()> {
    module::load_file(MODULE, c"")?;
    module::load_file(peek::MODULE, c"")?;
    send(&json!("ready"));
    loop {
        let asked = receive()?;
        let [file, text] = [0, 1].map(|n| asked[n].as_str().unwrap_or_default());
        send(&match file {
            "own" => {
                let own = fs::read_to_string(format!("{PARAMETERS}/own"))?;
                json!({ "is": own.trim().parse::<u64>()? })
            }
            "rdpmc" => json!({ "is": peek::reads_counters()? }),
            _ => json!({ "error": wrote(file, text) }),
        });
    }
}

/// Returns the name of the error with which writing to one of the module's files fails.
pub fn wrote(file: &str, text: &str) -> Option<String> {
    // An empty text would make no call.
    let error = fs::write(format!("{PARAMETERS}/{file}"), format!("{text}\n")).err()?;
    Some(
        error
            .raw_os_error()
            .map_or(error.to_string(), |errno| format!("{:?}", Errno::from_raw(errno))),
    )
}
