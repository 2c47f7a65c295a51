//! Real servers and a faulty network for tests.
//!
//! [`Server`] is the published one; [`Setup`] configures it, [`Flavor`] names
//! its version, and [`ServerExt`] sends commands to it. [`Proxy`] forwards
//! requests between a client and a server, and injects network faults;
//! a [`SilentAddress`] drops all packets.
//! [`Database`] starts PostgreSQL or MariaDB, and [`Worker`] another process of
//! the test program. The crate does not depend on the library.

mod bus;
mod clock;
pub mod cluster;
mod database;
mod flavor;
mod peers;
pub mod proxy;
mod random;
pub mod redisson;
pub mod resp;
pub mod sentinel_group;
mod server_ext;
mod setup;
mod silent_address;
mod tls;
mod tools;
pub mod worker;

pub use cluster::Cluster;
pub use database::{Database, DatabaseKind};
pub use flavor::Flavor;
pub use leasehold_testkit::Server;
pub use peers::skip;
pub use proxy::{Fault, Proxy};
pub use random::{SeededRng, check_property, scaled};
pub use redisson::{Redisson, RedissonConfig};
pub use resp::{Connection, Reply};
pub use server_ext::ServerExt;
pub use setup::Setup;
pub use silent_address::SilentAddress;
pub use tools::tool;
pub use worker::Worker;
