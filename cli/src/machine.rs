// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds out which machine this is, and what it lets the caller do, from CPUID, the kernel and the
//! hypervisor.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use perfctr::host::Xen;
use perfctr::raw::{Device, Surroundings};
use raw_cpuid::{CpuId, CpuIdReaderNative, Hypervisor as Kind};
use serde::Serialize;
use shared_abi::caps::CAPS_ALL_EVENTS;

const XEN: &str = "/sys/hypervisor";
const MODULE: &str = "/sys/module/perfctr";
const SYSCTL: &str = "/proc/sys/kernel";

/// The numbers of AMD's counters without and with the extension, and their width (APM volume 2,
/// 13.2.1).
const AMD_COUNTERS: [u32; 2] = [4, 6];
const AMD_BITS: u32 = 48;

/// This thread, in calls of the scheduler's.
pub const THIS_THREAD: Pid = Pid::from_raw(0);

/// Lets this thread execute on one CPU only.
pub fn run_on(cpu: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(THIS_THREAD, &set)
}

/// Reads a file that contains one word, if there is such a file.
fn word(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number<T: FromStr>(path: &str) -> Option<T> {
    word(path)?.parse().ok()
}

/// Formats the major and minor version of an interface.
fn abi((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

/// The hypervisor that runs this machine.
#[derive(Debug, Serialize)]
pub struct Hypervisor {
    pub name: String,
    /// Xen's version. Other hypervisors do not say theirs.
    pub version: Option<String>,
    /// The kind of guest that this is on Xen.
    pub guest: Option<String>,
}

impl Hypervisor {
    /// Returns the hypervisor, or `None` on bare metal.
    pub fn here() -> Option<Self> {
        if word(&format!("{XEN}/type")).as_deref() == Some("xen") {
            let part = |name| word(&format!("{XEN}/version/{name}")).unwrap_or_default();
            let version = format!("{}.{}{}", part("major"), part("minor"), part("extra"));
            let guest = word(&format!("{XEN}/guest_type"));
            return Some(Self { name: "Xen".to_owned(), version: Some(version), guest });
        }
        let name = match CpuId::new().get_hypervisor_info()?.identify() {
            Kind::Xen => "Xen".to_owned(),
            Kind::KVM => "KVM".to_owned(),
            Kind::QEMU => "QEMU".to_owned(),
            Kind::HyperV => "Hyper-V".to_owned(),
            Kind::VMware => "VMware".to_owned(),
            Kind::Bhyve => "bhyve".to_owned(),
            Kind::QNX => "QNX".to_owned(),
            Kind::ACRN => "ACRN".to_owned(),
            Kind::Unknown(ebx, ecx, edx) => {
                let signature = [ebx, ecx, edx].map(u32::to_le_bytes).concat();
                String::from_utf8_lossy(&signature).trim_end_matches('\0').to_owned()
            }
        };
        Some(Self { name, version: None, guest: None })
    }

    pub fn is_xen(&self) -> bool {
        self.name == "Xen"
    }
}

/// The state of perfctr's driver in the hypervisor.
#[derive(Debug, Serialize)]
pub struct Driver {
    /// The version of its interface.
    pub abi: String,
    /// Whether this domain may count.
    pub allows: bool,
    /// Whether guests may also count events that may include what others do.
    pub all_events: bool,
}

impl Driver {
    /// Asks the driver. Returns its answer, or the reason why there is none.
    pub fn ask() -> Result<Self, String> {
        let driver = Xen::open().and_then(|host| host.driver());
        let driver = driver.map_err(|error| error.to_string())?;
        Ok(Self {
            abi: abi(driver.abi),
            allows: driver.allows,
            all_events: driver.caps.can(CAPS_ALL_EVENTS),
        })
    }
}

/// The state of perfctr's module in the kernel.
#[derive(Debug, Serialize)]
pub struct Module {
    pub version: Option<String>,
    /// The version of its interface, which is known only if the caller may open the device.
    pub abi: Option<String>,
}

impl Module {
    /// Returns the module's state, or `None` if it is not loaded.
    pub fn here() -> Option<Self> {
        fs::metadata(MODULE).ok()?;
        let info = Device::open().and_then(|device| device.info()).ok();
        Some(Self {
            version: word(&format!("{MODULE}/version")),
            abi: info.map(|info| abi((info.abi_major, info.abi_minor))),
        })
    }
}

/// The CPU, as it names itself.
#[derive(Debug, Serialize)]
pub struct Cpu {
    pub vendor: String,
    pub family: u8,
    pub model: u8,
    pub stepping: u8,
    pub brand: Option<String>,
}

impl Cpu {
    pub fn here() -> Self {
        let cpu = CpuId::new();
        let features = cpu.get_feature_info();
        let of = |part: fn(&raw_cpuid::FeatureInfo) -> u8| features.as_ref().map_or(0, part);
        let vendor = cpu.get_vendor_info().map(|vendor| vendor.as_str().to_owned());
        Self {
            vendor: vendor.unwrap_or_default(),
            family: of(raw_cpuid::FeatureInfo::family_id),
            model: of(raw_cpuid::FeatureInfo::model_id),
            stepping: of(raw_cpuid::FeatureInfo::stepping_id),
            brand: perfctr_gate::cpu_name(),
        }
    }
}

/// Counters of one logical CPU.
#[derive(Debug, Serialize)]
pub struct Counters {
    pub general: u32,
    pub general_bits: u32,
    pub fixed: u32,
    pub fixed_bits: u32,
}

impl Counters {
    /// Returns the counters that the CPU says it has. It is not known how many of them the kernel
    /// uses.
    pub fn of_cpu() -> Option<Self> {
        let cpu = CpuId::new();
        match cpu.get_vendor_info()?.as_str() {
            "GenuineIntel" => Self::of_intel(&cpu),
            "AuthenticAMD" | "HygonGenuine" => {
                let features = cpu.get_extended_processor_and_feature_identifiers()?;
                let general = AMD_COUNTERS[usize::from(features.has_perf_cntr_extensions())];
                Some(Self { general, general_bits: AMD_BITS, fixed: 0, fixed_bits: 0 })
            }
            _ => None,
        }
    }

    fn of_intel(cpu: &CpuId<CpuIdReaderNative>) -> Option<Self> {
        let leaf = cpu.get_performance_monitoring_info().filter(|leaf| leaf.version_id() > 0)?;
        Some(Self {
            general: leaf.number_of_counters().into(),
            general_bits: leaf.counter_bit_width().into(),
            fixed: leaf.fixed_function_counters().into(),
            fixed_bits: leaf.fixed_function_counters_bit_width().into(),
        })
    }
}

/// The kernel's limits on who may count what.
#[derive(Debug, Serialize)]
pub struct Policy {
    pub perf_event_paranoid: Option<i32>,
    /// The most samples in a second that perf takes.
    pub perf_event_max_sample_rate: Option<u64>,
    /// The module's parameter of that name.
    pub paranoid: Option<i32>,
    pub device: Option<Access>,
    /// Whether the caller's system calls are filtered.
    pub seccomp: bool,
}

/// Who may open a file.
#[derive(Debug, Serialize)]
pub struct Access {
    pub path: &'static str,
    /// The mode in octal digits.
    pub mode: String,
    pub uid: u32,
    pub gid: u32,
    /// Whether the caller may open it.
    pub opens: bool,
}

impl Access {
    /// Returns who may open the device, or `None` if there is none.
    fn to_device() -> Option<Self> {
        let path = Device::PATH;
        let meta = fs::metadata(path).ok()?;
        Some(Self {
            path,
            mode: format!("{:04o}", meta.mode() & 0o7777),
            uid: meta.uid(),
            gid: meta.gid(),
            opens: Device::open().is_ok(),
        })
    }
}

impl Policy {
    pub fn here() -> Self {
        let Surroundings { seccomp, paranoid, .. } = Surroundings::here();
        Self {
            perf_event_paranoid: paranoid,
            perf_event_max_sample_rate: number(&format!("{SYSCTL}/perf_event_max_sample_rate")),
            paranoid: number(&format!("{MODULE}/parameters/paranoid")),
            device: Access::to_device(),
            seccomp,
        }
    }
}
