//! The protocol by which a majority of independent nodes keeps a lock, small enough to try every order of events.
//!
//! The protocol itself is in `crates/leasehold/lua/quorum` and `crates/leasehold/src/protocol/tally.rs`; this is its shape: who
//! asks whom under which token, what a node remembers, and what may happen in between. Messages are delayed,
//! reordered and lost at will, clients choose their tokens from clocks that say anything, and nodes are started
//! again without their data. Time is left out except for what the leases promise: a node forgets a holder only
//! when that holder has stopped counting on it.
//!
//! See `tests/exhaustive.rs` for what is checked, among them two schemes that are wrong.
