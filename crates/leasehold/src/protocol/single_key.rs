//! The lean family: a lock that is one string key, the same that every `SET NX PX` recipe uses.
//!
//! Acquiring is `SET … NX GET PX` and `INCR` of the slot's token counter in one round trip; releasing
//! is the cheapest compare-and-delete the server has, and a publish.

use std::time::Duration;

use super::call::first;
use super::keys::LockKeys;
use super::pttl::{glance_at, time_left};
use super::record::{self, Form};
use super::script::{digits, script};
use super::token;
use super::{
    AcquireReply, Call, ChannelName, Keys, Kind, LocalHandoff, LockStatus, LockValue, Notified,
    ReleaseReply, RenewReply, TokenBlock, WaitStrategy,
};
use crate::backend::{Capabilities, Command, Reply, RequestError, ServerError};
use crate::info::Holder;
use crate::options::millis_up;
use crate::owner::{Owner, Token};

script!(RENEW, "single_key/renew.lua");
script!(RELEASE, "single_key/release.lua");
script!(KEEP, "single_key/release_after.lua");
script!(TOKENS, "single_key/reserve_tokens.lua");

/// The calls of one lock of this family.
#[derive(Debug)]
pub(crate) struct SingleKey {
    keys: LockKeys,
}

impl SingleKey {
    pub(crate) fn new(keys: LockKeys) -> Self {
        Self { keys }
    }

    /// Leaves the lock to end by itself `left` from now, if it is ours.
    fn keep(&self, mark: &[u8], left: Duration) -> Call<ReleaseReply> {
        let args = [mark, &digits(millis_up(left)), &record::kept(mark)];
        Call::script(&KEEP, &[self.key()], &args, read_release)
    }
}

/// A release is the cheapest compare-and-delete that the server has.
impl Kind for SingleKey {
    fn keys(&self) -> &dyn Keys {
        &self.keys
    }

    fn value(&self, owner: &Owner, since_micros: u64, note: &str) -> LockValue {
        record::write(owner, since_micros, note).into()
    }

    fn acquire(&self, mark: &LockValue, lease: Duration, look: bool) -> Call<AcquireReply> {
        let commands = acquire(self.keys.lock(), &self.keys.counter, mark, lease, look);
        let mark = mark.clone();
        Call::new(commands, move |replies| {
            match read_acquire(&mark, &replies)? {
                Taken::Held { token } => Ok(AcquireReply::Held { token }),
                Taken::Void { refusal } => Ok(AcquireReply::Unusable { refusal }),
                Taken::Found { value, left } => match Form::of(value) {
                    Form::Mutex | Form::Foreign => Ok(AcquireReply::Busy {
                        holder: holder(value, left),
                    }),
                    Form::Alone(_) | Form::Queue(_) => Err(RequestError::Refused(another_kind())),
                },
            }
        })
    }

    fn renew(&self, mark: &[u8], lease: Duration) -> Call<RenewReply> {
        let renew = renew(self.keys.lock(), mark, lease);
        Call::new(vec![renew], |replies| match read_renewal(replies)? {
            Found::Ours => Ok(RenewReply::Renewed),
            Found::Nothing | Found::Other => Ok(RenewReply::NotOwner),
        })
    }

    fn release(
        &self,
        mark: &[u8],
        keep: Option<Duration>,
        server: Capabilities,
    ) -> Call<ReleaseReply> {
        if let Some(left) = keep {
            return self.keep(mark, left);
        }
        let Some(compare_and_delete) = compare_and_delete(self.keys.lock(), mark, server) else {
            let keys = [self.keys.lock().as_bytes()];
            return Call::script(
                &RELEASE,
                &keys,
                &[mark, self.keys.channel().as_bytes()],
                read_release,
            );
        };
        let publish = Command::new("SPUBLISH").arg(self.keys.channel()).arg("");
        Call::new(vec![compare_and_delete, publish], read_release)
    }

    fn raise_token(&self, floor: u64) -> Option<Call<Token>> {
        Some(token::raise(&self.keys.counter, floor))
    }

    fn holder(&self) -> Call<Option<Holder>> {
        let commands = vec![
            Command::new("GET").arg(self.keys.lock()),
            Command::new("PTTL").arg(self.keys.lock()),
        ];
        Call::new(commands, |replies| match replies.as_slice() {
            [Reply::Refused(refusal), ..] => Err(RequestError::Refused(refusal.clone())),
            [Reply::Nil, _] => Ok(None),
            [Reply::Bytes(value), left] => Ok(Some(holder(value, Some(left)))),
            _ => Err(RequestError::malformed("GET", &replies)),
        })
    }

    fn local_handoff(&self) -> Option<&dyn LocalHandoff> {
        Some(self)
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }
}

impl LocalHandoff for SingleKey {
    fn reserve_tokens(&self, mark: &[u8], count: u64, own: Token) -> Call<Option<TokenBlock>> {
        let keys = [self.key(), self.keys.counter.as_bytes()];
        let args = [mark, &digits(count), &digits(own.as_u64())];
        Call::script(&TOKENS, &keys, &args, token::read_block)
    }

    fn holder_info(&self, mark: &[u8]) -> Holder {
        record::read(mark)
    }
}

impl Notified for SingleKey {
    fn channel_name(&self) -> ChannelName<'_> {
        ChannelName::sharded(self.keys.channel())
    }

    fn glance(&self) -> Call<LockStatus> {
        glance_at(self.key())
    }
}

/// What a `SET NX GET` and an `INCR` behind it came to.
pub(super) enum Taken<'a> {
    Held {
        token: Token,
    },
    /// Ours, but without a token.
    Void {
        refusal: ServerError,
    },
    /// This value is there, and ends then.
    Found {
        value: &'a [u8],
        left: Option<&'a Reply>,
    },
}

/// What a comparison with our mark found.
pub(super) enum Found {
    Ours,
    Nothing,
    Other,
}

/// The commands that acquire a lock which is one plain string.
pub(super) fn acquire(
    lock: &str,
    counter: &str,
    mark: &[u8],
    lease: Duration,
    look: bool,
) -> Vec<Command> {
    let set = Command::new("SET").arg(lock).arg(mark);
    let set = set.arg("NX").arg("GET").arg("PX");
    let mut commands = vec![
        set.number(millis_up(lease)),
        Command::new("INCR").arg(counter),
    ];
    if look {
        commands.push(Command::new("PTTL").arg(lock));
    }
    commands
}

/// The command that renews a lock which is one plain string.
pub(super) fn renew(lock: &str, mark: &[u8], lease: Duration) -> Command {
    RENEW.call(&[lock.as_bytes()], &[mark, &digits(millis_up(lease))])
}

/// The command that deletes a lock which is one plain string; `None` where the server has none.
pub(super) fn compare_and_delete(lock: &str, mark: &[u8], server: Capabilities) -> Option<Command> {
    if server.delex {
        Some(Command::new("DELEX").arg(lock).arg("IFEQ").arg(mark))
    } else if server.delifeq {
        Some(Command::new("DELIFEQ").arg(lock).arg(mark))
    } else {
        None
    }
}

/// Why a lock is refused whose key has another kind of lock.
pub(super) fn another_kind() -> ServerError {
    ServerError::new("WRONGTYPE", "the key holds another kind of lock")
}

/// The set decides; what follows it only adds.
pub(super) fn read_acquire<'a>(
    mark: &[u8],
    replies: &'a [Reply],
) -> Result<Taken<'a>, RequestError> {
    match replies {
        [Reply::Refused(refusal), ..] => Err(RequestError::Refused(refusal.clone())),
        [Reply::Bytes(value), _, rest @ ..] if value != mark => Ok(Taken::Found {
            value,
            left: rest.first(),
        }),
        [Reply::Nil | Reply::Bytes(_), Reply::Refused(refusal), ..] => Ok(Taken::Void {
            refusal: refusal.clone(),
        }),
        [Reply::Nil | Reply::Bytes(_), number, ..] => Ok(Taken::Held {
            token: token::read(number)?,
        }),
        _ => Err(RequestError::malformed("SET", replies)),
    }
}

pub(super) fn read_renewal(replies: Vec<Reply>) -> Result<Found, RequestError> {
    match first("a renewal", replies)?.int() {
        Some(1) => Ok(Found::Ours),
        Some(0) => Ok(Found::Nothing),
        Some(-1) => Ok(Found::Other),
        _ => Err(RequestError::malformed("a renewal", &[])),
    }
}

/// One command that says whether it was ours and one that says how many were told; or a script that says both.
fn read_release(replies: Vec<Reply>) -> Result<ReleaseReply, RequestError> {
    let notified = replies.get(1).and_then(Reply::int);
    match first("a release", replies)?.int() {
        Some(freed @ 1..) => Ok(ReleaseReply::Released {
            notified: notified.unwrap_or(freed - 1).unsigned_abs(),
        }),
        Some(0 | -1) => Ok(ReleaseReply::NotOwner),
        _ => Err(RequestError::malformed("a release", &[])),
    }
}

pub(super) fn holder(value: &[u8], left: Option<&Reply>) -> Holder {
    let left = left.and_then(Reply::int).and_then(time_left);
    Holder {
        lease_remaining: left,
        ..record::read(value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Counters, Keyspace};
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn lean() -> SingleKey {
        SingleKey::new(
            Keyspace::new("lock:", Counters::one())
                .unwrap()
                .lock("job")
                .unwrap(),
        )
    }

    fn shown<R>(call: Call<R>) -> Vec<String> {
        let batch = call.into_batch();
        let shown = |index| {
            let args = batch.args(index).map(String::from_utf8_lossy);
            args.collect::<Vec<_>>().join(" ")
        };
        (0..batch.len()).map(shown).collect()
    }

    fn me() -> LockValue {
        LockValue::from(&b"me"[..])
    }

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn an_acquire_is_two_plain_commands() {
        assert_eq!(
            shown(lean().acquire(&me(), LEASE, false)),
            [
                "SET lock:job me NX GET PX 30000",
                &format!("INCR {}", lean().keys.counter)
            ]
        );
    }

    #[test]
    fn the_set_alone_decides_who_holds() {
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
            let call = lean().acquire(&me(), LEASE, false);
            assert_eq!(call.read(replies).unwrap(), expected);
        }
    }

    #[test]
    fn held_but_uncounted_is_told_from_refused() {
        let refusal = ServerError::new("OOM", "command not allowed");
        let refused = Reply::Refused(refusal.clone());
        let acquire = || lean().acquire(&me(), LEASE, false);
        let uncounted = acquire().read(vec![Reply::Nil, refused.clone()]);
        assert_eq!(uncounted.unwrap(), AcquireReply::Unusable { refusal });
        let not_held = acquire().read(vec![refused, Reply::Int(1)]);
        assert!(matches!(not_held, Err(RequestError::Refused(_))));
    }

    #[test]
    fn a_release_uses_the_best_the_server_has() {
        let channel = lean().keys.channel().to_owned();
        let native = |capabilities| shown(lean().release(b"me", None, capabilities));
        let delex = Capabilities {
            delex: true,
            ..Capabilities::default()
        };
        let delifeq = Capabilities {
            delifeq: true,
            ..Capabilities::default()
        };
        assert_eq!(
            native(delex),
            ["DELEX lock:job IFEQ me", &format!("SPUBLISH {channel} ")]
        );
        assert_eq!(
            native(delifeq),
            ["DELIFEQ lock:job me", &format!("SPUBLISH {channel} ")]
        );
        assert!(native(Capabilities::default())[0].starts_with("EVALSHA "));
    }
}
