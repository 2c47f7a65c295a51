//! The keeper's purpose: one supervised connection to a node that carries all subscriptions there.
//!
//! A task connects without end, subscribes to every channel that has a listener, and replaces a connection on which
//! that is not confirmed (invariants 3 and 4 of the layer).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::RedisConnection;
use super::matching::{Change, Event};
use super::reconnect::{Demand, Pauses};
use crate::backend::topology::Origin;
use crate::backend::{
    Backoff, Channel, Connection, Listener, PubSubEvent, RequestError, ServerError, Subscription,
    Unsubscribe,
};
use crate::time::BootInstant;

/// How many channels are entered at once, and how many orders are taken at once.
const BATCH: usize = 500;

/// The connection that is always being kept up, and the channels it listens to.
pub(crate) struct Supervised {
    orders: mpsc::UnboundedSender<Order>,
    connection: watch::Receiver<Line>,
    channels: Arc<Channels>,
    connect_timeout: Duration,
    demand: Arc<Demand>,
}

/// Called when the connection was made, and with `false` when it has broken or could not be made.
pub(crate) type OnLine = Arc<dyn Fn(bool) + Send + Sync>;

/// The state of the line as the supervisor sees it.
#[derive(Clone)]
enum Line {
    Up(Arc<RedisConnection>),
    Down(Arc<str>),
}

enum Order {
    Subscribe {
        channel: Channel,
        done: oneshot::Sender<Result<(), ServerError>>,
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
    pub(crate) fn start(origin: Origin, runtime: &tokio::runtime::Handle, on_line: OnLine) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let (sender, connection) = watch::channel(Line::Down("not yet connected".into()));
        let line = Reported { sender, on_line };
        let channels = Arc::new(Channels::default());
        let connect_timeout = origin.connect_timeout();
        let demand = Arc::new(Demand::default());
        runtime.spawn(supervise(
            origin,
            channels.clone(),
            inbox,
            line,
            demand.clone(),
        ));
        Self {
            orders,
            connection,
            channels,
            connect_timeout,
            demand,
        }
    }

    pub(crate) fn open_connection(&self) -> Option<Arc<RedisConnection>> {
        match &*self.connection.borrow() {
            Line::Up(connection) if connection.is_open() => Some(connection.clone()),
            _ => None,
        }
    }

    /// The connection, waited for at most as long as connecting may take.
    pub(crate) async fn connection(&self) -> Result<Arc<RedisConnection>, RequestError> {
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        let _wanted = self.demand.begin();
        let mut connection = self.connection.clone();
        let up = connection
            .wait_for(|line| matches!(line, Line::Up(connection) if connection.is_open()));
        match tokio::time::timeout(self.connect_timeout, up).await {
            Ok(Ok(line)) => match &*line {
                Line::Up(connection) => Ok(connection.clone()),
                Line::Down(_) => unreachable!("BUG: waited for a line that is up"),
            },
            Ok(Err(_)) => Err(RequestError::ShutDown),
            Err(_) => Err(RequestError::Unreachable(
                match &*self.connection.borrow() {
                    Line::Up(_) => "the connection has broken".into(),
                    Line::Down(why) => why.to_string().into(),
                },
            )),
        }
    }

    pub(crate) async fn subscribe(
        &self,
        channel: Channel,
        listener: Arc<dyn Listener>,
    ) -> Result<Subscription, RequestError> {
        let id = self.channels.insert(channel.clone(), listener);
        let subscription = Subscription::new(Box::new(Listening {
            channel: channel.clone(),
            id,
            channels: self.channels.clone(),
            orders: self.orders.clone(),
        }));
        let (done, confirmed) = oneshot::channel();
        let ordered = self.orders.send(Order::Subscribe { channel, done });
        let _wanted = self.demand.begin();
        match (ordered, confirmed.await) {
            (Ok(()), Ok(Ok(()))) => Ok(subscription),
            (Ok(()), Ok(Err(refusal))) => Err(RequestError::Refused(refusal)),
            _ => Err(RequestError::ShutDown),
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

    fn deliver(&self, channel: &Channel, event: PubSubEvent<'_>) {
        let listener = self
            .listeners
            .lock()
            .get(channel)
            .map(|(_, listener)| listener.clone());
        if let Some(listener) = listener {
            listener.on_event(event);
        }
    }
}

/// Where the supervisor says how the line is.
struct Reported {
    sender: watch::Sender<Line>,
    on_line: OnLine,
}

impl Reported {
    fn is(&self, line: Line) {
        let is_up = matches!(line, Line::Up(_));
        self.sender.send_replace(line);
        (self.on_line)(is_up);
    }
}

/// Keeps the line up until nobody is left to give orders.
async fn supervise(
    origin: Origin,
    channels: Arc<Channels>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    line: Reported,
    demand: Arc<Demand>,
) {
    let mut pauses = Pauses::default();
    let mut unanswered = Vec::new();
    loop {
        let mut refused = Refused::default();
        match connect(&origin, &channels).await {
            Ok(connection) => {
                tracing::debug!(
                    server = connection.server(),
                    version = connection.facts().version,
                    "line is up"
                );
                line.is(Line::Up(connection.clone()));
                let restored = restore(&connection, &channels, &mut refused).await;
                if restored {
                    pauses = Pauses::default();
                }
                let gone = restored
                    && serve(
                        &connection,
                        &channels,
                        &mut orders,
                        &mut unanswered,
                        refused,
                    )
                    .await;
                connection.close();
                line.is(Line::Down("the connection has broken".into()));
                if gone {
                    return;
                }
                tracing::info!(
                    server = connection.server(),
                    "line is down, connecting again"
                );
            }
            Err(failure) => {
                tracing::warn!(%failure, "cannot connect, trying again");
                line.is(Line::Down(failure.to_string().into()));
            }
        }
        if collect_during(pauses.next(&demand), &mut orders, &mut unanswered).await {
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

async fn connect(
    origin: &Origin,
    channels: &Arc<Channels>,
) -> Result<Arc<RedisConnection>, RequestError> {
    let heard = channels.clone();
    let on_event = move |event, connection| deliver(&heard, &event, connection);
    origin.connect("leasehold-keeper", on_event).await
}

/// Subscribes to everything wanted on a new connection, which carries requests meanwhile, and tells
/// all who listen to look for themselves; false when the connection is of no use.
async fn restore(connection: &RedisConnection, channels: &Channels, refused: &mut Refused) -> bool {
    match enter_again(connection, channels, channels.all(), refused).await {
        Ok(entered) => {
            for channel in &entered {
                channels.deliver(channel, PubSubEvent::Resubscribed);
            }
            true
        }
        Err(failure) => {
            tracing::warn!(%failure, "subscribing again failed");
            false
        }
    }
}

/// Subscribes to channels that have a listener already; returns those that the server has confirmed.
async fn enter_again(
    connection: &RedisConnection,
    channels: &Channels,
    wanted: Vec<Channel>,
    refused: &mut Refused,
) -> Result<Vec<Channel>, RequestError> {
    let mut entered = Vec::new();
    for batch in wanted.chunks(BATCH) {
        let outcomes = connection.change(Change::Enter, batch).await?;
        for (channel, outcome) in batch.iter().zip(outcomes) {
            let Err(refusal) = outcome else {
                entered.push(channel.clone());
                continue;
            };
            tracing::warn!(%refusal, "refused to subscribe, waiters poll");
            channels.deliver(channel, PubSubEvent::Ended);
            refused.push(channel.clone());
        }
    }
    Ok(entered)
}

/// Channels with a listener that the server refused, as it does while rights are missing. They are tried again.
struct Refused {
    channels: Vec<Channel>,
    backoff: Backoff,
    due: BootInstant,
}

impl Default for Refused {
    fn default() -> Self {
        Self {
            channels: Vec::new(),
            backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(10)),
            due: BootInstant::NEVER,
        }
    }
}

impl Refused {
    fn push(&mut self, channel: Channel) {
        if self.channels.is_empty() {
            self.due = BootInstant::now() + self.backoff.pause();
        }
        self.channels.push(channel);
    }

    /// Waits until they are due; without end where there are none.
    async fn due(&self) {
        match self.channels.is_empty() {
            true => std::future::pending().await,
            false => tokio::time::sleep_until(self.due.as_timer()).await,
        }
    }

    /// Tries all of them that still have a listener, which is notified where it succeeds.
    async fn try_again(
        &mut self,
        connection: &RedisConnection,
        channels: &Channels,
    ) -> Result<(), RequestError> {
        let mut wanted = std::mem::take(&mut self.channels);
        wanted.retain(|channel| channels.contains(channel));
        for channel in enter_again(connection, channels, wanted, self).await? {
            channels.deliver(&channel, PubSubEvent::Resubscribed);
        }
        Ok(())
    }
}

fn deliver(channels: &Channels, event: &Event, connection: u64) {
    match event {
        Event::Message { channel, text } => {
            channels.deliver(channel, PubSubEvent::Message { text, connection });
        }
        Event::Ended { channel } => channels.deliver(channel, PubSubEvent::Ended),
    }
}

/// Carries out orders until the connection breaks (false) or nobody is left (true).
async fn serve(
    connection: &RedisConnection,
    channels: &Channels,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    unanswered: &mut Vec<Order>,
    mut refused: Refused,
) -> bool {
    loop {
        if let Err(failure) = carry_out(connection, channels, unanswered).await {
            tracing::warn!(%failure, "subscribing failed");
            return false;
        }
        tokio::select! {
            () = connection.closed() => return false,
            taken = orders.recv_many(unanswered, BATCH) => if taken == 0 { return true },
            () = refused.due() => {
                if let Err(failure) = refused.try_again(connection, channels).await {
                    tracing::warn!(%failure, "subscribing again failed");
                    return false;
                }
            }
        }
    }
}

/// Brings the server's view in line with [`Channels`] for every channel named in `orders`.
///
/// What counts is who listens now, not what was ordered when: a channel left and entered again in
/// one batch stays subscribed.
async fn carry_out(
    connection: &RedisConnection,
    channels: &Channels,
    orders: &mut Vec<Order>,
) -> Result<(), RequestError> {
    let (enter, leave) = changes(channels, orders);
    if !leave.is_empty() {
        connection.change(Change::Leave, &leave).await?;
    }
    let mut outcomes = HashMap::new();
    if !enter.is_empty() {
        let answered = connection.change(Change::Enter, &enter).await?;
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
