//! The life of the kinds that have a line: each step is the queued family's own call of that name.

use std::time::Duration;

use crate::holder::Holder;
use crate::lease::{Kind, Line, Waiting};
use crate::owner::Owner;
use crate::protocol::{Acquired, Call, Capabilities, Freed, Mark, Queued, Renewed, Slot, Standing};

impl Kind for Queued {
    fn name(&self) -> &str {
        self.name()
    }

    fn key(&self) -> &[u8] {
        self.key()
    }

    fn slot(&self) -> Slot {
        self.slot()
    }

    fn mark(&self, owner: &Owner, since_micros: u64, note: &str) -> Mark {
        self.mark(owner, since_micros, note)
    }

    fn acquire(&self, mark: &Mark, lease: Duration, _look: bool) -> Call<Acquired> {
        self.acquire(mark, lease)
    }

    fn renew(&self, mark: &[u8], lease: Duration) -> Call<Renewed> {
        self.renew(mark, lease)
    }

    fn release(&self, mark: &[u8], keep: Option<Duration>, _server: Capabilities) -> Call<Freed> {
        self.release(mark, keep)
    }

    fn share(&self, mark: &[u8]) -> Option<Call<Renewed>> {
        Some(self.shrink(mark, 1))
    }

    fn holder(&self) -> Call<Option<Holder>> {
        self.census().map(|census| census.holder)
    }

    fn waiting(&self) -> Waiting<'_> {
        Waiting::InLine(self)
    }
}

impl Line for Queued {
    /// Those who share the lock are let in together, so each has a place of its own.
    fn gate(&self) -> Option<&[u8]> {
        (!self.share().shared).then(|| self.key())
    }

    fn channel(&self) -> &[u8] {
        self.grants()
    }

    fn enter(
        &self,
        mark: &Mark,
        lease: Duration,
        place: Duration,
        ticket: Option<u64>,
    ) -> Call<Standing> {
        self.enter(mark, lease, place, ticket)
    }

    fn stay(&self, mark: &[u8], place: Duration) -> Call<Standing> {
        self.stay(mark, place)
    }
}
