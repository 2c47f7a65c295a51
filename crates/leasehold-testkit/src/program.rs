//! Where the server program is.

use std::env;
use std::env::consts::EXE_SUFFIX;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::error::StartError;

/// The environment variable that names a server program.
const VARIABLE: &str = "LEASEHOLD_TESTKIT_SERVER";

/// The names of the servers, in the order of preference.
const NAMES: [&str; 2] = ["redis-server", "valkey-server"];

/// Returns the program that the environment selects.
pub(crate) fn find() -> Result<PathBuf, StartError> {
    match env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(program) => named(Path::new(&program)),
        None => preferred(&path()),
    }
}

/// Returns the absolute path of a program, since a server starts in a folder
/// of its own. A name without a folder is searched in `PATH`.
pub(crate) fn named(program: &Path) -> Result<PathBuf, StartError> {
    let found = if program.components().count() == 1 {
        search(&path(), program)
    } else {
        std::path::absolute(program)
            .ok()
            .filter(|path| path.is_file())
    };
    let program = program.to_owned();
    found.ok_or(StartError::NoProgram { program })
}

fn preferred(path: &OsStr) -> Result<PathBuf, StartError> {
    let mut found = NAMES.iter().filter_map(|name| {
        let file = format!("{name}{EXE_SUFFIX}");
        search(path, Path::new(&file))
    });
    found.next().ok_or(StartError::NotInstalled)
}

fn search(path: &OsStr, file: &Path) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|folder| folder.join(file))
        .find_map(|path| std::path::absolute(path).ok().filter(|path| path.is_file()))
}

fn path() -> OsString {
    env::var_os("PATH").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_without_server_names_what_to_install() {
        let empty = tempfile::tempdir().unwrap();
        let error = preferred(empty.path().as_os_str()).unwrap_err().to_string();
        for word in ["redis-server", "valkey-server", "apt-get install", VARIABLE] {
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn program_without_folder_is_searched() {
        let shell = named(Path::new("sh")).unwrap();
        assert!(shell.is_absolute() && shell.ends_with("sh"));
        let error = named(Path::new("no-such-server")).unwrap_err();
        assert!(error.to_string().contains("`no-such-server`"), "{error}");
    }

    #[test]
    fn redis_is_preferred_to_valkey() {
        let one = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let path = env::join_paths([one.path(), other.path()]).unwrap();
        let valkey = one.path().join(format!("valkey-server{EXE_SUFFIX}"));
        let redis = other.path().join(format!("redis-server{EXE_SUFFIX}"));
        std::fs::write(&valkey, "").unwrap();
        assert_eq!(preferred(&path).unwrap(), valkey);
        std::fs::write(&redis, "").unwrap();
        assert_eq!(preferred(&path).unwrap(), redis);
    }
}
