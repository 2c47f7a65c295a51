#!/usr/bin/env python3
"""Tests scripts/results.py: what it notices, adds up, marks and refuses."""

import json
import pathlib
import re
import subprocess
import tempfile
import unittest
from unittest import mock

import results

PLAN = "quorum"


def run(acquisitions, **more):
    """Returns the record of a fault-injection run of the present code."""
    run = {"kind": "torture", "name": PLAN, "commit": "0123456", "date": "2026-11-19", "seconds": 3600}
    counts = {"acquisitions": acquisitions, "faults": 7, "violations": 0}
    return {**run, "verdict": "passed", "counts": counts, **results.digests(run), **more}


class Pages(unittest.TestCase):
    def test_changed_figure_of_every_page_is_noticed(self):
        stated = results.recorded()
        for path in results.pages():
            text = path.read_text()
            figures = [match.span(1) for match in results.REFERENCE.finditer(text)]
            blocks = [(text.index("\n", match.start()), match.end()) for match in results.BLOCK.finditer(text)]
            broken = text
            for start, end in sorted(figures + blocks, reverse=True):
                *_, last = [None, *re.finditer(r"\d", text[start:end])]
                if last:
                    at = start + last.start()
                    broken = broken[:at] + str((int(last[0]) + 1) % 10) + broken[at + 1 :]
            self.assertEqual(stated.page(broken), text, path.name)

    def test_figures_without_record_or_code_are_noticed(self):
        place = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (place / "torture.md").write_text("5 tasks hold 3 locks in 1,234 acquisitions, 1<!-- = torture / quorum / faults -->.\n")
        (place / "results.jsonl").write_text(json.dumps(run(1)))
        with mock.patch.multiple(results, DOCS=place, pages=lambda: [place / "torture.md"]):
            found = results.problems()
        for problem in ("differs from", "does not state on which code", "without a reference: 4 acquisitions"):
            self.assertTrue(any(problem in line for line in found), found)
        self.assertEqual(len(found), 3)

    def test_unknown_figure_is_refused(self):
        table = {"columns": ["median"], "rows": [["ours", [1]]]}
        records = results.Results([run(1), {**run(1), "kind": "bench", "name": "pair", "table": table}])
        for unknown in ("torture / none / faults", "torture / quorum / none", "bench / pair / none / median", "bench / pair / ours / none"):
            with self.assertRaisesRegex(SystemExit, "^no "):
                records.page(f"1<!-- = {unknown} -->")


class Sums(unittest.TestCase):
    def stated(self, runs, text):
        return results.Results(runs).page(text)

    def test_runs_of_this_code_add_up(self):
        runs = [run(1_000_000), run(5, code="older"), run(400_000), run(9, plan="older"), run(3, verdict="void")]
        text = "0<!-- = torture / * / acquisitions -->, 0<!-- = torture / quorum / acquisitions ~2 -->"
        self.assertEqual(re.sub("<.*?>", "", self.stated(runs, text)), "1,400,000, 1.4 million")
        totals = self.stated(runs, "<!-- totals -->\n<!-- end -->")
        self.assertIn("| 2 runs of this code | 2.0 hours |", totals)
        self.assertIn("| acquisitions | 1,400,000 |", totals)

    def test_older_runs_are_marked(self):
        text = "0<!-- = torture / quorum / acquisitions -->\n<!-- code -->\n<!-- end -->"
        older = [run(1, code="first"), run(5, code="second"), run(6, code="second")]
        self.assertIn("11<!--", self.stated(older, text))
        self.assertIn("Measured on older code, `0123456`, 2026-11-19.", self.stated(older, text))
        self.assertIn("Measured on this code", self.stated([*older, run(7)], text))
        self.assertIn("7<!--", self.stated([*older, run(7)], text))
        self.assertIn("not yet recorded", self.stated(older, "<!-- totals -->\n<!-- end -->"))
        self.assertEqual(self.stated(older, "<!-- runs -->\n<!-- end -->").count("older code"), 2)

    def test_failure_remains_visible_after_a_repetition(self):
        check = {"kind": "deep", "part": "timing", "name": "a", "commit": "0123456", "date": "2026-11-19"}
        check |= results.digests(check)
        runs = [{**check, "verdict": "FAILED"}, {**check, "verdict": "ok"}, {**check, "name": "b", "verdict": "timeout"}]
        parts = self.stated(runs, "<!-- parts -->\n<!-- end -->")
        self.assertIn("| 1 of 2, not the whole part; 1 failures before | b |", parts)

    def test_several_tables_give_a_range(self):
        table = {"columns": ["median"], "rows": [["ours, 1t", [2.0, 1.0, 4.0]], ["ours, 2t", [3.0, 3.0, 3.0]], ["theirs", [9]]]}
        record = {**run(1), "kind": "bench", "name": "pair-x", "table": table}
        text = "0<!-- = bench / pair-* / ours, ?t / median -->; 0<!-- = bench / pair-x / ours, 1t / median / max -->"
        self.assertEqual(re.sub("<.*?>", "", self.stated([record], text)), "2.00 to 3.00; 4.00")


class Recording(unittest.TestCase):
    def setUp(self):
        place = self.enterContext(tempfile.TemporaryDirectory())
        self.root = pathlib.Path(place)
        self.enterContext(mock.patch.multiple(results, ROOT=self.root, DOCS=self.root / "docs"))
        self.source = self.root / "crates/leasehold/src/lib.rs"
        self.records = self.root / "docs/results.jsonl"
        for path in (self.source, self.records, self.root / "crates/torture/plans/quorum.toml"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        subprocess.run(["git", "init", "-q", place], check=True)
        self.commit()
        self.run = {"kind": "torture", "name": PLAN, "seconds": 1, "verdict": "passed", "counts": {"acquisitions": 2}}

    def commit(self):
        results.digest.cache_clear()
        results.git("add", "-A")
        results.git("-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "change")
        return results.stamp()

    def test_record_has_the_digest_of_the_commit(self):
        results.append(self.commit(), self.run)
        [record] = map(json.loads, self.records.read_text().splitlines())
        self.assertTrue(results.is_current(record))
        self.source.write_text("fn changed() {}\n")
        results.digest.cache_clear()
        self.assertFalse(results.is_current(record))

    def test_comments_and_unit_tests_keep_the_digest(self):
        self.source.write_text("//! What it is.\nfn work() {}\n\n#[cfg(test)]\nmod tests {\n    fn check() {}\n}\n")
        before = results.digest(results.LIBRARY)
        for change, is_kept in (("is", "was"), True), (("check", "prove"), True), (("work", "rest"), False):
            self.source.write_text(self.source.read_text().replace(*change))
            (self.source.parent / "tests").mkdir(exist_ok=True)
            (self.source.parent / "tests" / "more.rs").write_text(f"fn {change[1]}() {{}}\n")
            results.digest.cache_clear()
            self.assertEqual(results.digest(results.LIBRARY) == before, is_kept, change)
            self.assertEqual(results.digest(results.LIBRARY), results.digest(results.LIBRARY, self.commit()))

    def test_tree_with_changes_is_refused(self):
        commit = results.stamp()
        self.records.write_text("")
        self.source.write_text("fn changed() {}\n")
        with self.assertRaisesRegex(SystemExit, "a tree with changes"):
            results.append(commit, self.run)

    def test_code_that_changed_during_the_run_is_refused(self):
        commit = results.stamp()
        self.source.write_text("fn changed() {}\n")
        self.commit()
        with self.assertRaisesRegex(SystemExit, "the code has changed"):
            results.append(commit, self.run)
        self.assertEqual(self.records.read_text(), "")


if __name__ == "__main__":
    unittest.main()
