//! The server programs of this machine: which versions of Redis and Valkey tests run against.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A server program found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flavor {
    /// As in `redis-7.0`.
    pub name: String,
    pub(crate) program: PathBuf,
}

impl Flavor {
    /// Every server found: the one on the path, and those that `scripts/get-servers` unpacked into the folder
    /// named by `LEASEHOLD_SERVERS` (else `servers` at the top of the project). `LEASEHOLD_REQUIRE` names the
    /// servers to use, in place of all.
    ///
    /// # Panics
    ///
    /// When there is none, or one that is required is missing: a suite that ran against nothing must not pass.
    #[must_use]
    pub fn all() -> Vec<Self> {
        static FOUND: OnceLock<Vec<Flavor>> = OnceLock::new();
        FOUND.get_or_init(find).clone()
    }

    /// The one that tests use which need only one: `LEASEHOLD_SERVER`, else the first found.
    ///
    /// # Panics
    ///
    /// When it is not there.
    #[must_use]
    pub fn one() -> Self {
        let all = Self::all();
        match std::env::var("LEASEHOLD_SERVER") {
            Ok(name) => Self::named(&name),
            Err(_) => all.into_iter().next().expect("at least one"),
        }
    }

    /// The one of that name.
    ///
    /// # Panics
    ///
    /// When it is not there.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let found = Self::all().into_iter().find(|flavor| flavor.name == name);
        found.unwrap_or_else(|| panic!("no server `{name}` here"))
    }
}

fn find() -> Vec<Flavor> {
    let mut found: Vec<_> = on_path().into_iter().chain(unpacked()).collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name);
    let required = std::env::var("LEASEHOLD_REQUIRE").unwrap_or_default();
    let required: Vec<_> = required.split_whitespace().collect();
    for name in &required {
        let is_there = found.iter().any(|flavor| flavor.name == *name);
        assert!(
            is_there,
            "{name} is required but not there; run scripts/get-servers"
        );
    }
    found.retain(|flavor| required.is_empty() || required.contains(&flavor.name.as_str()));
    assert!(
        !found.is_empty(),
        "no server found: install redis-server or valkey-server"
    );
    found
}

/// The distribution's own server, named after the version it reports.
fn on_path() -> Vec<Flavor> {
    ["redis", "valkey"]
        .iter()
        .filter_map(|line| {
            let program = PathBuf::from(format!("{line}-server"));
            let output = Command::new(&program).arg("--version").output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let version = text.split("v=").nth(1)?.split_whitespace().next()?;
            let short: Vec<_> = version.split('.').take(2).collect();
            let name = format!("{line}-{}", short.join("."));
            Some(Flavor { name, program })
        })
        .collect()
}

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
            let line = name.split('-').next()?;
            let program = path.join(format!("bin/{line}-server"));
            program.exists().then_some(Flavor { name, program })
        })
        .collect()
}
