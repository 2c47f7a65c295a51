//! The Lua scripts: state before, call, reply, state after.

mod model;
mod queue;
mod quorum;
mod single_key;
