//! Lua scripts, which a server knows by their digest.

use std::sync::LazyLock;
use std::time::Duration;

use crate::backend::Batch;
use crate::options::millis_up;

/// A script's text, and its digest, which is computed once.
pub(crate) struct Script {
    source: &'static str,
    digest: LazyLock<String>,
}

/// Defines a `static` script from files below `lua/`: preludes, then the
/// script.
macro_rules! script {
    ($name:ident, $($path:literal),+) => {
        static $name: $crate::protocol::script::Script = {
            const SOURCE: &str =
                concat!($(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $path))),+);
            $crate::protocol::script::Script::new(SOURCE, || {
                $crate::protocol::script::digest(SOURCE)
            })
        };
    };
}
pub(crate) use script;

/// Returns whole milliseconds in the form that scripts take, rounded up.
pub(crate) fn millis(duration: Duration) -> Vec<u8> {
    digits(millis_up(duration))
}

/// Returns a number in the form that scripts take.
pub(crate) fn digits(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

pub(crate) fn digest(source: &str) -> String {
    sha1_smol::Sha1::from(source).digest().to_string()
}

impl Script {
    pub(crate) const fn new(source: &'static str, digest: fn() -> String) -> Self {
        Self {
            source,
            digest: LazyLock::new(digest),
        }
    }

    /// Returns the command that runs the script, with keys and arguments in the
    /// header's order.
    pub(crate) fn call(&self, keys: &[&[u8]], args: &[&[u8]]) -> Batch {
        // The server knows most scripts by their digest; the connection sends
        // the source only if it does not.
        let command = Batch::script(&self.digest, self.source).number(keys.len() as u64);
        keys.iter().chain(args).fold(command, Batch::arg)
    }
}
