"""BroadcastMul."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")
TEXT = 'type: "BroadcastMul"'


def test_by_hand() -> None:
    s = [[2.0, 3.0]]
    case = LayerCase(TEXT, [[[1.0, 2.0], [4.0, 5.0]]], s)
    assert case.forward()[0].tolist() == [[[2, 4], [12, 15]]]
    dx, ds = case.backward(np.array([[[1.0, 2.0], [3.0, 4.0]]]))
    assert dx.tolist() == [[[2, 4], [9, 12]]]
    assert ds.tolist() == [[1 + 4, 12 + 20]]


def test_gradient() -> None:
    LayerCase(TEXT, normal(2, 3, 4, 5), normal(2, 3)).check_gradient()
    LayerCase(TEXT, normal(2, 1, 4, 5), normal(2, 3)[:, :1]).check_gradient()


@settings(deadline=None)
@given(st.integers(-3, 3))
def test_it_is_numpys_product_and_linear(factor: int) -> None:
    x, s = normal(2, 3, 4, 5), normal(2, 3)
    case = LayerCase(TEXT, x, factor * s)
    np.testing.assert_allclose(case.forward()[0], factor * x * s[:, :, None, None])


def test_a_second_reshape_and_no_gradient_unasked() -> None:
    case = LayerCase(TEXT, normal(2, 3, 4, 5), normal(2, 3))
    for blob in case.bottom:
        blob.reshape(1, *blob.shape[1:])
        blob.data[...] = 3
        blob.diff[...] = 7
    assert (case.forward()[0] == np.full((1, 3, 4, 5), 9)).all()
    assert all((diff == 7).all() for diff in case.backward(np.ones((1, 3, 4, 5)), propagate_down=[False] * 2))


@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 4)), ((2, 3), (2,)), ((2,), (2,))])
def test_errors(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(LayerError, match="are needed, got shapes"):
        LayerCase(TEXT, *(np.zeros(shape) for shape in shapes))
