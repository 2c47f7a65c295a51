//! A lock that is one string key, the same one that every `SET NX PX` recipe
//! uses.
//!
//! An acquire is `SET … NX GET PX` and `INCR` of the slot's token counter, in
//! one round trip. A release is the cheapest compare-and-delete that the server
//! has, and a publish.

use std::time::Duration;

use super::call::{Call, read, read_done};
use super::keys::{LockKeys, LockName};
use super::kind::{ChannelName, HandOver, Kind, Notified, WaitStrategy};
use super::outcome::{
    AcquireReply, AdoptReply, HandOverReply, LockStatus, LockValue, ReleaseReply, RenewReply,
};
use super::pttl::{poll_key, remaining};
use super::record::{self, Description, Form};
use super::script::{digits, millis, script};
use super::token::{self, TokenBlock};
use crate::backend::{Batch, Capabilities, Reply, RequestError, ServerError};
use crate::info::Holder;
use crate::options::millis_up;
use crate::owner::{Owner, Token};
use crate::ticket::TicketKind;

script!(RENEW, "single_key/renew.lua");
script!(RELEASE, "single_key/release.lua");
script!(REPLACE, "single_key/replace.lua");
script!(RESERVE_TOKENS, "single_key/reserve_tokens.lua");
script!(ADOPT, "single_key/adopt.lua");

/// The calls of a lock that is one string key.
#[derive(Debug)]
pub(crate) struct SingleKey {
    keys: LockKeys,
}

impl SingleKey {
    pub(crate) fn new(keys: LockKeys) -> Self {
        Self { keys }
    }

    /// Releases the lock once `hold_for` is over.
    fn release_after(&self, value: &[u8], hold_for: Duration) -> Call<ReleaseReply> {
        let command = release_after(self.key(), value, hold_for);
        Call::new(command, read_release)
    }
}

impl Kind for SingleKey {
    fn label(&self) -> &'static str {
        "mutex"
    }

    fn lock(&self) -> &LockName {
        &self.keys.lock
    }

    fn value(&self, owner: &Owner, description: Description<'_>) -> LockValue {
        record::write(owner, description)
    }

    fn acquire(&self, value: &LockValue, lease: Duration, want_ttl: bool) -> Call<AcquireReply> {
        // Both commands leave together, so an acquire that finds the lock busy
        // also takes a token. Tokens need to rise, not to be dense.
        let commands = acquire(self.keys.lock(), &self.keys.counter, value, lease, want_ttl);
        let value = value.clone();
        Call::new(commands, move |replies| {
            match read_acquire(&value, &replies)? {
                SetReply::Acquired(reply) => Ok(reply),
                SetReply::Found { value, pttl } => match Form::of(value) {
                    Form::Mutex | Form::Foreign => Ok(busy(value, pttl)),
                    // `SET NX` respects it, but a mutex and a queue of one name
                    // would not wait for each other.
                    Form::Alone(_) | Form::Queue(_) => Err(RequestError::Refused(another_kind())),
                },
            }
        })
    }

    fn renew(&self, value: &[u8], lease: Duration) -> Call<RenewReply> {
        let renew = renew(self.keys.lock(), value, lease);
        Call::new(renew, |replies| match read_renewal(replies)? {
            Comparison::Equal => Ok(RenewReply::Renewed),
            Comparison::Free | Comparison::Different => Ok(RenewReply::NotOwner),
        })
    }

    fn release(
        &self,
        value: &[u8],
        hold_for: Option<Duration>,
        server: Capabilities,
    ) -> Call<ReleaseReply> {
        if let Some(hold_for) = hold_for {
            return self.release_after(value, hold_for);
        }
        let Some(compare_and_delete) = compare_and_delete(self.keys.lock(), value, server) else {
            let keys = [self.keys.lock().as_bytes()];
            return Call::script(
                &RELEASE,
                &keys,
                &[value, self.keys.channel().as_bytes()],
                read_release,
            );
        };
        // Sent even if we are not the owner: a wake-up too many costs a waiter
        // one attempt.
        let publish = compare_and_delete.then(server.publish());
        Call::new(publish.arg(self.keys.channel()).arg(""), read_release)
    }

    fn holder(&self) -> Call<Option<Holder>> {
        let get = Batch::new("GET").arg(self.keys.lock());
        let commands = get.then("PTTL").arg(self.keys.lock());
        Call::new(commands, |replies| match replies.as_slice() {
            [Reply::Refused(refusal), ..] => Err(RequestError::Refused(refusal.clone())),
            [Reply::Nil, _] => Ok(None),
            [Reply::Bytes(value), pttl] => Ok(Some(holder(value, Some(pttl)))),
            _ => Err(RequestError::malformed("GET", &replies)),
        })
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }

    fn raise_token(&self, floor: u64) -> Option<Call<Token>> {
        Some(token::raise(&self.keys.counter, floor))
    }

    fn handoff_holder(&self, value: &[u8]) -> Option<Holder> {
        Some(record::read(value))
    }

    fn reserve_tokens(
        &self,
        value: &[u8],
        count: u64,
        own: Token,
    ) -> Option<Call<Option<TokenBlock>>> {
        let keys = [self.key(), self.keys.counter.as_bytes()];
        let args = [value, &digits(count), &digits(own.as_u64())];
        Some(Call::script(
            &RESERVE_TOKENS,
            &keys,
            &args,
            token::read_block,
        ))
    }

    fn hand_over(&self) -> Option<&dyn HandOver> {
        Some(self)
    }
}

impl HandOver for SingleKey {
    fn ticket_kind(&self) -> TicketKind {
        TicketKind::Mutex
    }

    fn pending_value(&self, value: &[u8], owner: &Owner, token: Token) -> LockValue {
        record::handed_over(value, owner, token).into()
    }

    fn hand_over(
        &self,
        value: &[u8],
        pending: &[u8],
        _token: Token,
        within: Duration,
    ) -> Call<HandOverReply> {
        let command = replace(self.key(), value, within, pending);
        Call::new(command, read_done).map(|done| match done {
            true => HandOverReply::HandedOver,
            false => HandOverReply::NotOwner,
        })
    }

    fn adopt(&self, pending: &Owner, value: &LockValue, lease: Duration) -> Call<AdoptReply> {
        let keys = [self.key(), self.keys.counter.as_bytes()];
        let pending = pending.to_string();
        let args = [pending.as_bytes(), value, &millis(lease)];
        let adoption = |reply: &Reply| match reply {
            Reply::Int(0) => Some(AdoptReply::Spent),
            number => token::token_in(number).map(|token| AdoptReply::Adopted { token }),
        };
        Call::script(&ADOPT, &keys, &args, read("an adoption", adoption))
    }
}

impl Notified for SingleKey {
    fn channel_name(&self) -> ChannelName<'_> {
        ChannelName::sharded(self.keys.channel())
    }

    fn poll(&self) -> Call<LockStatus> {
        poll_key(self.key())
    }
}

/// The replies to `SET NX GET` and `INCR`.
pub(super) enum SetReply<'a> {
    /// The key holds the caller's value.
    Acquired(AcquireReply),
    /// The key holds this other value.
    Found {
        value: &'a [u8],
        /// The reply to `PTTL`, if it was sent.
        pttl: Option<&'a Reply>,
    },
}

/// How the stored value compares with the caller's.
pub(super) enum Comparison {
    Equal,
    Different,
    /// The key does not exist.
    Free,
}

/// Returns the commands that acquire a lock that is a plain string.
pub(super) fn acquire(
    lock: &str,
    counter: &str,
    value: &[u8],
    lease: Duration,
    want_ttl: bool,
) -> Batch {
    let set = Batch::new("SET").arg(lock).arg(value);
    // `GET` returns the holder's value with the refusal, which saves a request.
    let set = set.arg("NX").arg("GET").arg("PX").number(millis_up(lease));
    let commands = set.then("INCR").arg(counter);
    match want_ttl {
        true => commands.then("PTTL").arg(lock),
        false => commands,
    }
}

/// Returns the command that renews a lock that is a plain string.
pub(super) fn renew(lock: &str, value: &[u8], lease: Duration) -> Batch {
    RENEW.call(&[lock.as_bytes()], &[value, &millis(lease)])
}

/// Returns the command that releases a lock once `hold_for` is over.
pub(super) fn release_after(lock: &[u8], value: &[u8], hold_for: Duration) -> Batch {
    replace(lock, value, hold_for, &record::released(value))
}

/// Returns the command that replaces a lock's value, and frees the lock once
/// `hold_for` is over.
fn replace(lock: &[u8], value: &[u8], hold_for: Duration, by: &[u8]) -> Batch {
    REPLACE.call(&[lock], &[value, &millis(hold_for), by])
}

/// Returns the server's command that deletes a lock that is a plain string;
/// `None` if it has none.
pub(super) fn compare_and_delete(lock: &str, value: &[u8], server: Capabilities) -> Option<Batch> {
    if server.delex {
        Some(Batch::new("DELEX").arg(lock).arg("IFEQ").arg(value))
    } else if server.delifeq {
        Some(Batch::new("DELIFEQ").arg(lock).arg(value))
    } else {
        None
    }
}

/// Returns the error for a key that holds another kind of lock.
pub(super) fn another_kind() -> ServerError {
    ServerError::new("WRONGTYPE", "the key holds another kind of lock")
}

/// Reads the replies to [`acquire`]. The `SET` decides who holds the lock.
pub(super) fn read_acquire<'a>(
    value: &[u8],
    replies: &'a [Reply],
) -> Result<SetReply<'a>, RequestError> {
    match replies {
        [Reply::Refused(refusal), ..] => Err(RequestError::Refused(refusal.clone())),
        // Our own value means that an earlier request acquired the lock, and
        // that its reply was lost.
        [Reply::Bytes(found), _, rest @ ..] if found != value => Ok(SetReply::Found {
            value: found,
            pttl: rest.first(),
        }),
        // The lock is ours but has no token: the server ran out of memory in
        // between, or an ACL denies the counter.
        [Reply::Nil | Reply::Bytes(_), Reply::Refused(refusal), ..] => {
            let refusal = refusal.clone();
            Ok(SetReply::Acquired(AcquireReply::Unusable { refusal }))
        }
        [Reply::Nil | Reply::Bytes(_), number, ..] => {
            let token = token::token_in(number);
            let token = token.ok_or_else(|| RequestError::malformed("INCR", replies))?;
            Ok(SetReply::Acquired(AcquireReply::Held { token }))
        }
        _ => Err(RequestError::malformed("SET", replies)),
    }
}

/// Returns the outcome of an acquire that found another owner's value.
pub(super) fn busy(value: &[u8], pttl: Option<&Reply>) -> AcquireReply {
    AcquireReply::Busy {
        holder: holder(value, pttl),
    }
}

pub(super) fn read_renewal(replies: Vec<Reply>) -> Result<Comparison, RequestError> {
    read("a renewal", |reply| match reply.int()? {
        1 => Some(Comparison::Equal),
        0 => Some(Comparison::Free),
        -1 => Some(Comparison::Different),
        _ => None,
    })(replies)
}

/// Reads the replies to a compare-and-delete and a publish, or the reply to a
/// script that does both.
fn read_release(replies: Vec<Reply>) -> Result<ReleaseReply, RequestError> {
    let notified = replies.get(1).and_then(Reply::int);
    read("a release", |reply| match reply.int()? {
        // The script returns one more than it notified; a plain command has
        // the reply to its publish behind it.
        released @ 1.. => Some(ReleaseReply::Released {
            notified: notified.unwrap_or(released - 1).unsigned_abs(),
        }),
        // DELEX and DELIFEQ return -1 for a key that does not exist.
        0 | -1 => Some(ReleaseReply::NotOwner),
        _ => None,
    })(replies)
}

fn holder(value: &[u8], pttl: Option<&Reply>) -> Holder {
    Holder {
        lease_remaining: pttl.and_then(Reply::int).and_then(remaining),
        ..record::read(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::Messages;
    use crate::protocol::keys::{Counters, Keyspace};

    const LEASE: Duration = Duration::from_secs(30);

    fn lock() -> SingleKey {
        SingleKey::new(
            Keyspace::new("lock:", Counters::one())
                .unwrap()
                .lock("job")
                .unwrap(),
        )
    }

    fn commands<R>(call: Call<R>) -> Vec<String> {
        let batch = call.into_batch();
        let words = |index| {
            let args = batch.args(index).map(String::from_utf8_lossy);
            args.collect::<Vec<_>>().join(" ")
        };
        (0..batch.len()).map(words).collect()
    }

    fn me() -> LockValue {
        LockValue::from(&b"me"[..])
    }

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn acquire_sends_two_plain_commands() {
        assert_eq!(
            commands(lock().acquire(&me(), LEASE, false)),
            [
                "SET lock:job me NX GET PX 30000",
                &format!("INCR {}", lock().keys.counter)
            ]
        );
    }

    #[test]
    fn set_alone_decides_who_holds() {
        for (replies, expected) in [
            (
                vec![Reply::Nil, Reply::Int(7)],
                AcquireReply::Held {
                    token: Token::new(7),
                },
            ),
            (
                vec![bytes("me"), Reply::Int(8)],
                AcquireReply::Held {
                    token: Token::new(8),
                },
            ),
            (
                vec![bytes("you"), Reply::Int(9)],
                AcquireReply::Busy {
                    holder: Holder::default(),
                },
            ),
            (
                vec![bytes("you"), Reply::Int(9), Reply::Int(250)],
                AcquireReply::Busy {
                    holder: Holder {
                        lease_remaining: Some(Duration::from_millis(250)),
                        ..Holder::default()
                    },
                },
            ),
        ] {
            let call = lock().acquire(&me(), LEASE, false);
            assert_eq!(call.read(replies).unwrap(), expected);
        }
    }

    #[test]
    fn lock_without_token_is_unusable() {
        let refusal = ServerError::new("OOM", "command not allowed");
        let refused = Reply::Refused(refusal.clone());
        let acquire = || lock().acquire(&me(), LEASE, false);
        let without_token = acquire().read(vec![Reply::Nil, refused.clone()]);
        assert_eq!(without_token.unwrap(), AcquireReply::Unusable { refusal });
        let not_held = acquire().read(vec![refused, Reply::Int(1)]);
        assert!(matches!(not_held, Err(RequestError::Refused(_))));
    }

    #[test]
    fn release_uses_the_best_command_available() {
        let channel = lock().keys.channel().to_owned();
        let release = |capabilities| commands(lock().release(b"me", None, capabilities));
        let delex = Capabilities {
            delex: true,
            ..Capabilities::default()
        };
        let delifeq = Capabilities {
            delifeq: true,
            ..Capabilities::default()
        };
        assert_eq!(
            release(delex),
            ["DELEX lock:job IFEQ me", &format!("SPUBLISH {channel} ")]
        );
        assert_eq!(
            release(delifeq),
            ["DELIFEQ lock:job me", &format!("SPUBLISH {channel} ")]
        );
        let classic = Capabilities {
            messages: Messages::Classic,
            ..delex
        };
        assert_eq!(
            release(classic),
            ["DELEX lock:job IFEQ me", &format!("PUBLISH {channel} ")]
        );
        assert!(release(Capabilities::default())[0].starts_with("EVALSHA "));
    }
}
