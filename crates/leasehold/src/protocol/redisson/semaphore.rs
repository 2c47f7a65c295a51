//! Redisson's semaphore: a number on the server, and nothing that says who took from it.
//!
//! What is taken belongs to nobody there and never expires. So that nothing is taken or given back twice when an
//! answer is lost, each acquisition is noted for a while.

use std::time::Duration;

use super::super::script::script;
use super::super::{
    AcquireReply, Call, ChannelName, Keys, Kind, LockStatus, LockValue, Notified, ReleaseReply,
    RenewReply, WaitStrategy,
};
use super::{NOTED, Object, digits, enough, freed, millis, read_done, set, taken};
use crate::backend::{Capabilities, Command, Reply, RequestError};
use crate::info::Holder;
use crate::owner::Owner;

script!(ACQUIRE, "redisson/semaphore_acquire.lua");
script!(RELEASE, "redisson/semaphore_release.lua");

/// The calls of one semaphore, for those who take so many permits.
#[derive(Clone, Debug)]
pub(crate) struct SemaphoreCalls {
    object: Object,
    channel: String,
    wanted: u32,
}

impl SemaphoreCalls {
    pub(crate) fn new(object: Object) -> Self {
        Self {
            channel: object.prefixed("redisson_sc"),
            object,
            wanted: 1,
        }
    }

    /// The same, for one who takes so many.
    pub(crate) fn taking(&self, permits: u32) -> Self {
        Self {
            wanted: permits,
            ..self.clone()
        }
    }

    /// Sets how many there are, if that was never done.
    pub(crate) fn set(&self, permits: u32) -> Call<bool> {
        set(
            &self.object,
            &self.channel,
            permits,
            &digits(permits.into()),
        )
    }

    /// How many there are.
    pub(crate) fn available(&self) -> Call<i64> {
        let commands = vec![Command::new("GET").arg(self.key())];
        Call::new(commands, |replies| match replies.as_slice() {
            [Reply::Refused(refusal)] => Err(RequestError::Refused(refusal.clone())),
            [Reply::Nil] => Ok(0),
            [reply] => reply
                .int()
                .ok_or_else(|| RequestError::malformed("GET", &replies)),
            _ => Err(RequestError::malformed("GET", &replies)),
        })
    }

    /// Gives permits back, once under one mark; those that only the note can tell of only if it does.
    pub(crate) fn give(&self, mark: &[u8], certain: bool) -> Call<ReleaseReply> {
        let note = self.note(mark);
        let keys = [self.key(), note.as_bytes(), self.channel.as_bytes()];
        let args = [
            &digits(self.wanted.into())[..],
            &millis(NOTED),
            self.object.publish(),
            if certain { b"1" } else { b"0" },
        ];
        Call::script(&RELEASE, &keys, &args, read_done).map(freed)
    }

    fn note(&self, mark: &[u8]) -> String {
        self.object.note(&String::from_utf8_lossy(mark))
    }
}

/// There is nothing to renew: the permits are ours until they are given back.
impl Kind for SemaphoreCalls {
    fn keys(&self) -> &dyn Keys {
        &self.object
    }

    fn value(&self, owner: &Owner, _since_micros: u64, _note: &str) -> LockValue {
        owner.to_string().into_bytes().into()
    }

    fn acquire(&self, mark: &LockValue, _lease: Duration, _look: bool) -> Call<AcquireReply> {
        let note = self.note(mark);
        let keys = [self.key(), note.as_bytes()];
        let args = [&digits(self.wanted.into())[..], &millis(NOTED)];
        Call::script(&ACQUIRE, &keys, &args, read_done).map(taken)
    }

    fn renew(&self, _mark: &[u8], _lease: Duration) -> Call<RenewReply> {
        self.available().map(|_| RenewReply::Renewed)
    }

    fn release(
        &self,
        mark: &[u8],
        _keep: Option<Duration>,
        _server: Capabilities,
    ) -> Call<ReleaseReply> {
        self.give(mark, true)
    }

    fn cancel(&self, mark: &[u8], _server: Capabilities) -> Call<ReleaseReply> {
        self.give(mark, false)
    }

    /// Permits do not tell who holds them.
    fn holder(&self) -> Call<Option<Holder>> {
        self.available().map(|_| None)
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }
}

impl Notified for SemaphoreCalls {
    fn channel_name(&self) -> ChannelName<'_> {
        self.object.announced(&self.channel)
    }

    fn glance(&self) -> Call<LockStatus> {
        enough(self.available(), self.wanted)
    }
}
