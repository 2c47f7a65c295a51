//! A model of the quorum protocol, small enough to check every order of events.
//!
//! The protocol itself is in `crates/leasehold/lua/quorum` and
//! `crates/leasehold/src/protocol/tally.rs`. The model covers which client
//! sends which token to which node, what a node remembers, and what may happen
//! in between. Messages are delayed, reordered and lost. Clients choose their
//! tokens arbitrarily, as from unsynchronized clocks. Nodes restart without
//! their data. The model omits time except for what leases guarantee: a node
//! forgets a holder only after that holder has stopped relying on it.
//!
//! See `tests/exhaustive` for the model and the properties. It includes two
//! schemes that are wrong, to show that the check detects them.
