"""InnerDistance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str = "") -> str:
    return f'type: "InnerDistance" inner_distance_param {{ {inside} weight_filler {{ type: "gaussian" std: 2 }} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize(("kind", "y"), [("L2", [[25, 1]]), ("L1", [[7, 1]])])
def test_by_hand(kind: str, y: list[list[float]]) -> None:
    """From (3, 4) to the origin and to (3, 3)."""
    case = LayerCase(text(f'distance_type: "{kind}"'), [[3.0, 4]], [[0.0, 0], [3, 3]])
    assert case.forward()[0].tolist() == y
    dx, dw = case.backward(np.array([[1.0, 10]]))
    assert (dx.tolist(), dw.tolist()) == (
        ([[6, 28]], [[-6, -8], [0, -20]]) if kind == "L2" else ([[1, 11]], [[-1, -1], [0, -10]])
    )


@given(st.integers(1, 3), st.integers(1, 4))
def test_a_centre_at_x_is_nearest(items: int, features: int) -> None:
    x = normal(items, features)
    (y,) = LayerCase(text(), x, np.r_[x + 1, x]).forward()
    np.testing.assert_allclose(y[:, :items] @ np.zeros(items) + np.diag(y[:, :items]), features)
    assert not np.diag(y[:, items:]).any() and (y >= 0).all()


@pytest.mark.parametrize(
    "inside",
    [
        "num_output: 4",
        "num_output: 4 normalize: true",
        'num_output: 4 distance_type: "L1"',
        "num_output: 4 transpose: true normalize: true",
        "num_output: 4 axis: 2",
    ],
)
def test_gradient(inside: str) -> None:
    case = LayerCase(text(inside), normal(2, 3, 5))
    assert case.top[0].shape == ((2, 3, 4) if "axis" in inside else (2, 4))
    case.check_gradient()


def test_with_normalize_the_weights_stay_and_count_as_of_length_1() -> None:
    x, case = normal(2, 5), LayerCase(text("num_output: 3 normalize: true"), normal(2, 5))
    w = case.layer.blobs[0].data.copy()
    u = w / np.sqrt((w**2).sum(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(case.forward()[0], ((x[:, None] - u) ** 2).sum(2))
    np.testing.assert_array_equal(case.layer.blobs[0].data, w)


def test_gradient_of_both_bottoms_and_a_second_reshape() -> None:
    case = LayerCase(text('distance_type: "L1"'), normal(3, 5), normal(4, 5))
    assert case.layer.weight_names == () and not case.layer.blobs
    case.check_gradient()
    case.bottom[0].reshape(2, 5)
    case.bottom[1].reshape(6, 5, 1)
    assert case.forward()[0].shape == (2, 6)
    case.bottom[0].diff[...] = case.bottom[1].diff[...] = 7
    assert all((diff == 7).all() for diff in case.backward(np.ones((2, 6)), propagate_down=[False, False]))


@pytest.mark.parametrize(
    ("inside", "bottoms", "message"),
    [
        ("", [(2, 5)], "num_output must be > 0, got 0"),
        ('num_output: 2 distance_type: "cosine"', [(2, 5)], 'distance_type must be "L2" or "L1", got "cosine"'),
        ("num_output: 2 update_center_only: true", [(2, 5)], "update_center_only changes the gradient"),
        ("", [(2, 5), (4, 6)], r"the centres must be \(N, 5\), got shape \(4, 6\)"),
    ],
)
def test_errors(inside: str, bottoms: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(inside), *map(np.zeros, bottoms))


def test_error_of_another_size() -> None:
    case = LayerCase(text("num_output: 2"), np.zeros((2, 5)))
    case.bottom[0].reshape(2, 6)
    with pytest.raises(LayerError, match=r"was set up for 5 features, the bottom's shape is now \(2, 6\)"):
        case.forward()
