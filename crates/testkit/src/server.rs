//! One real server process on a free port of this machine, ended when the value is dropped.

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

/// What the certificates of a server on this machine are for.
const LOCAL: [&str; 2] = ["127.0.0.1", "localhost"];

/// How to start a server.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    options: Vec<String>,
    users: Vec<String>,
    tls: Option<Tls>,
    port: Option<u16>,
    movable_clock: bool,
}

impl Setup {
    /// Adds an option as in the configuration file.
    #[must_use]
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push(format!("--{name}"));
        self.options.push(value.to_owned());
        self
    }

    /// Listens on this port in place of a free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Adds a user by the arguments of `ACL SETUSER`, name first.
    #[must_use]
    pub fn user(mut self, rule: &str) -> Self {
        self.users.push(rule.to_owned());
        self
    }

    /// Has a wall clock of its own, for [`Server::set_clock`]. Needs a C compiler.
    #[must_use]
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    /// Talks TLS on a second port, with a certificate of an authority made for this server.
    ///
    /// # Panics
    ///
    /// When no certificate can be made.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Some(Tls::new(false, &LOCAL));
        self
    }

    /// The same, with a certificate for `name` alone.
    ///
    /// # Panics
    ///
    /// When no certificate can be made.
    #[must_use]
    pub fn tls_named(mut self, name: &str) -> Self {
        self.tls = Some(Tls::new(false, &[name]));
        self
    }

    /// The same as [`tls`](Self::tls), and lets in only clients that show a certificate of that authority.
    ///
    /// # Panics
    ///
    /// When no certificate can be made.
    #[must_use]
    pub fn mutual_tls(mut self) -> Self {
        self.tls = Some(Tls::new(true, &LOCAL));
        self
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// When it does not come up within a minute.
    #[must_use]
    pub fn start(self, flavor: &Flavor) -> Server {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("leasehold-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the server");
        let port = self.port.map_or_else(Port::free, Port::given);
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
    /// Starts one without persistence and otherwise as it comes.
    #[must_use]
    pub fn start(flavor: &Flavor) -> Self {
        Setup::default().start(flavor)
    }

    /// Its name and version, as in `redis-7.0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.flavor.name
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// The port for TLS.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port.number
    }

    /// The certificate of the authority that vouches for it.
    ///
    /// # Panics
    ///
    /// When it does not talk TLS.
    #[must_use]
    pub fn ca_certificate(&self) -> &str {
        &self.tls().authority
    }

    /// The certificate and key of a client that it lets in.
    ///
    /// # Panics
    ///
    /// When it does not ask for any.
    #[must_use]
    pub fn client_certificate(&self) -> (&str, &str) {
        let visitor = self.tls().visitor.as_ref();
        let (certificate, key) = visitor.expect("a server with mutual TLS");
        (certificate, key)
    }

    fn tls(&self) -> &Tls {
        self.setup.tls.as_ref().expect("a server with TLS")
    }

    /// The path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("server.sock")
    }

    /// Its process.
    ///
    /// # Panics
    ///
    /// When it is down.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server is down").id()
    }

    /// Whether it was started and not killed since.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// A connection for the test's own questions, with all rights.
    ///
    /// # Panics
    ///
    /// When it is down.
    #[must_use]
    pub fn connect(&self) -> Connection {
        Connection::open(self.port()).expect("the server is up")
    }

    /// Asks one question on a connection of its own.
    ///
    /// # Panics
    ///
    /// When it is down.
    #[must_use]
    pub fn ask(&self, args: &[&str]) -> Reply {
        self.connect().ask(args).expect("an answer")
    }

    /// Asks for something that must succeed.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn tell(&self, args: &[&str]) {
        if let Reply::Error(error) = self.ask(args) {
            panic!("{args:?}: {error}");
        }
    }

    /// A number from `INFO`.
    ///
    /// # Panics
    ///
    /// When there is no such field.
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

    /// Whether it is up and takes writes.
    #[must_use]
    pub fn is_master(&self) -> bool {
        let role = Connection::open(self.port()).and_then(|mut it| it.ask(&["ROLE"]));
        matches!(role, Ok(Reply::List(role)) if role[0].text() == "master")
    }

    /// Stops the process where it is, as a pause of its machine would.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Moves its wall clock to so far from the right one, forward or, if negative, back.
    pub fn set_clock(&self, seconds: i64) {
        clock::set(&self.folder.join("clock"), seconds * 1_000_000);
    }

    /// Kills it at once.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            forget_pid(child.id());
        }
    }

    /// Starts it again on the same port with whatever data it has on disk.
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
        note_pid(child.id());
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
            // From a file, so that they are there from the first moment on.
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
                ("ca.pem", &tls.authority),
                ("cert.pem", &tls.certificate),
                ("key.pem", &tls.key),
            ] {
                std::fs::write(self.folder.join(file), content).expect("a file");
            }
            let asks = if tls.visitor.is_some() { "yes" } else { "no" };
            command
                .args(["--tls-port", &self.tls_port().to_string()])
                .args(["--tls-ca-cert-file", "ca.pem", "--tls-auth-clients", asks])
                .args(["--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem"]);
        }
        command
    }

    /// Waits until our own process answers; false when it has ended.
    fn is_up(&mut self) -> bool {
        let port = self.port();
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let child = self.child.as_mut().expect("just started");
            if child.try_wait().is_ok_and(|status| status.is_some()) {
                return false;
            }
            let own = format!("process_id:{}\r\n", child.id());
            let asked = Connection::open(port).and_then(|mut it| it.ask(&["INFO"]));
            // Somebody else's server on the same port is not ours; one that still loads refuses all else.
            let is_ready = |info: &str| info.contains(&own) && info.contains("\nloading:0");
            if matches!(asked, Ok(Reply::Text(info)) if is_ready(&info)) {
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

/// A TCP port for one server, from its first start until the value is dropped.
///
/// No other test program takes it meanwhile, also not while the server is down: the UDP port of the same number is
/// bound as a sign that the port is taken.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    _sign: Option<UdpSocket>,
}

impl Port {
    /// A free port, below those that the system gives to outgoing connections.
    pub(crate) fn free() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let start = std::process::id() * 61;
        loop {
            let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let number = u16::try_from(20_000 + number % 12_000).expect("below 32,000");
            let sign = UdpSocket::bind(("127.0.0.1", number)).ok();
            if sign.is_some() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                let _sign = sign;
                return Self { number, _sign };
            }
        }
    }

    fn given(number: u16) -> Self {
        let _sign = None;
        Self { number, _sign }
    }
}

/// Leaves a note of each running server in the folder `LEASEHOLD_PIDS`, for whoever cleans up after a
/// test run that was killed.
pub(crate) fn note_pid(pid: u32) {
    if let Some(folder) = std::env::var_os("LEASEHOLD_PIDS") {
        let _ = std::fs::write(Path::new(&folder).join(pid.to_string()), "");
    }
}

pub(crate) fn forget_pid(pid: u32) {
    if let Some(folder) = std::env::var_os("LEASEHOLD_PIDS") {
        let _ = std::fs::remove_file(Path::new(&folder).join(pid.to_string()));
    }
}
