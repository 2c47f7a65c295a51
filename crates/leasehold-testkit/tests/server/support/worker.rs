//! A test process that crashes while it has servers.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use leasehold_testkit::Server;

/// Starts this test program again as a process with one server. Returns it
/// with the process ID and the folder of its server.
pub(crate) fn start() -> (Child, u32, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "support::worker::process"])
        .arg("--nocapture")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let line = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("server: ")?.1.to_owned()))
        .expect("a line of the process");
    let (pid, folder) = line.split_once(' ').unwrap();
    (child, pid.parse().unwrap(), folder.to_owned())
}

#[test]
#[ignore = "the body of worker processes"]
fn process() {
    let server = Server::start().unwrap();
    let (pid, folder) = (server.pid().unwrap(), server.folder());
    println!("server: {pid} {}", folder.display());
    std::io::stdout().flush().unwrap();
    // Waits for the test, and ends with it in any case.
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    std::process::abort();
}
