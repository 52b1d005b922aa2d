"""CTCLoss and CtcLoss."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.recurrent.ctc import best_path

pytestmark = pytest.mark.usefixtures("device")


def chwick(x: Any, lengths: list[int], labels: list[list[int]], more: str = "") -> LayerCase:
    steps, sequences = np.shape(x)[:2]
    indicators, padded = np.zeros((steps, sequences)), np.full((steps, sequences), -1.0)
    for n, (length, row) in enumerate(zip(lengths, labels, strict=True)):
        indicators[1:length, n] = 1
        padded[: len(row), n] = row
    return LayerCase(f'type: "CTCLoss" loss_weight: 1 ctc_loss_param {{ {more} }}', x, indicators, padded)


def warp(x: Any, labels: Any, more: str = "") -> LayerCase:
    steps, _, classes = np.shape(x)
    return LayerCase(f'type: "CtcLoss" ctc_loss_param {{ alphabet_size: {classes} time_step: {steps} {more} }}', x, labels)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def by_all_ways(x: np.ndarray, labels: list[int], blank: int, merge: bool = True) -> float:
    """-log of the sum over all C^T ways that spell the labels."""
    y = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    ways = itertools.product(range(x.shape[1]), repeat=len(x))
    total = sum(math.prod(y[t, c] for t, c in enumerate(way)) for way in ways if best_path(way, blank, merge) == labels)
    return -math.log(total)


def test_by_hand() -> None:
    """Two steps, classes a and blank, all equally likely: aa, a_ and _a of four ways spell a."""
    case = chwick(np.zeros((2, 1, 2)), [2], [[0]])
    assert case.forward()[0] == pytest.approx(-math.log(3 / 4))
    dx, indicators, labels = case.backward()
    np.testing.assert_allclose(dx[:, 0], [[0.5 - 2 / 3, 0.5 - 1 / 3]] * 2)
    assert not indicators.any()
    assert not labels.any()
    case = warp(np.zeros((2, 1, 2)), [[1.0, 0.0]])
    assert case.forward()[0] == pytest.approx(-math.log(3 / 4))
    np.testing.assert_allclose(case.backward()[0][:, 0], [[0.5 - 1 / 3, 0.5 - 2 / 3]] * 2)


@given(st.integers(1, 5), st.lists(st.integers(0, 1), min_size=1, max_size=3), st.booleans(), st.integers(0, 99))
def test_as_the_sum_over_all_ways(steps: int, labels: list[int], merge: bool, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(steps, 1, 3))
    if len(labels) + merge * sum(a == b for a, b in itertools.pairwise(labels)) > steps:
        labels = labels[:1]
    case = chwick(x, [steps], [labels], f"ctc_merge_repeated: {str(merge).lower()}")
    assert case.forward()[0] == pytest.approx(by_all_ways(x[:, 0], labels, 2, merge))


def test_equal_neighbours_are_merged_first_if_asked_for() -> None:
    x = normal(5, 1, 3)
    collapsed = chwick(x, [5], [[0, 0, 1]], "preprocess_collapse_repeated: true").forward()[0]
    assert collapsed == pytest.approx(by_all_ways(x[:, 0], [0, 1], 2))
    assert chwick(x, [5], [[0, 0, 1]]).forward()[0] == pytest.approx(by_all_ways(x[:, 0], [0, 0, 1], 2))


def test_the_mean_over_sequences_of_their_own_lengths() -> None:
    x = normal(4, 3, 3)
    case = chwick(x, [4, 2, 1], [[1, 2], [2], []], "blank_index: 0")
    losses = [by_all_ways(x[:4, 0], [1, 2], 0), by_all_ways(x[:2, 1], [2], 0), 0.0]
    assert case.forward()[0] == pytest.approx(sum(losses) / 3)
    dx = case.backward()[0]
    assert not dx[2:, 1].any()
    assert not dx[:, 2].any()


def test_output_delay_and_time_step_leave_steps_out() -> None:
    x = normal(4, 1, 3)
    assert chwick(x, [4], [[1]], "output_delay: 2").forward()[0] == pytest.approx(by_all_ways(x[2:, 0], [1], 2))
    case = LayerCase('type: "CtcLoss" ctc_loss_param { alphabet_size: 3 time_step: 3 }', x, [[1.0]])
    assert case.forward()[0] == pytest.approx(by_all_ways(x[:3, 0], [1], 0))
    assert not case.backward()[0][3].any()


def test_huge_scores_do_not_overflow() -> None:
    case = warp(np.array([[[1000.0, -1000.0]], [[-1000.0, 1000.0]]]), [[1.0]])
    assert case.forward()[0] == pytest.approx(0)
    assert np.isfinite(case.backward()[0]).all()


@pytest.mark.parametrize("more", ["", "ctc_merge_repeated: false", "output_delay: 1 blank_index: 3"])
def test_gradient(more: str) -> None:
    chwick(normal(6, 2, 4), [6, 5], [[1, 1, 2], [0, 2]], more).check_gradient()


def test_gradient_of_warp_ctc_s() -> None:
    warp(normal(6, 3, 4), [[1, 1, 2], [3, 0, 0], [0, 0, 0]]).check_gradient()
    warp(normal(6, 2, 4), [[1, 2], [3, 2]], "blank_label: 3").check_gradient()


def test_without_a_loss_weight() -> None:
    assert LayerCase('type: "CTCLoss"', normal(2, 1, 3), np.ones((2, 1)), np.zeros((2, 1)) - 1).layer.loss_weights == [0]
    assert warp(normal(2, 1, 3), [[1.0]]).layer.loss_weights == [1]


def test_a_second_reshape() -> None:
    case = warp(normal(4, 2, 3), [[1.0], [2.0]])
    x = normal(4, 3, 3)
    case.bottom[0].reshape(4, 3, 3, 1)
    case.bottom[0].data[..., 0] = x
    case.bottom[1].reshape(3, 2)
    case.bottom[1].data[...] = [[1, 2], [2, 0], [0, 0]]
    losses = [by_all_ways(x[:, n], labels, 0) for n, labels in enumerate([[1, 2], [2], []])]
    assert case.forward()[0] == pytest.approx(np.mean(losses))
    assert case.backward()[0].shape == (4, 3, 3, 1)


def test_no_sequence_is_a_loss_of_0() -> None:
    for case in (chwick(np.zeros((4, 0, 3)), [], []), warp(np.zeros((4, 0, 3)), np.zeros((0, 2)))):
        assert case.forward()[0] == 0
        assert case.backward()[0].shape == (4, 0, 3)


@pytest.mark.parametrize(
    ("lengths", "labels", "more", "message"),
    [
        ([2], [[0, 1, 0]], "", "sequence 0: 3 labels do not fit its 2 time steps"),
        ([3], [[0, 0, 1]], "", "sequence 0: 3 labels and 1 blanks between equal ones do not fit its 3 time steps"),
        ([3], [[0, 1]], "output_delay: 2", "sequence 0: 2 labels do not fit its 1 time steps"),
        ([3], [[0]], "output_delay: 5", "sequence 0: 1 labels do not fit its 0 time steps"),
        ([3], [[0]], "output_delay: -1", "output_delay must be >= 0, got -1"),
        ([3], [[3]], "", "sequence 0: label 3 is not one of the 3 classes"),
        ([3], [[2]], "", "sequence 0 has the blank, 2, as a label"),
        ([3], [[]], "", "sequence 0 of 3 time steps has no labels"),
        ([3], [[1]], "blank_index: 3", "the blank must be one of the 3 classes, 0 to 2, got 3"),
    ],
)
def test_errors(lengths: list[int], labels: list[list[int]], more: str, message: str) -> None:
    with pytest.raises(LayerError, match='CTCLoss layer "layer": ' + message):
        chwick(np.zeros((3, 1, 3)), lengths, labels, more).forward()


@pytest.mark.parametrize(
    ("scores", "labels", "text", "message"),
    [
        ((3, 1, 3), [[1, 1]] * 2, "alphabet_size: 3 time_step: 3", r"the labels must be \(1, L\), got shape \(2, 2\)"),
        ((3, 1, 3), [[1, 1]], "alphabet_size: 4 time_step: 3", "alphabet_size must be the scores' 3 classes, got 4"),
        ((3, 1, 3), [[1, 1]], "alphabet_size: 3 time_step: 4", "time_step must be 1 to 3, the scores' first axis, got 4"),
        ((3, 1, 3), [[1, 2]], "alphabet_size: 3 time_step: 1", "sequence 0: 2 labels do not fit its 1 time steps"),
        ((3, 1, 3), [[0.5]], "alphabet_size: 3 time_step: 3", "sequence 0: label 0.5 is not one of the 3 classes"),
        ((3, 3), [[1, 1]], "alphabet_size: 3 time_step: 3", r"the scores must be \(T, N, C\), got shape \(3, 3\)"),
    ],
)
def test_errors_of_warp_ctc_s(scores: tuple[int, ...], labels: Any, text: str, message: str) -> None:
    with pytest.raises(LayerError, match='CtcLoss layer "layer": ' + message):
        LayerCase(f'type: "CtcLoss" ctc_loss_param {{ {text} }}', np.zeros(scores), labels).forward()


def test_bottoms_that_do_not_match() -> None:
    with pytest.raises(LayerError, match=r"the labels must be \(T, N\) as the scores, \(3, 2\), got shape \(2, 3\)"):
        LayerCase('type: "CTCLoss"', np.zeros((3, 2, 4)), np.zeros((3, 2)), np.zeros((2, 3)))
