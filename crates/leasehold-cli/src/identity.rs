//! The identity of this process, as other clients see it.

/// Returns `HOST:PID` of this process.
pub(crate) fn host_and_pid() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host = host.to_string_lossy().replace(char::is_whitespace, "_");
    format!("{host}:{}", std::process::id())
}
