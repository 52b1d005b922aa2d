"""MarginInnerProduct."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.forks.faces.margins import psi
from minicaffe.mode import TRAIN

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


PARAM = 'num_output: {} type: {} {} weight_filler {{ type: "gaussian" std: 1 }}'
TEXT = f'type: "MarginInnerProduct" margin_inner_product_param {{{{ {PARAM} }}}}'


def test_by_hand() -> None:
    """x of length 5 at angles a to w_0 = (1, 0): cos a = 0.6; cos 2a = -0.28."""
    case = LayerCase(TEXT.format(2, "DOUBLE", "base: 3 gamma: 0 lambda_min: 1"), [[3.0, 4.0]], [0.0], tops=2)
    case.layer.blobs[0].data[...] = [[2, 0], [0, 0.5]]
    y, share = case.forward()
    assert share.tolist() == [3]
    np.testing.assert_allclose(y, [[5 * (3 * 0.6 - 0.28) / 4, 4]])
    assert case.layer.blobs[0].data.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("kind", ["SINGLE", "DOUBLE", "TRIPLE", "QUADRUPLE"])
def test_gradient(kind: str) -> None:
    case = LayerCase(TEXT.format(3, kind, "base: 2"), normal(4, 5), [0.0, 2.0, 1.0, 2.0])
    case.forward()  # the rows have length 1 from here on
    case.check_gradient()


def test_lambda_falls_with_the_iterations() -> None:
    case = LayerCase(
        TEXT.format(3, "SINGLE", "base: 10 gamma: 1 power: 1 lambda_min: 3"), normal(4, 5), [0.0] * 4, phase=TRAIN, tops=2
    )
    assert [float(case.forward()[1][0]) for _ in range(4)] == [5, pytest.approx(10 / 3), 3, 3]


@pytest.mark.parametrize("times", [2, 3, 4])
def test_slope_at_the_ends(times: int) -> None:
    """|d cos(m a) / d cos a| is m^2 at angles 0 and pi; psi never rises with the angle."""
    values, slopes = psi(np.array([1.0, -1.0]), times)
    np.testing.assert_allclose(values, [1, 1 - 2 * times])
    np.testing.assert_allclose(slopes, [times**2, times**2])


@given(st.floats(0, np.pi), st.sampled_from([2, 3, 4]))
@example(np.pi, 2)
def test_psi_falls_from_1(angle: float, times: int) -> None:
    """(-1)^k cos(m a) - 2 k falls with the angle, and is below its cosine."""
    cosines = np.cos(np.array([angle, min(angle + 0.01, np.pi)]))
    values, slopes = psi(cosines, times)
    assert values[1] <= values[0] + 1e-9 and (values <= cosines + 1e-9).all() and (slopes >= -1e-9).all()
    assert psi(np.array([1.0]), times)[0] == pytest.approx(1)


def test_zero_vectors() -> None:
    case = LayerCase(TEXT.format(2, "QUADRUPLE", ""), np.zeros((2, 3)), [0.0, 1.0])
    case.layer.blobs[0].data[1] = 0
    assert not case.forward()[0].any() and np.isfinite(case.backward(np.ones((2, 2)))[0]).all()


def test_lambda_is_infinite_where_its_base_is_0() -> None:
    """As C's pow has it."""
    inside = "gamma: 1 iteration: -2 power: 1"
    case = LayerCase(TEXT.format(3, "SINGLE", inside), normal(4, 5), [0.0] * 4, phase=TRAIN, tops=2)
    assert case.forward()[1] == np.inf


def test_bad_labels() -> None:
    with pytest.raises(LayerError, match="label 3 at position 1"):
        LayerCase(TEXT.format(3, "DOUBLE", ""), normal(2, 3), [0.0, 3.0]).forward()


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format(0, "SINGLE", ""), [(2, 3), (2,)], "num_output must be > 0"),
        (TEXT.format(3, "SINGLE", ""), [(2, 3), (3,)], "labels"),
        (TEXT.format(3, "SINGLE", "gamma: -0.5"), [(2, 3), (2,)], "gamma must be >= 0, got -0.5"),
        (TEXT.format(3, "DOUBLE", ""), [(2, 0), (2,)], r"the bottom of shape \(2, 0\) has no features"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
