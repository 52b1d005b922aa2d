"""STLoss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from peak import assert_too_large, traced_peak

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


TEXT = 'type: "STLoss" st_loss_param {{ output_H: {} output_W: {} }}'


def test_by_hand() -> None:
    """Twice as large: row -1 becomes -2, which is 1 too far; 0 stays."""
    case = LayerCase(TEXT.format(2, 1), [[2.0, 0, 0, 0, 0, 0]])
    assert case.forward()[0] == pytest.approx(0.5 / 2)
    assert case.backward(np.array(1.0))[0].tolist() == [[0.5, 0.5, -0.5, 0, 0, 0]]
    assert LayerCase(TEXT.format(3, 4), [[1.0, 0, 0, 0, 1, 0]]).forward()[0] == 0


@pytest.mark.parametrize("shape", [(3, 6), (3, 2, 3)])
def test_gradient(shape: tuple[int, ...]) -> None:
    LayerCase(TEXT.format(3, 4), 1.5 * normal(3, 6).reshape(shape)).check_gradient()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_images_count_alike(height: int, width: int, times: int) -> None:
    theta = 2 * normal(2, 6)
    one, more = (LayerCase(TEXT.format(height, width), np.tile(theta, (k, 1))).forward()[0] for k in (1, times))
    assert more == pytest.approx(one)


def loss(inside: str) -> LayerCase:
    return LayerCase(f'type: "STLoss" st_loss_param {{ {inside} }}', [[1.0, 0, 0, 0, 1, 0]])


@pytest.mark.parametrize("inside", ["output_H: 2000000 output_W: 1", "output_H: 2147483647 output_W: 2147483647"])
def test_sizes_are_checked_before_memory_is_taken(inside: str) -> None:
    assert_too_large(lambda: loss(inside))


def test_memory_is_taken_in_forward() -> None:
    assert traced_peak(lambda: loss("output_H: 200000 output_W: 9")) < 2**20


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format(3, 4), [(2, 5)], "theta must be \\(N, 6\\)"),
        (TEXT.format(0, 4), [(2, 6)], "needs output_H > 0 and output_W > 0"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
