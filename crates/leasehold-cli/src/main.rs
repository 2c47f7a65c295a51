//! The `leasehold` CLI: runs a command while holding a lock, and shows who
//! holds which lock.
//!
//! It uses only the public API of the library. [`args`] defines the command
//! line and [`exit`] the exit codes. Standard output belongs to the command
//! that `run` starts, or to the requested data; [`output`] writes messages to
//! standard error, and [`messages`] does so without waiting for it.

mod args;
mod commands;
mod doctor;
mod duration;
mod exit;
mod export;
mod fence;
#[cfg(test)]
mod fuzz_inputs;
mod identity;
mod inspect;
mod jobs;
mod json;
mod leader;
mod manual;
mod messages;
mod output;
mod password;
mod release;
mod run;
mod settings;
mod signals;
mod table;
mod top;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue};

use args::{Cli, Command};
use output::CliError;

fn main() -> ExitCode {
    let code = match run::exec_command() {
        Some(code) => code,
        None => match Cli::try_parse() {
            Ok(cli) => run_cli(cli),
            Err(error) => report_usage(&error),
        },
    };
    messages::finish();
    code.into()
}

fn run_cli(cli: Cli) -> u8 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let code = match runtime {
        Ok(runtime) => runtime.block_on(execute(cli)),
        Err(error) => Err(CliError::new(
            exit::UNREACHABLE,
            format!("cannot start the runtime: {error}"),
        )),
    };
    password::kill_commands();
    code.unwrap_or_else(|error| error.report())
}

async fn execute(cli: Cli) -> Result<u8, CliError> {
    let server = &cli.server;
    match cli.command {
        Command::Run(args) => run::run(server, args, false).await,
        Command::Steal(args) => run::run(server, args, true).await,
        Command::Lead(args) => run::lead(server, args).await,
        Command::Leader(args) => leader::leader(server, &args).await,
        Command::Ls(args) => inspect::ls(server, &args).await,
        Command::Show(args) => inspect::show(server, &args).await,
        Command::Queue(args) => inspect::queue(server, &args).await,
        Command::Top(args) => top::top(server, &args).await,
        Command::Export(args) => export::export(server, &args).await,
        Command::Release(args) => release::release(server, &args).await,
        Command::Once { command } => jobs::once(server, &command).await,
        Command::Wait(args) => commands::wait(server, &args).await,
        Command::Semaphore { command } => commands::semaphore(server, &command).await,
        Command::Latch { command } => commands::latch(server, &command).await,
        Command::Quorum { command } => commands::quorum(server, &command).await,
        Command::Fence { command } => fence::fence(&command),
        Command::Doctor(args) => doctor::doctor(server, &args).await,
        Command::Completions { shell } => manual::print_completions(shell),
        Command::Man { folder } => manual::write_man_pages(&folder),
    }
}

/// Prints help or the version if requested, otherwise the usage error.
fn report_usage(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        let printed = output::reader_remains(error.print());
        return printed.map_or_else(|error| error.report(), |_| exit::OK);
    }
    let mut text = error.render().to_string();
    let unknown = error.get(ContextKind::InvalidArg);
    if unknown == Some(&ContextValue::String("--timeout".to_owned())) {
        // By its letters, the closest option is the one that stops the command.
        text = text.replace("--at-most", "--wait");
    }
    output::message_lines(text.trim_start_matches("error: ").trim_end());
    if lacks_separator(std::env::args_os().skip(1)) {
        output::hint("write `--` before the command, as in `leasehold run nightly -- ./import.sh`");
    }
    exit::USAGE
}

/// Returns whether a command line should run a command, but does not say where
/// the command begins.
fn lacks_separator(args: impl Iterator<Item = OsString>) -> bool {
    let mut args = args.peekable();
    let runs = |arg: &OsString| arg == "run" || arg == "steal" || arg == "lead";
    args.peek().is_some_and(runs) && args.all(|arg| arg != "--")
}
