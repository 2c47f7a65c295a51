//! Variants of the guard that do not work, and how they fail.

use std::time::Duration;

use leasehold_fence::sql::MYSQL;
use leasehold_fence::{Fence, migrate};
use sqlx::{Executor, MySqlPool, PgPool};

use crate::support::{AMPLE, SHORT, mariadb, postgres, run};

/// Checks the token in the write itself, without locking the fence.
async fn exists_check(pool: &PgPool, isolation: &'static str) {
    for table in [
        "DROP TABLE IF EXISTS item",
        "CREATE TABLE item (token bigint)",
    ] {
        pool.execute(table).await.unwrap();
    }
    migrate(pool).await.unwrap();
    pool.execute("DELETE FROM leasehold_fence").await.unwrap();
    pool.execute("INSERT INTO leasehold_fence VALUES ('coupon', 1)")
        .await
        .unwrap();
    let mut older = pool.begin_with(isolation).await.unwrap();
    let write = "INSERT INTO item SELECT 1 WHERE EXISTS
        (SELECT 1 FROM leasehold_fence WHERE name = 'coupon' AND token <= 1)";
    let written = older.execute(write).await.unwrap();
    assert_eq!(written.rows_affected(), 1);
    // The successor is not blocked, and does not see the row.
    let mut newer = pool.begin_with(isolation).await.unwrap();
    let raise = "UPDATE leasehold_fence SET token = 2 WHERE name = 'coupon'";
    let raised = tokio::time::timeout(AMPLE, newer.execute(raise)).await;
    raised.expect("not blocked").unwrap();
    let count = "SELECT count(*) FROM item";
    let seen: i64 = sqlx::query_scalar(count)
        .fetch_one(&mut *newer)
        .await
        .unwrap();
    newer.commit().await.unwrap();
    older.commit().await.unwrap();
    let after: i64 = sqlx::query_scalar(count).fetch_one(pool).await.unwrap();
    assert_eq!(
        (seen, after),
        (0, 1),
        "{isolation}: the stale write is rejected"
    );
}

#[test]
fn exists_check_lets_a_stale_write_commit() {
    let Some(database) = postgres() else { return };
    run(async {
        let pool = PgPool::connect(&database.url()).await.unwrap();
        exists_check(&pool, "BEGIN ISOLATION LEVEL READ COMMITTED").await;
        exists_check(&pool, "BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    });
}

/// Returns the number of rows that a successor sees after it has waited for an
/// older holder, if it reads before its guard or not.
async fn rows_seen(pool: &MySqlPool, reads_first: bool) -> i64 {
    for table in ["DROP TABLE IF EXISTS item", "CREATE TABLE item (id bigint)"] {
        pool.execute(table).await.unwrap();
    }
    let name = format!("coupon-{reads_first}");
    let mut older = Fence::new(&name, 1).begin(pool).await.unwrap();
    let insert = sqlx::query("INSERT INTO item VALUES (1)");
    insert.execute(&mut older).await.unwrap();
    let count = "SELECT count(*) FROM item";
    let other = pool.clone();
    let mut newer = tokio::spawn(async move {
        let mut transaction = other.begin().await.unwrap();
        if reads_first {
            let seen = sqlx::query_scalar::<_, i64>(count).fetch_one(&mut *transaction);
            assert_eq!(seen.await.unwrap(), 0);
        }
        let guard = sqlx::query(MYSQL.guard).bind(&name).bind(2);
        guard.execute(&mut *transaction).await.unwrap();
        let token = sqlx::query_scalar::<_, i64>(MYSQL.read_back).bind(&name);
        assert_eq!(token.fetch_one(&mut *transaction).await.unwrap(), 2);
        let seen = sqlx::query_scalar::<_, i64>(count).fetch_one(&mut *transaction);
        seen.await.unwrap()
    });
    let early = tokio::time::timeout(SHORT, &mut newer).await;
    assert!(early.is_err(), "the successor does not wait");
    older.commit().await.unwrap();
    newer.await.unwrap()
}

#[test]
fn mariadb_guard_after_a_read_misses_rows() {
    let Some(database) = mariadb() else { return };
    run(async {
        let pool = MySqlPool::connect(&database.url()).await.unwrap();
        migrate(&pool).await.unwrap();
        assert_eq!(rows_seen(&pool, true).await, 0);
        assert_eq!(rows_seen(&pool, false).await, 1);
    });
}

#[test]
fn deleted_fence_accepts_a_stale_token() {
    let Some(database) = postgres() else { return };
    run(async {
        let pool = PgPool::connect(&database.url()).await.unwrap();
        migrate(&pool).await.unwrap();
        let begin = |token| {
            let (pool, fence) = (pool.clone(), Fence::new("coupon", token));
            async move { fence.begin(&pool).await?.commit().await }
        };
        begin(2).await.unwrap();
        assert!(begin(1).await.unwrap_err().is_stale());
        pool.execute("DELETE FROM leasehold_fence").await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), begin(1))
            .await
            .unwrap()
            .unwrap();
    });
}
