//! Commands on their way: the driver's own form, so that nothing is copied before it is sent.

use std::fmt;

use redis::{Arg, Cmd, Pipeline};

/// One command: its name and arguments as bytes.
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
#[derive(Clone)]
pub(crate) struct Batch {
    pipeline: Pipeline,
    /// Which of them run a script, and its source.
    sources: Vec<(usize, &'static str)>,
    /// Whether every node is to be heard, where several are asked.
    pub(super) of_all: bool,
}

impl Batch {
    pub(crate) fn new(commands: Vec<Command>, of_all: bool) -> Self {
        let mut batch: Self = commands.into_iter().collect();
        batch.of_all = of_all;
        batch
    }

    pub(crate) fn len(&self) -> usize {
        self.pipeline.len()
    }

    /// The arguments of the command at `index`, its name first.
    pub(crate) fn args(&self, index: usize) -> impl Iterator<Item = &[u8]> {
        let command = self.pipeline.cmd_iter().nth(index);
        command
            .into_iter()
            .flat_map(Cmd::args_iter)
            .map(|arg| match arg {
                Arg::Simple(bytes) => bytes,
                _ => &[],
            })
    }

    pub(super) fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// These and one more.
    pub(super) fn followed_by(mut self, command: Command) -> Self {
        self.pipeline.add_command(command.sent);
        self
    }

    /// The commands at `indices` alone.
    pub(super) fn part(&self, indices: &[usize]) -> Self {
        indices
            .iter()
            .filter_map(|index| self.command(*index))
            .collect()
    }

    pub(super) fn command(&self, index: usize) -> Option<Command> {
        let sent = self.pipeline.cmd_iter().nth(index)?.clone();
        let source = self.sources.iter().find(|(at, _)| *at == index);
        let source = source.map(|(_, source)| *source);
        Some(Command { sent, source })
    }

    /// The script at `index` as `EVAL`, which also teaches it to the server.
    pub(super) fn with_source(&self, index: usize) -> Option<Command> {
        let (_, source) = self.sources.iter().find(|(at, _)| *at == index)?;
        let rest = self.args(index).skip(2);
        Some(rest.fold(Command::new("EVAL").arg(source), Command::arg))
    }
}

impl FromIterator<Command> for Batch {
    fn from_iter<I: IntoIterator<Item = Command>>(commands: I) -> Self {
        let commands = commands.into_iter();
        let mut pipeline = Pipeline::with_capacity(commands.size_hint().0);
        let mut sources = Vec::new();
        for (index, command) in commands.enumerate() {
            pipeline.add_command(command.sent);
            sources.extend(command.source.map(|source| (index, source)));
        }
        Self {
            pipeline,
            sources,
            of_all: false,
        }
    }
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
