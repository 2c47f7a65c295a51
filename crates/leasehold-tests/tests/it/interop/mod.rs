//! Locks shared with other lock libraries.

mod redisson;
mod single_key;
