"""RNN, and ContinuationIndicator, which marks for LSTM and RNN where a sequence begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.recurrent.base import Recurrent


class RNN(Recurrent):
    """h[t] = tanh(weight_h (cont[t] h[t-1]) + weight_x x[t] + bias), y[t] = tanh(weight_y h[t] + bias_y), D = num_output units.

    A layer of tanh units that sees its own last output, and a layer of tanh units on it. A static input adds
    weight_static x_static to the first sum. Source: Caffe's rnn_layer.cpp.

    bottom: x (T, S, ...), T steps of S streams; cont (T, S), 0 where a sequence begins, else 1; optionally a static input
    (S, ...); with expose_hidden the first state h (1, S, D). top: y (T, S, D); with expose_hidden the last h (1, S, D).
    Without expose_hidden the last h of one forward is the first of the next, at first 0. blobs: weight_x (D, inputs),
    bias (D), with a static input weight_static (D, its size), weight_h (D, D), weight_y (D, D), bias_y (D).
    As in Caffe no gradient passes from batch to batch: the first state's diff is 0, the exposed last one's is not read.
    Raises LayerError when num_output is 0, or the number or the shapes of the blobs are not these.
    """

    type = "RNN"
    num_bottom = (2, 4)
    num_top = (1, 2)
    states = ("h",)
    more_names = ("weight_y", "bias_y")

    def more_shapes(self, units: int) -> list[tuple[int, ...]]:
        return [(units, units), (units,)]

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(saved=costs.saved + data_bytes(top[:1]))

    def steps(self, u: Array, cont: Array, start: list[Array], y: Array) -> list[Array]:
        weight_h, weight_y, bias_y = (blob.data for blob in self.blobs[self.h_weight :])
        h = start[0]
        self._carried, self._h = np.empty_like(y), np.empty_like(y)
        for t in range(len(u)):
            # 0 where a sequence begins: its first step has no previous state
            np.multiply(cont[t, :, None], h, out=self._carried[t])
            h = np.tanh(u[t] + self._carried[t] @ weight_h.T, out=self._h[t])
        np.matmul(self._h, weight_y.T, out=y)  # y is not fed back, so all steps are computed at once
        y += bias_y
        np.tanh(y, out=y)
        self._y = y.copy()  # a later layer may overwrite y in place
        return [h]

    def steps_backward(self, cont: Array, dy: Array) -> Array:
        weight_h, weight_y = (blob.data for blob in self.blobs[self.h_weight : self.h_weight + 2])
        flat, h = (-1, self.units), self._h
        before_tanh = dy * (1 - self._y * self._y)  # tanh' = 1 - tanh^2
        self.add_gradient(self.h_weight + 1, before_tanh.reshape(flat), h.reshape(flat))
        self.add_gradient(self.h_weight + 2, before_tanh.reshape(flat))
        dh, du, passed = before_tanh @ weight_y, np.empty_like(h), np.zeros(h.shape[1:], h.dtype)
        for t in reversed(range(len(h))):
            np.multiply(dh[t] + passed, 1 - h[t] * h[t], out=du[t])
            passed = cont[t, :, None] * (du[t] @ weight_h)  # no gradient leaves a sequence's first step
        self.add_gradient(self.h_weight, du.reshape(flat), self._carried.reshape(flat))
        return du


class ContinuationIndicator(Layer):
    """0 for the first time step of every sequence, 1 for the others. No gradient.

    Source: crnn.caffe's continuation_indicator_layer.cpp; with a bottom, Deep Detect's (beniz/caffe).

    bottom: none, or x, whose length along continuation_indicator_param.axis (default 0) is the number of sequences N. top:
    (T, N), with T time_step, and N batch_size if there is no bottom.
    Raises LayerError when T or N is not given, or N together with a bottom, and for an axis out of range.
    """

    type = "ContinuationIndicator"
    num_bottom = (0, 1)
    num_top = 1
    param_block = ("continuation_indicator_param",)
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.continuation_indicator_param
        if not param.time_step:
            raise self.error("needs time_step > 0", "continuation_indicator_param")
        if not bottom and not param.batch_size:
            raise self.error("needs batch_size > 0, or a bottom", "continuation_indicator_param")
        if bottom and param.batch_size:
            wrong = "its bottom says how many sequences there are: give no batch_size"
            raise self.error(wrong, "continuation_indicator_param.batch_size")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, sequences = self.param.continuation_indicator_param, self.param.continuation_indicator_param.batch_size
        if bottom:
            sequences = bottom[0].shape[self.axis_of(param.axis, bottom[0], "continuation_indicator_param.axis")]
        top[0].reshape(param.time_step, sequences)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[:1] = 0
        top[0].data[1:] = 1
