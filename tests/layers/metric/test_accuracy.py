"""Accuracy: the share of right answers among the top_k."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

rng = np.random.default_rng(13)


def accuracy(text, x, labels, tops=1):
    return LayerCase(f'type: "Accuracy" accuracy_param {{ {text} }}', x, labels, tops=tops)


@pytest.mark.gpu_barrier
def test_by_hand():
    scores = [[0.1, 0.9, 0.0], [0.5, 0.2, 0.3], [0.2, 0.3, 0.5], [0.4, 0.4, 0.2]]
    assert accuracy("", scores, [1, 0, 1, 0]).forward()[0] == 0.5
    assert accuracy("top_k: 2", scores, [1, 0, 1, 0]).forward()[0] == 1
    assert accuracy("ignore_label: 0", scores, [1, 0, 1, 0]).forward()[0] == 0.5
    whole, per_class = accuracy("", scores, [1, 0, 1, 0], tops=2).forward()
    assert whole.shape == ()
    np.testing.assert_array_equal(per_class, [0.5, 0.5, 0])


@pytest.mark.parametrize("case", cases("Accuracy"))
def test_golden(case):
    assert run_case(case) >= 1


def test_along_another_axis():
    scores = rng.normal(size=(2, 5, 3, 4))
    labels = scores.argmax(axis=2)
    labels[0] = (labels[0] + 1) % 3
    assert accuracy("axis: -2", scores, labels).forward()[0] == 0.5


@pytest.mark.gpu_barrier
@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 1, 4, 1)])
def test_over_axis_0(shape):
    """Scores (C, N): one label for each column."""
    scores = [[0.1, 0.5, 0.2, 0.4], [0.9, 0.2, 0.3, 0.3], [0.0, 0.3, 0.5, 0.2]]
    whole, per_class = accuracy("axis: 0", scores, np.reshape([1, 0, 1, 0], shape), tops=2).forward()
    assert whole == 0.75
    np.testing.assert_array_equal(per_class, [1, 0.5, 0])
    single = accuracy("axis: 0 top_k: 2", np.array([0.1, 0.9, 0.4]), np.array(2))
    assert single.forward()[0] == 1


@given(st.integers(0, 2**32 - 1))
def test_grows_with_top_k_up_to_one(seed):
    random = np.random.default_rng(seed)
    scores, labels = random.normal(size=(6, 4, 3)), random.integers(0, 4, (6, 3))
    values = [accuracy(f"top_k: {k}", scores, labels).forward()[0] for k in (1, 2, 3, 4)]
    assert values == sorted(values)
    assert values[-1] == 1


def test_bottoms_are_untouched_and_get_a_zero_diff():
    scores, labels = rng.normal(size=(5, 3)), np.arange(5) % 3
    case = accuracy("", scores, labels)
    case.forward()
    np.testing.assert_array_equal(case.bottom[0].data, scores)
    for blob in case.bottom:
        blob.diff[...] = 7
    assert not any(d.any() for d in case.backward())


def test_no_rois_and_a_second_reshape():
    case = accuracy("", rng.normal(size=(5, 3)), np.arange(5) % 3, tops=2)
    case.forward()
    case.bottom[0].reshape(0, 21, 1, 1)
    case.bottom[1].reshape(0)
    whole, per_class = case.forward()
    assert whole == 0
    np.testing.assert_array_equal(per_class, np.zeros(21))


@pytest.mark.parametrize(
    "text, shape, labels, message",
    [
        ("top_k: 4", (2, 3), [0, 0], "top_k must be at most the 3 classes, got 4"),
        ("axis: 2", (2, 3), [0, 0], r"axis 2 is out of range for shape \(2, 3\)"),
        ("", (2, 3), [0, 0, 0], r"scores of shape \(2, 3\) need 2 labels \(2 x 1 .* got 3 of shape \(3,\)"),
        ("", (2, 3), [0, 3], "label 3 at position 1 is not a label from 0 to 2"),
        ("ignore_label: -1", (2, 3), [0.5, 0], "label 0.5 at position 0 is not a whole label from 0 to 2, nor the ignored -1"),
    ],
)
def test_errors(text, shape, labels, message):
    with pytest.raises(LayerError, match='Accuracy layer "layer": ' + message):
        accuracy(text, np.zeros(shape), labels).forward()


def test_min_is_better() -> None:
    """happynear's: the lowest scores are the best, and of equal ones that of the lowest class."""
    x, labels = np.array([[2.0, 1, 1], [2, 1, 1], [0, 3, 0], [5, 4, 3]]), [1, 2, 2, 0]
    for top_k, right in ((1, 1), (2, 3), (3, 4)):
        text = f'type: "Accuracy" accuracy_param {{ min_is_better: true top_k: {top_k} }}'
        assert LayerCase(text, x, labels).forward()[0] == right / 4
