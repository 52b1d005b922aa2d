"""Flatten: several axes made one, with no copy. Source: Caffe's flatten_layer.hpp."""

from __future__ import annotations

import math
from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layer import Layer


class Flatten(Layer):
    """Make the axes from `axis` (default 1) to `end_axis` (default -1, the last), both included, one axis.

    bottom: x (N, C, H, W). top: y (N, C * H * W) by default, x's memory (data and diff).
    Raises LayerError when an axis is out of range, or end_axis is before axis.
    """

    type = "Flatten"
    num_bottom = 1
    num_top = 1
    param_block = ("flatten_param",)
    weight_names = ()
    only_shares = True
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, shape = self.param.flatten_param, bottom[0].shape
        start = self.axis_of(param.axis, bottom[0], "flatten_param.axis")
        end = self.axis_of(param.end_axis, bottom[0], "flatten_param.end_axis") + 1
        if end <= start:
            raise self.error(f"end_axis {param.end_axis} is before axis {param.axis} in shape {shape}", "flatten_param")
        top[0].reshape(*shape[:start], math.prod(shape[start:end]), *shape[end:])
        top[0].share(bottom[0])  # at each reshape: the bottom may have got new memory

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Nothing: the top is the bottom's memory."""

    forward_gpu = forward_cpu
