//! Backends for tests: scripted replies, and a simulated server and network.

pub(crate) mod scripted;
pub(crate) mod simulated;
