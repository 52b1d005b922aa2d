"""The lineage of boxes: its rows are those of the layers' NMS; each suppressed box names its suppressor, each its anchor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicaffe import TEST, Net, Tracer, explain
from minicaffe.compiled.nms import suppress
from minicaffe.data.images import load_image
from minicaffe.data.settings import read_settings
from minicaffe.detection.detect import detect
from minicaffe.detection.families import detect_ssd
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.explanations import RowExplanation
from minicaffe.tracing.explanations.lineage import Rule, Suppression, lineage, suppression
from minicaffe.tracing.trace_page import document

TOP = Path(__file__).resolve().parents[3]
SHAPES = TOP / "examples" / "shapes"
SSD = TOP.parent / "shared" / "zoo" / "hyperlpr_mininet_ssd"
SCENE = load_image(SHAPES / "scene.png")


@cache
def shapes(kind: str) -> tuple[Net, Any]:
    """The net after detect, and what it found."""
    settings = read_settings(SHAPES / "shapes.yml")
    net = Net(SHAPES / kind / "test.prototxt", TEST, weights=SHAPES / kind / f"shapes_{kind}.caffemodel", settings=settings)
    return net, detect(net, SCENE, threshold=0, max_detections=200)


def overlap(a: Any, b: Any, unit: int) -> Any:
    one = a.dtype.type(unit)
    width, height = (max(min(a[k + 2], b[k + 2]) - max(a[k], b[k]) + one, one - one) for k in (0, 1))
    areas = [(c[2] - c[0] + one) * (c[3] - c[1] + one) for c in (a, b)]
    return width * height / (areas[0] + areas[1] - width * height)


def by_loops(boxes: Any, unit: int, threshold: float, eta: float = 1.0) -> tuple[list[int], list[int]]:
    """The kept ones of boxes, the best first, and of every box its suppressor."""
    kept: list[int] = []
    by = []
    for i, box in enumerate(boxes):
        by.append(next((k for k in kept if overlap(boxes[k], box, unit) > np.float32(threshold)), -1))
        if by[-1] < 0:
            kept.append(i)
            threshold *= eta if threshold > 0.5 else 1
    return kept, by


def check(nms: Suppression, group: int) -> None:
    """Of one group: what is kept, by whom each other is dropped, and at what overlap."""
    own = np.flatnonzero(nms.groups == group)
    kept, by = by_loops(nms.boxes[own], nms.rule.unit, nms.rule.threshold, nms.rule.eta)
    assert [int(own[k]) for k in kept] == list(own[nms.suppressors[own] < 0])
    assert [own[k] if k >= 0 else -1 for k in by] == list(nms.suppressors[own])
    for i in own[nms.suppressors[own] >= 0][:50]:
        assert nms.overlaps[i] == overlap(nms.boxes[nms.suppressors[i]], nms.boxes[i], nms.rule.unit)


@pytest.mark.parametrize(("unit", "eta"), [(1, 1.0), (0, 1.0), (0, 0.9)])
def test_suppressors_are_those_of_the_definition(unit: int, eta: float) -> None:
    random = np.random.default_rng(3)
    corners = random.random((150, 2)) * 0.5 * (100 if unit else 1)
    boxes = np.hstack([corners, corners + random.random((150, 2)) * (50 if unit else 0.5)]).astype(np.float32)
    areas = (boxes[:, 2] - boxes[:, 0] + unit) * (boxes[:, 3] - boxes[:, 1] + unit)
    kept = suppress(boxes, areas, np.float32(unit), 0.6, eta, 0)
    scores, none = np.linspace(1, 0, 150, dtype=np.float32), np.zeros(150, np.intp)
    found = suppression(none, np.arange(150), boxes, scores, kept, Rule(0.6, unit, 10, eta))
    assert 10 < len(kept) < 140 and list(found.kept) == list(kept[:10])
    check(found, 0)


@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_of_a_detector(kind: str) -> None:
    net, found = shapes(kind)
    way = lineage(net, SCENE.shape[:2], 200)
    first, last, origins = way.first, way.last, way.origins
    assert first and last and origins and way.scores is not None and way.moves is not None
    for ours, theirs in ((last.boxes, found.boxes), (last.scores, found.scores), (last.sources, found.sources)):
        assert np.array_equal(ours[last.kept], theirs)
    assert np.array_equal(last.groups[last.kept], found.classes)
    assert np.array_equal(first.boxes[first.kept], net.blobs["rois"].data[:, 1:])
    for label in (1, 2, 3):
        check(last, label)
    by = first.suppressors[first.suppressors >= 0]
    assert len(first.boxes) == 3000 and len(first.kept) + len(by) == 3000 and set(by) <= set(first.kept)
    _, row, column, anchor = origins.places[first.kept].T
    blob = net.blobs[net.bottom_names["proposal"][0]].data
    assert np.array_equal(first.scores[first.kept], blob[0, len(net.layer_dict["proposal"].anchors) + anchor, row, column])
    shifts = 8 * np.stack([column, row, column, row], axis=1)
    assert np.array_equal(origins.anchors[first.kept], net.layer_dict["proposal"].anchors[anchor] + shifts)
    inside = np.clip(origins.decoded, 0, np.array([391, 299, 391, 299], np.float32))
    assert np.array_equal(inside, first.boxes)


@pytest.mark.skipif(not SSD.exists(), reason="no zoo beside the repository")
def test_of_an_ssd() -> None:
    net = Net(SSD / "mininet_ssd_v1.prototxt", TEST, weights=SSD / "mininet_ssd_v1.caffemodel")
    found = detect_ssd(net, load_image(SSD / "demo.png"), means=(127.5,) * 3, scale_factor=0.007843, threshold=0)
    way = lineage(net, (1, 1))
    nms, origins = way.found, way.origins
    assert origins and way.last is None
    rows = net.blobs[net.outputs[0]].data.reshape(-1, 7)
    assert np.array_equal(nms.boxes[nms.kept], rows[found.sources][:, 3:])
    check(nms, 1)
    with pytest.raises(Error, match=f'the detections of an SSD are its layer "{way.layer}"'):
        explain(net, "detection", index=0)
    for row, prior in zip(origins.places[nms.kept], origins.anchors[nms.kept]):
        cells = origins.maps[row[0]]
        boxes = net.blobs[cells.layer].data[0, 0].reshape(*cells.shape, cells.boxes, 4)
        assert np.array_equal(boxes[tuple(row[1:])], prior)
        for k, place in ((0, row[2]), (1, row[1])):  # the prior's centre is in the cell
            assert cells.size[k] * place <= (prior[k] + prior[k + 2]) / 2 <= cells.size[k] * (place + 1)


def test_a_detection_in_words() -> None:
    net, found = shapes("rfcn")
    way = lineage(net, SCENE.shape[:2])
    for k in (0, 3):
        text = explain(net, "detection", index=k)
        assert isinstance(text, RowExplanation) and text.agrees
        assert text.row == (found.classes[k], found.scores[k], *found.boxes[k])
        assert f"roi {found.sources[k]}: " in str(text) and f"explain proposal --roi {found.sources[k]}" in str(text)
    last = way.last
    assert last
    row = next(i for i in np.flatnonzero(last.suppressors >= 0) if last.scores[i] > 0.8)
    dropped = explain(net, "detection", roi=int(last.sources[row]), size=SCENE.shape[:2])
    by = int(last.suppressors[row])
    assert dropped.agrees and f"detection {list(last.kept).index(by)}, roi {last.sources[by]}, " in str(dropped)
    assert f"= {last.overlaps[row]:.6g}" in str(dropped) and "is more than 0.3" in str(dropped)


@pytest.mark.slow
def test_a_trace_records_it(monkeypatch: pytest.MonkeyPatch) -> None:
    net, _ = shapes("rfcn")
    with Tracer(net, image=SCENE, classes=["background", "circle", "square", "triangle"]) as tracer:
        net.forward()
    way, trace = lineage(net, SCENE.shape[:2], 200), tracer.trace
    assert trace.lineage and trace.lineage.first and way.first and trace.class_names[1:] == ["circle", "square", "triangle"]
    assert np.array_equal(trace.lineage.first.suppressors, way.first.suppressors)
    data, arrays = document(trace)
    kept = data["lineage"]["first"]
    assert (kept["threshold"], kept["unit"], kept["most"]) == (0.7, 1, 300)
    at, shape = kept["boxes"]["at"], tuple(kept["boxes"]["shape"])
    boxes = np.frombuffer(arrays, "<f4", count=shape[0] * shape[1], offset=at).reshape(shape)
    assert np.array_equal(boxes, way.first.boxes)
    monkeypatch.setattr("minicaffe.tracing.tracer.MOST_BOXES", 2999)
    with Tracer(net, image=SCENE) as tracer:
        net.forward()
    assert tracer.trace.lineage is None and tracer.trace.detections


def test_without_a_roi() -> None:
    """A threshold of the layer that no box is large enough for: no roi, no detection."""
    net, _ = shapes("faster_rcnn")
    layer: Any = net.layer_dict["proposal"]
    limits = layer.limits
    try:
        layer.limits = replace(limits, min_size=10_000)
        net.forward()
        way = lineage(net, SCENE.shape[:2])
        assert way.first and way.last and len(way.first.boxes) == len(way.last.boxes) == len(way.last.kept) == 0
        with pytest.raises(Error, match="index 0 is out of range: the net finds no detections"):
            explain(net, "detection", index=0)
    finally:
        layer.limits = limits
        net.forward()


def test_what_cannot_be_explained() -> None:
    net, found = shapes("rfcn")
    for wanted, message in (
        ({"index": 300}, f"index 300 is out of range: the net finds detections 0 to {len(found) - 1}"),
        ({"index": 0, "roi": 0}, "give index, a detection"),
        ({"index": 0, "at": 3}, "give index, a detection"),
        ({"index": 0, "backward": True}, "detection is no layer and has no gradient"),
    ):
        with pytest.raises(Error, match=message):
            explain(net, "detection", **wanted)
    plain = parse_net('input: "data" input_shape { dim: 1 } layer { name: "r" type: "ReLU" bottom: "data" top: "y" }')
    with pytest.raises(Error, match="a detector's inputs are data and im_info"):
        explain(Net(plain, TEST), "detection", index=0)


def test_boxes_of_two_scales_are_not_followed() -> None:
    net = Net(SHAPES / "rfcn" / "test.prototxt", TEST)
    net.blobs["im_info"].reshape(1, 6)
    net.blobs["im_info"].data[...] = (96, 160, 1.5, 1.25, 1.5, 1.25)
    with pytest.raises(Error, match=r"scaled by 1\.5 along x and 1\.25 along y"):
        lineage(net, (77, 107))
