//! Programs that tests use besides servers and databases.

use std::process::{Command, Stdio};

/// Returns a command that starts the program `name`, or `None` if it is not
/// installed.
///
/// # Panics
///
/// If `LEASEHOLD_TOOLS` requires it and it is not installed.
pub fn tool(name: &str) -> Option<Command> {
    let mut version = Command::new(name);
    version.arg("--version");
    let version = version.stdout(Stdio::null()).stderr(Stdio::null());
    if version.status().is_ok_and(|status| status.success()) {
        return Some(Command::new(name));
    }
    let required = std::env::var("LEASEHOLD_TOOLS").unwrap_or_default();
    let is_required = required.split_whitespace().any(|word| word == name);
    assert!(!is_required, "{name} is required but not installed");
    println!("skipped: {name} is not installed");
    None
}
