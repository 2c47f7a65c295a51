//! A test process that crashes while it has a server.

use leasehold_testkit::Server;
use testkit::Worker;
use testkit::worker::{say, say_ready, task};

/// Starts a process with one server. Returns it with the process ID and the
/// folder of its server.
pub(crate) fn start() -> (Worker, u32, String) {
    let mut worker = Worker::spawn("");
    let reply = worker.answer();
    let (pid, folder) = reply.split_once(' ').unwrap();
    (worker, pid.parse().unwrap(), folder.to_owned())
}

#[test]
#[ignore = "the body of worker processes"]
fn process() {
    let Some(_) = task() else { return };
    let server = Server::start().unwrap();
    say_ready();
    let pid = server.pid().unwrap();
    say(format_args!("{pid} {}", server.folder().display()));
    // Waits for the test, and ends with it in any case.
    let _ = std::io::stdin().read_line(&mut String::new());
    std::process::abort();
}
