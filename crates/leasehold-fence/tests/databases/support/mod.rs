//! Databases and runtimes of the tests.

pub(crate) mod store;
pub(crate) mod worker;

use std::sync::OnceLock;
use std::time::Duration;

use testkit::{Database, DatabaseKind};

/// The limit of every event; only a defect reaches it.
pub(crate) const AMPLE: Duration = Duration::from_secs(60);

/// How long a test observes what must not happen.
pub(crate) const SHORT: Duration = Duration::from_millis(300);

/// Options that make commits cheap: no test lets a database lose its power.
pub(crate) const POSTGRES_OPTIONS: [&str; 2] = ["-c", "fsync=off"];
pub(crate) const MARIADB_OPTIONS: [&str; 1] = ["--innodb-flush-log-at-trx-commit=0"];

/// Starts PostgreSQL, unless it is not installed.
pub(crate) fn postgres() -> Option<Database> {
    Database::start(DatabaseKind::Postgres, &POSTGRES_OPTIONS)
}

/// Starts MariaDB, unless it is not installed.
pub(crate) fn mariadb() -> Option<Database> {
    Database::start(DatabaseKind::MariaDb, &MARIADB_OPTIONS)
}

/// Starts MySQL, unless it is not installed.
pub(crate) fn mysql() -> Option<Database> {
    Database::start(DatabaseKind::MySql, &MARIADB_OPTIONS)
}

/// Starts MySQL and MariaDB, as far as they are installed.
pub(crate) fn mysql_and_mariadb() -> impl Iterator<Item = Database> {
    [mysql, mariadb].into_iter().filter_map(|start| start())
}

/// A folder in the temporary directory, deleted when the value is dropped.
pub(crate) struct Folder(pub(crate) std::path::PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(name());
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// Returns the URL of a SQLite database in this folder.
    pub(crate) fn sqlite(&self) -> String {
        format!("sqlite://{}/data.db?mode=rwc", self.0.display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a name that no other test uses.
pub(crate) fn name() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("fence-{}-{number}", std::process::id())
}

/// Runs a test in a runtime that all tests share.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.enable_all().build().expect("a runtime")
    });
    runtime.block_on(test)
}
