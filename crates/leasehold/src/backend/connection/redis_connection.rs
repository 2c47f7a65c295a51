//! One authenticated connection to one server.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::endpoint::Endpoint;
use super::handshake::Role;
use super::matching::PushEvent;
use super::request::{Deadline, SubscribeOp, Unanswered};
use super::wire::Wire;
use crate::backend::error::WAIT_ON_REPLICA;
use crate::backend::{
    Admission, Batch, BoxFuture, Channel, Connection, Reply, RequestError, ServerError,
    ServerErrorKind, ServerFacts,
};
use crate::info::Messages;
use crate::observe::{Event, Observers};
use crate::sync::Mutex;
use crate::time::BootInstant;
use tokio::runtime::Handle;

/// An authenticated connection. Replies are matched and sealed, so a reply is
/// never attributed to another request.
pub(crate) struct RedisConnection {
    id: u64,
    /// The server's address, for messages.
    server: String,
    /// The host of that address.
    host: String,
    facts: Arc<ServerFacts>,
    wire: Arc<Wire>,
    /// How many requests the handshake consisted of.
    handshake_requests: usize,
    /// How long the server may take to confirm a subscription change. Equal to
    /// the connect timeout, since reconnecting includes subscribing again.
    subscribe_timeout: Duration,
    observers: Observers,
    /// Whether a new connection may log in with other credentials.
    has_provider: bool,
    admission: Arc<Admission>,
    /// The sources of scripts that are on their way to the server.
    loading: Mutex<Vec<&'static str>>,
}

impl RedisConnection {
    /// Connects on the current runtime, which then owns the connection.
    /// Deadlines are checked on `keeper`. `on_event` is called for every push
    /// with the connection's id, and must not block.
    pub(crate) async fn connect(
        endpoint: &Endpoint,
        name: &'static str,
        role: Role,
        keeper: &Handle,
        on_event: impl Fn(PushEvent, u64) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, RequestError> {
        static ID: AtomicU64 = AtomicU64::new(1);
        let id = ID.fetch_add(1, Ordering::Relaxed);
        let on_event = Box::new(move |event| on_event(event, id));
        let (wire, facts) = endpoint.connect(name, role, keeper, on_event).await?;
        let server = format!("{endpoint:?}");
        let observers = endpoint.observers().clone();
        // Observers hear of servers that hold locks. Without observers we save
        // the task.
        if role != Role::Sentinel && !observers.is_empty() {
            Uplink::report(server.clone(), &facts.version, &wire, observers.clone());
        }
        Ok(Arc::new(Self {
            id,
            server,
            host: endpoint.host(),
            facts: Arc::new(facts),
            handshake_requests: wire.completed(),
            wire,
            subscribe_timeout: endpoint.connect_timeout(),
            observers,
            has_provider: endpoint.has_provider(),
            admission: Admission::new(),
            loading: Mutex::default(),
        }))
    }

    /// Returns whether the connection accepts new requests.
    pub(crate) fn is_open(&self) -> bool {
        self.wire.is_open()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.wire.is_closed()
    }

    pub(crate) fn close(&self) {
        self.wire.close("the client closed the connection");
    }

    /// Ends the connection for new requests. It stays open while requests in
    /// flight may be answered, but not for long.
    pub(crate) fn retire(&self) {
        self.wire.retire();
        self.admission.end();
    }

    /// Returns whether the server has replied to a request since the handshake.
    pub(crate) fn has_replied(&self) -> bool {
        self.wire.completed() > self.handshake_requests
    }

    /// Waits until the connection accepts no new requests.
    pub(crate) async fn ended(&self) {
        self.wire.ended().await;
    }

    /// Returns the server's address, for messages.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Returns the host of the server's address.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Sends `batch` and waits for the replies. Scripts unknown to the server
    /// are sent again with their source.
    ///
    /// # Cancel safety
    ///
    /// A dropped request keeps the position: the server executes every later
    /// request after it, if it executes the dropped one at all. After a drop
    /// nothing is sent again.
    pub(crate) async fn exchange(
        &self,
        mut batch: Batch,
        timeout: Duration,
    ) -> Result<Vec<Reply>, RequestError> {
        let (commands, admitted) = (batch.len(), batch.admitted.take());
        let start = (!self.observers.is_empty()).then(BootInstant::now);
        let deadline = self.wire.deadline(timeout);
        let mut outcome = self.wire.request(&batch, deadline).ending(admitted).await;
        if let Ok(replies) = &mut outcome
            && replies
                .iter()
                .any(|reply| reply.is_refused(ServerErrorKind::NoScript))
        {
            // Boxed because it happens once per script and server.
            let sending = Box::pin(self.send_sources(&batch, replies, deadline));
            outcome = match sending.await {
                Ok(()) => outcome,
                Err(unanswered) => Err(unanswered),
            };
        }
        self.report_request(commands, start, outcome.is_ok());
        let mut replies = outcome.map_err(|unanswered| self.unknown(unanswered, timeout))?;
        self.check_usable(&mut replies);
        Ok(replies)
    }

    /// Closes the connection if the server has become a replica, or has ended
    /// the login.
    fn check_usable(&self, replies: &mut [Reply]) {
        // A former master never accepts writes again: callers look for the new
        // one as soon as the connection is closed.
        if replies.iter().any(is_demoted) {
            self.close();
        }
        if !self.has_provider {
            return;
        }
        for reply in replies {
            if let Reply::Refused(error) = reply
                && error.message.starts_with("NOAUTH")
            {
                // The next connection asks the provider, so callers retry.
                error.kind = ServerErrorKind::Temporary;
                self.close();
            }
        }
    }

    fn report_request(&self, commands: usize, start: Option<BootInstant>, replied: bool) {
        if let Some(start) = start {
            let event = Event::RequestDone {
                server: &self.server,
                commands,
                elapsed: BootInstant::now().since(start),
                replied,
            };
            self.observers.notify(&event);
        }
    }

    /// Sends unknown scripts again, with their source.
    ///
    /// After a restart, the server knows none of the scripts in flight. One
    /// request sends the source of each. The others send the digest behind it,
    /// or a slow link would carry nothing but sources.
    async fn send_sources(
        &self,
        batch: &Batch,
        replies: &mut [Reply],
        deadline: Deadline,
    ) -> Result<(), Unanswered> {
        let loading = Loading::begin(&self.loading, batch, unknown_scripts(replies));
        self.send_again(batch, replies, deadline, |index| loading.has(index))
            .await?;
        // Still unknown if another request's source did not arrive first.
        self.send_again(batch, replies, deadline, |_| true).await
    }

    /// Sends unknown scripts again, those that `has_source` chooses with their
    /// source.
    async fn send_again(
        &self,
        batch: &Batch,
        replies: &mut [Reply],
        deadline: Deadline,
        has_source: impl Fn(usize) -> bool,
    ) -> Result<(), Unanswered> {
        let mut indices: Vec<_> = unknown_scripts(replies).collect();
        let Some(first) = indices.first().copied() else {
            return Ok(());
        };
        // `WAIT` must follow the writes that it waits for, in their order.
        if (0..batch.len()).any(|index| batch.is_wait(index)) {
            indices = (first..batch.len()).collect();
        }
        let again = indices.iter().filter_map(|index| match has_source(*index) {
            true => batch.with_source(*index).or_else(|| batch.command(*index)),
            false => batch.command(*index),
        });
        let again = again.collect();
        let new_replies = self.wire.request(&again, deadline).await?;
        for (index, reply) in indices.into_iter().zip(new_replies) {
            replies[index] = reply;
        }
        Ok(())
    }

    /// Subscribes or unsubscribes, and waits for the confirmation. The inner
    /// errors are the server's.
    pub(crate) async fn update_subscriptions(
        &self,
        op: SubscribeOp,
        channels: &[Channel],
    ) -> Result<Vec<Result<(), ServerError>>, RequestError> {
        let timeout = self.subscribe_timeout;
        let deadline = self.wire.deadline(timeout);
        let mut replies = self
            .wire
            .update_subscriptions(op, &self.carried(channels), deadline)
            .await
            .map_err(|unanswered| self.unknown(unanswered, timeout))?;
        self.check_usable(&mut replies);
        let outcome = |reply| match reply {
            Reply::Refused(error) => Err(error),
            _ => Ok(()),
        };
        Ok(replies.into_iter().map(outcome).collect())
    }

    /// Returns whether the server has confirmed a subscription to `channel`.
    pub(crate) fn is_subscribed(&self, channel: &Channel) -> bool {
        let carried = self.carried(std::slice::from_ref(channel));
        carried
            .iter()
            .all(|channel| self.wire.is_subscribed(channel))
    }

    /// Returns the channels that carry the messages of `channels` on this
    /// connection.
    fn carried<'a>(&self, channels: &'a [Channel]) -> Cow<'a, [Channel]> {
        match self.facts.capabilities.messages {
            Messages::Classic => channels.iter().map(Channel::as_classic).collect(),
            // A polled server refuses the subscription, until an operator
            // grants the permission.
            Messages::Sharded | Messages::Polled => channels.into(),
        }
    }

    /// Returns the error of a request without replies. Retires the connection
    /// if it was silent for the whole timeout.
    fn unknown(&self, unanswered: Unanswered, timeout: Duration) -> RequestError {
        let why = match unanswered {
            Unanswered::Closed(reason) => reason,
            Unanswered::TimedOut => {
                // If other replies arrived meanwhile, only this request is slow
                // and the connection still works.
                self.retire_if_silent(timeout);
                format!("no reply within {timeout:?}").into()
            }
        };
        RequestError::Unknown(format!("{}: {why}", self.server).into())
    }

    /// Sends one command about the server itself, such as `ROLE`.
    pub(crate) async fn query(
        &self,
        words: &[&str],
        timeout: Duration,
    ) -> Result<Reply, RequestError> {
        let command = Batch::new(words[0]);
        let command = words[1..].iter().fold(command, Batch::arg);
        match self.exchange(command, timeout).await?.pop() {
            Some(Reply::Refused(error)) => Err(RequestError::Refused(error)),
            Some(reply) => Ok(reply),
            None => Err(RequestError::malformed(words[0], &[])),
        }
    }
}

/// The scripts whose source one request sends, until it has the reply.
struct Loading<'a> {
    all: &'a Mutex<Vec<&'static str>>,
    /// The index of each in the batch, and the source.
    own: Vec<(usize, &'static str)>,
}

impl<'a> Loading<'a> {
    /// Adds those at `indices` to `all`, except the ones that are there.
    fn begin(
        all: &'a Mutex<Vec<&'static str>>,
        batch: &Batch,
        indices: impl Iterator<Item = usize>,
    ) -> Self {
        let mut loading = all.lock();
        let mut own = Vec::new();
        for (index, source) in indices.filter_map(|index| Some((index, batch.source(index)?))) {
            if !loading.contains(&source) {
                loading.push(source);
                own.push((index, source));
            }
        }
        drop(loading);
        Self { all, own }
    }

    fn has(&self, index: usize) -> bool {
        self.own.iter().any(|(own, _)| *own == index)
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let is_own = |source: &&str| self.own.iter().any(|(_, own)| own == source);
        self.all.lock().retain(|source| !is_own(source));
    }
}

/// Returns the indices of scripts that the server does not know.
fn unknown_scripts(replies: &[Reply]) -> impl Iterator<Item = usize> {
    let replies = replies.iter().enumerate();
    let unknown = replies.filter(|(_, reply)| reply.is_refused(ServerErrorKind::NoScript));
    unknown.map(|(index, _)| index)
}

impl Drop for RedisConnection {
    /// Stops the reading task with the last handle.
    fn drop(&mut self) {
        self.close();
    }
}

impl Connection for RedisConnection {
    fn facts(&self) -> Arc<ServerFacts> {
        self.facts.clone()
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn admission(&self) -> Option<Arc<Admission>> {
        Some(self.admission.clone())
    }

    fn has_ended(&self) -> bool {
        !self.is_open()
    }

    fn is_silent_for(&self, time: Duration) -> bool {
        !self.is_open() || self.wire.is_silent_for(time)
    }

    fn retire_if_silent(&self, time: Duration) {
        if self.wire.is_silent_for(time) {
            self.retire();
        }
    }

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        Box::pin(self.exchange(batch, timeout))
    }
}

/// Reports a connection's end when it is dropped, also with the runtime that
/// owns the connection.
struct Uplink {
    server: String,
    wire: Arc<Wire>,
    observers: Observers,
}

impl Uplink {
    /// Reports that a connection is established, and later that it is closed.
    fn report(server: String, version: &str, wire: &Arc<Wire>, observers: Observers) {
        let event = Event::ConnectionUp {
            server: &server,
            version,
        };
        observers.notify(&event);
        let uplink = Self {
            server,
            wire: wire.clone(),
            observers,
        };
        tokio::spawn(async move { uplink.wire.closed().await });
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        if !self.wire.is_own() {
            return;
        }
        let event = Event::ConnectionDown {
            server: &self.server,
            reason: &self.wire.close_reason(),
        };
        self.observers.notify(&event);
    }
}

/// Returns whether the server has become a replica. The caller then has to find
/// the new master.
fn is_demoted(reply: &Reply) -> bool {
    let words = ["READONLY", "MASTERDOWN", WAIT_ON_REPLICA];
    matches!(reply, Reply::Refused(error) if words.iter().any(|word| error.message.contains(word)))
}
