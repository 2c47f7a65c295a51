//! The versions of Redis and Valkey installed on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use leasehold_testkit::Server;

use crate::setup::Setup;

/// A version of a server installed on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flavor {
    /// The name and version, such as `redis-7.0`.
    pub name: String,
    pub(crate) program: PathBuf,
}

impl Flavor {
    /// Returns every server found: the one in `PATH`, and those that
    /// `scripts/get-servers` unpacked into the folder `LEASEHOLD_SERVERS`
    /// (`servers` at the top of the project by default). `LEASEHOLD_REQUIRE`
    /// restricts the servers to those it names.
    ///
    /// # Panics
    ///
    /// If none is found or a required one is missing: a suite without servers
    /// must not pass.
    #[must_use]
    pub fn all() -> Vec<Self> {
        static FOUND: OnceLock<Vec<Flavor>> = OnceLock::new();
        FOUND.get_or_init(find).clone()
    }

    /// Returns the server for tests that need only one: `LEASEHOLD_SERVER`, or
    /// the first found.
    ///
    /// # Panics
    ///
    /// If it is not installed.
    #[must_use]
    pub fn one() -> Self {
        let all = Self::all();
        match std::env::var("LEASEHOLD_SERVER") {
            Ok(name) => Self::named(&name),
            Err(_) => all.into_iter().next().expect("at least one"),
        }
    }

    /// Starts a server of this version with the default configuration, without
    /// persistence.
    ///
    /// # Panics
    ///
    /// If the server is not up within a minute.
    #[must_use]
    pub fn start(&self) -> Server {
        Setup::default().start(self)
    }

    /// Returns the server with this name.
    ///
    /// # Panics
    ///
    /// If it is not installed.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let found = Self::all().into_iter().find(|flavor| flavor.name == name);
        found.unwrap_or_else(|| panic!("server `{name}` is not installed"))
    }
}

fn find() -> Vec<Flavor> {
    let mut found: Vec<_> = on_path().into_iter().chain(unpacked()).collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name);
    let required = std::env::var("LEASEHOLD_REQUIRE").unwrap_or_default();
    let required: Vec<_> = required.split_whitespace().collect();
    for name in &required {
        let is_found = found.iter().any(|flavor| flavor.name == *name);
        assert!(
            is_found,
            "{name} is required but not installed; run scripts/get-servers"
        );
    }
    found.retain(|flavor| required.is_empty() || required.contains(&flavor.name.as_str()));
    assert!(
        !found.is_empty(),
        "no server found: install redis-server or valkey-server"
    );
    found
}

/// Finds the server in `PATH`, named by the version it reports.
fn on_path() -> Vec<Flavor> {
    ["redis", "valkey"]
        .iter()
        .filter_map(|product| {
            let program = PathBuf::from(format!("{product}-server"));
            let output = Command::new(&program).arg("--version").output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let version = text.split("v=").nth(1)?.split_whitespace().next()?;
            let short: Vec<_> = version.split('.').take(2).collect();
            let name = format!("{product}-{}", short.join("."));
            Some(Flavor { name, program })
        })
        .collect()
}

/// Finds the servers that `scripts/get-servers` unpacked.
fn unpacked() -> Vec<Flavor> {
    let folder = std::env::var_os("LEASEHOLD_SERVERS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../servers"),
        PathBuf::from,
    );
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?.to_owned();
            let product = name.split('-').next()?;
            let program = path.join(format!("bin/{product}-server"));
            program.exists().then_some(Flavor { name, program })
        })
        .collect()
}
