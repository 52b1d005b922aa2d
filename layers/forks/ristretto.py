"""Ristretto's layers: convolutions, inner products and LRN whose numbers are rounded to few bits.

    DYNAMIC_FIXED_POINT         2^-f round(x 2^f), within bw bits: from -2^(bw - 1) 2^-f to (2^(bw - 1) - 1) 2^-f
    MINIFLOAT                   a float of mant_bits and exp_bits without infinities and denormals
    INTEGER_POWER_OF_2_WEIGHTS  weights are sign(x) 2^e, e = round(log2 |x|) from exp_min to exp_max; the bias is not rounded;
                                values are fixed-point numbers

Rounding is to the nearest number, halves to the even one, or with STOCHASTIC up or down with probabilities in proportion to the
distances. TRAIN rounds only the weights, always at random; TEST rounds inputs, weights and outputs. Backward treats rounding as
y = x, and uses the rounded weights.

Source: Gysel et al., Ristretto (arXiv:1605.06402); pmgysel/caffe's base_ristretto_layer.cu and the .cu files of the layers. On
its CPU halves go away from 0, the first 0 ends the rounding of an array to MINIFLOAT, and INTEGER_POWER_OF_2_WEIGHTS rounds no
values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.conv.matrix_products import multiply
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue
from minicaffe.layers.norm.lrn import LRN, WITHIN_CHANNEL
from minicaffe.mode import TEST
from minicaffe.proto import caffe_pb2

Param = caffe_pb2.QuantizationParameter
FIXED, MINIFLOAT, POWERS, STOCHASTIC = (
    Param.DYNAMIC_FIXED_POINT,
    Param.MINIFLOAT,
    Param.INTEGER_POWER_OF_2_WEIGHTS,
    Param.STOCHASTIC,
)
LIMITS = {
    "bw_layer_in": (1, 64),
    "bw_layer_out": (1, 64),
    "bw_params": (1, 64),
    "fl_layer_in": (-100, 100),
    "fl_layer_out": (-100, 100),
    "fl_params": (-100, 100),
    "mant_bits": (0, 23),
    "exp_bits": (1, 8),
    "exp_min": (-100, 100),
    "exp_max": (-100, 100),
}
"""The least and the largest value of each field. Beyond them, float32 holds no such numbers."""


Round = Callable[[Array], Array]
"""A function that rounds to whole numbers."""


def nearest(x: Array) -> Array:
    """Round to the nearest whole number, halves to the even one."""
    return np.rint(x)


def stochastic(x: Array) -> Array:
    """Round up or down at random, with x as the mean."""
    return np.floor(x + rng.generator().random(x.shape))


def fixed_point(x: Array, bits: int, fraction: int, whole: Round) -> Array:
    """Return x as fixed-point numbers of this many bits, `fraction` of them after the point."""
    step, most = 2.0**-fraction, 2.0 ** (bits - 1)
    with np.errstate(over="ignore"):  # where x's type cannot hold the limits
        rounded: Array = whole(np.clip(x, -most * step, (most - 1) * step) / step) * step
    return rounded.astype(x.dtype)


def minifloat(x: Array, mantissa: int, exponent: int, whole: Round) -> Array:
    """Return x as floats of this many bits of mantissa and exponent. Numbers below the least become 0."""
    magnitude = np.abs(x).astype(np.float32).astype(np.float64)
    fraction, place = np.frexp(magnitude)  # fraction * 2^place, fraction from 0.5
    bias, steps = 2 ** (exponent - 1) - 1, 2.0**mantissa
    largest, least = 2**exponent - 1 - bias, max(-bias, -126)
    beyond = (place - 1 > largest) | np.isinf(magnitude)
    with np.errstate(all="ignore"):
        steps_taken = np.where(beyond, steps - 1, whole((2 * fraction - 1) * steps))
        rounded = (1 + steps_taken / steps) * 2.0 ** np.where(beyond, largest, place - 1)
        small = (magnitude == 0) | ((place - 1 < least) & ~beyond)
        return np.asarray(np.copysign(np.where(small, 0, rounded), x).astype(x.dtype))


def power_of_two(x: Array, least: int, largest: int, whole: Round) -> Array:
    """Return x as powers of 2 with x's sign. 0 becomes the least."""
    with np.errstate(divide="ignore"):
        exponents = np.clip(whole(np.log2(np.abs(x))), least, largest)
    return np.asarray(np.where(x >= 0, 2.0**exponents, -(2.0**exponents)).astype(x.dtype))


class Rounded(Layer):
    """A layer with quantization_param. Raises LayerError for a field beyond its limits."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.numbers = self.param.quantization_param
        for name, (least, most) in LIMITS.items():
            if not least <= (value := getattr(self.numbers, name)) <= most:
                raise self.error(f"{name} must be from {least} to {most}, got {value}", f"quantization_param.{name}")
        if self.numbers.exp_min > self.numbers.exp_max:
            wrong = f"exp_min {self.numbers.exp_min} is above exp_max {self.numbers.exp_max}"
            raise self.error(wrong, "quantization_param.exp_min")
        self.weights: list[Array] = []
        self.values: list[Array] = []
        self.whole: Round = stochastic if self.numbers.rounding_scheme == STOCHASTIC else nearest

    def rounded_input(self, x: Array) -> Array:
        """Return x as TEST reads it."""
        return self._rounded(x, self.numbers.bw_layer_in, self.numbers.fl_layer_in, self.whole) if self.phase == TEST else x

    def round_output(self, y: Array) -> None:
        """Round y, as TEST writes it."""
        if self.phase == TEST:
            y[...] = self._rounded(y, self.numbers.bw_layer_out, self.numbers.fl_layer_out, self.whole)

    def rounded_weights(self) -> list[Array]:
        """Return the rounded weights and bias."""
        whole = self.whole if self.phase == TEST else stochastic
        weights = [blob.data for blob in self.blobs]
        if self.numbers.precision == POWERS:
            return [power_of_two(weights[0], self.numbers.exp_min, self.numbers.exp_max, whole), *weights[1:]]
        return [self._rounded(blob, self.numbers.bw_params, self.numbers.fl_params, whole) for blob in weights]

    def _rounded(self, x: Array, bits: int, fraction: int, whole: Round) -> Array:
        if self.numbers.precision == MINIFLOAT:
            return minifloat(x, self.numbers.mant_bits, self.numbers.exp_bits, whole)
        return fixed_point(x, bits, fraction, whole)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        kept = data_bytes(self.blobs) + (data_bytes(bottom) if self.phase == TEST else 0)
        return costs._replace(saved=costs.saved + kept, working=costs.working + 3 * max(map(data_bytes, ([*bottom], [*top]))))


class ConvolutionRistretto(Rounded, Convolution):
    """Convolution with rounded weights, and in TEST with rounded inputs and outputs.

    bottom, top, blobs: as in Convolution. The bottoms stay as they are; Ristretto rounds them in place.
    Raises LayerError as Convolution does, and for a field of quantization_param beyond its limits.
    """

    type = "ConvolutionRistretto"
    param_block = ("convolution_param", "quantization_param")
    keeps_weights = False

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.weights[:] = weight, *bias = self.rounded_weights()
        self.values[:] = [self.rounded_input(blob.data) for blob in bottom]
        epilogue = Epilogue(shift=bias[0].reshape(-1)) if bias else NOTHING
        for x, y in zip(self.values, top, strict=True):
            maps, out = self._maps(x), self._maps(y.data)
            self._product(maps, weight, out, epilogue)(maps, weight, out)
            self.round_output(y.data)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for x, blob, y, wanted in zip(self.values, bottom, top, propagate_down, strict=True):
            dy = self._maps(y.diff)
            if len(self.blobs) > 1 and self.param_propagate_down[1]:
                self.blobs[1].diff[...] += dy.sum(axis=(0, *range(2, dy.ndim)))
            dx = self._maps(blob.diff) if wanted else None
            dweight = self.blobs[0].diff if self.param_propagate_down[0] else None
            self._gradients(self._maps(x), dy, self.weights[0], dx, dweight)

    forward_gpu, backward_gpu = Layer.forward_gpu, Layer.backward_gpu


class DeconvolutionRistretto(ConvolutionRistretto, Deconvolution):
    """Deconvolution with rounded weights, and in TEST with rounded inputs and outputs.

    bottom, top, blobs: as in Deconvolution. Raises LayerError as Deconvolution does, and for a field of quantization_param
    beyond its limits.
    """

    type = "DeconvolutionRistretto"


class FcRistretto(Rounded, InnerProduct):
    """InnerProduct with rounded weights, and in TEST with rounded inputs and outputs.

    bottom, top, blobs: as in InnerProduct. The bottom stays as it is; Ristretto rounds it in place.
    Raises LayerError as InnerProduct does, with normalize, and for a field of quantization_param beyond its limits.
    """

    type = "FcRistretto"
    param_block = ("inner_product_param", "quantization_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        if self.normalize:
            raise self.error("does not normalize its weights", "inner_product_param.normalize")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.weights[:] = weight, *bias = self.rounded_weights()
        y = self._rows(top[0].data)
        self.values[:] = [self.rounded_input(bottom[0].data).reshape(len(y), self.inputs)]
        multiply(self.values[0], self.weight_matrix(weight).T, out=y)
        if bias:
            y += bias[0]
        self.round_output(y)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy = self._rows(top[0].diff)
        if self.param_propagate_down[0]:
            self.weight_matrix(self.blobs[0].diff)[...] += dy.T @ self.values[0]
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            self.blobs[1].diff[...] += dy.sum(axis=0)
        if propagate_down[0]:
            multiply(dy, self.weight_matrix(self.weights[0]), out=bottom[0].diff.reshape(len(dy), self.inputs))

    forward_gpu, backward_gpu = Layer.forward_gpu, Layer.backward_gpu


class LRNRistretto(Rounded, LRN):
    """LRN across channels, each of whose steps is rounded to MINIFLOAT, to the nearest number in every phase.

    bottom: x (N, C, H, W). top: y (the same shape). Backward is LRN's, with the rounded y and scale.
    Raises LayerError as LRN does, for WITHIN_CHANNEL and another precision, and for a field of quantization_param beyond its
    limits.
    """

    type = "LRNRistretto"
    param_block = ("lrn_param", "quantization_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        if self.numbers.precision != MINIFLOAT:
            raise self.error("rounds to MINIFLOAT only", "quantization_param.precision")
        if self.param.lrn_param.norm_region == WITHIN_CHANNEL:
            raise self.error("normalises across channels only", "lrn_param.norm_region")
        self.scales: list[Array] = []

    def _float(self, x: Array) -> Array:
        return minifloat(x, self.numbers.mant_bits, self.numbers.exp_bits, nearest)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = self._float(bottom[0].data)
        number, channels = x.dtype.type, x.shape[1]
        half = min(self.size // 2, channels)
        squares, scale, total = self._float(x * x), np.empty_like(x), np.zeros((len(x), *x.shape[2:]), x.dtype)
        for c in range(-half, channels):  # a running sum over the channels from c - half to c + half
            if c + half < channels:
                total = self._float(total + squares[:, c + half])
            if c - half > 0:
                total = self._float(total - squares[:, c - half - 1])
            if c >= 0:
                share = self._float(total * (number(self.param.lrn_param.alpha) / number(self.size)))
                scale[:, c] = self._float(number(self.k) + share)
        with np.errstate(all="ignore"):
            top[0].data[...] = self._float(x * self._float(scale ** number(-self.beta)))
        self.scales[:] = [scale]

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        x, y, dy, scale, half = bottom[0].data, top[0].data, top[0].diff, self.scales[0], self.size // 2
        ratio, dx = dy * y / scale, bottom[0].diff
        np.multiply(dy, scale**-self.beta, out=dx)
        for c in range(x.shape[1]):  # x[:, c] is part of the scales from c - half to c + half
            shares = ratio[:, max(0, c - half) : c + half + 1].sum(axis=1)
            dx[:, c] -= 2 * self.alpha * self.beta * x[:, c] * shares

    forward_gpu, backward_gpu = Layer.forward_gpu, Layer.backward_gpu
