"""The page of trace-diff in a real browser: it opens from disk, asks for nothing, and opens by keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from minicaffe import TEST, Net, Tracer
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.trace_diff import read_trace, trace_diff, write_diff_page
from minicaffe.tracing.tracer import TILE_BYTES

NET = """name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 60 dim: 64 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
"""


def test_the_page(chromium: Any, tmp_path: Path) -> None:
    traces = []
    for bias in (0, 1):
        net = Net(parse_net(NET), TEST)
        for name, values in (("data", net.blobs["data"].data), ("weight", net.params["conv"][0].data)):
            values[...] = np.random.default_rng(len(name)).standard_normal(values.shape)
        net.params["conv"][1].data[...] = bias
        with Tracer(net, tmp_path / f"{bias}.html", tile_bytes=TILE_BYTES):
            net.forward()
        traces.append(read_trace(tmp_path / f"{bias}.html"))
    write_diff_page(trace_diff(*traces), tmp_path / "diff.html")
    page = chromium.new_page(viewport={"width": 1100, "height": 800})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "diff.html").as_uri())
    assert [url for url in asked if not url.startswith("data:")] == [(tmp_path / "diff.html").as_uri()]
    assert "first difference: forward of conv" in page.get_by_role("status").inner_text()
    assert page.locator("details[open]").count() == 1
    shown = page.locator("details[open] img")
    assert shown.count() == 3
    assert shown.nth(2).evaluate("e => e.naturalWidth") > 60
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open]").count() == 2
    page.screenshot(path=tmp_path / "diff.png", full_page=True)
    page.close()
