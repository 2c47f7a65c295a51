//! What a connection has not written yet, and the state that its callers share.

use std::mem;
use std::sync::Arc;

use super::matching::{Expected, write_seal};
use super::request::{Deadline, ExpectedReplies, Message, PendingRequest};
use crate::backend::Admitted;
use crate::rng;

/// See the module's documentation.
pub(super) struct Outgoing {
    /// Encoded requests that are not yet written.
    pub(super) bytes: Vec<u8>,
    /// An empty buffer for reuse.
    pub(super) spare: Vec<u8>,
    /// What the matcher does not expect yet, in the order of `bytes`.
    pub(super) registered: Vec<Expected>,
    /// How many requests `bytes` contains without a seal.
    pub(super) unwritten: usize,
    /// How many requests are not complete, including the unwritten.
    pub(super) unanswered: usize,
    /// The number of the last seal.
    pub(super) last_seal: u64,
    pub(super) is_writing: bool,
    /// The reading task is about to flush.
    pub(super) reader_will_flush: bool,
    /// How many callers the reading task has woken since it last flushed.
    pub(super) woken: usize,
    pub(super) is_ticking: bool,
    /// The socket buffers bytes that must be flushed, as TLS does.
    pub(super) is_unflushed: bool,
    /// Whether requests are sealed. Starts after the handshake, and never on
    /// connections to sentinels, which do not support `ECHO`.
    pub(super) is_sealed: bool,
    pub(super) close_reason: Option<Arc<str>>,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            spare: Vec::new(),
            registered: Vec::new(),
            unwritten: 0,
            unanswered: 0,
            // Random, so that replies of another connection are noticed.
            last_seal: rng::next_u64(),
            is_writing: false,
            reader_will_flush: false,
            woken: 0,
            is_ticking: false,
            is_unflushed: false,
            is_sealed: false,
            close_reason: None,
        }
    }

    pub(super) fn add(
        &mut self,
        message: &Message<'_>,
        request: Arc<PendingRequest>,
        deadline: Deadline,
        admitted: Option<Admitted>,
    ) {
        let owed = message.write_to(&mut self.bytes);
        let mut expected = ExpectedReplies::new(request, owed, self.is_sealed, deadline);
        expected.admitted = admitted;
        self.registered.push(Expected::Replies(expected));
        self.unwritten += 1;
        self.unanswered += 1;
    }

    /// Returns whether the caller should write at once: the server would run
    /// out of work, and no burst of requests is to be expected.
    pub(super) fn is_worth_a_write(&self) -> bool {
        2 * self.unwritten >= self.unanswered.max(self.woken)
    }

    /// Ends a write.
    pub(super) fn seal(&mut self) {
        if mem::take(&mut self.unwritten) > 0 && self.is_sealed {
            // The start is random, so it may well wrap around.
            self.last_seal = self.last_seal.wrapping_add(1);
            write_seal(&mut self.bytes, self.last_seal);
            self.registered.push(Expected::Seal(self.last_seal));
        }
    }
}
