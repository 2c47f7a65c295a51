//! Fenced transactions of sqlx.

use std::fmt;
use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::{Error, Pool};
use tokio::runtime::Handle;

use crate::error::FenceError;
use crate::fence::Fence;

/// Returns to the start of the transaction after the guard failed.
const REWIND: &str = "ROLLBACK TO SAVEPOINT leasehold_fence";

/// Verifies the savepoint and commits, in one round trip. Every database stops
/// at the first statement that fails.
const COMMIT: &str = "RELEASE SAVEPOINT leasehold_fence; COMMIT";

const IS_OPEN: &str = "the transaction is open";

/// The SQLSTATE of a transaction that was rolled back as a whole. Galera
/// reports it in reply to the next statement, here that of the commit, so no
/// statement can have run in between.
const ROLLED_BACK: &str = "40001";

/// A database of sqlx with fences: Postgres, MySql or Sqlite, each with its
/// feature.
///
/// The trait is sealed.
pub trait FencedDatabase: sqlx::Database + sealed::Guarded {}

pub(crate) mod sealed {
    use sqlx::Error;

    use crate::sql::Dialect;

    /// The statements, sent with one database's types.
    pub trait Guarded: sqlx::Database {
        const DIALECT: Dialect;
        /// Begins a transaction and sets the savepoint.
        const BEGIN: &'static str;
        /// Whether the driver can use a connection again after a statement's
        /// future was dropped.
        const SURVIVES_DROP: bool;

        /// Sends statements without parameters, up to the first that fails.
        /// The error's number tells how many statements came before it.
        fn run(
            connection: &mut Self::Connection,
            statements: &'static str,
        ) -> impl Future<Output = Result<(), (usize, Error)>> + Send;

        /// Sends the guard, which fails if the token is stale.
        fn guard(
            connection: &mut Self::Connection,
            name: &str,
            token: i64,
        ) -> impl Future<Output = Result<(), Error>> + Send;

        /// Returns the stored token.
        fn read_back(
            connection: &mut Self::Connection,
            name: &str,
        ) -> impl Future<Output = Result<i64, Error>> + Send;

        /// Checks that the table has the columns that the guard uses.
        fn probe(pool: &sqlx::Pool<Self>) -> impl Future<Output = Result<(), Error>> + Send;

        fn create(pool: &sqlx::Pool<Self>) -> impl Future<Output = Result<(), Error>> + Send;
    }
}

/// A transaction that a [`Fence`] protects, with the guard as its first
/// statement.
///
/// Run queries on `&mut transaction`, where a plain sqlx transaction takes
/// `&mut *transaction`. A function that takes a `&mut PgConnection` takes a
/// `&mut FencedTransaction<Postgres>` instead.
///
/// **It ends with the first error.** After that it refuses every statement and
/// the commit, because the database may have rolled the guard back with the
/// rest: MySQL and MariaDB do so on a deadlock, SQLite on `ON CONFLICT
/// ROLLBACK`. The next statement would then commit by itself, without the
/// guard. The same holds for a query whose future or stream was dropped before
/// its end. Begin again while the lease is valid, and avoid errors that you
/// expect: write `ON CONFLICT DO NOTHING` or `INSERT IGNORE`, or read first.
///
/// Don't send `COMMIT`, `ROLLBACK` or, on MySQL and MariaDB, a statement that
/// commits implicitly, such as `CREATE TABLE`. No client can undo it; the
/// [commit](Self::commit) reports it with [`FenceError::Ended`].
///
/// Dropping the transaction rolls it back. A task does this in the background,
/// so prefer [`rollback`](Self::rollback) if a successor is waiting.
pub struct FencedTransaction<DB: FencedDatabase> {
    connection: OpenConnection<DB>,
    fence: Fence,
}

/// Whether another statement may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The last statement has succeeded.
    Ready,
    /// A statement was sent. If it is dropped now, its error is lost.
    Running,
    Failed,
}

impl Progress {
    pub(crate) fn refusal(self) -> &'static str {
        match self {
            Self::Failed => {
                "an earlier statement of this fenced transaction failed, which may have ended it; \
                 begin again"
            }
            _ => {
                "an earlier statement of this fenced transaction was dropped before its end; begin \
                 again"
            }
        }
    }
}

impl Fence {
    /// Begins a transaction, with the guard as its first statement.
    ///
    /// Needs one of the features `sqlx-postgres`, `sqlx-mysql` and
    /// `sqlx-sqlite`, and sqlx 0.9.
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
    ///     .execute(&mut tx)
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
    pub async fn begin<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
    ) -> Result<FencedTransaction<DB>, FenceError> {
        let (name, token) = self.to_sql()?;
        let connection = pool.acquire().await.map_err(FenceError::database)?;
        let mut connection = OpenConnection::new(connection);
        let begun = DB::run(&mut connection, DB::BEGIN).await;
        begun.map_err(|(_, error)| FenceError::database(error))?;
        if let Err(error) = DB::guard(&mut connection, name, token).await {
            return Err(self.explain(connection, error).await);
        }
        connection.progress = Progress::Ready;
        Ok(FencedTransaction {
            connection,
            fence: self.clone(),
        })
    }

    /// Rolls back after the guard failed, and returns whether that was because
    /// the token is stale.
    async fn explain<DB: FencedDatabase>(
        &self,
        mut connection: OpenConnection<DB>,
        error: Error,
    ) -> FenceError {
        let rewound = DB::run(&mut connection, REWIND).await.is_ok();
        let seen = match rewound {
            true => DB::read_back(&mut connection, &self.name).await.ok(),
            // A deadlock, say: the transaction is gone.
            false => None,
        };
        connection.progress = Progress::Failed;
        // Release the row before the caller sees the error.
        let _: Result<(), _> = connection.roll_back().await;
        // Tokens are positive, so a negative number is below all of them.
        let seen = seen.and_then(|seen| u64::try_from(seen).ok());
        match self.check(seen.unwrap_or_default()) {
            Err(stale) => stale,
            Ok(()) => FenceError::database(error),
        }
    }
}

impl<DB: FencedDatabase> FencedTransaction<DB> {
    /// Commits, if the transaction is still the one that the guard protects.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the transaction may or may not be committed.
    ///
    /// # Errors
    ///
    /// - [`FenceError::Database`] if an earlier statement failed or was
    ///   dropped, in which case the transaction is rolled back, or if the
    ///   commit fails.
    /// - [`FenceError::Ended`] if the transaction has ended before.
    ///
    /// # Examples
    ///
    #[cfg_attr(feature = "sqlx-postgres", doc = "```no_run")]
    #[cfg_attr(not(feature = "sqlx-postgres"), doc = "```ignore")]
    /// # use leasehold_fence::{Fence, FenceError};
    /// # type Outcome = Result<(), FenceError>;
    /// # async fn example(fence: Fence, pool: sqlx::PgPool) -> Outcome {
    /// let tx = fence.begin(&pool).await?; // if stale, discard the work
    /// // …
    /// tx.commit().await?; // an error: begin again, while the lease is valid
    /// # Ok(()) }
    /// ```
    pub async fn commit(mut self) -> Result<(), FenceError> {
        let progress = self.connection.progress;
        if progress != Progress::Ready {
            let _: Result<(), _> = self.connection.roll_back().await;
            return Err(FenceError::database(progress.refusal()));
        }
        self.connection.progress = Progress::Running;
        let committed = DB::run(&mut self.connection, COMMIT).await;
        self.connection.progress = Progress::Failed;
        match committed {
            Ok(()) => {
                self.connection.return_to_pool();
                Ok(())
            }
            // The savepoint is gone, and with it the transaction.
            Err((0, Error::Database(error))) if error.code().as_deref() != Some(ROLLED_BACK) => {
                let _: Result<(), _> = self.connection.roll_back().await;
                Err(FenceError::Ended {
                    name: self.fence.name,
                    source: Error::Database(error).into(),
                })
            }
            Err((_, error)) => Err(FenceError::database(error)),
        }
    }

    /// Rolls back.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the transaction is rolled back in the
    /// background.
    ///
    /// # Errors
    ///
    /// [`FenceError::Database`] if the database cannot be reached. It rolls
    /// back on its own when it notices that the connection is closed.
    ///
    /// # Examples
    ///
    #[cfg_attr(feature = "sqlx-postgres", doc = "```no_run")]
    #[cfg_attr(not(feature = "sqlx-postgres"), doc = "```ignore")]
    /// # use leasehold_fence::{Fence, FenceError};
    /// # type Outcome = Result<(), FenceError>;
    /// # async fn example(fence: Fence, pool: sqlx::PgPool) -> Outcome {
    /// let tx = fence.begin(&pool).await?;
    /// tx.rollback().await?; // frees the row now; dropping does so soon
    /// # Ok(()) }
    /// ```
    pub async fn rollback(mut self) -> Result<(), FenceError> {
        let rolled_back = self.connection.roll_back().await;
        rolled_back.map_err(FenceError::database)
    }

    /// Returns the fence that protects the transaction.
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    pub(crate) fn parts(&mut self) -> (&mut DB::Connection, &mut Progress) {
        let OpenConnection {
            connection,
            progress,
            ..
        } = &mut self.connection;
        (connection.as_mut().expect(IS_OPEN), progress)
    }
}

impl<DB: FencedDatabase> fmt::Debug for FencedTransaction<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedTransaction")
            .field("fence", &self.fence)
            .field("progress", &self.connection.progress)
            .finish_non_exhaustive()
    }
}

/// A connection of a pool, in a transaction that is rolled back when the value
/// is dropped.
///
/// sqlx's own transaction counts the open ones. It counts wrong when the
/// database ends one by itself, and its connection would go back into the pool
/// like that. It also lends a bare connection, which we must not.
struct OpenConnection<DB: FencedDatabase> {
    /// `None` once the transaction has ended.
    connection: Option<PoolConnection<DB>>,
    progress: Progress,
    /// Whether dropping the value may spawn a task that rolls back.
    may_spawn: bool,
}

impl<DB: FencedDatabase> OpenConnection<DB> {
    fn new(connection: PoolConnection<DB>) -> Self {
        Self {
            connection: Some(connection),
            // Until the guard has succeeded.
            progress: Progress::Running,
            may_spawn: true,
        }
    }

    async fn roll_back(&mut self) -> Result<(), Error> {
        if self.progress == Progress::Running && !DB::SURVIVES_DROP {
            self.close();
            return Ok(());
        }
        self.progress = Progress::Running;
        let mut rolled_back = DB::run(self, "ROLLBACK").await;
        if let Err((_, Error::Database(_))) = rolled_back {
            // It can be the error of a statement whose future was dropped: the
            // driver reads that first, and then sends no `ROLLBACK`.
            rolled_back = DB::run(self, "ROLLBACK").await;
        }
        match rolled_back {
            // SQLite reports an error if there is no transaction any more.
            Ok(()) | Err((_, Error::Database(_))) => {
                self.return_to_pool();
                Ok(())
            }
            Err((_, error)) => {
                self.close();
                Err(error)
            }
        }
    }

    fn return_to_pool(&mut self) {
        self.connection = None;
    }

    /// Closes the connection; the database then rolls back.
    fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(connection.detach());
        }
    }
}

impl<DB: FencedDatabase> Deref for OpenConnection<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &Self::Target {
        self.connection.as_ref().expect(IS_OPEN)
    }
}

impl<DB: FencedDatabase> DerefMut for OpenConnection<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection.as_mut().expect(IS_OPEN)
    }
}

impl<DB: FencedDatabase> Drop for OpenConnection<DB> {
    fn drop(&mut self) {
        match Handle::try_current() {
            Ok(runtime) if self.may_spawn && self.connection.is_some() => {
                let mut open = Self {
                    connection: self.connection.take(),
                    progress: self.progress,
                    // A runtime that shuts down drops the task at once. It must
                    // not spawn another one then.
                    may_spawn: false,
                };
                runtime.spawn(async move { open.roll_back().await });
            }
            _ => self.close(),
        }
    }
}

/// Creates the table of fences if it does not exist.
///
/// Call it when the program starts, or put
/// [`Dialect::schema`](crate::sql::Dialect::schema) into your own migrations.
/// If the table exists, the user needs no right to create one.
///
/// # Examples
///
#[cfg_attr(feature = "sqlx-postgres", doc = "```no_run")]
#[cfg_attr(not(feature = "sqlx-postgres"), doc = "```ignore")]
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = sqlx::PgPool::connect("postgres://127.0.0.1/shop").await?;
/// leasehold_fence::migrate(&pool).await?;
/// # Ok(()) }
/// ```
///
/// # Cancel safety
///
/// Dropping the future leaves the table created or not.
///
/// # Errors
///
/// [`FenceError::Database`] if the database fails.
pub async fn migrate<DB: FencedDatabase>(pool: &Pool<DB>) -> Result<(), FenceError> {
    if DB::probe(pool).await.is_ok() {
        return Ok(());
    }
    let Err(error) = DB::create(pool).await else {
        return Ok(());
    };
    // PostgreSQL reports a duplicate if two clients create it at the same time.
    match DB::probe(pool).await {
        Ok(()) => Ok(()),
        Err(_) => Err(FenceError::database(error)),
    }
}
