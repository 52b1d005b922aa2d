"""SmoothL1LossOHEM: the box loss with a loss for each roi."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

rng = np.random.default_rng(11)
WEIGHTED = 'type: "SmoothL1LossOHEM" loss_weight: 1'
TWO_TOPS = WEIGHTED + " loss_weight: 0"


def arrays(*shape, seed=12):
    """x, target and weights."""
    random = np.random.default_rng(seed)
    return random.normal(size=shape), random.normal(size=shape), random.uniform(0.5, 2, size=shape)


@pytest.mark.gpu_barrier
def test_by_hand():
    case = LayerCase(TWO_TOPS, [[0.5, 3.0], [-1.0, 2.0]], [[0.0, 1.0], [0.0, 2.0]], [[1, 1], [0.5, 9]], tops=2)
    loss, losses = case.forward()
    np.testing.assert_allclose(losses, np.reshape([0.125 + 1.5, 0.125], (2, 1, 1, 1)))
    np.testing.assert_allclose(loss, 1.75 / 2)
    dx, dtarget, dweight = case.backward()
    np.testing.assert_allclose(dx, [[0.25, 0.5], [-0.125, 0]])
    np.testing.assert_allclose(dtarget, -dx)
    assert not dweight.any()


@pytest.mark.parametrize("case", cases("SmoothL1LossOHEM"))
def test_golden(case):
    assert run_case(case) >= 3


@pytest.mark.parametrize(
    "text, divisor",
    [
        ("", 30),
        ("normalization: VALID", 30),
        ("normalization: FULL", 30),
        ("normalization: BATCH_SIZE", 2),
        ("normalization: NONE", 1),
        ("normalization: PRE_FIXED pre_fixed_normalizer: 128", 128),
        ("normalize: true", 30),
        ("normalize: false", 2),
    ],
)
def test_every_normalization(text, divisor):
    loss, losses = LayerCase(f"{TWO_TOPS} loss_param {{ {text} }}", *arrays(2, 4, 3, 5), tops=2).forward()
    assert losses.shape == (2, 1, 3, 5)
    np.testing.assert_allclose(loss, losses.sum() / divisor)


@pytest.mark.parametrize("bottoms", [2, 3])
def test_gradient(bottoms):
    case = LayerCase(WEIGHTED, *arrays(2, 4, 3, 5)[:bottoms])
    assert case.check_gradient().elements == 240


@given(st.integers(0, 2**32 - 1))
def test_swapping_x_and_target_changes_nothing_but_the_sign_of_the_gradient(seed):
    x, target, weight = arrays(3, 8, seed=seed)
    one, other = LayerCase(WEIGHTED, x, target, weight), LayerCase(WEIGHTED, target, x, weight)
    assert one.forward() == other.forward()
    np.testing.assert_array_equal(one.backward()[0], -other.backward()[0])


def test_loss_weight_is_zero_unless_given():
    assert LayerCase('type: "SmoothL1LossOHEM"', *arrays(3, 4), tops=2).layer.loss_weights == [0, 0]


def test_no_rois_and_a_second_reshape():
    start = arrays(3, 4)
    case = LayerCase(TWO_TOPS, *start, tops=2)
    case.forward()
    for blob, array in zip(case.bottom, start, strict=True):
        np.testing.assert_array_equal(blob.data, array)
        blob.reshape(0, 8, 1, 1)
    loss, losses = case.forward()
    assert loss == 0
    assert losses.shape == (0, 1, 1, 1)
    assert [d.shape for d in case.backward()] == [(0, 8, 1, 1)] * 3


def test_shapes_differ():
    with pytest.raises(LayerError, match=r"bottoms 0 and 1 must have the same shape, got \(3, 4\) and \(4, 3\)"):
        LayerCase(WEIGHTED, np.zeros((3, 4)), np.zeros((4, 3)))


def test_more_than_four_axes():
    with pytest.raises(
        LayerError, match=r'SmoothL1LossOHEM layer "layer": .* at most 4 axes; the blob has shape \(1, 2, 3, 4, 5\)'
    ):
        LayerCase(WEIGHTED, np.zeros((1, 2, 3, 4, 5)), np.zeros((1, 2, 3, 4, 5)))
