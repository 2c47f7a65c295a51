//! An example as a process, whose output a test waits for line by line.

use std::io::{BufRead, BufReader, PipeReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use leasehold::Client;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Server, ServerExt};

/// The limit of an event that must happen. Only a defect reaches it: a JVM
/// starts within two minutes even beside several builds.
pub(crate) const AMPLE: Duration = Duration::from_secs(300);

/// Returns the path of an example's program.
macro_rules! program {
    ($name:literal) => {
        env!(concat!("CARGO_BIN_EXE_", $name))
    };
}
pub(crate) use program;

/// A running example. It is killed when the value is dropped.
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: Arc<Output>,
}

/// What a process has printed, on both streams, in the order of a terminal.
#[derive(Default)]
struct Output {
    lines: Mutex<Printed>,
    changed: Condvar,
}

#[derive(Default)]
struct Printed {
    text: Vec<String>,
    is_complete: bool,
}

/// Starts an example with the URL of a server.
pub(crate) fn start(program: &str, server: &Server, args: &[&str]) -> Process {
    let mut command = Command::new(program);
    command.args(args).env("LEASEHOLD_URL", url(server));
    Process::start(command)
}

/// Runs an example that needs no input, and returns its output.
pub(crate) fn run(program: &str, server: &Server) -> String {
    start(program, server, &[]).succeeds()
}

pub(crate) fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}", server.port())
}

/// Connects a client of the test, which acts as another instance.
pub(crate) fn client(server: &Server) -> Client {
    let settings = Client::connect(&url(server)).request_timeout(AMPLE);
    let connected = settings.connect_timeout(AMPLE).wait();
    connected.expect("the server is up")
}

/// Returns the keys of the locks that exist on a server.
pub(crate) fn locks(server: &Server) -> Vec<String> {
    let keys = server.ask(&["KEYS", "lock:*"]);
    keys.list()
        .iter()
        .map(|key| key.text().to_owned())
        .collect()
}

/// Waits for an event that must happen.
pub(crate) fn eventually(what: &str, happened: impl Fn() -> bool) {
    let end = Instant::now() + AMPLE;
    while !happened() {
        assert!(Instant::now() < end, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let errors = writer.try_clone().expect("a pipe");
        command.stdin(Stdio::piped()).stdout(writer).stderr(errors);
        let mut child = command.spawn().expect("the program starts");
        // Closes the writers, so that the pipe ends with the process.
        drop(command);
        let output = Arc::<Output>::default();
        let input = child.stdin.take();
        let collected = output.clone();
        std::thread::spawn(move || collected.collect(reader));
        Self {
            child,
            input,
            output,
        }
    }

    /// Waits until the process has printed a line that starts like this.
    pub(crate) fn prints(&self, start: &str) -> String {
        let find = |printed: &Printed| {
            let mut lines = printed.text.iter();
            lines.find(|line| line.starts_with(start)).cloned()
        };
        let lines = self
            .output
            .wait(|printed| printed.is_complete || find(printed).is_some());
        find(&lines).unwrap_or_else(|| panic!("no line `{start}` in {:?}", lines.text))
    }

    /// Writes a line to the input of the process.
    pub(crate) fn enter(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the input is open");
        writeln!(input, "{line}").expect("the process reads");
    }

    /// Ends the input of the process.
    pub(crate) fn end_input(&mut self) {
        self.input = None;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process"), signal).expect("a signal");
    }

    /// Waits until the process exits with success, and returns its output.
    pub(crate) fn succeeds(self) -> String {
        let (succeeded, output) = self.exits();
        assert!(succeeded, "{output}");
        output
    }

    /// Waits until the process exits with an error, and returns its output.
    pub(crate) fn fails(self) -> String {
        let (succeeded, output) = self.exits();
        assert!(!succeeded, "{output}");
        output
    }

    fn exits(mut self) -> (bool, String) {
        let lines = self.output.wait(|printed| printed.is_complete);
        let output = lines.text.join("\n");
        assert!(lines.is_complete, "the process does not exit: {output}");
        drop(lines);
        let status = self.child.wait().expect("a status");
        (status.success(), output)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Output {
    /// Waits for a condition, at most for [`AMPLE`].
    fn wait(&self, is_met: impl Fn(&Printed) -> bool) -> std::sync::MutexGuard<'_, Printed> {
        let printed = self.lines.lock().expect("no panic");
        let waiting = |printed: &mut Printed| !is_met(printed);
        let waited = self.changed.wait_timeout_while(printed, AMPLE, waiting);
        waited.expect("no panic").0
    }

    fn collect(&self, reader: PipeReader) {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            self.lines.lock().expect("no panic").text.push(line);
            self.changed.notify_all();
        }
        self.lines.lock().expect("no panic").is_complete = true;
        self.changed.notify_all();
    }
}
