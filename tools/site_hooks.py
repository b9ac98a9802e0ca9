"""Hooks of the docs site (mkdocs.yml).

The pages are written for GitHub. MkDocs reads them with Python-Markdown, and has only docs/ as sources. So
the hooks add the pages of the repository's root, adapt links that leave docs/, and adapt lists and fences to
Python-Markdown.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
MERMAID = ROOT / "build/docs/mermaid.min.js"
# Name on the site of pages that lie outside docs/.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "benchmarks/README.md": "benchmarks.md",
}
ORIGIN = {site: path for path, site in OUTSIDE.items()}

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)(```+|~~~+)\s*(\w*)")
ITEM = re.compile(r"^( *)([-*+]|\d+[.)])( +)(?=\S)")
CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
CODE_INDENT = 4


class Lists:
    """Rewrites indentation of lists.

    Python-Markdown expects four columns per level, GitHub the column where the item's text begins.
    """

    def __init__(self) -> None:
        self.columns: list[int] = []  # where the text of each open item begins
        self.blank = True  # the line before was blank

    def line(self, line: str) -> list[str]:
        """Returns the lines to write for this line, which is not inside a fence."""
        if not line.strip():
            self.blank = True
            return [""]
        indent = len(line) - len(line.lstrip())
        item = ITEM.match(line)
        before = self.columns
        if item or self.blank:  # else it continues the paragraph before
            self.columns = [column for column in self.columns if column <= indent]
        depth = len(self.columns)
        past = indent - self.columns[-1] if self.columns else indent
        starts = item and past < CODE_INDENT
        # GitHub lets a list interrupt a paragraph, Python-Markdown needs a blank line.
        out = [""] if starts and not self.blank and not before else []
        self.blank = False
        if starts and item:
            self.columns.append(indent + len(item[2]) + len(item[3]))
            return [*out, " " * CODE_INDENT * depth + line.lstrip()]
        if not depth:
            return [line]
        return [" " * (CODE_INDENT * depth + max(past, 0)) + line.lstrip()]


def for_python_markdown(text: str) -> str:
    """Adapts a page's lists and fences."""
    lists = Lists()
    out: list[str] = []
    fence = ""  # the one that is open
    shift = 0  # columns by which its lines move
    for line in text.splitlines():
        if fence:
            out.append(moved(line, shift))
            if line.strip() == fence:
                fence = ""
        elif opened := FENCE.match(line):
            *before, last = lists.line(line)
            indent = len(last) - len(last.lstrip())
            fence, shift = opened[2], indent - len(opened[1])
            # "```sh install" names a step for tests; Python-Markdown takes one word.
            out += [*before, f"{' ' * indent}{fence}{opened[3]}"]
        else:
            # GitHub takes the backslash of "\\|" away in code too, if it stands in a table.
            in_table = line.lstrip().startswith("|")
            out += lists.line(CODE.sub(with_bars, line) if in_table else line)
    return "\n".join(out) + "\n"


def with_bars(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def moved(line: str, columns: int) -> str:
    if not line.strip():
        return ""
    return (
        " " * columns + line
        if columns >= 0
        else line[min(-columns, len(line) - len(line.lstrip())) :]
    )


def site_link(origin: str, target: str, source_url: str) -> str | None:
    """Returns the target of a link on the site; None if the site has neither the file nor an address for it.

    `origin` is the page's path in the repository, `source_url` the address of the repository's files, or "".
    """
    name, mark, anchor = target.partition("#")
    if not name or re.match(r"[a-z]+:", target):
        return target
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), name))
    if path in OUTSIDE:
        return OUTSIDE[path] + mark + anchor
    if path.startswith("docs/"):
        return path.removeprefix("docs/") + mark + anchor
    if not (ROOT / path).exists():
        return target  # a broken link, which MkDocs reports
    return f"{source_url.rstrip('/')}/{path}" if source_url else None


def with_site_links(text: str, origin: str, source_url: str) -> str:
    def replace(match: re.Match[str]) -> str:
        image, words, target = match.groups()
        if "](" in words:
            words = LINK.sub(replace, words)
        link = site_link(origin, target, source_url)
        return words if link is None else f"{image}[{words}]({link})"

    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.M | re.S)
    return "".join(p if n % 2 else LINK.sub(replace, p) for n, p in enumerate(parts))


def on_files(files: Files, config: Any) -> Files:
    for path, site in OUTSIDE.items():
        content = (ROOT / path).read_text()
        if site == "index.md":  # the only page of its part: nothing to navigate to
            content = f"---\nhide: [navigation]\n---\n{content}"
        files.append(File.generated(config, site, content=content))
    if not MERMAID.exists():
        raise SystemExit(f"{MERMAID.relative_to(ROOT)} is missing: run tools/setup.sh docs")
    script = File.generated(config, "assets/mermaid.min.js", abs_src_path=str(MERMAID))
    files.append(script)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    origin = ORIGIN.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    text = with_site_links(markdown, origin, config.extra.get("source_url") or "")
    return for_python_markdown(text)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Loads mermaid from the site on pages with a diagram; else the theme fetches it from the network."""
    if 'class="mermaid"' not in output:
        return output
    script = posixpath.relpath(
        "assets/mermaid.min.js", posixpath.dirname(page.file.dest_uri) or "."
    )
    return output.replace("</head>", f'<script src="{script}"></script></head>', 1)
