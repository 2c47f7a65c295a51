//! A wall clock that a test can move under a running server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The library that is loaded into the server, compiled once per test program.
fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clock/shim.c");
        let name = format!("leasehold-clock-{}.so", std::process::id());
        let library = std::env::temp_dir().join(name);
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .status();
        let done = compiled.is_ok_and(|status| status.success());
        assert!(done, "a C compiler is needed to move a server's clock");
        library
    })
}

/// Has `server` read its clock through the file at `offset`.
pub(crate) fn attach(server: &mut Command, offset: &Path) {
    if !offset.exists() {
        set(offset, 0);
    }
    server.env("LD_PRELOAD", shim()).env("CLOCK_OFFSET", offset);
}

/// Moves the clock to so many microseconds from the right one.
pub(crate) fn set(offset: &Path, micros: i64) {
    // In place: the server has the file mapped.
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(offset);
    let mut file = file.expect("a file for the clock");
    std::io::Write::write_all(&mut file, &micros.to_ne_bytes()).expect("a file for the clock");
}
