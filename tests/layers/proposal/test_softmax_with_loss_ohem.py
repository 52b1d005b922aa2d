"""SoftmaxWithLossOHEM: SoftmaxWithLoss with a loss for each roi."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

rng = np.random.default_rng(9)
SCORES = rng.normal(size=(7, 3, 1, 1))
LABELS = np.array([0, 2, -1, 1, 1, -1, 0]).reshape(7, 1, 1, 1)
THREE_TOPS = 'type: "SoftmaxWithLossOHEM" loss_weight: 1 loss_weight: 0 loss_weight: 0'


@pytest.mark.gpu_barrier
def test_by_hand():
    case = LayerCase(THREE_TOPS + " loss_param { ignore_label: 9 }", [[0.0, np.log(3)], [5.0, 5.0], [1, 2]], [1, 0, 9], tops=3)
    loss, prob, losses = case.forward()
    np.testing.assert_allclose(losses, [-np.log(0.75), -np.log(0.5), 0])
    np.testing.assert_allclose(loss, losses.sum() / 2)
    np.testing.assert_allclose(prob[:2], [[0.25, 0.75], [0.5, 0.5]])


@pytest.mark.parametrize("case", cases("SoftmaxWithLossOHEM"))
def test_golden(case):
    assert run_case(case) >= 2


@pytest.mark.parametrize("text", ["", "normalization: FULL", "normalization: PRE_FIXED pre_fixed_normalizer: 128"])
def test_gradient(text):
    case = LayerCase(f"{THREE_TOPS} loss_param {{ ignore_label: -1 {text} }}", SCORES, LABELS, tops=3)
    assert case.check_gradient().elements == 21


@given(st.integers(0, 2**32 - 1))
def test_losses_add_up_to_the_undivided_loss(seed):
    random = np.random.default_rng(seed)
    x, labels = random.normal(0, 4, (5, 4, 3)), random.integers(0, 4, (5, 3))
    case = LayerCase(THREE_TOPS + " loss_param { normalization: NONE }", x, labels, tops=3)
    loss, _, losses = case.forward()
    assert losses.shape == (5, 3)
    np.testing.assert_allclose(losses.sum(), loss)
    twin = LayerCase('type: "SoftmaxWithLoss" loss_param { normalization: NONE }', x, labels)
    assert twin.forward()[0] == loss


def test_no_rois_and_a_second_reshape():
    case = LayerCase(THREE_TOPS + " loss_param { ignore_label: -1 }", SCORES, LABELS, tops=3)
    case.forward()
    np.testing.assert_array_equal(case.bottom[0].data, SCORES)
    case.bottom[0].reshape(0, 3, 1, 1)
    case.bottom[1].reshape(0, 1, 1, 1)
    loss, prob, losses = case.forward()
    assert loss == 0
    assert prob.shape == (0, 3, 1, 1)
    assert losses.shape == (0, 1, 1, 1)
    assert case.backward()[0].shape == (0, 3, 1, 1)


def test_a_label_that_is_no_class():
    with pytest.raises(
        LayerError, match='SoftmaxWithLossOHEM layer "layer": label -1 at position 2 is not a label from 0 to 2'
    ):
        LayerCase(THREE_TOPS, SCORES, LABELS, tops=3).forward()


def test_too_many_tops():
    with pytest.raises(LayerError, match="takes 1 to 3 tops, got 4"):
        LayerCase('type: "SoftmaxWithLossOHEM"', SCORES, LABELS, tops=4)
