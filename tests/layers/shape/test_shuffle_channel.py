"""ShuffleChannel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(group: int) -> str:
    return f'type: "ShuffleChannel" shuffle_channel_param {{ group: {group} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    """Channels 0 1 2 of the first group, 3 4 5 of the second."""
    case = LayerCase(text(2), [[0.0, 1, 2, 3, 4, 5]])
    assert case.forward()[0].tolist() == [[0, 3, 1, 4, 2, 5]]
    assert case.backward(np.array([[10.0, 13, 11, 14, 12, 15]]))[0].tolist() == [[10, 11, 12, 13, 14, 15]]


@given(st.integers(1, 4), st.integers(1, 4))
def test_with_as_many_groups_as_they_had_members_it_goes_back(group: int, members: int) -> None:
    x = normal(2, group * members, 3, 5)
    (y,) = LayerCase(text(group), x).forward()
    assert sorted(y.reshape(-1)) == sorted(x.reshape(-1))
    np.testing.assert_array_equal(LayerCase(text(members), y).forward()[0], x)


def test_no_group_given_changes_nothing() -> None:
    x = normal(2, 5, 3)
    np.testing.assert_array_equal(LayerCase('type: "ShuffleChannel"', x).forward()[0], x)


@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (2, 3), (3, 9, 2)])
def test_gradient(shape: tuple[int, ...]) -> None:
    LayerCase(text(3), normal(*shape)).check_gradient()


@pytest.mark.parametrize("shape", [(5, 8, 3), (0, 4, 7), (2, 0, 3), (3, 4, 0)])
def test_a_second_reshape(shape: tuple[int, ...]) -> None:
    case = LayerCase(text(4), normal(2, 4, 3, 3))
    case.bottom[0].reshape(*shape)
    case.bottom[0].data[...] = 2
    assert (case.forward()[0] == np.full(shape, 2)).all()
    assert case.backward(np.ones(shape))[0].tolist() == np.ones(shape).tolist()


@pytest.mark.parametrize(
    ("group", "shape", "message"),
    [
        (4, (2, 6, 3), "6 channels cannot be cut into 4 groups of one size"),
        (0, (2, 6, 3), "group must be > 0, got 0"),
        (1, (3,), r"x must have at least two axes, got shape \(3,\)"),
    ],
)
def test_errors(group: int, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match='ShuffleChannel layer "layer": ' + message):
        LayerCase(text(group), np.zeros(shape))
