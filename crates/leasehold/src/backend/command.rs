//! Commands on their way: the driver's own form, so that nothing is copied before it is sent.

use std::fmt;

use redis::{Arg, Cmd, Pipeline};

/// One command: its name and arguments as bytes.
pub(crate) struct Command(Cmd);

impl Command {
    pub(crate) fn new(name: &str) -> Self {
        let mut command = Cmd::with_capacity(8, 256);
        command.arg(name);
        Self(command)
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.0.arg(arg.as_ref());
        self
    }

    pub(crate) fn number(mut self, number: u64) -> Self {
        self.0.arg(number);
        self
    }
}

/// Commands that are sent together, and answered in the same order.
pub(crate) struct Batch(Pipeline);

impl Batch {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The arguments of the command at `index`, its name first.
    pub(crate) fn args(&self, index: usize) -> impl Iterator<Item = &[u8]> {
        let command = self.0.cmd_iter().nth(index);
        command
            .into_iter()
            .flat_map(Cmd::args_iter)
            .map(|arg| match arg {
                Arg::Simple(bytes) => bytes,
                _ => &[],
            })
    }

    pub(super) fn pipeline(&self) -> &Pipeline {
        &self.0
    }
}

impl FromIterator<Command> for Batch {
    fn from_iter<I: IntoIterator<Item = Command>>(commands: I) -> Self {
        let commands = commands.into_iter();
        let mut pipeline = Pipeline::with_capacity(commands.size_hint().0);
        for command in commands {
            pipeline.add_command(command.0);
        }
        Self(pipeline)
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
