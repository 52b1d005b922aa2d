"""SpatialProduct, also called MaskPooling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")
TEXT = 'type: "SpatialProduct"'


def test_by_hand() -> None:
    s = [[[2.0, 3.0]]]
    case = LayerCase(TEXT, [[[1.0, 2.0], [4.0, 5.0]]], s)
    assert case.forward()[0].tolist() == [[[2, 6], [8, 15]]]
    dx, ds = case.backward(np.array([[[1.0, 2.0], [3.0, 4.0]]]))
    assert dx.tolist() == [[[2, 6], [6, 12]]]
    assert ds.tolist() == [[[1 + 12, 4 + 20]]]


def test_gradient() -> None:
    LayerCase(TEXT, normal(2, 3, 4, 5), normal(2, 1, 4, 5)).check_gradient()
    LayerCase(TEXT, normal(2, 1, 4, 5), normal(2, 1, 4, 5)[:, :1]).check_gradient()


@settings(deadline=None)
@given(st.integers(-3, 3))
def test_it_is_numpys_product_and_linear(factor: int) -> None:
    x, s = normal(2, 3, 4, 5), normal(2, 1, 4, 5)
    case = LayerCase(TEXT, x, factor * s)
    np.testing.assert_allclose(case.forward()[0], factor * x * s)


def test_a_second_reshape_and_no_gradient_unasked() -> None:
    case = LayerCase(TEXT, normal(2, 3, 4, 5), normal(2, 1, 4, 5))
    for blob in case.bottom:
        blob.reshape(1, *blob.shape[1:])
        blob.data[...] = 3
        blob.diff[...] = 7
    assert (case.forward()[0] == np.full((1, 3, 4, 5), 9)).all()
    assert all((diff == 7).all() for diff in case.backward(np.ones((1, 3, 4, 5)), propagate_down=[False] * 2))


@given(st.integers(0, 99))
def test_a_mask_of_0_and_1_twice_is_once(seed: int) -> None:
    mask = (np.random.default_rng(seed).normal(size=(2, 1, 4, 5)) > 0).astype(float)
    (y,) = LayerCase('type: "MaskPooling"', normal(2, 3, 4, 5), mask).forward()
    np.testing.assert_array_equal(LayerCase(TEXT, y, mask).forward()[0], y)


@pytest.mark.parametrize("shape", [(5, 2, 3, 3), (0, 2, 3, 3), (2, 3, 0, 4), (2, 0, 3, 4)])
def test_empty_axes(shape: tuple[int, ...]) -> None:
    case = LayerCase('type: "MaskPooling"', normal(2, 3, 4, 5), normal(2, 1, 4, 5))
    for blob, new in zip(case.bottom, (shape, (shape[0], 1, *shape[2:])), strict=True):
        blob.reshape(new)
        blob.data[...] = 2
    assert (case.forward()[0] == np.full(shape, 4)).all()
    dx, dmask = case.backward(np.ones(shape))
    assert (dx == np.full(shape, 2)).all()
    assert (dmask == 2 * shape[1]).all()


@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (1, 1, 4)), ((2,), (2,))])
def test_errors(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(LayerError, match="are needed, got shapes"):
        LayerCase(TEXT, *(np.zeros(shape) for shape in shapes))
