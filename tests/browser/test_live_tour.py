"""The tour of ten minutes on live pages: one that `minicaffe live` serves, and one where the browser runs Python.

Needs Playwright and axe-playwright-python (the `browser` extra) and a Chromium on the PATH. The second page also needs
Pyodide's files in the folder MINICAFFE_PYODIDE, with NumPy and Pillow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_pages import SHAPES, live_server, web_server, write_live
from pages import violations

from minicaffe.tracing.live_server import PYODIDE_BYTES

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
PYODIDE = os.environ.get("MINICAFFE_PYODIDE", "")
OPTIONS = "--classes", str(SHAPES / "classes.txt"), "--tour", "ten-minutes"
LOADED = 120_000
"""Milliseconds that Pyodide may take to load."""

SIZES = {
    "phone": {"width": 390, "height": 844},
    "desk": {"width": 1440, "height": 900},
    "notebook": {"width": 1200, "height": 850},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the page, without Pyodide."""
    folder = tmp_path_factory.mktemp("site")
    write_live(folder, "rfcn", *OPTIONS, "--gallery", "../gallery.html")
    return folder


@pytest.fixture(scope="module")
def site_address(site: Path) -> Iterator[str]:
    with web_server(site) as served:
        yield served


@pytest.fixture(scope="module", params=["served", "in the browser"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page whose net runs."""
    if request.param == "served":
        with live_server("rfcn", *OPTIONS) as running:
            yield running
        return
    if not PYODIDE:
        pytest.skip("MINICAFFE_PYODIDE does not name a folder with Pyodide's files")
    folder = tmp_path_factory.mktemp("site")
    write_live(folder, "rfcn", *OPTIONS)
    (folder / "pyodide").symlink_to(Path(PYODIDE).resolve())
    with web_server(folder) as served:
        yield served


@pytest.fixture
def open_at(chromium: Any) -> Iterator[Any]:
    """Opens an address in a window; no page may raise an error."""
    contexts, problems = [], list[str]()

    def opened(address: str, size: str = "desk", prepare: Any = None, **options: Any) -> Any:
        contexts.append(chromium.new_context(viewport=SIZES[size], **options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        if prepare:
            prepare(page)
        page.goto(address)
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def row_of_scores(page: Any, roi: int) -> list[float]:
    """The scores of a roi in the table of cls_prob."""
    row = page.locator(f'#panel [data-blob="cls_prob"] tr[data-roi="{roi}"]')
    row.locator("td").first.wait_for(state="attached")
    return [float(text.replace("−", "-")) for text in row.locator("td").all_text_contents()]


def test_a_dragged_roi_loses_its_score_until_the_restart(live: str, open_at: Any) -> None:
    page = open_at(live + "#tour=ten-minutes&stop=6")
    expect = playwright.expect
    where, note = page.locator(".tour-where"), page.locator(".tour-note")
    expect(where).to_have_text("Ten minutes, six questions: 6 of 8")
    expect(page.locator("#live-says")).to_contain_text("drag a roi of an ROI layer", timeout=LOADED)
    expect(note).to_be_empty()
    text = page.locator(".tour-text").inner_text()
    image = page.locator(".inspector .stage").first
    image.scroll_into_view_if_needed()
    page.wait_for_timeout(1300)  # the tour keeps the picture in view
    roi = image.locator("rect.chosen").bounding_box()
    x, y = roi["x"] + roi["width"] / 2, roi["y"] + roi["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + roi["width"] / 4, y)
    page.mouse.move(x + roi["width"] / 2, y)
    page.mouse.up()
    expect(page.locator("#live-says")).to_contain_text("from psroipooled_cls_rois on")
    page.locator("#live-says:not([aria-busy])").wait_for()
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".ask-says")).to_contain_text("Right. Each part of the circle")
    expect(note).to_contain_text("The text has the numbers of the first pass")
    assert page.locator(".tour-text").inner_text() == text
    page.locator(".tour-next").click()
    expect(where).to_have_text("Ten minutes, six questions: 7 of 8")
    assert "it had 0.9663 for a circle" in page.locator(".tour-text").inner_text()
    background, circle, *_ = row_of_scores(page, 0)
    assert background > 0.95 and circle < 0.02
    note.get_by_role("button", name="Run the net as at first").click()
    expect(note).to_be_empty(timeout=LOADED)
    assert row_of_scores(page, 0)[1] == pytest.approx(0.9663, abs=1e-3)


@pytest.mark.parametrize("stop", [2, 5, 6, 7])
def test_the_card_hides_nothing_of_its_target(live: str, open_at: Any, stop: int) -> None:
    page = open_at(live + f"#tour=ten-minutes&stop={stop}", "notebook")
    page.locator(".tour-ring").first.wait_for(state="attached")
    page.wait_for_timeout(1300)  # the tour keeps the target in view
    card, target = (page.locator(part).first.bounding_box() for part in (".tour", ".tour-ring"))
    ring = 8  # wider than the target, at each side
    assert target["x"] + target["width"] <= card["x"] + ring or target["y"] + target["height"] <= card["y"]


def test_a_tour_outlives_an_edit_that_takes_its_layers(live: str, open_at: Any) -> None:
    page = open_at(live + "#tour=ten-minutes&stop=1")
    line, text = page.locator("#live-says"), page.locator("#live textarea")
    playwright.expect(line).to_contain_text("drag a roi of an ROI layer", timeout=LOADED)
    first = text.input_value()
    text.fill(first[: first.index('layer {\n  name: "conv2"')])
    text.press("Control+Enter")
    playwright.expect(line).to_contain_text("from the end on")
    for stop in range(2, 9):
        page.locator(".tour-next").click()
        playwright.expect(page.locator(".tour-where")).to_contain_text(f"{stop} of 8")
    page.locator(".tour-note button").click()
    playwright.expect(page.locator(".tour-note")).to_be_empty(timeout=LOADED)
    assert text.input_value() == first
    page.locator(".tour-back").click()
    assert row_of_scores(page, 0)[1] == pytest.approx(0.9663, abs=1e-3)


def aborts(page: Any) -> None:
    page.route("**/pyodide/**", lambda route: route.abort())


def is_silent(page: Any) -> None:
    page.clock.install()
    page.route("**/pyodide/**", lambda route: None)
    page.on("load", lambda: page.clock.fast_forward(61_000))


def lacks_webassembly(page: Any) -> None:
    page.add_init_script("delete window.WebAssembly")


def blocks_workers(page: Any) -> None:
    page.add_init_script("window.Worker = class { constructor() { throw new DOMException('the policy forbids it'); } }")


REASONS: dict[str, tuple[Any, str]] = {
    "no Pyodide": (None, "pyodide.js cannot be loaded: is there a network?"),
    "no network": (aborts, "pyodide.js cannot be loaded: is there a network?"),
    "silence": (is_silent, "nothing has arrived for 60 seconds"),
    "no WebAssembly": (lacks_webassembly, "this browser has no WebAssembly"),
    "no workers": (blocks_workers, "the policy forbids it"),
    "a file": (None, "the page is opened as a file"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_without_python_the_page_is_that_of_a_trace(site: Path, site_address: str, open_at: Any, reason: str) -> None:
    prepare, told = REASONS[reason]
    page = open_at((site / "index.html").as_uri() if reason == "a file" else site_address, prepare=prepare)
    banner = page.locator("#without-python")
    playwright.expect(banner).to_contain_text(told)
    text = banner.inner_text()
    assert text.startswith("Python cannot run here (") and "pip install -e ." in text
    assert "minicaffe live " in text and "scene.png" in text
    assert banner.get_by_role("link").get_attribute("href") == "../gallery.html"
    assert not page.locator("#live").is_visible() and page.locator("progress").count() == 0
    page.locator(".begin-tour").click()
    for _ in range(5):
        page.locator(".tour-next").click()
    playwright.expect(page.locator(".tour-text")).to_contain_text("The page cannot run the net, but it can pool")
    assert page.get_by_label("Rois on the image: click one, or [ and ] choose it", exact=True).is_visible()
    field = page.get_by_label("roi x1")
    field.fill("89.5")
    field.press("Enter")
    page.get_by_role("button", name="Check").click()
    playwright.expect(page.locator(".ask-says")).to_contain_text("Right. Each part of the circle")
    page.locator(".tour-next").click()
    playwright.expect(page.locator(".tour-text")).to_contain_text("Roi 165 shows what happens")
    page.locator('.node[aria-label^="conv1,"]').dispatch_event("click")
    maps = page.locator(".tiles canvas").first
    maps.scroll_into_view_if_needed()
    maps.click(position={"x": 30, "y": 20})
    command = page.locator(".cell-view code.command")
    playwright.expect(command).to_contain_text("minicaffe explain")
    assert "--image" in command.inner_text() and "--cfg" in command.inner_text()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_without_python(site: Path, open_at: Any, axe: str, size: str, scheme: str) -> None:
    page = open_at((site / "index.html").as_uri(), size, color_scheme=scheme)
    page.locator("#without-python").wait_for()
    assert violations(page, axe) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
    page.locator(".begin-tour").click()
    page.locator(".tour-ring").first.wait_for(state="attached")
    assert violations(page, axe) == []


def test_the_page_shows_how_much_is_loaded(site: Path, site_address: str, open_at: Any, axe: str) -> None:
    """And its tour can begin meanwhile; a change waits."""

    def slow(page: Any) -> None:
        page.route("**/pyodide/**", lambda route: None)

    page = open_at(site_address + "#tour=ten-minutes&stop=6", "phone", prepare=slow)
    expect = playwright.expect
    size = PYODIDE_BYTES + sum((site / f"{name}.zip").stat().st_size for name in ("packages", "files"))
    expect(page.locator("#live .row .quiet").first).to_have_text(f"0 of about {size / 1e6:.0f} MB")
    expect(page.locator("#live-says")).to_contain_text("Python is being loaded")
    expect(page.locator(".tour-note")).to_contain_text("your change runs as soon as it is there")
    assert violations(page, axe) == []
    page.locator(".tour-next").click()
    expect(page.locator(".tour-where")).to_contain_text("7 of 8")


def test_what_the_browser_loads_is_small(site: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in site.iterdir()}
    assert sizes.keys() == {"files.zip", "index.html", "packages.zip", "worker.js"}
    assert sum(sizes.values()) <= 12e6
