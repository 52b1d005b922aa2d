"""SigmoidCrossEntropyLoss: independent yes-or-no scores."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.loss.sigmoid_cross_entropy_loss import sigmoid_cross_entropy

pytestmark = pytest.mark.usefixtures("device")

rng = np.random.default_rng(22)
TYPE = 'type: "SigmoidCrossEntropyLoss"'


@pytest.mark.gpu_barrier
def test_by_hand():
    case = LayerCase(TYPE, [[0.0, np.log(3)], [np.log(3), 0.0]], [[1, 1], [0, 0.5]])
    np.testing.assert_allclose(case.forward()[0], -(np.log(0.5) + np.log(0.75) + np.log(0.25) + np.log(0.5)) / 2)
    np.testing.assert_allclose(case.backward()[0], [[-0.25, -0.125], [0.375, 0]])


@pytest.mark.parametrize("case", cases("SigmoidCrossEntropyLoss"))
def test_golden(case):
    assert run_case(case) == 2


@pytest.mark.parametrize(
    "text, divisor",
    [
        ("", 3),
        ("normalize: true", 10),
        ("normalize: false", 3),
        ("normalization: VALID", 10),
        ("normalization: FULL", 12),
        ("normalization: BATCH_SIZE", 3),
        ("normalization: NONE", 1),
        ("normalization: PRE_FIXED pre_fixed_normalizer: 7", 7),
    ],
)
def test_every_normalization(text, divisor):
    x, target = rng.normal(size=(3, 4)), rng.integers(0, 2, (3, 4)).astype(float)
    target[1, :2] = -1
    total = sigmoid_cross_entropy(x, target)[target >= 0].sum()
    case = LayerCase(f"{TYPE} loss_param {{ ignore_label: -1 {text} }}", x, target)
    np.testing.assert_allclose(case.forward()[0], total / divisor)
    assert not case.backward()[0][1, :2].any()


@pytest.mark.parametrize("text", ["", "loss_param { ignore_label: 1 normalization: VALID }"])
def test_gradient(text):
    case = LayerCase(f"{TYPE} {text}", rng.normal(size=(2, 3, 5)), rng.integers(0, 2, (2, 3, 5)))
    assert case.check_gradient().elements == 30


@given(st.floats(-1e4, 1e4), st.floats(0, 1))
def test_is_finite_and_symmetric(x, target):
    (loss,) = sigmoid_cross_entropy(np.array([x]), np.array([target]))
    assert np.isfinite(loss)
    assert loss >= -1e-9
    np.testing.assert_allclose(sigmoid_cross_entropy(np.array([-x]), np.array([1 - target])), loss, atol=1e-9)


def test_second_reshape_to_no_images():
    x, target = rng.normal(size=(3, 4)), np.ones((3, 4))
    case = LayerCase(TYPE, x, target)
    case.forward()
    np.testing.assert_array_equal(case.bottom[0].data, x)
    for blob in case.bottom:
        blob.reshape(0, 7)
    assert case.forward()[0] == 0
    assert [d.shape for d in case.backward()] == [(0, 7)] * 2


def test_sizes_differ():
    with pytest.raises(LayerError, match=r'SigmoidCrossEntropyLoss layer "layer": bottoms 0 and 1 must have as many values'):
        LayerCase(TYPE, np.zeros((3, 4)), np.zeros((3, 5)))


@pytest.mark.parametrize("text", ["", "loss_param { ignore_label: 1 normalization: NONE }"])
def test_mncs_weights(text):
    x, target, weights = rng.normal(size=(3, 4)), rng.integers(0, 2, (3, 4)), rng.random((3, 4))
    case = LayerCase(f"{TYPE} {text}", x, target, weights.reshape(3, 2, 2))
    counted = weights * (target != 1) if text else weights
    expected = (sigmoid_cross_entropy(x, target) * counted).sum() / counted.sum()
    np.testing.assert_allclose(case.forward()[0], expected)
    assert case.check_gradient().elements == 12


def test_weights_of_zero_give_no_loss():
    case = LayerCase(TYPE, np.ones((2, 3)), np.zeros((2, 3)), np.zeros((2, 3)))
    assert case.forward()[0] == 0
    assert not any(dx.any() for dx in case.backward())
    with pytest.raises(LayerError, match=r"bottoms 0 and 2 must have as many values, got 6 of shape \(2, 3\) and 2"):
        LayerCase(TYPE, np.ones((2, 3)), np.zeros((2, 3)), np.zeros((2, 1)))


def test_heds_targets_weigh_by_the_share_of_the_other_class():
    """Image 0 has one target of 1 and two of 0: weights 2/3 and 1/3; 0.5 counts nothing. Image 1 has no 1: no loss."""
    target = [[1, 0, 0, 0.5], [0, 0, 0, 0]]
    x = np.log([[3.0, 1, 3, 7], [2, 3, 5, 7]])  # sigmoids 3/4, 1/2, 3/4, 7/8 ...
    case = LayerCase(f"{TYPE} loss_param {{ normalization: NONE ignore_label: 1 }}", x, target, fork="hed")
    expected = -(2 / 3 * np.log(3 / 4) + 1 / 3 * np.log(1 / 2) + 1 / 3 * np.log(1 / 4)) / 2
    np.testing.assert_allclose(case.forward()[0], expected)
    np.testing.assert_allclose(case.backward()[0], [[-1 / 12, 1 / 12, 1 / 8, 0], [0, 0, 0, 0]], atol=1e-12)
    assert str(case.layer.choice) == "SigmoidCrossEntropyLoss of HED: fork hed"
    assert case.check_gradient().elements == 8
    assert LayerCase(TYPE, x, target).forward()[0] > 2 * expected


def test_rcfs_targets_weigh_as_heds_and_zeros_more():
    """Number by number, as RCF's loop."""
    x, target = np.random.default_rng(3).normal(size=(2, 7)), np.array([[1, 0, 0, 0.3, 1, 0, 0], [0, 0, 0.2, 0, 0, 1, 1]])
    loss = 0.0
    for scores, labels in zip(x, target):
        ones, zeros = (labels == 1).sum(), (labels == 0).sum()
        for score, label in zip(scores, labels):
            if label == 1:
                loss += np.log1p(np.exp(-score)) * zeros / (ones + zeros)
            elif label == 0:
                loss += 1.1 * np.log1p(np.exp(score)) * ones / (ones + zeros)
    case = LayerCase(TYPE, x, target, fork="rcf")
    np.testing.assert_allclose(case.forward()[0], loss / 2)
    assert str(case.layer.choice) == "SigmoidCrossEntropyLoss of RCF: fork rcf"
    assert case.check_gradient().elements == 14


def test_heds_loss_of_no_known_target_is_0():
    case = LayerCase(TYPE, np.ones((2, 3)), np.full((2, 3), 0.5), fork="hed")
    assert case.forward()[0] == 0
    assert not case.backward()[0].any()
    for blob in case.bottom:
        blob.reshape(0, 3)
    assert case.forward()[0] == 0
