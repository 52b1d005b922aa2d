"""SSD's boxes: overlaps, codes, suppression."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ssd_reference import made_boxes, plain_nms

from minicaffe.compiled.box_codes import decode_all
from minicaffe.layers.ssd.box_codes import (
    CENTER_SIZE,
    CORNER,
    CORNER_SIZE,
    Priors,
    box_areas,
    decode,
    encode,
    jaccard,
    nms,
)

CODES = [CORNER, CENTER_SIZE, CORNER_SIZE]
FLOATS = [np.float32, np.float64]


def test_areas_and_overlaps_by_hand() -> None:
    boxes = np.array([[0, 0, 0.5, 0.5], [0.25, 0, 0.75, 0.5], [0.5, 0.5, 1, 1], [0.4, 0.4, 0.3, 0.6]])
    np.testing.assert_allclose(box_areas(boxes), [0.25, 0.25, 0.25, 0])
    np.testing.assert_allclose(jaccard(boxes, boxes[:1])[:, 0], [1, 1 / 3, 0, 0])


def test_codes_by_hand() -> None:
    """A prior of 0.2 x 0.4 at centre (0.3, 0.4), a box of 0.2 x 0.4 * e at centre (0.4, 0.4), variances 0.1 and 0.2."""
    priors = Priors(np.array([[0.2, 0.2, 0.4, 0.6]]), np.array([[0.1, 0.1, 0.2, 0.2]]))
    half = 0.2 * np.e
    box = np.array([[0.3, 0.4 - half, 0.5, 0.4 + half]])
    np.testing.assert_allclose(encode(box, priors, CENTER_SIZE), [[5, 0, 0, 5]], atol=1e-12)
    np.testing.assert_allclose(encode(box, priors, CENTER_SIZE, True), [[0.5, 0, 0, 1]], atol=1e-12)
    np.testing.assert_allclose(encode(box, priors, CORNER)[0, [0, 2]], [1, 0.5])
    np.testing.assert_allclose(encode(box, priors, CORNER_SIZE)[0, [0, 2]], [5, 2.5])
    np.testing.assert_allclose(encode(box, priors, CORNER, True)[0, [0, 2]], [0.1, 0.1])


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("in_target", [False, True])
@given(seed=st.integers(0, 99))
def test_decode_undoes_encode(code: int, in_target: bool, seed: int) -> None:
    priors = Priors(made_boxes(7, seed), np.random.default_rng(seed).uniform(0.1, 0.5, (7, 4)))
    boxes = made_boxes(7, seed + 100)
    np.testing.assert_allclose(decode(encode(boxes, priors, code, in_target), priors, code, in_target), boxes, rtol=1e-9)


@given(st.integers(0, 40), st.floats(0, 1), st.sampled_from([None, 0, 3]), st.sampled_from([1.0, 0.8]), st.integers(0, 99))
def test_nms_as_plain_loops(count: int, overlap: float, top_k: int | None, eta: float, seed: int) -> None:
    boxes, scores = made_boxes(count, seed), np.random.default_rng(seed).integers(0, 9, count) / 8
    options = {"least": 0.2, "top_k": top_k, "eta": eta}
    assert nms(boxes, scores, overlap, **options).tolist() == plain_nms(boxes, scores, overlap, **options)


def test_boxes_without_bounds_are_no_warning() -> None:
    boxes = np.array([[-np.inf, 0, np.inf, 1], [0, 0, 1, 1], [np.nan, 0, 1, 1]])
    assert nms(boxes, np.array([0.9, 0.8, 0.7]), 0.5).tolist() == [0, 1, 2]


@pytest.mark.parametrize("code", CODES)
@given(
    seed=st.integers(0, 99), in_target=st.booleans(), sets=st.integers(1, 3), dtype=st.sampled_from([np.float32, np.float64])
)
def test_all_codes_at_once_and_areas(code: int, seed: int, in_target: bool, sets: int, dtype: type) -> None:
    random = np.random.default_rng(seed)
    priors = np.stack([made_boxes(7, seed), random.uniform(0.1, 0.5, (7, 4))]).astype(dtype)
    codes = random.standard_normal((7, sets, 4)).astype(dtype)
    boxes, areas = np.empty((sets, 7, 4), dtype), np.empty((sets, 7), dtype)
    assert decode_all(codes, priors, code, in_target, boxes, areas) == 7
    wanted = decode(codes.swapaxes(0, 1), Priors(*priors), code, in_target)
    np.testing.assert_allclose(boxes, wanted, rtol=1e-5, atol=1e-6)
    if code == CENTER_SIZE and np.lib.NumpyVersion(np.__version__) < "2.0.0":  # there a float32 and a float give a float64
        np.testing.assert_allclose(areas, box_areas(boxes), rtol=1e-5, atol=1e-7)
    else:
        np.testing.assert_array_equal(areas, box_areas(boxes))
    priors[0, 3:5, 2] = priors[0, 3:5, 0]  # two priors without an area
    assert decode_all(codes, priors, code, in_target, boxes, areas) == (7 if code == CORNER else 3)
    codes[5, sets - 1, 0] = np.nan
    assert decode_all(codes, priors, code, in_target, boxes, areas) == (-1 if code == CORNER else 3)
