"""Tours: the shipped ones on their nets, the numbers in a text, and each error."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from minicaffe import TEST, Error, Net, Tracer
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.tour_asks import ASK_FIELDS, KINDS
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


def on_page(path: Path, tracer: Tracer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load_tour(path).on_page(tracer.trace)["stops"]
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
        ("{pool.map[2,8,6]}", lambda net: net.blobs["conv"].data[0, 2, 8, 6]),
        ("{pool.spatial_scale[]}", lambda net: 0.5),
        ("{conv.shape[2]}", lambda net: 9),
        ("{conv.maps}", lambda net: 3),
        ("{max pool[1,2,:,:]}", lambda net: net.blobs["pool"].data[1, 2].max()),
        ("{sum pool[1,:,1,2]}", lambda net: net.blobs["pool"].data[1, :, 1, 2].sum()),
        ("{argmin pool[0,:,1,2]}", lambda net: net.blobs["pool"].data[0, :, 1, 2].argmin()),
        ("{field conv[0,3].height}", lambda net: 2),  # a 3 x 3 window at the upper edge
        ("{field conv[0,3].width}", lambda net: 3),
        ("{= ({conv.shape[3]} + 1.5) * -2 / floor(2.5)}", lambda net: -8.5),
        ("{= round({pool.start[1,3]})}", lambda net: 9),  # 8.5: halves away from zero
    ],
)
def test_numbers_are_those_of_the_net(tmp_path: Path, traced: tuple[Net, Tracer], text: str, value: Any) -> None:
    net, tracer = traced
    (stop,) = on_page(written(tmp_path, STOP | {"text": f"It is {text}."}), tracer)
    number = float(stop["text"][6:-1].replace("−", "-"))
    assert number == pytest.approx(float(value(net)), rel=5e-4)


def test_what_a_text_may_hold(tmp_path: Path, traced: tuple[Net, Tracer]) -> None:
    net, tracer = traced
    text = "{{x}}: {conv.shape}, {conv.count}, {conv.zeros}, {field conv[0,0].share}; {argmax pool[2,1,:,:]}"
    (stop,) = on_page(written(tmp_path, STOP | {"text": text}), tracer)
    row, column = np.unravel_index(net.blobs["pool"].data[2, 1].argmax(), (2, 3))
    assert stop["text"] == f"{{x}}: 1 × 3 × 9 × 7, 189, 0 %, {400 / 63:.3g} %; {row}, {column}"


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
        ({"without_python": "x"}, 'stop 2: without_python must be an object, got "x"'),
        ({"without_python": {"roi": 1}}, "stop 2: without_python has no field 'roi'; known: text, point"),
        ({"without_python": {"text": 3}}, "stop 2: without_python: text must be a text, got 3"),
        ({"without_python": {"point": "map"}}, "stop 2: without_python: nothing to point at is called 'map'"),
        ({"without_python": {"text": "{cony.max}"}}, "stop 2: without_python: {cony.max}: the trace has no such number"),
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
        ({"text": "{max pool[0,:]}"}, r"stop 2: {max pool\[0,:\]}: the shape is \(3, 3, 2, 3\): give 4 indices"),
        ({"text": "{pool[0,:,0,0]}"}, r"stop 2: {pool\[0,:,0,0\]}: the shape is"),
        ({"text": "{field conv[9,0].share}"}, r"stop 2: {field conv\[9,0\].share}: the trace has no such cell"),
        ({"text": "{field nothing[0,0].share}"}, r"stop 2: {field nothing\[0,0\].share}: the trace has no such cell"),
        ({"text": "{anchors}"}, "stop 2: {anchors}: the trace has no such number"),
        ({"text": "{nms detections}"}, "stop 2: {nms detections}: the trace has no such number"),
        ({"text": "{= {conv.shape} + 1}"}, "stop 2: {conv.shape} is 1 × 3 × 9 × 7, no number to compute with"),
        ({"text": "{= {conv.max} ** 2}"}, r"stop 2: '.* \*\* 2' is no arithmetic of numbers: use \+ - \* / \( \) floor"),
        ({"text": "{= 1 / ({conv.count} - 189)}"}, "stop 2: .* is no arithmetic"),
        ({"text": "{= print({conv.max})}"}, "stop 2: .* is no arithmetic"),
    ],
)
def test_a_wrong_stop(tmp_path: Path, traced: tuple[Net, Tracer], change: dict[str, Any], message: str) -> None:
    path = written(tmp_path, STOP, STOP | change)
    with pytest.raises(Error, match=f"^{re.escape(str(path))}: {message}"):
        on_page(path, traced[1])


ASK = {
    "question": "How many rows is a bin of roi {pool.start[1,0]} high?",
    "kind": "number",
    "answer": "{pool.size[1,0]}",
    "tolerance": 0.01,
    "right": "It is {answer}.",
    "wrong": [{"answer": "{pool.size[1,1]}", "text": "{given} is its width."}, {"text": "Not {given}, but {answer}."}],
}


def asked(tmp_path: Path, tracer: Tracer, stop: dict[str, Any], **change: Any) -> dict[str, Any]:
    found: dict[str, Any] = on_page(written(tmp_path, STOP | stop | {"ask": ASK | change}), tracer)[0]["ask"]
    return found


def test_a_question_on_the_page(tmp_path: Path, traced: tuple[Net, Tracer]) -> None:
    ask = asked(tmp_path, traced[1], {})
    assert ask["question"] == "How many rows is a bin of roi 2 high?"
    assert (ask["kind"], ask["answer"], ask["written"], ask["tolerance"]) == ("number", [5.0], "5", 0.01)  # rows 0 to 9, of 2
    assert ask["right"] == "It is 5."
    assert ask["wrong"] == [
        {"answer": [pytest.approx(2)], "text": "{given} is its width."},  # columns 2 to 7, of 3
        {"answer": None, "text": "Not {given}, but 5."},
    ]


ANSWERS = [
    ("choice", {"answer": "a cell", "choices": ["a row", "a cell"]}, {}, [1], "a cell"),
    ("choice", {"answer": "{argmax pool[0,:,0,0]}", "choices": list("abc")}, {}, None, None),
    ("roi", {"answer": "{argmax pool[:,0,0,0]}"}, {}, None, None),
    ("channel", {"answer": "{pool.start[1,0]}"}, {}, [2], "2"),
    ("channel", {"answer": "{conv.shape[1]} - 1"}, {"layer": "conv", "point": "maps conv"}, [2], "2"),
    ("bin", {"answer": "{argmax pool[2,1,:,:]}"}, {}, None, None),
    ("bin", {"answer": [1, "{pool.start[1,0]}"]}, {}, [1, 2], "row 1, column 2"),
    (
        "cell",
        {"answer": [None, "{conv.shape[2]} - 1", 3]},
        {"layer": "conv", "point": "maps conv"},
        [None, 8, 3],
        "row 8, column 3",
    ),
    ("dragged roi", {"answer": [None, "{rois[1,2]}", 13, None], "tolerance": 1}, {}, [None, 0, 13, None], "y1 0, x2 13"),
]


@pytest.mark.parametrize("kind, change, stop, numbers, text", ANSWERS)
def test_answers_of_each_kind(
    tmp_path: Path, traced: tuple[Net, Tracer], kind: str, change: Any, stop: Any, numbers: Any, text: str | None
) -> None:
    """Kinds of detections are asked for in tests/browser/test_tour_asks.py."""
    net, tracer = traced
    pool = net.blobs["pool"].data
    computed = {"choice": [pool[0, :, 0, 0].argmax()], "roi": [pool[:, 0, 0, 0].argmax()]}
    computed["bin"] = list(np.unravel_index(pool[2, 1].argmax(), (2, 3)))
    ask = asked(tmp_path, tracer, stop, **{"kind": kind, "tolerance": None, "wrong": [{"text": "No."}]} | change)
    assert ask["answer"] == (computed[kind] if numbers is None else numbers)
    assert text in (None, ask["written"])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kind": "numbr"}, "unknown kind 'numbr'; did you mean 'number'?; known: number, choice,"),
        ({"kind": 3}, "kind must be a text, got 3"),
        ({"question": ""}, "question is missing"),
        ({"hint": "x"}, "unknown field 'hint'"),
        ({"tolerance": None}, "number needs a tolerance, a number from 0 on, got null"),
        ({"tolerance": -1}, "number needs a tolerance, a number from 0 on, got -1"),
        ({"kind": "roi"}, "roi has no tolerance: its answer is exact"),
        ({"choices": ["a", "b"]}, "a choice has a list of at least two texts as choices, and no other kind has choices"),
        ({"kind": "choice", "tolerance": None, "choices": ["a"]}, "a choice has a list of at least two texts as choices"),
        ({"answer": "5"}, "answer must hold a reference such as {conv1.max}, so that the trace decides"),
        ({"answer": 5}, "answer must hold a reference such as {conv1.max}, so that the trace decides"),
        ({"answer": ["{conv.max}", None]}, "answer must be a text with references such as {conv1.max}, or a list"),
        ({"answer": []}, "answer must be a text with references"),
        ({"wrong": []}, 'wrong must be a list of {"answer": ..., "text": "..."}, the last one without an answer'),
        ({"wrong": [{"answer": "1", "text": "x"}]}, "wrong 1: the last one is for all other answers, so it has no answer"),
        ({"wrong": [{"text": "x"}, {"text": "y"}]}, "wrong 1: answer is missing"),
        ({"wrong": ["x"]}, "wrong 1: expected an object with text"),
        ({"wrong": [{"text": 1}]}, "wrong 1: text must be a text, got 1"),
        ({"answer": "{nothing.max}"}, "{nothing.max}: the trace has no such number"),
        ({"answer": ["{conv.max}", 1]}, "the answer of number has 1 numbers (number), got 2"),
        ({"answer": "{conv.max} +"}, "'{conv.max} +' is no arithmetic of numbers"),
        ({"right": "{nothing[]}"}, "{nothing[]}: the trace has no such number"),
        ({"wrong": [{"answer": "5.005", "text": "x"}, {"text": "y"}]}, "wrong 1: its answer, 5.005, is right in this trace"),
        (
            {"kind": "roi", "tolerance": None, "answer": "{rois.shape[0]}"},
            "the answer's roi, 3, is not a whole number from 0 to 2",
        ),
        ({"kind": "bin", "tolerance": None}, "the answer of bin has 2 numbers (row, column), got 1"),
        (
            {"kind": "cell", "tolerance": None, "answer": [0, 0, "{pool.start[2,0]}"]},
            "no cell can be chosen: let the stop point",
        ),
        ({"kind": "detection", "tolerance": None}, "the page has no detection: it needs an image and a detector"),
        ({"kind": "nms threshold", "tolerance": None}, "the page has no nms threshold: it needs an image and a detector"),
    ],
)
def test_a_wrong_question(tmp_path: Path, traced: tuple[Net, Tracer], change: dict[str, Any], message: str) -> None:
    path = written(tmp_path, STOP, STOP | {"ask": ASK | change})
    with pytest.raises(Error, match=f"^{re.escape(f'{path}: stop 2: ask: {message}')}"):
        on_page(path, traced[1])


def test_a_question_must_be_an_object(tmp_path: Path) -> None:
    with pytest.raises(Error, match="stop 1: ask must be an object, got 3"):
        load_tour(written(tmp_path, STOP | {"ask": 3}))


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
    assert {*POINTS, *FIELDS, *SHIPPED, *ASK_FIELDS, *KINDS} <= named


def test_each_shipped_tour_is_in_the_gallery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = runpy.run_path(str(SHAPES.parents[1] / "site" / "gallery.py"))
    toured = {one.opens.removeprefix("tour="): one for one in site["GALLERY"] if one.opens.startswith("tour=")}
    assert sorted([*toured, "ten-minutes"]) == SHIPPED and "--tour ten-minutes" in site["TEN_MINUTES"]  # a page of its own
    monkeypatch.chdir(SHAPES.parent)
    found = CliRunner().invoke(main, [*toured["learning"].words.split(), "-o", str(tmp_path / "page.html")])
    assert found.exit_code == 0, found.output
    assert toured["learning"].address == "traces/training.html#tour=learning"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_tour_is_well_formed(name: str) -> None:
    """tests/browser/test_tours_page.py walks through them on their nets."""
    tour = load_tour(name)
    assert len(tour.stops) >= 8 and all("point" in stop for stop in tour.stops)
