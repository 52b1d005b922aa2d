"""The averaging ROI layers on any number of threads, and how their memory grows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
from layer_case import LayerCase
from numpy.typing import NDArray
from peak import traced_peak
from roi_cases import some_rois

from minicaffe import kernels, ops, set_num_threads
from minicaffe.kernels import loops_of

Call = Callable[..., NDArray]
FORWARD: dict[str, Call] = {
    "pool": lambda x, rois: ops.ps_roi_pool(x, rois, 3, 0.5),
    "align": lambda x, rois: ops.ps_roi_align(x, rois, 3, 0.5),
    "mean": lambda x, rois: ops.roi_align(x, rois, 3, 3, 0.5, sampling_ratio=2),
}
BACKWARD: dict[str, Call] = {
    "pool": lambda dy, rois, shape: ops.ps_roi_pool_backward(dy, rois, 0.5, shape),
    "align": lambda dy, rois, shape: ops.ps_roi_align_backward(dy, rois, 0.5, shape),
    "mean": lambda dy, rois, shape: ops.roi_align_backward(dy, rois, 0.5, shape, sampling_ratio=2),
}
TEXT = {
    "ROIPooling": "type: 'ROIPooling' roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 }",
    "ROIAlign": "type: 'ROIAlign' roi_align_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 sampling_ratio: 2 }",
    "ROIWarping": "type: 'ROIWarping' roi_warping_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 }",
    "PSROIPooling": "type: 'PSROIPooling' psroi_pooling_param { spatial_scale: 0.5 output_dim: 4 group_size: 3 }",
    "PSROIAlign": "type: 'PSROIAlign' psroi_align_param { spatial_scale: 0.5 output_dim: 4 group_size: 3 }",
}


def both_ways(kind: str, x: NDArray, rois: NDArray) -> tuple[NDArray, NDArray]:
    y = FORWARD[kind](x, rois)
    dy = np.random.default_rng(5).standard_normal(y.shape).astype(x.dtype)
    return y, BACKWARD[kind](dy, rois, x.shape)


@pytest.mark.parametrize("kind", FORWARD)
def test_threads_change_nothing_but_rounding(kind: str) -> None:
    """A bin's and a pixel's sums have an order of their own in the position-sensitive layers: the same bits."""
    x = np.random.default_rng(4).standard_normal((2, 9 * 11, 7, 8)).astype(np.float32)
    rois = some_rois().astype(np.float32)
    set_num_threads(1)
    y, dx = both_ways(kind, x, rois)
    for count in (2, 5):
        set_num_threads(count)
        for ours, expected in zip(both_ways(kind, x, rois), (y, dx)):
            if kind == "mean":
                np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(ours, expected)
        for again, ours in zip(both_ways(kind, x, rois), both_ways(kind, x, rois)):
            np.testing.assert_array_equal(again, ours)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORWARD)
def test_memory_does_not_grow_with_rois_times_pixels(kind: str) -> None:
    """400 rois over the whole of a map of 96 x 128: a list of all pixels that they read would have 4.9 million.

    On one thread: each has working memory of its own.
    """
    set_num_threads(1)
    x = np.zeros((1, 9, 96, 128), np.float32)
    rois = np.tile(np.array([0, 0, 0, 255, 191], np.float32), (400, 1))
    assert traced_peak(lambda: both_ways(kind, x, rois)) < 2**24


@pytest.mark.parametrize("kind", FORWARD)
def test_no_rois(kind: str) -> None:
    y, dx = both_ways(kind, np.ones((2, 9, 4, 5), np.float32), np.zeros((0, 5), np.float32))
    assert y.shape[0] == 0 and dx.shape == (2, 9, 4, 5) and not dx.any()


@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("shape", [(1, 0, 4, 5), (1, 9, 0, 5), (1, 9, 4, 0)])
def test_an_empty_map(kind: str, shape: tuple[int, ...]) -> None:
    y, dx = both_ways(kind, np.ones(shape, np.float32), np.array([[0, 0, 0, 3, 3]], np.float32))
    assert y.shape[:2] == (1, shape[1] if kind == "mean" else shape[1] // 9) and not y.any() and dx.shape == shape


@pytest.mark.slow
@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize("kind", FORWARD)
def test_arrays_that_cannot_be_written_are_pooled_too(kind: str) -> None:
    """A compiled loop is made for each: read-only arrays and others give the same bits."""
    x, rois = np.random.default_rng(4).standard_normal((2, 18, 7, 8)).astype(np.float32), some_rois().astype(np.float32)
    expected = both_ways(kind, x, rois)
    dy = np.random.default_rng(5).standard_normal(expected[0].shape).astype(np.float32)
    for array in (x, rois, dy):
        array.flags.writeable = False
    assert FORWARD[kind](x, rois).tobytes() == expected[0].tobytes()
    assert BACKWARD[kind](dy, rois, x.shape).tobytes() == expected[1].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORWARD)
def test_compiled_loops_give_the_bits_of_one_thread_on_any(kind: str) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    x, rois = np.random.default_rng(4).standard_normal((2, 99, 7, 8)).astype(np.float32), some_rois().astype(np.float32)
    with kernels.using("numba"):
        set_num_threads(1)
        expected = [array.tobytes() for array in both_ways(kind, x, rois)]
        for count in (2, 3, 8):
            set_num_threads(count)
            assert [array.tobytes() for array in both_ways(kind, x, rois)] == expected


@pytest.mark.parametrize("name", ["ROIPooling", "ROIAlign", "ROIWarping", "PSROIPooling", "PSROIAlign"])
def test_no_loop_is_compiled_but_those_that_a_layer_names(name: str) -> None:
    """A second variant, of an array that is read-only or not contiguous, would be compiled during a pass."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    x, rois = np.random.default_rng(4).standard_normal((2, 36, 7, 8)), some_rois()
    with kernels.using("numba"):
        case = LayerCase(TEXT[name], x, rois, dtype=np.float32)
        named = [*chain(*loops_of(case.layer))]
        for one in named:
            one.compile(np.float32)
        before = [len(one.dispatcher().signatures) for one in named]
        case.backward(np.ones(case.forward()[0].shape))
        assert named and [len(one.dispatcher().signatures) for one in named] == before
