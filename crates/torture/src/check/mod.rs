//! Checkers of histories. Each reports how many items it checked and which
//! violate its property, and has a test that shows it a violation.

pub(crate) mod connections;
pub(crate) mod exclusion;
pub(crate) mod hand_over;
pub(crate) mod leaks;
pub(crate) mod linearizability;
pub(crate) mod order;
mod outages;
pub(crate) mod service;
mod spans;
pub(crate) mod store;
pub(crate) mod tokens;
mod verdict;
pub(crate) mod waiting;

pub(crate) use verdict::Verdict;
