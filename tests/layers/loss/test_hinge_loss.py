"""HingeLoss: one-versus-all margins."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

rng = np.random.default_rng(23)
L1 = 'type: "HingeLoss"'
L2 = L1 + " hinge_loss_param { norm: L2 }"


def test_by_hand():
    scores, labels = [[2.0, -3.0, 0.5], [0.0, 0.25, -1.0]], [0, 1]
    one, two = LayerCase(L1, scores, labels), LayerCase(L2, scores, labels)
    assert one.forward()[0] == (1.5 + 1 + 0.75) / 2
    assert two.forward()[0] == (1.5**2 + 1 + 0.75**2) / 2
    np.testing.assert_array_equal(one.backward()[0], [[0, 0, 0.5], [0.5, -0.5, 0]])
    np.testing.assert_array_equal(two.backward()[0], [[0, 0, 1.5], [1, -0.75, 0]])


@pytest.mark.parametrize("case", cases("HingeLoss"))
def test_golden(case):
    assert run_case(case) == 2


@pytest.mark.parametrize("text", [L1, L2])
def test_gradient(text):
    case = LayerCase(text, rng.normal(size=(6, 5, 2, 1)), rng.integers(0, 10, 6))
    assert case.check_gradient().elements == 60


@given(st.integers(0, 2**32 - 1))
def test_is_zero_once_every_margin_is_one(seed):
    labels = np.random.default_rng(seed).integers(0, 5, 7)
    scores = np.where(np.arange(5) == labels[:, None], 1, -1)
    assert LayerCase(L1, scores, labels).forward()[0] == 0
    assert LayerCase(L1, scores * 0.5, labels).forward()[0] == 2.5


def test_second_reshape_to_no_images():
    case = LayerCase(L2, np.ones((3, 4)), [0, 1, 2])
    case.forward()
    np.testing.assert_array_equal(case.bottom[0].data, np.ones((3, 4)))
    case.bottom[0].reshape(0, 7)
    case.bottom[1].reshape(0)
    assert case.forward()[0] == 0
    assert case.backward()[0].shape == (0, 7)


@pytest.mark.parametrize(
    "labels, message",
    [([0, 4, 0], "label 4 at position 1 is not a label from 0 to 3"), ([0, 0], r"need 3 labels .* got 2 of shape \(2,\)")],
)
def test_labels(labels, message):
    with pytest.raises(LayerError, match='HingeLoss layer "layer": .*' + message):
        LayerCase(L1, np.zeros((3, 4)), labels).forward()
