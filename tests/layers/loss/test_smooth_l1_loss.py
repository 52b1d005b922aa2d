"""SmoothL1Loss: the box regression loss of Fast R-CNN."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.loss.smooth_l1_loss import smooth_l1, smooth_l1_backward

pytestmark = pytest.mark.usefixtures("device")

rng = np.random.default_rng(10)
WEIGHTED = 'type: "SmoothL1Loss" loss_weight: 1'


def arrays(*shape):
    """x, target, inside and outside weights."""
    return [rng.normal(size=shape) for _ in range(2)] + [rng.uniform(0.5, 2, size=shape) for _ in range(2)]


@pytest.mark.gpu_barrier
def test_by_hand():
    case = LayerCase(WEIGHTED, [[0.5, 3.0, -3.0]], [[0.0, 1.0, 0.0]])
    np.testing.assert_allclose(case.forward()[0], 0.125 + 1.5 + 2.5)
    dx, dtarget = case.backward()
    np.testing.assert_allclose(dx, [[0.5, 1, -1]])
    np.testing.assert_allclose(dtarget, [[-0.5, -1, 1]])


def test_by_hand_with_sigma_and_weights():
    text = WEIGHTED + " smooth_l1_loss_param { sigma: 2 }"
    case = LayerCase(text, [[0.25, 2.0], [7.0, 7.0]], np.zeros((2, 2)), [[0.5, 1], [0, 0]], [[3, 5], [1, 1]])
    np.testing.assert_allclose(case.forward()[0], (3 * 2 * 0.125**2 + 5 * (2 - 0.125)) / 2)
    np.testing.assert_allclose(case.backward()[0], [[3 * 0.5 * 4 * 0.125 / 2, 5 / 2], [0, 0]])


def test_each_items_losses():
    case = LayerCase('type: "SmoothL1Loss"', *arrays(3, 4, 2, 5), tops=2)
    loss, losses = case.forward()
    assert losses.shape == (3, 1, 2, 5)
    np.testing.assert_allclose(losses.sum() / 3, loss, rtol=1e-9)


@pytest.mark.parametrize("case", cases("SmoothL1Loss"))
def test_golden(case):
    assert run_case(case) >= 1


@pytest.mark.parametrize("sigma", [1.0, 3.0])
@pytest.mark.parametrize("bottoms", [2, 4])
def test_gradient(sigma, bottoms):
    text = f"{WEIGHTED} smooth_l1_loss_param {{ sigma: {sigma} }}"
    case = LayerCase(text, *arrays(2, 8, 3, 5)[:bottoms])
    assert case.check_gradient().elements == 480


@pytest.mark.parametrize("shape", [(2, 3, 1, 5, 4), (7,)])
def test_any_number_of_axes(shape):
    """The first is the items', what the loss is divided by."""
    x, target = arrays(*shape)[:2]
    case = LayerCase(WEIGHTED, x, target)
    np.testing.assert_allclose(case.forward()[0], smooth_l1(x - target, 1).sum() / shape[0])
    assert case.check_gradient().elements == 2 * x.size


def test_weights_get_a_zero_diff():
    case = LayerCase(WEIGHTED, *arrays(3, 4))
    case.forward()
    for blob in case.bottom:
        blob.diff[...] = 7
    diffs = case.backward()
    assert not diffs[2].any()
    assert not diffs[3].any()
    np.testing.assert_array_equal(diffs[1], -diffs[0])


def test_only_the_bottoms_asked_for_get_a_diff():
    case = LayerCase(WEIGHTED, *arrays(3, 4))
    case.forward()
    for blob in case.bottom:
        blob.diff[...] = 7
    diffs = case.backward(propagate_down=[True, False, False, False])
    assert (diffs[0] != 7).all()
    assert all((d == 7).all() for d in diffs[1:])


def test_loss_weight_is_zero_unless_given():
    case = LayerCase('type: "SmoothL1Loss"', *arrays(3, 4))
    assert case.layer.loss_weights == [0]
    assert case.forward()[0] > 0
    assert not case.backward()[0].any()


@given(st.floats(-100, 100), st.floats(0.2, 5))
def test_is_even_continuous_and_below_the_absolute_value(d, sigma):
    f = smooth_l1(np.array(d), sigma)
    assert 0 <= f <= abs(d) + 1e-12
    assert f == smooth_l1(np.array(-d), sigma)
    assert abs(smooth_l1_backward(np.array(d), sigma)) <= 1 + 1e-12
    corner = np.array(1 / sigma**2)
    np.testing.assert_allclose(smooth_l1(corner, sigma), 0.5 / sigma**2)


def test_trailing_axes_of_one_count_as_absent():
    x, target, inside, outside = arrays(5, 8)
    wide = LayerCase(WEIGHTED, x.reshape(5, 8, 1, 1), target, inside, outside)
    assert wide.forward() == LayerCase(WEIGHTED, x, target, inside, outside).forward()
    assert [d.shape for d in wide.backward()] == [(5, 8, 1, 1)] + [(5, 8)] * 3


def test_no_rois_and_a_second_reshape():
    start = arrays(3, 4)
    case = LayerCase(WEIGHTED, *start)
    case.forward()
    for blob, array in zip(case.bottom, start, strict=True):
        np.testing.assert_array_equal(blob.data, array)
        blob.reshape(0, 84)
    assert case.forward()[0] == 0
    assert [d.shape for d in case.backward()] == [(0, 84)] * 4


def test_shapes_differ():
    with pytest.raises(LayerError, match=r"bottoms 0 and 2 must have the same shape, got \(3, 4\) and \(3, 5\)"):
        LayerCase(WEIGHTED, np.zeros((3, 4)), np.zeros((3, 4)), np.zeros((3, 5)), np.zeros((3, 4)))


def test_inside_weights_alone_are_fast_rcnns():
    x, target, inside, _ = arrays(3, 4)
    one, both = LayerCase(WEIGHTED, x, target, inside), LayerCase(WEIGHTED, x, target, inside, np.ones((3, 4)))
    assert one.forward() == both.forward()
    for diff, same in zip(one.backward(np.array(2.0)), both.backward(np.array(2.0)), strict=False):
        np.testing.assert_array_equal(diff, same)
    one.check_gradient()


def test_sigma_zero():
    with pytest.raises(LayerError, match='SmoothL1Loss layer "layer": sigma must be > 0, got 0'):
        LayerCase(WEIGHTED + " smooth_l1_loss_param { sigma: 0 }", *arrays(3, 4))
