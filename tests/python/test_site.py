"""The docs site: the findings of the checker of built pages, the adaptation of GitHub pages, and
the site in a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Browser

import torch_mcast

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import release  # noqa: E402

PICTURES = ROOT / "build" / "site-screenshots"

# -- the checker --------------------------------------------------------------------------------------


def checked(folder: Path) -> tuple[int, list[str]]:
    """Returns the exit code of tools/check_site.py, and its lines except the last."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/check_site.py"), str(folder)], capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()[:-1]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="other.html">x</a>', "no file other.html"),
        ('<a href="other.html#there">x</a>', "no file other.html#there"),
        ('<a href="#nowhere">x</a>', "no anchor #nowhere"),
        ('<img src="missing.png">', "no file missing.png"),
        ('<script src="https://example.org/a.js"></script>', "fetches https://example.org/a.js"),
        ('<link rel="stylesheet" href="//example.org/a.css">', "fetches //example.org/a.css"),
        ('<pre class="mermaid">graph</pre>', "has a diagram and does not load assets/mermaid.min.js"),
    ],
)  # fmt: skip
def test_checker_reports_a_page_that_is_wrong(tmp_path, body, problem):
    (tmp_path / "index.html").write_text(f"<h1 id=a>A</h1>{body}")
    assert checked(tmp_path) == (1, [f"index.html: {problem}"])


def test_checker_accepts_links_that_lead_somewhere(tmp_path):
    (tmp_path / "index.html").write_text(
        '<h1 id="a">A</h1><a href="#a">x</a> <a href="b/page.html#b">y</a> <a href="https://example.org/">z</a>'
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "page.html").write_text('<h1 id="b">B</h1><a href="../index.html#a">x</a>')
    assert checked(tmp_path) == (0, [])


def test_checker_reports_style_sheets_that_fetch(tmp_path):
    (tmp_path / "index.html").write_text("<h1>A</h1>")
    (tmp_path / "a.css").write_text("@import url(https://example.org/font.css);")
    assert checked(tmp_path) == (1, ["a.css: fetches https://example.org/font.css"])


# -- pages for GitHub ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hooks():
    import site_hooks

    return site_hooks


@pytest.mark.all_tier
@pytest.mark.parametrize(
    ("github", "expected"),
    [
        ("1. a\n   - b\n   - c\n2. d\n", "1. a\n    - b\n    - c\n2. d\n"),
        ("- a\n  - b\n    - c\n- d\n", "- a\n    - b\n        - c\n- d\n"),
        ("- a\n\n  more of a\n\nafter\n", "- a\n\n    more of a\n\nafter\n"),
        ("text\n- a\n- b\n", "text\n\n- a\n- b\n"),
        ("- a\n  goes on\n- b\n", "- a\n    goes on\n- b\n"),
        ("text\n\n    - no list, code\n", "text\n\n    - no list, code\n"),
        ("```sh install\n- a\n```\n", "```sh\n- a\n```\n"),
        ("| `a \\| b` | c \\| d |\n", "| `a | b` | c \\| d |\n"),
        ("1. a\n   ```sh\n   - b\n   ```\n", "1. a\n    ```sh\n    - b\n    ```\n"),
    ],
)
def test_lists_fences_and_tables_are_adapted_to_python_markdown(hooks, github, expected):
    assert hooks.for_python_markdown(github) == expected


@pytest.mark.all_tier
@pytest.mark.parametrize(
    ("origin", "text", "source", "expected"),
    [
        ("docs/usage.md", "[a](../SECURITY.md#x)", "", "[a](security-policy.md#x)"),
        ("README.md", "[a](docs/usage.md#limits)", "", "[a](usage.md#limits)"),
        ("README.md", "![a](docs/images/bench-8-hosts.png)", "", "![a](images/bench-8-hosts.png)"),
        ("docs/protocol.md", "[`t`](../tests/cpp/wire): x", "", "`t`: x"),
        ("docs/protocol.md", "[t](../tests/cpp/wire)", "https://h/b/", "[t](https://h/b/tests/cpp/wire)"),
        ("docs/usage.md", "[a](https://example.org/x)", "", "[a](https://example.org/x)"),
        ("docs/usage.md", "[a](../no/such)", "", "[a](../no/such)"),
        ("docs/usage.md", "```\n[a](../SECURITY.md)\n```\n", "", "```\n[a](../SECURITY.md)\n```\n"),
    ],
)  # fmt: skip
def test_links_out_of_docs_lead_to_pages_of_the_site_or_to_sources(
    hooks, origin, text, source, expected
):
    assert hooks.with_site_links(text, origin, source) == expected


# -- the site -----------------------------------------------------------------------------------------


def build(folder: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config),
         "--site-dir", str(folder)],
        cwd=config.parent, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.all_tier
@pytest.mark.parametrize(
    ("page", "line", "problem"),
    [
        ("docs/tuning.md", "[a](no-such-page.md)", "'no-such-page.md'"),
        ("docs/tuning.md", "[a](usage.md#no-such-heading)", "'usage.md#no-such-heading'"),
        ("docs/not-in-nav.md", "# A page that is in no part of the site", "not-in-nav.md"),
    ],
)
def test_build_fails_by_a_page_that_is_wrong(tmp_path, page, line, problem):
    for name in ("tools", "torch_mcast", "mkdocs.yml"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "mkdocs.yml").unlink()
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / page).open("a") as file:
        file.write(f"\n{line}\n")
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0 and problem in done.stderr, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Returns the site's folder."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    with release.served(site) as address:
        yield address


@pytest.fixture
def browser(tmp_path, address):
    """Returns a browser that must have loaded everything from the site, without an error."""
    shown = Browser(tmp_path / "profile")
    yield shown
    shown.close()
    strangers = [
        u for u in shown.requests if not u.startswith((address, "data:", "blob:", "about:"))
    ]
    assert not strangers
    assert shown.requests and not shown.errors


TEXTS = "[...document.querySelectorAll({!r})].map(e => e.innerText.trim())"


@pytest.mark.all_tier
def test_links_of_the_built_site_lead_somewhere(site):
    assert checked(site) == (0, [])


@pytest.mark.all_tier
def test_home_page_has_the_parts_of_the_site(browser, address):
    browser.open(f"{address}/index.html")
    assert browser.run("document.title") == "torch-mcast"
    parts = browser.run(TEXTS.format(".md-tabs__link"))
    assert parts == ["Home", "Guide", "Reference", "Internals", "Decisions"]
    browser.screenshot(PICTURES / "home.png")
    browser.resize(400, 800)
    # nothing is outside the screen
    assert browser.run("document.documentElement.scrollWidth") <= 400
    browser.screenshot(PICTURES / "home-narrow.png")


@pytest.mark.all_tier
def test_navigation_of_a_part_lists_its_pages(browser, address):
    browser.open(f"{address}/first-job.html")
    assert browser.run("document.title") == "First job - torch-mcast"
    entries = browser.run(
        TEXTS.format(".md-nav--primary .md-nav__item--active .md-nav__item .md-nav__link")
    )
    for entry in ("Install and use", "First job", "Cluster", "GPUs", "Tuning", "Security", "Aggregators",
                  "Engine of the host", "Troubleshooting"):  # fmt: skip
        assert entry in entries
    browser.screenshot(PICTURES / "first-job.png")


@pytest.mark.all_tier
def test_search_finds_a_counter_and_its_result_opens(browser, address):
    browser.open(f"{address}/index.html")
    browser.run("document.querySelector('label[for=__search]').click()")
    browser.type(".md-search__input", "credit_stalls")
    browser.when("document.querySelectorAll('.md-search-result__link').length")
    browser.screenshot(PICTURES / "search.png")
    links = browser.run(
        "[...document.querySelectorAll('.md-search-result__link')].map(e => e.href)"
    )
    pages = {link.partition("?")[0].rpartition("/")[2] for link in links}
    assert {"counters.html", "troubleshooting.html"} <= pages
    browser.open(next(link for link in links if "counters.html" in link))
    assert "credit_stalls" in browser.run("document.querySelector('article').innerText")
    browser.screenshot(PICTURES / "counters.png")


@pytest.mark.all_tier
def test_api_page_has_the_docstrings(browser, address):
    browser.open(f"{address}/api.html")
    names = browser.run("[...document.querySelectorAll('.doc-heading')].map(e => e.id)")
    for name in ("stats", "abort", "metrics", "read_error", "trace", "options_by_backend"):
        assert f"torch_mcast.{name}" in names
    assert "torch_mcast._stats_types.Stats.counters" in names
    first = torch_mcast.abort.__doc__.partition("\n")[0].replace("`", "")
    assert first in browser.run("document.querySelector('article').innerText")
    browser.screenshot(PICTURES / "api.png")


@pytest.mark.all_tier
@pytest.mark.parametrize(
    ("page", "diagrams"), [("data-path", 4), ("architecture", 1), ("lifecycles", 1)]
)
def test_diagrams_are_drawn(browser, address, page, diagrams):
    browser.open(f"{address}/{page}.html")
    # The theme replaces the text of a diagram by an element with the picture in a closed shadow
    # tree.
    browser.when(f"document.querySelectorAll('div.mermaid').length === {diagrams}")
    sizes = browser.run("[...document.querySelectorAll('div.mermaid')].map(e => e.offsetHeight)")
    assert len(sizes) == diagrams and min(sizes) > 60
    assert not browser.run("document.querySelectorAll('pre.mermaid').length")
    browser.run("document.querySelector('div.mermaid').scrollIntoView()")
    browser.screenshot(PICTURES / f"{page}.png")
