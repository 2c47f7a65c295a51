//! The statements of a fence as text, for any driver and language.
//!
//! 1. Create the table once with [`schema`](Dialect::schema).
//! 2. Begin a transaction. Its **first** statement is the
//!    [`guard`](Dialect::guard), with the name of the lock and the token. A
//!    statement before it can fix a snapshot that lacks the rows of the
//!    previous holder.
//! 3. Read the token with [`read_back`](Dialect::read_back). If it is larger
//!    than the own one, the holder is stale: roll back. On PostgreSQL and
//!    SQLite this is needed only if the guard affected no row.
//! 4. Write, and commit.
//!
//! The guard locks the row until the transaction ends, so a later holder waits
//! for the transaction of an earlier one and then sees what it wrote.
//!
//! Never delete a row of the table: a fence without a row accepts any token.

/// The statements of one database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Creates the table `leasehold_fence` if it does not exist.
    pub schema: &'static str,
    /// Stores the token unless a larger one is stored. Parameters: the name of
    /// the lock and the token.
    pub guard: &'static str,
    /// Returns the stored token. Parameter: the name of the lock.
    pub read_back: &'static str,
}

/// The statements of PostgreSQL.
///
/// The guard affects one row if the token is accepted, and none if it is
/// stale. Under REPEATABLE READ or SERIALIZABLE, it fails with
/// `serialization_failure` if it had to wait for an earlier holder that
/// committed; begin again.
pub const POSTGRES: Dialect = Dialect {
    schema: "CREATE TABLE IF NOT EXISTS leasehold_fence (
    name text PRIMARY KEY,
    token bigint NOT NULL
)",
    guard: "INSERT INTO leasehold_fence AS fence (name, token) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET token = excluded.token
WHERE fence.token <= excluded.token",
    read_back: "SELECT token FROM leasehold_fence WHERE name = $1",
};

/// The statements of MySQL and MariaDB, for InnoDB.
///
/// The number of affected rows is the same for a stale token and for a
/// repeated one. Always read the token back.
///
/// Names are compared as bytes: the usual collations would treat `a` and `A` as
/// one lock.
pub const MYSQL: Dialect = Dialect {
    schema: "CREATE TABLE IF NOT EXISTS leasehold_fence (
    name varbinary(512) PRIMARY KEY,
    token bigint NOT NULL
) ENGINE = InnoDB",
    guard: "INSERT INTO leasehold_fence (name, token) VALUES (?, ?)
ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))",
    read_back: "SELECT token FROM leasehold_fence WHERE name = ? FOR UPDATE",
};

/// The statements of SQLite 3.24 and later.
///
/// The guard affects one row if the token is accepted, and none if it is
/// stale. Begin with `BEGIN IMMEDIATE` and set `busy_timeout`, so that a later
/// holder waits for an earlier one.
pub const SQLITE: Dialect = Dialect {
    schema: "CREATE TABLE IF NOT EXISTS leasehold_fence (
    name text PRIMARY KEY NOT NULL,
    token integer NOT NULL
)",
    guard: "INSERT INTO leasehold_fence (name, token) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET token = excluded.token
WHERE leasehold_fence.token <= excluded.token",
    read_back: "SELECT token FROM leasehold_fence WHERE name = ?1",
};
