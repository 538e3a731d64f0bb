// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A web server, which is Busybox's, and load on it.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::{Child, Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vm_tests::network::BUSYBOX;

const PORT: u16 = 80;

/// The directory that is served, and the page in it.
const PAGES: &str = "/run/pages";
const PAGE: &str = "page";
/// The page's length, unit: bytes.
const LENGTH: usize = 20_000;
/// How long the other side's server may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(30);

/// Starts the server.
pub fn serve() -> Result<Child> {
    fs::create_dir_all(PAGES)?;
    fs::write(format!("{PAGES}/{PAGE}"), page())?;
    let port = PORT.to_string();
    let server = Command::new(BUSYBOX).args(["httpd", "-f", "-p", &port, "-h", PAGES]).spawn();
    server.context(BUSYBOX)
}

fn page() -> Vec<u8> {
    (0..LENGTH).map(|n| b'a' + (n % 26) as u8).collect()
}

/// Fetches the page once.
fn fetch(server: &str) -> Result<()> {
    let address = (server, PORT).to_socket_addrs()?.next().context("no address")?;
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(format!("GET /{PAGE} HTTP/1.0\r\nHost: {server}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|part| part == b"\r\n\r\n");
    let body = answer.split_off(end.context("an answer without a head")? + 4);
    let head = String::from_utf8_lossy(&answer);
    let is_good = head.starts_with("HTTP/1.") && head.split(' ').nth(1) == Some("200");
    ensure!(is_good, "{head}");
    ensure!(body == page(), "{} bytes of another page", body.len());
    Ok(())
}

/// Waits until a server answers.
pub fn answers(server: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        match fetch(server) {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > PATIENCE => bail!("{server}: {error:#}"),
            Err(_) => sleep(Duration::from_millis(200)),
        }
    }
}

/// Fetches the page again and again for this many seconds. Returns how often.
pub fn pages(server: &str, seconds: u64) -> Result<u64> {
    let (start, mut pages) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        fetch(server).with_context(|| server.to_owned())?;
        pages += 1;
    }
    Ok(pages)
}

/// Does that as a program of its own.
pub fn load(server: &str, seconds: u64) -> Result<ExitCode> {
    println!("{} pages from {server}", pages(server, seconds)?);
    Ok(ExitCode::SUCCESS)
}
