//! The statements of a fence as text, for any driver and language.
//!
//! 1. Create the table once with [`schema`](Dialect::schema).
//! 2. [`begin`](Dialect::begin) a transaction and set the
//!    [`savepoint`](Dialect::savepoint). We release it before the commit, which
//!    fails if the transaction has ended in between.
//! 3. Send the [`guard`](Dialect::guard) with the fence's name and token. It
//!    **fails if the token is stale**. No statement may precede it: a read can
//!    fix a snapshot that lacks the previous holder's rows.
//! 4. Write. After any error, roll back and start again at step 2. A deadlock
//!    on MySQL and `ON CONFLICT ROLLBACK` on SQLite end the transaction, and
//!    the next statement would commit by itself, without the guard.
//! 5. [`verify`](Dialect::verify), and commit.
//!
//! The guard locks the row until the transaction ends, so a later holder waits
//! for an earlier holder's transaction and then sees what it wrote.
//!
//! A fence's name is the lock's key: the client's prefix and the lock's name,
//! `lock:coupon:42` for the lock `coupon:42` and the default prefix. On
//! PostgreSQL the table is the first `leasehold_fence` in the connection's
//! `search_path`, so create it in one schema only.
//!
//! Don't delete rows: a fence without a row accepts any token. If there are too
//! many, see "Many names" in the crate's documentation.

/// The statements of one database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dialect {
    /// Creates the table `leasehold_fence` if it does not exist.
    pub schema: &'static str,
    /// Begins a transaction in which the guard waits for other writers.
    pub begin: &'static str,
    /// Sets the savepoint that [`verify`](Self::verify) releases.
    pub savepoint: &'static str,
    /// Stores the token, and fails if a larger one is stored. Parameters: the
    /// fence's name and the token.
    pub guard: &'static str,
    /// Returns the stored token. Parameter: the fence's name.
    pub read_back: &'static str,
    /// Fails unless the transaction is still the one that the guard protects.
    pub verify: &'static str,
}

// A transaction's savepoints end with it, on each of the databases, whatever
// ends it: a deadlock, DDL, or a COMMIT in a string of statements.
const SAVEPOINT: &str = "SAVEPOINT leasehold_fence";
const VERIFY: &str = "RELEASE SAVEPOINT leasehold_fence";

/// The statements of PostgreSQL.
///
/// For a stale token, the guard violates the column's not-null constraint
/// (`23502`). Under REPEATABLE READ or SERIALIZABLE, it fails with
/// `serialization_failure` if it had to wait for an earlier holder that
/// committed; begin again.
pub const POSTGRES: Dialect = Dialect {
    schema: "CREATE TABLE IF NOT EXISTS leasehold_fence (
    name text PRIMARY KEY,
    token bigint NOT NULL
)",
    begin: "BEGIN",
    savepoint: SAVEPOINT,
    guard: "INSERT INTO leasehold_fence AS fence (name, token) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE
SET token = CASE WHEN fence.token <= excluded.token THEN excluded.token END",
    read_back: "SELECT token FROM leasehold_fence WHERE name = $1",
    verify: VERIFY,
};

/// The statements of MySQL and MariaDB, for InnoDB.
///
/// For a stale token, the guard fails with `BIGINT value is out of range`
/// (1690). A null would not do: without a strict `sql_mode`, the server would
/// store 0 in its place.
///
/// The guard counts itself in `guards`, so it changes the row even if the token
/// is the same. On Galera, only a changed row conflicts with a later holder
/// that commits on another node.
///
/// Names are compared as bytes: the usual collations would treat `a` and `A` as
/// one lock.
pub const MYSQL: Dialect = Dialect {
    schema: "CREATE TABLE IF NOT EXISTS leasehold_fence (
    name varbinary(640) PRIMARY KEY,
    token bigint NOT NULL,
    guards bigint NOT NULL DEFAULT 0
) ENGINE = InnoDB",
    begin: "BEGIN",
    savepoint: SAVEPOINT,
    guard: "INSERT INTO leasehold_fence (name, token) VALUES (?, ?)
ON DUPLICATE KEY UPDATE guards = guards + 1,
token = VALUES(token) + IF(token > VALUES(token), 9223372036854775807, 0)",
    read_back: "SELECT token FROM leasehold_fence WHERE name = ? FOR UPDATE",
    verify: VERIFY,
};

/// The statements of SQLite 3.24 and later.
///
/// For a stale token, the guard violates the column's not-null constraint. Set
/// `busy_timeout`, so a later holder waits for an earlier one.
pub const SQLITE: Dialect = Dialect {
    schema: "CREATE TABLE IF NOT EXISTS leasehold_fence (
    name text PRIMARY KEY NOT NULL,
    token integer NOT NULL
)",
    begin: "BEGIN IMMEDIATE",
    savepoint: SAVEPOINT,
    guard: "INSERT INTO leasehold_fence (name, token) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE
SET token = CASE WHEN token <= excluded.token THEN excluded.token END",
    read_back: "SELECT token FROM leasehold_fence WHERE name = ?1",
    verify: VERIFY,
};
