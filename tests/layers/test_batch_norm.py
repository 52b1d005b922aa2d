"""BatchNorm."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.mode import TEST, TRAIN

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

TEXT = 'type: "BatchNorm" batch_norm_param { eps: 0.0001 moving_average_fraction: 0.5 }'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(1.5, 2.0, shape)


def test_by_hand() -> None:
    """Two channels of two numbers: (1, 3) has mean 2, variance 1; (10, 10) variance 0."""
    case = LayerCase(TEXT, [[1.0, 10.0], [3.0, 10.0]], phase=TRAIN)
    (y,) = case.forward()
    np.testing.assert_allclose(y, [[-1, 0], [1, 0]], atol=1e-4)
    mean, var, factor = (blob.data for blob in case.layer.blobs)
    np.testing.assert_allclose(mean, [2, 10])
    np.testing.assert_allclose(var, [2, 0])
    assert factor == [1]
    case.forward()
    mean, var, factor = (blob.data for blob in case.layer.blobs)
    np.testing.assert_allclose(mean, [3, 15])
    np.testing.assert_allclose(var, [3, 0])
    assert factor == [1.5]


def test_global_statistics_by_hand() -> None:
    case = LayerCase('type: "BatchNorm" batch_norm_param { eps: 0 }', [[5.0, 1.0]])
    for blob, value in zip(case.layer.blobs, ([2, 4], [8, 32], [2]), strict=True):
        blob.data[...] = value
    np.testing.assert_allclose(case.forward()[0], [[2, -0.25]])
    np.testing.assert_allclose(case.backward(np.array([[1.0, 1.0]]))[0], [[0.5, 0.25]])


@pytest.mark.parametrize("case", cases("BatchNorm"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (6, 3), (7,), (1, 2, 9)])
def test_gradient(phase: int, shape: tuple[int, ...]) -> None:
    case = LayerCase(TEXT, normal(*shape), phase=TRAIN if phase == TRAIN else TEST)
    case.layer.blobs[1].data[...] = 3
    case.layer.blobs[2].data[...] = 2
    case.check_gradient()


def test_the_chain_in_place_keeps_what_backward_needs() -> None:
    """BatchNorm, Scale and ReLU on one blob give the gradients that they give apart."""
    texts = [
        TEXT,
        'type: "Scale" scale_param { bias_term: true filler { value: 2 } bias_filler { value: 0.5 } }',
        'type: "ReLU"',
    ]
    x, dy = normal(4, 3, 2, 5), normal(4, 3, 5, 2).reshape(4, 3, 2, 5)
    apart, data = [], x
    for text in texts:
        apart.append(LayerCase(text, data, phase=TRAIN))
        data = apart[-1].forward()[0]
    expected = dy
    for case in reversed(apart):
        expected = case.backward(expected)[0]
    chain = [LayerCase(text, x, phase=TRAIN, in_place=True) for text in texts]
    blob = chain[0].bottom
    for case in chain:
        case.layer.forward_pass(blob, blob)
    np.testing.assert_allclose(blob[0].data, data)
    blob[0].diff[...] = dy
    for case in reversed(chain):
        case.layer.backward_pass(blob, [True], blob)
    np.testing.assert_allclose(blob[0].diff, expected, rtol=1e-10, atol=1e-10)
    for mine, theirs in zip(chain[1].layer.blobs, apart[1].layer.blobs, strict=True):
        np.testing.assert_allclose(mine.diff, theirs.diff, rtol=1e-10)


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(1, 5), st.sampled_from([np.float32, np.float64]))
def test_batch_statistics_of_the_top(n: int, channels: int, positions: int, dtype: type) -> None:
    x = normal(n, channels, positions)
    case = LayerCase('type: "BatchNorm"', x, phase=TRAIN, dtype=dtype)
    (y,) = case.forward()
    assert y.dtype == dtype
    assert np.abs(y.mean(axis=(0, 2))).max() < 1e-4
    assert np.abs(y.std(axis=(0, 2)) - 1).max() < 1e-2
    np.testing.assert_array_equal(case.bottom[0].data, x.astype(dtype))


def test_statistics_are_never_learnt() -> None:
    case = LayerCase(TEXT + " param { lr_mult: 2 decay_mult: 3 }", normal(4, 3), phase=TRAIN)
    assert [(p.lr_mult, p.decay_mult) for p in case.layer.param.param] == [(0, 0)] * 3
    assert case.layer.param_propagate_down == [False] * 3


def test_second_reshape_and_no_rows() -> None:
    for phase in (TRAIN, TEST):
        case = LayerCase(TEXT, normal(4, 3, 5), phase=phase)
        case.bottom[0].reshape(0, 3, 7)
        assert case.forward()[0].shape == (0, 3, 7)
        assert case.backward()[0].shape == (0, 3, 7)
        assert (case.layer.blobs[2].data == 0).all()


def test_other_channels_is_an_error() -> None:
    case = LayerCase(TEXT, normal(4, 3))
    case.bottom[0].reshape(4, 5)
    with pytest.raises(LayerError, match=r"shape \(4, 5\) has 5 channels, the statistics are for 3"):
        case.forward()


@pytest.mark.parametrize("field", ["eps", "moving_average_fraction"])
def test_negative_numbers(field: str) -> None:
    with pytest.raises(LayerError, match=f"{field} must be >= 0, got -1"):
        LayerCase(f'type: "BatchNorm" batch_norm_param {{ {field}: -1 }}', [1.0])
