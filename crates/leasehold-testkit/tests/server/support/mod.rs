//! Requests to servers, and the end of processes.

pub(crate) mod worker;

use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_testkit::Server;

/// The limit of every event. Only a defect reaches it.
pub(crate) const AMPLE: Duration = Duration::from_secs(60);

/// Sends a command on a new connection, and returns the first line of the
/// reply.
pub(crate) fn ask(server: &Server, command: &str, timeout: Duration) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
    stream.set_read_timeout(Some(timeout))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

/// Sends commands on a new connection, and returns all replies.
pub(crate) fn transcript(server: &Server, commands: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(AMPLE)).unwrap();
    let commands = format!("{commands}\r\nQUIT\r\n");
    stream.write_all(commands.as_bytes()).unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    replies
}

/// Returns whether a process exists. A process that was killed but not reaped
/// by its parent does not count.
pub(crate) fn is_alive(pid: u32) -> bool {
    let output = std::process::Command::new("ps")
        .args(["-o", "stat=", "-p", &pid.to_string()])
        .output()
        .expect("ps");
    let state = String::from_utf8_lossy(&output.stdout).into_owned();
    !state.trim().is_empty() && !state.starts_with('Z')
}

/// Waits until a process and its folder are gone.
pub(crate) fn assert_gone(pid: u32, folder: &Path) {
    let end = Instant::now() + AMPLE;
    while is_alive(pid) || folder.exists() {
        assert!(Instant::now() < end, "{pid} or {folder:?} still exists");
        std::thread::sleep(Duration::from_millis(10));
    }
}
