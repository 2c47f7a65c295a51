//! The life of a mutex that a majority of nodes keeps: each step is the voted family's own call of that name.

use std::time::Duration;

use crate::holder::Holder;
use crate::lease::{Hints, Kind, Waiting};
use crate::owner::{Owner, Token};
use crate::protocol::{Acquired, Call, Capabilities, Freed, Glance, Mark, Renewed, Slot, Voted};

impl Kind for Voted {
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
        match keep {
            Some(left) => self.keep(mark, left),
            None => self.release(mark),
        }
    }

    fn fill_in(&self, mark: &[u8], left: Duration, token: Token) -> Option<Call<()>> {
        Some(self.fill_in(mark, left, token))
    }

    fn holder(&self) -> Call<Option<Holder>> {
        self.holder()
    }

    fn waiting(&self) -> Waiting<'_> {
        Waiting::ForHints(self)
    }
}

impl Hints for Voted {
    fn channel(&self) -> &[u8] {
        self.channel()
    }

    fn glance(&self) -> Call<Glance> {
        self.glance()
    }
}
