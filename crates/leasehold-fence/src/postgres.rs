//! Fenced transactions of tokio-postgres.

use tokio_postgres::{Client, Transaction};

use crate::error::FenceError;
use crate::fence::Fence;
use crate::sql::POSTGRES;

impl Fence {
    /// Begins a transaction of tokio-postgres, with the guard as its first
    /// statement.
    ///
    /// While the transaction is open, the transactions of other holders of this
    /// fence wait. Set `idle_in_transaction_session_timeout`, so that a holder
    /// that is paused inside it does not block them.
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
    ) -> Result<Transaction<'a>, FenceError> {
        let (name, token) = self.to_sql()?;
        let transaction = client.transaction().await;
        let transaction = transaction.map_err(FenceError::database)?;
        let passed = transaction.execute(POSTGRES.guard, &[&name, &token]).await;
        if passed.map_err(FenceError::database)? == 0 {
            let row = transaction.query_one(POSTGRES.read_back, &[&name]).await;
            let seen: i64 = row.map_err(FenceError::database)?.get(0);
            transaction.rollback().await.map_err(FenceError::database)?;
            self.check(u64::try_from(seen).unwrap_or_default())?;
            let why = "the guard affected no row, although the token is not stale";
            return Err(FenceError::database(why));
        }
        Ok(transaction)
    }
}
