#!/usr/bin/env python3
"""Checks the crates as users download them.

  scripts/packages.py           their contents; part of the gate
  scripts/packages.py minimal   the oldest dependencies that they allow
  scripts/packages.py semver    breaking changes since the newest release

Every published crate has complete metadata, contains only what its users need,
and compiles from its package. Uploads nothing. Without a network, the gate only
builds the packages.
`minimal` unpacks each package, resolves its direct dependencies to their lower
bounds, and checks it with all features and with none. Each is resolved alone: in
one workspace, the bounds of one crate would hide wrong bounds of another, so
cargo-minimal-versions does not fit.
`semver` compares with the newest tag such as v0.1.0. It installs
cargo-semver-checks if it is missing.
"""

import json
import os
import re
import shutil
import subprocess
import sys

from gate_tests import CACHE, ROOT, TARGET

# The published crates, and the files that they contain besides COMMON.
PUBLISHED = {
    "leasehold": r"src/(guarantees|limitations|which_lock)\.md|lua/.*\.(lua|md)",
    "leasehold-cli": r"build\.rs",
    "leasehold-fence": r"src/fenced\.lua",
    "leasehold-metrics": "",
    "leasehold-testkit": "",
}
REQUIRED = {"Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"}
COMMON = r"\.cargo_vcs_info\.json|Cargo\.(lock|toml|toml\.orig)|LICENSE-(APACHE|MIT)|README\.md|src/.*\.rs"
TESTS = r"(.*/)?(tests|testing|examples|benches)/.*|.*_tests\.rs|.*fuzz_inputs\.rs"
LIBRARIES = [name for name in PUBLISHED if name != "leasehold-cli"]
METADATA = ("description", "documentation", "readme", "repository", "license", "rust_version", "keywords", "categories")


def cargo(*words):
    return subprocess.run(["cargo", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def faults(package):
    """Yields what is wrong with a published crate."""
    name = package["name"]
    for field in METADATA:
        if not package[field]:
            yield f"{name}: Cargo.toml has no {field}"
    files = cargo("package", "--list", "--allow-dirty", "--quiet", "-p", name).split()
    for file in sorted(REQUIRED - set(files)):
        yield f"{name}: {file} is missing in the package"
    for file in files:
        if not re.fullmatch(f"{COMMON}|{PUBLISHED[name]}", file) or re.fullmatch(TESTS, file):
            yield f"{name}: {file} is in the package, but no user needs it"


def is_registry_reachable():
    """Returns whether the index can be read. Any crate will do as a probe."""
    # Inside the workspace, cargo would read the locked version from the disk.
    outside = ROOT.anchor
    environment = {**os.environ, "CARGO_NET_RETRY": "0"}
    probe = ["cargo", "info", "--quiet", "--registry", "crates-io", "tokio"]
    silent = subprocess.DEVNULL
    return subprocess.run(probe, cwd=outside, env=environment, stdout=silent, stderr=silent).returncode == 0


def check():
    packages = json.loads(cargo("metadata", "--no-deps", "--locked", "--format-version", "1"))["packages"]
    published = [package for package in packages if package["publish"] != []]
    found = {package["name"] for package in published} ^ PUBLISHED.keys()
    errors = [f"{name}: `publish` disagrees with scripts/packages.py" for name in sorted(found)]
    errors += [error for package in published if package["name"] in PUBLISHED for error in faults(package)]
    if errors:
        sys.exit("\n".join(errors))
    names = [word for name in PUBLISHED for word in ("-p", name)]
    if is_registry_reachable():
        run("cargo", "publish", "--dry-run", "--no-verify", "--quiet", "--locked", "--allow-dirty", *names)
        compile_packages(unpack("--locked"))
    else:
        print("skipping the dry run of publishing: the registry is unreachable", flush=True)
        compile_packages(unpack("--locked", "--offline"))


def compile_packages(folders):
    """Compiles the packages in one workspace, which finds missing files.

    With our profile and target directory, it uses the dependencies that the gate
    has compiled for the documentation; `cargo publish` would compile all again.
    """
    profiles = re.findall(r"^\[profile\.dev.*?(?=^\[|^#|\Z)", (ROOT / "Cargo.toml").read_text(), re.M | re.S)
    members = json.dumps([folder.name for folder in folders.values()])
    patches = "".join(f'{name}.path = "{folder.name}"\n' for name, folder in folders.items())
    manifest = f'[workspace]\nmembers = {members}\nresolver = "3"\n\n[patch.crates-io]\n{patches}\n{"".join(profiles)}'
    (UNPACKED / "package" / "Cargo.toml").write_text(manifest)
    shutil.copy(ROOT / "Cargo.lock", UNPACKED / "package")
    # Each alone, or it could use what another one enables in a dependency.
    for name in PUBLISHED:
        words = ["cargo", "check", "--offline", "-p", name, "--target-dir", str(TARGET)]
        run(*words, folder=UNPACKED / "package", RUSTC_WORKSPACE_WRAPPER="")


UNPACKED = TARGET / "unpacked"


def run(*words, folder=ROOT, **environment):
    print(f"{folder.name}:", *words, flush=True)
    subprocess.run(words, cwd=folder, env={**os.environ, **environment}, check=True)


def unpack(*words):
    """Packages the published crates, and returns the folder of each by name."""
    shutil.rmtree(UNPACKED / "package", ignore_errors=True)
    names = [word for name in PUBLISHED for word in ("-p", name)]
    run("cargo", "package", "--no-verify", "--allow-dirty", "--quiet", *words, "--target-dir", str(UNPACKED), *names)
    folders = {}
    for name in PUBLISHED:
        (archive,) = (UNPACKED / "package").glob(f"{name}-[0-9]*.crate")
        subprocess.run(["tar", "-xmf", archive], cwd=archive.parent, check=True)
        folders[name] = archive.with_suffix("")
    return folders


def isolate(folder, others):
    """Makes a package its own workspace, without the dependencies of its tests."""
    manifest = folder / "Cargo.toml"
    sections = re.split(r"^(?=\[)", manifest.read_text(), flags=re.M)
    kept = [section for section in sections if not section.startswith("[dev-dependencies")]
    text = "".join(kept)
    used = [name for name in others if f"[dependencies.{name}]\n" in text]
    patches = "".join(f'{name}.path = "{others[name]}"\n' for name in used)
    manifest.write_text(f"{text}\n[workspace]\n\n[patch.crates-io]\n{patches}")
    (folder / "Cargo.lock").unlink()


def minimal():
    folders = unpack()
    for name, folder in folders.items():
        isolate(folder, {other: path for other, path in folders.items() if other != name})
        # The option is unstable.
        run("cargo", "update", "--quiet", "-Z", "direct-minimal-versions", folder=folder, RUSTC_BOOTSTRAP="1")
    for folder in folders.values():
        for features in ("--all-features", "--no-default-features"):
            run("cargo", "check", "--locked", "--target-dir", str(UNPACKED), features, folder=folder)


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def semver():
    tags = git("tag", "--list", "v[0-9]*", "--no-contains", "HEAD", "--sort=-v:refname").stdout.split()
    release = next((tag for tag in tags if "-" not in tag), None)
    if release is None:
        return print("no release yet: there is no tag such as v0.1.0 to compare with")
    # A crate that is newer than the release has nothing to compare with.
    old = [name for name in LIBRARIES if git("ls-tree", release, f"crates/{name}/Cargo.toml").stdout]
    tool = CACHE / "bin" / "cargo-semver-checks"
    if not tool.exists():
        run("cargo", "install", tool.name, "--quiet", "--locked", "--debug", "--version", "0.51.0", "--root", str(CACHE))
    words = [word for name in old for word in ("--package", name)]
    # The documentation of two versions is built, which lints would only slow down.
    os.environ.pop("RUSTC_WORKSPACE_WRAPPER", None)
    run(tool, "semver-checks", "--baseline-rev", release, "--all-features", *words)


def main():
    commands = {"": check, "minimal": minimal, "semver": semver}
    command = commands.get(" ".join(sys.argv[1:]))
    sys.exit(command() if command else __doc__)


if __name__ == "__main__":
    main()
