//! Tokens from the server's counter.

use super::call::{Call, read};
use super::script::{digits, script};
use crate::backend::{Reply, RequestError};
use crate::owner::Token;

script!(RAISE, "token/raise.lua");

/// Raises `counter` to the server's clock and to `floor`, and takes the next
/// token.
pub(crate) fn raise(counter: &str, floor: u64) -> Call<Token> {
    let keys = [counter.as_bytes()];
    Call::script(&RAISE, &keys, &[&digits(floor)], read("a token", token_in))
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
    let block = |reply: &Reply| match reply.list()? {
        // Perhaps fewer than requested, where the clock allows fewer.
        [first, Reply::Int(count @ 1..)] => Some(TokenBlock {
            first: token_in(first)?,
            count: count.unsigned_abs(),
        }),
        _ => None,
    };
    read("tokens", |reply| match reply {
        Reply::Int(0) => Some(None),
        reply => block(reply).map(Some),
    })(replies)
}

/// Returns the token that a reply contains.
pub(crate) fn token_in(reply: &Reply) -> Option<Token> {
    u64::try_from(reply.int()?).ok().map(Token::new)
}
