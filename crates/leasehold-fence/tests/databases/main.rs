//! Fences on real databases, and the variants that do not work.
//!
//! SQLite is always tested. The other databases are skipped where they are not
//! installed, unless `LEASEHOLD_DATABASES` requires them.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cost;
mod ended;
mod guard;
mod paused_holder;
mod stress;
mod support;
mod table;
mod wrong;
