//! Database servers on free local ports, stopped when the value is dropped.
//!
//! PostgreSQL refuses to run as root, so root starts all of them as an
//! unprivileged user.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_testkit::Port;
use rustix::process::{Pid, Signal, kill_process};

/// The user and group that root runs a database as, without any permission.
const NOBODY: u32 = 65534;

/// How long a database may take to start or stop.
const LIMIT: Duration = Duration::from_secs(60);

/// The name of the database in the server.
const SCHEMA: &str = "fences";

/// The kind of a database server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseKind {
    /// PostgreSQL, from Debian's package `postgresql`.
    Postgres,
    /// MariaDB, from Debian's package `mariadb-server`.
    MariaDb,
    /// MySQL: the program that `LEASEHOLD_MYSQLD` names, else
    /// `/usr/sbin/mysqld`, which is MariaDB where that is installed.
    MySql,
}

/// A running database server.
#[derive(Debug)]
pub struct Database {
    kind: DatabaseKind,
    folder: PathBuf,
    port: Port,
    child: Child,
}

impl Database {
    /// Starts a server with the given options of its command line. Returns
    /// `None` if it is not installed.
    ///
    /// # Panics
    ///
    /// If `LEASEHOLD_DATABASES` requires it and it is not installed, or if it
    /// is not up within a minute.
    #[must_use]
    pub fn start(kind: DatabaseKind, options: &[&str]) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let Some(program) = kind.program() else {
            kind.skip();
            return None;
        };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-db-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        create_folder(&folder);
        let port = Port::reserve().expect("a free port");
        kind.initialize(&program, &folder);
        let log = std::fs::File::create(folder.join("log")).expect("a log");
        let mut command = kind.command(&program, &folder, port.number());
        let child = unprivileged(command.args(options))
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("the database's program");
        let mut database = Self {
            kind,
            folder,
            port,
            child,
        };
        assert!(
            database.is_up(),
            "{kind:?} does not start:\n{}",
            database.log()
        );
        Some(database)
    }

    /// Returns the URL of an empty database.
    #[must_use]
    pub fn url(&self) -> String {
        let port = self.port.number();
        match self.kind {
            DatabaseKind::Postgres => format!("postgres://leasehold@127.0.0.1:{port}/postgres"),
            DatabaseKind::MariaDb | DatabaseKind::MySql => {
                format!("mysql://leasehold@127.0.0.1:{port}/{SCHEMA}")
            }
        }
    }

    fn log(&self) -> String {
        let log = std::fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Waits until the server accepts connections. Returns `false` if the
    /// process has exited.
    fn is_up(&mut self) -> bool {
        let text = match self.kind {
            DatabaseKind::Postgres => "ready to accept connections",
            DatabaseKind::MariaDb | DatabaseKind::MySql => "ready for connections",
        };
        let end = Instant::now() + LIMIT;
        while Instant::now() < end && self.child.try_wait().is_ok_and(|exit| exit.is_none()) {
            if self.log().contains(text) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // PostgreSQL's processes exit at once on SIGQUIT, and release their
        // shared memory. MariaDB dumps its core on it.
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if self.kind == DatabaseKind::Postgres
            && let Some(pid) = pid
            && kill_process(pid, Signal::QUIT).is_ok()
        {
            let end = Instant::now() + Duration::from_secs(5);
            while Instant::now() < end && self.child.try_wait().is_ok_and(|exit| exit.is_none()) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl DatabaseKind {
    fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
            Self::MySql => "mysql",
        }
    }

    fn skip(self) {
        let required = std::env::var("LEASEHOLD_DATABASES").unwrap_or_default();
        let name = self.name();
        let is_required = required.split_whitespace().any(|word| word == name);
        assert!(!is_required, "{name} is required but not installed");
        println!("skipped: {name} is not installed");
    }

    /// Returns the server's program, if it is installed.
    fn program(self) -> Option<PathBuf> {
        match self {
            Self::Postgres => {
                let versions = std::fs::read_dir("/usr/lib/postgresql");
                let versions = versions.into_iter().flatten().flatten();
                let programs = versions.map(|entry| entry.path().join("bin/postgres"));
                programs.filter(|program| program.exists()).max()
            }
            Self::MariaDb => {
                let program = PathBuf::from("/usr/sbin/mariadbd");
                program.exists().then_some(program)
            }
            Self::MySql => match std::env::var_os("LEASEHOLD_MYSQLD") {
                Some(program) => Some(program.into()),
                None => {
                    // MariaDB's package has a link of this name.
                    let program = Path::new("/usr/sbin/mysqld");
                    let is_file = program.symlink_metadata().is_ok_and(|meta| meta.is_file());
                    is_file.then(|| program.to_owned())
                }
            },
        }
    }

    /// Creates the files of an empty server.
    fn initialize(self, program: &Path, folder: &Path) {
        match self {
            Self::Postgres => {
                let mut command = Command::new(program.with_file_name("initdb"));
                command
                    .args(["--username=leasehold", "--auth=trust", "--no-sync"])
                    .args(["--encoding=UTF8", "--no-locale", "--pgdata"])
                    .arg(folder.join("data"));
                complete(&mut command, folder);
            }
            // Without privilege tables it needs no installation.
            Self::MariaDb => {
                create_folder(&folder.join("data"));
                let create = format!("CREATE DATABASE {SCHEMA};\n");
                std::fs::write(folder.join("init.sql"), create).expect("a file");
            }
            // Without privilege tables it does not listen on a port.
            Self::MySql => {
                let mut command = Command::new(program);
                command
                    .args(["--no-defaults", "--initialize-insecure"])
                    .arg(format!("--datadir={}", folder.join("data").display()));
                complete(&mut command, folder);
                let create = format!(
                    "CREATE DATABASE {SCHEMA};\nCREATE USER leasehold@'%';\n\
                     GRANT ALL ON *.* TO leasehold@'%';\n"
                );
                std::fs::write(folder.join("init.sql"), create).expect("a file");
            }
        }
    }

    fn command(self, program: &Path, folder: &Path, port: u16) -> Command {
        let data = folder.join("data").display().to_string();
        match self {
            Self::Postgres => {
                let mut command = Command::new(program);
                command
                    .args(["-D", &data, "-p", &port.to_string()])
                    .args(["-c", "listen_addresses=127.0.0.1"])
                    .args(["-c", "unix_socket_directories="]);
                command
            }
            Self::MariaDb | Self::MySql => {
                let mut command = Command::new(program);
                let path = |name: &str| folder.join(name).display().to_string();
                command.arg("--no-defaults");
                match self {
                    Self::MySql => command.args(["--mysqlx=OFF", "--secure-file-priv="]),
                    _ => command.arg("--skip-grant-tables"),
                };
                command
                    .arg(format!("--datadir={data}"))
                    .args(["--bind-address=127.0.0.1", &format!("--port={port}")])
                    .arg(format!("--socket={}", path("socket")))
                    .arg(format!("--pid-file={}", path("pid")))
                    .arg(format!("--init-file={}", path("init.sql")));
                command
            }
        }
    }
}

/// Runs a command that creates a server's files.
fn complete(command: &mut Command, folder: &Path) {
    let output = unprivileged(command).current_dir(folder).output();
    let output = output.expect("the database's program");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn create_folder(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder for the database");
    if is_root() {
        let chown = std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY));
        chown.expect("a folder for the database");
    }
}

/// Lets root run the command as an unprivileged user.
fn unprivileged(command: &mut Command) -> &mut Command {
    match is_root() {
        true => command.uid(NOBODY).gid(NOBODY),
        false => command,
    }
}
