//! The keeper's lane: one supervised connection to a node that carries all subscriptions there.
//!
//! The driver's own supervision goes dormant in a long outage and does not check that it was subscribed
//! again, so this file does both: a task connects without end, subscribes to all that is wanted, and
//! replaces a connection on which that is not confirmed (invariants 3 and 4 of the layer).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{mpsc, oneshot, watch};

use super::answer::{failure_of, reply_of};
use super::backoff::Backoff;
use super::link::LiveLink;
use super::origin::Origin;
use super::reply::{Failure, Refusal, Reply};
use super::{Channel, Link, Listener, News};

/// How many channels are entered at once, and how many orders are taken at once.
const BATCH: usize = 500;

/// How long the server may take to confirm before the connection counts as silent.
const CONFIRMATION: Duration = Duration::from_secs(1);

/// A subscription in force; dropping it ends it.
pub(crate) struct Subscription {
    _ends_on_drop: Box<dyn Unsubscribe>,
}

/// What a backend does when a [`Subscription`] is dropped, in its own `Drop`.
pub(crate) trait Unsubscribe: Send + Sync {}

impl Subscription {
    pub(crate) fn new(ends_on_drop: Box<dyn Unsubscribe>) -> Self {
        Self {
            _ends_on_drop: ends_on_drop,
        }
    }
}

/// The connection that is always being kept up, and the channels it listens to.
pub(super) struct Supervised {
    orders: mpsc::UnboundedSender<Order>,
    link: watch::Receiver<Line>,
    channels: Arc<Channels>,
    connect_timeout: Duration,
}

/// The state of the line as the supervisor sees it.
#[derive(Clone)]
enum Line {
    Up(Arc<LiveLink>),
    Down(Arc<str>),
}

enum Order {
    Subscribe {
        channel: Channel,
        done: oneshot::Sender<Result<(), Refusal>>,
    },
    Unsubscribe {
        channel: Channel,
    },
}

impl Order {
    fn is_awaited(&self) -> bool {
        matches!(self, Self::Subscribe { done, .. } if !done.is_closed())
    }
}

impl Supervised {
    pub(super) fn start(origin: Origin, runtime: &tokio::runtime::Handle) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let (line, link) = watch::channel(Line::Down("not yet connected".into()));
        let channels = Arc::new(Channels::default());
        let connect_timeout = origin.connect_timeout();
        runtime.spawn(supervise(origin, channels.clone(), inbox, line));
        Self {
            orders,
            link,
            channels,
            connect_timeout,
        }
    }

    pub(super) fn open_link(&self) -> Option<Arc<LiveLink>> {
        match &*self.link.borrow() {
            Line::Up(link) if link.is_open() => Some(link.clone()),
            _ => None,
        }
    }

    /// The connection, waited for at most as long as connecting may take.
    pub(super) async fn link(&self) -> Result<Arc<LiveLink>, Failure> {
        let mut link = self.link.clone();
        let up = link.wait_for(|line| matches!(line, Line::Up(link) if link.is_open()));
        match tokio::time::timeout(self.connect_timeout, up).await {
            Ok(Ok(line)) => match &*line {
                Line::Up(link) => Ok(link.clone()),
                Line::Down(_) => unreachable!("BUG: waited for a line that is up"),
            },
            Ok(Err(_)) => Err(Failure::Closed),
            Err(_) => Err(Failure::Unreachable(match &*self.link.borrow() {
                Line::Up(_) => "the connection has broken".into(),
                Line::Down(why) => why.to_string().into(),
            })),
        }
    }

    pub(super) async fn subscribe(
        &self,
        channel: Channel,
        listener: Arc<dyn Listener>,
    ) -> Result<Subscription, Failure> {
        let id = self.channels.insert(channel.clone(), listener);
        let subscription = Subscription::new(Box::new(Listening {
            channel: channel.clone(),
            id,
            channels: self.channels.clone(),
            orders: self.orders.clone(),
        }));
        let (done, confirmed) = oneshot::channel();
        let ordered = self.orders.send(Order::Subscribe { channel, done });
        match (ordered, confirmed.await) {
            (Ok(()), Ok(Ok(()))) => Ok(subscription),
            (Ok(()), Ok(Err(refusal))) => Err(Failure::Refused(refusal)),
            _ => Err(Failure::Closed),
        }
    }
}

struct Listening {
    channel: Channel,
    id: u64,
    channels: Arc<Channels>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Unsubscribe for Listening {}

impl Drop for Listening {
    fn drop(&mut self) {
        self.channels.remove(&self.channel, self.id);
        let channel = self.channel.clone();
        let _ = self.orders.send(Order::Unsubscribe { channel });
    }
}

/// Who listens to what. Written by callers, read by the connection's task for every message.
#[derive(Default)]
struct Channels {
    listeners: Mutex<HashMap<Channel, Numbered>>,
    /// Those that the server was asked to end; what it ends unasked has moved.
    leaving: Mutex<HashSet<Channel>>,
    last_id: AtomicU64,
}

/// A listener and its number, which tells it from one that takes its place.
type Numbered = (u64, Arc<dyn Listener>);

impl Channels {
    fn insert(&self, channel: Channel, listener: Arc<dyn Listener>) -> u64 {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        self.listeners.lock().insert(channel, (id, listener));
        id
    }

    /// Removes the listener `id`, unless another has taken its place.
    fn remove(&self, channel: &Channel, id: u64) {
        let mut listeners = self.listeners.lock();
        if listeners.get(channel).is_some_and(|(at, _)| *at == id) {
            listeners.remove(channel);
        }
    }

    fn contains(&self, channel: &Channel) -> bool {
        self.listeners.lock().contains_key(channel)
    }

    fn all(&self) -> Vec<Channel> {
        self.listeners.lock().keys().cloned().collect()
    }

    fn deliver(&self, channel: &Channel, news: News<'_>) {
        let listener = self
            .listeners
            .lock()
            .get(channel)
            .map(|(_, listener)| listener.clone());
        if let Some(listener) = listener {
            listener.heard(news);
        }
    }

    fn tell_all_to_look(&self) {
        let listeners: Vec<_> = self
            .listeners
            .lock()
            .values()
            .map(|(_, listener)| listener.clone())
            .collect();
        for listener in listeners {
            listener.heard(News::Resubscribed);
        }
    }
}

/// Keeps the line up until nobody is left to give orders.
async fn supervise(
    origin: Origin,
    channels: Arc<Channels>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    line: watch::Sender<Line>,
) {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    let mut unanswered = Vec::new();
    loop {
        match connect(&origin, &channels).await {
            Ok(link) => {
                backoff.reset();
                tracing::debug!(
                    server = link.server(),
                    version = link.facts().version,
                    "line is up"
                );
                line.send_replace(Line::Up(link.clone()));
                let gone = restore(&link, &channels).await
                    && serve(&link, &channels, &mut orders, &mut unanswered).await;
                link.close();
                line.send_replace(Line::Down("the connection has broken".into()));
                if gone {
                    return;
                }
                tracing::info!(server = link.server(), "line is down, connecting again");
            }
            Err(failure) => {
                tracing::warn!(%failure, "cannot connect, trying again");
                line.send_replace(Line::Down(failure.to_string().into()));
            }
        }
        let pause = tokio::time::sleep(backoff.pause());
        if collect_during(pause, &mut orders, &mut unanswered).await {
            return;
        }
    }
}

/// Takes in orders while `pause` lasts; true when nobody is left to give any. Only those that somebody still
/// waits for are kept, lest they gather in a long outage: a new connection has nothing to leave.
async fn collect_during(
    pause: impl Future<Output = ()>,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    unanswered: &mut Vec<Order>,
) -> bool {
    let mut pause = std::pin::pin!(pause);
    loop {
        tokio::select! {
            () = &mut pause => {
                unanswered.retain(Order::is_awaited);
                return false;
            }
            order = orders.recv() => match order {
                Some(order) => unanswered.push(order),
                None => return true,
            },
        }
    }
}

async fn connect(origin: &Origin, channels: &Arc<Channels>) -> Result<Arc<LiveLink>, Failure> {
    let heard = channels.clone();
    let on_push = move |push: &PushInfo, link| deliver(&heard, push, link);
    LiveLink::connect(origin, "leasehold-keeper", on_push).await
}

/// Subscribes to everything wanted on a new connection, which carries requests meanwhile, and tells
/// all who listen to look for themselves; false when the connection is of no use.
async fn restore(link: &LiveLink, channels: &Channels) -> bool {
    channels.leaving.lock().clear();
    for batch in channels.all().chunks(BATCH) {
        match change(link, Change::Enter, batch).await {
            Ok(outcomes) => {
                for (channel, outcome) in batch.iter().zip(outcomes) {
                    if let Err(refusal) = outcome {
                        tracing::warn!(%refusal, "refused to subscribe, waiters poll");
                        channels.deliver(channel, News::Ended);
                    }
                }
            }
            Err(failure) => {
                tracing::warn!(%failure, "subscribing again failed");
                return false;
            }
        }
    }
    channels.tell_all_to_look();
    true
}

fn deliver(channels: &Channels, push: &PushInfo, link: u64) {
    let Some((Value::BulkString(name), rest)) = push.data.split_first() else {
        return;
    };
    let channel = match push.kind {
        PushKind::SMessage | PushKind::SUnsubscribe => Channel::Sharded(name.clone()),
        PushKind::Message | PushKind::Unsubscribe => Channel::Classic(name.clone()),
        _ => return,
    };
    match (&push.kind, rest) {
        (PushKind::SMessage | PushKind::Message, [Value::BulkString(text)]) => {
            channels.deliver(&channel, News::Message { text, link });
        }
        (PushKind::SUnsubscribe | PushKind::Unsubscribe, _)
            if !channels.leaving.lock().remove(&channel) =>
        {
            channels.deliver(&channel, News::Ended);
        }
        _ => {}
    }
}

/// What is done to a channel.
#[derive(Clone, Copy)]
enum Change {
    Enter,
    Leave,
}

impl Change {
    /// The command, and how the server confirms it.
    fn of(self, channel: &Channel) -> (&'static str, PushKind) {
        match (self, channel) {
            (Self::Enter, Channel::Sharded(_)) => ("SSUBSCRIBE", PushKind::SSubscribe),
            (Self::Leave, Channel::Sharded(_)) => ("SUNSUBSCRIBE", PushKind::SUnsubscribe),
            (Self::Enter, Channel::Classic(_)) => ("SUBSCRIBE", PushKind::Subscribe),
            (Self::Leave, Channel::Classic(_)) => ("UNSUBSCRIBE", PushKind::Unsubscribe),
        }
    }
}

/// Enters or leaves channels and waits for the server's confirmation; the inner errors are its refusals.
/// One command each: those of a cluster must not be named together unless they are of one slot.
async fn change(
    link: &LiveLink,
    change: Change,
    channels: &[Channel],
) -> Result<Vec<Result<(), Refusal>>, Failure> {
    let mut pipeline = redis::Pipeline::with_capacity(channels.len());
    for channel in channels {
        let (name, (command, _)) = (channel.name(), change.of(channel));
        pipeline.cmd(command).arg(name);
    }
    let mut connection = link.connection();
    let asking = connection.send_packed_commands(&pipeline, 0, channels.len());
    let values = match tokio::time::timeout(CONFIRMATION, asking).await {
        Ok(answered) => answered.map_err(|error| failure_of(&error))?,
        Err(_) => return Err(Failure::Unreachable("subscribing took too long".into())),
    };
    let outcome = |(channel, value)| match (value, change.of(channel)) {
        (Value::Push { kind, .. }, (_, confirmation)) if kind == confirmation => Ok(Ok(())),
        (other, (command, _)) => match reply_of(other) {
            Reply::Refused(refusal) => Ok(Err(refusal)),
            reply => Err(Failure::malformed(command, &[reply])),
        },
    };
    channels.iter().zip(values).map(outcome).collect()
}

/// Carries out orders until the link breaks (false) or nobody is left (true).
async fn serve(
    link: &LiveLink,
    channels: &Channels,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    unanswered: &mut Vec<Order>,
) -> bool {
    loop {
        if let Err(failure) = carry_out(link, channels, unanswered).await {
            tracing::warn!(%failure, "subscribing failed");
            return false;
        }
        tokio::select! {
            () = link.closed() => return false,
            taken = orders.recv_many(unanswered, BATCH) => if taken == 0 { return true },
        }
    }
}

/// Brings the server's view in line with [`Channels`] for every channel named in `orders`.
///
/// What counts is who listens now, not what was ordered when: a channel left and entered again in
/// one batch stays subscribed.
async fn carry_out(
    link: &LiveLink,
    channels: &Channels,
    orders: &mut Vec<Order>,
) -> Result<(), Failure> {
    let (enter, leave) = changes(channels, orders);
    if !leave.is_empty() {
        channels.leaving.lock().extend(leave.iter().cloned());
        change(link, Change::Leave, &leave).await?;
    }
    let mut outcomes = HashMap::new();
    if !enter.is_empty() {
        let answered = change(link, Change::Enter, &enter).await?;
        outcomes = enter.into_iter().zip(answered).collect();
    }
    for order in orders.drain(..) {
        if let Order::Subscribe { channel, done } = order {
            let _ = done.send(outcomes.get(&channel).cloned().unwrap_or(Ok(())));
        }
    }
    Ok(())
}

/// The channels to enter and to leave.
fn changes(channels: &Channels, orders: &[Order]) -> (Vec<Channel>, Vec<Channel>) {
    let (mut enter, mut leave) = (Vec::new(), Vec::new());
    for order in orders {
        let (Order::Subscribe { channel, .. } | Order::Unsubscribe { channel }) = order;
        let wanted = channels.contains(channel);
        match order {
            Order::Subscribe { .. } if wanted => enter.push(channel.clone()),
            Order::Unsubscribe { .. } if !wanted => leave.push(channel.clone()),
            _ => {}
        }
    }
    (enter, leave)
}
