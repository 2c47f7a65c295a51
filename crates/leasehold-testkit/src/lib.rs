//! A real Redis or Valkey server for each test.
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod builder;
mod error;
#[cfg(unix)]
mod orphan;
mod port;
mod process;
mod program;
mod ready;
mod server;

pub use builder::ServerBuilder;
pub use error::StartError;
pub use port::Port;
pub use server::Server;
