"""MultinomialLogisticLoss: the mean negative log of given probabilities."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.loss.softmax import softmax

rng = np.random.default_rng(24)
TYPE = 'type: "MultinomialLogisticLoss"'


def test_by_hand():
    case = LayerCase(TYPE, [[0.25, 0.75], [0.5, 0.5]], [1, 0])
    np.testing.assert_allclose(case.forward()[0], -(np.log(0.75) + np.log(0.5)) / 2)
    np.testing.assert_allclose(case.backward()[0], [[0, -2 / 3], [-1, 0]])


@pytest.mark.parametrize("case", cases("MultinomialLogisticLoss"))
def test_golden(case):
    assert run_case(case) == 2


def test_gradient():
    case = LayerCase(TYPE, rng.uniform(0.1, 1, size=(6, 5, 1, 1)), rng.integers(0, 5, (6, 1)))
    assert case.check_gradient().elements == 30


@given(st.integers(0, 2**32 - 1))
def test_on_softmax_it_is_softmax_with_loss(seed):
    random = np.random.default_rng(seed)
    x, labels = random.normal(0, 3, (6, 5)), random.integers(0, 5, 6)
    (loss,) = LayerCase('type: "SoftmaxWithLoss"', x, labels).forward()
    np.testing.assert_allclose(LayerCase(TYPE, softmax(x), labels).forward()[0], loss)


def test_second_reshape_to_no_images():
    case = LayerCase(TYPE, np.ones((3, 4)), [0, 1, 2])
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
    with pytest.raises(LayerError, match='MultinomialLogisticLoss layer "layer": .*' + message):
        LayerCase(TYPE, np.zeros((3, 4)), labels).forward()
