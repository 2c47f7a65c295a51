//! Fenced transactions of tokio-postgres.

use std::fmt;
use std::ops::Deref;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Transaction};

use crate::error::FenceError;
use crate::fence::Fence;
use crate::sql::POSTGRES;

/// A transaction of tokio-postgres that a [`Fence`] protects, with the guard as
/// its first statement.
///
/// It dereferences to tokio-postgres's transaction, for queries. PostgreSQL
/// itself refuses every statement after one that failed. Its `COMMIT` then
/// rolls back and reports success; [`commit`](Self::commit) returns an error.
///
/// Dropping the transaction rolls it back.
pub struct PostgresTransaction<'a> {
    transaction: Transaction<'a>,
    fence: Fence,
}

impl Fence {
    /// Begins a transaction of tokio-postgres, with the guard as its first
    /// statement.
    ///
    /// While the transaction is open, the transactions of other holders of this
    /// fence wait. Set `idle_in_transaction_session_timeout`, so a holder that
    /// is paused inside it does not block them.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::Guard;
    /// # use tokio_postgres::Client;
    /// # type Error = Box<dyn std::error::Error>;
    /// # async fn example(
    /// #     guard: Guard,
    /// #     mut client: Client,
    /// # ) -> Result<(), Error> {
    /// use leasehold_fence::Fence;
    ///
    /// let fence = Fence::of(&guard);
    /// let tx = fence.begin_postgres(&mut client).await?;
    /// tx.execute("UPDATE coupon SET remaining = remaining - 1", &[]).await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future rolls the transaction back.
    ///
    /// # Errors
    ///
    /// [`FenceError::Stale`] if a later holder has committed a transaction, and
    /// [`FenceError::Database`] if the database fails.
    pub async fn begin_postgres<'a>(
        &self,
        client: &'a mut Client,
    ) -> Result<PostgresTransaction<'a>, FenceError> {
        let (name, token) = self.to_sql()?;
        let transaction = client.transaction().await;
        let transaction = transaction.map_err(FenceError::database)?;
        let saved = transaction.batch_execute(POSTGRES.savepoint).await;
        saved.map_err(FenceError::database)?;
        if let Err(error) = transaction.execute(POSTGRES.guard, &[&name, &token]).await {
            return Err(self.explain_postgres(transaction, error).await);
        }
        Ok(PostgresTransaction {
            transaction,
            fence: self.clone(),
        })
    }

    /// Rolls back after the guard failed, and returns whether that was because
    /// the token is stale.
    async fn explain_postgres(
        &self,
        transaction: Transaction<'_>,
        error: tokio_postgres::Error,
    ) -> FenceError {
        let rewind = "ROLLBACK TO SAVEPOINT leasehold_fence";
        let mut seen = None;
        if transaction.batch_execute(rewind).await.is_ok() {
            let row = transaction
                .query_one(POSTGRES.read_back, &[&self.name])
                .await;
            seen = row.ok().map(|row| row.get::<_, i64>(0));
        }
        // Release the row before the caller sees the error.
        let _: Result<(), _> = transaction.rollback().await;
        let seen = seen.and_then(|seen| u64::try_from(seen).ok());
        match self.check(seen.unwrap_or_default()) {
            Err(stale) => stale,
            Ok(()) => FenceError::database(error),
        }
    }
}

impl PostgresTransaction<'_> {
    /// Commits, if the transaction is still the one that the guard protects.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the transaction may or may not be committed.
    ///
    /// # Errors
    ///
    /// - [`FenceError::Database`] if an earlier statement failed, in which case
    ///   the transaction is rolled back, or if the commit fails.
    /// - [`FenceError::Ended`] if the transaction has ended before, for example
    ///   by a `COMMIT` that was sent as a statement.
    ///
    /// # Examples
    ///
    #[cfg_attr(feature = "tokio-postgres", doc = "```no_run")]
    #[cfg_attr(not(feature = "tokio-postgres"), doc = "```ignore")]
    /// # use leasehold_fence::{Fence, FenceError};
    /// # use tokio_postgres::Client;
    /// # type Outcome = Result<(), FenceError>;
    /// # async fn example(fence: Fence, mut client: Client) -> Outcome {
    /// let tx = fence.begin_postgres(&mut client).await?;
    /// // …
    /// tx.commit().await?; // an error: begin again, while the lease is valid
    /// # Ok(()) }
    /// ```
    pub async fn commit(self) -> Result<(), FenceError> {
        let Err(error) = self.transaction.batch_execute(POSTGRES.verify).await else {
            let committed = self.transaction.commit().await;
            return committed.map_err(FenceError::database);
        };
        let _: Result<(), _> = self.transaction.rollback().await;
        match error.code() {
            Some(code) if *code != SqlState::IN_FAILED_SQL_TRANSACTION => Err(FenceError::Ended {
                name: self.fence.name,
                source: error.into(),
            }),
            _ => Err(FenceError::database(error)),
        }
    }

    /// Rolls back.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the transaction is rolled back nevertheless.
    ///
    /// # Errors
    ///
    /// [`FenceError::Database`] if the database cannot be reached.
    ///
    /// # Examples
    ///
    #[cfg_attr(feature = "tokio-postgres", doc = "```no_run")]
    #[cfg_attr(not(feature = "tokio-postgres"), doc = "```ignore")]
    /// # use leasehold_fence::{Fence, FenceError};
    /// # use tokio_postgres::Client;
    /// # type Outcome = Result<(), FenceError>;
    /// # async fn example(fence: Fence, mut client: Client) -> Outcome {
    /// let tx = fence.begin_postgres(&mut client).await?;
    /// tx.rollback().await?;
    /// # Ok(()) }
    /// ```
    pub async fn rollback(self) -> Result<(), FenceError> {
        let rolled_back = self.transaction.rollback().await;
        rolled_back.map_err(FenceError::database)
    }

    /// Returns the fence that protects the transaction.
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.fence
    }
}

impl<'a> Deref for PostgresTransaction<'a> {
    type Target = Transaction<'a>;

    // Without `DerefMut`: neither tokio-postgres's commit, which would skip the
    // check, nor its savepoints can be reached through a shared reference.
    fn deref(&self) -> &Self::Target {
        &self.transaction
    }
}

impl fmt::Debug for PostgresTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTransaction")
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}
