//! A call: commands not yet sent, and how to read what comes back.

use std::time::Duration;

use super::script::Script;
use crate::backend::{Batch, Command, Connection, Reply, RequestError};

/// Turns the replies, one per command, into an outcome or into the call that finds it out.
type Reader<R> = Box<dyn FnOnce(Vec<Reply>) -> Result<Step<R>, RequestError> + Send>;

/// What the replies to a call amount to.
pub(super) enum Step<R> {
    Done(R),
    /// Nothing was changed, and this call decides.
    Next(Call<R>),
}

/// One step of a protocol, ready to be sent to any connection.
pub(crate) struct Call<R> {
    commands: Vec<Command>,
    /// Whether every node is to be heard where several are asked, or a majority that agrees suffices.
    await_all_nodes: bool,
    read: Reader<R>,
}

impl<R> Call<R> {
    pub(super) fn new(
        commands: Vec<Command>,
        read: impl FnOnce(Vec<Reply>) -> Result<R, RequestError> + Send + 'static,
    ) -> Self {
        Self::stepwise(commands, |replies| read(replies).map(Step::Done))
    }

    /// A call that may need another one behind it.
    pub(super) fn stepwise(
        commands: Vec<Command>,
        read: impl FnOnce(Vec<Reply>) -> Result<Step<R>, RequestError> + Send + 'static,
    ) -> Self {
        Self {
            commands,
            await_all_nodes: false,
            read: Box::new(read),
        }
    }

    /// A call that runs one script and nothing else.
    pub(super) fn script(
        script: &'static Script,
        keys: &[&[u8]],
        args: &[&[u8]],
        read: impl FnOnce(Vec<Reply>) -> Result<R, RequestError> + Send + 'static,
    ) -> Self {
        Self::new(vec![script.call(keys, args)], read)
    }

    /// The same call with its outcome seen differently.
    pub(crate) fn map<S>(self, view: impl FnOnce(R) -> S + Send + 'static) -> Call<S>
    where
        R: 'static,
        S: 'static,
    {
        let read = self.read;
        Call {
            commands: self.commands,
            await_all_nodes: self.await_all_nodes,
            read: Box::new(|replies| {
                Ok(match read(replies)? {
                    Step::Done(outcome) => Step::Done(view(outcome)),
                    Step::Next(call) => Step::Next(call.map(view)),
                })
            }),
        }
    }

    /// The same call, which waits for every node where several are asked.
    pub(crate) fn await_all_nodes(mut self) -> Self {
        self.await_all_nodes = true;
        self
    }

    /// Sends it and reads the reply.
    pub(crate) fn send(
        self,
        connection: &dyn Connection,
        timeout: Duration,
    ) -> impl Future<Output = Result<R, RequestError>> + Send {
        let (mut asked, mut read) = (self.commands.len(), self.read);
        let mut asking = connection.ask(Batch::new(self.commands, self.await_all_nodes), timeout);
        async move {
            loop {
                let replies = one_each(asked, asking.await?)?;
                match read(replies)? {
                    Step::Done(outcome) => return Ok(outcome),
                    Step::Next(call) => {
                        (asked, read) = (call.commands.len(), call.read);
                        asking = connection
                            .ask(Batch::new(call.commands, self.await_all_nodes), timeout);
                    }
                }
            }
        }
    }

    /// Sends many calls as one pipeline, and behind it those that need another; each outcome stands for itself.
    pub(crate) async fn send_all(
        calls: Vec<Self>,
        connection: &dyn Connection,
        timeout: Duration,
    ) -> Result<Vec<Result<R, RequestError>>, RequestError> {
        let (mut commands, mut readers) = (Vec::new(), Vec::new());
        for call in calls {
            readers.push((call.commands.len(), call.read));
            commands.extend(call.commands);
        }
        let asked = commands.len();
        let replies = connection.ask(Batch::new(commands, false), timeout).await?;
        let mut replies = one_each(asked, replies)?.into_iter();
        let (mut outcomes, mut next) = (Vec::new(), Vec::new());
        for (at, (count, read)) in readers.into_iter().enumerate() {
            outcomes.push(match read(replies.by_ref().take(count).collect()) {
                Ok(Step::Done(outcome)) => Some(Ok(outcome)),
                Ok(Step::Next(call)) => {
                    next.push((at, call));
                    None
                }
                Err(failure) => Some(Err(failure)),
            });
        }
        if !next.is_empty() {
            let (places, calls): (Vec<_>, Vec<_>) = next.into_iter().unzip();
            let later = Box::pin(Self::send_all(calls, connection, timeout)).await?;
            for (at, outcome) in places.into_iter().zip(later) {
                outcomes[at] = Some(outcome);
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    #[cfg(test)]
    pub(crate) fn into_batch(self) -> Batch {
        self.commands.into_iter().collect()
    }

    #[cfg(test)]
    pub(crate) fn read(self, replies: Vec<Reply>) -> Result<R, RequestError> {
        match (self.read)(replies)? {
            Step::Done(outcome) => Ok(outcome),
            Step::Next(_) => Err(RequestError::malformed("a call that needs another", &[])),
        }
    }
}

/// The only answer, or the first of several.
pub(super) fn first(what: &str, replies: Vec<Reply>) -> Result<Reply, RequestError> {
    match replies.into_iter().next() {
        Some(Reply::Refused(refusal)) => Err(RequestError::Refused(refusal)),
        Some(reply) => Ok(reply),
        None => Err(RequestError::malformed(what, &[])),
    }
}

/// Makes sure that there is one answer per command.
fn one_each(asked: usize, replies: Vec<Reply>) -> Result<Vec<Reply>, RequestError> {
    match replies.len() == asked {
        true => Ok(replies),
        false => Err(RequestError::malformed("a pipeline", &replies)),
    }
}
