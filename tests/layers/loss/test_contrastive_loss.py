"""ContrastiveLoss: pairs of features."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

rng = np.random.default_rng(25)
TYPE = 'type: "ContrastiveLoss"'
LEGACY = TYPE + " contrastive_loss_param { legacy_version: true margin: 30 }"
ZEROS = np.zeros((3, 2))
PAIRS = np.array([[3.0, 4.0], [3.0, 4.0], [30.0, 40.0]])


def test_by_hand():
    case = LayerCase(TYPE + " contrastive_loss_param { margin: 7 }", PAIRS, ZEROS, [1, 0, 0])
    assert case.forward()[0] == (25 + 4) / 6
    da, db, dy = case.backward()
    np.testing.assert_allclose(da, np.array([[3, 4], [-3 * 2 / 5, -4 * 2 / 5], [0, 0]]) / 3, rtol=1e-4)
    np.testing.assert_array_equal(db, -da)
    assert not dy.any()


def test_by_hand_legacy():
    case = LayerCase(LEGACY, PAIRS, ZEROS, [1, 0, 0])
    assert case.forward()[0] == (25 + 5) / 6
    np.testing.assert_allclose(case.backward()[0], np.array([[3, 4], [-3, -4], [0, 0]]) / 3)


def test_happynears_pairs_have_two_labels():
    """Labels 2 and 2.9 are equal, as whole numbers; 0 and 0 too."""
    given = TYPE + " contrastive_loss_param { margin: 7 }"
    case = LayerCase(given, PAIRS, ZEROS, [2, 1, 0], [2.9, 2, 0])
    assert case.forward()[0] == (25 + 4 + 2500) / 6
    np.testing.assert_allclose(case.backward()[0], np.array([[3, 4], [-6 / 5, -8 / 5], [30, 40]]) / 3, rtol=1e-4)
    with pytest.raises(LayerError, match=r"bottoms 0 and 3 must have the same first axis"):
        LayerCase(TYPE, PAIRS, ZEROS, np.zeros(3), np.zeros(2))


@pytest.mark.parametrize("case", cases("ContrastiveLoss"))
def test_golden(case):
    assert run_case(case) == 3


@pytest.mark.parametrize("text", [TYPE + " contrastive_loss_param { margin: 4 }", LEGACY])
def test_gradient_in_both_features(text):
    """The original's 1e-4 beside the distance keeps it from being exact."""
    case = LayerCase(text, rng.normal(size=(7, 3)), rng.normal(size=(7, 3, 1, 1)), np.arange(7) % 2)
    assert case.check_gradient(tolerance=5e-4).elements == 42


@given(st.integers(0, 2**32 - 1))
def test_swapping_the_features_changes_nothing(seed):
    a, b = np.random.default_rng(seed).normal(size=(2, 5, 3))
    y = np.arange(5) % 2
    assert LayerCase(TYPE, a, b, y).forward() == LayerCase(TYPE, b, a, y).forward()


def test_second_reshape_to_no_pairs():
    case = LayerCase(TYPE, PAIRS, ZEROS, [1, 0, 0])
    case.forward()
    np.testing.assert_array_equal(case.bottom[0].data, PAIRS)
    for blob, shape in zip(case.bottom, [(0, 4), (0, 4), (0,)], strict=True):
        blob.reshape(shape)
    assert case.forward()[0] == 0
    assert case.backward()[0].shape == (0, 4)


@pytest.mark.parametrize(
    "shapes, message",
    [
        ([(3, 2), (3, 4), (3,)], r"bottoms 0 and 1 must have the same shape, got \(3, 2\) and \(3, 4\)"),
        ([(3, 2, 4), (3, 2, 4), (3,)], r"takes features of shape \(N, C\), got \(3, 2, 4\)"),
        ([(3, 2), (3, 2), (4,)], r"bottoms 0 and 2 must have the same first axis, got shapes \(3, 2\) and \(4,\)"),
        ([(3, 2), (3, 2), (3, 2)], r"takes one y for each of 3 pairs, got shape \(3, 2\)"),
    ],
)
def test_shapes(shapes, message):
    with pytest.raises(LayerError, match='ContrastiveLoss layer "layer": ' + message):
        LayerCase(TYPE, *map(np.zeros, shapes))
