//! The Lua scripts: state before, call, reply, state after.

mod latch;
mod model;
mod queue;
mod quorum;
mod single_key;

use testkit::Answer;

fn is_error(answer: &Answer, code: &str) -> bool {
    matches!(answer, Answer::Error(error) if error.contains(code))
}
