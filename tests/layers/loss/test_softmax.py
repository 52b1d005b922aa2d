"""Softmax: probabilities along one axis."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import TEST
from minicaffe.compiled.jit import loop
from minicaffe.compiled.vectors import exponentials
from minicaffe.errors import LayerError
from minicaffe.layers.loss.softmax import softmax

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

rng = np.random.default_rng(7)


def test_by_hand():
    (y,) = LayerCase('type: "Softmax"', [[0.0, np.log(3)], [5.0, 5.0]]).forward()
    np.testing.assert_allclose(y, [[0.25, 0.75], [0.5, 0.5]])


def test_scores_too_large_for_exp():
    (y,) = LayerCase('type: "Softmax"', [[1e30, -1e30, 0.0]], dtype=np.float32).forward()
    np.testing.assert_array_equal(y, [[1, 0, 0]])


@pytest.mark.parametrize("case", cases("Softmax"))
def test_golden(case):
    assert run_case(case) == 2


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_gradient(axis):
    case = LayerCase(f'type: "Softmax" softmax_param {{ axis: {axis} }}', rng.normal(size=(2, 5, 3, 4)))
    assert case.check_gradient().elements == 120


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_compiled_and_not(axis, dtype, loops_way):
    """With lines that hold what is not finite, which make these lines NaN alone; and with more numbers than loops take where
    those of a line lie apart, and than a block has where they do not."""
    x = rng.normal(0, 5, size=(17, 23, 19)).astype(dtype)
    lines = np.moveaxis(x, axis, 2)
    lines[1, 2, 3], lines[3, 5, 0], lines[5, 7] = np.nan, np.inf, -np.inf
    lines[7, 11, 4] = -np.inf  # a probability of 0
    for numbers in (x, np.concatenate([x, x], axis=0 if axis else 1)):
        with np.errstate(invalid="ignore"):
            expected = softmax(numbers, axis)
            (y,) = LayerCase(f'type: "Softmax" softmax_param {{ axis: {axis} }}', numbers, dtype=dtype, phase=TEST).forward()
        np.testing.assert_allclose(y, expected, rtol=1e-6 if dtype is np.float32 else 1e-13)
        assert np.isnan(y).any(axis=axis).sum() == 3 * numbers.size // x.size


@loop("T[::1], int64, int64")
def take_exponentials(y, start, count):
    exponentials(y, start, count)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_exponentials(dtype, loops_way):
    """Of all magnitudes: results that are infinite, denormal, and 0; of whole vectors and rests. Long doubles have 11 bits more
    than float64, where the processor has them. NumPy's own exp is off by up to 2.52 units. To compile for another type takes
    seconds."""
    limits, many, most_units = np.finfo(dtype), *((50_000, 2) if loops_way == "numba" else (500, 3))
    least, most = np.log(float(limits.smallest_subnormal)), np.log(float(limits.max))
    numbers = rng.uniform(least - 2, most + 2, many), rng.uniform(-1, 1, many), np.linspace(least - 1, least + 20, many - 1)
    special = [np.nan, np.inf, -np.inf, limits.max, limits.min, 0.0, -0.0, limits.smallest_subnormal]
    x = np.concatenate([*numbers, special]).astype(dtype)
    for start, count in ((0, len(x)), (3, len(x) - 3), (len(x) - 8, 8), (5, 1), (7, 0)):
        y = x.copy()
        with np.errstate(over="ignore", under="ignore"):
            take_exponentials(y, start, count)
            exact = np.exp(x.astype(np.longdouble))
            expected = exact.astype(dtype)
        inside = slice(start, start + count)
        changed = y != x
        changed[inside] = False
        assert not changed[~np.isnan(x)].any()
        finite = np.isfinite(expected[inside])
        unit = np.spacing(expected[inside][finite]).astype(np.longdouble)
        assert (np.abs(y[inside][finite] - exact[inside][finite]) <= most_units * unit).all()
        np.testing.assert_array_equal(y[inside][~finite], expected[inside][~finite])


@given(st.integers(0, 2**32 - 1), st.floats(-50, 50))
def test_adds_up_to_one_and_ignores_a_common_shift(seed, shift):
    x = np.random.default_rng(seed).normal(0, 5, (3, 7, 2))
    y = softmax(x)
    np.testing.assert_allclose(y.sum(axis=1), 1)
    np.testing.assert_allclose(softmax(x + shift), y, rtol=1e-9)


def test_in_place_equals_apart():
    x, dy = rng.normal(size=(2, 7, 3, 4)), rng.normal(size=(2, 7, 3, 4))
    apart, within = LayerCase('type: "Softmax"', x), LayerCase('type: "Softmax"', x, in_place=True)
    np.testing.assert_array_equal(within.forward()[0], apart.forward()[0])
    np.testing.assert_array_equal(apart.bottom[0].data, x)
    np.testing.assert_array_equal(within.backward(dy)[0], apart.backward(dy)[0])


def test_reshapes_and_takes_no_rois():
    case = LayerCase('type: "Softmax"', rng.normal(size=(4, 5)))
    for shape in ((2, 3, 4, 5), (0, 21, 1, 1)):
        case.bottom[0].reshape(shape)
        case.bottom[0].data[...] = 1
        (y,) = case.forward()
        np.testing.assert_allclose(y, np.full(shape, 1 / shape[1]))
        assert case.backward(y)[0].shape == shape


def test_axis_out_of_range():
    with pytest.raises(LayerError, match=r'Softmax layer "layer": axis 2 is out of range for shape \(4, 5\)'):
        LayerCase('type: "Softmax" softmax_param { axis: 2 }', np.zeros((4, 5)))


def test_a_scalar_has_no_axis():
    with pytest.raises(LayerError, match="axis 1 is out of range: the bottom is a scalar, which has no axes"):
        LayerCase('type: "Softmax"', np.zeros(()))
