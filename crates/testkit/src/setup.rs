//! A server's configuration.

use leasehold_testkit::{Server, ServerBuilder};

use crate::clock;
use crate::flavor::Flavor;
use crate::server_ext::{FLAVOR, SOCKET};
use crate::tls::Tls;

/// The names in the certificates of a local server.
const LOCAL_NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

/// A server's configuration.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    options: Vec<(String, String)>,
    users: Vec<String>,
    missing: Vec<String>,
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

    /// Removes these commands, which the server then does not know.
    #[must_use]
    pub fn without(mut self, commands: &[&str]) -> Self {
        let commands = commands.iter().map(|command| (*command).to_owned());
        self.missing.extend(commands);
        self
    }

    /// Enables [`set_clock`](crate::ServerExt::set_clock). Requires a C compiler.
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
        let started = self.builder(flavor).start();
        started.unwrap_or_else(|error| panic!("{error}"))
    }

    fn builder(&self, flavor: &Flavor) -> ServerBuilder {
        let mut builder = Server::builder()
            .program(&flavor.program)
            .file(FLAVOR, flavor.name.as_str())
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
        if !self.missing.is_empty() {
            let removed = self.missing.iter();
            let removed = removed.map(|command| format!("rename-command {command} \"\"\n"));
            builder = builder
                .file("commands.conf", removed.collect::<String>())
                .option("include", "commands.conf");
        }
        if self.movable_clock {
            builder = clock::attach(builder);
        }
        match &self.tls {
            Some(tls) => tls.attach(builder),
            None => builder,
        }
    }
}
