"""MVN: mean and variance normalisation of every map: y = (x - mean) / (sqrt(var) + eps).

    dx = (dy - mean(dy) - y mean(y dy)) / (sqrt(var) + eps)
Source: Caffe's mvn_layer.cpp. Its dx treats eps as 0 next to sqrt(var); so does this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import data_pair, diff_pair, launch_sums
from minicaffe.layer import Costs, Unary, data_bytes
from minicaffe.reads import Axis


class MVN(Unary):
    """y = (x - mean) / (sqrt(var) + eps) over each channel's map, or with across_channels over each image.

    bottom: x (N, C, H, W), or fewer axes. top: y, always 4 axes (N, C, H, W), absent ones of length 1. Without
    normalize_variance: y = x - mean. May run in place.
    Raises LayerError when x has more than 4 axes, and for Synopsys' add_eps_before_sqrt.
    """

    type = "MVN"
    same_positions = True
    in_place = True
    param_block = ("mvn_param",)
    axes: tuple[int, ...]
    """The top's axes along which a mean is taken."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.param.mvn_param.add_eps_before_sqrt:
            wrong = "add_eps_before_sqrt: true, for a deviation of sqrt(var + eps) (Synopsys' Caffe), is not built in"
            raise self.error(wrong, "mvn_param.add_eps_before_sqrt")
        self._scale = Blob((0,), self.dtype)
        if not self.param.mvn_param.normalize_variance:
            self.copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0]
        if len(x.shape) > 4:
            raise self.error(f"the bottom must have at most 4 axes, its shape is {x.shape}", "bottom[0]")
        top[0].reshape(x.num, x.channels, x.height, x.width)
        self.axes = (1, 2, 3) if self.param.mvn_param.across_channels else (2, 3)
        self._scale.reshape(*top[0].shape[: self.axes[0]], *(1,) * len(self.axes))

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return (Axis(statistics=True),) * len(bottom[b].shape[2:])

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(saved=data_bytes([self._scale]) if self.param.mvn_param.normalize_variance else 0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        y = top[0].data
        x = bottom[0].data.reshape(y.shape)
        np.subtract(x, mean(x, self.axes), out=y)  # centred first, so that the variance cannot cancel
        if self.param.mvn_param.normalize_variance:
            # As in Caffe, eps is outside the root.
            self._scale.data[...] = np.sqrt(mean(y * y, self.axes)) + self.dtype.type(self.param.mvn_param.eps)
            y /= self._scale.data

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        y, dy = top[0].data, top[0].diff
        dx = bottom[0].diff.reshape(y.shape)
        if self.param.mvn_param.normalize_variance:
            along_y = y * mean(y * dy, self.axes)  # before dx is written, which may be dy
            np.subtract(dy, mean(dy, self.axes), out=dx)
            dx -= along_y
            dx /= self._scale.read_data()
        else:
            np.subtract(dy, mean(dy, self.axes), out=dx)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        rows, numbers = self._scale.count, self._numbers(top[0])
        x, y = data_pair(bottom[0], top[0])
        scale = self._scale.device_data("write") if self.param.mvn_param.normalize_variance else 0
        if numbers:
            launch_sums("mvn.mvn", self.dtype, rows, numbers, numbers, x, self.param.mvn_param.eps, y, scale)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        rows, numbers = self._scale.count, self._numbers(top[0])
        if not propagate_down[0] or not numbers:
            return
        y, (dy, dx) = top[0].device_data("read"), diff_pair(top[0], bottom[0])
        scale = self._scale.device_data("read") if self.param.mvn_param.normalize_variance else 0
        launch_sums("mvn.mvn_backward", self.dtype, rows, numbers, numbers, y, dy, scale, dx)

    def _numbers(self, x: Blob) -> int:
        """Return how many numbers each mean is over."""
        return math.prod(x.shape[self.axes[0] :])


def mean(x: Array, axes: tuple[int, ...]) -> Array:
    """Return the mean over axes, kept with length 1; 0 if there are no numbers."""
    count = max(1, int(np.prod([x.shape[axis] for axis in axes])))
    y: Array = x.sum(axis=axes, keepdims=True)
    y /= count
    return y
