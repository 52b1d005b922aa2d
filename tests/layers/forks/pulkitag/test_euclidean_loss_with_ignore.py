"""EuclideanLossWithIgnore."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def loss(x: object, target: object, inside: str = "") -> LayerCase:
    return LayerCase(f'type: "EuclideanLossWithIgnore" euclideanloss_param {{ {inside} }}', np.array(x), np.array(target))


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def target_of(counts: list[float], *shape: int) -> np.ndarray:
    target = normal(len(counts), *shape)
    target[:, -1] = 0
    target.reshape(len(counts), -1)[:, np.prod((shape[0] - 1, *shape[1:]))] = counts
    return target


X, TARGET = [[3.0, 4], [9, 9], [0, 2]], [[0.0, 0, 1], [1, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    ("inside", "value", "slope"),
    [
        ("", (25 + 1) / 4, [[1.5, 2], [0, 0], [0, 0.5]]),
        ("normalize_choice: 1", (25 + 1) / 4, [[1.5, 2], [0, 0], [0, 0.5]]),
        ("is_normalized: true", (1 + 1 / 4) / 4, [[0, 0], [0, 0], [0, (1 - 2 / 4) / 8]]),
        ("is_normalized: true normalize_choice: 1", (25 + 1) / 4, [[1.5, 2], [0, 0], [0, 0.5]]),
    ],
)
def test_by_hand(inside: str, value: float, slope: list[list[float]]) -> None:
    """The first and the last of three items count. The first target is 0, by which nothing is divided; the last has z = 1."""
    case = loss(X, TARGET, inside)
    np.testing.assert_allclose(case.forward()[0], value)
    dx, dtarget = case.backward()
    np.testing.assert_allclose(dx, slope, atol=1e-12)
    assert not dtarget[:, 2].any() and not dtarget[1].any()


@given(st.integers(0, 3), st.integers(1, 4))
def test_items_that_do_not_count_change_nothing(others: int, channels: int) -> None:
    x, target = normal(2 + others, channels), target_of([1.0, 1] + [0.5] * others, channels + 1)
    np.testing.assert_allclose(loss(x, target).forward()[0], loss(x[:2], target[:2]).forward()[0])


@pytest.mark.parametrize("inside", ["", "is_normalized: true", "is_normalized: true normalize_choice: 1"])
@pytest.mark.parametrize("shape", [(3,), (3, 2, 4)])
def test_gradient(inside: str, shape: tuple[int, ...]) -> None:
    case = loss(normal(4, *shape), target_of([1, 0, 1, 1], shape[0] + 1, *shape[1:]), inside)
    case.layer.index_bottoms = (1,)  # a step of what says whether an item counts would change that
    case.check_gradient()


def test_gradient_of_the_target() -> None:
    for choice in (0, 1):
        inside = f"is_normalized: true normalize_choice: {choice}"
        x, target, step = normal(2, 3), target_of([1, 1], 4), 1e-6
        case = loss(x, target, inside)
        case.forward()
        _, dtarget = case.backward()
        for n, c in np.ndindex(2, 3):
            ends = []
            for sign in (1, -1):
                moved = target.copy()
                moved[n, c] += sign * step
                ends.append(loss(x, moved, inside).forward()[0])
            np.testing.assert_allclose(dtarget[n, c], (ends[0] - ends[1]) / (2 * step), rtol=1e-5)


def test_none_counts_and_a_second_reshape() -> None:
    case = loss([[1.0, 2]], [[3.0, 4, 0]])
    assert case.forward()[0] == 0 and not case.backward()[0].any()
    case.bottom[0].reshape(2, 1)
    case.bottom[1].reshape(2, 2)
    case.bottom[0].data[...], case.bottom[1].data[...] = [[1], [5]], [[3, 1], [5, 1]]
    assert case.forward()[0] == 1


def test_errors() -> None:
    with pytest.raises(LayerError, match=r"for x of shape \(2, 3\) the target must have one channel more, got \(2, 3\)"):
        loss(np.zeros((2, 3)), np.zeros((2, 3)))
    with pytest.raises(LayerError, match="normalize_choice must be 0 or 1, got 2"):
        loss(X, TARGET, "normalize_choice: 2")
