"""FocalLoss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError, PrototxtWarning
from minicaffe.layers.loss.focal_loss import focal_slope

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

TEXT = 'type: "FocalLoss" focal_loss_param {{ {} }} {}'
TIMES = "engine: CAFFE"  # only DeepDetect's has an engine
LABELS = [[1.0, 0.0, 2.0, 2.0, 1.0], [0.0, 0.0, 1.0, 2.0, 1.0]]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize(
    ("param", "factor"),
    [
        (TIMES, 0.25 * 0.75**2),
        (f"{TIMES} alpha: 0.5 gamma: 1", 0.5 * 0.75),
        ("alpha: 1 gamma: 3", 0.75**3),
        ("type: ONEADDP", 1.25**2),
        ("type: ONEADDP alpha: 0.5 gamma: 1.5", 0.75**1.5),
    ],
)
def test_by_hand(param: str, factor: float) -> None:
    """Scores log 1 and log 3: the label's probability is 1/4."""
    case = LayerCase(TEXT.format(param, ""), [[0.0, np.log(3)]], [0.0])
    assert case.forward()[0] == pytest.approx(factor * np.log(4))


def test_what_the_loss_is_divided_by() -> None:
    """Three positions of probability 1/2, one of which is ignored."""
    for more, divisor in (("", 2), ("normalization: FULL", 3), ("normalize: false", 3), ("normalization: NONE", 1)):
        case = LayerCase(
            TEXT.format("alpha: 1 gamma: 0", f"loss_param {{ ignore_label: 1 {more} }}"), np.zeros((3, 2)), [0.0, 1.0, 0.0]
        )
        assert case.forward()[0] == pytest.approx(2 * np.log(2) / divisor)
        assert not case.backward(np.array(1.0))[0][1].any()


@pytest.mark.parametrize(
    "param", [TIMES, f"{TIMES} gamma: 0", f"{TIMES} gamma: 0.5 alpha: 2", "type: ONEADDP alpha: 0.7 gamma: 1.5", "axis: -2"]
)
def test_gradient(param: str) -> None:
    case = LayerCase(TEXT.format(param, "loss_param { ignore_label: 2 }"), normal(2, 3, 5), LABELS)
    case.check_gradient()


@pytest.mark.parametrize(("start", "sign", "gamma"), [(0.75, -1, 1), (0.5, -1, 3), (1.5, -1, 0.5), (0.5, 1, 2.5)])
def test_the_slope_is_p_times_the_derivative(start: float, sign: int, gamma: float) -> None:
    p, step = np.array([0.1, 0.4, 0.9]), 1e-6
    above, below = (-((start + sign * q) ** gamma) * np.log(q) for q in (p + step, p - step))
    np.testing.assert_allclose(focal_slope(p, start, sign, gamma), p * (above - below) / (2 * step), rtol=1e-6)


def test_the_axis_of_the_classes() -> None:
    x, labels = normal(2, 3, 5), np.array(LABELS)
    (loss,) = LayerCase(TEXT.format("axis: 1", ""), x, labels).forward()
    for param, more in (("axis: 2", ""), (TIMES, "softmax_param { axis: 2 }")):
        assert LayerCase(TEXT.format(param, more), x.transpose(0, 2, 1), labels).forward()[0] == pytest.approx(loss)


def test_the_probabilities() -> None:
    loss, prob = LayerCase(TEXT.format(TIMES, ""), normal(2, 3, 5), LABELS, tops=2).forward()
    np.testing.assert_allclose(prob.sum(axis=1), 1)
    assert loss > 0


@given(st.floats(0, 4), st.integers(2, 5), st.floats(-40, 40))
def test_the_scores_level_does_not_count_and_gamma_lowers_the_loss(gamma: float, classes: int, level: float) -> None:
    x, labels = normal(3, classes), np.arange(3.0) % classes
    (loss,) = LayerCase(TEXT.format(f"alpha: 1 gamma: {gamma}", ""), x, labels).forward()
    (moved,) = LayerCase(TEXT.format(f"alpha: 1 gamma: {gamma}", ""), x + level, labels).forward()
    (plain,) = LayerCase('type: "SoftmaxWithLoss"', x, labels).forward()
    assert moved == pytest.approx(loss, rel=1e-6) and 0 <= loss <= plain * (1 + 1e-6)


@pytest.mark.parametrize("gamma", [0, 0.5, 1, 2])
def test_a_sure_answer(gamma: float) -> None:
    """A probability of 1 for the label, and one of 0, give finite numbers."""
    case = LayerCase(TEXT.format(f"alpha: 1 gamma: {gamma}", ""), [[1000.0, 0.0], [0.0, 1000.0]], [0.0, 0.0])
    assert np.isfinite(case.forward()[0]) and np.isfinite(case.backward(np.array(1.0))[0]).all()


def test_linear_is_origin_with_a_warning() -> None:
    x, labels = normal(2, 3), [0.0, 2.0]
    (origin,) = LayerCase(TEXT.format("alpha: 1", ""), x, labels).forward()
    with pytest.warns(PrototxtWarning, match="type LINEAR computes what ORIGIN does"):
        (linear,) = LayerCase(TEXT.format("type: LINEAR alpha: 1", ""), x, labels).forward()
    assert linear == origin


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ("", "it may be makefile/frcnn's .*--fork mkfrcnn.* or happynear's .*--fork happynear.* the files do not show which"),
        ("alpha: 0.5", "the files do not show which"),
        (f"{TIMES} gamma: -1", "gamma must be >= 0, got -1"),
        (f"{TIMES} alpha: 0", "alpha must be > 0, got 0"),
        ("type: ONEADDP axis: 1", "type ONEADDP is happynear's and axis DeepDetect's"),
        ("axis: 2", r"axis 2 is out of range for shape \(3, 2\)"),
    ],
)
def test_errors(param: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(TEXT.format(param, ""), np.zeros((3, 2)), np.zeros(3))


def test_bad_labels() -> None:
    with pytest.raises(LayerError, match="label 2 at position 1 is not a label from 0 to 1"):
        LayerCase(TEXT.format(TIMES, ""), np.zeros((3, 2)), [0.0, 2.0, 1.0]).forward()
    with pytest.raises(LayerError, match="need 3 labels"):
        LayerCase(TEXT.format(TIMES, ""), np.zeros((3, 2)), np.zeros(4))
