"""The targets of a training step in a trace: anchors, sampled rois and the image, against the layers' own blobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicaffe import TRAIN, Net, Tracer
from minicaffe.data.boxes import bbox_overlaps
from minicaffe.data.images import load_image, scaled_by
from minicaffe.data.roidb import add_flipped, load_roidb
from minicaffe.data.settings import DetectionSettings, TrainSettings, read_settings
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.tracing.trace import ANCHOR_STATES, AnchorMaps, AnchorShot, GivenShot, SampledShot, Trace
from minicaffe.tracing.trace_page import document
from minicaffe.tracing.trace_targets import anchor_maps

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
KINDS = {"rpn-data": AnchorShot, "roi-data": SampledShot, "input-data": GivenShot}


def step(flipped: bool) -> tuple[Net, Trace]:
    """One training step of the shapes R-FCN on scene.png, or on its mirror image."""
    net = Net(SHAPES / "rfcn" / "train.prototxt", TRAIN, settings=read_settings(SHAPES / "shapes.yml"))
    entries = add_flipped(load_roidb(SHAPES / "scene.json")[0])
    reader = net.layers[0]
    assert isinstance(reader, RoIData)
    reader.set_roidb([entry for entry in entries if bool(entry.get("flipped")) == flipped])
    with Tracer(net, backward=False) as tracer:
        net.forward()
    return net, tracer.trace


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[Net, Trace]]:
    yield step(flipped=False)


def targets(trace: Trace, layer: str) -> Any:
    found = next(facts.targets for facts in trace.layers if facts.name == layer)
    assert type(found) is KINDS[layer]
    return found


def test_only_layers_of_targets_have_them(traced: tuple[Net, Trace]) -> None:
    assert {facts.name for facts in traced[1].layers if facts.targets} == set(KINDS)


def test_anchors_are_those_of_the_layer(traced: tuple[Net, Trace]) -> None:
    net, trace = traced
    found = targets(trace, "rpn-data")
    labels, deltas = net.blobs["rpn_labels"].data, net.blobs["rpn_bbox_targets"].data
    height, width = found.shape
    assert (height, width) == (30, 40) and labels.shape == (1, 1, 18 * 30, 40)
    assert found.image == (240, 313) and found.stride == 8 and found.base.shape == (18, 4)
    states = found.states.reshape(height, width, 18)
    maps = labels.reshape(18, height, width).transpose(1, 2, 0)
    for label, state in ((1, "label 1"), (0, "label 0")):
        np.testing.assert_array_equal(states == ANCHOR_STATES.index(state), maps == label)
    np.testing.assert_array_equal(found.targets.reshape(height, width, 72), deltas[0].transpose(1, 2, 0))


def test_states_of_ignored_anchors_by_the_definition(traced: tuple[Net, Trace]) -> None:
    found = targets(traced[1], "rpn-data")
    height, width = found.shape
    boxes = np.array(
        [found.base[a] + 8 * np.array([x, y, x, y]) for y in range(height) for x in range(width) for a in range(18)]
    )
    inside = (boxes[:, :2] >= 0).all(1) & (boxes[:, 2] < 313) & (boxes[:, 3] < 240)
    np.testing.assert_array_equal(found.states == ANCHOR_STATES.index("outside"), ~inside)
    overlaps = bbox_overlaps(boxes, found.gt_boxes)
    np.testing.assert_allclose(found.overlaps[inside], overlaps[inside].max(1), rtol=1e-6)
    np.testing.assert_array_equal(found.matches[inside], overlaps[inside].argmax(1))
    assert (found.matches[~inside] == -1).all() and not found.overlaps[~inside].any()
    best = (overlaps == overlaps[inside].max(0)).any(1) & inside
    positive = inside & (best | (overlaps.max(1) >= 0.6))
    negative = inside & (overlaps.max(1) < 0.3) & ~positive
    counts = {name: int((found.states == k).sum()) for k, name in enumerate(ANCHOR_STATES)}
    assert counts["label 1"] + counts["1, not drawn"] == positive.sum()
    assert counts["label 0"] + counts["0, not drawn"] == negative.sum()
    assert counts["label 1"] + counts["label 0"] == 256
    assert counts["0, not drawn"] > 1000 and counts["between"] == (inside & ~positive & ~negative).sum() > 1000


def test_sampled_rois_are_those_of_the_layer(traced: tuple[Net, Trace]) -> None:
    net, trace = traced
    found = targets(trace, "roi-data")
    rois, labels = net.blobs["rois"].data.reshape(64, 5), net.blobs["labels"].data.reshape(64)
    np.testing.assert_array_equal(found.rois, rois)
    np.testing.assert_array_equal(found.labels, labels)
    proposals, boxes = net.blobs["rpn_rois"].data, net.blobs["gt_boxes"].data
    pool = np.concatenate([proposals[:, 1:], boxes[:, :4]])
    np.testing.assert_array_equal(pool[found.sources], rois[:, 1:])
    assert found.given == 200 and (found.sources >= 200).sum() == 8
    overlaps = bbox_overlaps(rois[:, 1:], boxes)
    np.testing.assert_array_equal(labels, np.where(overlaps.max(1) >= 0.5, boxes[overlaps.argmax(1), 4], 0))
    np.testing.assert_array_equal(found.matches, overlaps.argmax(1))
    np.testing.assert_allclose(found.overlaps, overlaps.max(1), rtol=1e-6)
    whole = net.blobs["bbox_targets"].data.reshape(64, 4, 4)
    np.testing.assert_array_equal(found.targets, whole[np.arange(64), labels.astype(int)])
    assert not found.targets[labels == 0].any() and found.targets[labels > 0].any()


@pytest.mark.parametrize("flipped", [False, True])
def test_the_image_is_the_one_that_the_net_saw(flipped: bool) -> None:
    net, trace = step(flipped)
    assert trace.picture is not None
    photo = load_image(SHAPES / "scene.png")
    shown = scaled_by(photo[:, ::-1] if flipped else photo, (0, 0, 0), 240 / 337)
    seen = trace.picture.rgb[..., ::-1].astype(int)
    assert seen.shape == (240, 313, 3) == (*net.blobs["data"].shape[2:], 3)
    assert np.abs(seen - shown).max() <= 1
    assert np.abs(seen[:, ::-1] - shown).max() > 100
    assert trace.picture.caption == f"as the net saw it: 240 × 313 pixels, {'' if flipped else 'not '}mirrored"
    assert (trace.picture.scale, trace.picture.photo) == (1, 1)


def test_given_boxes(traced: tuple[Net, Trace]) -> None:
    found = targets(traced[1], "input-data")
    np.testing.assert_array_equal(found.gt_boxes, traced[0].blobs["gt_boxes"].data)
    assert found.image == (240, 313) and found.classes == 4


def test_label_maps_on_the_page(traced: tuple[Net, Trace]) -> None:
    net, trace = traced
    shots = {blob.name: blob.shot for each in trace.steps for blob in each.blobs}
    tiles = shots["rpn_labels"].tiles
    assert tiles is not None and (tiles.form, tiles.channels, tiles.shrunk) == ("labels", 18, 1)
    assert (tiles.low, tiles.high) == (-1, 1) and tiles.pixels.shape == (18, 30, 40)
    np.testing.assert_array_equal(tiles.pixels / 127.0 - 1, net.blobs["rpn_labels"].data.reshape(18, 30, 40))
    for name in ("rpn_bbox_targets", "rpn_bbox_inside_weights", "rpn_bbox_outside_weights"):
        form = shots[name].tiles
        assert form is not None and (form.form, form.channels) == ("boxes", 72)
    scores = shots["rpn_cls_score"].tiles
    assert scores is not None and scores.form == ""
    page, _ = document(trace)
    assert page["classes"] == ["class 0", "class 1", "class 2", "class 3"]
    assert [layer["targets"]["kind"] for layer in page["layers"] if layer["targets"]] == ["given", "anchors", "rois"]


FORKS = {
    "AnchorTarget": ("python_param { param_str: \"'feat_stride': 16\" }", 9),
    "FrcnnAnchorTarget": ("", 9),
    "Python": ('python_param { module: "SSH.layers.anchor_target_layer" layer: "AnchorTargetLayer" param_str: "%s" }', 2),
}
SSH = "'feat_stride': 8\\n'scales': [1, 2]\\n'ratios': [1]\\n'allowed_border': 0"


@pytest.mark.filterwarnings("ignore::minicaffe.errors.PrototxtWarning")
@pytest.mark.parametrize("kind", FORKS)
@pytest.mark.parametrize("is_split", [False, True])
def test_label_maps_of_every_fork(kind: str, is_split: bool) -> None:
    """Also after a Split, which the net inserts if two layers read the labels."""
    block, anchors = FORKS[kind]
    readers = "".join(f'layer {{ name: "s{k}" type: "Silence" bottom: "labels" }}' for k in range(1 + is_split))
    text = f"""
    layer {{ name: "in" type: "Input" top: "scores" top: "gt" top: "info" top: "data" input_param {{
      shape {{ dim: 1 dim: {2 * anchors} dim: 6 dim: 7 }} shape {{ dim: 2 dim: 5 }} shape {{ dim: 1 dim: 3 }}
      shape {{ dim: 1 dim: 3 dim: 96 dim: 112 }} }} }}
    layer {{ name: "target" type: "{kind}" bottom: "scores" bottom: "gt" bottom: "info"
      {'bottom: "data"' if kind == "Python" else ""} top: "labels" top: "targets" top: "inside" top: "outside"
      {block % SSH if "%s" in block else block} }} {readers}"""
    net = Net(parse_net(text), TRAIN, settings=DetectionSettings(TrainSettings(rpn_batchsize=8)))
    net.blobs["gt"].data[...] = [[0, 0, 40, 44, 1], [30, 20, 80, 90, 1]]
    net.blobs["info"].data[...] = [[96, 112, 1]]
    with Tracer(net) as tracer:
        net.forward()
    shots = {blob.name: blob.shot for each in tracer.trace.steps for blob in each.blobs}
    names = [name for name in shots if name.startswith("labels")]
    assert len(names) == (3 if is_split else 1)
    expected = net.blobs["labels"].data.reshape(anchors, 6, 7)
    for name in names:
        tiles = shots[name].tiles
        assert tiles is not None and tiles.form == "labels"
        np.testing.assert_array_equal(tiles.pixels / 127.0 - 1, expected)
    found = next(facts.targets for facts in tracer.trace.layers if facts.targets)
    assert isinstance(found, AnchorShot)
    np.testing.assert_array_equal((found.states < 2).sum(), (expected >= 0).sum())
    np.testing.assert_array_equal(found.states.reshape(6, 7, anchors) == 1, expected.transpose(1, 2, 0) == 1)


def test_which_blobs_have_numbers_of_anchors(traced: tuple[Net, Trace]) -> None:
    net = traced[0]
    found = {
        name: anchor_maps(net, i, t)
        for i, node in enumerate(net.nodes)
        for t, name in enumerate(node.top_names)
        if anchor_maps(net, i, t)
    }
    boxes = ("rpn_bbox_targets", "rpn_bbox_inside_weights", "rpn_bbox_outside_weights")
    assert found == {"rpn_labels": AnchorMaps("labels", 18)} | dict.fromkeys(boxes, AnchorMaps("boxes", 18))
