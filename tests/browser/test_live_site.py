"""The live page with Python in the browser: every change is answered without a server.

Needs Playwright, a Chromium, and Pyodide's files in the folder MINICAFFE_PYODIDE, with NumPy and Pillow.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from minicaffe.cli import main

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
PYODIDE = os.environ.get("MINICAFFE_PYODIDE", "")
pytestmark = pytest.mark.skipif(not PYODIDE, reason="MINICAFFE_PYODIDE does not name a folder with Pyodide's files")
LOADED = 120_000
"""Milliseconds that Pyodide may take to load."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module", params=["faster_rcnn", "rfcn"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, kind = tmp_path_factory.mktemp("site"), request.param
    (folder / "pyodide").symlink_to(Path(PYODIDE).resolve())
    net = [SHAPES / kind / "test.prototxt", SHAPES / kind / f"shapes_{kind}.caffemodel", "--image", SHAPES / "scene.png"]
    words = ["live", *map(str, net), "--cfg", str(SHAPES / "shapes.yml"), "--static", str(folder), "--pyodide", "pyodide/"]
    assert CliRunner().invoke(main, words).exit_code == 0
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_changes_without_a_server(chromium: Any, address: str) -> None:
    context = chromium.new_context()
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    expect = pytest.importorskip("playwright.sync_api").expect
    line, found = page.locator("#live-says"), page.locator("#open-result")
    natively = found.inner_text()
    expect(line).to_have_text("ready", timeout=LOADED)
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
    assert found.inner_text() == natively  # as many detections as NumPy found here
    assert problems == []
    context.close()
