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
use super::matching::{PushEvent, SubscribeOp};
use super::reconnect::{Demand, ReconnectDelay};
use crate::backend::topology::Master;
use crate::backend::{
    Backoff, Channel, Connection, Listener, PubSubEvent, RequestError, ServerError, Subscription,
    Unsubscribe,
};
use crate::time::BootInstant;

/// How many channels are entered at once, and how many commands are taken at once.
const BATCH: usize = 500;

/// The connection that is always being kept up, and the channels it listens to.
pub(crate) struct SupervisedConnection {
    commands: mpsc::UnboundedSender<SubscriptionCmd>,
    connection: watch::Receiver<ConnectionState>,
    channels: Arc<Channels>,
    connect_timeout: Duration,
    demand: Arc<Demand>,
}

/// Called when the connection was made, and with `false` when it has broken or could not be made.
pub(crate) type OnStateChange = Arc<dyn Fn(bool) + Send + Sync>;

/// The state of the state as the supervisor sees it.
#[derive(Clone)]
enum ConnectionState {
    Up(Arc<RedisConnection>),
    Down(Arc<str>),
}

enum SubscriptionCmd {
    Subscribe {
        channel: Channel,
        done: oneshot::Sender<Result<(), ServerError>>,
    },
    Unsubscribe {
        channel: Channel,
    },
}

impl SubscriptionCmd {
    fn is_awaited(&self) -> bool {
        matches!(self, Self::Subscribe { done, .. } if !done.is_closed())
    }
}

impl SupervisedConnection {
    pub(crate) fn start(
        master: Master,
        runtime: &tokio::runtime::Handle,
        on_state_change: OnStateChange,
    ) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (sender, connection) =
            watch::channel(ConnectionState::Down("not yet connected".into()));
        let state = StateReporter {
            sender,
            on_state_change,
        };
        let channels = Arc::new(Channels::default());
        let connect_timeout = master.connect_timeout();
        let demand = Arc::new(Demand::default());
        runtime.spawn(supervise(
            master,
            channels.clone(),
            inbox,
            state,
            demand.clone(),
        ));
        Self {
            commands,
            connection,
            channels,
            connect_timeout,
            demand,
        }
    }

    pub(crate) fn open_connection(&self) -> Option<Arc<RedisConnection>> {
        match &*self.connection.borrow() {
            ConnectionState::Up(connection) if connection.is_open() => Some(connection.clone()),
            _ => None,
        }
    }

    /// The connection, waited for at most as long as connecting may take.
    pub(crate) async fn connection(&self) -> Result<Arc<RedisConnection>, RequestError> {
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        let _demand = self.demand.begin();
        let mut connection = self.connection.clone();
        let up = connection.wait_for(
            |state| matches!(state, ConnectionState::Up(connection) if connection.is_open()),
        );
        match tokio::time::timeout(self.connect_timeout, up).await {
            Ok(Ok(state)) => match &*state {
                ConnectionState::Up(connection) => Ok(connection.clone()),
                ConnectionState::Down(_) => unreachable!("BUG: waited for a state that is up"),
            },
            Ok(Err(_)) => Err(RequestError::ShutDown),
            Err(_) => Err(RequestError::Unreachable(
                match &*self.connection.borrow() {
                    ConnectionState::Up(_) => "the connection has broken".into(),
                    ConnectionState::Down(reason) => reason.to_string().into(),
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
        let subscription = Subscription::new(Box::new(ChannelGuard {
            channel: channel.clone(),
            id,
            channels: self.channels.clone(),
            commands: self.commands.clone(),
        }));
        let (done, confirmed) = oneshot::channel();
        let ordered = self
            .commands
            .send(SubscriptionCmd::Subscribe { channel, done });
        let _demand = self.demand.begin();
        match (ordered, confirmed.await) {
            (Ok(()), Ok(Ok(()))) => Ok(subscription),
            (Ok(()), Ok(Err(error))) => Err(RequestError::Refused(error)),
            _ => Err(RequestError::ShutDown),
        }
    }
}

struct ChannelGuard {
    channel: Channel,
    id: u64,
    channels: Arc<Channels>,
    commands: mpsc::UnboundedSender<SubscriptionCmd>,
}

impl Unsubscribe for ChannelGuard {}

impl Drop for ChannelGuard {
    fn drop(&mut self) {
        self.channels.remove(&self.channel, self.id);
        let channel = self.channel.clone();
        let _ = self.commands.send(SubscriptionCmd::Unsubscribe { channel });
    }
}

/// Who listens to what. Written by callers, read by the connection's task for every message.
#[derive(Default)]
struct Channels {
    listeners: Mutex<HashMap<Channel, ListenerEntry>>,
    last_id: AtomicU64,
}

/// A listener and its number, which tells it from one that takes its place.
type ListenerEntry = (u64, Arc<dyn Listener>);

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

/// Where the supervisor says how the state is.
struct StateReporter {
    sender: watch::Sender<ConnectionState>,
    on_state_change: OnStateChange,
}

impl StateReporter {
    fn report(&self, state: ConnectionState) {
        let is_up = matches!(state, ConnectionState::Up(_));
        self.sender.send_replace(state);
        (self.on_state_change)(is_up);
    }
}

/// Keeps the state up until nobody is left to give commands.
async fn supervise(
    master: Master,
    channels: Arc<Channels>,
    mut commands: mpsc::UnboundedReceiver<SubscriptionCmd>,
    state: StateReporter,
    demand: Arc<Demand>,
) {
    let mut delay = ReconnectDelay::default();
    let mut pending = Vec::new();
    loop {
        let mut refused = RejectedChannels::default();
        match connect(&master, &channels).await {
            Ok(connection) => {
                tracing::debug!(
                    server = connection.server(),
                    version = connection.facts().version,
                    "connected"
                );
                state.report(ConnectionState::Up(connection.clone()));
                let restored = resubscribe_all(&connection, &channels, &mut refused).await;
                if restored {
                    delay = ReconnectDelay::default();
                }
                let gone = restored
                    && serve(&connection, &channels, &mut commands, &mut pending, refused).await;
                connection.close();
                state.report(ConnectionState::Down("the connection has broken".into()));
                if gone {
                    return;
                }
                tracing::info!(
                    server = connection.server(),
                    "connection lost, reconnecting"
                );
            }
            Err(error) => {
                tracing::warn!(%error, "cannot connect, trying again");
                state.report(ConnectionState::Down(error.to_string().into()));
            }
        }
        if collect_commands(delay.next(&demand), &mut commands, &mut pending).await {
            return;
        }
    }
}

/// Takes in commands while `pause` lasts; true when nobody is left to give any. Only those that somebody still
/// waits for are kept, lest they gather in a long outage: a new connection has nothing to leave.
async fn collect_commands(
    pause: impl Future<Output = ()>,
    commands: &mut mpsc::UnboundedReceiver<SubscriptionCmd>,
    pending: &mut Vec<SubscriptionCmd>,
) -> bool {
    let mut pause = std::pin::pin!(pause);
    loop {
        tokio::select! {
            () = &mut pause => {
                pending.retain(SubscriptionCmd::is_awaited);
                return false;
            }
            command = commands.recv() => match command {
                Some(command) => pending.push(command),
                None => return true,
            },
        }
    }
}

async fn connect(
    master: &Master,
    channels: &Arc<Channels>,
) -> Result<Arc<RedisConnection>, RequestError> {
    let heard = channels.clone();
    let on_event = move |event, connection| deliver(&heard, &event, connection);
    master.connect("leasehold-keeper", on_event).await
}

/// Subscribes to everything wanted on a new connection, which carries requests meanwhile, and tells
/// all who listen to look for themselves; false when the connection is of no use.
async fn resubscribe_all(
    connection: &RedisConnection,
    channels: &Channels,
    refused: &mut RejectedChannels,
) -> bool {
    match subscribe_all(connection, channels, channels.all(), refused).await {
        Ok(entered) => {
            for channel in &entered {
                channels.deliver(channel, PubSubEvent::Resubscribed);
            }
            true
        }
        Err(error) => {
            tracing::warn!(%error, "subscribing again failed");
            false
        }
    }
}

/// Subscribes to channels that have a listener already; returns those that the server has confirmed.
async fn subscribe_all(
    connection: &RedisConnection,
    channels: &Channels,
    wanted: Vec<Channel>,
    refused: &mut RejectedChannels,
) -> Result<Vec<Channel>, RequestError> {
    let mut entered = Vec::new();
    for batch in wanted.chunks(BATCH) {
        let outcomes = connection
            .update_subscriptions(SubscribeOp::Subscribe, batch)
            .await?;
        for (channel, outcome) in batch.iter().zip(outcomes) {
            let Err(error) = outcome else {
                entered.push(channel.clone());
                continue;
            };
            tracing::warn!(%error, "refused to subscribe, waiters poll");
            channels.deliver(channel, PubSubEvent::Ended);
            refused.push(channel.clone());
        }
    }
    Ok(entered)
}

/// Channels with a listener that the server refused, as it does while rights are missing. They are tried again.
struct RejectedChannels {
    channels: Vec<Channel>,
    backoff: Backoff,
    next_retry: BootInstant,
}

impl Default for RejectedChannels {
    fn default() -> Self {
        Self {
            channels: Vec::new(),
            backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(10)),
            next_retry: BootInstant::NEVER,
        }
    }
}

impl RejectedChannels {
    fn push(&mut self, channel: Channel) {
        if self.channels.is_empty() {
            self.next_retry = BootInstant::now() + self.backoff.pause();
        }
        self.channels.push(channel);
    }

    /// Waits until they are next_retry; without end where there are none.
    async fn next_retry(&self) {
        match self.channels.is_empty() {
            true => std::future::pending().await,
            false => tokio::time::sleep_until(self.next_retry.as_timer()).await,
        }
    }

    /// Tries all of them that still have a listener, which is notified where it succeeds.
    async fn retry(
        &mut self,
        connection: &RedisConnection,
        channels: &Channels,
    ) -> Result<(), RequestError> {
        let mut wanted = std::mem::take(&mut self.channels);
        wanted.retain(|channel| channels.contains(channel));
        for channel in subscribe_all(connection, channels, wanted, self).await? {
            channels.deliver(&channel, PubSubEvent::Resubscribed);
        }
        Ok(())
    }
}

fn deliver(channels: &Channels, event: &PushEvent, connection: u64) {
    match event {
        PushEvent::Message { channel, text } => {
            channels.deliver(channel, PubSubEvent::Message { text, connection });
        }
        PushEvent::Ended { channel } => channels.deliver(channel, PubSubEvent::Ended),
    }
}

/// Carries out commands until the connection breaks (false) or nobody is left (true).
async fn serve(
    connection: &RedisConnection,
    channels: &Channels,
    commands: &mut mpsc::UnboundedReceiver<SubscriptionCmd>,
    pending: &mut Vec<SubscriptionCmd>,
    mut refused: RejectedChannels,
) -> bool {
    loop {
        if let Err(error) = apply(connection, channels, pending).await {
            tracing::warn!(%error, "subscribing failed");
            return false;
        }
        tokio::select! {
            () = connection.closed() => return false,
            taken = commands.recv_many(pending, BATCH) => if taken == 0 { return true },
            () = refused.next_retry() => {
                if let Err(error) = refused.retry(connection, channels).await {
                    tracing::warn!(%error, "subscribing again failed");
                    return false;
                }
            }
        }
    }
}

/// Brings the server's view in state with [`Channels`] for every channel named in `commands`.
///
/// What counts is who listens now, not what was ordered when: a channel left and entered again in
/// one batch stays subscribed.
async fn apply(
    connection: &RedisConnection,
    channels: &Channels,
    commands: &mut Vec<SubscriptionCmd>,
) -> Result<(), RequestError> {
    let (enter, leave) = pending_changes(channels, commands);
    if !leave.is_empty() {
        connection
            .update_subscriptions(SubscribeOp::Unsubscribe, &leave)
            .await?;
    }
    let mut outcomes = HashMap::new();
    if !enter.is_empty() {
        let answered = connection
            .update_subscriptions(SubscribeOp::Subscribe, &enter)
            .await?;
        outcomes = enter.into_iter().zip(answered).collect();
    }
    for command in commands.drain(..) {
        if let SubscriptionCmd::Subscribe { channel, done } = command {
            let _ = done.send(outcomes.get(&channel).cloned().unwrap_or(Ok(())));
        }
    }
    Ok(())
}

/// The channels to enter and to leave.
fn pending_changes(
    channels: &Channels,
    commands: &[SubscriptionCmd],
) -> (Vec<Channel>, Vec<Channel>) {
    let (mut enter, mut leave) = (Vec::new(), Vec::new());
    for command in commands {
        let (SubscriptionCmd::Subscribe { channel, .. } | SubscriptionCmd::Unsubscribe { channel }) =
            command;
        let wanted = channels.contains(channel);
        match command {
            SubscriptionCmd::Subscribe { .. } if wanted => enter.push(channel.clone()),
            SubscriptionCmd::Unsubscribe { .. } if !wanted => leave.push(channel.clone()),
            _ => {}
        }
    }
    (enter, leave)
}
