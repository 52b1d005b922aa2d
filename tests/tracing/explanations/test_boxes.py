"""explain of the layers of boxes: every number of every top, and every part of the way, against loops written out here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from explained import Array, check, explained_alike, net_of
from google.protobuf import text_format

import minicaffe
from minicaffe import TRAIN, Net
from minicaffe.errors import Error
from minicaffe.proto import caffe_pb2
from minicaffe.tracing.explanations import RowExplanation, explain

STRIDE = """python_param { param_str: "{'feat_stride': 16, 'scales': [1, 2]}" }"""
CLOSE = """python_param { param_str: "{'feat_stride': 8, 'scales': [2, 3]}" }"""
MAP = (8, 10)
INFO = np.array([[64.0, 80.0, 1.5]])


def proposal(seed: int = 0) -> tuple[Net, list[Array]]:
    """480 anchors, many of which overlap."""
    random = np.random.default_rng(seed)
    inputs = [random.random((1, 12, *MAP)), 0.2 * random.standard_normal((1, 24, *MAP)), INFO]
    return net_of(f'type: "Proposal" {CLOSE}', *inputs, tops=2), inputs


def checked(found: Any) -> RowExplanation:
    check(found)
    assert isinstance(found, RowExplanation)
    return found


def overlap(a: Any, b: Any) -> float:
    width, height = (min(a[k + 2], b[k + 2]) - max(a[k], b[k]) + 1 for k in (0, 1))
    shared = max(width, 0) * max(height, 0)
    return float(shared / (sum((c[2] - c[0] + 1) * (c[3] - c[1] + 1) for c in (a, b)) - shared))


def moved(anchor: Any, delta: Any) -> list[float]:
    """One anchor moved and clipped to 80 x 64 pixels."""
    ends = [0.0] * 4
    for k, size in ((0, 80), (1, 64)):
        side = anchor[k + 2] - anchor[k] + 1
        centre, half = anchor[k] + side / 2 + delta[k] * side, math.exp(delta[k + 2]) * side / 2
        ends[k], ends[k + 2] = (min(max(v, 0), size - 1) for v in (centre - half, centre + half))
    return ends


def by_loops(net: Net, inputs: list[Array]) -> tuple[list[tuple[int, int, int]], dict[tuple[int, int, int], Any]]:
    """The kept anchors (row, column, number), and of each suppressed one its suppressor."""
    layer: Any = net.layer_dict["it"]
    boxes, scores = {}, {}
    for row, column, a in np.ndindex(*MAP, 6):
        anchor = layer.anchors[a] + 8 * np.array([column, row, column, row])
        boxes[row, column, a] = moved(anchor, inputs[1][0, 4 * a : 4 * a + 4, row, column])
        scores[row, column, a] = inputs[0][0, 6 + a, row, column]
    large = [key for key, box in boxes.items() if min(box[2] - box[0], box[3] - box[1]) + 1 >= 16 * 1.5]
    kept: list[Any] = []
    suppressor: dict[Any, Any] = {}
    for key in sorted(large, key=lambda key: -scores[key]):
        by = next((k for k in kept if overlap(boxes[k], boxes[key]) > 0.7), None)
        if by is None:
            kept.append(key)
        else:
            suppressor[key] = by
    return kept, suppressor


def test_every_proposal_and_every_anchor() -> None:
    net, inputs = proposal()
    kept, suppressor = by_loops(net, inputs)
    net.forward()
    assert len(kept) == len(net.blobs["out0"].data) > 20 and len(suppressor) > 5
    for r, (row, column, a) in enumerate(kept[::5]):
        found = checked(explain(net, "it", roi=5 * r))
        text = found.text(rows=99)
        assert f"anchor {a} of 6 at row {row}, column {column} of the 8 x 10 map" in text
        assert f"in0[0, {6 + a}, {row}, {column}]" in text and f"in1[0, {4 * a}, {row}, {column}]" in text
        mine = [key for key, by in suppressor.items() if by == (row, column, a)]
        assert text.count(" at row ") == 1 + len(mine)
        assert all(f"anchor {c} at row {h}, column {w}" in text for h, w, c in mine)
        assert found.row == tuple(net.blobs["out0"].data[5 * r].tolist())
    for at in list(np.ndindex(*MAP, 6))[::7]:
        found = checked(explain(net, "it", anchor=at))
        assert found.value == (kept.index(at) if at in kept else -1)
        if at in suppressor:
            assert f"roi {kept.index(suppressor[at])}, x1 " in str(found) and "suppresses it" in str(found)
        elif at not in kept:
            assert "its box is too small" in str(found)


def test_a_proposals_score_and_the_limits() -> None:
    net, inputs = proposal(1)
    check(explain(net, "it", (3, 0), top=1))
    layer: Any = net.layer_dict["it"]
    layer.limits = type(layer.limits)(200, 9, 0.7, 16)
    kept, _ = by_loops(net, inputs)
    asked = {*kept[:20], *list(np.ndindex(*MAP, 6))[::7]}
    reasons = {at: str(checked(explain(net, "it", anchor=at))) for at in asked}
    assert sum("its score is too low" in text for text in reasons.values()) > 5
    assert sum("9 better boxes are rois already" in text for text in reasons.values()) > 5
    assert {at for at, text in reasons.items() if "it is kept" in text or "always kept" in text} == set(kept[:9])


def test_proposal_param_and_training_on_normalised_targets() -> None:
    block = "proposal_param { feat_stride: 16 scale: 1 scale: 2 ratio: 0.5 ratio: 1 ratio: 2 min_size: 16 pre_nms_topn: 90 "
    block += "post_nms_topn: 40 nms_thresh: 0.6 }"
    random = np.random.default_rng(2)
    inputs = [random.random((1, 12, 4, 5)), 0.3 * random.standard_normal((1, 24, 4, 5)), INFO]
    names = " ".join(f'input: "in{i}" input_shape {{ {" ".join(f"dim: {n}" for n in x.shape)} }}' for i, x in enumerate(inputs))
    text = f'{names} layer {{ name: "it" type: "Proposal" bottom: "in0" bottom: "in1" bottom: "in2" top: "out0" {block} }}'
    net = Net(text_format.Parse(text, caffe_pb2.NetParameter()), TRAIN, fork="pvanet")
    for i, x in enumerate(inputs):
        net.blobs[f"in{i}"].data[...] = x
    net.forward()
    for r in range(0, len(net.blobs["out0"].data), 6):
        checked(explain(net, "it", roi=r))


@pytest.mark.parametrize("seed", [0, 1])
def test_anchor_target(seed: int) -> None:
    random = np.random.default_rng(seed)
    gt = np.array([[5, 8, 40, 45, 1], [50, 20, 79, 60, 2], [30, 30, 44, 41, 1.0]])
    inputs = [np.zeros((1, 12, 4, 5)), gt, INFO]
    net = net_of(f'type: "AnchorTarget" {STRIDE}', *inputs, tops=4, phase=TRAIN)
    layer: Any = net.layer_dict["it"]
    layer.train = layer.train.model_copy(update={"rpn_batchsize": 8}) if hasattr(layer.train, "model_copy") else layer.train
    explained_alike(net, inputs, random, most=40)
    net.forward()
    row, column, a = (int(v) for v in np.argwhere(net.blobs["out0"].data.reshape(6, 4, 5) == 1)[0][[1, 2, 0]])
    anchor = layer.anchors[a] + 16 * np.array([column, row, column, row])
    best = max(range(3), key=lambda j: overlap(anchor, gt[j]))
    found = checked(explain(net, "it", (0, 4 * a + 2, row, column), top=1))
    size, gt_size = anchor[2] - anchor[0] + 1, gt[best, 2] - gt[best, 0] + 1
    assert found.value == pytest.approx(math.log(gt_size / size), rel=1e-5)
    assert f"to gt box {best}" in str(found) and f"= {overlap(anchor, gt[best]):.6g}" in str(found)


def test_anchors_that_leave_the_image_and_no_gt_boxes() -> None:
    net = net_of(f'type: "AnchorTarget" {STRIDE}', np.zeros((1, 12, 4, 5)), np.zeros((0, 5)), INFO, tops=4, phase=TRAIN)
    found = checked(explain(net, "it", (0, 0, 0, 0)))
    assert found.value == -1 and "leaves the image" in str(found)
    check(explain(net, "it", (0, 0, 0, 0), top=1))
    inside = checked(explain(net, "it", (0, 0, 5, 2)))
    assert inside.value in (0, -1)


@pytest.mark.parametrize("seed", [0, 1])
def test_proposal_target(seed: int) -> None:
    random = np.random.default_rng(seed)
    gt = np.array([[5, 8, 40, 45, 1], [50, 20, 79, 60, 2.0]])
    start = random.uniform(0, 40, (30, 2))
    rois = np.column_stack([np.zeros(30), start, start + random.uniform(5, 39, (30, 2))])
    rois[:6, 1:] = gt[0, :4] + random.uniform(-3, 3, (6, 4))
    inputs = [rois, gt]
    net = net_of('type: "ProposalTarget" python_param { param_str: "\'num_classes\': 3" }', *inputs, tops=5, phase=TRAIN)
    explained_alike(net, inputs, random, most=25)
    labels = [explain(net, "it", roi=0, top=1).value for _ in range(3)]
    assert set(labels) <= {1.0, 2.0}
    text = str(checked(explain(net, "it", roi=0)))
    assert "overlap = shared / union" in text and "foreground" in text


PRIORS = """prior_box_param { min_size: 20 max_size: 40 aspect_ratio: 2 flip: true variance: 0.1 variance: 0.1 variance: 0.2
variance: 0.2 """


@pytest.mark.parametrize("more", ["", "clip: true", "step: 16 offset: 0.25"])
def test_prior_box(more: str) -> None:
    inputs = [np.zeros((1, 2, 3, 4)), np.zeros((1, 3, 48, 80))]
    net = net_of(f'type: "PriorBox" {PRIORS} {more} }}', *inputs)
    explained_alike(net, inputs, np.random.default_rng(0), most=30)
    found = checked(explain(net, "it", (0, 0, 4 * (4 * (4 * 1 + 2) + 0))))
    assert "prior 24: box 0 of 4 at row 1, column 2 of the 3 x 4 map" in str(found)
    centre = (2.5 * 20, 1.5 * 16) if not more.startswith("step") else (2.25 * 16, 1.25 * 16)
    wanted = [(centre[0] - 10) / 80, (centre[1] - 10) / 48, (centre[0] + 10) / 80, (centre[1] + 10) / 48]
    assert found.worked == pytest.approx(wanted, rel=1e-6)


def test_prior_box_at_two_places_in_a_cell() -> None:
    inputs = [np.zeros((1, 2, 3, 4)), np.zeros((1, 3, 48, 80))]
    net = net_of(f'type: "PriorBox" {PRIORS} offset_h: 0.5 offset_w: 0.25 offset_h: 1 offset_w: 0.5 }}', *inputs)
    explained_alike(net, inputs, np.random.default_rng(0), most=20)
    assert "prior 13: box 5 of 8 at row 0, column 1 of" in str(checked(explain(net, "it", (0, 0, 4 * 13))))


def test_prior_box_of_faceboxes() -> None:
    inputs = [np.zeros((1, 2, 1, 2)), np.zeros((1, 3, 48, 80))]
    net = net_of('type: "PriorBox" prior_box_param { min_size: 32 min_size: 64 min_size: 128 }', *inputs, fork="faceboxes")
    explained_alike(net, inputs, np.random.default_rng(0), most=20)
    assert "(0 + 0.5) * 40 -16 = 4" in str(checked(explain(net, "it", (0, 0, 0))))


def priors(random: np.random.Generator, count: int = 24) -> Array:
    start = random.uniform(0, 0.6, (count, 2))
    boxes = np.column_stack([start, start + random.uniform(0.1, 0.4, (count, 2))])
    return np.stack([boxes.reshape(-1), np.tile([0.1, 0.1, 0.2, 0.2], count)])[None]


OUTPUT = "detection_output_param { num_classes: 3 nms_param { nms_threshold: 0.4 top_k: 20 } keep_top_k: 12"


@pytest.mark.parametrize(
    "more", ["code_type: CENTER_SIZE confidence_threshold: 0.3", "share_location: false", "code_type: CORNER_SIZE", "refine"]
)
def test_detection_output(more: str) -> None:
    random = np.random.default_rng(4)
    classes = 3 if "false" in more else 1
    conf = random.random((2, 24, 3))
    inputs = [0.5 * random.standard_normal((2, 24 * 4 * classes)), conf.reshape(2, -1), priors(random)]
    if more == "refine":
        more = "code_type: CENTER_SIZE objectness_score: 0.3"
        inputs += [random.random((2, 48)), 0.3 * random.standard_normal((2, 96))]
    net = net_of(f'type: "DetectionOutput" {OUTPUT} {more} }}', *inputs)
    net.forward()
    rows = net.blobs["out0"].data[0, 0].copy()
    assert len(rows) > 10
    for k in range(len(rows)):
        found = checked(explain(net, "it", index=k))
        assert found.row == tuple(rows[k].tolist())
        prior = int(str(found).split("  prior ")[2].split(":")[0])
        assert conf[int(rows[k, 0]), prior, int(rows[k, 1])] == pytest.approx(rows[k, 2])
    with pytest.raises(Error, match=f"index {len(rows)} is out of range: out0 has indices 0 to {len(rows) - 1}"):
        explain(net, "it", index=len(rows))
    nothing = net_of(f'type: "DetectionOutput" {OUTPUT} confidence_threshold: 2 }}', *inputs[:3]) if classes == 1 else None
    if nothing is not None and "objectness" not in more:
        assert checked(explain(nothing, "it", index=1)).row == (1, -1, -1, -1, -1, -1, -1)


LOSS = "multibox_loss_param { num_classes: 3"


@pytest.mark.parametrize(
    "more",
    [
        "code_type: CENTER_SIZE",
        "mining_type: NONE conf_loss_type: LOGISTIC loc_loss_type: L2",
        "share_location: false mining_type: NONE",
        "mining_type: HARD_EXAMPLE sample_size: 9 encode_variance_in_target: true code_type: CENTER_SIZE",
        "code_type: CENTER_SIZE bp_inside: true loc_weight: 2",
    ],
)
def test_multi_box_loss(more: str) -> None:
    random = np.random.default_rng(5)
    classes = 3 if "false" in more else 1
    given = priors(random)
    box = given[0, 0].reshape(-1, 4)
    truths = [[i, 1 + i, 0, *(box[3 * i + j] + 0.02), 0] for i in (0, 1) for j in (0, 1)]
    inputs = [0.5 * random.standard_normal((2, 24 * 4 * classes)), random.standard_normal((2, 72)), given]
    inputs.append(np.array(truths).reshape(1, 1, 4, 8))
    net = net_of(f'type: "MultiBoxLoss" {LOSS} {more} }}', *inputs, phase=TRAIN)
    explained_alike(net, inputs, random, most=12)
    for i, x in enumerate(inputs):
        net.blobs[f"in{i}"].data[...] = x
    net.forward()
    layer: Any = net.layer_dict["it"]
    matched = np.argwhere(layer.loc_diff.reshape(2, -1))
    for at in matched[::7]:
        found = explain(net, "it", tuple(int(v) for v in at), backward=True)
        check(found)
        assert "it matches true box" in str(found) and found.value != 0


def test_box_annotator_ohem() -> None:
    random = np.random.default_rng(6)
    rois = np.column_stack([np.repeat([0, 1], 5), random.random((10, 4))])
    losses = np.round(random.random(10), 1)
    inputs = [rois, losses.reshape(10, 1), random.integers(0, 3, (10, 1)).astype(float), random.random((10, 8))]
    net = net_of('type: "BoxAnnotatorOHEM" box_annotator_ohem_param { roi_per_img: 2 }', *inputs, tops=2)
    explained_alike(net, inputs, random, most=30)
    for r in range(10):
        text = str(explain(net, "it", roi=r))
        image = slice(5 * (r // 5), 5 * (r // 5) + 5)
        rank = sorted(range(image.start, image.stop), key=lambda i: (-losses[i], i)).index(r)
        assert f"number {rank}, from 0, of the 5 of image {r // 5}" in text and ("are kept" in text) == (rank < 2)


def test_errors() -> None:
    net, _ = proposal()
    for options, message in (
        ({"anchor": (8, 0, 0)}, "anchor 8,0,0 is out of range: the anchors (row, column, number) has 0,0,0 to 7,9,5"),
        ({"anchor": (0, 0, 0), "roi": 1}, "give anchor alone"),
        ({"roi": 999}, "roi 999 is out of range: out0 has rois 0 to"),
        ({}, "give roi or at, an index into out0"),
        ({"index": 0}, "index is only for DetectionOutput; give at"),
        ({"at": (0, 1), "backward": True}, "bottom 0 has no gradient (in0)"),
        ({"weight": 0}, "explain does not cover the weights' gradients of Proposal"),
    ):
        with pytest.raises(Error) as error:
            explain(net, "it", **options)  # type: ignore[arg-type]
        assert message in str(error.value)
    none = net_of(f'type: "Proposal" {CLOSE}', np.zeros((1, 12, *MAP)), np.full((1, 24, *MAP), -9.0), INFO)
    with pytest.raises(Error, match="out0 of shape 0x5 is empty: nothing to explain"):
        explain(none, "it", roi=0)
    assert "its box is too small" in str(explain(none, "it", anchor=(0, 0, 0)))
    cells = net_of(
        'type: "DetectionOutput" detection_output_param { num_classes: 2 num_box: 1 biases: 1 biases: 2 }',
        np.zeros((1, 7, 13, 13)),
    )
    with pytest.raises(Error, match="not of YOLOv2"):
        minicaffe.explain(cells, "it", index=0)
