//! Fenced transactions of sqlx.

use sqlx::{Pool, Transaction};

use crate::error::FenceError;
use crate::fence::Fence;
use crate::sql::Dialect;

/// How often a table is created. PostgreSQL reports a duplicate if two clients
/// create it at the same time.
const MAX_ATTEMPTS: u32 = 3;

/// A database of sqlx with fences: Postgres, MySql or Sqlite, each with its
/// feature.
///
/// The trait is sealed.
pub trait Database: sqlx::Database + sealed::Guarded {}

mod sealed {
    use sqlx::{Pool, Transaction};

    use crate::sql::Dialect;

    pub trait Guarded: sqlx::Database {
        const DIALECT: Dialect;
        /// Begins the transaction so that the guard waits for other writers.
        const BEGIN: &'static str;
        /// Whether the guard affects a row only if the token is accepted.
        const COUNTS: bool;

        /// Sends the guard. Returns the token that is stored then.
        fn pass(
            transaction: &mut Transaction<'static, Self>,
            name: &str,
            token: i64,
        ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

        fn create_table(pool: &Pool<Self>) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    }
}

impl Fence {
    /// Begins a transaction, with the guard as its first statement.
    ///
    /// While the transaction is open, the transactions of other holders of this
    /// fence wait. Keep it short. A holder that is paused inside it blocks its
    /// successors until the database ends its connection: set
    /// `idle_in_transaction_session_timeout` on PostgreSQL, or
    /// `idle_write_transaction_timeout` on MariaDB. On SQLite the successors
    /// fail after `busy_timeout`.
    ///
    /// # Examples
    ///
    #[cfg_attr(feature = "sqlx-postgres", doc = "```no_run")]
    #[cfg_attr(not(feature = "sqlx-postgres"), doc = "```ignore")]
    /// # use leasehold::Guard;
    /// # use sqlx::PgPool;
    /// # type Error = Box<dyn std::error::Error>;
    /// # async fn example(guard: Guard, pool: PgPool) -> Result<(), Error> {
    /// use leasehold_fence::Fence;
    ///
    /// let fence = Fence::of(&guard);
    /// let mut tx = fence.begin(&pool).await?;
    /// sqlx::query("UPDATE coupon SET remaining = remaining - 1 WHERE id = $1")
    ///     .bind(42)
    ///     .execute(&mut *tx)
    ///     .await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future rolls the transaction back. The token is stored only
    /// if the returned transaction is committed.
    ///
    /// # Errors
    ///
    /// [`FenceError::Stale`] if a later holder has committed a transaction, and
    /// [`FenceError::Database`] if the database fails. After the latter, begin
    /// again while the lease is valid.
    pub async fn begin<DB: Database>(
        &self,
        pool: &Pool<DB>,
    ) -> Result<Transaction<'static, DB>, FenceError> {
        let (name, token) = self.to_sql()?;
        let begun = pool.begin_with(DB::BEGIN).await;
        let mut transaction = begun.map_err(FenceError::database)?;
        let seen = DB::pass(&mut transaction, name, token).await;
        let seen = seen.map_err(FenceError::database)?;
        // Tokens are positive, so a negative number is below all of them.
        if let Err(stale) = self.check(u64::try_from(seen).unwrap_or_default()) {
            // Release the row before the caller sees the error.
            transaction.rollback().await.map_err(FenceError::database)?;
            return Err(stale);
        }
        Ok(transaction)
    }
}

/// Creates the table of fences if it does not exist.
///
/// Call it when the program starts, or put [`Dialect::schema`] into your own
/// migrations.
///
/// # Cancel safety
///
/// Dropping the future leaves the table created or not.
///
/// # Errors
///
/// [`FenceError::Database`] if the database fails.
pub async fn migrate<DB: Database>(pool: &Pool<DB>) -> Result<(), FenceError> {
    let mut attempt = 1;
    loop {
        match DB::create_table(pool).await {
            Ok(()) => return Ok(()),
            Err(_) if attempt < MAX_ATTEMPTS => attempt += 1,
            Err(error) => return Err(FenceError::database(error)),
        }
    }
}

macro_rules! database {
    ($feature:literal, $database:ty, $dialect:expr, $begin:literal, $counts:literal) => {
        #[cfg(feature = $feature)]
        impl Database for $database {}

        #[cfg(feature = $feature)]
        impl sealed::Guarded for $database {
            const DIALECT: Dialect = $dialect;
            const BEGIN: &'static str = $begin;
            const COUNTS: bool = $counts;

            async fn pass(
                transaction: &mut Transaction<'static, Self>,
                name: &str,
                token: i64,
            ) -> Result<i64, sqlx::Error> {
                let guard = sqlx::query(Self::DIALECT.guard).bind(name).bind(token);
                let affected = guard.execute(&mut **transaction).await?.rows_affected();
                if Self::COUNTS && affected == 1 {
                    return Ok(token);
                }
                let read_back = sqlx::query_scalar(Self::DIALECT.read_back).bind(name);
                read_back.fetch_one(&mut **transaction).await
            }

            async fn create_table(pool: &Pool<Self>) -> Result<(), sqlx::Error> {
                let create = sqlx::query(Self::DIALECT.schema);
                create.execute(pool).await.map(drop)
            }
        }
    };
}
database!(
    "sqlx-postgres",
    sqlx::Postgres,
    crate::sql::POSTGRES,
    "BEGIN",
    true
);
database!("sqlx-mysql", sqlx::MySql, crate::sql::MYSQL, "BEGIN", false);
database!(
    "sqlx-sqlite",
    sqlx::Sqlite,
    crate::sql::SQLITE,
    "BEGIN IMMEDIATE",
    true
);
