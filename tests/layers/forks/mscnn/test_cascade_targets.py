"""Cascade R-CNN's ProposalTarget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.data.boxes import bbox_overlaps
from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

ROIS = np.array([[0, 0, 0, 9, 9], [0, 4, 0, 13, 9], [1, 0, 0, 9, 9], [1, 50, 50, 59, 59]], float)
TRUE = np.array([[0, 0, 0, 9, 9, 2, 0, 0], [1, 50, 50, 59, 59, 1, 1, 0], [-1] * 8], float)


def case(more: str = "", reg: str = "", rois: object = ROIS, true: object = TRUE, tops: int = 7) -> LayerCase:
    inside = f"cls_num: 3 batch_size: 8 num_img_per_batch: 2 append_gtbox: false bg_thr_lw: 0 {more}"
    text = f'type: "ProposalTarget" proposal_target_param {{ {inside} }} bbox_reg_param {{ {reg} }}'
    return LayerCase(text, np.array(rois, float), np.array(true, float), tops=tops)


def test_by_hand() -> None:
    """Roi 0 is the box of image 0, roi 1 shares 6 of 14 columns with it, roi 2 nothing; roi 3 is on a box to be ignored."""
    rois, labels, targets, inside, outside, matches, weights = case("fg_fraction: 0.5").forward()
    assert rois[..., 0, 0].tolist() == ROIS[:3].tolist() and labels.ravel().tolist() == [2, 0, 0]
    assert targets.shape == (3, 12, 1, 1) and not targets.any()
    assert inside[0, :, 0, 0].tolist() == [0] * 8 + [1] * 4 and not inside[1:].any() and (inside == outside).all()
    assert matches[..., 0, 0].tolist() == [[2, 0, 0, 9, 9, 1], [0] * 6, [0] * 6]
    np.testing.assert_allclose(weights.ravel(), [1.5, 0.75, 0.75])


def test_targets_of_one_class_and_weights_by_overlap() -> None:
    reg = "cls_aware: false " + "bbox_mean: 0.1 " * 4 + "bbox_std: 0.5 " * 4
    more = "fg_thr: 0.4 bg_thr_hg: 0.4 fg_fraction: 0.5 iou_weighted: true bbox_thr_hg: 0.9"
    _, labels, targets, inside, _, matches, weights = case(more, reg).forward()
    assert labels.ravel().tolist() == [2, 2, 0]
    np.testing.assert_allclose(targets[1, :, 0, 0], [0, 0, 0, 0, (-0.4 - 0.1) / 0.5, -0.2, -0.2, -0.2], rtol=1e-6)
    assert inside.any(axis=1).ravel().tolist() == [False, True, False]
    np.testing.assert_allclose(weights.ravel(), [1.5 / (1 + 3 / 7), 1.5 * 3 / 7 / (1 + 3 / 7), 1.5], rtol=1e-6)
    np.testing.assert_allclose(matches[1, 5], 3 / 7, rtol=1e-6)


def test_what_is_discarded_fills_up_and_true_boxes_are_rois() -> None:
    """Background starts at 0.1, so that roi 2 is discarded, and picked up again or not."""
    for more, count in (("bg_thr_lw: 0.1", 3), ("bg_thr_lw: 0.1 pickup_discard: false", 2), ("batch_size: -1", 3)):
        assert len(case(more).forward()[0]) == count
    assert len(case("append_gtbox: true").forward()[0]) == 4


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(0, 4), st.integers(1, 12))
def test_sampling(seed: int, count: int, boxes: int, batch: int) -> None:
    random = np.random.default_rng(seed)
    low = random.integers(0, 60, (count + boxes, 2))
    made = np.hstack([random.integers(0, 2, (count + boxes, 1)), low, low + random.integers(5, 50, (count + boxes, 2))])
    true = np.hstack([made[:boxes], random.integers(1, 3, (boxes, 1)), np.zeros((boxes, 2))])
    rois, labels, *_ = case(f"batch_size: {batch}", rois=made[boxes:], true=true.reshape(-1, 8)).forward()
    assert 1 <= len(rois) <= batch
    for roi, label in zip(rois[..., 0, 0], labels.ravel()):
        own = true[true[:, 0] == roi[0]]
        assert (bbox_overlaps(roi[None, 1:], own[:, 1:5]).max(initial=0) >= 0.5) == (label > 0)


def test_a_second_reshape_and_no_gradient() -> None:
    made = case()
    made.bottom[0].reshape(1, 5, 1, 1)
    made.bottom[1].reshape(0, 8)
    tops = made.forward()
    assert len(tops[0]) == 1
    assert not any(diff.any() for diff in made.backward(*map(np.ones_like, tops)))


@pytest.mark.parametrize(
    ("more", "rois", "true", "message"),
    [
        ("cls_num: 1", ROIS, TRUE, "needs cls_num > 1, and a batch_size > 0 or -1"),
        ("bg_thr_hg: 0.6", ROIS, TRUE, "fg_thr 0.5 must be at least bg_thr_hg 0.6"),
        ("stage: 1", ROIS, TRUE, "stage is of makefile/frcnn's FrcnnProposalTarget"),
        ("", ROIS[:, :4], TRUE, r"bottom 0 must have 5 values a row, got shape \(4, 4\)"),
        ("", ROIS, TRUE[:, :5], r"bottom 1 must have 7 or more values a row, got shape \(3, 5\)"),
        ("num_img_per_batch: 1", ROIS, TRUE, "image 1 is not below num_img_per_batch 1"),
        ("cls_num: 2", ROIS, TRUE, "a true box has class 2, but cls_num is 2"),
        ("", ROIS[3:], TRUE, "no roi is left to learn from"),
    ],
)
def test_errors(more: str, rois: np.ndarray, true: np.ndarray, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        case(more, rois=rois, true=true).forward()
