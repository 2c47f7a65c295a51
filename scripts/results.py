#!/usr/bin/env python3
"""Records what runs measured, and writes the pages that state it.

  scripts/results.py                     write the measured figures to the pages
  scripts/results.py --check             fail if a page differs from the records
  scripts/results.py stamp               print the commit that a run measures
  scripts/results.py add COMMIT FILE...  record the figures that programs wrote

docs/results.jsonl has a line per run. Its `code` is a digest of the files that
the run covers, without comments and unit tests, and `plan` of its
fault-injection plan. If they have changed since, the pages mark the run as
older code. Only runs of this code add up, or
else those of the newest older code.

Pages state figures in blocks that end with <!-- end -->, and in front of
references to a count or to a cell. `*` stands for several names or rows, and
gives their sum or their range; `~2` rounds to two digits:

  <!-- table NAME -->  <!-- plot NAME -->   a table; and its picture
  <!-- runs -->  <!-- totals -->            fault injection by plan; the sums
  <!-- parts -->  <!-- mutants -->          the deep tier; the seeded mutants
  <!-- code -->                             on which code the references are

  1.4 million<!-- = torture / cluster / acquisitions ~2 -->
  1.24<!-- = bench / hand-p50 / leasehold FairMutex / relative to leasehold Mutex / max -->
"""

import datetime
import fnmatch
import functools
import hashlib
import io
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

# What a run covers: the library, or all crates that users install.
LIBRARY = ("crates/leasehold/lua", "crates/leasehold/src")
OTHERS = ("leasehold-cli", "leasehold-fence", "leasehold-metrics", "leasehold-testkit")
COVERED = dict.fromkeys(("deep", "mutant", "cli", "fence"), (*LIBRARY, *(f"crates/{name}/src" for name in OTHERS)))

# The kinds of runs that execute unit tests.
TESTING = ("deep", "mutant")

BLOCK = re.compile(r"^( *)<!-- (table|plot|runs|totals|parts|mutants|code) ?(\S*) -->\n.*?^ *<!-- end -->", re.M | re.S)
REFERENCE = re.compile(r"([\d.,]*\d(?: million)?(?: to [\d.,]*\d)?)<!-- = (.+?)(?: ~(\d))? -->")

# On these pages, a figure with one of these units needs a reference.
CHECKED = ("README.md", "benchmarks.md", "torture.md")
UNIT = re.compile(r"\d (?:µs|million|acquisitions|failovers|kills|losses|violations|writes)\b")

# The record that all checks of a part were run, not a selection.
WHOLE = "(whole part)"

# Larger reports of fault-injection runs are not kept.
REPORT_LIMIT = 1_000_000

# Counts of fault-injection runs, as the pages call them.
FAULTS = {"failovers": "failovers", "server killed": "kills of the server", "slot moved": "moved slots"}
FAULTS |= {"disturbed requests": "disturbed requests", "losses": "lost leases"}
TOTALS = {"acquisitions": "acquisitions", "faults": "faults", **FAULTS, "writes": "fenced writes"}
TOTALS |= {"violations": "violations", "expected violations": "expected violations"}


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def files(paths, commit=None):
    """Returns the content of the files below `paths`, as they are now or in a commit."""
    if commit:
        packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            below = [file for file in archive if file.isfile() and f"{file.name}/".startswith(tuple(f"{path}/" for path in paths))]
            return {file.name: archive.extractfile(file).read() for file in below}
    tops = [ROOT / path for path in paths]
    found = [file for top in tops for file in [top, *top.rglob("*")] if file.is_file()]
    return {file.relative_to(ROOT).as_posix(): file.read_bytes() for file in found}


def is_test(path):
    return path.name == "fuzz_inputs.rs" or bool({"tests", "testing"} & set(path.parts))


def executed(path, content, tests):
    """Returns what a run executes of a file: no comments, and no unit tests, which stand last, without `tests`."""
    match path.suffix:
        case ".rs":
            content = content if tests else content.partition(b"\n#[cfg(test)]\nmod tests {\n")[0]
            return re.sub(rb"^\s*//.*\n?", b"", content, flags=re.M)
        case ".lua":
            return re.sub(rb"^\s*--.*\n?", b"", content, flags=re.M)
    return content


@functools.cache
def digest(paths, commit=None, tests=False):
    """Returns a digest of the code below `paths`, as it is now or in a commit."""
    found = ((pathlib.PurePosixPath(name), content) for name, content in files(paths, commit).items())
    whole = hashlib.sha256()
    for path, content in sorted(found):
        if path.suffix != ".md" and (tests or not is_test(path)):
            whole.update(f"{path} {hashlib.sha256(executed(path, content, tests)).hexdigest()}\n".encode())
    return whole.hexdigest()[:12]


def digests(run, commit=None):
    """Returns the digests of what a run covers."""
    kind = run["kind"]
    found = {"code": digest(COVERED.get(kind, LIBRARY), commit, kind in TESTING)}
    if kind == "torture":
        found["plan"] = digest((f"crates/torture/plans/{run['name']}.toml",), commit)
    return found


def is_current(run):
    return digests(run).items() <= run.items()


def stamp():
    """Returns the commit. Nothing but the pages may have been changed since."""
    if changed := git("status", "--porcelain", "--", ".", ":!docs", ":!README.md"):
        sys.exit(f"cannot record a run of a tree with changes:\n{changed}")
    return git("rev-parse", "--short=10", "HEAD")


def append(commit, run):
    """Records a run that began on `commit`."""
    stamp()
    digest.cache_clear()
    if digests(run, commit) != digests(run):
        sys.exit(f"cannot record {run['name']}: the code has changed since {commit}")
    is_virtual = " hypervisor " in pathlib.Path("/proc/cpuinfo").read_text()
    machine = f"{'virtual ' * is_virtual}machine, {os.cpu_count()} cores shared by server and clients"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    record = {"kind": run["kind"], "name": run["name"], "commit": commit, "date": date, **digests(run)}
    record |= {**run, "machine": machine}
    with open(DOCS / "results.jsonl", "a") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def add(commit, path):
    """Records what a program wrote, and keeps the report or the plot beside it."""
    run = json.loads(path.read_text())
    report, plot = path.with_name("report.html"), DOCS / "benchmarks" / f"{run['name']}.svg"
    if run["kind"] == "torture" and report.stat().st_size < REPORT_LIMIT:
        run["report"] = f"torture/{run['name']}.html"
    append(commit, run)
    if "report" in run:
        shutil.copy(report, DOCS / run["report"])
    if plot.exists():
        shutil.copy(path.with_suffix(".svg"), plot)


def figure(value, digits=None):
    """Writes a value with the digits of tables, or rounded."""
    if not digits:
        return f"{value:,.{0 if isinstance(value, int) or abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"
    power = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    if abs(value) >= 1e6:
        return f"{value / 1e6:.{max(0, power + 6)}f} million"
    return f"{round(value, power):,.{0 if value == round(value) else max(0, power)}f}"


def cell(values):
    if not isinstance(values, list):
        return values or "–"
    shown = [figure(value) for value in values]
    return f"**{shown[0]}** ({shown[1]} to {shown[2]})" if len(shown) == 3 else ", ".join(shown)


def grouped(runs, key):
    groups = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def code_of(run):
    return run.get("code", id(run))


def sums_of(runs):
    names = dict.fromkeys(name for run in runs for name in run["counts"])
    return {name: sum(run["counts"].get(name, 0) for run in runs) for name in names}


def markdown(head, rows):
    return "\n".join(f"| {' | '.join(cells)} |" if cells else "|---" * len(head) + "|" for cells in [head, None, *rows])


class Results:
    """The records, and what the pages state of them."""

    def __init__(self, runs):
        self.kinds = grouped(runs, lambda run: run["kind"])
        self.current = {id(run) for run in runs if is_current(run)}

    def present(self, runs):
        return [run for run in runs if id(run) in self.current]

    def named(self, kind, pattern):
        """Returns the last run of each table, or the runs whose counts add up."""
        runs = [run for run in self.kinds.get(kind, []) if fnmatch.fnmatchcase(run["name"], pattern)]
        runs = [run for run in runs if run.get("verdict") not in ("void", "FAILED", "timeout")]
        if not runs:
            sys.exit(f"no record of {kind} / {pattern}")
        if "table" in runs[-1]:
            return list({run["name"]: run for run in runs}.values())
        return self.present(runs) or [run for run in runs if code_of(run) == code_of(runs[-1])]

    def state(self, runs):
        age = "this" if len(self.present(runs)) == len(runs) else "older"
        return f"{age} code, `{runs[-1]['commit'][:7]}`, {runs[-1]['date']}"

    def values(self, reference):
        """Returns a figure, or the ends of a range."""
        kind, pattern, *place = reference.split(" / ")
        runs = self.named(kind, pattern)
        if "table" not in runs[-1]:
            return [sums_of(runs)[place[0]]]
        cells = []
        for table in [run["table"] for run in runs]:
            at = table["columns"].index(place[1])
            cells += [cells[at] for row, *cells in table["rows"] if fnmatch.fnmatchcase(row, place[0])]
        found = [{"min": min, "max": max}[place[2]](cell) if place[2:] else cell[0] for cell in cells]
        return sorted({min(found), max(found)})

    def page(self, text):
        """Returns the text of a page with the figures of the records."""

        def reference(match):
            try:
                shown = [figure(value, int(match[3] or 0)) for value in self.values(match[2])]
            except (KeyError, ValueError):
                sys.exit(f"no figure {match[2]}")
            return " to ".join(shown) + match[0][len(match[1]) :]

        def block(match):
            indent, kind, name = match.groups()
            body = self.code(text) if kind == "code" else getattr(self, kind)(*filter(None, [name]))
            whole = re.compile(r"\||!\[")
            fitted = [l if whole.search(l) else textwrap.fill(l, 100 - len(indent)) for l in body.split("\n")]
            blank = "" if kind == "code" else "\n"
            body = textwrap.indent("\n".join(fitted), indent)
            return f"{match[0].splitlines()[0]}\n{blank}{body}\n{blank}{indent}<!-- end -->"

        text = REFERENCE.sub(reference, text)
        return BLOCK.sub(block, text)

    def table(self, name):
        run = [run for runs in self.kinds.values() for run in runs if run["name"] == name and "table" in run][-1]
        table = run["table"]
        heading = f"### {table['title']}\n\n" if "title" in table else ""
        rows = [[row, *map(cell, cells)] for row, *cells in table["rows"]]
        note = f" {run['note']}" if "note" in run else ""
        return f"{heading}Measured on {self.state([run])}.{note}\n\n" + markdown(["", *table["columns"]], rows)

    def plot(self, name):
        title = self.named("bench", name)[-1]["table"]["title"]
        return f"{self.table(name)}\n\n![{title}](benchmarks/{name}.svg)"

    def runs(self):
        rows = []
        for name, runs in sorted(grouped(self.kinds["torture"], lambda run: run["name"]).items()):
            runs = self.present(runs) or runs
            last = [run for run in runs if "report" in run][-1:]
            for group in grouped(runs, lambda run: (code_of(run), run["verdict"] == "void")).values():
                label = f"[`{name}`]({last[0]['report']})" if last and last[0] in group else f"`{name}`"
                rows.append([label, *self.sum(group)])
        return markdown(["plan", "measured on", "acquisitions", "faults", "fenced writes", "violations"], rows)

    def sum(self, runs):
        """Returns the cells of fault-injection runs that add up."""
        sums, times = sums_of(runs), [run.get("seconds") for run in runs]
        state = self.state(runs) + f"; {len(runs)} runs" * (len(runs) > 1)
        state += "" if None in times else f"; {sum(times):,} s"
        faults = ", ".join(f"{sums[name]:,} {label}" for name, label in FAULTS.items() if sums.get(name))
        faults = f"{sums['faults']:,}" + f": {faults}" * bool(faults) if "faults" in sums else faults or "–"
        lost, expected = sums.get("unfenced writes lost"), sums.get("expected violations")
        writes = f"{sums['writes']:,}" if sums.get("writes") else "–"
        writes += f"; {lost:,} lost without a fence" if lost else ""
        broken = f"**{sums['violations']:,}**" if sums["violations"] else "none"
        broken += f"; {expected:,} expected" if expected else ""
        broken += "; the run is void" if runs[0]["verdict"] == "void" else ""
        return [state, f"{sums['acquisitions']:,}", faults, writes, broken]

    def totals(self):
        runs = [run for run in self.present(self.kinds["torture"]) if run["verdict"] != "void"]
        if not runs:
            return "Of this code, we have not yet recorded a run."
        sums, hours = sums_of(runs), sum(run["seconds"] for run in runs) / 3600
        rows = [[label, f"{sums.get(name, 0):,}"] for name, label in TOTALS.items()]
        return markdown([f"{len(runs)} run{'s' * (len(runs) > 1)} of this code", f"{hours:.1f} hours"], rows)

    def parts(self):
        rows = []
        for part, runs in grouped(self.kinds.get("deep", []), lambda run: run["part"]).items():
            runs = self.present(runs) or [run for run in runs if code_of(run) == code_of(runs[-1])]
            last = {run["name"]: run["verdict"] for run in runs}
            whole = "" if last.pop(WHOLE, None) else ", not the whole part"
            failed = [name for name, verdict in last.items() if verdict != "ok"]
            again = sum(run["verdict"] != "ok" for run in runs) - len(failed)
            passed = f"{len(last) - len(failed)} of {len(last)}{whole}" + f"; {again} failures before" * (again > 0)
            minutes = sum(run.get("seconds", 0) for run in runs) / 60
            rows.append([f"`{part}`", self.state(runs), passed, ", ".join(failed) or "–", f"{minutes:,.0f}"])
        head = ["part", "measured on", "passed", "not passed", "minutes"]
        return markdown(head, rows) if rows else "We have not yet recorded a part."

    def mutants(self):
        listed = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())["mutant"]
        runs = {run["name"]: run for run in self.kinds["mutant"]}

        def outcome(name):
            if name not in runs:
                return "not recorded"
            return ("detected" if runs[name]["verdict"] == "ok" else "**not detected**") + ", " + self.state([runs[name]])

        groups = grouped((mutant["name"] for mutant in listed), outcome)
        rows = [[how, str(len(names)), ", ".join(f"`{name}`" for name in names)] for how, names in sorted(groups.items())]
        return markdown([f"of {len(listed)} seeded mutants", "number", "names"], rows)

    def code(self, text):
        states = {}
        for kind, name in (match[2].split(" / ")[:2] for match in REFERENCE.finditer(text)):
            # Tables of one scenario begin with the same word.
            short = re.split("[-*]", name)[0] if kind == "bench" else name
            states.setdefault(self.state(self.named(kind, name)), {})[short] = None
        shown = [f"{state} ({', '.join(names)})" if len(states) > 1 else state for state, names in states.items()]
        return f"Measured on {'; on '.join(shown)}."


def recorded():
    return Results([json.loads(line) for line in (DOCS / "results.jsonl").read_text().splitlines()])


def pages():
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def write_pages():
    results = recorded()
    for path in pages():
        path.write_text(results.page(path.read_text()))


def problems():
    """Returns what the pages state without a record."""
    results, found = recorded(), []
    for path in pages():
        text = path.read_text()
        if results.page(text) != text:
            found.append(f"{path.name}: differs from docs/results.jsonl; run scripts/results.py")
        if REFERENCE.search(text) and "<!-- code -->" not in text:
            found.append(f"{path.name}: does not state on which code its figures were measured")
        if path.name in CHECKED:
            rest = REFERENCE.sub("", BLOCK.sub("", text))
            found += [f"{path.name}: without a reference: {match[0]}" for match in UNIT.finditer(rest)]
    return found


def main():
    match sys.argv[1:]:
        case []:
            write_pages()
        case ["--check"]:
            sys.exit("\n".join(problems()) or 0)
        case ["stamp"]:
            print(stamp())
        case ["add", commit, _, *_]:
            for path in sys.argv[3:]:
                add(commit, pathlib.Path(path))
            write_pages()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
