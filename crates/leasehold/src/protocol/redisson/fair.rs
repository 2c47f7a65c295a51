//! Redisson's fair lock: the lock's hash, a list of those who wait, and when each of them is given up.
//!
//! A place in line is kept by asking again: one who asks is never given up, however long others hold the lock.

use std::time::Duration;

use super::super::call::first;
use super::super::script::script;
use super::super::{
    Acquired, Call, Freed, Keys, Kind, Line, Mark, Renewed, Standing, Told, Waiting,
};
use super::{NO_TOKEN, Object, holder, holder_at, kept, lock, millis, read_done, time_left};
use crate::backend::{Capabilities, Failure, Reply};
use crate::info::Holder;
use crate::owner::{Owner, Token};

script!(ENTER, "redisson/fair_line.lua", "redisson/fair_enter.lua");
script!(
    RELEASE,
    "redisson/fair_line.lua",
    "redisson/fair_release.lua"
);
script!(FORCE, "redisson/fair_line.lua", "redisson/fair_force.lua");

/// The calls of one lock.
#[derive(Debug)]
pub(crate) struct Fair {
    object: Object,
    line: String,
    timeouts: String,
    channel: String,
    /// How much longer each waits for the one before it.
    wait: Duration,
}

impl Fair {
    pub(crate) fn new(object: Object, wait: Duration) -> Self {
        Self {
            line: object.prefixed("redisson_lock_queue"),
            timeouts: object.prefixed("redisson_lock_timeout"),
            channel: object.prefixed("redisson_lock__channel"),
            wait,
            object,
        }
    }

    /// Takes it away from whoever holds it; false when nobody does.
    pub(crate) fn force(&self) -> Call<bool> {
        let args = [&b""[..], &millis(self.wait), self.object.publish()];
        Call::script(&FORCE, &self.keys_and_channel(), &args, read_done)
    }

    fn step(&self, mark: &[u8], lease: Duration, step: &'static [u8]) -> Call<Standing> {
        let args = [mark, &millis(self.wait), &millis(lease), step];
        Call::script(&ENTER, &self.own_keys(), &args, read_standing)
    }

    fn own_keys(&self) -> [&[u8]; 3] {
        [self.key(), self.line.as_bytes(), self.timeouts.as_bytes()]
    }

    fn keys_and_channel(&self) -> [&[u8]; 4] {
        let [lock, line, timeouts] = self.own_keys();
        [lock, line, timeouts, self.channel.as_bytes()]
    }
}

impl Kind for Fair {
    fn keys(&self) -> &dyn Keys {
        &self.object
    }

    fn mark(&self, owner: &Owner, _since_micros: u64, _note: &str) -> Mark {
        self.object.owner(owner).into_bytes().into()
    }

    fn acquire(&self, mark: &Mark, lease: Duration, _look: bool) -> Call<Acquired> {
        self.step(mark, lease, b"try")
            .map(|standing| match standing {
                Standing::Holds { token, .. } => Acquired::Held { token },
                Standing::Waits { holder, .. } | Standing::Gone { holder } => {
                    Acquired::Busy { holder }
                }
            })
    }

    fn renew(&self, mark: &[u8], lease: Duration) -> Call<Renewed> {
        lock::renew(self.key(), mark, lease)
    }

    fn release(&self, mark: &[u8], keep: Option<Duration>, _server: Capabilities) -> Call<Freed> {
        let args = [
            mark,
            &millis(self.wait),
            &millis(keep.unwrap_or_default()),
            self.object.publish(),
            &kept(mark),
        ];
        Call::script(
            &RELEASE,
            &self.keys_and_channel(),
            &args,
            |replies| match first("a release", replies)?.int() {
                Some(1) => Ok(Freed::Freed { told: 0 }),
                Some(0 | 2) => Ok(Freed::NotOurs),
                _ => Err(Failure::malformed("a release", &[])),
            },
        )
    }

    fn recount(&self, mark: &[u8], entries: u32) -> Option<Call<Renewed>> {
        Some(lock::recount(self.key(), mark, entries))
    }

    fn holder(&self) -> Call<Option<Holder>> {
        holder_at(self.key())
    }

    fn waiting(&self) -> Waiting<'_> {
        Waiting::InLine(self)
    }
}

impl Line for Fair {
    fn gate(&self) -> Option<&[u8]> {
        Some(self.line.as_bytes())
    }

    fn told(&self, mark: &[u8]) -> Told<'_> {
        let name = format!("{}:{}", self.channel, String::from_utf8_lossy(mark));
        Told::ByName(self.object.announced(&name).channel())
    }

    /// There are no tickets: one who lost its place has the last.
    fn enter(
        &self,
        mark: &Mark,
        lease: Duration,
        _place: Duration,
        _ticket: Option<u64>,
    ) -> Call<Standing> {
        self.step(mark, lease, b"enter")
    }

    fn stay(&self, mark: &[u8], lease: Duration, _place: Duration) -> Call<Standing> {
        self.step(mark, lease, b"stay")
    }
}

fn read_standing(replies: Vec<Reply>) -> Result<Standing, Failure> {
    let reply = first("an owner's standing", replies)?;
    standing(&reply).ok_or_else(|| Failure::malformed("an owner's standing", &[reply]))
}

/// The answers that `redisson/fair_enter.lua` lists; `None` when it is none of them.
fn standing(reply: &Reply) -> Option<Standing> {
    if reply.int() == Some(0) {
        let holder = Holder::default();
        return Some(Standing::Gone { holder });
    }
    match reply.list()? {
        [Reply::Int(1), left] => Some(Standing::Holds {
            token: Token::new(NO_TOKEN),
            left: time_left(left.int()?)?,
        }),
        [Reply::Int(2), ahead, now, left, field] => Some(Standing::Waits {
            ahead: u64::try_from(ahead.int()?).ok()?,
            server_now: u64::try_from(now.int()?).ok()?.saturating_mul(1000),
            ticket: None,
            holder: holder(left, std::slice::from_ref(field)),
        }),
        _ => None,
    }
}
