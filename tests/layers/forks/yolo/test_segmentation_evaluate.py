"""SegmentationEvaluate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "SegmentationEvaluate" segmentation_evaluate_param { num_classes: 3 threshold: 0.25 }'


def test_by_hand() -> None:
    """Of the first image's classes two pixels of three, none, and none of none; the second image is not read."""
    maps, true = np.zeros((2, 3, 2, 4)), np.zeros((2, 3, 2, 4))
    maps[0, 0, 0] = (0.3, 0.9, 0.25, 0)
    true[0, 0, 0] = (1, 1, 1, 0)
    maps[0, 1, 1, 1] = true[0, 1, 0, 1] = maps[1] = 1
    case = LayerCase(TEXT, maps, true)
    (y,) = case.forward()
    assert y.shape == (1, 1, 1, 3)
    np.testing.assert_allclose(y[0, 0, 0], [2 / 3, 0, 0], rtol=1e-6)


def test_maps_of_another_size() -> None:
    """0.9 and 0 are 229 and 0 of 255; twice as wide 229, 171, 57, 0, of which two exceed 63."""
    maps, true = np.array([[[[0.9, 0.0]]]]), np.array([[[[1, 1, 1, 0]]]])
    assert LayerCase(TEXT, maps, true).forward()[0].item() == pytest.approx(2 / 3, rel=1e-6)
    with pytest.raises(LayerError, match="maps of another size than the true ones must be from 0 to 1"):
        LayerCase(TEXT, 2 * maps, true).forward()


@given(st.integers(0, 99))
def test_what_is_found_and_what_is_true_may_change_places(seed: int) -> None:
    one, other = np.random.default_rng(seed).integers(0, 2, (2, 1, 3, 2, 4)).astype(float)
    first, second = (LayerCase(TEXT, *pair).forward()[0] for pair in ((one, other), (other, one)))
    assert first.tolist() == second.tolist() and (first <= 1).all()


def test_a_second_reshape_and_no_gradient() -> None:
    case = LayerCase(TEXT, np.ones((1, 2, 3, 4)), np.ones((1, 2, 3, 4)))
    for blob in case.bottom:
        blob.reshape(1, 1, 2, 2)
    assert case.forward()[0].tolist() == [[[[1]]]]
    assert not any(diff.any() for diff in case.backward(np.ones((1, 1, 1, 1))))


def test_errors() -> None:
    with pytest.raises(LayerError, match="needs num_classes"):
        LayerCase('type: "SegmentationEvaluate"', np.ones((1, 2, 3, 4)), np.ones((1, 2, 3, 4)))
    with pytest.raises(LayerError, match=r"as many true ones of an image, got \(1, 2, 3, 4\) and \(1, 3, 3, 4\)"):
        LayerCase(TEXT, np.ones((1, 2, 3, 4)), np.ones((1, 3, 3, 4)))
