//! A server process on a free local port, killed when the value is dropped.

use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::clock;
use crate::flavor::Flavor;
use crate::resp::{Connection, Reply};
use crate::tls::Tls;

/// The names in the certificates of a local server.
const LOCAL_NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

/// The configuration of a server.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    options: Vec<String>,
    users: Vec<String>,
    tls: Option<Tls>,
    port: Option<u16>,
    movable_clock: bool,
}

impl Setup {
    /// Sets an option of the configuration file.
    #[must_use]
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push(format!("--{name}"));
        self.options.push(value.to_owned());
        self
    }

    /// Listens on this port instead of a free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Adds a user, given the arguments of `ACL SETUSER`.
    #[must_use]
    pub fn user(mut self, rule: &str) -> Self {
        self.users.push(rule.to_owned());
        self
    }

    /// Enables [`Server::set_clock`]. Requires a C compiler.
    #[must_use]
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    /// Enables TLS on a second port, with a certificate of a new CA.
    ///
    /// # Panics
    ///
    /// If no certificate can be issued.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Some(Tls::new(false, &LOCAL_NAMES));
        self
    }

    /// Enables TLS with a certificate for `name` only.
    ///
    /// # Panics
    ///
    /// If no certificate can be issued.
    #[must_use]
    pub fn tls_named(mut self, name: &str) -> Self {
        self.tls = Some(Tls::new(false, &[name]));
        self
    }

    /// Enables TLS, and requires client certificates of the same CA.
    ///
    /// # Panics
    ///
    /// If no certificate can be issued.
    #[must_use]
    pub fn mutual_tls(mut self) -> Self {
        self.tls = Some(Tls::new(true, &LOCAL_NAMES));
        self
    }

    /// Starts the server.
    ///
    /// # Panics
    ///
    /// If the server is not up within a minute.
    #[must_use]
    pub fn start(self, flavor: &Flavor) -> Server {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("leasehold-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the server");
        let port = self.port.map_or_else(Port::free, Port::fixed);
        let mut server = Server {
            flavor: flavor.clone(),
            setup: self,
            folder,
            port,
            tls_port: Port::free(),
            child: None,
        };
        server.launch();
        server
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    flavor: Flavor,
    setup: Setup,
    folder: PathBuf,
    port: Port,
    tls_port: Port,
    child: Option<Child>,
}

impl Server {
    /// Starts a server with the default configuration, without persistence.
    #[must_use]
    pub fn start(flavor: &Flavor) -> Self {
        Setup::default().start(flavor)
    }

    /// Returns the name and version, such as `redis-7.0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.flavor.name
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Returns the TLS port.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port.number
    }

    /// Returns the certificate of the server's CA.
    ///
    /// # Panics
    ///
    /// If TLS is not enabled.
    #[must_use]
    pub fn ca_certificate(&self) -> &str {
        &self.tls().ca_certificate
    }

    /// Returns a certificate and key for clients.
    ///
    /// # Panics
    ///
    /// If the server does not require client certificates.
    #[must_use]
    pub fn client_certificate(&self) -> (&str, &str) {
        let client = self.tls().client.as_ref();
        let (certificate, key) = client.expect("a server with mutual TLS");
        (certificate, key)
    }

    fn tls(&self) -> &Tls {
        self.setup.tls.as_ref().expect("a server with TLS")
    }

    /// Returns the path of the Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("server.sock")
    }

    /// Returns the process ID.
    ///
    /// # Panics
    ///
    /// If the server is down.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server is down").id()
    }

    /// Returns whether the server is running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Opens a connection with all permissions.
    ///
    /// # Panics
    ///
    /// If the server is down.
    #[must_use]
    pub fn connect(&self) -> Connection {
        Connection::open(self.port()).expect("the server is up")
    }

    /// Sends a command on a new connection, and returns its reply.
    ///
    /// # Panics
    ///
    /// If the server is down.
    #[must_use]
    pub fn ask(&self, args: &[&str]) -> Reply {
        self.connect().ask(args).expect("a reply")
    }

    /// Sends a command that must succeed.
    ///
    /// # Panics
    ///
    /// If the server is down or returns an error.
    pub fn tell(&self, args: &[&str]) {
        if let Reply::Error(error) = self.ask(args) {
            panic!("{args:?}: {error}");
        }
    }

    /// Returns a numeric field of `INFO`.
    ///
    /// # Panics
    ///
    /// If the field does not exist.
    #[must_use]
    pub fn info(&self, field: &str) -> f64 {
        let info = self.ask(&["INFO", "all"]);
        let line = info
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{field}:")))
            .unwrap_or_else(|| panic!("no {field} in INFO"))
            .to_owned();
        line.trim().parse().expect("a number")
    }

    /// Returns whether the server is up and accepts writes.
    #[must_use]
    pub fn is_master(&self) -> bool {
        let role = Connection::open(self.port()).and_then(|mut it| it.ask(&["ROLE"]));
        matches!(role, Ok(Reply::List(role)) if role[0].text() == "master")
    }

    /// Pauses the process with `SIGSTOP`.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sets the offset of the server's wall clock in seconds. A negative offset
    /// moves it back.
    pub fn set_clock(&self, seconds: i64) {
        clock::set(&self.folder.join("clock"), seconds * 1_000_000);
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            forget_pid(child.id());
        }
    }

    /// Restarts the server on the same port, with the data it has on disk.
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process"), signal).expect("a signal");
    }

    fn launch(&mut self) {
        let child = self.command().spawn().expect("the server's program");
        record_pid(child.id());
        self.child = Some(child);
        if !self.is_up() {
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            panic!("{} does not start: {log}", self.flavor.name);
        }
    }

    fn command(&self) -> Command {
        let log = std::fs::File::create(self.folder.join("log")).expect("a log");
        let mut command = Command::new(&self.flavor.program);
        command
            .current_dir(&self.folder)
            .args(["--port", &self.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--unixsocket", "server.sock"])
            .args(["--enable-debug-command", "yes"])
            .args(&self.setup.options)
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log);
        if !self.setup.users.is_empty() {
            // A file makes them available from the start.
            let users: String = self
                .setup
                .users
                .iter()
                .map(|user| format!("user {user}\n"))
                .collect();
            std::fs::write(self.folder.join("users.acl"), users).expect("a file");
            command.args(["--aclfile", "users.acl"]);
        }
        if self.setup.movable_clock {
            clock::attach(&mut command, &self.folder.join("clock"));
        }
        if let Some(tls) = &self.setup.tls {
            for (file, content) in [
                ("ca.pem", &tls.ca_certificate),
                ("cert.pem", &tls.certificate),
                ("key.pem", &tls.key),
            ] {
                std::fs::write(self.folder.join(file), content).expect("a file");
            }
            let required = if tls.client.is_some() { "yes" } else { "no" };
            command
                .args(["--tls-port", &self.tls_port().to_string()])
                .args([
                    "--tls-ca-cert-file",
                    "ca.pem",
                    "--tls-auth-clients",
                    required,
                ])
                .args(["--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem"]);
        }
        command
    }

    /// Waits until the server replies. Returns false if the process has exited.
    fn is_up(&mut self) -> bool {
        let port = self.port();
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let child = self.child.as_mut().expect("just started");
            if child.try_wait().is_ok_and(|status| status.is_some()) {
                return false;
            }
            let own = format!("process_id:{}\r\n", child.id());
            let reply = Connection::open(port).and_then(|mut it| it.ask(&["INFO"]));
            // Another process may use the same port, and a server that is
            // loading its data rejects other commands.
            let is_ready = |info: &str| info.contains(&own) && info.contains("\nloading:0");
            if matches!(reply, Ok(Reply::Text(info)) if is_ready(&info)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A TCP port that is reserved for one server until the value is dropped.
///
/// The UDP port with the same number is bound as a marker, so no other test
/// program uses the port even while the server is down.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    _marker: Option<UdpSocket>,
}

impl Port {
    /// Reserves a free port below the range for outgoing connections.
    pub(crate) fn free() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let start = std::process::id() * 61;
        loop {
            let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let number = u16::try_from(20_000 + number % 12_000).expect("below 32,000");
            let marker = UdpSocket::bind(("127.0.0.1", number)).ok();
            if marker.is_some() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                let _marker = marker;
                return Self { number, _marker };
            }
        }
    }

    fn fixed(number: u16) -> Self {
        let _marker = None;
        Self { number, _marker }
    }
}

/// Creates a file named after the PID in the folder `LEASEHOLD_PIDS`. It allows
/// cleaning up after a killed test run.
pub(crate) fn record_pid(pid: u32) {
    if let Some(folder) = std::env::var_os("LEASEHOLD_PIDS") {
        let _ = std::fs::write(Path::new(&folder).join(pid.to_string()), "");
    }
}

pub(crate) fn forget_pid(pid: u32) {
    if let Some(folder) = std::env::var_os("LEASEHOLD_PIDS") {
        let _ = std::fs::remove_file(Path::new(&folder).join(pid.to_string()));
    }
}
