//! `--watchdog`: how a command reports that it makes progress.
//!
//! A daemon sends `WATCHDOG=1` to `NOTIFY_SOCKET`, as it does under systemd. A
//! script writes a line to the pipe `LEASEHOLD_WATCHDOG`. If this process has
//! a `NOTIFY_SOCKET` itself, all messages go on to it: systemd then still
//! learns that the command is ready.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{SocketAddr, UnixDatagram as Sender};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::io::AsyncReadExt;
use tokio::net::UnixDatagram;
use tokio::net::unix::pipe;

use crate::exit;
use crate::output::{CliError, message};

/// Longer messages are cut, as by systemd.
const MAX_MESSAGE: usize = 4096;

/// The socket and the pipe of one command.
pub(super) struct Watchdog {
    limit: Duration,
    socket: UnixDatagram,
    pipe: pipe::Receiver,
    /// The `NOTIFY_SOCKET` of this process.
    outer: Option<Sender>,
    folder: PrivateFolder,
}

/// What a command reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Progress,
    /// `WATCHDOG=trigger`: the command found that it is stuck.
    Stuck,
}

impl Watchdog {
    /// Creates the socket and the pipe.
    pub(super) fn start(limit: Duration) -> Result<Self, CliError> {
        Self::try_start(limit).map_err(|error| {
            let text = format!("cannot create the socket of --watchdog: {error}");
            CliError::new(exit::NOT_RUNNABLE, text)
        })
    }

    fn try_start(limit: Duration) -> io::Result<Self> {
        let folder = PrivateFolder::create()?;
        let socket = UnixDatagram::bind(folder.socket())?;
        mkfifo(&folder.pipe(), Mode::S_IRUSR | Mode::S_IWUSR)?;
        // Opened for writing too: the pipe must not end with its first writer.
        let pipe = File::options().read(true).write(true).open(folder.pipe())?;
        Ok(Self {
            limit,
            socket,
            pipe: pipe::Receiver::from_file(pipe)?,
            outer: std::env::var_os("NOTIFY_SOCKET").and_then(|address| connect(&address)),
            folder,
        })
    }

    /// Returns the environment of the command. `None` removes a variable.
    pub(super) fn environment(&self) -> [(&'static str, Option<OsString>); 4] {
        // The messages go on to systemd, which may want them more often.
        let limit = outer_limit().unwrap_or(self.limit).min(self.limit);
        [
            ("NOTIFY_SOCKET", Some(self.folder.socket().into())),
            ("WATCHDOG_USEC", Some(limit.as_micros().to_string().into())),
            // Any process of the command may report; see
            // sd_watchdog_enabled(3).
            ("WATCHDOG_PID", None),
            ("LEASEHOLD_WATCHDOG", Some(self.folder.pipe().into())),
        ]
    }

    /// Returns the next sign of the command.
    pub(super) async fn next(&mut self) -> Sign {
        loop {
            let mut text = [0; MAX_MESSAGE];
            let mut line = [0; MAX_MESSAGE];
            tokio::select! {
                received = self.socket.recv(&mut text) => {
                    let Ok(length) = received else {
                        return std::future::pending().await;
                    };
                    let text = &text[..length];
                    pass_on(text, self.outer.as_ref());
                    if let Some(sign) = sign_of(text) {
                        return sign;
                    }
                }
                read = self.pipe.read(&mut line) => match read {
                    Ok(_) => {
                        pass_on(b"WATCHDOG=1", self.outer.as_ref());
                        return Sign::Progress;
                    }
                    Err(_) => return std::future::pending().await,
                },
            }
        }
    }

    /// Passes on what the command sent just before it exited.
    pub(super) fn finish(&self) {
        // Not tokio's socket, which may not know yet that it is readable.
        let Ok(socket) = self.socket.as_fd().try_clone_to_owned() else {
            return;
        };
        let socket = Sender::from(socket);
        let mut text = [0; MAX_MESSAGE];
        while let Ok(length) = socket.recv(&mut text) {
            pass_on(&text[..length], self.outer.as_ref());
        }
    }
}

/// Returns the time within which systemd expects reports of this process.
fn outer_limit() -> Option<Duration> {
    let is_own = |pid: OsString| pid.to_str() == Some(&std::process::id().to_string());
    // Without a pid, the limit is for any process of the service.
    if !std::env::var_os("WATCHDOG_PID").is_none_or(is_own) {
        return None;
    }
    let micros = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    Some(Duration::from_micros(micros))
}

/// Sends a message to the `NOTIFY_SOCKET` of this process.
fn pass_on(text: &[u8], outer: Option<&Sender>) {
    if let Some(outer) = outer {
        // Not waited for: a full queue must not delay the supervision.
        let _ = outer.send(text);
    }
}

/// Returns the sign in a message of several lines.
fn sign_of(text: &[u8]) -> Option<Sign> {
    text.split(|&byte| byte == b'\n')
        .find_map(|line| match line {
            b"WATCHDOG=1" => Some(Sign::Progress),
            b"WATCHDOG=trigger" => Some(Sign::Stuck),
            _ => None,
        })
}

/// Connects to the `NOTIFY_SOCKET` of this process.
fn connect(address: &OsStr) -> Option<Sender> {
    let connected = || {
        let sender = Sender::unbound()?;
        sender.set_nonblocking(true)?;
        sender.connect_addr(&socket_address(address)?)?;
        Ok::<_, io::Error>(sender)
    };
    match connected() {
        Ok(sender) => Some(sender),
        Err(error) => {
            let address = address.to_string_lossy();
            message(format!(
                "notifications of the command do not reach {address}: {error}"
            ));
            None
        }
    }
}

fn socket_address(address: &OsStr) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = address.as_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        return SocketAddr::from_abstract_name(name);
    }
    match address.as_bytes().first() {
        Some(b'/') => SocketAddr::from_pathname(Path::new(address)),
        _ => Err(io::Error::new(ErrorKind::Unsupported, "not a path")),
    }
}

/// A folder that only this user can enter.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn create() -> io::Result<Self> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanos = now.unwrap_or_default().subsec_nanos();
        let name = format!("leasehold-{}-{nanos}", std::process::id());
        // Absolute: the command may run elsewhere.
        let path = std::path::absolute(std::env::temp_dir())?.join(name);
        // Fails if it exists, so no other user can have prepared it.
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    fn socket(&self) -> PathBuf {
        self.0.join("notify")
    }

    fn pipe(&self) -> PathBuf {
        self.0.join("watchdog")
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_whole_lines() {
        for (text, sign) in [
            ("WATCHDOG=1", Some(Sign::Progress)),
            ("STATUS=busy\nWATCHDOG=1\n", Some(Sign::Progress)),
            ("WATCHDOG=trigger", Some(Sign::Stuck)),
            ("READY=1", None),
            ("STATUS=WATCHDOG=1", None),
            ("WATCHDOG=10", None),
            ("", None),
        ] {
            assert_eq!(sign_of(text.as_bytes()), sign, "{text}");
        }
    }
}
