"""ArgMax: the indices of the largest numbers. Source: Caffe's argmax_layer.hpp."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import launch_sums
from minicaffe.layer import Unary


class ArgMax(Unary):
    """The indices of the top_k largest elements, largest first. Of equal ones the larger index comes first.

    Without axis: over all axes but the first. bottom: x (N, ...). top: indices (N, 1, top_k), or with out_max_val indices
    and values (N, 2, top_k); followed by axes of length 1 where x has more than 3.
    With axis: along it. top: x's shape with top_k on the axis; indices, or with out_max_val the values.
    Nothing is propagated back.
    Raises LayerError when axis is out of range, or top_k is not between 1 and the number of elements.
    """

    type = "ArgMax"
    param_block = ("argmax_param",)
    has_gradient = False

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, shape = self.param.argmax_param, bottom[0].shape
        self.axis = self.axis_of(param.axis, bottom[0], "argmax_param.axis") if param.HasField("axis") else None
        if not shape:
            raise self.error("needs at least one axis, the bottom is a scalar", "bottom")
        self.copies = (1 if param.top_k == 1 else 3, 0)
        elements = shape[self.axis] if self.axis is not None else int(np.prod(shape[1:]))
        if not 1 <= param.top_k <= elements:
            raise self.error(f"top_k must be between 1 and {elements}, got {param.top_k}", "argmax_param.top_k")
        if self.axis is not None:
            top[0].reshape(*shape[: self.axis], param.top_k, *shape[self.axis + 1 :])
        else:
            top[0].reshape(shape[0], 2 if param.out_max_val else 1, param.top_k, *(1,) * (len(shape) - 3))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, x, y = self.param.argmax_param, bottom[0].data, top[0].data
        if self.axis is not None:
            rows = np.moveaxis(x, self.axis, -1)
            indices = largest(rows, param.top_k)
            found = np.take_along_axis(rows, indices, -1) if param.out_max_val else indices
            y[...] = np.moveaxis(found, -1, self.axis)
            return
        rows = x.reshape(x.shape[0], int(np.prod(x.shape[1:])))
        indices = largest(rows, param.top_k)
        y[:, 0] = indices.reshape(y[:, 0].shape)
        if param.out_max_val:
            y[:, 1] = np.take_along_axis(rows, indices, -1).reshape(y[:, 1].shape)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, shape = self.param.argmax_param, bottom[0].shape
        x, y = bottom[0].device_data("read"), top[0].device_data("write")
        if self.axis is None:
            lines, length, inner, k = shape[0], math.prod(shape[1:]), 1, param.top_k
            step = top[0].count // max(lines, 1)
            values = y + k * self.dtype.itemsize if param.out_max_val else 0
            launch_sums("arg_max.arg_max", self.dtype, lines, length, length, inner, k, step, x, y, values)
            return
        length, inner = shape[self.axis], math.prod(shape[self.axis + 1 :])
        results = (0, y) if param.out_max_val else (y, 0)
        lines = bottom[0].count // length
        if param.top_k == 1 and inner >= length:  # neighbouring threads then read neighbouring lines
            self.launch("arg_max.arg_max_lines", lines, lines, length, inner, x, *results)
        else:
            arguments = length, inner, param.top_k, param.top_k * inner, x, *results
            launch_sums("arg_max.arg_max", self.dtype, lines, length, *arguments)


def largest(rows: Array, count: int) -> NDArray[np.intp]:
    """Return the indices (..., count) of the largest of rows (..., K), largest first; of equal ones the larger first."""
    reverse = rows[..., ::-1]  # Caffe sorts (value, index) pairs in descending order, so ties go to the larger index
    # argmax finds the first in reverse, which is the last of rows.
    order = reverse.argmax(-1)[..., None] if count == 1 else np.argsort(-reverse, axis=-1, kind="stable")[..., :count]
    return rows.shape[-1] - 1 - order  # type: ignore[no-any-return]
