"""The site of the documentation: every link, every page on a phone, what axe finds in light and dark.

Needs Zensical (the extra `docs`), Playwright and axe-playwright-python (the extra `browser`) and a Chromium on the PATH.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from first import first
from pages import violations

ROOT = Path(__file__).resolve().parents[2]
EACH_KIND = """
index model gallery command-line performance layers/index layers/ROIPooling layers/Pooling commands/detect tutorials/index
teaching tutorials/5-roi-pooling api/engine examples/shapes
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
def site() -> Path:
    pytest.importorskip("zensical", reason="Zensical (the extra docs) is not installed")
    folder, run = ROOT / "build", os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    folder.mkdir(exist_ok=True)
    with (folder / "site.run").open("a+") as built:  # pytest's processes share one site
        fcntl.flock(built, fcntl.LOCK_EX)
        built.seek(0)
        if not run or built.read() != run:
            done = subprocess.run([sys.executable, "site/build.py"], cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            built.truncate(0)
            built.write(run)
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Reader]:
    found = {}
    for path in sorted(site.rglob("*.html")):
        if path.parent.name not in ("traces", "ten-minutes") and path.name != "404.html":  # these have tests of their own
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
def served(site: Path) -> Iterator[str]:
    """The site's address, as `minicaffe docs` serves it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


OPEN_SEARCH = """async () => {
    for (let i = 0; i < 30 && document.activeElement === document.body; i++) {
        document.dispatchEvent(new KeyboardEvent("keydown", {key: "k", code: "KeyK", ctrlKey: true, bubbles: true}));
        await new Promise((done) => setTimeout(done, 1000));
    }
}"""
"""Presses Ctrl+K until the field has the focus: the page listens only once its index is loaded."""


@pytest.mark.parametrize(
    ("words", "first_found"),
    [("roi pooling", "layers/ROIPooling"), ("psroi align", "layers/PSROIAlign"), ("batch norm", "layers/BatchNorm")],
)
def test_search_finds_a_layer_by_its_words(served: str, chromium: Any, words: str, first_found: str) -> None:
    page, failed = chromium.new_page(), list[str]()
    page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
    page.goto(f"{served}/index.html", wait_until="networkidle")
    page.evaluate(OPEN_SEARCH)  # before, an n leads to the next page
    page.keyboard.type(words)
    found = page.locator("a[href*='?h=']").first  # the order changes until the last letter is searched for
    found.and_(page.locator(f"a[href*='/{first_found}.html']")).wait_for()
    page.close()
    assert not failed


def test_the_teachers_page_links_lessons_and_tours(site: Path) -> None:
    page = (site / "teaching.html").read_text(encoding="utf-8")
    table = page[page.index('id="two-hours"') : page.index('id="six-hours"')]
    for link in (
        '"ten-minutes/index.html#tour=ten-minutes">lesson 0</a>',
        '"tutorials/1-boxes.html">lesson 1</a>',
        '"tutorials/3-anchors.html#pick-an-anchor">Pick an anchor</a>',
        '"traces/faster_rcnn.html#tour=roi-pooling">tour ',
    ):
        assert f"<a href={link}" in table


def test_the_gallery_opens_traces_at_their_layers(site: Path) -> None:
    places = re.findall(
        r'href="traces/(\w+)\.html(?:#(?:layer=([\w-]+)|[^"]*))?"', (site / "gallery.html").read_text(encoding="utf-8")
    )
    assert {"rfcn", "digits", "film"} <= {name for name, _ in places}
    for name, layer in places:
        assert f'"{layer}"' * bool(layer) in (site / "traces" / f"{name}.html").read_text(encoding="utf-8"), (name, layer)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_fit_dark_pages(site: Path, chromium: Any, scheme: str) -> None:
    context = chromium.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto((site / "tutorials/5-roi-pooling.html").as_uri())
    filters = page.evaluate(
        "[...document.querySelectorAll('article img')].map((one) => [one.src, getComputedStyle(one).filter])"
    )
    context.close()
    is_inverted = {bool(re.search("-plot-", name)): "invert" in found for name, found in filters}
    assert is_inverted == {False: False, True: scheme == "dark"}


def test_a_layers_page(site: Path) -> None:
    text = (site / "layers" / "ROIPooling.html").read_text(encoding="utf-8")
    assert "<msub><mi>y</mi>" in text and text.count('<p class="statement">') == 1
    for told in (
        "<code>spatial_scale</code>",
        "MS-CNN",
        "5. What rounding loses",
        'class="nc">ROIPooling<',
        "minicaffe/layers/roi/roi_pooling.py",
    ):
        assert told in text.replace("<wbr>", ""), told


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


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(site: Path, chromium: Any, axe: str, scheme: str) -> None:
    context = chromium.new_context(color_scheme=scheme)
    page, found = context.new_page(), []
    for name in EACH_KIND:
        page.goto((site / f"{name}.html").as_uri())
        found += [f"{name}: {broken}" for broken in violations(page, axe)]
    context.close()
    assert not found, "\n".join(found)
