#!/usr/bin/env python3
"""Runs the gate's tests and a minute of fault injection.

Runs several programs at a time, and prints the slowest tests. Builds what is
missing. Exits with 1 if a test fails, a program does not exit, or a process is
left behind.
LEASEHOLD_SERVERS names the servers, LEASEHOLD_SCALE multiplies repetitions.
`scripts/deep` runs the tests that measure time. `--features` prints the features
that the gate builds the workspace with.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
CACHE = pathlib.Path(os.environ.get("LEASEHOLD_CACHE") or pathlib.Path.home() / ".cache" / "leasehold")

# Programs whose tests mostly wait for servers, with the number of concurrent
# tests. These programs run in parallel; the rest run one after the other.
PARALLEL = {"it": 12, "cli": 6, "databases": 4, "metrics": 4, "stories": 6}

# The database drivers of the fence, which other builds do not need.
DRIVERS = ("sqlx-postgres", "sqlx-mysql", "sqlx-sqlite", "tokio-postgres")
FEATURES = ",".join(f"leasehold-fence/{driver}" for driver in DRIVERS)

# Longer than a program takes on a slow machine with stalls.
LIMIT = 1800

# The most characters of a panic or of a test's end to show.
EXCERPT = 4000

# How long processes may take to exit after the tests; only a defect reaches it.
EXIT_LIMIT = 60

TEST = re.compile(r"^test (\S+) \.\.\. (ok|FAILED)(?: <([\d.]+)s>)?", re.M)


class Program:
    """A test program and its results."""

    def __init__(self, name, command, folder):
        self.name, self.command, self.folder = name, command, folder
        self.passed, self.failed, self.slow, self.output = 0, ["did not run"], [], ""

    def run(self):
        start = time.monotonic()
        # On stable Rust, libtest reports how long a test took only with this
        # variable. The test programs alone read it: they are built without.
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
        self.failed = []
        for name, outcome, seconds in TEST.findall(self.output):
            self.passed += outcome == "ok"
            if outcome == "FAILED":
                self.failed.append(name)
            if seconds:
                self.slow.append((float(seconds), f"{self.name} {name}"))
        if status != 0 and not self.failed:
            self.failed.append(f"exited with {status}")

    def failures(self):
        """Returns the output that explains the failures.

        A test may print megabytes, and a panic's message may be as long. We show
        the beginning of each panic and the end of each failed test.
        """
        heading = re.compile(r"^---- (\S+) stdout ----$", re.M)
        before, *sections = heading.split(self.output)
        if not sections:
            return self.output[-EXCERPT:]
        # The panics of threads that a test starts are not in its section.
        shown = panics(before)
        for name, text in zip(sections[::2], sections[1::2]):
            text = text.split("\nfailures:\n")[0]
            if len(text) > EXCERPT:
                text = f"{panics(text)}\n[...]{text[-EXCERPT:]}"
            shown += f"---- {name}\n{text}\n"
        return shown


def panics(text):
    """Returns the beginning of each panic in `text`."""
    return "\n".join(text[at.start() :][:EXCERPT] for at in re.finditer(r"^thread .* panicked at ", text, re.M))


class Schedules(Program):
    """The library's tests on the shuttle scheduler, built while other programs run."""

    def __init__(self):
        super().__init__("schedules", None, None)

    def run(self):
        _, path, self.folder = next(scheduled())
        self.command = [path, "schedules::", "-Zunstable-options", "--report-time"]
        super().run()


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
    yield from artifacts(["build", "--bins", "--tests", *(words or ["--workspace", "--features", FEATURES])])


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
    yield Schedules()
    yield FaultInjection()


def run_all(programs):
    """Runs parallel programs concurrently, and the rest one after the other."""
    lanes = {}
    for program in programs:
        is_parallel = program.name in PARALLEL or isinstance(program, (FaultInjection, Schedules))
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
    # Orphans of the tests become our children, and we reap them as `init` does.
    subreaper = 36
    ctypes.CDLL(None).prctl(subreaper, 1)
    tests = os.fork()
    if tests == 0:
        run_tests()
    try:
        while (ended := os.wait())[0] != tests:
            pass
        status = os.waitstatus_to_exitcode(ended[1])
        deadline = time.monotonic() + EXIT_LIMIT
        while (left := children()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for process, command in left.items():
            print(f"left behind: {process} {command}", flush=True)
        sys.exit(1 if status or left else 0)
    finally:
        while left := children():
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.1)


def children():
    """Reaps the children that have exited, and returns the others with their commands."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
    ).stdout.splitlines()
    processes = (line.split(maxsplit=1) for line in listed)
    return {int(process): command for process, command in processes if not command.startswith("ps -o ")}


def run_tests():
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
