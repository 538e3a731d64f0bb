// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The parts that the programs inside the test VM's guest share.
//!
//! They judge the library, the module and the hypervisor from outside: by regions of code with a
//! known number of instructions ([`region`]), by requests that must be refused ([`raw`], [`xen`]),
//! and by the statistics of each side ([`stats`]).
//!
//! Two more programs execute where no user's program does: `kmod`, a module that tries to read
//! counters in a tenant's kernel, and `guest32`, a 32-bit kernel that is alone in its domain.

pub mod bodies;
pub mod bpf;
pub mod branches;
pub mod cgroup;
pub mod disturb;
pub mod emulated;
pub mod expected;
pub mod frames;
pub mod frames_program;
pub mod guest;
pub mod histogram;
pub mod host;
pub mod host_profile;
pub mod in_tenant;
pub mod interrupts;
pub mod kernel;
pub mod kexec;
pub mod kvm;
pub mod map;
pub mod module;
pub mod network;
pub mod perf;
pub mod profile;
pub mod programs;
pub mod raw;
pub mod region;
pub mod reload;
pub mod rng;
pub mod round;
pub mod sampled;
pub mod shared;
pub mod signalled;
pub mod stats;
pub mod step;
pub mod tallied;
pub mod tally;
pub mod threads;
pub mod time;
pub mod toolstack;
pub mod turns;
pub mod users;
pub mod volume;
pub mod witness;
pub mod work;
pub mod workers;
pub mod xen;
