from __future__ import annotations

import numpy as np
import pytest
from detection_case import python_layer
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.proposal import anchors
from minicaffe.layers.proposal.anchors import by_channel, by_position
from minicaffe.ops import generate_anchors, shifted_anchors

STANDARD = [
    [-84, -40, 99, 55],
    [-176, -88, 191, 103],
    [-360, -184, 375, 199],
    [-56, -56, 71, 71],
    [-120, -120, 135, 135],
    [-248, -248, 263, 263],
    [-36, -80, 51, 95],
    [-80, -168, 95, 183],
    [-168, -344, 183, 359],
]
"""The nine anchors in the comment of py-faster-rcnn's generate_anchors.py, less 1: it counts from (1, 1)."""


def test_the_nine_anchors() -> None:
    np.testing.assert_array_equal(generate_anchors(), STANDARD)


def test_four_scales_of_coco() -> None:
    got = generate_anchors(scales=(4, 8, 16, 32))
    assert got.shape == (12, 4)
    np.testing.assert_array_equal(got.reshape(3, 4, 4)[:, 1:].reshape(9, 4), STANDARD)
    np.testing.assert_array_equal(got[0], [-38, -16, 53, 31])


def test_halves_round_to_even() -> None:
    """Base 5, ratio 1: width 5; ratio 0.5: width round(7.07) = 7, height round(3.5) = 4, not 3."""
    np.testing.assert_array_equal(generate_anchors(5, (0.5,), (1,)), [[2 - 3, 2 - 1.5, 2 + 3, 2 + 1.5]])


def test_shifts_run_anchor_column_row() -> None:
    base = np.array([[0, 0, 1, 1], [-2, -3, 4, 5]])
    got = shifted_anchors(base, 2, 3, 10)
    assert got.shape == (12, 4)
    expected = [a + np.array([10 * x, 10 * y, 10 * x, 10 * y]) for y in range(2) for x in range(3) for a in base]
    np.testing.assert_array_equal(got, expected)


def test_positions_and_channels_are_inverse() -> None:
    x = np.arange(1 * 8 * 3 * 5).reshape(1, 8, 3, 5)
    by_row = by_position(x, 4)
    assert by_row.shape == (3 * 5 * 2, 4)
    np.testing.assert_array_equal(by_row[1], x[0, 4:8, 0, 0])
    np.testing.assert_array_equal(by_row[2], x[0, 0:4, 0, 1])
    np.testing.assert_array_equal(by_channel(by_row, 3, 5), x[0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"param_str must give 'feat_stride', got \{\}"),
        ({"feat_stride": 0}, "feat_stride must be a whole number > 0, got 0"),
        ({"feat_stride": 1.5}, "feat_stride must be a whole number > 0, got 1.5"),
        ({"feat_stride": 16, "scales": "[]"}, r"scales must be a list of numbers > 0, got \[\]"),
        ({"feat_stride": 16, "scales": "[8, -1]"}, r"scales must be a list of numbers > 0, got \[8, -1\]"),
        ({"feat_stride": 16, "ratios": 3}, "ratios must be a list of numbers > 0, got 3"),
    ],
)
def test_errors(values: dict[str, object], message: str) -> None:
    with pytest.raises(LayerError, match=f'Proposal layer "layer": .*{message}'):
        LayerCase(python_layer("Proposal", **values), np.zeros((1, 18, 2, 3)), np.zeros((1, 36, 2, 3)), np.zeros((1, 3)))


def test_too_many_anchors_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "generate_anchors", None)
    text = python_layer("Proposal", feat_stride=16, scales=[4] * 101, ratios=[1] * 100)
    with pytest.raises(LayerError, match="param_str: 101 scales and 100 ratios are 10,100 anchors; at most 10,000"):
        LayerCase(text, np.zeros((1, 18, 2, 3)), np.zeros((1, 36, 2, 3)), np.zeros((1, 3)))
