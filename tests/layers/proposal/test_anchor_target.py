from __future__ import annotations

import math

import numpy as np
import pytest
from detection_case import cfg, python_layer, settings, using, whole_net
from golden import needs_golden
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

import minicaffe
from minicaffe.data.settings import TrainSettings
from minicaffe.errors import LayerError
from minicaffe.layers.proposal.anchor_target import anchor_labels
from minicaffe.mode import TRAIN

ONE = python_layer("AnchorTarget", feat_stride=8, scales="[1]", ratios="[1]")
"""One anchor of 16 x 16: (0, 0, 15, 15), moved in steps of 8."""
NINE = python_layer("AnchorTarget", feat_stride=16)


def overlap(a: list[float], b: list[float]) -> float:
    width, height = (max(min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + 1, 0) for i in (0, 1))
    area = [(c[2] - c[0] + 1) * (c[3] - c[1] + 1) for c in (a, b)]
    return width * height / (area[0] + area[1] - width * height)


def plain_labels(height: int, width: int, gt: list[list[float]], info: list[float]) -> np.ndarray:
    """The definition before sampling, anchor by anchor, for one anchor of 16 x 16 and a stride of 8."""
    labels = np.full((height, width), -1)
    table = {}
    for y in range(height):
        for x in range(width):
            box = [8 * x, 8 * y, 8 * x + 15, 8 * y + 15]
            if box[2] < info[1] and box[3] < info[0]:
                table[y, x] = [overlap(box, g) for g in gt]
    for place, overlaps in table.items():
        best = [max(t[k] for t in table.values()) for k in range(len(gt))]
        if max(overlaps, default=0) < 0.3:
            labels[place] = 0
        if any(o == b > 0 for o, b in zip(overlaps, best, strict=True)) or max(overlaps, default=0) >= 0.7:
            labels[place] = 1
    return labels


def test_by_hand() -> None:
    """A row of four anchors in an image 16 high and 35 wide: the last leaves it. The gt box (0, 0, 15, 11), 12 of 16 high with
    its centre 2 above the anchor's, shares 192 of 256 pixels with the first, 8 * 12 = 96 of 352 with the second."""
    case = LayerCase(ONE, np.zeros((1, 2, 1, 4)), [[0, 0, 15, 11, 3]], [[16, 35, 1]], tops=4, phase=TRAIN)
    labels, targets, inside, outside = case.forward()
    np.testing.assert_array_equal(labels, [[[[1, 0, 0, -1]]]])
    np.testing.assert_allclose(targets[0, :, 0, 0], [0, -2 / 16, 0, math.log(12 / 16)])
    np.testing.assert_array_equal(inside[0, :, 0], [[1, 0, 0, 0]] * 4)
    np.testing.assert_allclose(outside[0, :, 0], [[1 / 3, 1 / 3, 1 / 3, 0]] * 4)


@needs_golden
@pytest.mark.parametrize(
    ("net", "settings_of"),
    [("zf_end2end_train", "py-faster-rcnn/faster_rcnn_end2end"), ("rfcn_resnet50_ohem_train", "py-R-FCN/rfcn_end2end_ohem")],
)
def test_golden(net: str, settings_of: str) -> None:
    """What the originals' layers gave, in full: fewer than 256 anchors are labelled, so that nothing was random."""
    stored, values = whole_net(net)
    height, width = stored["input.rpn_bbox_targets"].shape[2:]
    bottoms = [np.zeros((1, 18, height, width)), values["gt_boxes"], values["im_info"], np.zeros((1, 3, 224, 320))]
    with using(cfg(settings_of)):
        tops = LayerCase(NINE, *bottoms, tops=4, phase=TRAIN, dtype=np.float32).forward()
    for name, top in zip(("labels", "bbox_targets", "bbox_inside_weights", "bbox_outside_weights"), tops, strict=True):
        np.testing.assert_allclose(top, stored[f"input.rpn_{name}"], rtol=1e-5, atol=1e-6, err_msg=name)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 6), st.integers(0, 4))
def test_labels_agree_with_the_definition(seed: int, height: int, width: int, boxes: int) -> None:
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 30, (boxes, 2))
    gt = np.column_stack([corner, corner + rng.integers(5, 30, (boxes, 2)), np.ones(boxes)])
    info = [8 * height + 5, 8 * width + 9, 1]
    with settings(train_rpn_batchsize=10**6, train_rpn_fg_fraction=1.0):
        case = LayerCase(ONE, np.zeros((1, 2, height, width)), gt, [info], tops=4, phase=TRAIN)
    labels, _, inside, outside = case.forward()
    expected = plain_labels(height, width, gt[:, :4].tolist(), info)
    np.testing.assert_array_equal(labels[0, 0], expected)
    np.testing.assert_array_equal(inside[0], np.repeat(expected[None] == 1, 4, axis=0))
    assert outside[0, 0].sum() == pytest.approx(1 if (expected >= 0).any() else 0)


def test_sampling_keeps_the_shares() -> None:
    """2 x 3 of the labels are positive and 40 negative: 4 and 8 of them stay with a batch of 12 and a fraction of 1/3."""
    minicaffe.set_random_seed(4)
    gt = [[8 * x, 8 * y, 8 * x + 15, 8 * y + 15, 1] for x in (0, 4, 8) for y in (0, 4)]
    with settings(train_rpn_batchsize=12, train_rpn_fg_fraction=1 / 3):
        case = LayerCase(ONE, np.zeros((1, 2, 8, 12)), gt, [[100, 200, 1]], tops=4, phase=TRAIN)
    first, second = case.forward(), case.forward()
    for labels, _, inside, outside in (first, second):
        assert (labels == 1).sum() == 4
        assert (labels == 0).sum() == 8
        assert inside.sum() == 16
        np.testing.assert_allclose(outside[0, 0], (labels[0, 0] >= 0) / 12)
    assert (first[0] != second[0]).any()


def test_few_positives_leave_room_for_negatives() -> None:
    with settings(train_rpn_batchsize=12):
        case = LayerCase(ONE, np.zeros((1, 2, 8, 12)), [[0, 0, 15, 15, 1]], [[100, 200, 1]], tops=4, phase=TRAIN)
    (labels, *_) = case.forward()
    assert ((labels == 1).sum(), (labels == 0).sum()) == (1, 11)


def test_positive_weight_shares_the_weights() -> None:
    with settings(train_rpn_positive_weight=0.4, train_rpn_batchsize=10, train_rpn_bbox_inside_weights=(1.0, 2.0, 3.0, 4.0)):
        case = LayerCase(ONE, np.zeros((1, 2, 8, 12)), [[0, 0, 15, 15, 1]], [[100, 200, 1]], tops=4, phase=TRAIN)
    labels, _, inside, outside = case.forward()
    assert outside[0, 0][labels[0, 0] == 1].sum() == pytest.approx(0.4)
    assert outside[0, 0][labels[0, 0] == 0].sum() == pytest.approx(0.6)
    np.testing.assert_array_equal(inside[0, :, 0, 0], [1, 2, 3, 4])


def test_clobbering_negatives() -> None:
    """The gt box's best anchor overlaps it by 0.25 only: negative when negatives may clobber."""
    overlaps = np.array([[0.25], [0.1], [0.5]])
    assert anchor_labels(overlaps[:2], TrainSettings()).tolist() == [1, 0]
    assert anchor_labels(overlaps[:2], TrainSettings(rpn_clobber_positives=True)).tolist() == [0, 0]
    assert anchor_labels(overlaps, TrainSettings(rpn_clobber_positives=True)).tolist() == [0, 0, 1]


def test_a_gt_box_that_no_anchor_touches_makes_none_positive() -> None:
    case = LayerCase(ONE, np.zeros((1, 2, 2, 3)), [[300, 300, 340, 350, 1]], [[400, 500, 1]], tops=4, phase=TRAIN)
    assert not case.forward()[0].any()


def test_no_gt_box_and_no_anchor_inside() -> None:
    no_box = LayerCase(ONE, np.zeros((1, 2, 2, 3)), np.zeros((0, 5)), [[400, 500, 1]], tops=4, phase=TRAIN)
    labels, targets, inside, _ = no_box.forward()
    assert not labels.any() and not targets.any() and not inside.any()
    no_anchor = LayerCase(ONE, np.zeros((1, 2, 2, 3)), [[0, 0, 5, 5, 1]], [[10, 12, 1]], tops=4, phase=TRAIN)
    labels, _, _, outside = no_anchor.forward()
    assert (labels == -1).all() and not outside.any()


def test_allowed_border() -> None:
    text = python_layer("AnchorTarget", feat_stride=8, scales="[1]", ratios="[1]", allowed_border=3)
    (labels, *_) = LayerCase(text, np.zeros((1, 2, 1, 4)), [[0, 0, 15, 15, 1]], [[13, 29, 1]], tops=4, phase=TRAIN).forward()
    np.testing.assert_array_equal(labels, [[[[1, -1, 0, -1]]]])


def test_4_axis_gt_boxes_and_another_map_size() -> None:
    """gt boxes (G, 5, 1, 1) are (G, 5); the second forward gives what a new layer gives, and no bottom is touched."""
    gt = np.array([[10.0, 12, 60, 70, 1], [40, 40, 90, 80, 2]])
    case = LayerCase(NINE, np.zeros((1, 18, 3, 2)), gt[:, :, None, None], [[300, 320, 1]], tops=4, phase=TRAIN)
    case.forward()
    case.bottom[0].reshape(1, 18, 15, 21)
    minicaffe.set_random_seed(5)
    again = case.forward()
    minicaffe.set_random_seed(5)
    fresh = LayerCase(NINE, np.zeros((1, 18, 15, 21)), gt, [[300, 320, 1]], tops=4, phase=TRAIN).forward()
    assert again[0].shape == (1, 1, 135, 21)
    for a, b in zip(again, fresh, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(case.bottom[1].data[:, :, 0, 0], gt)
    for blob in case.bottom:
        blob.diff[...] = 3
    assert not any(diff.any() for diff in case.backward())


GT = [[0.0, 0, 9, 9, 1]]


@pytest.mark.parametrize(
    ("bottoms", "message"),
    [
        ((np.zeros((2, 2, 3, 4)), GT, [[9, 9, 1]]), r"takes one image, scores of shape \(1, 2, H, W\), got \(2, 2, 3, 4\)"),
        ((np.zeros((1, 6, 3, 4)), GT, [[9, 9, 1]]), "1 anchors need 2 score channels, got 6"),
        ((np.zeros((1, 2, 3, 4)), GT, [[9, 9]]), r"im_info must be \(1, 3\): height, width, scale; got shape \(1, 2\)"),
        ((np.zeros((1, 2, 3, 4)), [[1, 2, 3, 4]], [[9, 9, 1]]), r"gt_boxes must be \(G, 5\).*got shape \(1, 4\)"),
        (
            (np.zeros((1, 2, 3, 4)), [*GT, [5, 0, 4, 9, 2]], [[9, 9, 1]]),
            r"gt box 1 is no box: .* = \[5.0, 0.0, 4.0, 9.0, 2.0\]",
        ),
        ((np.zeros((1, 2, 3, 4)), [[0, np.nan, 4, 9, 2]], [[9, 9, 1]]), "gt box 0 is no box"),
    ],
)
def test_errors(bottoms: tuple[object, ...], message: str) -> None:
    with pytest.raises(LayerError, match=f'AnchorTarget layer "layer": {message}'):
        LayerCase(ONE, *bottoms, tops=4, phase=TRAIN).forward()  # type: ignore[arg-type]


def test_border_error() -> None:
    text = python_layer("AnchorTarget", feat_stride=8, allowed_border="wide")
    with pytest.raises(LayerError, match="allowed_border must be a number, got 'wide'"):
        LayerCase(text, np.zeros((1, 18, 3, 4)), GT, [[9, 9, 1]], tops=4, phase=TRAIN)
