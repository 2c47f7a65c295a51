//! A running server.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::builder::{Address, ServerBuilder};
use crate::error::StartError;
use crate::process::Process;
use crate::ready::is_ready;

/// How long a server may take to start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The time between two probes of a server that starts.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);

/// A Redis or Valkey server that belongs to one test.
///
/// The value owns the process: dropping it kills the server and deletes its
/// folder. A test process that crashes or is killed takes its servers with it
/// on Unix. This includes a server in a `static`, which is never dropped.
///
/// All calls block the calling thread, usually for a few milliseconds. They
/// need no runtime, and can be called in `async` tests.
///
/// # Examples
///
/// ```no_run
/// use leasehold_testkit::Server;
///
/// let server = Server::start()?;
/// println!("connect to {}", server.url());
/// # Ok::<(), leasehold_testkit::StartError>(())
/// ```
#[derive(Debug)]
pub struct Server {
    // Dropped in this order.
    process: Option<Process>,
    folder: TempDir,
    address: Address,
    program: PathBuf,
    builder: ServerBuilder,
}

impl Server {
    /// Starts a server with the default configuration.
    ///
    /// # Errors
    ///
    /// If no server is installed, or it does not start within a minute.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::start().expect("a server in PATH");
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn start() -> Result<Self, StartError> {
        Self::builder().start()
    }

    /// Returns a builder, for a server with other options.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::builder().option("maxmemory", "10mb").start()?;
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    pub(crate) fn new(
        program: PathBuf,
        builder: ServerBuilder,
        folder: TempDir,
        address: Address,
    ) -> Self {
        Self {
            process: None,
            folder,
            address,
            program,
            builder,
        }
    }

    /// Returns the server's URL, such as `redis://127.0.0.1:20417`.
    ///
    /// It has no credentials, also if an option sets a password.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::start()?;
    /// # async fn connect(server: Server) -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect(&server.url()).await?;
    /// # Ok(()) }
    /// # Ok::<(), StartError>(())
    /// ```
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Returns the port, which is the same after a restart.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::start()?;
    /// let address = ("127.0.0.1", server.port());
    /// # Ok::<(), StartError>(())
    /// ```
    #[must_use]
    pub fn port(&self) -> u16 {
        match &self.address {
            Address::Fixed(port) => *port,
            Address::Reserved(port) => port.number(),
        }
    }

    /// Returns the folder in which the server runs.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::builder().option("appendonly", "yes").start()?;
    /// assert!(server.folder().join("appendonlydir").exists());
    /// # Ok::<(), StartError>(())
    /// ```
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the process ID, or `None` after [`kill`](Self::kill).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let mut server = Server::start()?;
    /// server.kill();
    /// assert_eq!(server.pid(), None);
    /// # Ok::<(), StartError>(())
    /// ```
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Returns what the server has logged since its last start.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::start()?;
    /// assert!(server.log().contains("Ready to accept connections"));
    /// # Ok::<(), StartError>(())
    /// ```
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Kills the server without a chance to save its data.
    ///
    /// Its clients lose their connections, and cannot connect until
    /// [`restart`](Self::restart). Does nothing if the server is already dead.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let mut server = Server::start()?;
    /// server.kill(); // an outage, until the restart
    /// server.restart()?;
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills the server if it runs, and starts it again on the same port.
    ///
    /// The server has lost its locks and all other data, unless an option such
    /// as `appendonly yes` makes it store them.
    ///
    /// # Errors
    ///
    /// If the server does not start within a minute.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let mut server = Server::builder().option("appendonly", "yes").start()?;
    /// server.restart()?; // a crash that loses no lock
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn restart(&mut self) -> Result<(), StartError> {
        self.kill();
        self.launch()
    }

    /// Pauses the process of the server (`SIGSTOP`).
    ///
    /// Its clients keep their connections but receive no replies, as if the
    /// network or the server's machine were stalled. The leases on the server
    /// continue to expire.
    ///
    /// # Panics
    ///
    /// If the server was killed, or does not stop within a minute.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::start()?;
    /// server.pause(); // renewals are not confirmed, so leases are lost
    /// server.resume();
    /// # Ok::<(), StartError>(())
    /// ```
    #[cfg(unix)]
    pub fn pause(&self) {
        self.running().pause().expect("a signal to the server");
    }

    /// Resumes a paused server. It then executes the requests that clients sent
    /// meanwhile.
    ///
    /// # Panics
    ///
    /// If the server was killed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::start()?;
    /// server.pause();
    /// std::thread::sleep(std::time::Duration::from_secs(3)); // a stall
    /// server.resume();
    /// # Ok::<(), StartError>(())
    /// ```
    #[cfg(unix)]
    pub fn resume(&self) {
        self.running().resume().expect("a signal to the server");
    }

    #[cfg(unix)]
    fn running(&self) -> &Process {
        self.process.as_ref().expect("the server was killed")
    }

    /// Starts the process, and waits until it accepts requests.
    pub(crate) fn launch(&mut self) -> Result<(), StartError> {
        let mut command = self.command().map_err(StartError::io("create a log"))?;
        let mut process = Process::start(&mut command, self.folder())?;
        let end = Instant::now() + START_LIMIT;
        while !is_ready(self.port(), process.id(), || self.log()) {
            let program = self.program.clone();
            if process.has_exited() {
                let log = self.log();
                return Err(StartError::Exited { program, log });
            }
            if Instant::now() > end {
                let (limit, log) = (START_LIMIT, self.log());
                return Err(StartError::Timeout {
                    program,
                    limit,
                    log,
                });
            }
            std::thread::sleep(PROBE_INTERVAL);
        }
        self.process = Some(process);
        Ok(())
    }

    /// Returns whether another program took the reserved port before the
    /// server did.
    pub(crate) fn is_port_taken(&self, started: &Result<(), StartError>) -> bool {
        let is_reserved = matches!(self.address, Address::Reserved(_));
        let in_use = |log: &str| log.contains("Address already in use");
        is_reserved && matches!(started, Err(StartError::Exited { log, .. }) if in_use(log))
    }

    pub(crate) fn change_port(&mut self) -> Result<(), StartError> {
        self.address = self.builder.address()?;
        Ok(())
    }

    fn command(&self) -> std::io::Result<Command> {
        let log = File::create(self.log_file())?;
        let mut command = Command::new(&self.program);
        command
            .current_dir(self.folder())
            .args(["--port", &self.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--save", ""])
            .args(&self.builder.options)
            .envs(
                self.builder
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::null())
            .stderr(log.try_clone()?)
            .stdout(log);
        Ok(command)
    }

    fn log_file(&self) -> PathBuf {
        self.folder().join("server.log")
    }
}
