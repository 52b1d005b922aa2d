"""caffe_ocr's DenseBlock: DenseNet's block as one layer. Each step adds growthRate maps to all preceding maps.

    y_0 = x        y_t+1 = [y_t, c_t]        c_t = W_t * relu(norm_t(y_t))        * with the kernel turned by 180 degrees
    with use_BC    c_t = W_t * relu(norm'_t(V_t * relu(norm_t(y_t))))             V_t of 1 x 1, 4 growthRate filters
    norm(z) = scale (z - mean) / sqrt(var + 1e-5) + bias

In TRAIN mean and var are the batch's, and the stored ones move: stored <- d batch + (1 - d) stored, d being
moving_average_fraction and the variance m / (m - 1) times as large. With the stored statistics the gradient of norm is scale dy
/ sqrt(var + 1e-5); with the batch's it is (g - mean(g) - x^ mean(g x^)) / sqrt(var + 1e-5), where g = scale dy.
Source: caffe_ocr's DenseBlock_layer.cu (Huang et al., DenseNet, arXiv:1608.06993). Its code for the CPU stores sums and divides
them by the last blob, which the one for the GPU leaves 0; normalises with the larger variance; and lacks dropout. Here 0 means
that statistics are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minicaffe import limits, rng
from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs, Layer, hold_still
from minicaffe.layers.conv.convolve import add_weight_gradient, convolve, data_gradient
from minicaffe.layers.conv.window import Window
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2

EPS = 1e-5
CHANNEL = (0, 2, 3)
"""The axes that are summed for a channel's statistics."""


@dataclass
class Norm:
    """The blobs (1, C, 1, 1) of one normalisation. factor: the divisor of the stored sums, 0 for none."""

    scale: Blob
    bias: Blob
    mean: Blob
    variance: Blob
    factor: float

    def relu(self, x: Array, training: bool) -> Array:
        """Return max(y, 0) for x (N, C, H, W). With training it uses the batch's statistics and keeps them."""
        if training:
            self.count = x.size // max(1, x.shape[1])
            self.used = x.mean(axis=CHANNEL, keepdims=True), x.var(axis=CHANNEL, keepdims=True)
        else:
            self.used = self.stored()
        mean, variance = self.used
        factor = self.scale.data / np.sqrt(variance + x.dtype.type(EPS))
        y: Array = x * factor
        y += self.bias.data - mean * factor
        np.maximum(y, 0, out=y)
        return y

    def stored(self) -> tuple[Array, Array]:
        """Return the stored mean and variance."""
        divisor = self.mean.dtype.type(self.factor or 1)
        return self.mean.data / divisor, self.variance.data / divisor

    def move(self, fraction: float) -> None:
        """Move the stored statistics by this fraction towards the batch's."""
        (mean, variance), (old_mean, old_variance) = self.used, self.stored()
        self.mean.data[...] = fraction * mean + (1 - fraction) * old_mean
        self.variance.data[...] = fraction * variance * (self.count / max(1, self.count - 1)) + (1 - fraction) * old_variance

    def gradient(self, x: Array, dy: Array, training: bool) -> Array:
        """Return the gradient of x after relu(x), and add the gradients of scale and bias."""
        mean, variance = self.used
        inverse = 1 / np.sqrt(variance + x.dtype.type(EPS))
        normalised = (x - mean) * inverse
        self.scale.diff[...] += (dy * normalised).sum(axis=CHANNEL, keepdims=True)
        self.bias.diff[...] += dy.sum(axis=CHANNEL, keepdims=True)
        dx: Array = dy * self.scale.data
        if training:
            dx = dx - dx.mean(axis=CHANNEL, keepdims=True) - normalised * (dx * normalised).mean(axis=CHANNEL, keepdims=True)
        dx *= inverse
        return dx


SQUARE, POINT = Window((3, 3), (1, 1), (1, 1), (1, 1)), Window((1, 1), (1, 1), (0, 0), (1, 1))
NAMES = ("filter", "scale", "bias", "mean", "variance")
STATISTICS = ("mean", "variance", "factor", "mean_4g", "variance_4g")


class DenseBlock(Layer):
    """numTransition steps, each of which appends growthRate maps to its input.

    bottom: x (N, C, H, W). top: y (N, C + numTransition growthRate, H, W), x's maps first. denseblock_param: numTransition,
    growthRate, use_BC, use_dropout and dropout_amount (in TRAIN, of each step's maps), moving_average_fraction, the fillers;
    the other fields have no effect. blobs: of all steps the filters, the scales, the biases, the means, the variances, with
    use_BC those of the second norm and the filters of 1 x 1; last the factor (1,). Statistics are not learnt.
    Raises LayerError for a bottom of other axes or without channels, no steps or maps, more steps than
    limits.layers, a dropout_amount outside [0, 1), and other channels later.
    """

    type = "DenseBlock"
    num_bottom = 1
    num_top = 1
    param_block = ("denseblock_param",)
    weight_names: tuple[str, ...] = (*NAMES, "factor")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, shape = self.param.denseblock_param, bottom[0].shape
        if len(shape) != 4:
            raise self.error(f"x must be (N, C, H, W), got shape {shape}", "bottom[0]")
        if not shape[1]:
            raise self.error(f"x of shape {shape} has no channels", "bottom[0]")
        for name in ("numTransition", "growthRate"):
            if getattr(param, name) < 1:
                raise self.error(f"{name} must be > 0, got {getattr(param, name)}", f"denseblock_param.{name}")
        if not 0 <= param.dropout_amount < 1:
            raise self.error(
                f"dropout_amount must be in [0, 1), got {param.dropout_amount:g}", "denseblock_param.dropout_amount"
            )
        limits.check("the block (numTransition)", param.numTransition, "layers")
        self.channels, self.steps, self.growth = shape[1], param.numTransition, param.growthRate
        self.dropout = param.dropout_amount if param.use_dropout and self.phase == TRAIN else 0.0
        names = [*NAMES, *(f"{name}_4g" for name in NAMES)] if param.use_BC else list(NAMES)
        self.weight_names = (*(name for name in names for _ in range(self.steps)), "factor")
        self.learn(*self._blobs_wanted(names))
        hold_still(self, [name not in STATISTICS for name in self.weight_names])

    def _blobs_wanted(self, names: Sequence[str]) -> tuple[list[tuple[int, ...]], list[caffe_pb2.FillerParameter]]:
        """Return the blobs' shapes and fillers."""
        param, wide, shapes, fillers = self.param.denseblock_param, 4 * self.growth, [], []
        zero, one = caffe_pb2.FillerParameter(), caffe_pb2.FillerParameter(value=1)
        kinds = {"filter": param.Filter_Filler, "scale": param.BN_Scaler_Filler, "bias": param.BN_Bias_Filler}
        for name in names:
            what, _, second = name.partition("_")
            for step in range(self.steps):
                maps = self.channels + step * self.growth
                if what == "filter":
                    shapes.append((wide, maps, 1, 1) if second else (self.growth, wide if param.use_BC else maps, 3, 3))
                else:
                    shapes.append((1, wide if second else maps, 1, 1))
                fillers.append(kinds.get(what, one if what == "variance" else zero))
        return [*shapes, (1,)], [*fillers, zero]

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 4 or shape[1] != self.channels:
            raise self.error(f"was set up for {self.channels} channels, the bottom's shape is now {shape}", "bottom[0]")
        top[0].reshape(shape[0], shape[1] + self.steps * self.growth, *shape[2:])

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        filters = sum(blob.count for blob, name in zip(self.blobs, self.weight_names) if name.startswith("filter"))
        multiply_adds = filters * bottom[0].shape[0] * bottom[0].shape[2] * bottom[0].shape[3]
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=multiply_adds)

    def running_blobs(self) -> Sequence[Blob]:
        names = zip(self.weight_names, self.blobs, strict=True)
        return [blob for name, blob in names if name in STATISTICS] if self.phase == TRAIN else ()

    def _blob(self, name: str, step: int) -> Blob:
        return self.blobs[self.weight_names.index(name) + step]

    def _norm(self, step: int, suffix: str = "") -> Norm:
        """Return a step's norm, with its blobs."""
        scale, bias, mean, variance = (self._blob(name + suffix, step) for name in NAMES[1:])
        return Norm(scale, bias, mean, variance, factor=float(self.blobs[-1].read_data()[0]))

    def _branch(self, y: Array, step: int) -> list[tuple[Norm, Array, Array]]:
        """Return a step's norms, each with its input and its relu. y: the maps before the step."""
        norm, maps = self._norm(step), y[:, : self.channels + step * self.growth]
        steps = [(norm, maps, norm.relu(maps, self.phase == TRAIN))]
        if self.param.denseblock_param.use_BC:
            wide = _convolved(steps[0][2], self._blob("filter_4g", step).data, POINT)
            norm = self._norm(step, "_4g")
            steps.append((norm, wide, norm.relu(wide, self.phase == TRAIN)))
        return steps

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        y = top[0].data
        y[:, : self.channels] = bottom[0].data
        self.kept: list[Array | None] = []
        for step in range(self.steps):
            branch = self._branch(y, step)
            maps = _convolved(branch[-1][2], _turned(self._blob("filter", step).data), SQUARE)
            mask = None
            if self.dropout:
                mask = (rng.generator().random(maps.shape) >= self.dropout) / (1 - self.dropout)
                maps *= mask.astype(maps.dtype)
            self.kept.append(mask)
            start = self.channels + step * self.growth
            y[:, start : start + self.growth] = maps
            if self.phase == TRAIN:
                for norm, _, _ in branch:
                    norm.move(self.param.denseblock_param.moving_average_fraction)
        if self.phase == TRAIN:
            self.blobs[-1].data[...] = 0  # the statistics themselves are stored, so the factor is 0

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        y, dy = top[0].data, top[0].diff.copy()
        for step in reversed(range(self.steps)):
            start = self.channels + step * self.growth
            branch, given = self._branch(y, step), np.ascontiguousarray(dy[:, start : start + self.growth])
            if (mask := self.kept[step]) is not None:
                given *= mask.astype(given.dtype)
            norm, before, relu = branch[-1]
            given = self._through("filter", step, relu, given, SQUARE)
            given = norm.gradient(before, given * (relu > 0), self.phase == TRAIN)
            if len(branch) > 1:
                norm, before, relu = branch[0]
                given = self._through("filter_4g", step, relu, given, POINT)
                given = norm.gradient(before, given * (relu > 0), self.phase == TRAIN)
            dy[:, :start] += given
        if propagate_down[0]:
            bottom[0].diff[...] = dy[:, : self.channels]

    def _through(self, name: str, step: int, x: Array, dy: Array, window: Window) -> Array:
        """Return the gradient of a convolution's bottom x, and add the filters' gradient."""
        blob, dx = self._blob(name, step), np.empty_like(x)
        gradient = np.zeros(blob.shape, self.dtype)
        add_weight_gradient(x, dy, window, 1, gradient)
        blob.diff[...] += gradient if window is POINT else gradient[..., ::-1, ::-1]
        data_gradient(dy, blob.data if window is POINT else _turned(blob.data), window, 1, dx)
        return dx


def _turned(weight: Array) -> Array:
    """Return kernels (M, C, 3, 3) rotated by 180 degrees."""
    return np.ascontiguousarray(weight[..., ::-1, ::-1])


def _convolved(x: Array, weight: Array, window: Window) -> Array:
    """Return x (N, C, H, W) convolved with weight (M, C, ...): (N, M, H, W)."""
    y = np.empty((len(x), len(weight), *x.shape[2:]), x.dtype)
    convolve(x, weight, window, 1, y)
    return y
