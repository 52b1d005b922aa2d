"""FrcnnProposal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError, PrototxtWarning

pytestmark = [
    pytest.mark.usefixtures("device"),
    pytest.mark.gpu_barrier,
    pytest.mark.filterwarnings("ignore::minicaffe.errors.PrototxtWarning"),
]


def rois(scores: np.ndarray, deltas: np.ndarray, *, size: tuple[float, float, float] = (400.0, 600.0, 1.0)) -> list[np.ndarray]:
    return LayerCase('type: "FrcnnProposal"', scores, deltas, [size], tops=2).forward()


def test_by_hand() -> None:
    """Two of the anchors of the second place, which do not overlap much, moved by 16 pixels and clipped."""
    scores, deltas = np.zeros((1, 18, 1, 2)), np.zeros((1, 36, 1, 2))
    scores[0, 9 + 3, 0, 1], scores[0, 9 + 2, 0, 1] = 0.9, 0.8
    found, best = rois(scores, deltas)
    assert found[:2].tolist() == [[0, 0, 0, 88, 73], [0, 0, 0, 392, 101]]
    np.testing.assert_allclose(best[:2], [[0.9], [0.8]], rtol=1e-6)


@given(st.integers(1, 4), st.integers(1, 5))
def test_rois_lie_in_the_image_and_the_best_come_first(height: int, width: int) -> None:
    random = np.random.default_rng(height * 7 + width)
    found, best = rois(random.uniform(0, 1, (1, 18, height, width)), random.normal(size=(1, 36, height, width)))
    assert (found[:, 1:] >= 0).all() and (found[:, [1, 3]] <= 599).all() and (found[:, [2, 4]] <= 399).all()
    assert (np.diff(best[:, 0]) <= 0).all()
    assert (found[:, 3:] - found[:, 1:3] + 1 >= 16).all()


def test_a_second_reshape() -> None:
    case = LayerCase('type: "FrcnnProposal"', np.zeros((1, 18, 2, 3)), np.zeros((1, 36, 2, 3)), [[400.0, 600.0, 1.0]], tops=2)
    case.forward()
    for blob, channels in zip(case.bottom, (18, 36)):
        blob.reshape(1, channels, 1, 2)
        blob.data[...] = 0
    assert case.forward()[0].tolist() == rois(np.zeros((1, 18, 1, 2)), np.zeros((1, 36, 1, 2)))[0].tolist()


def test_the_warning() -> None:
    with pytest.warns(
        PrototxtWarning, match=r'FrcnnProposal layer "layer": the fork reads its anchors from a file of settings'
    ):
        rois(np.zeros((1, 18, 1, 2)), np.zeros((1, 36, 1, 2)))


def test_errors() -> None:
    with pytest.raises(LayerError, match=r"9 anchors need scores of shape \(1, 18, H, W\), got \(1, 24, 1, 2\)"):
        rois(np.zeros((1, 24, 1, 2)), np.zeros((1, 36, 1, 2)))
    with pytest.raises(LayerError, match="takes one image"):
        rois(np.zeros((2, 18, 1, 2)), np.zeros((2, 36, 1, 2)))
