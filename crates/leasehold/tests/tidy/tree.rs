//! The source tree: layers, homes of effects, and the form of files.

use crate::{code, crate_root, files, project_root, read, shipped};

/// The layers, and those that each may import besides itself and the leaves.
const LAYERS: [(&str, &[&str]); 5] = [
    ("redisson", &["locks", "lease", "protocol", "backend"]),
    ("locks", &["lease", "protocol"]),
    ("lease", &["protocol", "backend"]),
    ("protocol", &["backend"]),
    ("backend", &[]),
];

/// Effects, and the only files or folders below `src` that contain them.
const HOMES: [(&str, &[&str]); 3] = [
    ("tokio::spawn", &["backend/connection/"]),
    (
        ".spawn(",
        &[
            "client/builder.rs",
            "client/quorum.rs",
            "backend/connection/pubsub.rs",
            // On the keeper's runtime.
            "backend/connection/reauthenticate.rs",
            // Ticks on the keeper's runtime.
            "backend/connection/wire.rs",
            "backend/topology/",
            "lease/keeper/runtime.rs",
            "lease/keeper/worker.rs",
            // On the keeper's runtime.
            "lease/wait/",
        ],
    ),
    ("time::sleep", &["backend/", "lease/"]),
];

/// Names of files that collect things without a place.
const JUNK: [&str; 5] = ["utils", "util", "helpers", "common", "manager"];

#[test]
fn layers_import_only_layers_below() {
    for (place, path) in shipped() {
        let layer = LAYERS
            .iter()
            .find(|(layer, _)| place.starts_with(&format!("{layer}/")));
        let Some((layer, below)) = layer else {
            continue;
        };
        let code = code(&path);
        for (other, _) in &LAYERS {
            let allowed = other == layer || below.contains(other);
            let import = format!("crate::{other}");
            assert!(allowed || !code.contains(&import), "{place} uses {import}");
        }
    }
}

#[test]
fn effects_stay_in_their_homes() {
    for (place, path) in shipped() {
        let code = code(&path);
        for (text, homes) in HOMES {
            let at_home = homes.iter().any(|home| place.starts_with(home));
            assert!(at_home || !code.contains(text), "`{text}` in {place}");
        }
    }
}

#[test]
fn files_have_a_header_and_one_idea() {
    let folders = ["crates", "bench/src", "bench/peers/rust/src", "examples"];
    let root = project_root();
    for path in folders
        .iter()
        .flat_map(|folder| files(&root.join(folder), ".rs"))
    {
        let (text, place) = (read(&path), path.display().to_string());
        assert!(text.starts_with("//!"), "{place} has no header");
        // Tests stay beside what they test, so they do not count.
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        // Documents and their examples make no file harder to read.
        let lines = code.lines();
        let lines = lines.filter(|line| !line.trim_start().starts_with("//"));
        assert!(lines.count() <= 500, "{place} is too long");
        assert!(text.lines().count() <= 1000, "{place} is too long");
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(!JUNK.contains(&name.as_str()), "{place} is a junk drawer");
    }
}

#[test]
fn script_digests_are_computed() {
    for path in files(&crate_root().join("src"), ".rs") {
        for word in read(&path).split(|c: char| !c.is_ascii_alphanumeric()) {
            let digest = word.len() == 40 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(!digest, "a digest in {}", path.display());
        }
    }
}

#[test]
fn ignored_tests_state_a_reason() {
    let mut deep = 0;
    for file in files(&project_root().join("crates"), ".rs") {
        for reason in read(&file).split(concat!("#[", "ignore")).skip(1) {
            let reason = reason.split(']').next().unwrap();
            let is_deep = reason.starts_with(" = \"deep: ");
            let is_worker = reason == " = \"the body of worker processes\"";
            assert!(is_deep || is_worker, "{}: {reason}", file.display());
            deep += u32::from(is_deep);
        }
    }
    assert!(deep > 0, "no test is deep");
}
