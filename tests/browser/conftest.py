"""The browser that pages of traces are opened in.

Needs Playwright (the `browser` extra) and a Chromium on the PATH: without them, these tests are left out.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_pages import live_server
from pages import Open, Opened

from minicaffe import TEST, Net, Tracer
from minicaffe.formats.prototxt import parse_net

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The one without windows first: it opens a page in a quarter of the processor time."""
PROGRAM = next(filter(None, map(shutil.which, PROGRAMS)), None)
LACKING = "Playwright is not installed" if find_spec("playwright") is None else "" if PROGRAM else "no Chromium on the PATH"
collect_ignore_glob = ["test_*.py"] if LACKING else []
TWO_LAYERS = """name: "two layers"
input: "data" input_shape { dim: 1 dim: 2 dim: 9 dim: 7 }
input: "rois" input_shape { dim: 3 dim: 5 }
layer { name: "conv 1&2" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "ROIPooling" bottom: "conv" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 } }
"""

DRAG = {
    "title": "Drag",
    "text": "x1 is {rois[3,1]}.",
    "layer": "roi_pool_conv8",
    "roi": 3,
    "ask": {
        "question": "Move the roi to the right by eight pixels.",
        "kind": "dragged roi",
        "answer": ["{rois[3,1]} + 8", None, None, None],
        "tolerance": 1,
        "right": "So it is.",
        "wrong": [{"text": "{given}."}],
    },
}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if LACKING:
        terminalreporter.write_line(f"the tests in a browser were left out: {LACKING}")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    if LACKING:  # and a test was named
        pytest.skip(LACKING)
    playwright = importlib.import_module("playwright.sync_api")
    quiet = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options = [*quiet, "--disable-component-update", "--disable-sync"]
    playwright.expect.set_options(timeout=60_000)  # by default 5 s, which a net's forward may take on a busy machine
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=PROGRAM, headless=True, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running `minicaffe live` of the shapes Faster R-CNN, with a tour that asks for a dragged roi."""
    tour = tmp_path_factory.mktemp("tour") / "drag.json"
    tour.write_text(json.dumps({"title": "Drag", "stops": [DRAG]}))
    with live_server("faster_rcnn", "--tour", str(tour)) as running:
        yield running


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a convolution and the ROIPooling of three rois."""
    path = tmp_path_factory.mktemp("two_layers") / "trace.html"
    net = Net(parse_net(TWO_LAYERS), TEST)
    net.blobs["rois"].data[...] = np.array([[0, 1, 2, 9, 12], [0, 4, 0, 13, 17], [0, 0, 0, 5, 5]])
    with Tracer(net, path):
        net.forward()
    return path


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    found = find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("axe-playwright-python is not installed")
    return Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Open]:
    """Opens a file; at the end, no page may have logged an error or asked for anything but itself."""
    opened: list[Opened] = []

    def open_file(path: Path, width: int = 1440, height: int = 900, scheme: str = "light", address: str = "") -> Opened:
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        result = Opened(context.new_page())
        result.page.on("console", lambda m: result.problems.append(m.text) if m.type in ("error", "warning") else None)
        result.page.on("pageerror", lambda error: result.problems.append(str(error)))
        result.page.on("request", lambda request: result.requests.append(request.url))
        result.page.route(re.compile("^(?!file:|data:)"), lambda route: route.abort())
        opened.append(result)
        result.page.goto(path.as_uri() + address)
        result.page.wait_for_selector("html[data-ready]", state="attached")
        return result

    yield open_file
    for result in opened:
        assert result.problems == []
        assert [url for url in result.requests if not url.startswith(("file:", "data:"))] == []
        assert len([url for url in result.requests if url.startswith("file:")]) == 1
        result.page.context.close()
