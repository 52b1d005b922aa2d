"""Softmax: scores to probabilities along one axis.

    y[c] = exp(x[c] - max x) / sum_k exp(x[k] - max x)        dx = y * (dy - sum_k dy[k] y[k])

Source: Caffe's softmax_layer.cpp. The maximum is subtracted first, so that no score overflows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from minicaffe import loops
from minicaffe.blob import Array, Blob
from minicaffe.blocks import BlobJob, Calls, Job, KeptStep
from minicaffe.cuda.pairs import data_pair, diff_pair
from minicaffe.cuda.softmax import launch_softmax
from minicaffe.layer import Layer
from minicaffe.loops import Later, loop
from minicaffe.threads import get_num_threads, parts

from .conv.vectors import exponentials

SHORT = 128
"""Numbers of a line, side by side, of which the loop takes any number of lines: 20000 of 21 take a third of NumPy's time."""
MOST, MOST_APART = 1 << 16, 1 << 13
"""Numbers of x that the loop takes of longer lines, and where those of a line lie apart: of more, NumPy's maxima and sums, by
the vector, save more time than the calls cost."""
BLOCK = 1 << 13
"""Numbers of lines side by side that stay in the first cache meanwhile."""

LEAST = 1 << 11
"""Numbers that are worth a thread."""

at = np.uint64
"""An index that is not negative: Numba then does not look whether it counts from the end."""


@loop("T[::1], T[::1], UniTuple(int64, 4)", in_calls=True)
def softmax_lines(x: Array, y: Array, part: tuple[int, int, int, int]) -> None:
    """Of x (N, C, inner), flat, some lines along C: y, which may be x, = exp(x - max x) / their sum.

    part: the first line, the one behind the last, C, inner.
    """
    first, last, length, inner = part
    size, step = length * inner, length if inner == 1 else 1
    while first < last:  # lines that lie side by side
        together = min(last - first, inner - first % inner if inner > 1 else max(1, BLOCK // length))
        begin = first // inner * size + first % inner
        end = begin + together * step
        for start in range(begin, end, step):
            most = x[at(start)]
            for k in range(start, start + size, inner):
                most = x[at(k)] if x[at(k)] > most else most
            for k in range(start, start + size, inner):
                y[at(k)] = x[at(k)] - most
        if inner == 1:
            exponentials(y, begin, end - begin)
        else:
            for k in range(begin, begin + size, inner):
                exponentials(y, k, together)
        for start in range(begin, end, step):
            total = 0.0
            for k in range(start, start + size, inner):
                total += y[at(k)]
            for k in range(start, start + size, inner):
                y[at(k)] /= total
        first += together


class Softmax(Layer):
    """y = exp(x) / sum(exp(x)) along softmax_param.axis (default 1).

    bottom: x, any shape. top: y, of x's shape, each line along the axis adding up to 1. May run in place.
    Raises LayerError when x has no such axis.
    """

    type = "Softmax"
    num_bottom = 1
    num_top = 1
    keeps_places = True
    in_place = True
    param_block = ("softmax_param",)
    weight_names = ()
    copies = (0, 1)
    loops = ((softmax_lines,), ())

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.axis_of(self.param.softmax_param.axis, bottom[0], "softmax_param.axis")
        top[0].reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if loops.compiled() and (step := self.kept_step(bottom, top)):
            step()
            return
        softmax(bottom[0].data, self.param.softmax_param.axis, out=top[0].data)

    def kept_step(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> KeptStep | None:
        x, y = bottom[0], top[0]
        axis = self.axis_of(self.param.softmax_param.axis, x)
        apart = math.prod(x.shape[axis + 1 :]) > 1
        most = MOST_APART if apart else MOST if x.shape[axis] > SHORT else x.count
        if not 0 < x.count <= most or x.dtype != y.dtype:
            return None
        calls = _calls(x.shape, axis, x.dtype, get_num_threads())
        return KeptStep([BlobJob(Job(calls), (x,), y, "update" if x is y else "write")])

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


@lru_cache(maxsize=512)
def _calls(shape: tuple[int, ...], axis: int, dtype: np.dtype[Any], threads: int) -> Calls:
    """Of softmax_lines, for arrays of this shape."""
    count, length, inner = math.prod(shape), shape[axis], math.prod(shape[axis + 1 :])
    whole = Later(0, (count,))
    some = parts(count // length, -(-LEAST // length), 1, threads)
    return Calls(softmax_lines, dtype, [(whole, whole, (part.start, part.stop, length, inner)) for part in some])


def softmax(x: Array, axis: int = 1, *, out: Array | None = None) -> Array:
    """Probabilities along axis, of x's shape; out (may be x itself) receives them if given."""
    # exp cannot overflow; initial is for an axis of length 0
    y: Array = np.subtract(x, x.max(axis=axis, keepdims=True, initial=-np.inf), out=out)
    np.exp(y, out=y)
    y /= y.sum(axis=axis, keepdims=True)
    return y


def softmax_backward(y: Array, dy: Array, axis: int = 1, *, out: Array | None = None) -> Array:
    """The gradient in x of softmax, given its result y and the gradient dy in it, both of x's shape; out may be dy itself."""
    dx: Array = np.subtract(dy, (dy * y).sum(axis=axis, keepdims=True), out=out)  # the sum is taken before out, which may be dy
    dx *= y
    return dx
