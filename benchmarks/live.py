"""How long `minicaffe live` takes to answer to a roi that is moved, in milliseconds and as ratios to an untraced forward pass:
here, and with Python in the browser alone (`--static`), from the key that is pressed to the page that is drawn.

The browser needs Playwright, a Chromium, and the folder MINICAFFE_PYODIDE with Pyodide's files, NumPy's and Pillow's among
them; a dash stands where one is missing. The answers here and the forward passes take turns; the browser's come one by one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import minicaffe
from benchmarks._smoke import smoking, usual
from benchmarks.trace import in_some_order, made, milliseconds
from minicaffe.cli import main as minicaffe_command
from minicaffe.detection.inputs import fill_inputs
from minicaffe.formats.prototxt import NetFile, read_net
from minicaffe.tracing.live import Live
from minicaffe.tracing.tracer import Tracer

SHAPES = Path(__file__).parents[1] / "examples/shapes"
SERVED = (("shapes R-FCN", "rfcn", "psroipooled_cls_rois"), ("shapes Faster R-CNN", "faster_rcnn", "roi_pool_conv8"))
"""Name, folder, the layer whose roi is moved."""
TURNS = usual(101, 1)
IN_THE_BROWSER = 15
LOADED = 180_000
"""Milliseconds that Pyodide may take to load."""
DRAWN = "!document.getElementById('live-says').hasAttribute('aria-busy')"


def main() -> None:
    """Print the table."""
    print(f"{'a roi moved':26} {'untraced':>9} {'here':>9} {'in the browser':>15}   ratios to untraced")
    for name, kind, layer in SERVED:
        forward, answer, ratio = here(SHAPES / kind / "test.prototxt", layer)
        alone = in_the_browser(kind, layer)
        shown = f"{alone:15.1f}   {ratio:.2f}  {alone / forward:.2f}" if alone else f"{'-':>15}   {ratio:.2f}  -"
        print(f"{name:26} {forward:9.2f} {answer:9.2f} {shown}")


def here(file: Path, layer: str) -> tuple[float, float, float]:
    """Medians of a forward, of an answer with the trace's document as it is sent to the page, and of their ratio."""

    def make(net: NetFile, tracer: Tracer) -> minicaffe.Net:
        minicaffe.set_random_seed(0)
        return minicaffe.Net(net, minicaffe.TEST, watch=tracer.watch)

    def fill(net: minicaffe.Net, photo: bytes | None) -> None:
        fill_inputs(net, {})

    plain, live = made(read_net(file)), Live(file.read_text(), file.name, make, fill, lambda: Tracer(backward=False))

    def moved() -> float:
        start = time.perf_counter()
        answer = json.dumps(live.answer({"layer": layer, "roi": 0, "box": [10, 20, 90, 80]}))
        assert "error" not in answer[:20]
        return (time.perf_counter() - start) * 1e3

    runs = [lambda: milliseconds(plain), moved]
    times = [in_some_order(runs, random.Random(turn)) for turn in range(TURNS + 1)][1:]
    forward, answer = (statistics.median(column) for column in zip(*times))
    return forward, answer, statistics.median(b / a for a, b in times)


def in_the_browser(kind: str, layer: str) -> float | None:
    """Return the median time until Chromium's page shows an answer by its own Python; None if a program for it is missing."""
    program, pyodide = shutil.which("chromium") or shutil.which("google-chrome"), os.environ.get("MINICAFFE_PYODIDE")
    if smoking() or program is None or pyodide is None:
        return None
    from playwright.sync_api import sync_playwright

    with served(kind, Path(pyodide)) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 1200})
        page.goto(address)
        page.wait_for_function("document.getElementById('live-says').innerText === 'ready'", timeout=LOADED)
        page.locator(f'.node[aria-label^="{layer},"]').dispatch_event("click")
        image, times = page.get_by_label("Rois on the image"), []
        for _ in range(IN_THE_BROWSER + 1):
            image.wait_for(timeout=LOADED)
            start = time.perf_counter()
            image.press("ArrowRight")
            page.wait_for_function(DRAWN)
            times.append((time.perf_counter() - start) * 1e3)
        said = page.locator("#live-says").inner_text()
        assert said.startswith("from "), said
        browser.close()
    return statistics.median(times[1:])


@contextmanager
def served(kind: str, pyodide: Path) -> Iterator[str]:
    """Yield the address of what `minicaffe live --static` writes."""
    files = [SHAPES / kind / "test.prototxt", SHAPES / kind / f"shapes_{kind}.caffemodel"]
    options = ["--image", SHAPES / "scene.png", "--cfg", SHAPES / "shapes.yml"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyodide").symlink_to(pyodide.resolve())
        words = ["live", *map(str, files + options), "--static", folder, "--pyodide", "pyodide/"]
        CliRunner().invoke(minicaffe_command, words, catch_exceptions=False)
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/"
            server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


if __name__ == "__main__":
    main()
