//! A call: commands not yet sent, and how to read what comes back.

use std::time::Duration;

use super::script::Script;
use crate::backend::{Batch, Command, Failure, Link, Reply};

/// Turns the answers, one per command, into an outcome.
type Reader<R> = Box<dyn FnOnce(Vec<Reply>) -> Result<R, Failure> + Send>;

/// One step of a protocol, ready to be sent to any link.
pub(crate) struct Call<R> {
    commands: Vec<Command>,
    /// Whether every node is to be heard where several are asked, or a majority that agrees suffices.
    of_all: bool,
    read: Reader<R>,
}

impl<R> Call<R> {
    pub(super) fn new(
        commands: Vec<Command>,
        read: impl FnOnce(Vec<Reply>) -> Result<R, Failure> + Send + 'static,
    ) -> Self {
        Self {
            commands,
            of_all: false,
            read: Box::new(read),
        }
    }

    /// A call that runs one script and nothing else.
    pub(super) fn script(
        script: &'static Script,
        keys: &[&[u8]],
        args: &[&[u8]],
        read: impl FnOnce(Vec<Reply>) -> Result<R, Failure> + Send + 'static,
    ) -> Self {
        Self {
            commands: vec![script.call(keys, args)],
            of_all: false,
            read: Box::new(read),
        }
    }

    /// The same call with its outcome seen differently.
    pub(crate) fn map<S>(self, view: impl FnOnce(R) -> S + Send + 'static) -> Call<S>
    where
        R: 'static,
    {
        let read = self.read;
        Call {
            commands: self.commands,
            of_all: self.of_all,
            read: Box::new(|replies| read(replies).map(view)),
        }
    }

    /// The same call, which waits for every node where several are asked.
    pub(crate) fn of_all(mut self) -> Self {
        self.of_all = true;
        self
    }

    /// Sends it and reads the answer.
    pub(crate) fn send(
        self,
        link: &dyn Link,
        patience: Duration,
    ) -> impl Future<Output = Result<R, Failure>> + Send {
        let (asked, read) = (self.commands.len(), self.read);
        let asking = link.ask(Batch::new(self.commands, self.of_all), patience);
        async move { read(one_each(asked, asking.await?)?) }
    }

    /// Sends many calls as one pipeline; each outcome stands for itself.
    pub(crate) async fn send_all(
        calls: Vec<Self>,
        link: &dyn Link,
        patience: Duration,
    ) -> Result<Vec<Result<R, Failure>>, Failure> {
        let (mut commands, mut readers) = (Vec::new(), Vec::new());
        for call in calls {
            readers.push((call.commands.len(), call.read));
            commands.extend(call.commands);
        }
        let asked = commands.len();
        let replies = link.ask(Batch::new(commands, false), patience).await?;
        let mut replies = one_each(asked, replies)?.into_iter();
        Ok(readers
            .into_iter()
            .map(|(count, read)| read(replies.by_ref().take(count).collect()))
            .collect())
    }

    #[cfg(test)]
    pub(crate) fn into_batch(self) -> Batch {
        self.commands.into_iter().collect()
    }

    #[cfg(test)]
    pub(crate) fn read(self, replies: Vec<Reply>) -> Result<R, Failure> {
        (self.read)(replies)
    }
}

/// The only answer, or the first of several.
pub(super) fn first(what: &str, replies: Vec<Reply>) -> Result<Reply, Failure> {
    match replies.into_iter().next() {
        Some(Reply::Refused(refusal)) => Err(Failure::Refused(refusal)),
        Some(reply) => Ok(reply),
        None => Err(Failure::malformed(what, &[])),
    }
}

/// Makes sure that there is one answer per command.
fn one_each(asked: usize, replies: Vec<Reply>) -> Result<Vec<Reply>, Failure> {
    match replies.len() == asked {
        true => Ok(replies),
        false => Err(Failure::malformed("a pipeline", &replies)),
    }
}
