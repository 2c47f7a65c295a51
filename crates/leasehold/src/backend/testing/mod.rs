//! Backends for tests.

pub(crate) mod scripted;
pub(crate) mod simulated;
