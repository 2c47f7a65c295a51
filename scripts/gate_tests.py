#!/usr/bin/env python3
"""Runs the gate's tests and a minute of fault injection.

Runs several programs at a time, and prints the slowest tests. Builds what is
missing. Exits with 1 if a test fails or a program does not exit.
LEASEHOLD_SERVERS names the servers, LEASEHOLD_SCALE multiplies repetitions.
`scripts/deep` runs the tests that measure time. `--features` prints the features
that the gate builds the workspace with.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

# Programs whose tests mostly wait for servers, with the number of concurrent
# tests. These programs run in parallel; the rest run one after the other.
PARALLEL = {"it": 12, "cli": 6, "databases": 4, "metrics": 4, "stories": 6}

# The database drivers of the fence, which other builds do not need.
DRIVERS = ("sqlx-postgres", "sqlx-mysql", "sqlx-sqlite", "tokio-postgres")
FEATURES = ",".join(f"leasehold-fence/{driver}" for driver in DRIVERS)

# Longer than a program takes on a slow machine with stalls.
LIMIT = 1800

TEST = re.compile(r"^test (\S+) \.\.\. (ok|FAILED)(?: <([\d.]+)s>)?", re.M)


class Program:
    """A test program and its results."""

    def __init__(self, name, command, folder):
        self.name, self.command, self.folder = name, command, folder
        self.passed, self.failed, self.slow, self.output = 0, [], [], ""

    def run(self):
        start = time.monotonic()
        # The reporting of times by libtest is unstable.
        environment = dict(os.environ, RUST_BACKTRACE="0", RUSTC_BOOTSTRAP="1")
        running = subprocess.Popen(
            self.command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        watchdog = threading.Timer(LIMIT, running.kill)
        watchdog.start()
        self.output = running.communicate()[0].decode(errors="replace")
        watchdog.cancel()
        self.read(running.returncode)
        took = time.monotonic() - start
        print(f"{self.name}: {self.passed} passed, {len(self.failed)} failed ({took:.0f} s)", flush=True)

    def read(self, status):
        for name, outcome, seconds in TEST.findall(self.output):
            self.passed += outcome == "ok"
            if outcome == "FAILED":
                self.failed.append(name)
            if seconds:
                self.slow.append((float(seconds), f"{self.name} {name}"))
        if status != 0 and not self.failed:
            self.failed.append(f"exited with {status}")

    def failures(self):
        """Returns the part of the output that explains the failures."""
        return self.output[max(self.output.find("\nfailures:\n"), 0) :][-20000:]


class FaultInjection(Program):
    """A minute of fault injection. Fails if a promise is broken or the run is void."""

    def __init__(self):
        plan = ROOT / "crates" / "torture" / "plans" / "gate.toml"
        super().__init__("fault injection", [TARGET / "debug" / "torture", plan, TARGET / "torture" / "gate"], ROOT)

    def read(self, status):
        self.passed = int(status == 0 and "\nVOID" not in self.output)
        self.failed = [] if self.passed else ["gate.toml"]


def built(*words):
    """Builds the workspace, and yields its test programs: name, path, folder."""
    yield from artifacts(["build", "--all-targets", *(words or ["--workspace", "--features", FEATURES])])


def scheduled():
    """Builds the library's tests for the shuttle scheduler: name, path, folder.

    `cargo rustc` sets the cfg for the library alone, so no dependency is built twice.
    """
    yield from artifacts(["rustc", "-p", "leasehold", "--lib", "--profile", "test"], ["--", "--cfg", "shuttle"])


def artifacts(words, last=()):
    command = ["cargo", *words, "--locked", "--message-format=json", *last]
    messages = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.splitlines()
    for message in map(json.loads, messages):
        if message["reason"] != "compiler-artifact" or not message["executable"] or not message["profile"]["test"]:
            continue
        folder, target = pathlib.Path(message["manifest_path"]).parent, message["target"]
        name = target["name"] if "test" in target["kind"] else f"{folder.name} ({target['kind'][0]})"
        yield name, message["executable"], folder


def gate_programs():
    for name, path, folder in built():
        words = [path, f"--test-threads={PARALLEL.get(name, 2)}", "-Zunstable-options", "--report-time"]
        yield Program(name, words, folder)
    for _, path, folder in scheduled():
        yield Program("schedules", [path, "schedules::", "-Zunstable-options", "--report-time"], folder)
    yield FaultInjection()


def run_all(programs):
    """Runs parallel programs concurrently, and the rest one after the other."""
    lanes = {}
    for program in programs:
        is_parallel = program.name in PARALLEL or isinstance(program, FaultInjection)
        lanes.setdefault(program.name if is_parallel else "rest", []).append(program)
    threads = [threading.Thread(target=lambda lane=lane: [one.run() for one in lane]) for lane in lanes.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    if sys.argv[1:] == ["--features"]:
        print(FEATURES)
        return
    programs = list(gate_programs())
    run_all(programs)
    print("\nThe slowest tests:")
    for seconds, name in sorted((entry for program in programs for entry in program.slow), reverse=True)[:20]:
        print(f"{seconds:8.1f} s  {name}")
    for program in programs:
        if program.failed or isinstance(program, FaultInjection):
            print(f"\n{program.name}: failed: {', '.join(program.failed) or 'none'}\n{program.failures()}")
    passed, failed = (sum(count) for count in zip(*((one.passed, len(one.failed)) for one in programs)))
    print(f"\n{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
