"""FrcnnProposalTarget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.data.boxes import bbox_overlaps
from minicaffe.errors import LayerError, PrototxtWarning

pytestmark = [
    pytest.mark.usefixtures("device"),
    pytest.mark.filterwarnings("ignore::minicaffe.errors.PrototxtWarning"),
]


def case(proposals: object, gt_boxes: object, block: str = "") -> LayerCase:
    text = 'type: "FrcnnProposalTarget"' + (block and f" proposal_target_param {{ {block} }}")
    return LayerCase(text, np.reshape(proposals, (-1, 5)), np.reshape(gt_boxes, (-1, 5)), tops=5)


def test_by_hand() -> None:
    """Roi 0 is the true box moved by half a column of its 20. Rois 1 and 2 are background, repeated in turn."""
    rois = [[0, 10.5, 10, 29.5, 29], [0, 100, 100, 119, 119], [0, 50, 60, 69, 79]]
    found, labels, targets, inside, outside = case(rois, [[10, 10, 29, 29, 7]]).forward()
    assert found.shape == (128, 5, 1, 1) and targets.shape == (128, 84, 1, 1)
    foreground = {tuple(roi) for roi in found[:2, 1:, 0, 0].tolist()}
    assert foreground == {(10.5, 10, 29.5, 29), (10, 10, 29, 29)} and labels.ravel().tolist() == [7, 7] + [0] * 126
    background = found[2:, 1, 0, 0]
    assert sorted(set(background)) == [50, 100] and (background[::2] == background[0]).all()
    moved = int(np.flatnonzero(found[:2, 1, 0, 0] == 10.5)[0])
    np.testing.assert_allclose(targets[moved, 28:32, 0, 0], [-0.5 / 20 / 0.1, 0, 0, 0], atol=1e-6)
    assert inside[:, :, 0, 0].sum() == 8 and (outside == (inside > 0)).all()
    assert not targets[:, :28].any() and not targets[:, 32:].any()


def test_targets_are_normalised_and_the_last_of_equal_boxes_counts() -> None:
    roi = [[0, 10, 10, 29, 29]]
    _, labels, targets, *_ = case(roi, [[14, 10, 33, 29, 3], [14, 10, 33, 29, 5]]).forward()
    at = [i for i in range(len(labels)) if abs(targets[i]).sum() > 1]
    assert labels[at, 0, 0, 0].tolist() == [5]
    np.testing.assert_allclose(targets[at[0], 20:24, 0, 0], [0.2 / 0.1, 0, 0, 0], atol=1e-6)


def test_a_later_stage() -> None:
    """Overlaps 0.6 and 0.96: with stage 1 the first is still foreground, with stage 2 not; the second is left out."""
    rois, true = [[0, 0, 0, 59, 99], [0, 0, 0, 95, 99]], [[0, 0, 99, 99, 1]]
    for stage, count in ((0, 3), (1, 2), (2, 1)):
        _, labels, *_ = case(rois, true, f"stage: {stage}").forward()
        assert (labels > 0).sum() == count


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 40), st.integers(0, 3))
def test_sampling(seed: int, count: int, boxes: int) -> None:
    random = np.random.default_rng(seed)
    low = random.integers(0, 80, (count + boxes, 2))
    corners = np.hstack([low, low + random.integers(5, 60, (count + boxes, 2))]).astype(float)
    true = np.hstack([corners[:boxes], random.integers(1, 21, (boxes, 1))])
    found, labels, *_ = case(np.insert(corners[boxes:], 0, 0, axis=1), true).forward()
    best = bbox_overlaps(found[:, 1:, 0, 0], true).max(axis=1, initial=0.0)
    positive = labels[:, 0, 0, 0] > 0
    assert (best[positive] >= 0.5).all() and (best[~positive] < 0.5).all() and positive.sum() <= 32
    assert len(found) in (128, positive.sum())


def test_a_second_reshape_and_no_gradient() -> None:
    made = case(np.zeros((2, 5)), [[0, 0, 9, 9, 1]])
    made.bottom[0].reshape(0, 5)
    tops = made.forward()
    assert len(tops[0]) == 1
    assert not any(diff.any() for diff in made.backward(*map(np.ones_like, tops)))


def test_the_warning_and_errors() -> None:
    with pytest.warns(PrototxtWarning, match="the fork reads its classes from a file of settings; the 21 of"):
        case([], [])
    with pytest.raises(LayerError, match="cls_num is of Cascade R-CNN's ProposalTarget"):
        case([], [], "cls_num: 21")
    with pytest.raises(LayerError, match="takes one image, got a roi of image 1"):
        case([1, 2, 3, 4, 5], []).forward()
    with pytest.raises(LayerError, match="a gt box has class 21, but num_classes is 21"):
        case([], [0, 0, 9, 9, 21]).forward()
