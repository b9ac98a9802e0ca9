#!/usr/bin/env python3
"""Checks the built docs site: links, anchors, and that pages fetch nothing from other hosts.

    python3 tools/check_site.py build/site

Prints "page: what is wrong" for each failure and exits with 1 if there is one. `make docs` runs it: MkDocs
checks links of the sources only, not those that plugins and the theme make.
"""

from __future__ import annotations

import argparse
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attribute by which a browser fetches something while it shows a page; of <link> see FETCHED.
LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
}
FETCHED = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "manifest"}
REMOTE_IN_CSS = re.compile(r"(?:@import\s+|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)")


class Page(HTMLParser):
    """Anchors and links of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[str] = []
        self.loads: list[str] = []
        self.diagrams = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        self.diagrams |= "mermaid" in given.get("class", "").split()
        if tag == "link" and FETCHED & set(given.get("rel", "").split()):
            self.loads.append(given["href"])
        elif tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif given.get(LOADS.get(tag, "")):
            self.loads.append(given[LOADS[tag]])


class Site:
    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.pages = {
            path: Page(path.read_text(encoding="utf-8"))
            for path in sorted(self.root.rglob("*.html"))
        }

    def problem(self, page: Path, link: str) -> str:
        """Returns why a link of a page does not lead anywhere, or ""."""
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            return ""
        # The page for addresses that do not exist is served at any of them, so its links begin with "/".
        base = self.root if parts.path.startswith("/") else page.parent
        target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else page
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            return f"no file {link}"
        anchor = unquote(parts.fragment)
        if target in self.pages and anchor not in self.pages[target].anchors:
            return f"no anchor {link}"
        return ""

    def problems(self) -> list[str]:
        found = []
        for path, page in self.pages.items():
            name = path.relative_to(self.root)
            wrong = [self.problem(path, link) for link in (*page.links, *page.loads)]
            wrong += [f"fetches {link}" for link in page.loads if urlsplit(link).netloc]
            if page.diagrams and not any(link.endswith("/mermaid.min.js") for link in page.loads):
                wrong.append("has a diagram and does not load assets/mermaid.min.js")
            found += [f"{name}: {what}" for what in dict.fromkeys(wrong) if what]
        for path in sorted(self.root.rglob("*.css")):
            remote = REMOTE_IN_CSS.findall(path.read_text(encoding="utf-8"))
            found += [f"{path.relative_to(self.root)}: fetches {link}" for link in remote]
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path, metavar="FOLDER", help="where the site was built")
    site = Site(parser.parse_args().site)
    problems = site.problems()
    for problem in problems:
        print(problem)
    links = sum(len(page.links) for page in site.pages.values())
    print(f"{len(site.pages)} pages, {links} links, {len(problems)} problems")
    return 1 if problems or not site.pages else 0


if __name__ == "__main__":
    sys.exit(main())
