//! A password in a file or from a command, read again for each connection.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold::{Connect, Credentials};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use crate::output::CliError;

/// Runs the password command, and writes its exit status behind its messages.
/// `run` reaps every process below it, so we may not get the status ourselves.
const SCRIPT: &str = r#"sh -c "$1"; echo "$?" >&2"#;

/// The most that is read of a password and of messages.
const MAX_OUTPUT: u64 = 64 * 1024;

/// Where the password comes from.
#[derive(Clone, Debug)]
pub(crate) enum PasswordSource {
    File(PathBuf),
    Command(String),
}

/// The settings for a password at one place, such as the environment.
#[derive(Debug, Default)]
pub(crate) struct PasswordSettings {
    pub(crate) file: Option<PathBuf>,
    pub(crate) command: Option<String>,
}

impl PasswordSettings {
    /// Returns the source, if there is one here.
    fn source(self) -> Result<Option<PasswordSource>, CliError> {
        match (self.file, self.command) {
            (None, None) => Ok(None),
            (Some(file), None) => Ok(Some(PasswordSource::File(file))),
            (None, Some(command)) => Ok(Some(PasswordSource::Command(command))),
            (Some(_), Some(_)) => {
                let text = "`password_file` and `password_command` cannot be combined";
                Err(CliError::usage(text))
            }
        }
    }
}

/// The login of a user whose password can change.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    user: Option<String>,
    password: PasswordSource,
}

impl Login {
    /// Returns the login of the first place that has a password.
    pub(crate) fn new(
        user: Option<String>,
        places: [PasswordSettings; 3],
    ) -> Result<Option<Self>, CliError> {
        for place in places {
            if let Some(password) = place.source()? {
                return Ok(Some(Self { user, password }));
            }
        }
        match user {
            None => Ok(None),
            Some(_) => Err(CliError::usage("`user` has no password")
                .with_hint("set password_file or password_command, or put both into the URL; for a user with `nopass`, any password")),
        }
    }

    /// Returns whether a program has to run before each login.
    pub(crate) fn is_slow(&self) -> bool {
        matches!(self.password, PasswordSource::Command(_))
    }

    /// Logs in to servers with this login. Sentinels have one of their own, in
    /// the URL.
    pub(crate) fn apply<C>(&self, connect: Connect<C>) -> Connect<C> {
        let login = self.clone();
        connect.credentials(move |server| {
            let login = login.clone();
            async move {
                if server.is_sentinel() {
                    return Ok(Credentials::none());
                }
                let password = login.password.read().await?;
                Ok::<_, String>(match login.user {
                    Some(user) => Credentials::new(user, password),
                    None => Credentials::default_user(password),
                })
            }
        })
    }
}

impl PasswordSource {
    /// Returns the current password. The error contains no part of it.
    async fn read(&self) -> Result<String, String> {
        match self {
            Self::File(path) => read_file(path.clone()).await,
            Self::Command(command) => run_command(command).await,
        }
    }
}

async fn read_file(path: PathBuf) -> Result<String, String> {
    let shown = path.display().to_string();
    // On a thread of its own: the file may be on a network, and leases are
    // renewed on this one.
    let text = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await;
    let text = text.map_err(|_| std::io::ErrorKind::Interrupted.into());
    let text = text.and_then(|text| text);
    let text = text.map_err(|error: std::io::Error| format!("cannot read {shown}: {error}"))?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    match password.strip_suffix('\r').unwrap_or(password) {
        "" => Err(format!("{shown} is empty")),
        password => Ok(password.to_owned()),
    }
}

async fn run_command(command: &str) -> Result<String, String> {
    let running = Running::start(command);
    let mut running =
        running.map_err(|error| format!("cannot run the password command: {error}"))?;
    let (output, messages) = tokio::join!(
        read_all(running.child.stdout.take()),
        read_all(running.child.stderr.take()),
    );
    running.end().await;
    let messages = messages.trim_end();
    let (messages, status) = messages.rsplit_once('\n').unwrap_or(("", messages));
    let last = messages.trim_end().lines().last().unwrap_or_default();
    let explained = |what: String| match last {
        "" => what,
        last => format!("{what}: {last}"),
    };
    match (status, output.lines().next().unwrap_or_default()) {
        ("0", "") => Err(explained("the password command printed nothing".to_owned())),
        ("0", password) => Ok(password.to_owned()),
        ("", _) => Err("the password command was killed".to_owned()),
        (status, _) => {
            let what = format!("the password command exited with status {status}");
            Err(explained(what))
        }
    }
}

async fn read_all(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What was read before an error is enough to notice the error.
        let _ = pipe.take(MAX_OUTPUT).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A command. Dropping it kills its processes, if it takes too long.
struct Running {
    child: Child,
    group: Option<u32>,
}

impl Running {
    fn start(command: &str) -> std::io::Result<Self> {
        let mut groups = running_groups();
        let Some(groups) = groups.as_mut() else {
            return Err(std::io::ErrorKind::Interrupted.into());
        };
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "sh", command])
            // The commands below the shell must end with it.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let group = child.id();
        groups.extend(group);
        Ok(Self { child, group })
    }

    /// Waits for a command that has closed its output. Its id may belong to
    /// another process afterwards.
    async fn end(&mut self) {
        let _ = self.child.wait().await;
        let ended = self.group.take();
        if let (Some(groups), Some(group)) = (running_groups().as_mut(), ended) {
            groups.remove(&group);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut groups = running_groups();
        // Without an entry, the program ends, and has killed it.
        if let (Some(groups), Some(group)) = (groups.as_mut(), self.group)
            && groups.remove(&group)
        {
            kill_group(group);
        }
    }
}

/// Returns the process groups of commands that run; `None` once the program
/// ends.
fn running_groups() -> MutexGuard<'static, Option<BTreeSet<u32>>> {
    static GROUPS: Mutex<Option<BTreeSet<u32>>> = Mutex::new(Some(BTreeSet::new()));
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills the commands that still run, and lets no other start. The client's
/// thread may have one when the program exits, and does not get to drop it.
pub(crate) fn kill_commands() {
    let groups = running_groups().take();
    groups.into_iter().flatten().for_each(kill_group);
}

fn kill_group(group: u32) {
    if let Ok(group) = i32::try_from(group) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(source: &PasswordSource) -> Result<String, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(source.read())
    }

    fn command(script: &str) -> Result<String, String> {
        read(&PasswordSource::Command(script.to_owned()))
    }

    #[test]
    fn command_returns_the_first_line() {
        assert_eq!(command("echo open; echo sesame").unwrap(), "open");
        assert_eq!(command("printf open").unwrap(), "open");
        assert_eq!(command("echo 0 >&2; echo open").unwrap(), "open");
    }

    #[test]
    fn failed_command_is_summarised_without_output() {
        let error = command("echo secret; echo a >&2; echo b >&2; exit 3").unwrap_err();
        assert_eq!(error, "the password command exited with status 3: b");
        let error = command("echo secret; exit 3").unwrap_err();
        assert_eq!(error, "the password command exited with status 3");
        let error = command("true").unwrap_err();
        assert_eq!(error, "the password command printed nothing");
        let error = command("kill -9 $PPID").unwrap_err();
        assert_eq!(error, "the password command was killed");
    }

    #[test]
    fn file_is_read_without_its_last_newline() {
        let path = std::env::temp_dir().join(format!("leasehold-pass-{}", std::process::id()));
        let file = PasswordSource::File(path.clone());
        for (text, password) in [
            ("open", Ok("open".to_owned())),
            ("open\n", Ok("open".to_owned())),
            ("open sesame \r\n", Ok("open sesame ".to_owned())),
            ("\n", Err(format!("{} is empty", path.display()))),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&file), password, "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        let error = read(&file).unwrap_err();
        assert!(error.starts_with(&format!("cannot read {}: ", path.display())));
    }

    #[test]
    fn first_place_with_a_password_is_used() {
        let file = |path: &str| PasswordSettings {
            file: Some(path.into()),
            command: None,
        };
        let none = PasswordSettings::default;
        let login = Login::new(None, [none(), file("b"), file("c")]).unwrap();
        let password = login.unwrap().password;
        assert!(matches!(password, PasswordSource::File(path) if path == Path::new("b")));
        assert!(
            Login::new(None, [none(), none(), none()])
                .unwrap()
                .is_none()
        );
        assert!(Login::new(Some("u".to_owned()), [none(), none(), none()]).is_err());
        let both = PasswordSettings {
            command: Some("true".to_owned()),
            ..file("a")
        };
        assert!(Login::new(None, [both, none(), none()]).is_err());
    }
}
