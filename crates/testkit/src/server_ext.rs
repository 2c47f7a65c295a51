//! What our tests ask a server that users' tests don't.
//!
//! [`Setup`](crate::Setup) leaves in the server's folder what the published
//! [`Server`] does not know: its version, its certificates, its clock.

use std::path::PathBuf;

use leasehold_testkit::Server;

use crate::clock;
use crate::resp::{Connection, Reply};
use crate::tls::{CA_CERTIFICATE, CLIENT_CERTIFICATE, CLIENT_KEY, TLS_PORT};

/// The file with the name and version of the server.
pub(crate) const FLAVOR: &str = "flavor";

/// The Unix socket.
pub(crate) const SOCKET: &str = "server.sock";

/// Commands to a server, and what [`Setup`](crate::Setup) knows about it.
pub trait ServerExt {
    /// Returns the name and version, such as `redis-7.0`.
    #[must_use]
    fn name(&self) -> String;

    /// Returns the TLS port.
    ///
    /// # Panics
    ///
    /// If TLS is not enabled.
    #[must_use]
    fn tls_port(&self) -> u16;

    /// Returns the certificate of the server's CA.
    ///
    /// # Panics
    ///
    /// If TLS is not enabled.
    #[must_use]
    fn ca_certificate(&self) -> String;

    /// Returns a certificate and key for clients.
    ///
    /// # Panics
    ///
    /// If the server does not require client certificates.
    #[must_use]
    fn client_certificate(&self) -> (String, String);

    /// Returns the path of the Unix socket.
    #[must_use]
    fn socket(&self) -> PathBuf;

    /// Returns whether the server is running.
    #[must_use]
    fn is_running(&self) -> bool;

    /// Opens a connection with all permissions.
    ///
    /// # Panics
    ///
    /// If the server is down.
    #[must_use]
    fn connect(&self) -> Connection;

    /// Sends a command on a new connection, and returns its reply.
    ///
    /// # Panics
    ///
    /// If the server is down.
    #[must_use]
    fn ask(&self, args: &[&str]) -> Reply;

    /// Sends a command that must succeed.
    ///
    /// # Panics
    ///
    /// If the server is down or returns an error.
    fn tell(&self, args: &[&str]);

    /// Returns a numeric field of `INFO`.
    ///
    /// # Panics
    ///
    /// If the field does not exist.
    #[must_use]
    fn info(&self, field: &str) -> f64;

    /// Returns whether the server is up and accepts writes.
    #[must_use]
    fn is_master(&self) -> bool;

    /// Sets the offset of the server's wall clock in seconds. A negative offset
    /// moves it back.
    fn set_clock(&self, seconds: i64);
}

impl ServerExt for Server {
    fn name(&self) -> String {
        read(self, FLAVOR)
    }

    fn tls_port(&self) -> u16 {
        read(self, TLS_PORT).parse().expect("a port")
    }

    fn ca_certificate(&self) -> String {
        read(self, CA_CERTIFICATE)
    }

    fn client_certificate(&self) -> (String, String) {
        (read(self, CLIENT_CERTIFICATE), read(self, CLIENT_KEY))
    }

    fn socket(&self) -> PathBuf {
        self.folder().join(SOCKET)
    }

    fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    fn connect(&self) -> Connection {
        Connection::open(self.port()).expect("the server is up")
    }

    fn ask(&self, args: &[&str]) -> Reply {
        self.connect().ask(args).expect("a reply")
    }

    fn tell(&self, args: &[&str]) {
        if let Reply::Error(error) = self.ask(args) {
            panic!("{args:?}: {error}");
        }
    }

    fn info(&self, field: &str) -> f64 {
        let info = self.ask(&["INFO", "all"]);
        let line = info
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{field}:")))
            .unwrap_or_else(|| panic!("no {field} in INFO"))
            .to_owned();
        line.trim().parse().expect("a number")
    }

    fn is_master(&self) -> bool {
        let role = Connection::open(self.port()).and_then(|mut it| it.ask(&["ROLE"]));
        matches!(role, Ok(Reply::List(role)) if role[0].text() == "master")
    }

    fn set_clock(&self, seconds: i64) {
        clock::set(self.folder(), seconds * 1_000_000);
    }
}

fn read(server: &Server, file: &str) -> String {
    let text = std::fs::read_to_string(server.folder().join(file));
    text.unwrap_or_else(|error| panic!("the server was set up without `{file}`: {error}"))
}
