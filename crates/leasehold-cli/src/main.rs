//! The command `leasehold`: holds a lock around any program, and shows who holds what.
//!
//! Built on the library's public interface alone. [`args`] is the command line, [`exit`] every exit code; each verb has a
//! file of its own. Standard output belongs to the program that is run or to the data asked for, everything else is
//! said on standard error by [`say`].

mod args;
mod commands;
mod doctor;
mod duration;
mod exit;
#[cfg(test)]
mod fuzz_inputs;
mod inspect;
mod json;
mod manual;
mod output;
mod run;
mod settings;
mod signals;
mod table;
mod top;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use output::CliError;

fn main() -> ExitCode {
    if let Some(code) = run::become_program() {
        return code.into();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let code = match runtime {
        Ok(runtime) => runtime.block_on(carry_out(cli)),
        Err(error) => Err(CliError::new(
            exit::UNREACHABLE,
            format!("cannot start: {error}"),
        )),
    };
    code.unwrap_or_else(|trouble| trouble.tell()).into()
}

async fn carry_out(cli: Cli) -> Result<u8, CliError> {
    let server = &cli.server;
    match cli.command {
        Command::Run(args) => run::run(server, args, false).await,
        Command::Steal(args) => run::run(server, args, true).await,
        Command::Ls(args) => inspect::ls(server, &args).await,
        Command::Show(args) => inspect::show(server, &args).await,
        Command::Queue(args) => inspect::queue(server, &args).await,
        Command::Top(args) => top::top(server, &args).await,
        Command::Release(args) => commands::release(server, &args).await,
        Command::Wait(args) => commands::wait(server, &args).await,
        Command::Semaphore { verb } => commands::semaphore(server, &verb).await,
        Command::Latch { verb } => commands::latch(server, &verb).await,
        Command::Quorum { verb } => commands::quorum(server, &verb).await,
        Command::Doctor(args) => doctor::doctor(server, &args).await,
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { folder } => manual::pages(&folder),
    }
}

/// Help and version are what was asked for; anything else is a mistake, with the code for it.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let printed = output::is_read(error.print());
        return printed
            .map_or_else(|trouble| trouble.tell(), |_| exit::OK)
            .into();
    }
    let text = error.render().to_string();
    output::say_lines(text.trim_start_matches("error: ").trim_end());
    exit::USAGE.into()
}

/// This process as others see it: HOST:PID.
fn me() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host = host.to_string_lossy().replace(char::is_whitespace, "_");
    format!("{host}:{}", std::process::id())
}
