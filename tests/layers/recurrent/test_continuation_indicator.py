"""ContinuationIndicator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(more: str) -> str:
    return f'type: "ContinuationIndicator" continuation_indicator_param {{ {more} }}'


def test_by_hand() -> None:
    assert LayerCase(text("time_step: 3 batch_size: 2")).forward()[0].tolist() == [[0, 0], [1, 1], [1, 1]]


@given(st.integers(1, 5), st.integers(1, 5))
def test_each_sequence_begins_once(steps: int, sequences: int) -> None:
    (top,) = LayerCase(text(f"time_step: {steps} batch_size: {sequences}")).forward()
    assert top.shape == (steps, sequences)
    assert (top[0] == 0).all()
    assert top.sum() == (steps - 1) * sequences


def test_a_bottom_says_how_many_sequences_there_are() -> None:
    case = LayerCase(text("time_step: 2 axis: 1"), np.zeros((4, 3, 5)))
    assert case.forward()[0].tolist() == [[0, 0, 0], [1, 1, 1]]
    case.bottom[0].reshape(4, 1)
    assert case.forward()[0].tolist() == [[0], [1]]
    assert not case.backward(np.ones((2, 1)))[0].any()


@pytest.mark.parametrize(
    ("more", "bottoms", "message"),
    [
        ("batch_size: 2", 0, "needs time_step > 0"),
        ("time_step: 2", 0, "needs batch_size > 0, or a bottom"),
        ("time_step: 2 batch_size: 3", 1, "its bottom says how many sequences there are: give no batch_size"),
        ("time_step: 2 axis: 2", 1, r"axis 2 is out of range for shape \(2, 3\)"),
    ],
)
def test_errors(more: str, bottoms: int, message: str) -> None:
    with pytest.raises(LayerError, match='ContinuationIndicator layer "layer": ' + message):
        LayerCase(text(more), *[np.zeros((2, 3))] * bottoms)
