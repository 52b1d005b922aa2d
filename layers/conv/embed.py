"""Embed: one row of a table for each number: y = weight[x] + bias. InnerProduct of one-hot vectors, without making them.

Source: Caffe's embed_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import column_sums, launch_add, launch_take
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.shape.batch_reindex import add_rows, whole_numbers


class Embed(Layer):
    """y[n...] = weight[x[n...]] + bias.

    bottom: x, any shape, whole numbers in [0, input_dim), as floats. top: y (*x's shape, num_output).
    blobs: weight (input_dim, num_output), bias (num_output).
    Raises LayerError when num_output or input_dim is 0, or a number of x is no row of the table; in a net of bottom-up-
    attention's, whose Embed replaces a last axis of length 1, for such an x.
    """

    type = "Embed"
    num_bottom = 1
    num_top = 1
    index_bottoms = (0,)
    param_block = ("embed_param",)
    weight_names = ("weight", "bias")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.embed_param
        for field, number in (("num_output", param.num_output), ("input_dim", param.input_dim)):
            if number < 1:
                raise self.error(f"{field} must be > 0, got {number}", f"embed_param.{field}")
        shapes = [(param.input_dim, param.num_output), (param.num_output,)][: 1 + param.bias_term]
        self.learn(shapes, [param.weight_filler, param.bias_filler])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.fork.name == "butd" and bottom[0].shape[-1:] == (1,):
            wrong = "bottom-up-attention's, which puts num_output in the place of x's last axis of length 1, is not built in"
            raise self.error(f"{wrong}: drop that axis with a Reshape before; x has shape {bottom[0].shape}", "bottom[0]")
        top[0].reshape(*bottom[0].shape, self.param.embed_param.num_output)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(multiply_adds=0, working=0 if propagate_down is None else data_bytes(top))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        weight, y = self.blobs[0].data, top[0].data
        np.take(weight, self._index(bottom), axis=0, out=y, mode="clip")  # checked by _index; mode raise would buffer out
        if len(self.blobs) > 1:
            y += self.blobs[1].data

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        table = self.blobs[0].device_data("read")
        bias = self.blobs[1].device_data("read") if len(self.blobs) > 1 else 0
        launch_take(self, bottom[0], "bottom[0]", table, self.blobs[0].shape[0], top[0], bias=bias)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy = top[0].diff.reshape(bottom[0].count, top[0].shape[-1])
        if self.param_propagate_down[0]:
            add_rows(dy, self._index(bottom).reshape(-1), self.blobs[0].diff)
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            self.blobs[1].diff[...] += dy.sum(axis=0)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.param_propagate_down[0]:
            launch_add(self, bottom[0], top[0], self.blobs[0].shape[0], self.blobs[0].device_diff("update"))
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            dy, dbias, width = top[0].device_diff("read"), self.blobs[1].device_diff("update"), top[0].shape[-1]
            column_sums(self.dtype, bottom[0].count, width, dy, dbias)

    def _index(self, bottom: Sequence[Blob]) -> Array:
        return whole_numbers(self, bottom[0].data, self.blobs[0].shape[0], "bottom[0]")
