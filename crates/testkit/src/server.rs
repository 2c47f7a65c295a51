//! A server process on a free local port, killed when the value is dropped.

use std::path::PathBuf;

use leasehold_testkit::{Port, ServerBuilder};

use crate::clock;
use crate::flavor::Flavor;
use crate::resp::{Connection, Reply};
use crate::tls::Tls;

/// The names in the certificates of a local server.
const LOCAL_NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

/// The Unix socket of a server, in its folder.
const SOCKET: &str = "server.sock";

/// The configuration of a server.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    options: Vec<(String, String)>,
    users: Vec<String>,
    tls: Option<Tls>,
    port: Option<u16>,
    movable_clock: bool,
}

impl Setup {
    /// Sets an option of the configuration file.
    #[must_use]
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push((name.to_owned(), value.to_owned()));
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
        let tls_port = Port::reserve().expect("a free port");
        let builder = self.builder(flavor, tls_port.number());
        let server = builder.start().unwrap_or_else(|error| panic!("{error}"));
        Server {
            flavor: flavor.clone(),
            setup: self,
            server,
            tls_port,
        }
    }

    fn builder(&self, flavor: &Flavor, tls_port: u16) -> ServerBuilder {
        let mut builder = leasehold_testkit::Server::builder()
            .program(&flavor.program)
            .option("unixsocket", SOCKET)
            .option("enable-debug-command", "yes");
        for (name, value) in &self.options {
            builder = builder.option(name, value);
        }
        if let Some(port) = self.port {
            builder = builder.port(port);
        }
        if !self.users.is_empty() {
            // A file makes them available from the start.
            let users = self.users.iter().map(|user| format!("user {user}\n"));
            builder = builder
                .file("users.acl", users.collect::<String>())
                .option("aclfile", "users.acl");
        }
        if self.movable_clock {
            builder = clock::attach(builder);
        }
        match &self.tls {
            Some(tls) => tls.attach(builder, tls_port),
            None => builder,
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    flavor: Flavor,
    setup: Setup,
    server: leasehold_testkit::Server,
    tls_port: Port,
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
        self.server.port()
    }

    /// Returns the TLS port.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port.number()
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
        self.server.folder().join(SOCKET)
    }

    /// Returns the process ID.
    ///
    /// # Panics
    ///
    /// If the server is down.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.pid().expect("the server is down")
    }

    /// Returns whether the server is running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.server.pid().is_some()
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
        self.server.pause();
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.server.resume();
    }

    /// Sets the offset of the server's wall clock in seconds. A negative offset
    /// moves it back.
    pub fn set_clock(&self, seconds: i64) {
        clock::set(self.server.folder(), seconds * 1_000_000);
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Restarts the server on the same port, with the data it has on disk.
    ///
    /// # Panics
    ///
    /// If the server is not up within a minute.
    pub fn restart(&mut self) {
        let restarted = self.server.restart();
        restarted.unwrap_or_else(|error| panic!("{error}"));
    }
}
