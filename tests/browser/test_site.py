"""The site of the documentation: every link, every page on a phone, what axe finds in light and dark.

Needs MkDocs (the extra `docs`), Playwright and axe-core-python (the extra `browser`) and a Chromium on the PATH.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from first import first
from pages import violations

ROOT = Path(__file__).resolve().parents[2]
EACH_KIND = """
index model gallery command-line performance layers/index layers/ROIPooling commands/detect tutorials/index
tutorials/3-roi-layers api/engine examples/shapes
""".split()
"""A page of each kind: axe takes seconds for one."""


class Reader(HTMLParser):
    """The ids of a page, its links, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = {""}
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("img", "script", "link", "iframe"):
            self.loads += [found[name] for name in ("src", "href") if name in found and found.get("rel") != "canonical"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="MkDocs (the extra docs) is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Reader]:
    found = {}
    for path in sorted(site.rglob("*.html")):
        if path.parent.name != "traces" and path.name != "404.html":  # traces have tests of their own
            found[path] = Reader()
            found[path].feed(path.read_text(encoding="utf-8"))
    assert len(found) > 200
    return found


def test_links_lead_somewhere(site: Path, pages: dict[Path, Reader]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (target in pages and unquote(parts.fragment) not in pages[target].ids):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert not dead, "\n".join(dead)


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Reader]) -> None:
    for path, page in pages.items():
        for name in page.loads:
            parts = urlsplit(name)
            assert parts.scheme in ("", "data") and not parts.netloc, f"{path.relative_to(site)} loads {name}"
            assert parts.scheme or (path.parent / unquote(parts.path)).exists(), f"{path.relative_to(site)} loads {name}"


@pytest.fixture(scope="module")
def phone(chromium: Any) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 390, "height": 800})
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("which", first(1, ["each kind", "all"]))
def test_every_page_fits_a_phone(site: Path, pages: dict[Path, Reader], phone: Any, which: str) -> None:
    wide = []
    for path in pages if which == "all" else [site / f"{name}.html" for name in EACH_KIND]:
        phone.goto(path.as_uri(), wait_until="domcontentloaded")
        width = phone.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide.append(f"{path.relative_to(site)}: {width} pixels")
    assert not wide, "\n".join(wide)


@pytest.mark.parametrize("scheme", first(1, ["light", "dark"]))
def test_axe_finds_nothing(site: Path, chromium: Any, axe: str, scheme: str) -> None:
    context = chromium.new_context(color_scheme=scheme)
    page, found = context.new_page(), []
    for name in EACH_KIND:
        page.goto((site / f"{name}.html").as_uri())
        found += [f"{name}: {broken}" for broken in violations(page, axe)]
    context.close()
    assert not found, "\n".join(found)
