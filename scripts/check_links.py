#!/usr/bin/env python3
"""Checks the links of all Markdown files and of the built guide.

Reports relative links, anchors, pictures and link names that do not resolve,
absolute links into this repository that name no file, links to hosts that are
not listed here, pages that are not in SUMMARY.md, and pages with examples that
are not compiled. Also checks links of source code into this repository. Run
`mdbook build` and `cargo doc` first. Needs no network. Exits with 1 if a link is
broken.
"""

import html.parser
import pathlib
import re
import sys
import urllib.parse

from gate_tests import ROOT, TARGET

DOCS = ROOT / "docs"
BOOK = ROOT / "target" / "book"
RUSTDOC = TARGET / "doc"
COMPILED = ROOT / "crates" / "leasehold-tests" / "src" / "lib.rs"

# Folders that hold no document of this project.
SKIPPED = {"target", "servers", "node_modules", ".git", "classes"}

REPOSITORY = "https://github.com/leasehold/leasehold"
RAW = "https://raw.githubusercontent.com/leasehold/leasehold/main/"
SITE = "https://leasehold.github.io/leasehold/"
API = re.compile(r"https://docs\.rs/(leasehold[\w-]*)/latest/(.+)")

# Hosts that documents may link to. Package registries are not among them.
HOSTS = {
    "docs.rs",
    "github.com",
    "img.shields.io",
    "leasehold.github.io",
    "raw.githubusercontent.com",
    "www.contributor-covenant.org",
}

FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1 *$", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)?$", re.M)
INLINE = re.compile(r"\]\(\s*<?([^\s)>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
NAMED = re.compile(r"\[((?:[^\[\]]|!?\[[^\[\]]*\])+)\](?:\[([^\[\]]*)\])?(?![(:\[])")
DEFINITION = re.compile(r"^ {0,3}\[([^\[\]]+)\]:\s+<?(\S+?)>?\s*$", re.M)
BARE = re.compile(r"<(https?://[^>\s]+)>")
INCLUDE = re.compile(r"\{\{#include +([^\s:}]+)(?::([\w-]+))?\s*\}\}")
EXAMPLE = re.compile(r"^ *```rust(?!,ignore)", re.M)

problems = []


def report(place, problem):
    problems.append(f"{place.relative_to(ROOT)}: {problem}")


def files(*suffixes):
    """Returns the files of this project with one of the suffixes, sorted."""
    found = (path for suffix in suffixes for path in ROOT.rglob(f"*{suffix}"))
    return sorted(path for path in found if not SKIPPED.intersection(path.relative_to(ROOT).parts))


def region(path, name):
    """Returns a file, or the region of it that is between two ANCHOR comments."""
    text = path.read_text()
    if name is None:
        return text
    match = re.search(rf"ANCHOR: {name}\b.*?\n(.*?)[^\n]*ANCHOR_END: {name}\b", text, re.S)
    return match.group(1) if match else None


def expanded(path):
    """Returns the text of a page, with the files that mdBook includes in it."""

    def included(match):
        source, name = path.parent / match.group(1), match.group(2)
        text = region(source, name) if source.is_file() else None
        if text is None:
            report(path, f"includes nothing: {match.group(0)}")
        return text or ""

    return INCLUDE.sub(included, path.read_text())


def without_code(text):
    return CODE.sub(lambda code: re.sub(r"[\[\](){}<>]", " ", code.group(0)), without_blocks(text))


def without_blocks(text):
    return COMMENT.sub("", FENCE.sub("", text))


def slug(heading):
    """Returns the anchor of a heading, as GitHub and mdBook compute it."""
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])?", r"\1", heading)
    text = re.sub(r"[`*]", "", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path, cache={}):
    """Returns the anchors of a Markdown file."""
    if path not in cache:
        counts, cache[path] = {}, set()
        for heading in HEADING.findall(without_blocks(expanded(path))):
            name = slug(heading)
            number = counts.get(name, 0)
            counts[name] = number + 1
            cache[path].add(f"{name}-{number}" if number else name)
    return cache[path]


def name_of(label):
    return " ".join(label.split()).lower()


def links(path):
    """Returns the targets of all links of a page, and reports unknown names."""
    prose = without_code(expanded(path))
    definitions = DEFINITION.findall(prose)
    known = {name_of(name) for name, _ in definitions}
    for label, name in NAMED.findall(DEFINITION.sub("", prose)):
        # A capital letter or code in brackets is meant as a link.
        is_link = name or re.match(r"[A-Z`]\w", label)
        if is_link and name_of(name or label) not in known:
            report(path, f"no link is named [{name or label}]")
    return INLINE.findall(prose) + [target for _, target in definitions] + BARE.findall(prose)


def check_page(path):
    is_absolute = path == ROOT / "README.md" or is_readme_of_package(path)
    for target in links(path):
        if target.startswith("crate::"):
            continue  # rustdoc checks these.
        if "://" in target or target.startswith("mailto:"):
            check_url(path, target)
            continue
        if is_absolute:
            report(path, f"{target} is relative, and breaks where a registry shows this page")
            continue
        file, _, anchor = target.partition("#")
        to = (path.parent / urllib.parse.unquote(file)).resolve() if file else path
        if DOCS in path.parents and to != path and DOCS not in to.parents:
            report(path, f"{target} leaves docs: use {REPOSITORY}/blob/main/…")
        check_file(path, target, to, anchor)


def is_readme_of_package(path):
    manifest = path.parent / "Cargo.toml"
    if path.name != "README.md" or not manifest.exists():
        return False
    return not re.search(r"^publish *= *false", manifest.read_text(), re.M)


def check_file(place, target, to, anchor):
    if not to.exists():
        report(place, f"{target}: no such file")
    elif anchor and to.suffix == ".md" and anchor not in anchors(to):
        report(place, f"{target}: no such anchor")


def check_url(place, url):
    parts = urllib.parse.urlsplit(url)
    file = url.partition("#")[0]
    if parts.scheme != "https" or parts.hostname not in HOSTS:
        report(place, f"{url}: the host is not one of those in {pathlib.Path(__file__).name}")
    elif file.rstrip("/") == REPOSITORY:
        check_file(place, url, ROOT / "README.md", parts.fragment)
    elif match := re.match(re.escape(REPOSITORY) + r"/(?:blob|tree|edit)/main/(.*)", file):
        check_file(place, url, ROOT / urllib.parse.unquote(match.group(1)), parts.fragment)
    elif match := re.match(re.escape(REPOSITORY) + r"/actions/workflows/([^/]+)", file):
        check_file(place, url, ROOT / ".github" / "workflows" / match.group(1), "")
    elif url.startswith(RAW):
        check_file(place, url, ROOT / url.removeprefix(RAW), "")
    elif url.startswith(SITE):
        check_html(place, url, BOOK / (file.removeprefix(SITE) or "index.html"), parts.fragment)
    elif (match := API.match(file)) and (RUSTDOC / match.group(1).replace("-", "_")).exists():
        check_html(place, url, RUSTDOC / match.group(2), parts.fragment)


class Page(html.parser.HTMLParser):
    """The links and the anchors of an HTML page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "id" in values:
            self.anchors.add(values["id"])
        for name in ("href", "src"):
            if values.get(name) and tag != "base":
                self.links.append(values[name])


def page_at(path, cache={}):
    if path not in cache:
        cache[path] = Page(path)
    return cache[path]


def check_html(place, target, to, anchor):
    to = to / "index.html" if to.is_dir() else to
    if not to.is_file():
        report(place, f"{target}: no such file")
    elif anchor and to.suffix == ".html" and anchor not in page_at(to).anchors:
        report(place, f"{target}: no such anchor")


def check_book():
    """Checks the pages that mdBook wrote, and returns their number."""
    reports = {path.relative_to(DOCS) for path in DOCS.rglob("*.html")}
    pages = [path for path in sorted(BOOK.rglob("*.html")) if path.relative_to(BOOK) not in reports]
    for path in pages:
        if path.name in ("404.html", "toc.html"):
            continue
        text = path.read_text()
        if "{{#" in text:
            report(path, "contains a directive of mdBook")
        for target in page_at(path).links:
            if "://" in target:
                check_url(path, target)
            elif not target.startswith(("data:", "javascript:")):
                file, _, anchor = target.partition("#")
                to = path.parent / urllib.parse.unquote(file) if file else path
                check_html(path, target, to, urllib.parse.unquote(anchor))
    return len(pages)


def check_source():
    """Checks the links into this repository in source code and manifests."""
    link = re.compile(rf"(?:{re.escape(REPOSITORY)}|{re.escape(RAW)})[^\s\"'`)>]*")
    for path in files(".rs", ".toml", ".yml"):
        for url in link.findall(path.read_text()):
            if "{" not in url:
                check_url(path, url)


def check_summary():
    listed = {(DOCS / target).resolve() for target in links(DOCS / "SUMMARY.md")}
    for path in sorted(DOCS.rglob("*.md")):
        if path != DOCS / "SUMMARY.md" and path not in listed:
            report(path, "is not in docs/SUMMARY.md")


def check_examples():
    compiled = set(re.findall(r'"([^"]+\.md)"', COMPILED.read_text()))
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        place = str(path.relative_to(ROOT))
        if EXAMPLE.search(path.read_text()) and place not in compiled:
            report(path, f"has examples that {COMPILED.relative_to(ROOT)} does not compile")


def main():
    if not BOOK.is_dir():
        sys.exit("target/book does not exist: run `mdbook build`")
    pages = files(".md")
    for path in pages:
        check_page(path)
    check_source()
    check_summary()
    check_examples()
    built = check_book()
    for problem in sorted(set(problems)):
        print(problem)
    print(f"{len(pages)} documents, {built} pages of the guide, {len(set(problems))} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
