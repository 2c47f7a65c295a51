//! Runs every example as a process against real servers, and compares what it
//! prints with `docs/examples.md`.

mod cooperation;
mod jobs;
mod page;
mod process;
mod servers;
mod web;

use std::path::{Path, PathBuf};

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names of the examples.
fn examples() -> Vec<String> {
    let manifest = read("examples/Cargo.toml");
    let binaries = manifest.split("[[bin]]\nname = \"").skip(1);
    let name = |text: &str| text.split('"').next().unwrap_or_default().to_owned();
    binaries.map(name).collect()
}

#[test]
fn every_example_has_a_story_and_is_listed() {
    let stories: String = ["cooperation", "jobs", "servers", "web"]
        .map(|name| read(format!("examples/tests/stories/{name}.rs")))
        .concat();
    let index = read("examples/README.md");
    let page = read("docs/examples.md");
    let examples = examples();
    assert!(examples.len() > 10, "{examples:?}");
    for name in examples {
        let program = format!("program!(\"{name}\")");
        assert!(stories.contains(&program), "no test runs {name}");
        let link = format!("({name}.rs)");
        assert!(index.contains(&link), "the index has no {name}");
        let command = format!("cargo run -p examples --bin {name}");
        assert!(page.contains(&command), "the page has no {name}");
        let code = format!("{{{{#include ../examples/{name}.rs}}}}");
        assert!(page.contains(&code), "the page has no code of {name}");
        let header = read(format!("examples/{name}.rs"));
        assert!(
            header.contains(&command),
            "{name} does not say how to run it"
        );
    }
}

#[test]
fn every_package_is_listed() {
    let index = read("examples/README.md");
    let page = read("docs/examples.md");
    let folder = root().join("examples/integrations");
    let folders = std::fs::read_dir(folder).expect("a folder");
    let folders = folders.map(|entry| entry.expect("an entry").path());
    let packages: Vec<_> = folders
        .filter(|path| path.join("Cargo.toml").exists())
        .map(|path| path.file_name().expect("a name").to_owned())
        .collect();
    assert!(packages.len() >= 5, "{packages:?}");
    for name in packages {
        let name = name.to_string_lossy();
        let path = format!("integrations/{name}");
        assert!(index.contains(&format!("({path})")), "{name}");
        assert!(page.contains(&format!("examples/{path}")), "{name}");
    }
}
