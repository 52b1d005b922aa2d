"""LSTM: u[t] = weight_h (cont[t] h[t-1]) + weight_x x[t] + bias (+ weight_static x_static); then LSTMUnit's step.

    i, f, o = sigmoid(u's first three quarters), g = tanh(the last); c[t] = cont[t] f c[t-1] + i g; y[t] = h[t] = o tanh(c[t])
Source: Caffe's lstm_layer.cpp.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .lstm_unit import activated, lstm_step, lstm_step_gradient
from .recurrent.base import Recurrent


class LSTM(Recurrent):
    """Long short-term memory of D = num_output units: c[t] = cont[t] f c[t-1] + i g, y[t] = h[t] = o tanh(c[t]).

    bottom: x (T, S, ...), T steps of S streams; cont (T, S), 0 where a sequence begins, else 1; optionally a static input
    (S, ...); with expose_hidden the first states h and c (1, S, D). top: y (T, S, D); with expose_hidden the last h and c
    (1, S, D). Without expose_hidden the last states of one forward are the first of the next, at first 0.
    blobs: weight_x (4 D, inputs), bias (4 D), with a static input weight_static (4 D, its size), weight_h (4 D, D).
    As in Caffe no gradient passes from batch to batch: the first states' diffs are 0, the exposed last ones' are not read.
    Raises LayerError when num_output is 0, or the number or the shapes of the blobs are not these.
    """

    type = "LSTM"
    num_bottom = (2, 5)
    num_top = (1, 3)
    states = ("h", "c")
    gates = 4

    def steps(self, u: Array, cont: Array, start: list[Array], y: Array) -> list[Array]:
        weight_h = self.blobs[self.h_weight].data
        self._carried = np.empty_like(y)
        self._gates = np.empty((*y.shape[:2], 4, self.units), y.dtype)
        self._c = np.empty((len(y) + 1, *y.shape[1:]), y.dtype)  # c before each step, and after the last
        h, self._c[0] = start
        for t in range(len(u)):
            np.multiply(cont[t, :, None], h, out=self._carried[t])
            # cont 0 forgets twice: h in carried, c through f's factor
            self._gates[t] = activated(u[t] + self._carried[t] @ weight_h.T, cont[t])
            lstm_step(self._gates[t], self._c[t], c=self._c[t + 1], h=y[t])
            h = y[t]  # read once, before the net goes on: the top may be overwritten later
        return [h, self._c[-1]]

    def steps_backward(self, cont: Array, dy: Array) -> Array:
        weight_h = self.blobs[self.h_weight].data
        du = np.empty((*dy.shape[:2], 4 * self.units), dy.dtype)
        dh = dc = np.zeros(dy.shape[1:], dy.dtype)  # no gradient from the next batch, as in Caffe
        for t in reversed(range(len(dy))):
            du[t], dc = lstm_step_gradient(self._gates[t], self._c[t], self._c[t + 1], dc=dc, dh=dy[t] + dh)
            dh = cont[t, :, None] * (du[t] @ weight_h)  # dc has cont in it, through f
        self.add_gradient(self.h_weight, du.reshape(-1, 4 * self.units), self._carried.reshape(-1, self.units))
        return du
