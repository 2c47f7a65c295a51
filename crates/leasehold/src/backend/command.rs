//! Commands on their way: the driver's own form, so that nothing is copied before it is sent.

use std::fmt;

use redis::{Arg, Cmd, Pipeline};

/// One command: its name and arguments as bytes.
#[derive(Clone)]
pub(crate) struct Command {
    sent: Cmd,
    /// The script that it names by its digest, for a server that does not know it yet.
    source: Option<&'static str>,
}

impl Command {
    pub(crate) fn new(name: &str) -> Self {
        let mut command = Cmd::with_capacity(8, 256);
        command.arg(name);
        Self {
            sent: command,
            source: None,
        }
    }

    /// `EVALSHA` of a script; where the server does not know `digest`, `source` is sent in its place.
    pub(crate) fn script(digest: &str, source: &'static str) -> Self {
        let mut command = Self::new("EVALSHA").arg(digest);
        command.source = Some(source);
        command
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.sent.arg(arg.as_ref());
        self
    }

    pub(crate) fn number(mut self, number: u64) -> Self {
        self.sent.arg(number);
        self
    }
}

/// Commands that are sent together, and answered in the same order.
#[derive(Clone, Default)]
pub(crate) struct Batch {
    commands: Vec<Command>,
    /// Whether every node is to be heard, where several are asked.
    pub(super) of_all: bool,
}

impl Batch {
    pub(crate) fn new(commands: Vec<Command>, of_all: bool) -> Self {
        Self { commands, of_all }
    }

    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// The arguments of the command at `index`, its name first.
    pub(crate) fn args(&self, index: usize) -> impl Iterator<Item = &[u8]> {
        let command = self.commands.get(index);
        command.into_iter().flat_map(|command| args(&command.sent))
    }

    /// These and one more.
    pub(super) fn followed_by(mut self, command: Command) -> Self {
        self.commands.push(command);
        self
    }

    /// These and all of `others`.
    pub(super) fn append(&mut self, others: Self) {
        self.commands.extend(others.commands);
    }

    /// The commands at `indices` alone.
    pub(super) fn part(&self, indices: &[usize]) -> Self {
        indices
            .iter()
            .filter_map(|index| self.command(*index))
            .collect()
    }

    pub(super) fn command(&self, index: usize) -> Option<Command> {
        self.commands.get(index).cloned()
    }

    /// The script at `index` as `EVAL`, which also teaches it to the server.
    pub(super) fn with_source(&self, index: usize) -> Option<Command> {
        let command = self.commands.get(index)?;
        Some(eval(&command.sent, command.source?))
    }
}

impl FromIterator<Command> for Batch {
    fn from_iter<I: IntoIterator<Item = Command>>(commands: I) -> Self {
        Self::new(commands.into_iter().collect(), false)
    }
}

/// A batch in the form in which the driver sends it.
pub(super) struct Outgoing {
    pipeline: Pipeline,
    sources: Vec<Option<&'static str>>,
}

impl Outgoing {
    pub(super) fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The script at `index` as `EVAL`.
    pub(super) fn with_source(&self, index: usize) -> Option<Command> {
        let source = (*self.sources.get(index)?)?;
        Some(eval(self.pipeline.cmd_iter().nth(index)?, source))
    }
}

impl From<Batch> for Outgoing {
    fn from(batch: Batch) -> Self {
        let mut pipeline = Pipeline::with_capacity(batch.len());
        let mut sources = Vec::with_capacity(batch.len());
        for command in batch.commands {
            pipeline.add_command(command.sent);
            sources.push(command.source);
        }
        Self { pipeline, sources }
    }
}

fn args(command: &Cmd) -> impl Iterator<Item = &[u8]> {
    command.args_iter().map(|arg| match arg {
        Arg::Simple(bytes) => bytes,
        _ => &[],
    })
}

/// A call by digest as one by source.
fn eval(by_digest: &Cmd, source: &str) -> Command {
    let rest = args(by_digest).skip(2);
    rest.fold(Command::new("EVAL").arg(source), Command::arg)
}

impl fmt::Debug for Batch {
    /// Shows names only: arguments hold owners, and an owner is the power to release.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = (0..self.len()).filter_map(|index| self.args(index).next());
        f.debug_list()
            .entries(names.map(String::from_utf8_lossy))
            .finish()
    }
}
