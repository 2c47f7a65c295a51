//! The table of fences: names, rights, guards as text, and how to prune it.

use leasehold::Client;
use leasehold_fence::sql::{MYSQL, POSTGRES, SQLITE};
use leasehold_fence::{Fence, migrate};
use sqlx::{AssertSqlSafe, Executor, MySqlPool, PgPool, SqlitePool};
use testkit::Flavor;

use crate::support::{Folder, mysql_and_mariadb, name, postgres, run};

#[test]
fn fences_of_other_prefixes_are_separate() {
    let server = Flavor::one().start();
    let folder = Folder::new();
    run(async {
        let pool = SqlitePool::connect(&folder.sqlite()).await.unwrap();
        migrate(&pool).await.unwrap();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let shop = Client::connect(&url).prefix("shop:").await.unwrap();
        let mail = Client::connect(&url).prefix("mail:").await.unwrap();
        let ours = shop.mutex("nightly").lock().await.unwrap();
        let theirs = mail.mutex("nightly").lock().await.unwrap();
        let fence = Fence::of(&ours);
        assert_eq!(fence.name(), "shop:nightly");
        let larger = Fence::new(Fence::of(&theirs).name(), fence.token() + 1);
        assert_eq!(larger.name(), "mail:nightly");
        larger.begin(&pool).await.unwrap().commit().await.unwrap();
        fence.begin(&pool).await.unwrap().commit().await.unwrap();
    });
}

#[test]
fn migrate_needs_no_right_to_create() {
    let Some(database) = postgres() else { return };
    run(async {
        let admin = PgPool::connect(&database.url()).await.unwrap();
        admin.execute("CREATE ROLE app LOGIN").await.unwrap();
        let url = database.url().replace("leasehold@", "app@");
        let app = PgPool::connect(&url).await.unwrap();
        assert!(migrate(&app).await.is_err(), "a right to create");
        migrate(&admin).await.unwrap();
        let grant = "GRANT SELECT, INSERT, UPDATE ON leasehold_fence TO app";
        admin.execute(grant).await.unwrap();
        migrate(&app).await.unwrap();
        let fence = Fence::new("coupon", 1);
        fence.begin(&app).await.unwrap().commit().await.unwrap();
    });
}

/// Asserts that the guard as text accepts 5 and fails for 4.
macro_rules! guard_fails {
    ($pool:expr, $dialect:expr) => {{
        migrate(&$pool).await.unwrap();
        let mut connection = $pool.acquire().await.unwrap();
        let name = name();
        for (token, is_accepted) in [(5, true), (5, true), (4, false), (5, true)] {
            let guard = sqlx::query($dialect.guard).bind(&name).bind(token);
            let guarded = guard.execute(&mut *connection).await;
            assert_eq!(guarded.is_ok(), is_accepted, "{token}: {guarded:?}");
            let stored = sqlx::query_scalar::<_, i64>($dialect.read_back).bind(&name);
            assert_eq!(stored.fetch_one(&mut *connection).await.unwrap(), 5);
        }
    }};
}

#[test]
fn guard_as_text_fails_for_a_stale_token() {
    let folder = Folder::new();
    run(async {
        let pool = SqlitePool::connect(&folder.sqlite()).await.unwrap();
        guard_fails!(pool, SQLITE);
    });
    if let Some(database) = postgres() {
        run(async {
            let pool = PgPool::connect(&database.url()).await.unwrap();
            guard_fails!(pool, POSTGRES);
        });
    }
    for database in mysql_and_mariadb() {
        run(async {
            let pool = MySqlPool::connect(&database.url()).await.unwrap();
            guard_fails!(pool, MYSQL);
            // Such a server stores 0 for a null.
            pool.execute("SET GLOBAL sql_mode = ''").await.unwrap();
            let options = pool.connect_options();
            let options = (*options).clone().no_engine_substitution(false);
            let lax = MySqlPool::connect_with(options.pipes_as_concat(false));
            let lax = lax.await.unwrap();
            let mode: String = sqlx::query_scalar("SELECT @@sql_mode")
                .fetch_one(&lax)
                .await
                .unwrap();
            assert!(!mode.contains("STRICT"), "{mode}");
            guard_fails!(lax, MYSQL);
        });
    }
}

#[test]
fn mysql_guard_always_changes_the_row() {
    for database in mysql_and_mariadb() {
        run(async {
            let pool = MySqlPool::connect(&database.url()).await.unwrap();
            migrate(&pool).await.unwrap();
            let name = name();
            for expected in 0..3_i64 {
                let begun = Fence::new(&name, 7).begin(&pool).await.unwrap();
                begun.commit().await.unwrap();
                let guards =
                    sqlx::query_scalar("SELECT guards FROM leasehold_fence WHERE name = ?");
                let guards: i64 = guards.bind(&name).fetch_one(&pool).await.unwrap();
                assert_eq!(guards, expected);
            }
        });
    }
}

/// Prunes the fences below 100, as the documentation says, and asserts that
/// none of them accepts a stale token then.
macro_rules! prune {
    ($pool:expr, $statements:expr) => {{
        let pool = $pool;
        migrate(&pool).await.unwrap();
        let write = |name: &'static str, token| {
            let pool = pool.clone();
            let fence = Fence::new(name, token);
            async move { fence.begin(&pool).await?.commit().await }
        };
        write("old", 50).await.unwrap();
        write("new", 150).await.unwrap();
        pool.execute(AssertSqlSafe($statements)).await.unwrap();
        let names = "SELECT count(*) FROM leasehold_fence";
        let count: i64 = sqlx::query_scalar(names).fetch_one(&pool).await.unwrap();
        assert_eq!(count, 1);
        write("old", 49).await.unwrap_err();
        write("old", 101).await.unwrap();
        assert!(write("new", 149).await.unwrap_err().is_stale());
    }};
}

#[test]
fn pruned_fences_reject_older_tokens() {
    let floor = "ALTER TABLE leasehold_fence ADD CONSTRAINT floor_1 CHECK (token >= 100)";
    let delete = "DELETE FROM leasehold_fence WHERE token < 100";
    if let Some(database) = postgres() {
        run(async {
            let not_valid = format!("{floor} NOT VALID");
            let pool = PgPool::connect(&database.url()).await.unwrap();
            prune!(pool, format!("{not_valid}; {delete}"));
        });
    }
    for database in mysql_and_mariadb() {
        run(async {
            let pool = MySqlPool::connect(&database.url()).await.unwrap();
            let lock = "LOCK TABLES leasehold_fence WRITE";
            prune!(pool, format!("{lock}; {delete}; {floor}; UNLOCK TABLES"));
        });
    }
}
