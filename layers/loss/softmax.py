"""Softmax: scores to probabilities along one axis.

    y[c] = exp(x[c] - max x) / sum_k exp(x[k] - max x)        dx = y * (dy - sum_k dy[k] y[k])

Source: Caffe's softmax_layer.cpp. The maximum is subtracted first, so that no score overflows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import data_pair, diff_pair, launch_softmax
from minicaffe.layer import Unary
from minicaffe.reads import Axis, along, whole


class Softmax(Unary):
    """y = exp(x) / sum(exp(x)) along softmax_param.axis (default 1).

    bottom: x, any shape. top: y, of x's shape, each line along the axis adding up to 1. May run in place.
    Raises LayerError when x has no such axis.
    """

    type = "Softmax"
    same_positions = True
    in_place = True
    param_block = ("softmax_param",)
    copies = (0, 1)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.axis_of(self.param.softmax_param.axis, bottom[0], "softmax_param.axis")
        top[0].reshape(bottom[0].shape)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        shape = bottom[b].shape
        axis = self.axis_of(self.param.softmax_param.axis, bottom[0])
        return along(axis, shape, whole(shape[axis]))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        softmax(bottom[0].data, self.param.softmax_param.axis, out=top[0].data)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._launch(*data_pair(bottom[0], top[0]), like=top[0])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            softmax_backward(top[0].data, top[0].diff, self.param.softmax_param.axis, out=bottom[0].diff)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            self._launch(top[0].device_data("read"), *diff_pair(top[0], bottom[0]), like=top[0], backward=True)

    def _launch(self, *arrays: int, like: Blob, backward: bool = False) -> None:
        axis, shape = self.axis_of(self.param.softmax_param.axis, like), like.shape
        split = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        launch_softmax(self.dtype, *split, *arrays, backward=backward)


def softmax(x: Array, axis: int = 1, *, out: Array | None = None) -> Array:
    """Return the probabilities along axis, of x's shape, in out if given. out may be x."""
    # Subtracting the maximum keeps exp from overflowing. initial is for an axis of length 0.
    y: Array = np.subtract(x, x.max(axis=axis, keepdims=True, initial=-np.inf), out=out)
    np.exp(y, out=y)
    y /= y.sum(axis=axis, keepdims=True)
    return y


def softmax_backward(y: Array, dy: Array, axis: int = 1, *, out: Array | None = None) -> Array:
    """Return the gradient in x, in out if given. out may be dy.

    y is softmax's result and dy the gradient in it, both of x's shape.
    """
    dx: Array = np.subtract(dy, (dy * y).sum(axis=axis, keepdims=True), out=out)  # the sum comes first, because out may be dy
    dx *= y
    return dx
