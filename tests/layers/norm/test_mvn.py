"""MVN."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def text(inside: str = "") -> str:
    return f'type: "MVN" mvn_param {{ {inside} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """Two maps: mean 2 and deviation 1; mean 5 and deviation 3."""
    x = [[[[1.0, 3.0]], [[2.0, 8.0]]]]
    (y,) = LayerCase(text("eps: 1"), x, dtype=dtype).forward()
    np.testing.assert_allclose(y, [[[[-0.5, 0.5]], [[-0.75, 0.75]]]], rtol=1e-6)
    assert y.dtype == dtype
    (y,) = LayerCase(text("normalize_variance: false across_channels: true"), x, dtype=dtype).forward()
    np.testing.assert_array_equal(y, [[[[-2.5, -0.5]], [[-1.5, 4.5]]]])
    case = LayerCase(text("normalize_variance: false"), x, dtype=dtype)
    case.forward()
    np.testing.assert_array_equal(case.backward([[[[1.0, 3.0]], [[0.0, 8.0]]]])[0], [[[[-1, 1]], [[-4, 4]]]])


@pytest.mark.parametrize("case", cases("MVN"))
def test_golden(case: str) -> None:
    assert run_case(case) == 2


@given(st.integers(0, 1000), st.booleans(), st.floats(0.5, 20), st.floats(-5, 5))
def test_scale_and_shift_of_the_input_do_not_matter(seed: int, across: bool, scale: float, shift: float) -> None:
    x = np.random.default_rng(seed).normal(size=(2, 3, 4, 5))
    options = text(f"across_channels: {str(across).lower()}")
    (y,) = LayerCase(options, x).forward()
    axes = (1, 2, 3) if across else (2, 3)
    np.testing.assert_allclose(y.mean(axis=axes), 0, atol=1e-12)
    np.testing.assert_allclose(y.std(axis=axes), 1, rtol=1e-6)
    np.testing.assert_allclose(LayerCase(options, scale * x + shift).forward()[0], y, atol=1e-6)


@pytest.mark.parametrize("options", ["", "across_channels: true", "normalize_variance: false"])
def test_gradient(options: str) -> None:
    LayerCase(text(options), normal(2, 3, 4, 5)).check_gradient()


@pytest.mark.parametrize("options", ["eps: 0.1", "normalize_variance: false across_channels: true"])
def test_in_place(options: str) -> None:
    x, dy = normal(2, 3, 4, 5), normal(5, 4, 3, 2).reshape(2, 3, 4, 5)
    case, inside = LayerCase(text(options), x), LayerCase(text(options), x, in_place=True)
    np.testing.assert_array_equal(inside.forward()[0], case.forward()[0])
    np.testing.assert_array_equal(case.bottom[0].data, x)
    np.testing.assert_array_equal(inside.backward(dy)[0], case.backward(dy)[0])


@pytest.mark.parametrize("shape", [(), (7,), (2, 7), (2, 3, 7)])
def test_the_top_has_four_axes(shape: tuple[int, ...]) -> None:
    case = LayerCase(text(), np.ones(shape))
    (y,) = case.forward()
    assert y.shape == (*shape, *[1] * (4 - len(shape)))
    assert not y.any()
    assert case.backward(np.ones(y.shape))[0].shape == shape


def test_second_reshape_empty_batches_and_maps() -> None:
    case = LayerCase(text(), normal(2, 3, 4, 5))
    for shape in ((1, 2, 5, 3), (0, 3, 4, 5), (2, 3, 0, 5)):
        case.bottom[0].reshape(shape)
        assert case.forward()[0].shape == shape
        assert case.backward(np.zeros(shape), propagate_down=[True])[0].shape == shape


def test_no_gradient_when_not_asked() -> None:
    case = LayerCase(text(), normal(2, 3, 4, 5))
    case.forward()
    case.bottom[0].diff[...] = 7
    assert (case.backward(np.ones((2, 3, 4, 5)), propagate_down=[False])[0] == 7).all()


def test_more_than_four_axes() -> None:
    with pytest.raises(LayerError, match=r"the bottom must have at most 4 axes, its shape is \(1, 2, 3, 4, 5\)"):
        LayerCase(text(), normal(1, 2, 3, 4, 5))


def test_where_eps_is_added_must_be_the_same() -> None:
    field = 'type: "MVN" mvn_param { add_eps_before_sqrt: %s }'
    x = np.random.default_rng(3).normal(size=(2, 3, 4, 5))
    np.testing.assert_array_equal(LayerCase(field % "false", x).forward()[0], LayerCase('type: "MVN"', x).forward()[0])
    with pytest.raises(LayerError, match=r"add_eps_before_sqrt: true, for .* sqrt\(var \+ eps\) \(Synopsys.* is not built in"):
        LayerCase(field % "true", x)


@pytest.mark.parametrize(("inside", "copies"), [("", 1), ("normalize_variance: false", 0)])
def test_memory_at_work(inside: str, copies: int) -> None:
    """To divide by the deviation takes a copy of the bottom; to subtract the mean takes none."""
    case = LayerCase(text(inside), normal(2, 3, 4, 5))
    assert case.layer.costs(case.bottom, case.top).working == copies * case.bottom[0].data.nbytes
    assert case.layer.costs(case.bottom, case.top, [True]).working == copies * case.bottom[0].data.nbytes
