from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minicaffe.blob import Blob
from minicaffe.data.boxes import box_area, large_enough, rows
from minicaffe.ops import bbox_overlaps, bbox_transform, bbox_transform_inv, clip_boxes


@st.composite
def boxes(draw: st.DrawFn, least: int = 0) -> np.ndarray:
    n = draw(st.integers(least, 7))
    corner = draw(arrays(np.float64, (n, 2), elements=st.integers(0, 60)))
    size = draw(arrays(np.float64, (n, 2), elements=st.integers(0, 40)))
    return np.concatenate([corner, corner + size], axis=1)


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """One pair, by counting as the originals' loop does."""
    width = min(a[2], b[2]) - max(a[0], b[0]) + 1
    height = min(a[3], b[3]) - max(a[1], b[1]) + 1
    if width <= 0 or height <= 0:
        return 0.0
    area = [(c[2] - c[0] + 1) * (c[3] - c[1] + 1) for c in (a, b)]
    return width * height / (area[0] + area[1] - width * height)


def test_overlaps_by_hand() -> None:
    """4 x 3 and 4 x 3 boxes, moved by 2 columns and 1 row: they share 2 x 2 of 12 + 12 - 4 pixels."""
    got = bbox_overlaps(np.array([[0, 0, 3, 2], [9, 9, 9, 9]]), np.array([[2, 1, 5, 3], [0, 0, 3, 2], [4, 0, 5, 2]]))
    np.testing.assert_array_equal(got, [[4 / 20, 1, 0], [0, 0, 0]])
    assert got.dtype == np.float64


@given(boxes(), boxes())
def test_overlaps_agree_with_a_plain_loop(a: np.ndarray, b: np.ndarray) -> None:
    got = bbox_overlaps(a, b)
    assert got.shape == (len(a), len(b))
    expected = np.array([[overlap(x, y) for y in b] for x in a]).reshape(got.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_area_counts_both_ends() -> None:
    np.testing.assert_array_equal(box_area(np.array([[0, 0, 0, 0], [1, 2, 3, 5]])), [1, 12])


def test_transform_by_hand() -> None:
    """From 10 x 20 at (0, 0) to 20 x 20 at (5, 10): the centre moves from (5, 10) to (15, 20)."""
    got = bbox_transform(np.array([[0.0, 0, 9, 19]]), np.array([[5.0, 10, 24, 29]]))
    np.testing.assert_allclose(got, [[1.0, 0.5, math.log(2), 0]])


@given(boxes(1), st.data())
def test_transform_there_and_back(a: np.ndarray, data: st.DataObject) -> None:
    """The inverse gives corners half a pixel convention apart: its x2 is the target's x2 + 1, as in the originals."""
    b = a + data.draw(arrays(np.float64, (1, 2), elements=st.integers(-5, 5))).repeat(2, 0).reshape(1, 4)[:, [0, 1, 0, 1]]
    back = bbox_transform_inv(a, bbox_transform(a, b))
    np.testing.assert_allclose(back, b + np.array([0, 0, 1, 1]), atol=1e-9)


def test_inverse_transform_of_several_classes_by_hand() -> None:
    """Class 0 stays (its x2 is then x2 + 1); class 1 moves by half a width and doubles its height."""
    deltas = np.array([[0, 0, 0, 0, 0.5, 0, 0, math.log(2)]], np.float32)
    got = bbox_transform_inv(np.array([[2.0, 4, 11, 7]]), deltas)
    np.testing.assert_allclose(got, [[2, 4, 12, 8, 7, 2, 17, 10]], rtol=1e-6)
    assert got.dtype == np.float32


def test_infinite_sizes_clip_to_the_image() -> None:
    got = clip_boxes(bbox_transform_inv(np.array([[2.0, 4, 11, 7]]), np.full((1, 4), 1e3, np.float32)), (30, 40))
    assert np.isfinite(got).all()


def test_no_boxes() -> None:
    none = np.zeros((0, 4), np.float32)
    assert bbox_overlaps(none, np.zeros((3, 4))).shape == (0, 3)
    assert bbox_overlaps(np.zeros((3, 4)), none).shape == (3, 0)
    assert bbox_transform(none, none).shape == (0, 4)
    assert bbox_transform_inv(none, np.zeros((0, 12), np.float32)).shape == (0, 12)
    assert clip_boxes(np.zeros((0, 8)), (5, 7)).shape == (0, 8)


def test_clip_keeps_its_input() -> None:
    given_boxes = np.array([[-3.0, -2, 50, 60, 1, 2, 3, 4]])
    before = given_boxes.copy()
    np.testing.assert_array_equal(clip_boxes(given_boxes, (30, 40)), [[0, 0, 39, 29, 1, 2, 3, 4]])
    np.testing.assert_array_equal(given_boxes, before)


def test_large_enough_is_inclusive_and_drops_nan() -> None:
    tried = np.array([[0, 0, 15, 15], [0, 0, 14, 15], [0, 0, 15, 14], [0, 0, np.nan, 30]])
    assert large_enough(tried, 16).tolist() == [True, False, False, False]


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 1, 1), (0, 5), (0, 5, 1, 1)])
def test_rows(shape: tuple[int, ...]) -> None:
    assert rows(Blob(shape)).shape == shape[:2]
