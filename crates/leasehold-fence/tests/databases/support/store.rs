//! One interface to all resources: a journal that is written through a fence,
//! or without one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_fence::redis::FencedWrite;
use leasehold_fence::{BoxError, Fence, FenceError, migrate};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{MySqlPool, PgPool, SqlitePool};
use testkit::resp::{Connection, Reply};

/// A resource with a journal.
#[derive(Clone)]
pub(crate) enum Store {
    Postgres(PgPool),
    MariaDb(MySqlPool),
    Sqlite(SqlitePool),
    Redis(Arc<Mutex<Connection>>),
}

/// An entry of the journal, written in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Entry {
    pub(crate) token: u64,
    pub(crate) worker: i64,
    pub(crate) number: i64,
}

const POSTGRES: &str = "CREATE TABLE IF NOT EXISTS journal (id bigserial PRIMARY KEY,
    name text NOT NULL, token bigint NOT NULL, worker bigint NOT NULL, number bigint NOT NULL)";
const MARIADB: &str = "CREATE TABLE IF NOT EXISTS journal (id bigint PRIMARY KEY AUTO_INCREMENT,
    name varbinary(600) NOT NULL, token bigint NOT NULL, worker bigint NOT NULL, number bigint NOT NULL)";
const SQLITE: &str = "CREATE TABLE IF NOT EXISTS journal (id integer PRIMARY KEY AUTOINCREMENT,
    name text NOT NULL, token integer NOT NULL, worker integer NOT NULL, number integer NOT NULL)";

const INSERT: &str = "INSERT INTO journal (name, token, worker, number) VALUES (?, ?, ?, ?)";
const INSERT_POSTGRES: &str =
    "INSERT INTO journal (name, token, worker, number) VALUES ($1, $2, $3, $4)";
const SELECT: &str = "SELECT token, worker, number FROM journal WHERE name = ? ORDER BY id";
const SELECT_POSTGRES: &str =
    "SELECT token, worker, number FROM journal WHERE name = $1 ORDER BY id";

/// Writes an entry in a transaction, with or without the guard.
macro_rules! insert {
    ($pool:expr, $sql:expr, $fence:expr, $entry:expr, $guarded:expr) => {{
        let insert = || {
            sqlx::query($sql)
                .bind($fence.name())
                .bind(i64::try_from($entry.token).expect("a token"))
                .bind($entry.worker)
                .bind($entry.number)
        };
        if $guarded {
            let mut transaction = $fence.begin($pool).await?;
            let inserted = insert().execute(&mut transaction).await;
            inserted.map_err(database)?;
            transaction.commit().await
        } else {
            let mut transaction = $pool.begin().await.map_err(database)?;
            let inserted = insert().execute(&mut *transaction).await;
            inserted.map_err(database)?;
            transaction.commit().await.map_err(database)
        }
    }};
}

macro_rules! select {
    ($pool:expr, $sql:expr, $name:expr) => {{
        let rows: Vec<(i64, i64, i64)> = sqlx::query_as($sql)
            .bind($name)
            .fetch_all($pool)
            .await
            .expect("the journal");
        let entry = |(token, worker, number)| Entry {
            token: u64::try_from(token).expect("a token"),
            worker,
            number,
        };
        rows.into_iter().map(entry).collect()
    }};
}

pub(crate) fn database(error: impl Into<BoxError>) -> FenceError {
    FenceError::Database(error.into())
}

impl Store {
    /// Connects by URL; `redis:PORT` is a Redis server.
    pub(crate) async fn open(url: &str) -> Self {
        const POOL: u32 = 4;
        if let Some(port) = url.strip_prefix("redis:") {
            let port = port.parse().expect("a port");
            let connection = Connection::open(port).expect("the server is up");
            return Self::Redis(Arc::new(Mutex::new(connection)));
        }
        if url.starts_with("postgres:") {
            let pool = PgPoolOptions::new().max_connections(POOL).connect(url);
            return Self::Postgres(pool.await.expect("the database is up"));
        }
        if url.starts_with("mysql:") {
            let pool = MySqlPoolOptions::new().max_connections(POOL).connect(url);
            return Self::MariaDb(pool.await.expect("the database is up"));
        }
        let options: SqliteConnectOptions = url.parse().expect("a URL");
        let options = options
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Off)
            .busy_timeout(Duration::from_secs(60));
        let pool = SqlitePoolOptions::new().max_connections(POOL);
        Self::Sqlite(pool.connect_with(options).await.expect("a database"))
    }

    /// Creates the tables.
    pub(crate) async fn create(&self) {
        macro_rules! create {
            ($pool:expr, $sql:expr) => {{
                migrate($pool).await.expect("the table of fences");
                sqlx::query($sql).execute($pool).await.expect("the journal");
            }};
        }
        match self {
            Self::Postgres(pool) => create!(pool, POSTGRES),
            Self::MariaDb(pool) => create!(pool, MARIADB),
            Self::Sqlite(pool) => create!(pool, SQLITE),
            Self::Redis(_) => {}
        }
    }

    /// Writes an entry under the name and token of `fence`.
    pub(crate) async fn write(
        &self,
        fence: &Fence,
        worker: i64,
        number: i64,
        guarded: bool,
    ) -> Result<(), FenceError> {
        let token = fence.token();
        let entry = Entry {
            token,
            worker,
            number,
        };
        match self {
            Self::Postgres(pool) => insert!(pool, INSERT_POSTGRES, fence, entry, guarded),
            Self::MariaDb(pool) => insert!(pool, INSERT, fence, entry, guarded),
            Self::Sqlite(pool) => insert!(pool, INSERT, fence, entry, guarded),
            Self::Redis(connection) => {
                let name = fence.name();
                let (key, text) = (
                    format!("journal:{{{name}}}"),
                    format!("{token} {worker} {number}"),
                );
                let mut connection = connection.lock().expect("no panic");
                if !guarded {
                    let reply = connection.ask(&["RPUSH", &key, &text]).map_err(database)?;
                    assert!(matches!(reply, Reply::Int(_)), "{reply:?}");
                    return Ok(());
                }
                let write = FencedWrite::new(fence, format!("fence:{{{name}}}"));
                let write = write.command(["RPUSH", &key, &text], [1]);
                ask(&mut connection, &write).map(drop)
            }
        }
    }

    /// Returns the entries under a name, in the order of their commits.
    pub(crate) async fn journal(&self, name: &str) -> Vec<Entry> {
        match self {
            Self::Postgres(pool) => select!(pool, SELECT_POSTGRES, name),
            Self::MariaDb(pool) => select!(pool, SELECT, name),
            Self::Sqlite(pool) => select!(pool, SELECT, name),
            Self::Redis(connection) => {
                let key = format!("journal:{{{name}}}");
                let mut connection = connection.lock().expect("no panic");
                let reply = connection
                    .ask(&["LRANGE", &key, "0", "-1"])
                    .expect("a reply");
                reply
                    .list()
                    .iter()
                    .map(|entry| parse(entry.text()))
                    .collect()
            }
        }
    }
}

/// Sends a fenced write, and returns the replies of its commands.
pub(crate) fn ask(
    connection: &mut Connection,
    write: &FencedWrite,
) -> Result<Vec<Reply>, FenceError> {
    let words = write.eval();
    let words: Vec<_> = words
        .iter()
        .map(|word| std::str::from_utf8(word).expect("text"))
        .collect();
    match connection.ask(&words).map_err(database)? {
        Reply::List(replies) => Ok(replies),
        Reply::Error(error) => Err(write.error(error)),
        other => panic!("{other:?}"),
    }
}

fn parse(text: &str) -> Entry {
    let mut numbers = text.split(' ').map(|word| word.parse().expect("a number"));
    let mut next = || -> i64 { numbers.next().expect("three numbers") };
    Entry {
        token: u64::try_from(next()).expect("a token"),
        worker: next(),
        number: next(),
    }
}
