"""Accum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase, check_a_second_reshape
from peak import assert_too_large, traced_peak

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    case = LayerCase('type: "Accum" accum_param { top_height: 3 top_width: 5 }', [[[[0.0, 2.0, 4.0], [8.0, 10.0, 12.0]]]])
    assert case.forward()[0].tolist() == [[[[0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [8, 9, 10, 11, 12]]]]
    dy = np.zeros((1, 1, 3, 5))
    dy[0, 0, 1, 1] = 4
    assert case.backward(dy)[0].tolist() == [[[[1, 1, 0], [1, 1, 0]]]]


@pytest.mark.parametrize(
    ("param", "shapes", "top"),
    [
        ("top_height: 7 top_width: 9", [(2, 3, 4, 5)], (2, 3, 7, 9)),
        ("top_height: 7 top_width: 5", [(2, 3, 4, 5)], (2, 3, 4, 5)),  # both must be larger
        ("size_divisible_by: 4", [(2, 3, 5, 6)], (2, 3, 8, 8)),
        ("size_divisible_by: 5", [(2, 3, 5, 6)], (2, 3, 5, 6)),
        ("", [(2, 3, 4, 5), (2, 1, 3, 7)], (2, 4, 4, 7)),
        ("have_reference: true", [(2, 3, 4, 5), (2, 1, 3, 2), (1, 8, 2, 3)], (2, 4, 2, 3)),
    ],
)
def test_sizes_and_gradient(param: str, shapes: list[tuple[int, ...]], top: tuple[int, ...]) -> None:
    case = LayerCase(f'type: "Accum" accum_param {{ {param} }}', *(normal(*shape) for shape in shapes))
    assert case.forward()[0].shape == top
    case.check_gradient()


@given(st.integers(1, 4), st.integers(2, 6), st.integers(2, 6))
def test_planes_stay_planes(channels: int, height: int, width: int) -> None:
    rows, columns = np.mgrid[:height, :width]
    x = np.stack([rows * (c + 1.0) + columns for c in range(channels)])[None]
    (y,) = LayerCase(f'type: "Accum" accum_param {{ top_height: {height + 3} top_width: {width + 2} }}', x).forward()
    down, right = (height - 1) / (height + 2), (width - 1) / (width + 1)
    rows, columns = np.mgrid[: height + 3, : width + 2]
    wanted = np.stack([rows * down * (c + 1) + columns * right for c in range(channels)])[None]
    np.testing.assert_allclose(y, wanted, atol=1e-5)


def accum(inside: str) -> LayerCase:
    return LayerCase(f'type: "Accum" accum_param {{ {inside} }}', np.ones((1, 1, 4, 5)))


@pytest.mark.parametrize("inside", ["top_height: 2000000 top_width: 9", "size_divisible_by: 1000000"])
def test_sizes_are_checked_before_memory_is_taken(inside: str) -> None:
    assert_too_large(lambda: accum(inside))


def test_a_second_reshape() -> None:
    check_a_second_reshape('type: "Accum" accum_param { top_height: 7 top_width: 9 }', lambda case: case.layer.axes)


def test_memory_is_taken_in_forward() -> None:
    assert traced_peak(lambda: accum("top_height: 2000000 top_width: 9")) < 2**20


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ('type: "Accum"', [(2, 3, 4)], "must be \\(N, C, H, W\\) with pixels"),
        ('type: "Accum"', [(2, 3, 4, 5), (1, 3, 4, 5)], "all bottoms need 2 images"),
        ('type: "Accum" accum_param { have_reference: true }', [(2, 3, 4, 5)], "needs a map and, at last, the reference"),
        ('type: "Accum" accum_param { size_divisible_by: 0 }', [(2, 3, 4, 5)], "size_divisible_by must be at least 1"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
