"""The live page with Python in the browser: every change is answered without a server.

Needs Playwright, a Chromium, and Pyodide's files in the folder MINICAFFE_PYODIDE, with NumPy and Pillow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_pages import SHAPES, web_server, write_live

PYODIDE = os.environ.get("MINICAFFE_PYODIDE", "")
pytestmark = pytest.mark.skipif(not PYODIDE, reason="MINICAFFE_PYODIDE does not name a folder with Pyodide's files")
LOADED = 120_000
"""Milliseconds that Pyodide may take to load."""


@pytest.fixture(scope="module", params=["faster_rcnn", "rfcn"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    write_live(folder, request.param)
    (folder / "pyodide").symlink_to(Path(PYODIDE).resolve())
    with web_server(folder) as served:
        yield served


def test_changes_without_a_server(chromium: Any, address: str) -> None:
    context = chromium.new_context()
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    expect = pytest.importorskip("playwright.sync_api").expect
    line, found = page.locator("#live-says"), page.locator("#open-result")
    natively, facts = found.inner_text(), page.locator("#net-facts").inner_text()
    expect(page.get_by_label("Python is being loaded")).to_be_visible()
    expect(line).to_contain_text("Python is there")
    counted = page.locator("progress").evaluate("bar => bar.value / bar.max")
    expect(line).to_contain_text("Ready.", timeout=LOADED)
    assert page.locator("progress").count() == 0
    assert counted == pytest.approx(1, abs=0.02)  # as much as the page has announced
    text = page.locator("#live textarea")
    good = text.input_value()
    text.fill(good.replace("pooled", "pulled").replace("output_dim", "output_dam"))
    text.press("Control+Enter")
    expect(line).to_contain_text("/test.prototxt:", timeout=LOADED)
    text.fill(good + 'layer { name: "more" type: "Power" bottom: "cls_prob" top: "more" }')
    text.press("Control+Enter")
    expect(line).to_contain_text("from more on", timeout=LOADED)
    page.set_input_files("#live input[type=file]", SHAPES / "scene.png")
    expect(line).to_contain_text("from input on", timeout=LOADED)
    assert page.locator("#net-facts").inner_text() == facts  # the names of the files too
    assert found.inner_text() == natively  # as many detections as NumPy found here
    assert problems == []
    context.close()
