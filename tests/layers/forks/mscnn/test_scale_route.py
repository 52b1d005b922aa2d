"""ScaleRoute."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

ROIS = np.array([[0, 0, 0, 9, 9], [1, 5, 5, 24, 44], [0, 3, 3, 42, 42], [0, 7, 7, 6, 9]], float)
"""Of sizes 10, sqrt(20 * 40) = 28.3, 40 and none."""


def text(inside: str) -> str:
    return f'type: "ScaleRoute" scale_route_param {{ {inside} }}'


@pytest.mark.parametrize(
    ("inside", "rows"),
    [
        ("", [0, 1, 2, 3]),
        ("low_scale: 10 high_scale: 40", [0, 1]),
        ("low_scale: 40", [2]),
        ("high_scale: 10", [3]),
        ("low_scale: 50 high_scale: 60", [2]),  # none: the nearest to sqrt(50 * 60)
        ("low_scale: 15 high_scale: 20", [1]),  # 28.3 is 0.71 octaves from 17.3, 10 is 0.79
    ],
)
def test_by_hand(inside: str, rows: list[int]) -> None:
    other = np.arange(24.0).reshape(4, 3, 2)
    rois, more = LayerCase(text(inside), ROIS, other, tops=2).forward()
    assert rois.tolist() == ROIS[rows].tolist()
    assert more.tolist() == other[rows].tolist()


@given(st.lists(st.integers(0, 60), min_size=1, max_size=9), st.integers(1, 30))
def test_every_roi_goes_to_one_level(sides: list[int], low: int) -> None:
    rois = np.array([[0, 0, 0, side, side] for side in sides], float)
    levels = (f"high_scale: {low}", f"low_scale: {low} high_scale: {2 * low}", f"low_scale: {2 * low}")
    scales = [LayerCase(text(inside), rois).forward()[0][:, 3] + 1 for inside in levels]
    bounds = [(0, low), (low, 2 * low), (2 * low, np.inf)]
    assert all(len(found) for found in scales)
    held = [found for found, (least, most) in zip(scales, bounds) if ((found >= least) & (found < most)).all()]
    assert sum(map(len, held)) == len(sides)


def test_a_second_reshape_and_no_gradient() -> None:
    case = LayerCase(text("low_scale: 5"), ROIS)
    case.bottom[0].reshape(2, 5, 1, 1)
    case.bottom[0].data[...] = ROIS[:2].reshape(2, 5, 1, 1)
    assert case.forward()[0].shape == (2, 5, 1, 1)
    assert not case.backward(np.ones((2, 5, 1, 1)))[0].any()


@pytest.mark.parametrize(
    ("inside", "bottoms", "tops", "message"),
    [
        ("", [ROIS, ROIS], 1, "takes a top for each bottom, got 2 bottoms and 1 tops"),
        ("low_scale: 0", [ROIS], 1, "scales must be 0 < low_scale <= high_scale, got 0 and inf"),
        ("low_scale: 9 high_scale: 8", [ROIS], 1, "scales must be 0 < low_scale <= high_scale, got 9 and 8"),
        ("", [ROIS[:, :4]], 1, r"the rois must be \(R, 5\): image, x1, y1, x2, y2; got shape \(4, 4\)"),
        ("", [ROIS, ROIS[:3]], 2, "bottoms 0 and 1 have 4 rois and 3 rows"),
        ("low_scale: 4", [ROIS[3:]], 1, "no roi has an area"),
    ],
)
def test_errors(inside: str, bottoms: list[np.ndarray], tops: int, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(inside), *bottoms, tops=tops).forward()
