//! Transactions that the database ends before their commit. A statement after
//! that would be committed by itself, without the guard.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_core::Stream;
use leasehold_fence::{Fence, FenceError, migrate};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Executor, MySqlPool};

use crate::support::{AMPLE, Folder, mysql_and_mariadb, name, postgres, run};

const TABLE: &str = "CREATE TABLE account (id bigint PRIMARY KEY, v bigint NOT NULL)";
const READ: &str = "SELECT v FROM account WHERE id = 3";

/// The servers refresh `innodb_trx` only after 100 ms without a read.
const REFRESH: Duration = Duration::from_millis(200);

/// Creates the tables, with ten accounts, and returns two holders' fences.
macro_rules! prepare {
    ($pool:expr) => {{
        migrate($pool).await.unwrap();
        $pool.execute(TABLE).await.unwrap();
        for id in 1..=10 {
            let insert = format!("INSERT INTO account VALUES ({id}, 0)");
            $pool.execute(sqlx::AssertSqlSafe(insert)).await.unwrap();
        }
        let name = name();
        (Fence::new(&name, 33), Fence::new(&name, 34))
    }};
}

/// Writes under the fence of a later holder.
macro_rules! write_as_successor {
    ($pool:expr, $fence:expr) => {{
        let begun = tokio::time::timeout(AMPLE, $fence.begin($pool)).await;
        let mut successor = begun.expect("the row is not locked").unwrap();
        let update = sqlx::query("UPDATE account SET v = 1000 WHERE id = 3");
        update.execute(&mut successor).await.unwrap();
        successor.commit().await.unwrap();
    }};
}

/// Asserts that a transaction whose statement failed accepts no other one.
macro_rules! assert_refused {
    ($pool:expr, $transaction:expr) => {{
        let mut transaction = $transaction;
        for _ in 0..2 {
            let late = sqlx::query("UPDATE account SET v = -1 WHERE id = 3");
            let refused = late.execute(&mut transaction).await.unwrap_err();
            assert!(refused.to_string().contains("begin again"), "{refused}");
        }
        let read = sqlx::query("SELECT 1")
            .fetch_optional(&mut transaction)
            .await;
        assert!(read.is_err(), "a read is accepted");
        let commit = transaction.commit().await.unwrap_err();
        assert!(matches!(commit, FenceError::Database(_)), "{commit:?}");
    }};
}

macro_rules! assert_written_by_successor {
    ($pool:expr) => {{
        let value: i64 = sqlx::query_scalar(READ).fetch_one($pool).await.unwrap();
        assert_eq!(value, 1000, "the stale write is accepted");
    }};
}

/// Waits until a transaction waits for a row.
async fn until_blocked(pool: &MySqlPool) {
    let waiting = "SELECT count(*) FROM information_schema.innodb_trx
        WHERE trx_state = 'LOCK WAIT'";
    let blocked = async {
        while sqlx::query_scalar::<_, i64>(waiting)
            .fetch_one(pool)
            .await
            .unwrap()
            == 0
        {
            tokio::time::sleep(REFRESH).await;
        }
    };
    tokio::time::timeout(AMPLE, blocked)
        .await
        .expect("a deadlock");
}

#[test]
fn mysql_deadlock_ends_the_transaction() {
    for database in mysql_and_mariadb() {
        run(async {
            let pool = MySqlPool::connect(&database.url()).await.unwrap();
            let (old, new) = prepare!(&pool);
            let mut fenced = old.begin(&pool).await.unwrap();
            let first = sqlx::query("UPDATE account SET v = 1 WHERE id = 1");
            first.execute(&mut fenced).await.unwrap();
            // The server ends the transaction that has changed fewer rows.
            let mut other = pool.begin().await.unwrap();
            let update = "UPDATE account SET v = v + 1 WHERE id > 1";
            other.execute(update).await.unwrap();
            let blocked = tokio::spawn(async move {
                let update = "UPDATE account SET v = v + 1 WHERE id = 1";
                other.execute(update).await.unwrap();
                other.commit().await.unwrap();
            });
            until_blocked(&pool).await;
            let second = sqlx::query("UPDATE account SET v = 1 WHERE id = 2");
            let deadlock = second.execute(&mut fenced).await.unwrap_err();
            assert!(deadlock.to_string().contains("eadlock"), "{deadlock}");
            blocked.await.unwrap();
            write_as_successor!(&pool, new);
            assert_refused!(&pool, fenced);
            assert_written_by_successor!(&pool);
        });
    }
}

#[test]
fn mysql_implicit_commit_is_reported() {
    for database in mysql_and_mariadb() {
        run(async {
            let pool = MySqlPool::connect(&database.url()).await.unwrap();
            let (old, new) = prepare!(&pool);
            let mut fenced = old.begin(&pool).await.unwrap();
            fenced.execute("CREATE TABLE other (id int)").await.unwrap();
            write_as_successor!(&pool, new);
            let ended = fenced.commit().await.unwrap_err();
            assert!(matches!(ended, FenceError::Ended { .. }), "{ended:?}");
        });
    }
}

#[test]
fn sqlite_conflict_rollback_ends_the_transaction() {
    let folder = Folder::new();
    run(async {
        let options: SqliteConnectOptions = folder.sqlite().parse().unwrap();
        let pool = SqlitePoolOptions::new().max_connections(2);
        let pool = pool.connect_with(options).await.unwrap();
        let (old, new) = prepare!(&pool);
        let unique = "CREATE TABLE item (id integer UNIQUE ON CONFLICT ROLLBACK)";
        pool.execute(unique).await.unwrap();
        pool.execute("INSERT INTO item VALUES (1)").await.unwrap();
        let mut fenced = old.begin(&pool).await.unwrap();
        let conflict = sqlx::query("INSERT INTO item VALUES (1)");
        conflict.execute(&mut fenced).await.unwrap_err();
        write_as_successor!(&pool, new);
        assert_refused!(&pool, fenced);
        assert_written_by_successor!(&pool);
        // The connection has no transaction open, and knows it.
        let mut first = pool.begin().await.unwrap();
        let mut second = pool.begin().await.unwrap();
        first.execute("UPDATE account SET v = -1").await.unwrap();
        first.rollback().await.unwrap();
        second.execute("UPDATE account SET v = -1").await.unwrap();
        second.rollback().await.unwrap();
        assert_written_by_successor!(&pool);
    });
}

#[test]
fn postgres_failed_transaction_is_not_committed() {
    let Some(database) = postgres() else { return };
    run(async {
        let pool = PgPoolOptions::new().connect(&database.url()).await.unwrap();
        let (old, new) = prepare!(&pool);
        let mut fenced = old.begin(&pool).await.unwrap();
        let failed = sqlx::query("SELECT 1 / 0").execute(&mut fenced).await;
        failed.unwrap_err();
        assert_refused!(&pool, fenced);
        write_as_successor!(&pool, new);

        let url = database.url();
        let connected = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
        let (mut client, connection) = connected.unwrap();
        tokio::spawn(connection);
        let fenced = new.begin_postgres(&mut client).await.unwrap();
        fenced.batch_execute("SELECT 1 / 0").await.unwrap_err();
        let failed = fenced.commit().await.unwrap_err();
        assert!(matches!(failed, FenceError::Database(_)), "{failed:?}");
        let fenced = new.begin_postgres(&mut client).await.unwrap();
        fenced.batch_execute("COMMIT; BEGIN").await.unwrap();
        let ended = fenced.commit().await.unwrap_err();
        assert!(matches!(ended, FenceError::Ended { .. }), "{ended:?}");
        let fenced = new.begin_postgres(&mut client).await.unwrap();
        fenced.commit().await.unwrap();
    });
}

/// Ends transactions from within, and drops a statement, on one connection.
macro_rules! ends_and_drops {
    ($pool:expr) => {{
        let pool = $pool;
        let (fence, _) = prepare!(&pool);
        for ends in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN"] {
            let mut fenced = fence.begin(&pool).await.unwrap();
            fenced.execute(ends).await.unwrap();
            let ended = fenced.commit().await.unwrap_err();
            assert!(
                matches!(ended, FenceError::Ended { .. }),
                "{ends}: {ended:?}"
            );
        }
        // A stream that is dropped before its end may hide an error.
        let mut fenced = fence.begin(&pool).await.unwrap();
        let two = "SELECT 1 UNION ALL SELECT 2";
        fenced.fetch_one(two).await.unwrap();
        let mut rows = fenced.fetch(two);
        let row = poll_fn(|cx| Pin::new(&mut rows).poll_next(cx));
        assert!(row.await.is_some_and(|row| row.is_ok()));
        drop(rows);
        assert_refused!(&pool, fenced);
        // A dropped transaction is rolled back, and its connection is free.
        let mut fenced = fence.begin(&pool).await.unwrap();
        let update = sqlx::query("UPDATE account SET v = -1 WHERE id = 3");
        update.execute(&mut fenced).await.unwrap();
        drop(fenced);
        let value: i64 = sqlx::query_scalar(READ).fetch_one(&pool).await.unwrap();
        assert_eq!(value, 0);
        fence.begin(&pool).await.unwrap().rollback().await.unwrap();
        fence.begin(&pool).await.unwrap().commit().await.unwrap();
    }};
}

#[test]
fn mysql_reports_ends_and_refuses_after_a_drop() {
    for database in mysql_and_mariadb() {
        run(async {
            let pool = MySqlPoolOptions::new().max_connections(1);
            ends_and_drops!(pool.connect(&database.url()).await.unwrap());
        });
    }
}

#[test]
fn postgres_reports_ends_and_refuses_after_a_drop() {
    let Some(database) = postgres() else { return };
    run(async {
        let pool = PgPoolOptions::new().max_connections(1);
        ends_and_drops!(pool.connect(&database.url()).await.unwrap());
    });
}

#[test]
fn sqlite_reports_ends_and_refuses_after_a_drop() {
    let folder = Folder::new();
    run(async {
        let pool = SqlitePoolOptions::new().max_connections(1);
        ends_and_drops!(pool.connect(&folder.sqlite()).await.unwrap());
    });
}

/// Drops a statement that fails afterwards, and its transaction with it, on one
/// connection. The reply to the statement is read by what uses the connection
/// next.
macro_rules! drops_a_failing_statement {
    ($pool:expr, $fails:expr) => {{
        let pool = $pool;
        let (fence, _) = prepare!(&pool);
        let mut fenced = fence.begin(&pool).await.unwrap();
        let update = sqlx::query("UPDATE account SET v = -1 WHERE id = 3");
        update.execute(&mut fenced).await.unwrap();
        let mut failing = fenced.execute($fails);
        // Sends it. On a machine that stalls here, the reply may be read too.
        let _ = poll_fn(|cx| Poll::Ready(failing.as_mut().poll(cx))).await;
        drop(failing);
        drop(fenced);
        let value: i64 = sqlx::query_scalar(READ).fetch_one(&pool).await.unwrap();
        assert_eq!(value, 0, "the transaction is still open");
        fence.begin(&pool).await.unwrap().commit().await.unwrap();
    }};
}

#[test]
fn mysql_rolls_back_after_a_dropped_failure() {
    for database in mysql_and_mariadb() {
        run(async {
            let pool = MySqlPoolOptions::new().max_connections(1);
            let pool = pool.connect(&database.url()).await.unwrap();
            drops_a_failing_statement!(pool, "INSERT INTO account VALUES (1, 0)");
        });
    }
}

#[test]
fn postgres_rolls_back_after_a_dropped_failure() {
    let Some(database) = postgres() else { return };
    run(async {
        let pool = PgPoolOptions::new().max_connections(1);
        let pool = pool.connect(&database.url()).await.unwrap();
        drops_a_failing_statement!(pool, "SELECT 1 / 0");
    });
}
