"""YoloSeg."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "YoloSeg"'


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """Sigmoids 1/2 and 3/4 of targets 1 and 1, in the first of two images; the second is right."""
    x, targets = np.array([[[0.0, np.log(3)]], [[0, 0]]]), np.array([[[1, 1]], [[0.5, 0.5]]])
    case = LayerCase(f"{TEXT} yolo_seg_param {{ object_scale: 2 }}", x, targets, dtype=dtype)
    assert case.forward()[0].item() == pytest.approx(4 * (0.25 + 0.0625) / 2, rel=1e-6)
    dx = case.backward(np.array(3.0))[0]
    np.testing.assert_allclose(dx[0, 0], [3 * 4 * -0.5 * 0.25, 3 * 4 * -0.25 * 0.1875], rtol=1e-6)


@pytest.mark.parametrize("third", [False, True])
def test_gradient(third: bool) -> None:
    random = np.random.default_rng(0)
    bottoms = [random.normal(size=(2, 1, 3, 4)), random.uniform(size=(2, 1, 3, 4)), *[random.normal(size=(2,))] * third]
    LayerCase(TEXT, *bottoms).check_gradient()


@given(st.floats(0.1, 3))
def test_it_grows_with_the_square_of_its_scale(scale: float) -> None:
    x, targets = np.arange(6.0).reshape(2, 3), np.eye(2, 3)
    one, other = (
        LayerCase(f"{TEXT} yolo_seg_param {{ object_scale: {s} }}", x, targets).forward()[0].item() for s in (1, scale)
    )
    assert other == pytest.approx(scale**2 * one, rel=1e-5)


def test_a_second_reshape_and_errors() -> None:
    case = LayerCase(TEXT, np.zeros((2, 3)), np.zeros((2, 3)))
    for blob in case.bottom:
        blob.reshape(4, 5, 1)
    assert case.forward()[0].item() == pytest.approx(25 * 0.25 * 5, rel=1e-6)
    with pytest.raises(LayerError, match="bottoms 0 and 1 must have as many values, got 6"):
        LayerCase(TEXT, np.zeros((2, 3)), np.zeros((2, 4)))
