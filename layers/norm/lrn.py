"""LRN: local response normalisation, y = x / scale^beta.

    ACROSS_CHANNELS: scale = k + alpha / local_size * sum of x^2 over local_size channels around this one
    WITHIN_CHANNEL:  scale = 1 + alpha / local_size^2 * sum of x^2 over local_size x local_size pixels around this one
Channels and pixels off the map count as 0, and stay in the divisor. WITHIN_CHANNEL does not use k.
Source: Krizhevsky et al. 2012, section 3.3; Caffe's lrn_layer.cpp.
"""

# NumPy works by blocks that stay in cache, and with few additions: a sum over 5 neighbours is a sum of 4, which is a sum of
# two sums of 2, plus one more. With the usual beta, 0.75, the power is two square roots.

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.kernels import kernel
from minicaffe.layer import Unary
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis
from minicaffe.threads import Scratch, parts, run

WITHIN_CHANNEL = caffe_pb2.LRNParameter.NormRegion.Value("WITHIN_CHANNEL")

BLOCK = 1 << 17
"""Approximate count of numbers processed at a time, so that they stay in cache."""

SHORTEST_RUN = 64
"""Least pixels of a map taken at a time."""

CHANNELS, PIXELS = (0,), (1, 2)
"""The axes of a part along which sums run."""


class Neighbours(NamedTuple):
    """The formula's parameters: the size of a neighbourhood on an axis, alpha over its number of elements, beta and k."""

    size: int
    alpha: float
    beta: float
    k: float


@kernel
def normalise_across(x: Array, y: Array, around: Neighbours) -> None:
    """Write y (N, C, H, W): x normalised over channels."""
    _each_part(partial(_normalise, around, CHANNELS), CHANNELS, x, y)


@kernel
def normalise_across_backward(x: Array, dy: Array, dx: Array, around: Neighbours) -> None:
    """Write dx, the gradient in x."""
    _each_part(partial(_normalise_backward, around, CHANNELS), CHANNELS, x, dy, dx)


@kernel
def normalise_within(x: Array, y: Array, around: Neighbours) -> None:
    """Write y (N, C, H, W): x normalised over neighbouring pixels."""
    _each_part(partial(_normalise, around, PIXELS), PIXELS, x, y)


@kernel
def normalise_within_backward(x: Array, dy: Array, dx: Array, around: Neighbours) -> None:
    """Write dx, the gradient in x."""
    _each_part(partial(_normalise_backward, around, PIXELS), PIXELS, x, dy, dx)


def _normalise(around: Neighbours, axes: Sequence[int], scratch: Scratch, x: Array, y: Array) -> None:
    scale = _scale(around, axes, scratch, x)
    np.divide(x, powered(scale, around.beta, scratch), out=y)


def _normalise_backward(around: Neighbours, axes: Sequence[int], scratch: Scratch, x: Array, dy: Array, dx: Array) -> None:
    scale = _scale(around, axes, scratch, x)
    direct = powered(scale, around.beta, scratch)
    np.divide(dy, direct, out=direct)  # dy scale^-beta: the gradient through x in the numerator
    # x_j is part of its neighbours' scales: 2 alpha beta x_j * the sum over them of dy x scale^(-beta - 1).
    ratio = np.divide(x, scale, out=scale)
    ratio *= direct
    shares = neighbour_sum(ratio, axes, around.size, scratch)
    shares *= x
    shares *= 2 * around.alpha * around.beta
    np.subtract(direct, shares, out=dx)


def _scale(around: Neighbours, axes: Sequence[int], scratch: Scratch, x: Array) -> Array:
    """Return k + alpha * the sum of x^2 over the neighbours."""
    scale = neighbour_sum(x, axes, around.size, scratch, np.square)
    scale *= around.alpha
    scale += around.k
    return scale


def _each_part(step: Callable[..., None], axes: Sequence[int], *arrays: Array) -> None:
    """Run step(scratch, *views) for all parts, on all threads."""
    todo = _parts(axes, *arrays)

    def task(part: slice) -> None:
        scratch = Scratch(arrays[0].dtype)
        for views in todo[part]:
            step(scratch, *views)

    run(partial(task, part) for part in parts(len(todo)))


def _parts(axes: Sequence[int], *arrays: Array) -> list[tuple[Array, ...]]:
    """Return views of arrays (N, C, H, W) with whole neighbourhoods, which stay in cache with their results.

    Within a channel they are some maps each (maps, H, W); across channels some pixels of every map (C, pixels) of an image.
    """
    n, c, h, w = arrays[0].shape
    if axes == PIXELS:
        # A neighbourhood spans the map, so maps stay whole.
        step, maps = max(BLOCK // max(h * w, 1), 1), [x.reshape(n * c, h, w) for x in arrays]
        return [tuple(x[start : start + step] for x in maps) for start in range(0, n * c, step)]
    # A neighbourhood spans the channels and a single pixel.
    step, flat = max(BLOCK // max(c, 1), SHORTEST_RUN), [x.reshape(n, c, h * w) for x in arrays]
    starts = range(0, h * w, step)
    return [tuple(x[image, :, start : start + step] for x in flat) for image in range(n) for start in starts]


def neighbour_sum(x: Array, axes: Sequence[int], size: int, scratch: Scratch, function: np.ufunc = np.positive) -> Array:
    """Return the sum of function(x) over `size` (odd) neighbours on the given axes, 0 past the ends; in scratch."""
    for axis in axes:
        source = np.moveaxis(x, axis, 0)
        half = min(size // 2, max(len(source) - 1, 0))  # at most the axis: nothing lies further away
        padded = scratch("padded", len(source) + 2 * half, *source.shape[1:])
        padded[:half] = padded[half + len(source) :] = 0
        function(source, out=padded[half : half + len(source)])
        # Values are squared once, on the first axis; `padded` is then free.
        x, function = np.moveaxis(window_sum(padded, 2 * half + 1, scratch), 0, axis), np.positive
    return x


def window_sum(x: Array, size: int, scratch: Scratch) -> Array:
    """Return the sums of `size` (odd) consecutive elements on axis 0, in scratch: (L + size - 1, ...) -> (L, ...).

    windows: the sums over 1, 2, 4, ... elements; the size's binary digits select which of them are added up.
    """
    length, windows, width, done = len(x) - size + 1, x, 1, 1  # size is odd, so x itself is the first summand
    total, out = x[:length], scratch("total", length, *x.shape[1:])
    while 2 * width <= size:
        next_windows = scratch(f"windows {width}", len(windows) - width, *x.shape[1:])
        windows = np.add(windows[:-width], windows[width:], out=next_windows)
        width *= 2
        if size & width:
            total = np.add(total, windows[done : done + length], out=out)  # `done` places of each window are in total
            done += width
    if size == 1:  # the loop has not run, so total is still x
        out[...] = total
    return out


def powered(scale: Array, beta: float, scratch: Scratch) -> Array:
    """Return scale^beta, in scratch.

    For beta 0.75, which nets use, square roots are several times as fast as a power.
    """
    power = scratch("power", *scale.shape)
    if beta != 0.75:
        np.power(scale, scale.dtype.type(beta), out=power)
        return power
    root = np.sqrt(scale, out=scratch("root", *scale.shape))  # s^0.75 = s^0.5 * s^0.25
    np.sqrt(root, out=power)
    power *= root
    return power


ACROSS = (normalise_across,), (normalise_across_backward,)
WITHIN = (normalise_within,), (normalise_within_backward,)
"""The kernels of forward and backward."""


class LRN(Unary):
    """y = x * scale^-beta. scale grows with the energy of neighbouring channels, or pixels.

    bottom: x (N, C, H, W). top: y of the same shape.
    Raises LayerError when local_size is even, or the bottom lacks 4 axes.
    """

    type = "LRN"
    same_positions = True
    param_block: ClassVar[tuple[str, ...]] = ("lrn_param",)
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.lrn_param
        if param.local_size % 2 == 0:
            raise self.error(f"local_size must be odd, got {param.local_size}", "lrn_param.local_size")
        within = param.norm_region == WITHIN_CHANNEL
        self.axes = PIXELS if within else CHANNELS
        # Caffe's WITHIN_CHANNEL ends in a Power layer whose shift is always 1.
        self.size, self.beta, self.k = param.local_size, param.beta, 1.0 if within else param.k
        self.alpha = param.alpha / param.local_size ** len(self.axes)
        self._ratio = Blob((0,), self.dtype)  # on the GPU: the ratio that backward adds up
        self.uses_kernels = WITHIN if within else ACROSS

    @property
    def around(self) -> Neighbours:
        """Return the formula's parameters."""
        return Neighbours(self.size, self.alpha, self.beta, self.k)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom[0].shape) != 4:
            raise self.error(f"the bottom must have 4 axes (N, C, H, W), its shape is {bottom[0].shape}", "bottom[0]")
        top[0].reshape(bottom[0].shape)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        half = self.size // 2 if self.param.lrn_param.norm_region == WITHIN_CHANNEL else 0
        return (Axis(first=-half, last=half),) * len(bottom[b].shape[2:])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.uses_kernels[0][0](bottom[0].data, top[0].data, self.around)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        self.launch("lrn.lrn", count, count, *self._neighbours(top[0]), self.alpha, self.beta, self.k, x, y)

    def _neighbours(self, x: Blob) -> tuple[int, ...]:
        """Return the length and stride of the one or two axes that sums run over, and their reach."""
        _, c, h, w = x.shape
        # Across channels, the second axis has one element and adds nothing.
        return (*((h, w, w, 1) if len(self.axes) == 2 else (c, h * w, 1, 1)), self.size // 2)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            self.uses_kernels[1][0](bottom[0].data, top[0].diff, bottom[0].diff, self.around)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        count, around = top[0].count, self._neighbours(top[0])
        self._ratio.reshape(top[0].shape)
        x, dy, dx = bottom[0].device_data("read"), top[0].device_diff("read"), bottom[0].device_diff("write")
        ratio = self._ratio.device_data("write")
        self.launch("lrn.lrn_ratio", count, count, *around, self.alpha, self.beta, self.k, x, dy, dx, ratio)
        self.launch("lrn.lrn_subtract", count, count, *around, 2 * self.alpha * self.beta, x, ratio, dx)
