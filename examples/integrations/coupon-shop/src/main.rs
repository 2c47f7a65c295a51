//! A shop that sells coupons from several processes, to show what a lock and a
//! fence prevent.
//!
//! A sale reads the stock, charges the buyer's card at another service, and
//! writes the stock. No database transaction covers all three steps, so the
//! shop needs a lock. The modes differ in what protects a sale:
//!
//! | mode | protection |
//! |---|---|
//! | `none` | nothing |
//! | `lock` | a distributed lock around the sale |
//! | `fence` | the same lock, and transactions that reject a stale token |
//!
//! Run all modes with `examples/integrations/coupon-shop/run`. It starts three
//! processes, pauses one of them in the middle of a sale for longer than its
//! lease, and prints how many coupons were sold.
//!
//! To run one process yourself:
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 DATABASE_URL=postgres://127.0.0.1/shop \
//!     cargo run --release -- fence 127.0.0.1:3000
//! curl -X POST http://127.0.0.1:3000/buy
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use leasehold::{Client, Guard};
use leasehold_fence::{Fence, FenceError, FencedTransaction};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgExecutor, PgPool, PgTransaction, Postgres};
use tokio::net::TcpListener;

const COUPON: i64 = 42;
const STOCK: i64 = 1000;

/// Short, so that a demonstration takes seconds. The default is 30 s.
const LEASE: Duration = Duration::from_secs(1);

/// The time that the payment service takes to charge a card.
const PAYMENT: Duration = Duration::from_millis(5);

const SCHEMA: &str = "
    create table if not exists coupon (id bigint primary key, stock bigint not null);
    create table if not exists sale (id bigserial primary key, coupon bigint not null)";

type BoxError = Box<dyn Error + Send + Sync>;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    None,
    Lock,
    Fence,
}

struct Shop {
    mode: Mode,
    locks: Client,
    database: PgPool,
}

/// The outcome of a sale that did not fail.
enum Sale {
    Sold,
    SoldOut,
    /// The process no longer holds the lock. Nothing was sold.
    Refused,
}

impl Shop {
    async fn sell(&self) -> Result<Sale, BoxError> {
        if self.mode == Mode::None {
            return self.sell_protected_by(None).await;
        }
        let lock = self.locks.mutex(&format!("coupon:{COUPON}"));
        let guard = lock.lock().lease(LEASE).await?;
        let sale = self.sell_protected_by(Some(&guard)).await;
        // A lost lock is reported here too. The sale is already decided.
        let _ = guard.release().await;
        sale
    }

    async fn sell_protected_by(&self, guard: Option<&Guard>) -> Result<Sale, BoxError> {
        // With a fence, this first transaction raises it. An older holder can
        // no longer change the stock that is read here.
        let Some(mut tx) = self.begin(guard).await? else {
            return Ok(Sale::Refused);
        };
        let stock = match &mut tx {
            Transaction::Plain(tx) => read_stock(&mut **tx).await?,
            Transaction::Fenced(tx) => read_stock(tx).await?,
        };
        tx.commit().await?;
        if stock <= 0 {
            return Ok(Sale::SoldOut);
        }

        // This is the best that a lock alone can do. Another check after the
        // payment would shorten the gap, but a pause can follow any check.
        if guard.is_some_and(|guard| guard.check().is_err()) {
            return Ok(Sale::Refused);
        }
        charge_card().await;

        let Some(mut tx) = self.begin(guard).await? else {
            refund_card();
            return Ok(Sale::Refused);
        };
        match &mut tx {
            Transaction::Plain(tx) => write_sale(&mut **tx, stock - 1).await?,
            Transaction::Fenced(tx) => write_sale(tx, stock - 1).await?,
        }
        tx.commit().await?;
        Ok(Sale::Sold)
    }

    /// Begins a transaction; `None` if the fence rejects it.
    async fn begin(&self, guard: Option<&Guard>) -> Result<Option<Transaction>, BoxError> {
        let Some(guard) = guard.filter(|_| self.mode == Mode::Fence) else {
            return Ok(Some(Transaction::Plain(self.database.begin().await?)));
        };
        match Fence::of(guard).begin(&self.database).await {
            Ok(tx) => Ok(Some(Transaction::Fenced(tx))),
            Err(FenceError::Stale { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// A transaction of one of the modes. Your service has fenced ones only.
enum Transaction {
    Plain(PgTransaction<'static>),
    Fenced(FencedTransaction<Postgres>),
}

impl Transaction {
    async fn commit(self) -> Result<(), BoxError> {
        match self {
            Self::Plain(tx) => tx.commit().await?,
            Self::Fenced(tx) => tx.commit().await?,
        }
        Ok(())
    }
}

async fn read_stock(tx: impl PgExecutor<'_>) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("select stock from coupon where id = $1")
        .bind(COUPON)
        .fetch_one(tx)
        .await
}

async fn write_sale(tx: impl PgExecutor<'_>, stock: i64) -> Result<(), sqlx::Error> {
    let sale = "with sold as (insert into sale (coupon) values ($2))
        update coupon set stock = $1 where id = $2";
    let written = sqlx::query(sale).bind(stock).bind(COUPON).execute(tx).await;
    written.map(drop)
}

/// Stands for a call to a payment service, which no transaction can include.
async fn charge_card() {
    tokio::time::sleep(PAYMENT).await;
}

/// Stands for the reversal of [`charge_card`].
fn refund_card() {}

async fn buy(State(shop): State<Arc<Shop>>) -> (StatusCode, String) {
    match shop.sell().await {
        Ok(Sale::Sold) => (StatusCode::OK, "sold".to_owned()),
        Ok(Sale::SoldOut) => (StatusCode::GONE, "sold out".to_owned()),
        Ok(Sale::Refused) => (StatusCode::CONFLICT, "refused: try again".to_owned()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut args = std::env::args().skip(1);
    let mode = match args.next().as_deref() {
        Some("none") => Mode::None,
        Some("lock") => Mode::Lock,
        Some("fence") => Mode::Fence,
        _ => return Err("usage: coupon-shop none|lock|fence ADDRESS".into()),
    };
    let address = args.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let locks = Client::connect(&std::env::var("REDIS_URL")?).await?;
    let database = PgPoolOptions::new()
        .connect(&std::env::var("DATABASE_URL")?)
        .await?;
    prepare(&database).await?;

    let shop = Shop {
        mode,
        locks,
        database,
    };
    let routes = Router::new()
        .route("/buy", post(buy))
        .with_state(Arc::new(shop));
    axum::serve(TcpListener::bind(address).await?, routes).await?;
    Ok(())
}

/// Creates the tables, and the coupon unless another process has.
async fn prepare(database: &PgPool) -> Result<(), BoxError> {
    let mut tx = database.begin().await?;
    // `create table if not exists` fails if two processes run it at once.
    sqlx::query("select pg_advisory_xact_lock($1)")
        .bind(COUPON)
        .execute(&mut *tx)
        .await?;
    sqlx::raw_sql(SCHEMA).execute(&mut *tx).await?;
    sqlx::query("insert into coupon values ($1, $2) on conflict do nothing")
        .bind(COUPON)
        .bind(STOCK)
        .execute(&mut *tx)
        .await?;
    leasehold_fence::migrate(database).await?;
    tx.commit().await?;
    Ok(())
}
