//! The Lua scripts: state before, call, reply, state after.

mod latch;
mod model;
mod once;
mod queue;
mod quorum;
mod single_key;

use testkit::Reply;

fn is_error(answer: &Reply, code: &str) -> bool {
    matches!(answer, Reply::Error(error) if error.contains(code))
}
