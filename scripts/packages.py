#!/usr/bin/env python3
"""Checks the crates as users download them.

Every published crate has complete metadata, contains only what its users need,
and compiles from its package. Uploads nothing. Without a network, it only
builds the packages.
"""

import json
import os
import re
import subprocess
import sys

from gate_tests import ROOT, TARGET

# The published crates, and the files that they contain besides COMMON.
PUBLISHED = {
    "leasehold": r"src/guarantees\.md|lua/.*\.(lua|md)",
    "leasehold-cli": r"build\.rs",
    "leasehold-fence": r"src/fenced\.lua",
    "leasehold-metrics": "",
    "leasehold-testkit": "",
}
REQUIRED = {"Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"}
COMMON = r"\.cargo_vcs_info\.json|Cargo\.(lock|toml|toml\.orig)|LICENSE-(APACHE|MIT)|README\.md|src/.*\.rs"
TESTS = r"(.*/)?(tests|testing|examples|benches)/.*|.*_tests\.rs|.*fuzz_inputs\.rs"
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


def main():
    packages = json.loads(cargo("metadata", "--no-deps", "--locked", "--format-version", "1"))["packages"]
    published = [package for package in packages if package["publish"] != []]
    found = {package["name"] for package in published} ^ PUBLISHED.keys()
    errors = [f"{name}: `publish` disagrees with scripts/packages.py" for name in sorted(found)]
    errors += [error for package in published if package["name"] in PUBLISHED for error in faults(package)]
    if errors:
        sys.exit("\n".join(errors))
    words = ["publish", "--dry-run"]
    if not is_registry_reachable():
        print("skipping the dry run of publishing: the registry is unreachable", flush=True)
        words = ["package", "--offline"]
    words += [word for name in PUBLISHED for word in ("-p", name)]
    # A folder of its own, since packages have other profiles and features than
    # the workspace. The compiler should only find missing files, so it is
    # neither clippy nor writes debug information.
    command = ["cargo", *words, "--locked", "--allow-dirty", "--target-dir", TARGET / "packages"]
    environment = {**os.environ, "CARGO_PROFILE_DEV_DEBUG": "0", "RUSTC_WORKSPACE_WRAPPER": ""}
    sys.exit(subprocess.run(command, cwd=ROOT, env=environment).returncode)


if __name__ == "__main__":
    main()
