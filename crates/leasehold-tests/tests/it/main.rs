//! What the library does against real servers, with their faults. One module per promise.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod contract;
mod deployment;
mod hand_over;
mod support;
mod worker;

/// A dropped acquire leaves nothing behind.
mod cancel;
/// Clocks that jump.
mod clock;
/// Slots that move, and masters that die.
mod cluster;
/// What every kind must do, on every server found.
mod conformance;
/// Addresses, credentials, TLS, outages.
mod connections;
/// Failovers that lose writes, with and without acknowledgement.
mod failover;
/// What many clients cost a server that do nothing, and that all come back.
mod fleet;
/// Sharing a key with other libraries.
mod foreign;
/// Tasks of one process leave a lock to each other.
mod hand_on;
/// Who holds what, and locks taken by force.
mod inspect;
/// A latch is counted once per caller and opened for all.
mod latch;
/// A full server, and clients that live long.
mod limits;
/// Locks with a line are served in order, at constant cost, whoever dies.
mod line;
/// A lease that cannot be kept is told in time.
mod loss;
/// The scripts of the queue do what a plain model of it does.
mod misalign;
mod model;
/// Several locks as one.
mod multi_lock;
/// Reentrant handles, the holder, names and keys of a mutex.
mod mutex;
/// The scripts of locks with a line: state before, call, answer, state after.
mod queue_scripts;
/// A majority of five.
mod quorum;
/// The scripts of a quorum's nodes: state before, call, answer, state after.
mod quorum_scripts;
/// What the README shows works, and secrets stay secret.
mod readme;
/// Sharing Redisson's objects with a real Redisson.
mod redisson;
/// One test per bug that was found and fixed.
mod regressions;
/// Readers together, writers alone, neither starves.
mod rw_lock;
/// Each Lua file: state before, call, answer, state after.
mod scripts;
/// Permits are conserved.
mod semaphore;
/// A master that changes.
mod sentinel;
/// A blocked application loses nothing.
mod starvation;
/// Tokens rise whatever happens to the data.
mod tokens;
/// Lost, late and repeated messages make no second holder and no orphan.
mod unknown;
/// A release reaches the next holder at once, and waiting costs little.
mod wakeups;
