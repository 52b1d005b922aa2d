"""Tours: the shipped ones on their nets, the numbers in a text, and each error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from minicaffe import TEST, Error, Net, Tracer
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.tours import FIELDS, POINTS, SHIPPED, load_tour
from minicaffe.tracing.trace_page import document

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
NET = """name: "two layers" force_backward: true
input: "data" input_shape { dim: 1 dim: 2 dim: 9 dim: 7 }
input: "rois" input_shape { dim: 3 dim: 5 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "ROIPooling" bottom: "conv" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 } }
"""


@pytest.fixture
def traced() -> tuple[Net, Tracer]:
    net = Net(parse_net(NET), TEST)
    net.blobs["data"].data[...] = np.random.default_rng(0).standard_normal((1, 2, 9, 7))
    net.blobs["rois"].data[...] = np.array([[0, 1, 2, 9, 12], [0, 4, 0, 13, 17], [0, 0, 0, 5, 5]])
    with Tracer(net) as tracer:
        net.forward()
        net.blobs["pool"].diff[...] = 1
        net.backward()
    return net, tracer


def written(tmp_path: Path, *stops: Any, title: str = "A tour") -> Path:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"title": title, "stops": stops}))
    return path


STOP = {"title": "Here", "text": "Look.", "layer": "pool"}


def on_page(path: Path, tracer: Tracer) -> list[dict[str, str]]:
    found: list[dict[str, str]] = load_tour(path).on_page(tracer.trace)["stops"]
    return found


@pytest.mark.parametrize(
    "text, value",
    [
        ("{conv.max}", lambda net: net.blobs["conv"].data.max()),
        ("{conv.weight.min}", lambda net: net.params["conv"][0].data.min()),
        ("{gradient conv.weight.max}", lambda net: net.params["conv"][0].diff.max()),
        ("{gradient conv.mean}", lambda net: net.blobs["conv"].diff.mean()),
        ("{conv[0,2,8,6]}", lambda net: net.blobs["conv"].data[0, 2, 8, 6]),
        ("{pool.start[1,0]}", lambda net: 2),
        ("{pool.output[1,2,0,1]}", lambda net: net.blobs["pool"].data[1, 2, 0, 1]),
    ],
)
def test_numbers_are_those_of_the_net(tmp_path: Path, traced: tuple[Net, Tracer], text: str, value: Any) -> None:
    net, tracer = traced
    (stop,) = on_page(written(tmp_path, STOP | {"text": f"It is {text}."}), tracer)
    number = float(stop["text"][6:-1].replace("−", "-"))
    assert number == pytest.approx(float(value(net)), rel=5e-4)


def test_what_a_text_may_hold(tmp_path: Path, traced: tuple[Net, Tracer]) -> None:
    text = "{{x}}: {conv.shape}, {conv.count}, {conv.zeros}"
    (stop,) = on_page(written(tmp_path, STOP | {"text": text}), traced[1])
    assert stop["text"] == "{x}: 1 × 3 × 9 × 7, 189, 0 %"


def test_a_stop_is_an_address_and_a_selector(tmp_path: Path, traced: tuple[Net, Tracer]) -> None:
    given = {"step": "backward", "roi": 2, "channel": 1, "bin": [0, 2], "point": "gradient conv"}
    (stop,) = on_page(written(tmp_path, STOP | given), traced[1])
    assert stop["address"] == "step=backward&layer=pool&roi=2&channel=1&bin=0%2C2"
    assert stop["point"] == '#panel .diff[data-blob="conv"]'


@pytest.mark.parametrize(
    "change, message",
    [
        ({"layer": "pol"}, "stop 2: the net has no layer 'pol'; did you mean 'pool'?"),
        ({"text": 3}, "stop 2: text must be a text, got 3"),
        ({"text": ""}, "stop 2: text is missing"),
        ({"txt": "x"}, "stop 2: unknown field 'txt'; did you mean 'text'?"),
        ({"step": "forwards"}, "stop 2: step must be one of setup, reshape, forward, backward, got 'forwards'"),
        ({"view": "layers"}, 'stop 2: view must be "result", or left out'),
        ({"view": "result"}, "stop 2: the page has no detections"),
        ({"detection": 0}, "stop 2: the page has no detections"),
        ({"roi": 3}, "stop 2: roi 3 is not from 0 to 2"),
        ({"roi": True}, "stop 2: roi must be a whole number, got true"),
        ({"bin": [2, 0]}, "stop 2: bin's row 2 is not from 0 to 1"),
        ({"bin": [0]}, r"stop 2: bin must be \[row, column\], got \[0\]"),
        ({"layer": "conv", "roi": 0}, "stop 2: layer 'conv' has no ROI inspector"),
        ({"point": "map conv"}, "stop 2: nothing to point at is called 'map conv'; known: timeline, graph, .*maps BLOB"),
        ({"point": "maps"}, "stop 2: nothing to point at is called 'maps'"),
        ({"point": "maps data"}, "stop 2: layer 'pool' has no blob 'data' to point at; it has conv, rois, pool"),
        ({"text": "{nothing.max}"}, "stop 2: {nothing.max}: the trace has no such number"),
        ({"text": "{}"}, "stop 2: {}: the trace has no such number"),
        ({"text": "{conv[9]}"}, r"stop 2: {conv\[9\]}: the shape is \(1, 3, 9, 7\): give 4 indices within it"),
        ({"text": "{detection 0.score}"}, "stop 2: {detection 0.score}: there are 0 detections"),
        ({"text": "{ms nothing}"}, "stop 2: {ms nothing}: the trace has no such number"),
    ],
)
def test_a_wrong_stop(tmp_path: Path, traced: tuple[Net, Tracer], change: dict[str, Any], message: str) -> None:
    path = written(tmp_path, STOP, STOP | change)
    with pytest.raises(Error, match=f"^{re.escape(str(path))}: {message}"):
        on_page(path, traced[1])


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe{", "not JSON"),
        (b"[]", 'expected {"title": "...", "stops": [...]}'),
        (b'{"title": 1, "stops": []}', 'expected {"title": "...", "stops": [...]}'),
        (b'{"title": "x", "stops": []}', "stops must be a list of at least one stop"),
        (b'{"title": "x", "stops": ["y"]}', "stop 1: expected an object with title, text, layer"),
    ],
)
def test_a_malformed_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(Error, match=re.escape(f"{path}: {message}")):
        load_tour(path)


def test_an_unknown_tour(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"no tour 'rfcnn'; did you mean 'rfcn'\?; shipped: learning, rfcn, roi-pooling"):
        load_tour("rfcnn")
    with pytest.raises(Error, match=r"none.json: no such file"):
        load_tour(tmp_path / "none.json")


def test_a_net_without_the_layers_is_refused_before_it_runs(tmp_path: Path) -> None:
    out = tmp_path / "trace.html"
    net = str(SHAPES / "faster_rcnn" / "test.prototxt")
    found = CliRunner().invoke(main, ["trace", net, "--tour", "rfcn", "-o", str(out)])
    assert found.exit_code == 1
    assert "the tour rfcn: stop 6: the net has no layer 'rfcn_cls'" in found.output
    assert not out.exists()


def test_a_run_that_failed_has_no_tours(tmp_path: Path, traced: tuple[Net, Tracer]) -> None:
    net, _ = traced
    tracer = Tracer(net)
    tracer.tours = [load_tour(written(tmp_path, STOP))]
    with pytest.raises(ZeroDivisionError), tracer:
        net.after_reshape(lambda i: 1 / 0 if i == 2 else None)
        net.forward()
    assert document(tracer.trace)[0]["tours"] == []


def test_the_document_has_all_that_a_tour_can_say() -> None:
    text = (SHAPES.parents[1] / "docs" / "trace.md").read_text()
    section = text[text.index("### Guided tours") : text.index("### Figures")].replace("```", "")
    named = {word.removesuffix(" BLOB") for word in re.findall(r"`([^`]+)`", section)}
    assert {*POINTS, *FIELDS, *SHIPPED} <= named


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_tour_is_well_formed(name: str) -> None:
    """tests/browser/test_tours_page.py walks through them on their nets."""
    tour = load_tour(name)
    assert len(tour.stops) >= 8 and all("point" in stop for stop in tour.stops)
