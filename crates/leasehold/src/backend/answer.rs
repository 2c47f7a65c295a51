//! What the driver's answers and errors mean here.

use redis::{RedisError, Value};

use super::reply::{Failure, Refusal, Reply};

pub(super) fn reply_of(value: Value) -> Reply {
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::Boolean(truth) => Reply::Int(i64::from(truth)),
        Value::BulkString(bytes) => Reply::Bytes(bytes),
        Value::SimpleString(text) => Reply::Bytes(text.into_bytes()),
        Value::VerbatimString { text, .. } => Reply::Bytes(text.into_bytes()),
        Value::Okay => Reply::Bytes(b"OK".to_vec()),
        Value::Array(items) | Value::Set(items) => {
            Reply::List(items.into_iter().map(reply_of).collect())
        }
        Value::Map(pairs) => Reply::List(
            pairs
                .into_iter()
                .flat_map(|(key, value)| [reply_of(key), reply_of(value)])
                .collect(),
        ),
        Value::ServerError(error) => Reply::Refused(Refusal::new(
            error.code(),
            error.details().unwrap_or_default(),
        )),
        other => Reply::Bytes(format!("{other:?}").into_bytes()),
    }
}

/// Only an error with a server's code proves that the server answered.
pub(super) fn failure_of(error: &RedisError) -> Failure {
    match (error.kind(), error.code()) {
        (redis::ErrorKind::AuthenticationFailed, _) => Failure::Refused(Refusal::new(
            "WRONGPASS",
            error.detail().unwrap_or("the credentials were refused"),
        )),
        (_, Some(code)) => Failure::Refused(Refusal::new(code, error.detail().unwrap_or_default())),
        _ => Failure::Unknown(error.to_string().into()),
    }
}
