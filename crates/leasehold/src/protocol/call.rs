//! Calls: commands that are not yet sent, and how to read their replies.

use std::time::Duration;

use super::script::Script;
use crate::backend::{Admitted, Batch, Connection, Reply, RequestError};

/// Turns the replies, one per command, into an outcome or a further call.
type ReadFn<R> = Box<dyn FnOnce(Vec<Reply>) -> Result<CallStep<R>, RequestError> + Send>;

/// The result of reading the replies to a call.
pub(crate) enum CallStep<R> {
    Done(R),
    /// Nothing was changed, and this call decides.
    Next(Call<R>),
}

/// One step of a protocol, ready to be sent on any connection.
pub(crate) struct Call<R> {
    commands: Batch,
    read: ReadFn<R>,
}

impl<R> Call<R> {
    pub(crate) fn new(
        commands: Batch,
        read: impl FnOnce(Vec<Reply>) -> Result<R, RequestError> + Send + 'static,
    ) -> Self {
        Self::stepwise(commands, |replies| read(replies).map(CallStep::Done))
    }

    /// Creates a call that may need a further one.
    pub(crate) fn stepwise(
        commands: Batch,
        read: impl FnOnce(Vec<Reply>) -> Result<CallStep<R>, RequestError> + Send + 'static,
    ) -> Self {
        Self {
            commands,
            read: Box::new(read),
        }
    }

    /// Creates a call that runs a single script.
    pub(crate) fn script(
        script: &'static Script,
        keys: &[&[u8]],
        args: &[&[u8]],
        read: impl FnOnce(Vec<Reply>) -> Result<R, RequestError> + Send + 'static,
    ) -> Self {
        Self::new(script.call(keys, args), read)
    }

    /// Applies a function to the outcome.
    pub(crate) fn map<S>(self, view: impl FnOnce(R) -> S + Send + 'static) -> Call<S>
    where
        R: 'static,
        S: 'static,
    {
        let read = self.read;
        Call {
            commands: self.commands,
            read: Box::new(|replies| {
                Ok(match read(replies)? {
                    CallStep::Done(outcome) => CallStep::Done(view(outcome)),
                    CallStep::Next(call) => CallStep::Next(call.map(view)),
                })
            }),
        }
    }

    /// Sends `first` in the same request, before this call.
    pub(crate) fn after<S>(self, first: Call<S>) -> Call<(S, R)>
    where
        R: Send + 'static,
        S: Send + 'static,
    {
        let (count, read_first, read) = (first.commands.len(), first.read, self.read);
        Call::stepwise(first.commands.and(self.commands), move |mut replies| {
            let rest = replies.split_off(count);
            let CallStep::Done(outcome) = read_first(replies)? else {
                return Err(RequestError::malformed("a call that needs another", &[]));
            };
            Ok(match read(rest)? {
                CallStep::Done(other) => CallStep::Done((outcome, other)),
                CallStep::Next(call) => CallStep::Next(call.map(|other| (outcome, other))),
            })
        })
    }

    /// Makes the call wait for every node of a quorum.
    pub(crate) fn await_all_nodes(mut self) -> Self {
        self.commands.await_all_nodes = true;
        self
    }

    /// Lets the call's first request end `admitted` with its reply.
    pub(crate) fn admitted(mut self, admitted: Option<Admitted>) -> Self {
        self.commands.admitted = admitted;
        self
    }

    /// Sends the call and reads the reply.
    pub(crate) fn send(
        self,
        connection: &dyn Connection,
        timeout: Duration,
    ) -> impl Future<Output = Result<R, RequestError>> + Send {
        self.send_steps(connection, timeout, || Ok(()))
    }

    /// Sends the call and reads the reply. Before each further request of the
    /// call, `begin_step` can end it with an error.
    pub(crate) fn send_steps(
        self,
        connection: &dyn Connection,
        timeout: Duration,
        begin_step: impl Fn() -> Result<(), RequestError> + Send,
    ) -> impl Future<Output = Result<R, RequestError>> + Send {
        let await_all_nodes = self.commands.await_all_nodes;
        let mut expected = self.commands.len();
        let mut read = self.read;
        let mut request = connection.ask(self.commands, timeout);
        async move {
            loop {
                let replies = one_each(expected, request.await?)?;
                match read(replies)? {
                    CallStep::Done(outcome) => return Ok(outcome),
                    CallStep::Next(mut call) => {
                        // The first step changed nothing, so giving up here
                        // leaves nothing behind.
                        begin_step()?;
                        call.commands.await_all_nodes = await_all_nodes;
                        expected = call.commands.len();
                        read = call.read;
                        request = connection.ask(call.commands, timeout);
                    }
                }
            }
        }
    }

    /// Sends many calls as one pipeline, then their further calls as another.
    /// Each call has an outcome.
    pub(crate) async fn send_all(
        calls: Vec<Self>,
        connection: &dyn Connection,
        timeout: Duration,
    ) -> Result<Vec<Result<R, RequestError>>, RequestError> {
        let mut readers = Vec::new();
        let commands = calls.into_iter().map(|call| {
            readers.push((call.commands.len(), call.read));
            call.commands
        });
        let commands: Batch = commands.collect();
        let expected = commands.len();
        let replies = connection.ask(commands, timeout).await?;
        let mut replies = one_each(expected, replies)?.into_iter();
        let (mut outcomes, mut next) = (Vec::new(), Vec::new());
        for (at, (count, read)) in readers.into_iter().enumerate() {
            outcomes.push(match read(replies.by_ref().take(count).collect()) {
                Ok(CallStep::Done(outcome)) => Some(Ok(outcome)),
                Ok(CallStep::Next(call)) => {
                    next.push((at, call));
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        if !next.is_empty() {
            let (indices, calls): (Vec<_>, Vec<_>) = next.into_iter().unzip();
            // Few calls need a second step. They share one more pipeline.
            let later = Box::pin(Self::send_all(calls, connection, timeout)).await?;
            for (at, outcome) in indices.into_iter().zip(later) {
                outcomes[at] = Some(outcome);
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    #[cfg(test)]
    pub(crate) fn into_batch(self) -> Batch {
        self.commands
    }

    #[cfg(test)]
    pub(crate) fn read(self, replies: Vec<Reply>) -> Result<R, RequestError> {
        match (self.read)(replies)? {
            CallStep::Done(outcome) => Ok(outcome),
            CallStep::Next(_) => Err(RequestError::malformed("a call that needs another", &[])),
        }
    }
}

/// Reads the first reply with `parse`, which returns `None` for a reply that
/// `what` cannot have.
pub(crate) fn read<R>(
    what: &'static str,
    parse: impl FnOnce(&Reply) -> Option<R>,
) -> impl FnOnce(Vec<Reply>) -> Result<R, RequestError> {
    move |replies| {
        let reply = first(what, replies)?;
        parse(&reply).ok_or_else(|| RequestError::malformed(what, &[reply]))
    }
}

/// Reads 1 for done, 0 for not.
pub(crate) fn read_done(replies: Vec<Reply>) -> Result<bool, RequestError> {
    read("a script", |reply| match reply.int()? {
        done @ (0 | 1) => Some(done == 1),
        _ => None,
    })(replies)
}

/// Returns the only reply, or the first of several.
pub(crate) fn first(what: &str, replies: Vec<Reply>) -> Result<Reply, RequestError> {
    match replies.into_iter().next() {
        Some(Reply::Refused(refusal)) => Err(RequestError::Refused(refusal)),
        Some(reply) => Ok(reply),
        None => Err(RequestError::malformed(what, &[])),
    }
}

/// Checks that there is one reply per command.
fn one_each(expected: usize, replies: Vec<Reply>) -> Result<Vec<Reply>, RequestError> {
    // A proxy that drops a reply must not shift the others to the next call.
    match replies.len() == expected {
        true => Ok(replies),
        false => Err(RequestError::malformed("a pipeline", &replies)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Call<i64> {
        let read = read("a number", |reply: &Reply| reply.int());
        Call::new(Batch::new("INCR"), read)
    }

    fn two() -> Call<i64> {
        let commands = Batch::new("GET").then("PTTL");
        Call::new(commands, |replies| match replies.as_slice() {
            [Reply::Int(one), Reply::Int(two)] => Ok(one * two),
            _ => Err(RequestError::malformed("a test", &replies)),
        })
    }

    #[test]
    fn joined_calls_read_their_own_replies() {
        let replies = |numbers: &[i64]| numbers.iter().copied().map(Reply::Int).collect();
        assert_eq!(
            two().after(one()).read(replies(&[1, 2, 3])).unwrap(),
            (1, 6)
        );
        assert_eq!(
            one().after(two()).read(replies(&[1, 2, 3])).unwrap(),
            (2, 3)
        );
        assert!(
            one()
                .after(one())
                .read(vec![Reply::Nil, Reply::Int(1)])
                .is_err()
        );
        assert!(
            one()
                .after(one())
                .read(vec![Reply::Int(1), Reply::Nil])
                .is_err()
        );
    }

    #[test]
    fn joined_call_that_needs_another_is_continued() {
        let stepwise = Call::stepwise(Batch::new("GET"), |_| Ok(CallStep::Next(one())));
        let joined = stepwise.after(one());
        let next = (joined.read)(vec![Reply::Int(7), Reply::Nil]).unwrap();
        let CallStep::Next(next) = next else {
            panic!("it is done");
        };
        assert_eq!(next.read(vec![Reply::Int(8)]).unwrap(), (7, 8));
    }
}
