//! Tokens as the server counts them.

use super::Call;
use super::call::first;
use super::script::script;
use crate::backend::{Failure, Reply};
use crate::owner::Token;

script!(RAISE, "token/raise.lua");

/// Raises `counter` to the server's clock, and to `floor`, and takes the next token from there.
pub(super) fn raise(counter: &str, floor: u64) -> Call<Token> {
    let floor = floor.to_string();
    Call::script(
        &RAISE,
        &[counter.as_bytes()],
        &[floor.as_bytes()],
        |replies| read(&first("a token", replies)?),
    )
}

/// The first of several, or nothing for 0.
pub(super) fn read_first(replies: Vec<Reply>) -> Result<Option<Token>, Failure> {
    let token = read(&first("tokens", replies)?)?;
    Ok((token.as_u64() > 0).then_some(token))
}

pub(super) fn read(reply: &Reply) -> Result<Token, Failure> {
    reply
        .int()
        .and_then(|number| u64::try_from(number).ok())
        .map(Token::new)
        .ok_or_else(|| Failure::malformed("a token", std::slice::from_ref(reply)))
}
