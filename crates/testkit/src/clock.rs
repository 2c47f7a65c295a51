//! A wall clock of a running server that a test can set.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use leasehold_testkit::ServerBuilder;

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

/// The file with the offset, in the folder of the server.
const OFFSET: &str = "clock";

/// Makes a server add the offset in a file to its clock.
pub(crate) fn attach(server: ServerBuilder) -> ServerBuilder {
    server
        .file(OFFSET, 0_i64.to_ne_bytes())
        .env("LD_PRELOAD", shim())
        .env("CLOCK_OFFSET", OFFSET)
}

/// Sets the offset of the clock of the server in `folder`, in microseconds.
pub(crate) fn set(folder: &Path, micros: i64) {
    // Overwrites in place: the server has the file mapped.
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .open(folder.join(OFFSET))
        .expect("a server with a movable clock");
    file.write_all(&micros.to_ne_bytes())
        .expect("a file for the clock");
}
