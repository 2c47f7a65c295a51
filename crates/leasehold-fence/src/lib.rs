//! Fencing tokens that the resource enforces.
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
#[cfg(feature = "_sqlx")]
mod executor;
mod fence;
#[cfg(feature = "tokio-postgres")]
mod postgres;
pub mod redis;
pub mod sql;
#[cfg(feature = "_sqlx")]
mod transaction;

pub use error::{BoxError, FenceError};
pub use fence::Fence;
#[cfg(feature = "tokio-postgres")]
pub use postgres::PostgresTransaction;
#[cfg(feature = "_sqlx")]
pub use transaction::{FencedDatabase, FencedTransaction, migrate};
