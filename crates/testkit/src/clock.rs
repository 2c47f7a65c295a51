//! A wall clock of a running server that a test can set.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the library that is preloaded into the server, compiled once per
/// test program.
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
        assert!(done, "setting a server's clock requires a C compiler");
        library
    })
}

/// Makes `server` add the offset in the file at `offset` to its clock.
pub(crate) fn attach(server: &mut Command, offset: &Path) {
    if !offset.exists() {
        set(offset, 0);
    }
    server.env("LD_PRELOAD", shim()).env("CLOCK_OFFSET", offset);
}

/// Sets the offset of the clock in microseconds.
pub(crate) fn set(offset: &Path, micros: i64) {
    // Overwrites in place: the server has the file mapped.
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(offset);
    let mut file = file.expect("a file for the clock");
    std::io::Write::write_all(&mut file, &micros.to_ne_bytes()).expect("a file for the clock");
}
