//! A server's configuration.

use std::ffi::OsString;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::error::StartError;
use crate::port::Port;
use crate::program;
use crate::server::Server;

/// How often a start is repeated on another port. Only a program that does not
/// reserve its port can take it between the reservation and the start.
const MAX_STARTS: usize = 5;

/// The configuration of a [`Server`].
///
/// # Examples
///
/// ```no_run
/// use leasehold_testkit::Server;
///
/// let server = Server::builder()
///     .option("maxmemory", "10mb")
///     .option("aclfile", "users.acl")
///     .file("users.acl", "user default on nopass ~* &* +@all -wait\n")
///     .start()?;
/// # drop(server); Ok::<(), leasehold_testkit::StartError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "no server runs until `start`"]
pub struct ServerBuilder {
    pub(crate) options: Vec<String>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    files: Vec<(String, Vec<u8>)>,
    program: Option<PathBuf>,
    port: Option<u16>,
}

impl ServerBuilder {
    /// Sets an option of the server's configuration file.
    ///
    /// By default the server listens on loopback only, on a free port, and
    /// stores nothing on disk.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::builder().option("appendonly", "yes").start()?;
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn option(mut self, name: &str, value: impl Into<String>) -> Self {
        self.options.push(format!("--{name}"));
        self.options.push(value.into());
        self
    }

    /// Writes a file into the server's folder before the first start.
    ///
    /// The server runs in this folder, so options can name the file without a
    /// path.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let users = "user default on nopass ~* &* +@all\n";
    /// let server = Server::builder()
    ///     .file("users.acl", users)
    ///     .option("aclfile", "users.acl")
    ///     .start()?;
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn file(mut self, name: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.to_owned(), content.into()));
        self
    }

    /// Sets a variable in the environment of the server.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::builder().env("TZ", "UTC").start()?;
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Runs this program instead of the first server found. A name without a
    /// folder is searched in `PATH`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::builder().program("valkey-server").start()?;
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Listens on this port instead of a free one.
    ///
    /// Tests that run in parallel need different ports.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::builder().port(7001).start()?;
    /// assert_eq!(server.url(), "redis://127.0.0.1:7001");
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Starts the server, and blocks until it accepts requests.
    ///
    /// # Errors
    ///
    /// If no server is installed, or it does not start within a minute.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold_testkit::{Port, Server, StartError};
    /// let server = Server::builder().option("databases", "1").start()?;
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn start(self) -> Result<Server, StartError> {
        let program = match &self.program {
            Some(program) => program::named(program)?,
            None => program::find()?,
        };
        let folder = create_folder().map_err(StartError::io("create a folder"))?;
        for (name, content) in &self.files {
            let written = std::fs::write(folder.path().join(name), content);
            written.map_err(StartError::io("write a file of the server"))?;
        }
        let address = self.address()?;
        let mut server = Server::new(program, self, folder, address);
        let mut started = server.launch();
        for _ in 1..MAX_STARTS {
            if !server.is_port_taken(&started) {
                break;
            }
            server.change_port()?;
            started = server.launch();
        }
        started.map(|()| server)
    }

    /// Returns the fixed port, or reserves a free one.
    pub(crate) fn address(&self) -> Result<Address, StartError> {
        match self.port {
            Some(port) => Ok(Address::Fixed(port)),
            None => Port::reserve()
                .map(Address::Reserved)
                .map_err(StartError::io("reserve a port")),
        }
    }
}

/// Creates a server's folder, hidden from other users: options may contain
/// passwords.
fn create_folder() -> std::io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("leasehold-testkit-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder.tempdir()
}

/// A server's port.
#[derive(Debug)]
pub(crate) enum Address {
    Fixed(u16),
    Reserved(Port),
}
