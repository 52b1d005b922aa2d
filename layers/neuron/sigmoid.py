"""Sigmoid: y = 1 / (1 + exp(-x)), dx = dy y (1 - y).

Source: Caffe's sigmoid_layer.cpp. Computed as (1 + tanh(x / 2)) / 2, which no x overflows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.pairs import data_pair, diff_pair
from minicaffe.layer import Layer


class Sigmoid(Layer):
    """y = 1 / (1 + exp(-x)).

    bottom: x, any shape. top: y, of x's shape. May run in place.
    """

    type = "Sigmoid"
    num_bottom = 1
    num_top = 1
    in_place = True
    weight_names = ()
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
            np.multiply(top[0].diff, y * (1 - y), out=bottom[0].diff)  # from y: x may have been overwritten

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            count, y = top[0].count, top[0].device_data("read")
            self.launch("sigmoid.sigmoid_backward", count, count, y, *diff_pair(top[0], bottom[0]))


def sigmoid(x: Array, *, out: Array | None = None) -> Array:
    """1 / (1 + exp(-x)), of x's shape; out (may be x itself) receives it if given."""
    y: Array = np.multiply(x, 0.5, out=out)  # (1 + tanh(x / 2)) / 2: exp(-x) would overflow
    np.tanh(y, out=y)
    y *= 0.5
    y += 0.5
    return y
