//! Tokens from the server's counter.

use super::call::{Call, first};
use super::script::script;
use crate::backend::{Reply, RequestError};
use crate::owner::Token;

script!(RAISE, "token/raise.lua");

/// Raises `counter` to the server's clock and to `floor`, and takes the next
/// token.
pub(super) fn raise(counter: &str, floor: u64) -> Call<Token> {
    let floor = floor.to_string();
    Call::script(
        &RAISE,
        &[counter.as_bytes()],
        &[floor.as_bytes()],
        |replies| read(&first("a token", replies)?),
    )
}

/// Consecutive tokens, reserved together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenBlock {
    pub(crate) first: Token,
    /// The number of tokens, at least one.
    pub(crate) count: u64,
}

/// Reads the first token and the count, or 0 for none.
pub(super) fn read_block(replies: Vec<Reply>) -> Result<Option<TokenBlock>, RequestError> {
    match first("tokens", replies)? {
        Reply::Int(0) => Ok(None),
        reply => match reply.list() {
            Some([first, Reply::Int(count @ 1..)]) => Ok(Some(TokenBlock {
                first: read(first)?,
                count: count.unsigned_abs(),
            })),
            _ => Err(RequestError::malformed("tokens", &[reply])),
        },
    }
}

pub(super) fn read(reply: &Reply) -> Result<Token, RequestError> {
    reply
        .int()
        .and_then(|number| u64::try_from(number).ok())
        .map(Token::new)
        .ok_or_else(|| RequestError::malformed("a token", std::slice::from_ref(reply)))
}
