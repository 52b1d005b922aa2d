"""The losses and Accuracy on the GPU: the CPU's numbers, whichever of the two ran forward and backward, and nothing copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

import minicaffe
from minicaffe.blob import MemoryState
from minicaffe.cuda.device import current
from minicaffe.cuda.launches import LOSS_THREADS, MOST_BLOCKS

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def cpu_afterwards() -> Iterator[None]:
    yield
    minicaffe.set_mode_cpu()


MODES = {"cpu": minicaffe.set_mode_cpu, "gpu": minicaffe.set_mode_gpu}
IGNORE = "loss_param { ignore_label: -1 }"

LABELLED = {
    'type: "SoftmaxWithLoss"': 1,
    f'type: "SoftmaxWithLoss" {IGNORE}': 2,
    'type: "SoftmaxWithLoss" softmax_param { axis: 2 } loss_param { ignore_label: -1 normalization: FULL }': 2,
    f'type: "SoftmaxWithLossOHEM" loss_weight: 1 loss_weight: 0 loss_weight: 0 {IGNORE}': 3,
    f'type: "InfogainLoss" {IGNORE}': 2,
    'type: "Accuracy"': 1,
    'type: "Accuracy" accuracy_param { axis: 2 ignore_label: -1 top_k: 2 }': 2,
}
"""Layers of scores and labels, and how many tops."""

PAIRED = {
    'type: "EuclideanLoss"': (2, 1),
    'type: "SmoothL1Loss" loss_weight: 1': (2, 1),
    'type: "SmoothL1Loss" loss_weight: 1 smooth_l1_loss_param { sigma: 3 }': (4, 1),
    'type: "SmoothL1LossOHEM" loss_weight: 1 loss_weight: 0': (3, 2),
    'type: "SmoothL1LossOHEM" loss_weight: 1 loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 12.5 }': (2, 1),
    f'type: "SigmoidCrossEntropyLoss" {IGNORE}': (2, 1),
    'type: "SigmoidCrossEntropyLoss" loss_param { ignore_label: -1 normalization: VALID }': (2, 1),
}
"""Layers whose bottoms have one shape: how many bottoms, and tops."""

SHAPES = [(1, 3, 1, 1), (0, 3, 2, 5), (300, 21, 1, 1), (2, 3, 7, 40), (5, 81, 1, 2), (3, 70, 2, 3)]


def bottoms_of(text: str, shape: tuple[int, ...], seed: int) -> tuple[list[np.ndarray], int]:
    """Random bottoms of a layer of the two tables, and how many tops it has."""
    rng = np.random.default_rng(seed)
    if text in PAIRED:
        count, tops = PAIRED[text]
        bottoms = [rng.normal(size=shape) for _ in range(count)]
        if "Sigmoid" in text:
            bottoms[1] = rng.integers(-1, 2, shape).astype(float)
        return bottoms, tops
    axis = 2 if "axis: 2" in text else 1
    labels = rng.integers(-1 if "ignore" in text else 0, min(shape[axis], 21), np.delete(shape, axis)) if np.prod(shape) else []
    scores = rng.normal(0, 3, shape)
    matrix = [rng.normal(size=(shape[axis], shape[axis]))] if "Infogain" in text else []
    return [scores, np.reshape(labels, np.delete(shape, axis)), *matrix], LABELLED[text]


def run(text: str, bottoms: list[np.ndarray], tops: int, dtype: Any, forward: str, backward: str) -> list[np.ndarray]:
    """Tops and diffs, forward in one mode and backward in another."""
    MODES[forward]()
    case = LayerCase(text, *bottoms, tops=tops, dtype=dtype)
    found = case.forward()
    MODES[backward]()
    return found + (case.backward() if "Accuracy" not in text else [])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("text", [*LABELLED, *PAIRED])
def test_agrees_with_the_cpu(text: str, shape: tuple[int, ...], dtype: type) -> None:
    if "axis: 2" in text:
        shape = (shape[0], shape[2] + 4, shape[1], shape[3])
    bottoms, tops = bottoms_of(text, shape, seed=sum(shape))
    expected = run(text, bottoms, tops, dtype, "cpu", "cpu")
    tolerance = {"rtol": 1e-5, "atol": 1e-7} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-14}
    for modes in (("gpu", "gpu"), ("cpu", "gpu"), ("gpu", "cpu")):
        for got, wanted in zip(run(text, bottoms, tops, dtype, *modes), expected, strict=True):
            np.testing.assert_allclose(got, wanted, **tolerance)


def test_more_positions_than_threads() -> None:
    """Blocks loop over what is beyond the grid."""
    count = LOSS_THREADS * MOST_BLOCKS + 1234
    x, target = np.random.default_rng(0).normal(size=(2, 2, count // 2)).astype(np.float32)
    text = 'type: "EuclideanLoss"'
    cpu, gpu = (run(text, [x, target], 1, np.float32, mode, mode) for mode in MODES)
    for got, wanted in zip(gpu, cpu, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_the_same_bits_on_every_run() -> None:
    for text in [*LABELLED, *PAIRED]:
        bottoms, tops = bottoms_of(text, (30, 9, 5, 4), 1)
        first, second = (run(text, bottoms, tops, np.float32, "gpu", "gpu") for _ in range(2))
        assert [a.tobytes() for a in first] == [a.tobytes() for a in second]


@pytest.mark.parametrize("text", [*LABELLED, *PAIRED])
def test_only_the_loss_comes_back(text: str) -> None:
    bottoms, tops = bottoms_of(text, (4, 5, 6, 7), 3)
    minicaffe.set_mode_gpu()
    case = LayerCase(text, *bottoms, tops=tops, dtype=np.float32)
    case.forward()
    case.backward()
    transfers = current().transfers
    for blob in case.bottom:
        blob.device_data("read")
    transfers.reset()
    case.layer.forward_pass(case.bottom, case.top)
    case.layer.backward_pass(case.top, [True] * len(case.bottom), case.bottom)
    current().current_stream.synchronize()
    assert transfers.to_device <= 4  # the top's diff
    assert transfers.to_host <= 4 + 4  # the loss, and whether a label was wrong
    assert all(blob.data_state is MemoryState.DEVICE for blob in case.top[1:])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, -0.0, 1.0, 2.5, np.nan, np.inf])), max_size=70),
    st.integers(1, 30),
    st.sampled_from([np.float32, np.float64]),
)
def test_hardest_rois(rois: list[tuple[int, float]], per_image: int, dtype: type) -> None:
    """Few different losses: many ties."""
    images, losses = (np.array(column, float) for column in (zip(*rois, strict=True) if rois else ([], [])))
    table = np.column_stack([images, np.zeros((len(images), 4))])
    text = f'type: "BoxAnnotatorOHEM" box_annotator_ohem_param {{ roi_per_img: {per_image} }}'
    found = []
    for mode in MODES.values():
        mode()
        weights = np.arange(3.0 * len(images)).reshape(-1, 3)
        found.append(LayerCase(text, table, losses, np.arange(len(images)), weights, tops=2, dtype=dtype).forward())
    for cpu, gpu in zip(*found, strict=True):
        np.testing.assert_array_equal(gpu, cpu)


def test_hardest_of_many_with_axes_after() -> None:
    rng = np.random.default_rng(5)
    rois, losses = np.zeros((31, 5, 3, 4)), rng.integers(0, 50, (31, 1, 3, 4)).astype(float)
    rois[:, 0] = rng.integers(0, 2, (31, 3, 4))
    weights = rng.random((31, 2, 3, 4))
    text = 'type: "BoxAnnotatorOHEM" box_annotator_ohem_param { roi_per_img: 100 }'
    found = []
    for mode in MODES.values():
        mode()
        found.append(LayerCase(text, rois, losses, losses, weights, tops=2).forward())
    for cpu, gpu in zip(*found, strict=True):
        np.testing.assert_array_equal(gpu, cpu)
    assert (found[1][0] != -1).sum() == 200
