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
    for command in ["", "-run", "-steal", "-lead", "-export"] {
        let page = folder.join(format!("leasehold{command}.1"));
        let text = std::fs::read_to_string(&page).map_err(failed)?;
        let text = with_sections(&with_separator(&text));
        std::fs::write(&page, text).map_err(failed)?;
    }
    Ok(exit::OK)
}

/// Adds the `--` before a command to the synopsis, which `clap_mangen` omits.
fn with_separator(page: &str) -> String {
    let command = r"<\fICMD\fR>";
    page.replacen(command, &format!(r"\-\- {command}"), 1)
}

/// Lays out the lists below the options as `--help` does, under the headings
/// that man pages use. `clap_mangen` fills their lines, and puts all of them
/// under `EXTRA`.
fn with_sections(page: &str) -> String {
    let mut page = page.replacen(".SH EXTRA\n", ".SH NOTES\n", 1);
    for (line, heading) in [
        ("Configuration:", "CONFIGURATION"),
        ("Environment of the command:", "ENVIRONMENT"),
        ("Examples:", "EXAMPLES"),
        ("Exit status:", "EXIT STATUS"),
    ] {
        let section = format!("\n.SH {heading}\n.nf\n");
        page = page.replacen(&format!("\n{line}\n"), &section, 1);
    }
    page.replacen(".SH NOTES\n.SH ", ".SH ", 1)
}
