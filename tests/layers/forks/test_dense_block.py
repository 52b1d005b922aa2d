"""DenseBlock."""

from __future__ import annotations

import numpy as np
import pytest
from first import first
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import set_random_seed
from minicaffe.errors import LayerError
from minicaffe.mode import TEST, TRAIN, Phase
from minicaffe.parameters import weight_name

pytestmark = pytest.mark.usefixtures("device")

GAUSSIAN = '{ type: "gaussian" std: 0.5 }'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def block(x: np.ndarray, inside: str = "numTransition: 2 growthRate: 3", phase: Phase = TEST) -> LayerCase:
    set_random_seed(5)
    fillers = f"Filter_Filler {GAUSSIAN} BN_Scaler_Filler {GAUSSIAN} BN_Bias_Filler {GAUSSIAN}"
    return LayerCase(f'type: "DenseBlock" denseblock_param {{ {inside} {fillers} }}', x, phase=phase)


def test_by_hand() -> None:
    """One step, one map of 1 x 2: the kernel is turned, so that its left neighbour looks to the right."""
    case = block(np.array([[[[3.0, -5]]]]), "numTransition: 1 growthRate: 1")
    weight, scale, bias, mean, variance, factor = (blob.data for blob in case.layer.blobs)
    weight[0, 0] = [[0, 0, 0], [1, 10, 100], [0, 0, 0]]
    scale[...], bias[...], mean[...], variance[...] = 2, 1, 1, 4 - 1e-5
    assert case.forward()[0].tolist() == [[[[3, -5]], [[30, 300]]]]  # relu: 3 and 0
    mean[...], variance[...], factor[...] = 2, 8 - 2e-5, 2  # the CPU's sums
    np.testing.assert_allclose(case.forward()[0], [[[[3, -5]], [[30, 300]]]])


def by_layers(x: np.ndarray, case: LayerCase, phase: Phase) -> np.ndarray:
    """The block as BatchNorm, Scale, ReLU, Convolution and Concat."""
    blobs = dict(zip([weight_name(case.layer, i) + f" {i}" for i in range(len(case.layer.blobs))], case.layer.blobs))
    names = [name.split()[0] for name in blobs]

    def of(name: str, step: int) -> np.ndarray:
        return case.layer.blobs[names.index(name) + step].data

    def norm(z: np.ndarray, step: int, suffix: str) -> np.ndarray:
        batch = LayerCase('type: "BatchNorm"', z, phase=phase)
        for blob, value in zip(batch.layer.blobs, (of("mean" + suffix, step), of("variance" + suffix, step), np.ones(1))):
            blob.data[...] = value.reshape(blob.shape)
        y = batch.forward()[0] * of("scale" + suffix, step) + of("bias" + suffix, step)
        return np.maximum(y, 0)

    def convolved(z: np.ndarray, weight: np.ndarray) -> np.ndarray:
        shape = f"num_output: {len(weight)} kernel_size: {weight.shape[2]} pad: {weight.shape[2] // 2} bias_term: false"
        convolution = LayerCase(f'type: "Convolution" convolution_param {{ {shape} }}', z)
        convolution.layer.blobs[0].data[...] = weight[..., ::-1, ::-1]
        return convolution.forward()[0]

    for step in range(2):
        z = norm(x, step, "")
        if "filter_4g" in names:
            z = norm(convolved(z, of("filter_4g", step)), step, "_4g")
        x = np.concatenate([x, convolved(z, of("filter", step))], axis=1)
    return x


@pytest.mark.parametrize("phase", [TEST, TRAIN])
@pytest.mark.parametrize("more", ["", "use_BC: true"])
def test_it_is_its_layers(more: str, phase: Phase) -> None:
    x = normal(2, 4, 3, 5)
    case = block(x, f"numTransition: 2 growthRate: 3 {more}", phase)
    for i, blob in enumerate(case.layer.blobs[:-1]):
        blob.data[...] += 0.1 + 0.01 * i
    expected = by_layers(x, case, phase)
    np.testing.assert_allclose(case.forward()[0], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("phase", first(1, [TRAIN, TEST]))
@pytest.mark.parametrize("more", ["", "use_BC: true", "use_dropout: true dropout_amount: 0.3"])
def test_gradient(more: str, phase: Phase) -> None:
    block(normal(2, 3, 2, 4), f"numTransition: 2 growthRate: 1 {more}", phase).check_gradient()


def test_the_statistics_move_in_train() -> None:
    """By a tenth, the variance being the larger one; sums that were stored are divided first."""
    x = normal(2, 3, 4, 5)
    case = block(x, "numTransition: 1 growthRate: 2", TRAIN)
    mean, variance, factor = (case.layer.blobs[i].data for i in (3, 4, 5))
    mean[...], variance[...], factor[...] = 6, 10, 2
    case.forward()
    np.testing.assert_allclose(mean[0, :, 0, 0], 0.1 * x.mean((0, 2, 3)) + 0.9 * 3, rtol=1e-6)
    np.testing.assert_allclose(variance[0, :, 0, 0], 0.1 * x.var((0, 2, 3)) * 40 / 39 + 0.9 * 5, rtol=1e-6)
    assert factor == 0
    assert [spec.lr_mult for spec in case.layer.param.param] == [1, 1, 1, 0, 0, 0]


def test_dropout_drops_maps_numbers_in_train_alone() -> None:
    x, inside = normal(1, 2, 8, 9), "numTransition: 1 growthRate: 4 use_dropout: true dropout_amount: 0.25"
    plain = block(x, "numTransition: 1 growthRate: 4", TRAIN).forward()[0][:, 2:]
    y = block(x, inside, TRAIN).forward()[0][:, 2:]
    kept = y != 0
    np.testing.assert_allclose(y[kept], plain[kept] / 0.75)
    assert 0.65 < kept.mean() < 0.85
    assert (block(x, inside).forward()[0] != 0).all()


@settings(deadline=None, max_examples=8)
@given(st.integers(1, 3), st.integers(1, 2))
def test_x_comes_first(steps: int, growth: int) -> None:
    x = normal(1, 2, 3, 4)
    (y,) = block(x, f"numTransition: {steps} growthRate: {growth}").forward()
    assert y.shape == (1, 2 + steps * growth, 3, 4)
    np.testing.assert_array_equal(y[:, :2], x)


def test_a_second_reshape_and_no_gradient_unasked() -> None:
    case = block(normal(2, 4, 3, 5))
    case.bottom[0].reshape(1, 4, 6, 2)
    assert case.forward()[0].shape == (1, 10, 6, 2)
    case.bottom[0].diff[...] = 7
    assert (case.backward(np.ones((1, 10, 6, 2)), propagate_down=[False])[0] == 7).all()
    case.bottom[0].reshape(1, 3, 6, 2)
    with pytest.raises(LayerError, match=r"was set up for 4 channels, the bottom's shape is now \(1, 3, 6, 2\)"):
        case.forward()


@pytest.mark.parametrize(
    ("shape", "inside", "message"),
    [
        ((2, 3), "", r"x must be \(N, C, H, W\), got shape \(2, 3\)"),
        ((1, 2, 3, 4), "numTransition: 0", "numTransition must be > 0, got 0"),
        ((1, 2, 3, 4), "numTransition: 10001", r"the block \(numTransition\) has 10,001 layers, and the limit is 10,000"),
        ((1, 2, 3, 4), "growthRate: -1", "growthRate must be > 0, got -1"),
        ((1, 2, 3, 4), "dropout_amount: 1", r"dropout_amount must be in \[0, 1\), got 1"),
    ],
)
def test_errors(shape: tuple[int, ...], inside: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        block(np.zeros(shape), inside)
