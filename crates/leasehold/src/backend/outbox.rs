//! Requests that wait at the same moment leave as one.
//!
//! Each task posts its commands and waits for its answers. The first to post has a carrier started, which lets every
//! other task that is ready post too, and then sends all of it to the driver at once: one write for many requests, and
//! one read of their answers. The carrier ends when there is nothing left to carry.
//!
//! # Invariants
//!
//! 1. There is one carrier at a time, and it hands everything to the driver in the order in which it was posted.
//! 2. It waits for no answer: what is posted later does not wait for what was posted before.
//! 3. What is sent a second time, since the server did not know a script, is sent only for one who still waits: a
//!    cancel that its sender posted when it went comes after all that it cancels.
//! 4. Whoever posted is answered, or told that it will not be: a carrier that is dropped with its runtime drops
//!    what it has not carried.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tokio::sync::oneshot;

use super::answer::{failure_of, reply_of};
use super::command::{Batch, Outgoing};
use super::reply::{Failure, RefusalKind, Reply};

/// What one who posted gets: the answers, or why there are none.
pub(super) type Answered = oneshot::Receiver<Result<Vec<Reply>, Failure>>;

/// How many of the answers are whose.
type Sender = (usize, oneshot::Sender<Result<Vec<Reply>, Failure>>);

/// The way to one connection.
pub(super) struct Outbox {
    shared: Arc<Shared>,
}

struct Shared {
    connection: MultiplexedConnection,
    posted: Mutex<Posted>,
}

#[derive(Default)]
struct Posted {
    parcels: Vec<Parcel>,
    /// Whether there is a carrier.
    carried: bool,
}

struct Parcel {
    batch: Batch,
    /// How long its sender waits.
    patience: Duration,
    answer: oneshot::Sender<Result<Vec<Reply>, Failure>>,
}

impl Outbox {
    pub(super) fn new(connection: MultiplexedConnection) -> Self {
        Self {
            shared: Arc::new(Shared {
                connection,
                posted: Mutex::default(),
            }),
        }
    }

    pub(super) fn post(&self, batch: Batch, patience: Duration) -> Answered {
        let (answer, answered) = oneshot::channel();
        let mut posted = self.shared.posted.lock();
        posted.parcels.push(Parcel {
            batch,
            patience,
            answer,
        });
        if !mem::replace(&mut posted.carried, true) {
            drop(posted);
            let carrier = Carrier {
                shared: self.shared.clone(),
                is_relieved: false,
            };
            tokio::spawn(carrier.carry());
        }
        answered
    }
}

/// Carries what is posted to the driver; see invariant 4 for its end.
struct Carrier {
    shared: Arc<Shared>,
    /// Set when there was nothing left: from then on whoever posts has another carrier.
    is_relieved: bool,
}

impl Carrier {
    async fn carry(mut self) {
        loop {
            // All who are ready to ask do so first.
            tokio::task::yield_now().await;
            let parcels = mem::take(&mut self.shared.posted.lock().parcels);
            if !parcels.is_empty() {
                let mut exchange = Box::pin(exchange(self.shared.connection.clone(), parcels));
                // Begun here, for the sake of order, and waited for elsewhere (invariants 1 and 2).
                if !is_over_at_once(exchange.as_mut()).await {
                    tokio::spawn(exchange);
                }
            } else if self.has_nothing_left() {
                return;
            }
        }
    }

    fn has_nothing_left(&mut self) -> bool {
        let mut posted = self.shared.posted.lock();
        posted.carried = !posted.parcels.is_empty();
        self.is_relieved = !posted.carried;
        self.is_relieved
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if !self.is_relieved {
            let left = mem::take(&mut *self.shared.posted.lock());
            drop(left);
        }
    }
}

async fn is_over_at_once(mut work: Pin<&mut impl Future<Output = ()>>) -> bool {
    poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await
}

/// Sends `parcels` as one, and gives each sender its part of the answers.
async fn exchange(mut connection: MultiplexedConnection, parcels: Vec<Parcel>) {
    let longest = parcels.iter().map(|parcel| parcel.patience).max();
    let mut all = Batch::default();
    let mut senders = Vec::with_capacity(parcels.len());
    for parcel in parcels {
        // Who has gone is not served, as far as that is known.
        if !parcel.answer.is_closed() {
            senders.push((parcel.batch.len(), parcel.answer));
            all.append(parcel.batch);
        }
    }
    let asked = ask(&mut connection, all.into(), &senders);
    // When even the last sender has given up, there is nobody left to tell.
    let Ok(replies) = tokio::time::timeout(longest.unwrap_or_default(), asked).await else {
        return;
    };
    match replies {
        Ok(replies) => {
            let mut replies = replies.into_iter();
            for (count, answer) in senders {
                let _ = answer.send(Ok(replies.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            for (_, answer) in senders {
                let _ = answer.send(Err(failure_of(&error)));
            }
        }
    }
}

/// Asks by digest; a script that the server does not know is sent again with its source, unless its sender has gone:
/// what is sent to cancel it may be there already, and counts on coming after it.
async fn ask(
    connection: &mut MultiplexedConnection,
    outgoing: Outgoing,
    senders: &[Sender],
) -> RedisResult<Vec<Reply>> {
    let mut replies = send(connection, &outgoing).await?;
    let (unknown, sources): (Vec<_>, Vec<_>) = (0..)
        .zip(&replies)
        .filter(|(_, reply)| reply.is_refused(RefusalKind::NoScript))
        .filter(|(index, _)| is_waited_for(*index, senders))
        .filter_map(|(index, _)| Some((index, outgoing.with_source(index)?)))
        .unzip();
    if !unknown.is_empty() {
        let again = send(connection, &Batch::from_iter(sources).into()).await?;
        for (index, reply) in unknown.into_iter().zip(again) {
            replies[index] = reply;
        }
    }
    Ok(replies)
}

/// Whether somebody waits for the answer at `index`.
fn is_waited_for(index: usize, senders: &[Sender]) -> bool {
    let mut end = 0;
    let its = senders.iter().find(|(count, _)| {
        end += count;
        index < end
    });
    its.is_some_and(|(_, answer)| !answer.is_closed())
}

async fn send(
    connection: &mut MultiplexedConnection,
    outgoing: &Outgoing,
) -> RedisResult<Vec<Reply>> {
    let pipeline = outgoing.pipeline();
    let values = connection
        .send_packed_commands(pipeline, 0, pipeline.len())
        .await?;
    // A push in place of an answer: from here on answers and requests are out of step.
    if values
        .iter()
        .any(|value| matches!(value, Value::Push { .. }))
    {
        let why = "an answer that belongs to no request";
        return Err((redis::ErrorKind::Client, why).into());
    }
    Ok(values.into_iter().map(reply_of).collect())
}
