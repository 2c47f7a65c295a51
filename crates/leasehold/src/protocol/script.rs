//! Scripts: the Lua files, known to a server by their digest.

use std::sync::LazyLock;

use crate::backend::Command;

/// A Lua file and its digest, which is computed once and never written down.
pub(super) struct Script {
    source: &'static str,
    digest: LazyLock<String>,
}

/// Makes a `static` script of a file below `lua/`, or of a prelude and a file.
macro_rules! script {
    ($name:ident, $($path:literal),+) => {
        static $name: $crate::protocol::script::Script = {
            const SOURCE: &str = concat!($(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $path))),+);
            $crate::protocol::script::Script::new(SOURCE, || {
                $crate::protocol::script::digest(SOURCE)
            })
        };
    };
}
pub(super) use script;

/// A number as scripts take it.
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

    /// The call of it, with keys and arguments in the order of the file's header.
    pub(super) fn call(&self, keys: &[&[u8]], args: &[&[u8]]) -> Command {
        let command = Command::script(&self.digest, self.source).arg(keys.len().to_string());
        keys.iter().chain(args).fold(command, Command::arg)
    }
}
