//! Queries on a fenced transaction. They observe every error, and refuse to run
//! after one.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use sqlx::{Database, Describe, Either, Error, Execute, Executor, SqlStr};

use crate::sql::{self, Dialect};
use crate::transaction::{FencedDatabase, FencedTransaction, Progress, sealed};

type Item<DB> = Either<<DB as Database>::QueryResult, <DB as Database>::Row>;

/// The stream or future of a statement, observed for errors.
struct Observed<'e, S> {
    /// The refusal, until it is returned, if an earlier statement forbids this
    /// one.
    statement: Result<S, Option<Error>>,
    progress: &'e mut Progress,
}

impl<'e, S> Observed<'e, S> {
    fn new(statement: S, progress: &'e mut Progress) -> Self {
        let statement = match *progress {
            Progress::Ready => Ok(statement),
            refused => Err(Some(Error::InvalidArgument(refused.refusal().to_owned()))),
        };
        Self {
            statement,
            progress,
        }
    }

    /// Nothing is sent before the first poll, so a statement that was dropped
    /// without one does no harm.
    fn started(&mut self) {
        if *self.progress == Progress::Ready {
            *self.progress = Progress::Running;
        }
    }

    fn ended(&mut self, is_ok: bool) {
        // A stream can be polled after its error. That doesn't undo the error.
        if *self.progress == Progress::Running {
            *self.progress = match is_ok {
                true => Progress::Ready,
                false => Progress::Failed,
            };
        }
    }
}

impl<T> Stream for Observed<'_, BoxStream<'_, Result<T, Error>>> {
    type Item = Result<T, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.started();
        let item = match &mut self.statement {
            Ok(stream) => stream.as_mut().poll_next(cx),
            Err(refusal) => return Poll::Ready(refusal.take().map(Err)),
        };
        match item {
            Poll::Ready(None) => self.ended(true),
            Poll::Ready(Some(Err(_))) => self.ended(false),
            _ => {}
        }
        item
    }
}

impl<T> Future for Observed<'_, BoxFuture<'_, Result<T, Error>>> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.started();
        let output = match &mut self.statement {
            Ok(future) => future.as_mut().poll(cx),
            Err(refusal) => {
                let refusal = refusal.take().expect("not polled after its end");
                return Poll::Ready(Err(refusal));
            }
        };
        if let Poll::Ready(output) = &output {
            self.ended(output.is_ok());
        }
        output
    }
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
}

/// Reads a statement's results to the end, and returns the first row.
async fn first_row<Done, Row>(
    mut results: impl Stream<Item = Result<Either<Done, Row>, Error>> + Unpin,
) -> Result<Option<Row>, Error> {
    let mut first = None;
    while let Some(result) = next(&mut results).await {
        if let Either::Right(row) = result? {
            first.get_or_insert(row);
        }
    }
    Ok(first)
}

macro_rules! database {
    (
        $feature:literal, $database:ty, $dialect:expr, $begin:literal,
        reads_to_end: $reads_to_end:literal, survives_drop: $survives_drop:literal
    ) => {
        #[cfg(feature = $feature)]
        impl FencedDatabase for $database {}

        #[cfg(feature = $feature)]
        impl sealed::Guarded for $database {
            const DIALECT: Dialect = $dialect;
            const BEGIN: &'static str = concat!($begin, "; SAVEPOINT leasehold_fence");
            const SURVIVES_DROP: bool = $survives_drop;

            async fn run(
                connection: &mut Self::Connection,
                statements: &'static str,
            ) -> Result<(), (usize, Error)> {
                let mut results = connection.execute_many(statements);
                let mut succeeded = 0;
                while let Some(result) = next(&mut results).await {
                    result.map_err(|error| (succeeded, error))?;
                    succeeded += 1;
                }
                Ok(())
            }

            async fn guard(
                connection: &mut Self::Connection,
                name: &str,
                token: i64,
            ) -> Result<(), Error> {
                let guard = sqlx::query(Self::DIALECT.guard).bind(name).bind(token);
                guard.execute(connection).await.map(drop)
            }

            async fn read_back(
                connection: &mut Self::Connection,
                name: &str,
            ) -> Result<i64, Error> {
                let read_back = sqlx::query_scalar(Self::DIALECT.read_back).bind(name);
                read_back.fetch_one(connection).await
            }

            async fn probe(pool: &sqlx::Pool<Self>) -> Result<(), Error> {
                let probe = "SELECT name, token FROM leasehold_fence WHERE 1 = 0";
                pool.execute(probe).await.map(drop)
            }

            async fn create(pool: &sqlx::Pool<Self>) -> Result<(), Error> {
                pool.execute(Self::DIALECT.schema).await.map(drop)
            }
        }

        #[cfg(feature = $feature)]
        impl<'c> Executor<'c> for &'c mut FencedTransaction<$database> {
            type Database = $database;

            fn fetch_many<'e, 'q: 'e, E>(
                self,
                query: E,
            ) -> BoxStream<'e, Result<Item<$database>, Error>>
            where
                'c: 'e,
                E: 'q + Execute<'q, $database>,
            {
                let (connection, progress) = self.parts();
                Box::pin(Observed::new(connection.fetch_many(query), progress))
            }

            fn fetch_optional<'e, 'q: 'e, E>(
                self,
                query: E,
            ) -> BoxFuture<'e, Result<Option<<$database as Database>::Row>, Error>>
            where
                'c: 'e,
                E: 'q + Execute<'q, $database>,
            {
                if $reads_to_end {
                    return Box::pin(first_row(self.fetch_many(query)));
                }
                let (connection, progress) = self.parts();
                Box::pin(Observed::new(connection.fetch_optional(query), progress))
            }

            fn prepare_with<'e>(
                self,
                sql: SqlStr,
                parameters: &'e [<$database as Database>::TypeInfo],
            ) -> BoxFuture<'e, Result<<$database as Database>::Statement, Error>>
            where
                'c: 'e,
            {
                let (connection, progress) = self.parts();
                let prepared = connection.prepare_with(sql, parameters);
                Box::pin(Observed::new(prepared, progress))
            }

            fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<$database>, Error>>
            where
                'c: 'e,
            {
                let (connection, progress) = self.parts();
                Box::pin(Observed::new(connection.describe(sql), progress))
            }
        }
    };
}

database!(
    "sqlx-postgres", sqlx::Postgres, sql::POSTGRES, "BEGIN",
    reads_to_end: false, survives_drop: true
);
// The driver returns the first row before it has read the rest, which can be an
// error that has ended the transaction. It also takes the reply to a dropped
// `PREPARE` for that of the next statement.
database!(
    "sqlx-mysql", sqlx::MySql, sql::MYSQL, "BEGIN",
    reads_to_end: true, survives_drop: false
);
database!(
    "sqlx-sqlite", sqlx::Sqlite, sql::SQLITE, "BEGIN IMMEDIATE",
    reads_to_end: false, survives_drop: true
);
