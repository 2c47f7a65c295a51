//! Fences accept rising and repeated tokens and reject stale ones, and a
//! successor waits for the transaction of its predecessor.

use leasehold_fence::redis::{FENCED, FencedWrite};
use leasehold_fence::{Fence, FenceError, migrate};
use testkit::resp::Reply;
use testkit::{Flavor, ServerExt};
use tokio::task::JoinHandle;

use crate::support::store::{Store, ask};
use crate::support::{AMPLE, Folder, SHORT, mysql_and_mariadb, name, postgres, run};

/// Asserts that a write is rejected because `seen` was used.
fn assert_stale(outcome: Result<(), FenceError>, expected: (u64, u64)) {
    match outcome {
        Err(FenceError::Stale { ours, seen, .. }) => assert_eq!((ours, seen), expected),
        other => panic!("{other:?}"),
    }
}

/// Writes with rising, repeated and stale tokens under two names.
async fn accepts_and_rejects(url: &str) {
    let store = Store::open(url).await;
    store.create().await;
    // Names that differ in case or in a trailing space are different locks.
    let base = name();
    let names = [base.clone(), base.to_uppercase(), format!("{base} ")];
    for (at, name) in names.iter().enumerate() {
        let write = |token: u64, number| {
            let (store, fence) = (store.clone(), Fence::new(name, token));
            async move { store.write(&fence, 1, number, true).await }
        };
        let large = (1 << 62) + at as u64;
        write(10, 0).await.unwrap();
        write(10, 1).await.unwrap();
        write(12, 2).await.unwrap();
        assert_stale(write(11, 3).await, (11, 12));
        assert_stale(write(9, 4).await, (9, 12));
        write(12, 5).await.unwrap();
        // Above the 53 bits that a floating-point number represents.
        write(large + 1, 6).await.unwrap();
        assert_stale(write(large, 7).await, (large, large + 1));
        write(large + 1, 8).await.unwrap();
        let numbers = store.journal(name).await;
        let numbers: Vec<_> = numbers.iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, [0, 1, 2, 5, 6, 8], "{name:?}");
    }
    let too_large = Fence::new(&base, u64::MAX);
    if !matches!(store, Store::Redis(_)) {
        let invalid = store.write(&too_large, 1, 0, true).await.unwrap_err();
        assert!(matches!(invalid, FenceError::Invalid { .. }), "{invalid:?}");
    }
}

#[test]
fn postgres_accepts_rising_and_rejects_stale() {
    let Some(database) = postgres() else { return };
    run(accepts_and_rejects(&database.url()));
}

#[test]
fn mysql_accepts_rising_and_rejects_stale() {
    for database in mysql_and_mariadb() {
        run(accepts_and_rejects(&database.url()));
    }
}

#[test]
fn sqlite_accepts_rising_and_rejects_stale() {
    run(accepts_and_rejects(&Folder::new().sqlite()));
}

#[test]
fn redis_accepts_rising_and_rejects_stale() {
    for flavor in Flavor::all() {
        let server = flavor.start();
        run(accepts_and_rejects(&format!("redis:{}", server.port())));
    }
}

#[test]
fn redis_runs_all_commands_or_none() {
    for flavor in Flavor::all() {
        let server = flavor.start();
        let mut connection = server.connect();
        let write = |token: u64| {
            FencedWrite::new(&Fence::new("coupon", token), "fence:{coupon}")
                .command(["SET", "{coupon}:owner", &token.to_string()], [1])
                .command(["INCRBY", "{coupon}:sold", "2"], [1])
        };
        let replies = ask(&mut connection, &write(7)).unwrap();
        assert_eq!(replies[1], Reply::Int(2));
        assert!(ask(&mut connection, &write(6)).unwrap_err().is_stale());
        let owner = server.ask(&["GET", "{coupon}:owner"]);
        assert_eq!(owner.text(), "7");
        assert_eq!(server.ask(&["GET", "{coupon}:sold"]).text(), "2");
        assert_eq!(server.ask(&["TTL", "fence:{coupon}"]), Reply::Int(-1));
        // Data under the key of the fence is not overwritten.
        server.tell(&["SET", "fence:{coupon}", "data"]);
        let error = ask(&mut connection, &write(8)).unwrap_err();
        assert!(matches!(error, FenceError::Database(_)), "{error:?}");
        assert_eq!(server.ask(&["GET", "fence:{coupon}"]).text(), "data");
    }
}

#[test]
fn redis_checks_commands_before_it_writes() {
    for flavor in Flavor::all() {
        let server = flavor.start();
        let mut connection = server.connect();
        let with_words = |count: usize| {
            let words = ["RPUSH", "{coupon}:sold"].into_iter();
            let words = words.chain(std::iter::repeat_n("1", count - 2));
            FencedWrite::new(&Fence::new("coupon", 7), "fence:{coupon}")
                .command(["SET", "{coupon}:owner", "7"], [1])
                .command(words, [1])
        };
        for count in [7001, 8002] {
            let error = ask(&mut connection, &with_words(count)).unwrap_err();
            assert!(error.to_string().contains("7000 words"), "{error}");
            assert_eq!(server.ask(&["EXISTS", "fence:{coupon}"]), Reply::Int(0));
            assert_eq!(server.ask(&["EXISTS", "{coupon}:owner"]), Reply::Int(0));
        }
        let replies = ask(&mut connection, &with_words(7000)).unwrap();
        assert_eq!(replies[1], Reply::Int(6998));
        // What other languages could send.
        for token in ["0006", "-1", "7x", "", "123456789012345678901"] {
            let words = ["EVAL", FENCED, "1", "fence:{coupon}", token];
            let reply = connection.ask(&words).unwrap();
            assert!(matches!(reply, Reply::Error(_)), "{token:?}: {reply:?}");
        }
        for words in ["0", "-1", "1.5", "3", "x"] {
            let words = ["EVAL", FENCED, "1", "fence:{coupon}", "8", words, "PING"];
            let reply = connection.ask(&words).unwrap();
            assert!(matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
        }
        assert_eq!(server.ask(&["GET", "fence:{coupon}"]).text(), "7");
    }
}

/// Asserts that a later holder's transaction begins after that of an earlier
/// one has ended, and sees its rows.
macro_rules! successor_waits {
    ($pool:expr, $create:literal) => {{
        let pool = $pool;
        migrate(&pool).await.unwrap();
        sqlx::query($create).execute(&pool).await.unwrap();
        for commits in [true, false] {
            let name = name();
            let mut older = Fence::new(&name, 1).begin(&pool).await.unwrap();
            sqlx::query("INSERT INTO item (id) VALUES (1)")
                .execute(&mut older)
                .await
                .unwrap();
            let (fence, other) = (Fence::new(&name, 2), pool.clone());
            let mut newer: JoinHandle<_> = tokio::spawn(async move {
                let mut transaction = fence.begin(&other).await.unwrap();
                let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM item");
                let count = count.fetch_one(&mut transaction).await.unwrap();
                transaction.commit().await.unwrap();
                count
            });
            let early = tokio::time::timeout(SHORT, &mut newer).await;
            assert!(early.is_err(), "the successor does not wait");
            match commits {
                true => older.commit().await.unwrap(),
                false => older.rollback().await.unwrap(),
            }
            let count = tokio::time::timeout(AMPLE, newer).await;
            // The row of the first round remains.
            assert_eq!(count.expect("the successor continues").unwrap(), 1);
            let late = Fence::new(&name, 1).begin(&pool).await.map(drop);
            assert_stale(late, (1, 2));
        }
    }};
}

#[test]
fn postgres_successor_waits_and_sees_rows() {
    let Some(database) = postgres() else { return };
    run(async {
        let pool = sqlx::PgPool::connect(&database.url()).await.unwrap();
        successor_waits!(pool, "CREATE TABLE item (id bigint)");
    });
}

#[test]
fn mysql_successor_waits_and_sees_rows() {
    for database in mysql_and_mariadb() {
        run(async {
            let pool = sqlx::MySqlPool::connect(&database.url()).await.unwrap();
            successor_waits!(pool, "CREATE TABLE item (id bigint)");
        });
    }
}

#[test]
fn sqlite_successor_waits_and_sees_rows() {
    let folder = Folder::new();
    run(async {
        let Store::Sqlite(pool) = Store::open(&folder.sqlite()).await else {
            unreachable!("a SQLite URL");
        };
        successor_waits!(pool, "CREATE TABLE item (id integer)");
    });
}

#[test]
fn tokio_postgres_rejects_stale() {
    let Some(database) = postgres() else { return };
    run(async {
        let pool = sqlx::PgPool::connect(&database.url()).await.unwrap();
        migrate(&pool).await.unwrap();
        let url = database.url();
        let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        for token in [1, 1, 3] {
            let fence = Fence::new("coupon", token);
            let transaction = fence.begin_postgres(&mut client).await.unwrap();
            transaction.batch_execute("SELECT 1").await.unwrap();
            transaction.commit().await.unwrap();
        }
        let late = Fence::new("coupon", 2).begin_postgres(&mut client).await;
        assert_stale(late.map(drop), (2, 3));
        // The connection is usable after a stale attempt.
        Fence::new("coupon", 4)
            .begin_postgres(&mut client)
            .await
            .unwrap();
    });
}

#[test]
fn concurrent_migrations_succeed() {
    let Some(database) = postgres() else { return };
    run(async {
        let pool = sqlx::PgPool::connect(&database.url()).await.unwrap();
        for _ in 0..10 {
            sqlx::query("DROP TABLE IF EXISTS leasehold_fence")
                .execute(&pool)
                .await
                .unwrap();
            let tasks: Vec<_> = (0..6)
                .map(|_| {
                    let pool = pool.clone();
                    tokio::spawn(async move { migrate(&pool).await })
                })
                .collect();
            for task in tasks {
                task.await.unwrap().unwrap();
            }
        }
    });
}
