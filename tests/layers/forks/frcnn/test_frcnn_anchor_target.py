"""FrcnnAnchorTarget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError, PrototxtWarning

pytestmark = [
    pytest.mark.usefixtures("device"),
    pytest.mark.filterwarnings("ignore::minicaffe.errors.PrototxtWarning"),
]

INFO = [[400.0, 600.0, 1.0]]


def case(gt_boxes: list[list[float]], height: int = 25, width: int = 38, channels: int = 18) -> LayerCase:
    bottoms = np.zeros((1, channels, height, width)), np.reshape(gt_boxes, (-1, 5)), INFO
    return LayerCase('type: "FrcnnAnchorTarget"', *bottoms, tops=4)


def test_by_hand() -> None:
    """A true box that is anchor 3, 128 x 129 pixels, at row 10 and column 12: that anchor alone has no way to go."""
    x, y = 16 * 12, 16 * 10
    labels, targets, inside, outside = case([[x - 56, y - 56, x + 71, y + 72, 4]]).forward()
    assert labels.shape == (1, 1, 9 * 25, 38) and targets.shape == (1, 36, 25, 38)
    labels = labels.reshape(9, 25, 38)
    assert labels[3, 10, 12] == 1 and not targets[0, 12:16, 10, 12].any()
    assert labels[3, 0, 0] == -1  # it leaves the image
    assert (labels >= 0).sum() == 256
    assert (inside.reshape(9, 4, 25, 38)[:, 0] == (labels == 1)).all()
    np.testing.assert_allclose(outside.reshape(9, 4, 25, 38).sum(axis=(0, 2, 3)), 1, rtol=1e-6)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 250), st.integers(16, 190), st.integers(16, 140)), max_size=4))
def test_each_label_has_its_weights(boxes: list[tuple[int, int, int, int]]) -> None:
    gt_boxes = [[x, y, x + width, y + height, 1.0] for x, y, width, height in boxes]
    labels, targets, inside, outside = case(gt_boxes).forward()
    labels = labels.reshape(9, 1, 25, 38)
    positive, counted = labels == 1, labels >= 0
    assert set(np.unique(labels)) <= {-1, 0, 1} and positive.sum() <= 128 and counted.sum() == 256
    assert positive.any() == bool(boxes)
    by_anchor = [array.reshape(9, 4, 25, 38) for array in (targets, inside, outside)]
    np.testing.assert_array_equal(by_anchor[1], np.broadcast_to(positive, (9, 4, 25, 38)))
    np.testing.assert_array_equal(by_anchor[2] > 0, np.broadcast_to(counted, (9, 4, 25, 38)))
    assert np.isfinite(targets).all()


def test_a_second_reshape_and_no_gradient() -> None:
    made = case([[200, 150, 330, 280, 1]])
    made.bottom[0].reshape(1, 18, 20, 30)
    tops = made.forward()
    assert tops[0].shape == (1, 1, 180, 30)
    assert not any(diff.any() for diff in made.backward(*map(np.ones_like, tops)))


def test_the_warning_and_errors() -> None:
    with pytest.warns(PrototxtWarning, match="the fork reads its anchors from a file of settings"):
        case([])
    with pytest.raises(LayerError, match="9 anchors need 18 score channels, got 24"):
        case([], channels=24)
    with pytest.raises(LayerError, match="gt box 0 is no box"):
        case([[9, 9, 8, 20, 1]]).forward()
