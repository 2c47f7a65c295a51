//! The lock types: their contract, their options and what each adds to it.

pub(crate) mod conformance;
mod election;
mod hand_over;
mod inspect;
mod latch;
mod moving;
mod multi_lock;
mod mutex;
mod observe;
mod once;
mod outcomes;
mod redisson;
mod rw_lock;
mod secrets;
mod semaphore;
mod stress;
mod threads;
mod tokens;
