// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What a guest does under each load. Each function takes a number of seconds, and returns how
//! often it has done its work.

use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memmap2::MmapMut;
use nix::unistd::getppid;
use vm_tests::network::TENANT;

use crate::disk;

/// The port to which packets are sent.
const SINK_PORT: u16 = 83;
/// The bytes that are sent, or read, at once.
const BLOCK: usize = 65_536;
/// The number of blocks of the disk that are read, one after another.
const BLOCKS: u64 = 512;
/// The number of times that the load of the kernel repeats a small request.
const REPEATED: u64 = 50;

/// Repeats something for this many seconds.
fn repeat(seconds: u64, mut act: impl FnMut(u64) -> Result<()>) -> Result<u64> {
    let (start, mut times) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        act(times)?;
        times += 1;
    }
    Ok(times)
}

/// Sends packets to the tenant. Runs in the control domain.
pub fn send_packets(seconds: u64) -> Result<u64> {
    let mut stream = TcpStream::connect((TENANT, SINK_PORT)).context("the tenant takes none")?;
    let block = vec![b'x'; BLOCK];
    repeat(seconds, |_| Ok(stream.write_all(&block)?))
}

/// Returns the tenant's end of the connections by which it receives packets.
pub fn listen() -> Result<TcpListener> {
    Ok(TcpListener::bind((TENANT, SINK_PORT))?)
}

/// Receives packets from each connection, as long as it lasts.
pub fn receive_packets(listener: &TcpListener) {
    let mut block = vec![0; BLOCK];
    for mut stream in listener.incoming().flatten() {
        // An error ends the connection as its end does.
        while stream.read(&mut block).is_ok_and(|bytes| bytes > 0) {}
    }
}

/// Reads the disk, and not the kernel's copy of it.
pub fn read_disk(seconds: u64) -> Result<u64> {
    let mut options = File::options();
    let disk = options.read(true).custom_flags(libc::O_DIRECT).open(disk::DEVICE)?;
    // Such a read needs memory that is aligned like the disk's blocks, as pages are.
    let mut block = MmapMut::map_anon(BLOCK)?;
    repeat(seconds, |times| Ok(disk.read_exact_at(&mut block, times % BLOCKS * BLOCK as u64)?))
}

/// Switches between two processes that wait for each other.
pub fn switch(seconds: u64) -> Result<u64> {
    let mut other = Command::new(env::current_exe()?);
    let mut other = other.arg("echo").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut away = other.stdin.take().context("a pipe")?;
    let mut back = other.stdout.take().context("a pipe")?;
    let mut ball = [0];
    let turns = repeat(seconds, |_| {
        away.write_all(&ball)?;
        Ok(back.read_exact(&mut ball)?)
    })?;
    drop(away);
    other.wait()?;
    Ok(turns)
}

/// Runs as the other one of these processes, until the first one ends.
pub fn echo() -> Result<()> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut ball = [0];
    while input.read(&mut ball)? > 0 {
        output.write_all(&ball)?;
        output.flush()?;
    }
    Ok(())
}

/// Makes requests of several kinds, which the kernel answers by itself.
pub fn kernel(seconds: u64) -> Result<u64> {
    let zeros = File::open("/dev/zero")?;
    let (mut from, mut to) = std::io::pipe()?;
    let mut page = [0; 4096];
    repeat(seconds, |_| {
        for _ in 0..REPEATED {
            getppid();
        }
        (&zeros).read_exact(&mut page)?;
        to.write_all(&page)?;
        from.read_exact(&mut page)?;
        fs::metadata("/proc/self/stat")?;
        fs::read("/proc/self/stat")?;
        Ok(())
    })
}
