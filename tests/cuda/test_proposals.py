"""Proposal on the GPU: the CPU's boxes, and nothing but their number comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from detection_case import python_layer, settings
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

import minicaffe
from minicaffe.blob import MemoryState
from minicaffe.cuda.device import current
from minicaffe.mode import TRAIN

pytestmark = pytest.mark.gpu

NINE = python_layer("Proposal", feat_stride=16)


@pytest.fixture(autouse=True)
def cpu_afterwards() -> Iterator[None]:
    yield
    minicaffe.set_mode_cpu()


def maps(seed: int, height: int, width: int, sizes: float = 0.0) -> list[np.ndarray]:
    """Scores with many ties and some NaN, and deltas; without sizes their exp is 1 everywhere."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 40, (1, 18, height, width)) / 40
    scores[rng.random(scores.shape) < 0.02] = np.nan
    deltas = rng.normal(0, 0.3, (1, 9, 4, height, width))
    deltas[:, :, 2:] *= sizes
    return [scores, deltas.reshape(1, 36, height, width), np.array([[16.0 * height - 5, 16.0 * width - 3, 1.6]])]


def both(bottoms: list[np.ndarray], dtype: Any, **limits: Any) -> list[list[np.ndarray]]:
    """The tops on the CPU, and on the GPU."""
    found = []
    with settings(**{f"train_rpn_{name}": value for name, value in limits.items()}):
        for mode in (minicaffe.set_mode_cpu, minicaffe.set_mode_gpu):
            mode()
            found.append(LayerCase(NINE, *bottoms, tops=2, dtype=dtype, phase=TRAIN).forward())
    return found


@given(
    st.integers(0, 10**6),
    st.integers(1, 20),
    st.integers(1, 23),
    st.sampled_from([0, 1, 50, 2000]),
    st.sampled_from([0, 1, 30, 300]),
    st.sampled_from([np.float32, np.float64]),
)
def test_the_same_bits(seed: int, height: int, width: int, before: int, after: int, dtype: type) -> None:
    cpu, gpu = both(maps(seed, height, width), dtype, pre_nms_top_n=before, post_nms_top_n=after, min_size=40)
    for one, other in zip(cpu, gpu, strict=True):
        np.testing.assert_array_equal(other, one)


def test_normalised_deltas() -> None:
    given = {"normalize_targets": True, "normalize_means": (0.1, 0, 0, 0), "normalize_stds": (0.1, 0.1, 0.2, 0.2)}
    cpu, gpu = both(maps(1, 9, 7), np.float32, **given)
    np.testing.assert_array_equal(gpu[0], cpu[0])


def test_sizes_change_by_what_exp_rounds() -> None:
    """No suppression: where two boxes overlap by the threshold, a last bit would decide."""
    cpu, gpu = both(maps(2, 17, 22, sizes=1.0), np.float32, nms_thresh=1.0, pre_nms_top_n=0, post_nms_top_n=0)
    np.testing.assert_allclose(gpu[0], cpu[0], rtol=1e-6, atol=1e-4)
    np.testing.assert_array_equal(gpu[1], cpu[1])
    assert len(gpu[0]) > 2048


def test_only_the_number_comes_back() -> None:
    minicaffe.set_mode_gpu()
    with settings():
        case = LayerCase(NINE, *maps(3, 20, 30), tops=2, dtype=np.float32)
    case.forward()
    for blob in case.bottom:
        blob.device_data("read")
    transfers = current().transfers
    transfers.reset()
    case.layer.forward_pass(case.bottom, case.top)
    assert transfers.to_device == 0
    assert transfers.to_host == 8 + 4  # two ints of the suppression, and whether im_info was wrong
    assert all(blob.data_state is MemoryState.DEVICE for blob in case.top)
    assert case.top[0].shape == (len(case.top[1].read_data()), 5)
