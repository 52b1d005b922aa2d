"""Correlation."""

from __future__ import annotations

import numpy as np
import pytest
from first import first
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


TEXT = 'type: "Correlation" correlation_param {{ {} }}'


def by_definition(a: np.ndarray, b: np.ndarray, pad: int, k: int, most: int, s1: int, s2: int, subtract: bool) -> np.ndarray:
    """The formula, place by place."""
    around = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    a, b = np.pad(a, around), np.pad(b, around)
    radius, border = most // s2, most + k // 2
    size = [-(-(n - 2 * border) // s1) for n in a.shape[2:]]
    y = np.zeros((len(a), (2 * radius + 1) ** 2, *size))
    moves = [(p, o) for p in range(-radius, radius + 1) for o in range(-radius, radius + 1)]
    for c, (p, o) in enumerate(moves):
        for i in range(size[0]):
            for j in range(size[1]):
                row, column = i * s1 + most, j * s1 + most
                one = a[:, :, row : row + k, column : column + k]
                row, column = row + s2 * p, column + s2 * o
                other = b[:, :, row : row + k, column : column + k]
                terms = np.abs(one - other) if subtract else one * other
                y[:, c, i, j] = terms.mean(axis=(1, 2, 3))
    return y


CASES = [(2, 1, 2, 1, 1), (3, 3, 2, 2, 2), (5, 3, 3, 1, 3), (0, 1, 1, 1, 2)]


@pytest.mark.parametrize("subtract", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_it_is_its_definition(case: tuple[int, ...], subtract: bool) -> None:
    pad, k, most, s1, s2 = case
    param = f"pad: {pad} kernel_size: {k} max_displacement: {most} stride_1: {s1} stride_2: {s2}"
    a, b = normal(2, 3, 7, 8), normal(2, 3, 8, 7).transpose(0, 1, 3, 2)
    (y,) = LayerCase(TEXT.format(param + " correlation_type: SUBTRACT" * subtract), a, b).forward()
    np.testing.assert_allclose(y, by_definition(a, b, *case, subtract), atol=1e-12)


@pytest.mark.parametrize("kind", ["MULTIPLY", "SUBTRACT"])
@pytest.mark.parametrize(("case", "shape"), first(2, reversed([*zip(CASES, [(2, 3, 5, 4), (1, 2, 5, 4), (1, 2, 4, 3)])])))
def test_gradient(case: tuple[int, ...], shape: tuple[int, ...], kind: str) -> None:
    pad, k, most, s1, s2 = case
    param = f"pad: {pad} kernel_size: {k} max_displacement: {most} stride_1: {s1} stride_2: {s2} correlation_type: {kind}"
    a, b = np.random.default_rng(7).normal(size=(2, *shape))
    LayerCase(TEXT.format(param), a, b + 0.3).check_gradient()


@given(st.integers(1, 2), st.integers(1, 4), st.integers(3, 6), st.integers(3, 6))
def test_exchanged_maps_exchange_the_displacements(n: int, channels: int, height: int, width: int) -> None:
    """With one pixel a window and no strides, y of (a, b) at (p, o) is y of (b, a) at (-p, -o), moved by it."""
    a, b = normal(n, channels, height, width), normal(n, channels, height, width) ** 2
    text = TEXT.format("pad: 1 kernel_size: 1 max_displacement: 1")
    one, other = LayerCase(text, a, b).forward()[0], LayerCase(text, b, a).forward()[0]
    np.testing.assert_allclose(one[:, 5, :, :-1], other[:, 3, :, 1:], atol=1e-12)


def test_no_gradient_where_none_is_asked_for() -> None:
    case = LayerCase(
        TEXT.format("kernel_size: 1 max_displacement: 1"), normal(1, 2, 4, 5), normal(1, 2, 5, 4).reshape(1, 2, 4, 5)
    )
    case.forward()
    case.bottom[0].diff[...] = 7
    da, db = case.backward(np.ones(case.top[0].shape), propagate_down=[False, True])
    assert (da == 7).all() and db.any()


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format("max_displacement: 1"), [(1, 2, 4, 5)] * 2, "kernel_size is missing"),
        (TEXT.format("kernel_size: 1"), [(1, 2, 4, 5)] * 2, "max_displacement is missing"),
        (TEXT.format("kernel_size: 2 max_displacement: 1"), [(1, 2, 4, 5)] * 2, "kernel_size must be odd, got 2"),
        (TEXT.format("kernel_size: 1 max_displacement: 1 stride_2: 0"), [(1, 2, 4, 5)] * 2, "stride_2 must be at least 1"),
        (TEXT.format("kernel_size: 1 max_displacement: 1"), [(1, 2, 4, 5), (1, 2, 5, 4)], "two maps of one shape"),
        (TEXT.format("kernel_size: 1 max_displacement: 3"), [(1, 2, 4, 5)] * 2, "leave no place of 4 x 5 pixels"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
