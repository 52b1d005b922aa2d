"""EltwiseAccuracy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str = "") -> str:
    return f'type: "EltwiseAccuracy" eltwise_accuracy_param {{ {inside} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    """Three pixels, scores of two classes: the first and the last are right."""
    case = LayerCase(text(), np.array([[2.0, 5, 1], [1, 3, 4]]).reshape(1, 2, 1, 3), np.array([0, 1, 1]).reshape(1, 1, 1, 3))
    np.testing.assert_allclose(case.forward()[0], [[[[2 / 3]]]])
    assert case.top[0].shape == (1, 1, 1, 1)
    assert not any(diff.any() for diff in case.backward(np.ones((1, 1, 1, 1))))


@pytest.mark.parametrize(("top_k", "right"), [(1, [0, 0, 1]), (2, [0, 1, 1]), (3, [1, 1, 1])])
def test_of_equal_scores_the_last_goes_first(top_k: int, right: list[int]) -> None:
    for label, expected in enumerate(right):
        case = LayerCase(text(f"top_k: {top_k}"), np.zeros((1, 3, 1, 1)), np.full((1, 1, 1, 1), label))
        assert case.forward()[0].item() == expected


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_against_sorting_each_pixel(top_k: int) -> None:
    """Whole scores, so that many are equal; each pixel's (score, class) sorted from the highest."""
    x, rng = np.round(normal(2, 5, 3, 7)), np.random.default_rng(0)
    labels = rng.choice([0, 1, 2, 3, 4, 255], (2, 1, 3, 7))
    right = []
    for n, h, w in np.argwhere(labels[:, 0] != 255):
        order = sorted(((x[n, c, h, w], c) for c in range(5)), reverse=True)[:top_k]
        right.append(labels[n, 0, h, w] in [c for _, c in order])
    case = LayerCase(text(f"top_k: {top_k} ignore_label: 255"), x, labels)
    np.testing.assert_allclose(case.forward()[0].item(), np.mean(right))


@given(st.integers(0, 10**6))
def test_more_tries_are_right_more_often_and_pixels_have_no_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, labels, order = rng.integers(0, 4, (2, 5, 12)).astype(float), rng.integers(0, 5, (2, 1, 12)), rng.permutation(12)
    found = [LayerCase(text(f"top_k: {k}"), x, labels).forward()[0].item() for k in range(1, 6)]
    assert (np.diff(found) >= 0).all() and found[-1] == 1
    assert LayerCase(text("top_k: 2"), x[..., order], labels[..., order]).forward()[0].item() == found[1]


def test_every_pixel_ignored() -> None:
    assert LayerCase(text("ignore_label: 1"), normal(1, 3, 2, 4), np.ones((1, 1, 2, 4))).forward()[0].item() == 0


@pytest.mark.parametrize(
    ("inside", "labels", "message"),
    [
        ("top_k: 4", np.zeros((2, 1, 4, 5)), "top_k must be at most the 3 classes, got 4"),
        ("", np.zeros((2, 1, 4, 6)), r"need 40 labels .* got 48"),
        ("", np.full((2, 1, 4, 5), 3), "3"),
    ],
)
def test_errors(inside: str, labels: np.ndarray, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(inside), normal(2, 3, 4, 5), labels).forward()
