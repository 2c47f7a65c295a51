//! A lock with a queue while one owner holds it and none waits.
//!
//! It is then a plain string, like a [mutex](crate::protocol::single_key), and
//! the mutex's commands acquire, renew and release it. A second owner turns it
//! into a queue by a script. A client that finds a queue uses the scripts until
//! it finds the string again.
//!
//! This form makes a lock without waiters as cheap as a mutex (decision 8).
//! Everything that the client knows of it is in this file.

use std::time::Duration;

use super::{Queued, renewed};
use crate::backend::{Capabilities, RequestError};
use crate::protocol::call::{Call, CallStep, first};
use crate::protocol::outcome::{AcquireReply, LockValue, ReleaseReply, RenewReply};
use crate::protocol::record::{Form, Part};
use crate::protocol::script::script;
use crate::protocol::single_key::{self, Comparison, SetReply};

script!(COMPARE_AND_DELETE, "queue/compare_and_delete.lua");

impl Queued {
    /// Acquires the lock like a mutex. Runs the script if the lock has a queue,
    /// or may have room beside the holder.
    pub(super) fn acquire_alone(
        &self,
        value: &LockValue,
        lease: Duration,
        want_ttl: bool,
    ) -> Call<AcquireReply> {
        let this = self.clone();
        let value = value.clone();
        let counter = self.keys().counter();
        let commands = single_key::acquire(self.keys().lock(), counter, &value, lease, want_ttl);
        Call::stepwise(commands, move |replies| {
            let (found, pttl) = match single_key::read_acquire(&value, &replies)? {
                SetReply::Acquired(reply) => return Ok(CallStep::Done(reply)),
                SetReply::Found { value, pttl } => (value, pttl),
            };
            let kind = this.params.kind;
            match Form::of(found) {
                // The script would say the same. We save it, since the value
                // names the holder and how much it takes.
                Form::Alone(part) if part.kind == kind && !this.fits_beside(part) => {
                    Ok(CallStep::Done(single_key::busy(found, pttl)))
                }
                Form::Alone(Part { kind: other, .. }) | Form::Queue(other) if other == kind => {
                    Ok(CallStep::Next(this.try_enqueue(&value, lease)))
                }
                _ => Err(RequestError::Refused(single_key::another_kind())),
            }
        })
    }

    fn fits_beside(&self, holder: Part<'_>) -> bool {
        holder.weight.saturating_add(self.params.weight) <= holder.capacity
    }

    pub(super) fn renew_alone(&self, value: &[u8], lease: Duration) -> Call<RenewReply> {
        let this = self.clone();
        let owned = LockValue::from(value);
        let renew = single_key::renew(self.keys().lock(), value, lease);
        Call::stepwise(renew, move |replies| {
            Ok(match single_key::read_renewal(replies)? {
                Comparison::Equal => CallStep::Done(RenewReply::Renewed),
                Comparison::Free => CallStep::Done(RenewReply::NotOwner),
                // A queue, whose script knows whether we are among its holders.
                Comparison::Different => {
                    CallStep::Next(this.extend(&owned, lease).map(|status| renewed(&status)))
                }
            })
        })
    }

    pub(super) fn release_alone(&self, value: &[u8], server: Capabilities) -> Call<ReleaseReply> {
        let lock = self.keys().lock();
        let command = single_key::compare_and_delete(lock, value, server)
            .unwrap_or_else(|| COMPARE_AND_DELETE.call(&[lock.as_bytes()], &[value]));
        let this = self.clone();
        let owned = LockValue::from(value);
        Call::stepwise(command, move |replies| {
            match first("a release", replies)?.int() {
                Some(1) => Ok(CallStep::Done(ReleaseReply::Released { notified: 0 })),
                // A queue, or no longer ours: only the script can tell.
                Some(0 | -1) => Ok(CallStep::Next(this.remove(&owned, Duration::ZERO))),
                _ => Err(RequestError::malformed("a release", &[])),
            }
        })
    }
}
