"""Sorting and suppression on the GPU against NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minicaffe
from minicaffe import ops
from minicaffe.blob import Blob
from minicaffe.cuda.device import current
from minicaffe.cuda.proposal import CHUNK, SLAB, Sorting, Suppression
from minicaffe.layers.proposal.nms import nms

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    minicaffe.set_mode_gpu()
    yield
    minicaffe.set_mode_cpu()


def on_gpu(array: np.ndarray) -> Blob:
    blob = Blob(array.shape, array.dtype)
    blob.data[...] = array
    return blob


def read(address: int, count: int, dtype: Any = np.int32) -> np.ndarray:
    array = np.empty(count, dtype)
    current().to_host(array, address)
    return array


def order_of(scores: np.ndarray) -> np.ndarray:
    sorting, blob = Sorting(scores.dtype), on_gpu(scores)
    sorting.put(len(scores), blob.device_data("read"))
    return read(sorting.run()[1], len(scores))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 100, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5 * CHUNK + 77])
def test_as_numpys_stable_sort(count: int, dtype: type) -> None:
    """Few different values: many ties."""
    scores = np.random.default_rng(count).integers(-9, 9, count).astype(dtype)
    np.testing.assert_array_equal(order_of(scores), np.argsort(-scores, kind="stable"))


SPECIAL = [
    0.0,
    -0.0,
    np.nan,
    -np.nan,
    np.inf,
    -np.inf,
    1e-40,
    -1e-40,
    3e38,
    -3e38,
    1.0,
    np.nextafter(np.float32(1), np.float32(2)),
]


@given(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=60), st.sampled_from([np.float32, np.float64]))
def test_special_numbers(values: list[float], dtype: type) -> None:
    scores = np.array(values, dtype)
    np.testing.assert_array_equal(order_of(scores), np.argsort(-scores, kind="stable"))


def test_nothing_and_again() -> None:
    sorting = Sorting(np.float32)
    sorting.put(0, 0)
    sorting.run()
    for count in (70, 5000, 3):
        scores = np.random.default_rng(count).random(count, np.float32)
        blob = on_gpu(scores)
        sorting.put(count, blob.device_data("read"))
        np.testing.assert_array_equal(read(sorting.run()[1], count), np.argsort(-scores, kind="stable"))


def boxes_of(count: int, dtype: Any, spread: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    corner, size = rng.uniform(0, spread, (count, 2)), rng.uniform(5, 60, (count, 2))
    return np.concatenate([corner, corner + size], axis=1).astype(dtype)


def suppressed(suppression: Suppression, boxes: np.ndarray, count: int, threshold: float, limit: int) -> np.ndarray:
    table, number = on_gpu(boxes), on_gpu(np.array([count], np.int32))
    kept = suppression.run(table.device_data("read"), number.device_data("read"), len(boxes), threshold, limit)
    found = suppression.count()
    assert read(kept.count, 1)[0] == found
    return read(kept.places, found)


def expected(boxes: np.ndarray, threshold: float, limit: int) -> np.ndarray:
    ranked = np.column_stack([boxes, -np.arange(len(boxes))]).astype(boxes.dtype)
    return nms(ranked, threshold, limit)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("limit", [0, 1, 64, 300])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 700, SLAB + 130])
def test_keeps_what_the_cpu_keeps(count: int, limit: int, dtype: type) -> None:
    boxes = boxes_of(count + 9, dtype, 300)
    for threshold in (0.3, 0.7):
        kept = suppressed(Suppression(dtype), boxes, count, threshold, limit)
        np.testing.assert_array_equal(kept, expected(boxes[:count], threshold, limit))


@pytest.mark.parametrize("limit", [0, 2500])
def test_many_boxes_and_many_kept(limit: int) -> None:
    boxes = boxes_of(3 * SLAB + 5, np.float32, 3000)
    suppression = Suppression(np.float32)
    for _ in range(2):
        kept = suppressed(suppression, boxes, len(boxes), 0.3, limit)
        np.testing.assert_array_equal(kept, expected(boxes, 0.3, limit))
    assert len(kept) > SLAB


@pytest.mark.gpu_barrier
def test_the_second_slab_is_cleared_by_the_first() -> None:
    boxes = boxes_of(SLAB + 130, np.float32, 60)
    np.testing.assert_array_equal(suppressed(Suppression(np.float32), boxes, len(boxes), 0.3, 0), expected(boxes, 0.3, 0))


@pytest.mark.gpu_barrier
def test_equal_boxes_nan_and_no_area() -> None:
    boxes = np.tile(np.float32([[1, 2, 9, 8]]), (9, 1))
    boxes[[2, 5]] = np.nan
    boxes[[3, 4]] = [[5, 5, 4, 4], [5, 5, 2, 1]]
    for threshold in (0.0, 0.5, 1.0, -0.5):
        kept = suppressed(Suppression(np.float32), boxes, 9, threshold, 0)
        np.testing.assert_array_equal(kept, expected(boxes, threshold, 0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("limit", [0, 50])
def test_the_op(limit: int, dtype: type) -> None:
    """Unsorted, with equal scores and NaN."""
    boxes = boxes_of(2 * SLAB + 9, dtype, 900)
    scores = np.random.default_rng(1).integers(0, 99, len(boxes)) / 99
    scores[:5] = np.nan
    dets = np.column_stack([boxes, scores]).astype(dtype)
    current().transfers.reset()
    found = ops.nms(dets, 0.4, limit)
    assert current().transfers.to_device == dets.nbytes + 4
    minicaffe.set_mode_cpu()
    np.testing.assert_array_equal(found, ops.nms(dets, 0.4, limit))
    assert found.dtype == np.intp
