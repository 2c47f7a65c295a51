//! Shell completions and man pages, generated from the command line definition.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Cli;
use crate::exit;
use crate::output::{CliError, print};

pub(crate) fn print_completions(shell: clap_complete::Shell) -> Result<u8, CliError> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leasehold", &mut out);
    print(&String::from_utf8_lossy(&out))?;
    Ok(exit::OK)
}

pub(crate) fn write_man_pages(folder: &Path) -> Result<u8, CliError> {
    let failed = |error: std::io::Error| {
        CliError::usage(format!("cannot write to {}: {error}", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(failed)?;
    for command in ["run", "steal", "lead"] {
        let page = folder.join(format!("leasehold-{command}.1"));
        let text = std::fs::read_to_string(&page).map_err(failed)?;
        std::fs::write(&page, with_separator(&text)).map_err(failed)?;
    }
    Ok(exit::OK)
}

/// Adds the `--` before a command to the synopsis, which `clap_mangen` omits.
fn with_separator(page: &str) -> String {
    let command = r"<\fICMD\fR>";
    page.replacen(command, &format!(r"\-\- {command}"), 1)
}
