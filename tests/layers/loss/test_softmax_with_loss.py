"""SoftmaxWithLoss: cross entropy with every way of dividing it."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.loss.softmax import softmax

pytestmark = pytest.mark.usefixtures("device")

rng = np.random.default_rng(8)
SCORES = rng.normal(size=(2, 3, 4, 5))
LABELS = rng.integers(0, 3, size=(2, 4, 5))


def loss_of(text, x=SCORES, labels=LABELS):
    return LayerCase(f'type: "SoftmaxWithLoss" {text}', x, labels).forward()[0]


@pytest.mark.gpu_barrier
def test_by_hand():
    case = LayerCase('type: "SoftmaxWithLoss"', [[0.0, np.log(3)], [5.0, 5.0]], [1, 0])
    (loss,) = case.forward()
    assert loss.shape == ()
    np.testing.assert_allclose(loss, (-np.log(0.75) - np.log(0.5)) / 2)
    np.testing.assert_allclose(case.backward()[0], [[0.125, -0.125], [-0.25, 0.25]])


@pytest.mark.parametrize("case", cases("SoftmaxWithLoss"))
def test_golden(case):
    assert run_case(case) == 2


@pytest.mark.parametrize(
    "text, divisor",
    [
        ("", 27),
        ("normalization: VALID", 27),
        ("normalization: FULL", 40),
        ("normalization: BATCH_SIZE", 2),
        ("normalization: NONE", 1),
        ("normalization: PRE_FIXED pre_fixed_normalizer: 128", 128),
        ("normalization: PRE_FIXED pre_fixed_normalizer: 0.5", 1),
        ("normalize: true", 27),
        ("normalize: false", 2),
        ("normalize: false normalization: FULL", 40),
    ],
)
def test_every_normalization(text, divisor):
    labels = LABELS.copy().ravel()
    labels[:13] = 255
    labels = labels.reshape(LABELS.shape)
    prob = softmax(SCORES)
    true = np.take_along_axis(prob, np.minimum(labels, 2)[:, None], 1)[:, 0]
    total = -np.log(true)[labels != 255].sum()
    np.testing.assert_allclose(loss_of(f"loss_param {{ ignore_label: 255 {text} }}", labels=labels), total / divisor)


@pytest.mark.parametrize("text", ["", "loss_param { ignore_label: 1 }", "loss_param { normalization: BATCH_SIZE }"])
@pytest.mark.parametrize("axis", [1, 2])
def test_gradient(text, axis):
    labels = rng.integers(0, 3, size=np.delete(SCORES.shape, axis))
    case = LayerCase(f'type: "SoftmaxWithLoss" softmax_param {{ axis: {axis} }} {text}', SCORES, labels)
    assert case.check_gradient().elements == 120


def test_loss_weight_scales_the_gradient():
    plain, weighted = (LayerCase(f'type: "SoftmaxWithLoss" {w}', SCORES, LABELS) for w in ("", "loss_weight: 0.25"))
    assert [weighted.forward(), plain.forward()]
    np.testing.assert_allclose(weighted.backward()[0], 0.25 * plain.backward()[0])


def test_second_top_is_the_probabilities():
    case = LayerCase('type: "SoftmaxWithLoss"', SCORES, LABELS, tops=2)
    np.testing.assert_allclose(case.forward()[1], softmax(SCORES))
    assert case.layer.loss_weights == [1, 0]


def test_a_probability_of_zero_gives_a_finite_loss_and_the_plain_gradient():
    case = LayerCase('type: "SoftmaxWithLoss"', [[500.0, -500.0]], [1], dtype=np.float32)
    np.testing.assert_allclose(case.forward()[0], 126 * np.log(2), rtol=1e-6)
    np.testing.assert_allclose(case.backward()[0], [[1, -1]])


@given(st.integers(0, 2**32 - 1))
def test_gradient_of_each_position_adds_up_to_zero(seed):
    random = np.random.default_rng(seed)
    case = LayerCase('type: "SoftmaxWithLoss"', random.normal(0, 9, (3, 5, 2)), random.integers(0, 5, (3, 2)))
    (loss,) = case.forward()
    assert loss >= 0
    np.testing.assert_allclose(case.backward()[0].sum(axis=1), 0, atol=1e-12)


@pytest.mark.parametrize("text", ["", "loss_param { normalization: BATCH_SIZE }", "loss_param { normalization: FULL }"])
def test_nothing_to_learn_from_is_loss_zero(text):
    case = LayerCase(f'type: "SoftmaxWithLoss" {text}', np.zeros((0, 21, 1, 1)), np.zeros((0,)))
    assert case.forward()[0] == 0
    assert case.backward()[0].shape == (0, 21, 1, 1)


def test_all_ignored_is_loss_zero_and_gradient_zero():
    case = LayerCase('type: "SoftmaxWithLoss" loss_param { ignore_label: -1 }', SCORES, np.full(LABELS.shape, -1))
    assert case.forward()[0] == 0
    assert not case.backward()[0].any()


def test_second_reshape_and_untouched_inputs():
    case = LayerCase('type: "SoftmaxWithLoss"', SCORES, LABELS)
    case.forward()
    np.testing.assert_array_equal(case.bottom[0].data, SCORES)
    np.testing.assert_array_equal(case.bottom[1].data, LABELS)
    case.bottom[0].reshape(6, 4)
    case.bottom[1].reshape(6, 1, 1, 1)
    case.bottom[0].data[...] = 0
    case.bottom[1].data[...] = 3
    np.testing.assert_allclose(case.forward()[0], np.log(4))
    dx, dlabels = case.backward()
    np.testing.assert_allclose(dx, np.tile([0.25, 0.25, 0.25, -0.75], (6, 1)) / 6)
    assert not dlabels.any()


@pytest.mark.parametrize(
    "label, message",
    [
        (3, r"label 3 at position 7 is not a label from 0 to 2"),
        (-1, r"label -1 at position 7 is not a label from 0 to 2"),
        (1.5, r"label 1.5 at position 7 is not a whole label from 0 to 2"),
        (np.nan, r"label nan at position 7 is not a whole label from 0 to 2"),
        (np.inf, r"label inf at position 7 is not a label from 0 to 2"),
    ],
)
def test_a_label_that_is_no_class(label, message):
    labels = LABELS.astype(float)
    labels.flat[7] = label
    with pytest.raises(LayerError, match=r'SoftmaxWithLoss layer "layer": ' + message):
        loss_of("", labels=labels)
    with pytest.raises(LayerError, match="from 0 to 2, nor the ignored 255"):
        loss_of("loss_param { ignore_label: 255 }", labels=labels)


def test_label_count():
    with pytest.raises(LayerError, match=r"scores of shape \(2, 3, 4, 5\) need 40 labels \(2 x 20 .* got 8 of shape \(2, 4\)"):
        loss_of("", labels=np.zeros((2, 4)))


def test_first_axis():
    with pytest.raises(LayerError, match=r"bottoms 0 and 1 must have the same first axis, got shapes \(6, 3\) and \(2, 3\)"):
        loss_of("", np.zeros((6, 3)), np.zeros((2, 3)))


def test_axis_out_of_range():
    with pytest.raises(LayerError, match=r"axis 4 is out of range for shape \(2, 3, 4, 5\)"):
        loss_of("softmax_param { axis: 4 }")


WEIGHTS = "weight_by_label_freqs: true class_weighting: 0.25 class_weighting: 3 class_weighting: 1.5"


@pytest.mark.parametrize("text, divisor", [("", 40), ("ignore_label: 1", None), ("normalize: false", 2)])
def test_segnets_class_weights(text, divisor):
    case = LayerCase(f'type: "SoftmaxWithLoss" loss_param {{ {WEIGHTS} {text} }}', SCORES, LABELS, tops=2)
    kept = LABELS != 1 if "ignore" in text else np.ones(LABELS.shape, bool)
    losses = -np.log(np.take_along_axis(softmax(SCORES), LABELS[:, None], axis=1)[:, 0])
    expected = (losses * np.array([0.25, 3, 1.5])[LABELS])[kept].sum() / (divisor or kept.sum())
    np.testing.assert_allclose(case.forward()[0], expected)
    assert case.check_gradient().elements == 120


def test_class_weights_are_one_for_each_class_and_count_only_when_asked_for():
    with pytest.raises(LayerError, match="weight_by_label_freqs needs one class_weighting for each of 3 classes, got 2"):
        loss_of("loss_param { weight_by_label_freqs: true class_weighting: 1 class_weighting: 2 }")
    np.testing.assert_array_equal(loss_of("loss_param { class_weighting: 7 }"), loss_of(""))


def test_each_positions_loss():
    x, labels = np.random.default_rng(0).normal(size=(3, 4, 2)), np.array([[0, 1], [2, 3], [1, 1]])
    loss, prob, losses = LayerCase('type: "SoftmaxWithLoss"', x, labels, tops=3).forward()
    np.testing.assert_allclose(losses, -np.log(np.take_along_axis(prob, labels[:, None], axis=1)[:, 0]), rtol=1e-9)
    np.testing.assert_allclose(losses.mean(), loss, rtol=1e-9)
