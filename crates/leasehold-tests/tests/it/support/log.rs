//! The log of this test process, with spans.

use std::io::Write;
use std::sync::{Mutex, OnceLock};

use tracing_subscriber::fmt::format::FmtSpan;

/// The log of all threads and tests of this process.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Starts to log, unless another test of this process has.
pub(crate) fn start_log() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(|| LogWriter)
            .init();
    });
}

/// Returns the whole log.
pub(crate) fn log() -> String {
    String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned()
}

/// Returns the first line that contains all of `words`.
pub(crate) fn log_line(words: &[&str]) -> Option<String> {
    let log = log();
    let mut lines = log.lines();
    let line = lines.find(|line| words.iter().all(|word| line.contains(word)))?;
    Some(line.to_owned())
}
