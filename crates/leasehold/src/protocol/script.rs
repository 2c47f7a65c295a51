//! Lua scripts, which a server knows by their digest.

use std::sync::LazyLock;

use crate::backend::Command;

/// The text of a script, and its digest, which is computed once.
pub(super) struct Script {
    source: &'static str,
    digest: LazyLock<String>,
}

/// Defines a `static` script from files below `lua/`: its preludes, then its
/// own file.
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
pub(super) use script;

/// Returns a number in the form that scripts take.
pub(super) fn digits(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

pub(super) fn digest(source: &str) -> String {
    sha1_smol::Sha1::from(source).digest().to_string()
}

impl Script {
    pub(super) const fn new(source: &'static str, digest: fn() -> String) -> Self {
        Self {
            source,
            digest: LazyLock::new(digest),
        }
    }

    /// Returns the command that runs the script, with keys and arguments in the
    /// order of its header.
    pub(super) fn call(&self, keys: &[&[u8]], args: &[&[u8]]) -> Command {
        let command = Command::script(&self.digest, self.source).arg(keys.len().to_string());
        keys.iter().chain(args).fold(command, Command::arg)
    }
}
