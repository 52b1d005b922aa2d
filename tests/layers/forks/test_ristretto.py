"""ConvolutionRistretto, DeconvolutionRistretto, FcRistretto and LRNRistretto."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal
from numpy.typing import NDArray

import minicaffe
from minicaffe import rng
from minicaffe.errors import LayerError
from minicaffe.layers.forks.ristretto import fixed_point, minifloat, nearest, power_of_two, stochastic
from minicaffe.mode import TEST, TRAIN
from minicaffe.prototxt import parse_net

pytestmark = pytest.mark.usefixtures("device")

Array = NDArray[Any]
One = Callable[[float], float]

# The numbers as base_ristretto_layer.cu and .cuh make them, one at a time.


def fixed_by_definition(bits: int, fraction: int) -> One:
    def trim(x: float) -> float:
        most, least = (2.0 ** (bits - 1) - 1) * 2.0**-fraction, -(2.0 ** (bits - 1)) * 2.0**-fraction
        x = max(min(x, most), least)
        return round(x / 2.0**-fraction) * 2.0**-fraction  # Python rounds as rint does

    return trim


def minifloat_by_definition(mantissa_bits: int, exponent_bits: int) -> One:
    def trim(x: float) -> float:
        (word,) = struct.unpack("<I", struct.pack("<f", x))
        sign, stored, mantissa = word >> 31, word >> 23 & 0xFF, word & 0x7FFFFF
        bias = 2 ** (exponent_bits - 1) - 1
        exponent = stored - 127 + bias
        if stored == 0 or exponent < 0:
            return 0
        if exponent > 2**exponent_bits - 1:
            exponent, kept = 2**exponent_bits - 1, 2**mantissa_bits - 1
        else:
            kept = round(mantissa / 2 ** (23 - mantissa_bits))
        return float((-1) ** sign * (kept + 2**mantissa_bits) / 2**mantissa_bits * 2.0 ** (exponent - bias))

    return trim


def power_by_definition(least: int, largest: int) -> One:
    def trim(x: float) -> float:
        exponent = -math.inf if x == 0 else math.log2(abs(x))
        rounded = exponent if math.isinf(exponent) else round(exponent)
        return float((1 if x >= 0 else -1) * 2.0 ** max(min(rounded, largest), least))

    return trim


def each(trim: One, x: Array) -> Array:
    return np.array([trim(float(one)) for one in x.flat]).reshape(x.shape)


NUMBERS = np.concatenate(
    [[0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 0.25, 1e-3, 1e-30, -1e-39, 1e5, -1e9, 3e38, 127.5, -128.5], 8 * normal(50)]
).astype(np.float32)


class TestNumbers:
    def test_fixed_point_by_hand(self) -> None:
        x = np.array([0.24, 0.25, 0.375, 0.625, -0.3, 5, -5])
        assert fixed_point(x, 4, 2, nearest).tolist() == [0.25, 0.25, 0.5, 0.5, -0.25, 1.75, -2]

    def test_minifloat_by_hand(self) -> None:
        """Half precision keeps 1 + 1 / 1024, and rounds 1 + 1 / 2048 to the even 1."""
        x = np.array([1 + 1 / 1024, 1 + 1 / 2048, 1 + 3 / 2048, -3.0, 2.0**-15, 2.0**-16, 1e9])
        largest = (2 - 1 / 1024) * 2.0**16
        assert minifloat(x, 10, 5, nearest).tolist() == [1 + 1 / 1024, 1, 1 + 2 / 1024, -3, 2.0**-15, 0, largest]

    def test_power_of_two_by_hand(self) -> None:
        assert power_of_two(np.array([0.3, 0.4, -0.7, 8, 0, -1e-9]), -4, -1, nearest).tolist() == [
            0.25, 0.5, -0.5, 0.5, 0.0625, -0.0625,
        ]  # fmt: skip

    @pytest.mark.parametrize(("bits", "fraction"), [(8, 4), (4, -2), (32, 16), (1, 0), (16, 20)])
    def test_fixed_point(self, bits: int, fraction: int) -> None:
        x = NUMBERS.astype(np.float64)
        np.testing.assert_array_equal(fixed_point(x, bits, fraction, nearest), each(fixed_by_definition(bits, fraction), x))

    @pytest.mark.parametrize(("mantissa", "exponent"), [(10, 5), (3, 4), (23, 8), (7, 8), (0, 3), (4, 1)])
    def test_minifloat(self, mantissa: int, exponent: int) -> None:
        x = NUMBERS.astype(np.float64)
        np.testing.assert_array_equal(
            minifloat(x, mantissa, exponent, nearest), each(minifloat_by_definition(mantissa, exponent), NUMBERS)
        )

    def test_power_of_two(self) -> None:
        x = NUMBERS.astype(np.float64)
        np.testing.assert_array_equal(power_of_two(x, -8, -1, nearest), each(power_by_definition(-8, -1), x))

    def test_infinities_and_nan(self) -> None:
        x = np.array([np.inf, -np.inf, np.nan])
        np.testing.assert_array_equal(fixed_point(x, 8, 0, nearest), [127, -128, np.nan])
        np.testing.assert_array_equal(minifloat(x, 1, 2, nearest), [6, -6, np.nan])

    def test_stochastic_rounding_keeps_the_mean(self) -> None:
        rng.set_random_seed(1)
        x = np.full(20000, 0.3)
        rounded = fixed_point(x, 8, 1, stochastic)
        assert set(rounded.tolist()) == {0, 0.5}
        assert abs(rounded.mean() - 0.3) < 0.01

    @given(st.floats(-100, 100, width=32), st.integers(1, 16), st.integers(-4, 8))
    def test_rounding_twice_changes_nothing(self, x: float, bits: int, fraction: int) -> None:
        once = fixed_point(np.array([x]), bits, fraction, nearest)
        np.testing.assert_array_equal(fixed_point(once, bits, fraction, nearest), once)


FIXED = "quantization_param { bw_layer_in: 6 fl_layer_in: 3 bw_layer_out: 7 fl_layer_out: 2 bw_params: 5 fl_params: 4 }"
FLOAT = "quantization_param { precision: MINIFLOAT mant_bits: 4 exp_bits: 4 }"
POWERS = """quantization_param { precision: INTEGER_POWER_OF_2_WEIGHTS exp_min: -3 exp_max: 1 bw_layer_in: 6 fl_layer_in: 3
    bw_layer_out: 7 fl_layer_out: 2 }"""
TRIMS: dict[str, tuple[One, One, One, One]] = {
    FIXED: (fixed_by_definition(6, 3), fixed_by_definition(5, 4), fixed_by_definition(5, 4), fixed_by_definition(7, 2)),
    FLOAT: (minifloat_by_definition(4, 4),) * 4,
    POWERS: (fixed_by_definition(6, 3), power_by_definition(-3, 1), float, fixed_by_definition(7, 2)),
}
"""Of each block: how the input, the weights, the bias and the output are trimmed."""
FILLERS = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "gaussian" std: 0.5 }'
LAYERS = {
    "ConvolutionRistretto": (
        "Convolution",
        f"convolution_param {{ num_output: 4 kernel_h: 2 kernel_w: 3 stride: 2 pad_h: 1 pad_w: 0 group: 2 {FILLERS} }}",
    ),
    "DeconvolutionRistretto": (
        "Deconvolution",
        f"convolution_param {{ num_output: 4 kernel_h: 2 kernel_w: 3 stride: 2 group: 2 {FILLERS} }}",
    ),
    "FcRistretto": ("InnerProduct", f"inner_product_param {{ num_output: 3 {FILLERS} }}"),
}
kinds = pytest.mark.parametrize("kind", LAYERS)


def layers(kind: str, block: str, x: Array, phase: minicaffe.Phase = TEST) -> tuple[LayerCase, LayerCase]:
    """The layer, and the one that it rounds the numbers of, with the same weights."""
    plain, param = LAYERS[kind]
    param = param.replace("stride: 2", "stride_h: 2 stride_w: 1")
    case, other = LayerCase(f'type: "{kind}" {param} {block}', x, phase=phase), LayerCase(f'type: "{plain}" {param}', x)
    for mine, its in zip(case.layer.blobs, other.layer.blobs, strict=True):
        its.data[...] = mine.data
    return case, other


@kinds
@pytest.mark.parametrize("block", TRIMS, ids=["fixed", "float", "powers"])
class TestLayers:
    def test_test_rounds_inputs_weights_and_outputs(self, kind: str, block: str) -> None:
        x = normal(2, 6, 5, 4)
        case, other = layers(kind, block, x)
        of_input, of_weight, of_bias, of_output = TRIMS[block]
        other.bottom[0].data[...] = each(of_input, x)
        for blob, trim in zip(other.layer.blobs, (of_weight, of_bias), strict=True):
            blob.data[...] = each(trim, blob.data)
        np.testing.assert_array_equal(case.forward()[0], each(of_output, other.forward()[0]))
        np.testing.assert_array_equal(case.bottom[0].data, x)

    def test_backward_passes_through_the_rounding(self, kind: str, block: str) -> None:
        x = normal(2, 6, 5, 4)
        case, other = layers(kind, block, x)
        of_input, of_weight, of_bias, _ = TRIMS[block]
        other.bottom[0].data[...] = each(of_input, x)
        for blob, trim in zip(other.layer.blobs, (of_weight, of_bias), strict=True):
            blob.data[...] = each(trim, blob.data)
        dy = normal(*case.forward()[0].shape)
        other.forward()
        np.testing.assert_allclose(case.backward(dy)[0], other.backward(dy)[0], rtol=1e-12, atol=1e-12)
        for mine, its in zip(case.layer.blobs, other.layer.blobs, strict=True):
            np.testing.assert_allclose(mine.diff, its.diff, rtol=1e-12, atol=1e-12)

    def test_train_rounds_weights_at_random_and_nothing_else(self, kind: str, block: str) -> None:
        x = normal(2, 6, 5, 4)
        case, other = layers(kind, block, x, phase=TRAIN)
        rng.set_random_seed(7)
        (y,) = case.forward()
        rounded = [blob.copy() for blob in case.layer.rounded_weights()]
        rng.set_random_seed(7)
        for blob, values in zip(other.layer.blobs, case.layer.rounded_weights(), strict=True):
            blob.data[...] = values
        np.testing.assert_allclose(y, other.forward()[0], rtol=1e-12, atol=1e-12)
        assert not np.array_equal(rounded[0], other.layer.blobs[0].data)  # drawn anew

    def test_a_second_reshape(self, kind: str, block: str) -> None:
        case, _ = layers(kind, block, normal(2, 6, 5, 4))
        case.bottom[0].reshape(3, 6, 5, 4)
        case.bottom[0].data[...] = normal(3, 6, 5, 4)
        assert len(case.forward()[0]) == 3

    def test_no_gradient_unasked(self, kind: str, block: str) -> None:
        case, _ = layers(kind, block, normal(2, 6, 5, 4))
        case.forward()
        case.bottom[0].diff[...] = 7
        assert (case.backward(propagate_down=[False])[0] == 7).all()


def test_transpose() -> None:
    x, text = normal(2, 5), f'type: "FcRistretto" inner_product_param {{ num_output: 3 transpose: true {FILLERS} }} {FIXED}'
    case = LayerCase(text, x)
    weight, bias = (each(fixed_by_definition(5, 4), blob.data) for blob in case.layer.blobs)
    rounded = each(fixed_by_definition(6, 3), x)
    np.testing.assert_array_equal(case.forward()[0], each(fixed_by_definition(7, 2), rounded @ weight + bias))
    dy = normal(2, 3)
    np.testing.assert_allclose(case.backward(dy)[0], dy @ weight.T, rtol=1e-12)
    np.testing.assert_allclose(case.layer.blobs[0].diff, rounded.T @ dy, rtol=1e-12, atol=1e-12)


class TestLRN:
    text = 'type: "LRNRistretto" lrn_param { local_size: 3 alpha: 0.7 beta: 0.6 k: 2 } '

    @pytest.mark.parametrize("size", [1, 3, 5, 15])
    def test_as_the_forks_loops(self, size: int) -> None:
        """lrn_ristretto_layer.cu, its running sum over channels."""
        x, trim = normal(2, 6, 3, 4), minifloat_by_definition(5, 4)
        text = self.text.replace("local_size: 3", f"local_size: {size}")
        case = LayerCase(f"{text} quantization_param {{ precision: MINIFLOAT mant_bits: 5 exp_bits: 4 }}", x)
        before, number = size // 2, np.float32
        y = np.zeros_like(x)
        for n, h, w in np.ndindex(2, 3, 4):
            line = [trim(float(one)) for one in x[n, :, h, w]]
            total = 0.0
            for head in range(6 + before):
                if head < 6:
                    total = trim(total + trim(line[head] * line[head]))
                if head >= size:
                    total = trim(total - trim(line[head - size] * line[head - size]))
                if head >= before:
                    scale = trim(2 + trim(total * (float(number(0.7)) / size)))
                    y[n, head - before, h, w] = trim(line[head - before] * trim(scale ** -float(number(0.6))))
        np.testing.assert_array_equal(case.forward()[0], y)

    def test_with_all_bits_it_is_lrn_and_so_is_its_gradient(self) -> None:
        x, dy = normal(2, 6, 3, 4), normal(2, 6, 4, 3).reshape(2, 6, 3, 4)
        case = LayerCase(f"{self.text} quantization_param {{ precision: MINIFLOAT }}", x)
        other = LayerCase(self.text.replace("LRNRistretto", "LRN"), x)
        np.testing.assert_allclose(case.forward()[0], other.forward()[0], rtol=1e-6)
        np.testing.assert_allclose(case.backward(dy)[0], other.backward(dy)[0], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("more", "message"),
        [("", "rounds to MINIFLOAT only"), (FLOAT + " lrn_param { norm_region: WITHIN_CHANNEL }", "across channels only")],
    )
    def test_errors(self, more: str, message: str) -> None:
        with pytest.raises(LayerError, match=message):
            LayerCase('type: "LRNRistretto" ' + more, normal(1, 2, 3, 4))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("bw_params: 0", "bw_params must be from 1 to 64, got 0"),
        ("fl_layer_in: 200", "fl_layer_in must be from -100 to 100, got 200"),
        ("mant_bits: 24", "mant_bits must be from 0 to 23, got 24"),
        ("exp_bits: 9", "exp_bits must be from 1 to 8, got 9"),
        ("exp_min: 0 exp_max: -1", "exp_min 0 is above exp_max -1"),
    ],
)
def test_errors(block: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(f'type: "FcRistretto" inner_product_param {{ num_output: 2 }} quantization_param {{ {block} }}', normal(2, 3))


def test_normalized_weights_are_refused() -> None:
    with pytest.raises(LayerError, match="does not normalize its weights"):
        LayerCase(f'type: "FcRistretto" inner_product_param {{ num_output: 2 normalize: true }} {FIXED}', normal(2, 3))


def test_other_types_refuse_the_block() -> None:
    with pytest.raises(LayerError, match="only Ristretto's types read quantization_param"):
        LayerCase(f'type: "InnerProduct" inner_product_param {{ num_output: 2 }} {FIXED}', normal(2, 3))


def test_a_net_as_ristretto_writes_them() -> None:
    """The layers of LeNet, in the form of Ristretto's own files, with a ReLU in place after a rounded layer."""
    text = """input: "data" input_shape { dim: 2 dim: 1 dim: 12 dim: 10 }
    layer { name: "conv1" type: "ConvolutionRistretto" bottom: "data" top: "conv1" param { lr_mult: 1 } param { lr_mult: 2 }
      convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } }
      quantization_param { bw_layer_in: 8 bw_layer_out: 8 bw_params: 4 fl_layer_in: 8 fl_layer_out: 6 fl_params: 3 } }
    layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { kernel_size: 2 stride: 2 } }
    layer { name: "ip1" type: "FcRistretto" bottom: "pool1" top: "ip1" inner_product_param { num_output: 5
      weight_filler { type: "xavier" } } quantization_param { bw_layer_in: 8 bw_layer_out: 8 bw_params: 4 fl_layer_in: 4
      fl_layer_out: 4 fl_params: 6 } }
    layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }"""
    net = minicaffe.Net(parse_net(text), TEST)
    y = net.forward(data=normal(2, 1, 12, 10))["ip1"]
    assert (y >= 0).all() and y.any() and (y * 16 == np.rint(y * 16)).all()
