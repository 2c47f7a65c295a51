//! The keeper's connection to a node, with all subscriptions there.
//!
//! A task keeps the connection up and subscribes to every channel that has a
//! listener. It replaces a connection on which the server does not confirm
//! (invariants 3 and 4 of the layer).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use super::RedisConnection;
use super::channels::Channels;
use super::matching::PushEvent;
use super::opened::OpenedConnections;
use super::reconnect::{Demand, ReconnectDelay};
use super::request::SubscribeOp;
use crate::backend::topology::Master;
use crate::backend::{
    Backoff, Channel, Connection, Listener, PubSubEvent, RequestError, ServerError, Subscription,
    Unsubscribe,
};
use crate::info::Messages;
use crate::time::BootInstant;

/// The maximum number of channels per pipeline, and of commands per round.
const BATCH: usize = 500;

/// A connection that a background task keeps up, with subscriptions.
pub(crate) struct SupervisedConnection {
    commands: mpsc::UnboundedSender<SubscriptionCmd>,
    connection: watch::Receiver<ConnectionState>,
    opened: Arc<OpenedConnections>,
    channels: Arc<Channels>,
    connect_timeout: Duration,
    demand: Arc<Demand>,
}

/// Called with `true` after connecting, and with `false` when the connection is
/// lost or cannot be made.
pub(crate) type OnStateChange = Arc<dyn Fn(bool) + Send + Sync>;

/// The connection's state.
#[derive(Clone)]
enum ConnectionState {
    Up(Arc<RedisConnection>),
    Down(Arc<str>),
}

/// A command to the task.
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
    pub(crate) fn start(master: Master, runtime: &Handle, on_state_change: OnStateChange) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (sender, connection) =
            watch::channel(ConnectionState::Down("not yet connected".into()));
        let state = StateReporter {
            sender,
            opened: Arc::default(),
            on_state_change,
        };
        let opened = state.opened.clone();
        let channels = Arc::new(Channels::default());
        let connect_timeout = master.connect_timeout();
        let demand = Arc::new(Demand::default());
        runtime.spawn(supervise(
            master,
            runtime.clone(),
            channels.clone(),
            inbox,
            state,
            demand.clone(),
        ));
        Self {
            commands,
            connection,
            opened,
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

    /// Returns all open connections, also retired ones.
    pub(crate) fn connections(&self) -> Vec<Arc<RedisConnection>> {
        self.opened.all()
    }

    /// Returns the connection, waiting up to the connect timeout.
    pub(crate) async fn connection(&self) -> Result<Arc<RedisConnection>, RequestError> {
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        // Shortens the pause before the next attempt while we wait.
        let _demand = self.demand.register();
        let mut connection = self.connection.clone();
        let up = connection.wait_for(
            |state| matches!(state, ConnectionState::Up(connection) if connection.is_open()),
        );
        match tokio::time::timeout(self.connect_timeout, up).await {
            Ok(Ok(state)) => match &*state {
                ConnectionState::Up(connection) => Ok(connection.clone()),
                ConnectionState::Down(_) => unreachable!("BUG: waited for a connection"),
            },
            Ok(Err(_)) => Err(RequestError::ShutDown),
            Err(_) => Err(RequestError::Unreachable(
                match &*self.connection.borrow() {
                    ConnectionState::Up(_) => "the connection was lost".into(),
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
        // Before the command: a reconnect in between then subscribes, too.
        let id = self.channels.insert(channel.clone(), listener);
        let subscription = Subscription::new(Box::new(ChannelGuard {
            channel: channel.clone(),
            id,
            channels: self.channels.clone(),
            commands: self.commands.clone(),
        }));
        let (done, confirmed) = oneshot::channel();
        let sent = self
            .commands
            .send(SubscriptionCmd::Subscribe { channel, done });
        let _demand = self.demand.register();
        match (sent, confirmed.await) {
            (Ok(()), Ok(Ok(()))) => Ok(subscription),
            (Ok(()), Ok(Err(error))) => Err(RequestError::Refused(error)),
            _ => Err(RequestError::ShutDown),
        }
    }
}

/// Unsubscribes when dropped.
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

/// Publishes the connection's state.
struct StateReporter {
    sender: watch::Sender<ConnectionState>,
    opened: Arc<OpenedConnections>,
    on_state_change: OnStateChange,
}

impl StateReporter {
    fn report(&self, state: ConnectionState) {
        let is_up = match &state {
            ConnectionState::Up(connection) => {
                self.opened.add(connection);
                true
            }
            ConnectionState::Down(_) => false,
        };
        self.sender.send_replace(state);
        (self.on_state_change)(is_up);
    }
}

/// Keeps the connection up until all senders of commands are dropped.
async fn supervise(
    master: Master,
    keeper: Handle,
    channels: Arc<Channels>,
    mut commands: mpsc::UnboundedReceiver<SubscriptionCmd>,
    state: StateReporter,
    demand: Arc<Demand>,
) {
    let mut delay = ReconnectDelay::default();
    let mut pending = Vec::new();
    loop {
        let mut refused = RefusedChannels::default();
        match connect(&master, &keeper, &channels).await {
            Ok(connection) => {
                tracing::debug!(
                    server = connection.server(),
                    version = connection.facts().version,
                    "connected"
                );
                report_messages(&connection);
                state.report(ConnectionState::Up(connection.clone()));
                let restored = resubscribe_all(&connection, &channels, &mut refused).await;
                let is_shut_down = restored
                    && serve(&connection, &channels, &mut commands, &mut pending, refused).await;
                // Only after a reply: we would otherwise redial, without a
                // pause, a server that accepts connections but does not answer
                // on them.
                if connection.has_replied() {
                    delay = ReconnectDelay::default();
                }
                // Also after an error: new requests must not go on using it.
                connection.retire();
                state.report(ConnectionState::Down("the connection was lost".into()));
                if is_shut_down {
                    return;
                }
                tracing::info!(
                    server = connection.server(),
                    "connection lost, reconnecting"
                );
            }
            Err(error) => {
                tracing::warn!(%error, "cannot connect, retrying");
                state.report(ConnectionState::Down(error.to_string().into()));
            }
        }
        if collect_commands(delay.next(&demand), &mut commands, &mut pending).await {
            return;
        }
    }
}

/// Logs how messages arrive, if not by sharded channels.
fn report_messages(connection: &RedisConnection) {
    let server = connection.server();
    match connection.facts().capabilities.messages {
        Messages::Sharded => {}
        Messages::Classic => tracing::info!(
            server,
            "the server or the user's ACL has no sharded pub/sub; using classic pub/sub"
        ),
        Messages::Polled => tracing::warn!(
            server,
            "the server or the user's ACL has no pub/sub; waiters poll, and revoked locks are \
             noticed at the next renewal"
        ),
    }
}

/// Collects commands during `pause`. Returns `true` when all senders are
/// dropped.
///
/// Only commands whose caller still waits are kept, so they do not accumulate
/// during a long outage. A new connection has nothing to unsubscribe.
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
    keeper: &Handle,
    channels: &Arc<Channels>,
) -> Result<Arc<RedisConnection>, RequestError> {
    let channels = channels.clone();
    let on_event = move |event, connection| deliver(&channels, &event, connection);
    master.connect(keeper, "leasehold-keeper", on_event).await
}

/// Subscribes to all channels on a new connection, which carries requests
/// meanwhile. Notifies every listener that messages may be lost. Returns
/// `false` when the connection is unusable.
async fn resubscribe_all(
    connection: &RedisConnection,
    channels: &Channels,
    refused: &mut RefusedChannels,
) -> bool {
    match subscribe_all(connection, channels, channels.all(), refused).await {
        Ok(subscribed) => {
            for channel in &subscribed {
                channels.deliver(channel, PubSubEvent::Resubscribed);
            }
            true
        }
        Err(error) => {
            tracing::warn!(%error, "cannot renew subscriptions");
            false
        }
    }
}

/// Subscribes to channels that have a listener. Returns those that the server
/// confirmed.
async fn subscribe_all(
    connection: &RedisConnection,
    channels: &Channels,
    wanted: Vec<Channel>,
    refused: &mut RefusedChannels,
) -> Result<Vec<Channel>, RequestError> {
    let mut subscribed = Vec::new();
    for batch in wanted.chunks(BATCH) {
        let outcomes = connection
            .update_subscriptions(SubscribeOp::Subscribe, batch)
            .await?;
        for (channel, outcome) in batch.iter().zip(outcomes) {
            let Err(error) = outcome else {
                subscribed.push(channel.clone());
                continue;
            };
            tracing::warn!(%error, "subscription refused, waiters fall back to polling");
            channels.deliver(channel, PubSubEvent::Ended);
            refused.push(channel.clone());
        }
    }
    Ok(subscribed)
}

/// Channels that the server refused, for example because an ACL denies them.
/// They are retried.
struct RefusedChannels {
    channels: Vec<Channel>,
    backoff: Backoff,
    next_retry: BootInstant,
}

impl Default for RefusedChannels {
    fn default() -> Self {
        Self {
            channels: Vec::new(),
            backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(10)),
            next_retry: BootInstant::NEVER,
        }
    }
}

impl RefusedChannels {
    fn push(&mut self, channel: Channel) {
        // The first refused channel sets the time for all that follow.
        if self.channels.is_empty() {
            self.next_retry = BootInstant::now() + self.backoff.pause();
        }
        self.channels.push(channel);
    }

    /// Waits for the next retry; forever if no channel was refused.
    async fn next_retry(&self) {
        match self.channels.is_empty() {
            true => std::future::pending().await,
            false => tokio::time::sleep_until(self.next_retry.as_timer()).await,
        }
    }

    /// Retries all channels that still have a listener, and notifies the
    /// listeners of those that succeed.
    async fn retry(
        &mut self,
        connection: &RedisConnection,
        channels: &Channels,
    ) -> Result<(), RequestError> {
        let mut wanted = std::mem::take(&mut self.channels);
        // Listeners may have left since.
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

/// Executes commands until the connection is retired or closed (`false`), or
/// all senders are dropped (`true`).
async fn serve(
    connection: &RedisConnection,
    channels: &Channels,
    commands: &mut mpsc::UnboundedReceiver<SubscriptionCmd>,
    pending: &mut Vec<SubscriptionCmd>,
    mut refused: RefusedChannels,
) -> bool {
    loop {
        if let Err(error) = apply(connection, channels, pending).await {
            tracing::warn!(%error, "cannot update subscriptions");
            return false;
        }
        tokio::select! {
            () = connection.ended() => return false,
            count = commands.recv_many(pending, BATCH) => if count == 0 { return true },
            () = refused.next_retry() => {
                if let Err(error) = refused.retry(connection, channels).await {
                    tracing::warn!(%error, "cannot renew subscriptions");
                    return false;
                }
            }
        }
    }
}

/// Updates the server's subscriptions for every channel in `commands`.
///
/// The current listeners decide, not the order of the commands: a channel that
/// is unsubscribed and subscribed again in one batch stays subscribed.
async fn apply(
    connection: &RedisConnection,
    channels: &Channels,
    commands: &mut Vec<SubscriptionCmd>,
) -> Result<(), RequestError> {
    let (mut subscribe, mut unsubscribe) = pending_changes(channels, commands);
    // A new connection has subscribed to channels whose command comes later.
    subscribe.retain(|channel| !connection.is_subscribed(channel));
    // The server may have refused the subscription, or ended it.
    unsubscribe.retain(|channel| connection.is_subscribed(channel));
    if !unsubscribe.is_empty() {
        connection
            .update_subscriptions(SubscribeOp::Unsubscribe, &unsubscribe)
            .await?;
    }
    let mut outcomes = HashMap::new();
    if !subscribe.is_empty() {
        let results = connection
            .update_subscriptions(SubscribeOp::Subscribe, &subscribe)
            .await?;
        outcomes = subscribe.into_iter().zip(results).collect();
    }
    for command in commands.drain(..) {
        if let SubscriptionCmd::Subscribe { channel, done } = command {
            // A channel without an outcome was subscribed already. The caller
            // may have given up.
            let _ = done.send(outcomes.get(&channel).cloned().unwrap_or(Ok(())));
        }
    }
    Ok(())
}

/// Returns the channels to subscribe to and to unsubscribe from.
fn pending_changes(
    channels: &Channels,
    commands: &[SubscriptionCmd],
) -> (Vec<Channel>, Vec<Channel>) {
    let (mut subscribe, mut unsubscribe) = (Vec::new(), Vec::new());
    for command in commands {
        let (SubscriptionCmd::Subscribe { channel, .. } | SubscriptionCmd::Unsubscribe { channel }) =
            command;
        let wanted = channels.contains(channel);
        match command {
            SubscriptionCmd::Subscribe { .. } if wanted => subscribe.push(channel.clone()),
            SubscriptionCmd::Unsubscribe { .. } if !wanted => unsubscribe.push(channel.clone()),
            _ => {}
        }
    }
    (subscribe, unsubscribe)
}
