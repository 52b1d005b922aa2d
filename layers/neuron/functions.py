"""Activation functions: y = f(x), element by element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import data_pair, diff_pair
from minicaffe.layer import Unary
from minicaffe.layers.elementwise.epilogue import relu
from minicaffe.layers.neuron.neuron import Neuron


class AbsVal(Neuron):
    """y = |x|, dx = dy sign(x), 0 at x = 0. Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.

    Source: Caffe's absval_layer.hpp.
    """

    type = "AbsVal"
    kernel = "abs_val"

    def value(self, x: Array, out: Array) -> None:
        np.abs(x, out=out)

    def slope(self, x: Array) -> Array:
        return np.sign(x)


class BNLL(Neuron):
    """y = ln(1 + exp(x)), dx = dy / (1 + exp(-x)); no x overflows. Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.

    Source: Caffe's bnll_layer.hpp.
    """

    type = "BNLL"
    kernel = "bnll"

    def value(self, x: Array, out: Array) -> None:
        np.logaddexp(x, 0, out=out)

    def slope(self, x: Array) -> Array:
        return sigmoid(x)


class Clip(Neuron):
    """y = x kept within [min, max]; dx = dy where x is inside, both ends included, else 0.

    bottom: x (any shape). top: y (the same shape); may be in place.
    Raises LayerError when min or max is not given, or min > max.

    Source: Caffe's clip_layer.hpp.
    """

    type = "Clip"
    param_block = ("clip_param",)
    kernel = "clip"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.clip_param
        if not (param.HasField("min") and param.HasField("max")):
            raise self.error("clip_param needs both min and max", "clip_param")
        if param.min > param.max:
            raise self.error(f"needs min <= max, got min {param.min:g} and max {param.max:g}", "clip_param.min")

    def constants(self) -> tuple[float, float, float]:
        return self.param.clip_param.min, self.param.clip_param.max, 0.0

    def value(self, x: Array, out: Array) -> None:
        np.clip(x, self.param.clip_param.min, self.param.clip_param.max, out=out)

    def slope(self, x: Array) -> Array:
        return (x >= self.param.clip_param.min) & (x <= self.param.clip_param.max)


class Cosine(Neuron):
    """y = cos x, x in radians; dx = -dy sin x. Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.

    Source: happynear's cosine_layer.cpp, whose backward is not the gradient.
    """

    type = "Cosine"
    kernel = "cosine"

    def value(self, x: Array, out: Array) -> None:
        np.cos(x, out=out)

    def slope(self, x: Array) -> Array:
        return -np.sin(x)


class ELU(Neuron):
    """y = x where x > 0, else alpha (exp(x) - 1). Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.

    Source: Caffe's elu_layer.hpp (Clevert et al., 2015).
    """

    type = "ELU"
    param_block = ("elu_param",)
    kernel = "elu"

    def constants(self) -> tuple[float, float, float]:
        return self.param.elu_param.alpha, 0.0, 0.0

    def value(self, x: Array, out: Array) -> None:
        negative = self.param.elu_param.alpha * np.expm1(np.minimum(x, 0))
        np.maximum(x, 0, out=out)
        out += negative

    def slope(self, x: Array) -> Array:
        negative = self.param.elu_param.alpha * np.exp(np.minimum(x, 0))
        return np.where(x > 0, x.dtype.type(1), negative)


class Exp(Neuron):
    """y = base ^ (shift + scale x), dx = dy y scale ln(base); base -1 (the default) stands for e.

    bottom: x (any shape). top: y (the same shape); may be in place.
    Raises LayerError when base is neither -1 nor positive.

    Source: Caffe's exp_layer.hpp.
    """

    type = "Exp"
    param_block = ("exp_param",)
    kernel = "exponential"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.exp_param
        if param.base != -1 and param.base <= 0:
            raise self.error(f"base must be > 0, or -1 for e, got {param.base:g}", "exp_param.base")
        log_base = 1.0 if param.base == -1 else math.log(param.base)
        self.scale, self.shift = log_base * param.scale, log_base * param.shift  # base^z = e^(z ln base)

    def constants(self) -> tuple[float, float, float]:
        return self.scale, self.shift, 0.0

    def value(self, x: Array, out: Array) -> None:
        np.multiply(x, self.scale, out=out)
        out += self.shift
        np.exp(out, out=out)

    def slope(self, x: Array) -> Array:
        return self.scale * np.exp(self.scale * x + self.shift)


SCALE, SHIFT = 0.2, 0.5


class HardSigmoid(Neuron):
    """y = alpha x + beta, at least 0 and at most 1; dx = alpha dy where y is inside, else 0.

    bottom: x (any shape). top: y (the same shape); may be in place. alpha is 0.2 and beta 0.5 by default.

    Source: MobileNet-YOLO's hard_sigmoid_layer.cpp; brocolli's Caffe for hardsigmoid_param.
    """

    type = "HardSigmoid"
    param_block = ("hardsigmoid_param",)
    kernel = "hard_sigmoid"

    def constants(self) -> tuple[float, float, float]:
        param = self.param.hardsigmoid_param  # without the block, 0.2 in float64 too
        return (param.alpha, param.beta, 0.0) if self.param.HasField("hardsigmoid_param") else (SCALE, SHIFT, 0.0)

    def value(self, x: Array, out: Array) -> None:
        alpha, beta, _ = self.constants()
        np.multiply(x, alpha, out=out)
        out += beta
        np.clip(out, 0, 1, out=out)

    def slope(self, x: Array) -> Array:
        alpha, beta, _ = self.constants()
        line = x * alpha + beta
        slope: Array = ((line > 0) & (line < 1)) * x.dtype.type(alpha)
        return slope


class Log(Neuron):
    """y = ln(shift + scale x) / ln(base), dx = dy scale / (shift + scale x) / ln(base); base -1 (the default) stands for e.

    bottom: x (any shape). top: y (the same shape); may be in place.
    Raises LayerError when base is neither -1 nor positive, or is 1.

    Source: Caffe's log_layer.hpp.
    """

    type = "Log"
    param_block = ("log_param",)
    kernel = "logarithm"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        base = self.param.log_param.base
        if base != -1 and (base <= 0 or base == 1):
            raise self.error(f"base must be > 0 and not 1, or -1 for e, got {base:g}", "log_param.base")
        self.factor = 1.0 if base == -1 else 1 / math.log(base)

    def constants(self) -> tuple[float, float, float]:
        return self.param.log_param.scale, self.param.log_param.shift, self.factor

    def value(self, x: Array, out: Array) -> None:
        np.multiply(x, self.param.log_param.scale, out=out)
        out += self.param.log_param.shift
        np.log(out, out=out)
        out *= self.factor

    def slope(self, x: Array) -> Array:
        param = self.param.log_param
        return self.factor * param.scale / (param.shift + param.scale * x)


class Mish(Neuron):
    """y = x t with t = tanh(ln(1 + e^x)); dx = dy (t + x (1 - t^2) / (1 + e^-x)). Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.

    Source: troyliu0105's mish_layer.cpp (Misra, 2019). Synopsys' uses e^x below -20 and x above 20 for the logarithm.
    """

    type = "Mish"
    kernel = "mish"

    def value(self, x: Array, out: Array) -> None:
        np.multiply(x, np.tanh(np.logaddexp(x, 0)), out=out)

    def slope(self, x: Array) -> Array:
        t = np.tanh(np.logaddexp(x, 0))
        slope: Array = t + x * (1 - t * t) * sigmoid(x)
        return slope


class NegReLU(Neuron):
    """y = min(x, 0); dx = dy where x < 0, else 0. Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.

    Source: FlowNet 2's neg_relu_layer.cpp (Ilg et al., 2017).
    """

    type = "NegReLU"
    kernel = "neg_relu"

    def value(self, x: Array, out: Array) -> None:
        np.minimum(x, 0, out=out)

    def slope(self, x: Array) -> Array:
        return (x < 0).astype(x.dtype)


class Power(Neuron):
    """y = (shift + scale x) ^ power, dx = dy power scale (shift + scale x) ^ (power - 1).

    Where power * scale is 0, y is a constant (1 for power 0) and dx is 0. A negative number to a fractional power is NaN.
    Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.

    Source: Caffe's power_layer.hpp.
    """

    type = "Power"
    param_block = ("power_param",)
    kernel = "power"

    def constants(self) -> tuple[float, float, float]:
        return self.param.power_param.scale, self.param.power_param.shift, self.param.power_param.power

    def value(self, x: Array, out: Array) -> None:
        param = self.param.power_param
        if param.power * param.scale == 0:
            # NumPy's power: in Python, 0.0 ** -1 raises, and a negative base gives a complex number.
            out[...] = np.float64(param.shift) ** param.power if param.power else 1
            return
        np.multiply(x, param.scale, out=out)
        out += param.shift
        if param.power != 1:
            np.power(out, param.power, out=out)

    def slope(self, x: Array) -> Array:
        param = self.param.power_param
        factor = param.power * param.scale
        if factor == 0 or param.power == 1:  # the general formula would compute 0 * 0^-1, which is NaN
            return np.full_like(x, factor)
        return factor * np.power(param.shift + param.scale * x, param.power - 1)


MOST = 6.0


class ReLU6(Neuron):
    """y = x where x > 0, else negative_slope x, and at most 6; dx = dy, times the slope for x <= 0, and 0 where y is 6.

    bottom: x (any shape). top: y (the same shape); may be in place. relu6_param.negative_slope defaults to 0. A relu_param has
    no effect, as in the forks, but a warning. Raises no errors of its own.

    Source: MobileNet-YOLO's relu6_layer.cpp (Krizhevsky, 2010).
    """

    type = "ReLU6"
    param_block = ("relu6_param",)
    kernel = "relu6"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.negative_slope = self.param.relu6_param.negative_slope
        if self.param.HasField("relu_param"):
            self.warn("relu_param has no effect; negative_slope is a field of relu6_param", "relu_param")

    def constants(self) -> tuple[float, float, float]:
        return self.negative_slope, MOST, 0.0

    def value(self, x: Array, out: Array) -> None:
        np.minimum(relu(x, self.negative_slope, out=out), MOST, out=out)

    def slope(self, x: Array) -> Array:
        slope: Array = np.where(x > 0, x.dtype.type(1), x.dtype.type(self.negative_slope))
        return slope * (relu(x, self.negative_slope) < MOST)


class SeLu(Neuron):
    """y = lambda x where x > 0, else lambda alpha (e^x - 1); dx = dy lambda, or dy lambda alpha e^x. Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.

    Source: DeepDetect's selu_layer.cpp (Klambauer et al., 2017).
    """

    type = "SeLu"
    param_block = ("selu_param",)
    kernel = "selu"

    def constants(self) -> tuple[float, float, float]:
        return getattr(self.param.selu_param, "lambda"), self.param.selu_param.alpha, 0.0

    def value(self, x: Array, out: Array) -> None:
        scale, alpha, _ = self.constants()
        negative = alpha * np.expm1(np.minimum(x, 0))
        np.maximum(x, 0, out=out)
        out += negative
        out *= scale

    def slope(self, x: Array) -> Array:
        scale, alpha, _ = self.constants()
        return np.where(x > 0, x.dtype.type(scale), scale * alpha * np.exp(np.minimum(x, 0)))


class Sigmoid(Unary):
    """y = 1 / (1 + exp(-x)).

    bottom: x, any shape. top: y, of x's shape. May run in place. dx = dy y (1 - y).

    Source: Caffe's sigmoid_layer.cpp. Computed as (1 + tanh(x / 2)) / 2, which no x overflows.
    """

    type = "Sigmoid"
    in_place = True
    elementwise = True
    copies = (0, 1)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        sigmoid(bottom[0].data, out=top[0].data)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.launch("sigmoid.sigmoid", top[0].count, top[0].count, *data_pair(bottom[0], top[0]))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            y = top[0].data
            np.multiply(top[0].diff, y * (1 - y), out=bottom[0].diff)  # uses y, because x may have been overwritten

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            count, y = top[0].count, top[0].device_data("read")
            self.launch("sigmoid.sigmoid_backward", count, count, y, *diff_pair(top[0], bottom[0]))


def sigmoid(x: Array, *, out: Array | None = None) -> Array:
    """Return 1 / (1 + exp(-x)), of x's shape, in out if given. out may be x."""
    y: Array = np.multiply(x, 0.5, out=out)  # (1 + tanh(x / 2)) / 2, because exp(-x) would overflow
    np.tanh(y, out=y)
    y *= 0.5
    y += 0.5
    return y


class Swish(Neuron):
    """y = x s with s = 1 / (1 + exp(-beta x)); dx = dy (s + beta y (1 - s)). Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.

    Source: Caffe's swish_layer.hpp (Ramachandran et al., 2017).
    """

    type = "Swish"
    param_block = ("swish_param",)
    kernel = "swish"

    def constants(self) -> tuple[float, float, float]:
        return self.param.swish_param.beta, 0.0, 0.0

    def value(self, x: Array, out: Array) -> None:
        np.multiply(x, sigmoid(self.param.swish_param.beta * x), out=out)

    def slope(self, x: Array) -> Array:
        beta = self.param.swish_param.beta
        s = sigmoid(beta * x)
        dx: Array = s + beta * x * s * (1 - s)
        return dx


class TanH(Neuron):
    """y = tanh(x), dx = dy (1 - y^2). Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.

    Source: Caffe's tanh_layer.hpp.
    """

    type = "TanH"
    kernel = "hyperbolic_tangent"

    def value(self, x: Array, out: Array) -> None:
        np.tanh(x, out=out)

    def slope(self, x: Array) -> Array:
        y: Array = np.tanh(x)
        return 1 - y * y


class Threshold(Neuron):
    """y = 1 where x > threshold, else 0. Its gradient is 0: nothing is propagated through it.

    bottom: x (any shape). top: y (the same shape); may be in place. Raises no LayerError.

    Source: Caffe's threshold_layer.hpp.
    """

    type = "Threshold"
    param_block = ("threshold_param",)
    has_gradient = False
    kernel = "threshold"

    def constants(self) -> tuple[float, float, float]:
        return self.param.threshold_param.threshold, 0.0, 0.0

    def value(self, x: Array, out: Array) -> None:
        out[...] = x > self.param.threshold_param.threshold

    def slope(self, x: Array) -> Array:
        return np.zeros_like(x)
