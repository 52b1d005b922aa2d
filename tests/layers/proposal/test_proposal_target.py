from __future__ import annotations

import numpy as np
import pytest
from detection_case import cfg, python_layer, settings, using, whole_net
from golden import needs_golden
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

import minicaffe
from minicaffe.errors import LayerError
from minicaffe.mode import TRAIN
from minicaffe.ops import bbox_overlaps, bbox_transform

FOUR = python_layer("ProposalTarget", num_classes=4)


def with_index(boxes: object) -> np.ndarray:
    array = np.array(boxes, float)
    return np.column_stack([np.zeros(len(array)), array])


def flat(tops: list[np.ndarray]) -> list[np.ndarray]:
    return [top.reshape(len(top), top.shape[1]) for top in tops]


def test_by_hand() -> None:
    """gt box of class 2: (0, 0, 9, 9). Proposal 0 is 5 x 10 of it, overlap 0.5: foreground, its centre 2.5 away, half as wide.
    Proposal 1 overlaps by 0.4: background. Proposal 2 by 0.05: neither, with BG_THRESH_LO 0.1."""
    proposals = with_index([[0, 0, 4, 9], [0, 0, 3, 9], [0, 0, 4, 0]])
    tops = flat(LayerCase(FOUR, proposals, [[0, 0, 9, 9, 2]], tops=5, phase=TRAIN).forward())
    rois, labels, targets, inside, outside = tops
    np.testing.assert_array_equal(rois, [[0, 0, 0, 4, 9], [0, 0, 0, 9, 9], [0, 0, 0, 3, 9]])
    np.testing.assert_array_equal(labels[:, 0], [2, 2, 0])
    expected = np.zeros((3, 16))
    expected[0, 8:12] = [0.5, 0, np.log(2), 0]
    np.testing.assert_allclose(targets, expected, atol=1e-12)
    np.testing.assert_array_equal(inside, np.repeat([[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]], 4, axis=1))
    np.testing.assert_array_equal(outside, inside)


@needs_golden
@pytest.mark.parametrize(
    ("net", "settings_of", "classes"),
    [
        ("zf_end2end_train", "py-faster-rcnn/faster_rcnn_end2end", 21),
        ("rfcn_resnet50_ohem_train", "py-R-FCN/rfcn_end2end_ohem", 2),
    ],
)
def test_golden(net: str, settings_of: str, classes: int) -> None:
    """From the rois that the original sampled come the labels, targets and weights that it gave them, whatever the order."""
    stored, values = whole_net(net)
    wanted = [
        stored[f"input.{name}"].reshape(len(stored["input.rois"]), -1)
        for name in ("rois", "labels", "bbox_targets", "bbox_inside_weights", "bbox_outside_weights")
    ]
    is_gt = (wanted[0][:, None, 1:] == values["gt_boxes"][None, :, :4]).all(axis=2).any(axis=1)
    assert is_gt.sum() == 3
    with using(cfg(settings_of)):
        text = python_layer("ProposalTarget", num_classes=classes)
        case = LayerCase(text, wanted[0][~is_gt], values["gt_boxes"], tops=5, phase=TRAIN, dtype=np.float32)
    tops = flat(case.forward())
    order = [np.lexsort(rois.T) for rois in (tops[0], wanted[0])]
    for top, expected in zip(tops, wanted, strict=True):
        np.testing.assert_allclose(top[order[0]], expected[order[1]], rtol=1e-5, atol=2e-6)


@needs_golden
def test_the_shapes_of_py_r_fcn() -> None:
    stored, values = whole_net("rfcn_resnet50_ohem_train")
    with using(cfg("py-R-FCN/rfcn_end2end_ohem")):
        case = LayerCase(
            python_layer("ProposalTarget", num_classes=2), np.zeros((0, 5)), values["gt_boxes"], tops=5, phase=TRAIN
        )
    names = ("rois", "labels", "bbox_targets", "bbox_inside_weights", "bbox_outside_weights")
    for top, name in zip(case.forward(), names, strict=True):
        assert top.shape[1:] == stored[f"input.{name}"].shape[1:]


@given(st.integers(0, 10**6), st.integers(0, 40), st.integers(0, 3), st.sampled_from([-1, 6, 20]), st.booleans())
def test_every_roi_has_its_due(seed: int, proposals: int, boxes: int, batch: int, agnostic: bool) -> None:
    """Roi by roi: the class of the nearest gt box if they overlap by 0.5 or more, and in its columns the deltas to it."""
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 30, (proposals + boxes, 2))
    every = np.column_stack([corner, corner + rng.integers(3, 40, corner.shape)]).astype(float)
    gt = np.column_stack([every[proposals:], rng.integers(1, 4, boxes)])
    means, stds = (0.1, 0.2, 0.3, 0.4), (0.5, 0.6, 0.7, 0.8)
    with settings(
        train_batch_size=batch, train_agnostic=agnostic, train_bg_thresh_lo=0.0, train_bbox_normalize_targets_precomputed=True,
        train_bbox_normalize_means=means, train_bbox_normalize_stds=stds, train_bbox_inside_weights=(1.0, 2.0, 3.0, 4.0),
    ):  # fmt: skip
        case = LayerCase(FOUR, with_index(every[:proposals]).reshape(-1, 5), gt, tops=5, phase=TRAIN)
    rois, labels, targets, inside, outside = flat(case.forward())
    assert len(rois) == (proposals + boxes if batch < 0 else len(rois))
    assert len(rois) <= (batch if batch > 0 else 10**6)
    foreground = int((labels > 0).sum())
    assert (labels[foreground:] == 0).all()
    assert foreground <= (round(0.25 * batch) if batch > 0 else 10**6)
    for i, roi in enumerate(rois):
        overlaps = bbox_overlaps(roi[None, 1:], gt)[0] if boxes else np.zeros(1)
        row, weights = np.zeros((4, 4)), np.zeros((4, 4))
        if overlaps.max() >= 0.5:
            box = gt[overlaps.argmax()]
            k = 1 if agnostic else int(box[4])
            assert labels[i, 0] == box[4]
            row[k] = (bbox_transform(roi[None, 1:], box[None, :4])[0] - means) / stds
            weights[k] = [1, 2, 3, 4]
        np.testing.assert_allclose(targets[i], row.ravel(), atol=1e-12)
        np.testing.assert_array_equal(inside[i], weights.ravel())
        np.testing.assert_array_equal(outside[i], weights.ravel() > 0)


def test_sampling_draws_from_the_seed() -> None:
    rng = np.random.default_rng(0)
    corner = rng.integers(0, 30, (300, 2))
    proposals = with_index(np.column_stack([corner, corner + rng.integers(5, 40, (300, 2))]))
    with settings(train_batch_size=32, train_bg_thresh_lo=0.0):
        case = LayerCase(FOUR, proposals, [[5, 6, 40, 50, 1], [20, 0, 60, 30, 3]], tops=5, phase=TRAIN)
    minicaffe.set_random_seed(1)
    first, second = case.forward(), case.forward()
    minicaffe.set_random_seed(1)
    third = case.forward()
    assert first[0].shape == (32, 5, 1, 1)
    assert (first[1] > 0).sum() == 8
    assert (first[0] != second[0]).any()
    for a, b in zip(first, third, strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_rois_and_no_gt_boxes() -> None:
    for top, channels in zip(
        LayerCase(FOUR, np.zeros((0, 5)), np.zeros((0, 5)), tops=5).forward(), (5, 1, 16, 16, 16), strict=True
    ):
        assert top.shape == (0, channels, 1, 1)


def test_4_axis_rois_zero_diffs_and_inputs_untouched() -> None:
    proposals, gt = with_index([[0, 0, 4, 9], [0, 0, 3, 9]]), np.array([[0.0, 0, 9, 9, 2]])
    case = LayerCase(FOUR, proposals[:, :, None, None], gt[:, :, None, None], tops=5, phase=TRAIN)
    plain = LayerCase(FOUR, proposals, gt, tops=5, phase=TRAIN)
    for a, b in zip(case.forward(), plain.forward(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(case.bottom[0].data[:, :, 0, 0], proposals)
    np.testing.assert_array_equal(case.bottom[1].data[:, :, 0, 0], gt)
    for blob in case.bottom:
        blob.diff[...] = 3
    assert not any(diff.any() for diff in case.backward())


def test_another_number_of_rois() -> None:
    case = LayerCase(FOUR, with_index([[0, 0, 4, 9]]), [[0, 0, 9, 9, 2]], tops=5, phase=TRAIN)
    assert case.forward()[0].shape == (2, 5, 1, 1)
    case.bottom[0].reshape(3, 5)
    case.bottom[0].data[...] = with_index([[0, 0, 4, 9], [0, 0, 9, 8], [0, 0, 3, 9]])
    assert case.forward()[0].shape == (4, 5, 1, 1)


GT = [[0.0, 0, 9, 9, 2]]


@pytest.mark.parametrize(
    ("text", "bottoms", "message"),
    [
        (python_layer("ProposalTarget"), (np.zeros((1, 5)), GT), "param_str must give 'num_classes'"),
        (FOUR, (np.ones((1, 5)), GT), "takes one image, got a roi of image 1"),
        (FOUR, (np.zeros((1, 4)), GT), r"rois must be \(R, 5\): batch index, x1, y1, x2, y2; got shape \(1, 4\)"),
        (FOUR, (np.zeros((1, 5)), [[0, 0, 9, 9]]), r"gt_boxes must be \(G, 5\)"),
        (FOUR, (np.zeros((1, 5)), [[0, 0, -9, 9, 1]]), "gt box 0 is no box"),
        (FOUR, (np.zeros((1, 5)), [[0, 0, 9, 9, 4]]), "a gt box has class 4, but num_classes is 4"),
        (FOUR, (np.zeros((1, 5)), [[0, 0, 9, 9, 1.5]]), "a gt box has class 1.5, but num_classes is 4"),
        (FOUR, (np.zeros((1, 5)), [[0, 0, 9, 9, 0]]), "a gt box has class 0, but num_classes is 4"),
        (
            python_layer("ProposalTarget", num_classes=2),
            (np.zeros((1, 5)), GT),
            r"a gt box has class 2, but num_classes is 2 \(TRAIN.AGNOSTIC is for class-agnostic boxes\)",
        ),
    ],
)
def test_errors(text: str, bottoms: tuple[object, ...], message: str) -> None:
    with pytest.raises(LayerError, match=f'ProposalTarget layer "layer": {message}'):
        LayerCase(text, *bottoms, tops=5, phase=TRAIN).forward()  # type: ignore[arg-type]


def test_agnostic_needs_two_classes() -> None:
    with settings(train_agnostic=True), pytest.raises(LayerError, match="class-agnostic boxes need num_classes 2, got 1"):
        LayerCase(python_layer("ProposalTarget", num_classes=1), np.zeros((1, 5)), GT, tops=5, phase=TRAIN)
