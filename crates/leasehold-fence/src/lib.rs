//! Fencing tokens that the resource enforces.
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
mod fence;
#[cfg(feature = "tokio-postgres")]
mod postgres;
pub mod redis;
pub mod sql;
#[cfg(any(
    feature = "sqlx-postgres",
    feature = "sqlx-mysql",
    feature = "sqlx-sqlite"
))]
mod transaction;

pub use error::{BoxError, FenceError};
pub use fence::Fence;
#[cfg(any(
    feature = "sqlx-postgres",
    feature = "sqlx-mysql",
    feature = "sqlx-sqlite"
))]
pub use transaction::{Database, migrate};
