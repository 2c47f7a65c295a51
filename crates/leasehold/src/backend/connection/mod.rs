//! Connections to one server.
//!
//! [`RedisConnection`] is one authenticated connection. Below it, `wire` reads
//! and writes the socket, `matching` assigns replies to requests, `resp`
//! decodes, and `endpoint`, `dial`, `tls` and `handshake` connect and log in,
//! which `reauthenticate` repeats.
//!
//! [`NodeConnections`] is everything that a client opens to one node: the
//! keeper's connection with its subscriptions (`pubsub`), and for the callers
//! on each runtime (`callers`) a connection (`shared`). Pools wait for replicas
//! (`replicated`).

mod callers;
mod channels;
mod dial;
mod endpoint;
mod handshake;
mod matching;
mod node;
mod opened;
mod outgoing;
mod pubsub;
mod reauthenticate;
mod reconnect;
mod redis_connection;
mod replicated;
mod request;
mod resp;
mod shared;
mod socket;
mod tls;
mod wire;

pub(crate) use endpoint::{ConnectOptions, Endpoint};
pub(crate) use handshake::Role;
pub(crate) use matching::PushEvent;
pub(crate) use node::NodeConnections;
pub(crate) use pubsub::OnStateChange;
pub(crate) use redis_connection::RedisConnection;
