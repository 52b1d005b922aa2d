"""LSTMUnit: one time step of an LSTM, after the products with the weights.

    i, f, o = sigmoid(gates 0, 1, 2), f times cont; g = tanh(gate 3); c = f c_before + i g; h = o tanh(c)
Source: Caffe's lstm_unit_layer.cpp. Its derivative of f is f (1 - f) with cont in f, which is exact for cont 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer
from minicaffe.layers.neuron.sigmoid import sigmoid


class LSTMUnit(Layer):
    """c = f c_before + i g, h = o tanh(c).

    bottom: c_before (1, N, D); gates (1, N, 4 D), the four gates i, f, o, g one after the other; cont (1, N), 0 where a
    sequence begins, else 1. top: c (1, N, D), h (1, N, D).
    Raises LayerError when the shapes are not these.
    """

    type = "LSTMUnit"
    num_bottom = 3
    num_top = 2
    index_bottoms = (2,)
    weight_names = ()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 3 or shape[0] != 1:
            raise self.error(f"the first bottom must have shape (1, streams, units), it has {shape}", "bottom[0]")
        for i, want in ((1, (1, shape[1], 4 * shape[2])), (2, (1, shape[1]))):
            if bottom[i].shape != want:
                raise self.error(
                    f"bottom {i} must have shape {want}, as the first has {shape}; it has {bottom[i].shape}", f"bottom[{i}]"
                )
        for blob in top:
            blob.reshape(shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        c_before, gates, cont = (blob.data[0] for blob in bottom)
        self._gates = activated(gates, cont)
        lstm_step(self._gates, c_before, c=top[0].data[0], h=top[1].data[0])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dgates, dc_before = lstm_step_gradient(
            self._gates, bottom[0].data[0], top[0].data[0], dc=top[0].diff[0], dh=top[1].diff[0]
        )
        for i, gradient in enumerate((dc_before, dgates)):  # cont has no gradient
            if propagate_down[i]:
                bottom[i].diff[0] = gradient


def activated(gates: Array, cont: Array) -> Array:
    """gates (N, 4 D) -> (N, 4, D): i, f, o as sigmoids, f times cont (N), and g as tanh."""
    n, wide = gates.shape
    y: Array = np.empty((n, 4, wide // 4), gates.dtype)
    x = gates.reshape(y.shape)
    sigmoid(x[:, :3], out=y[:, :3])
    np.tanh(x[:, 3], out=y[:, 3])
    y[:, 1] *= cont[:, None]  # f is 0 where a sequence begins: c_before is forgotten
    return y


def lstm_step(gates: Array, c_before: Array, *, c: Array, h: Array) -> None:
    """c = f c_before + i g and h = o tanh(c), all (N, D), from activated gates (N, 4, D); c and h are overwritten."""
    i, f, o, g = (gates[:, k] for k in range(4))
    np.multiply(f, c_before, out=c)
    c += i * g
    np.multiply(o, np.tanh(c), out=h)


def lstm_step_gradient(gates: Array, c_before: Array, c: Array, *, dc: Array, dh: Array) -> tuple[Array, Array]:
    """Gradients in the gates before their activation (N, 4 D) and in c_before (N, D), from those in c and h (N, D)."""
    i, f, o, g = (gates[:, k] for k in range(4))
    tanh_c = np.tanh(c)
    dc = dc + dh * o * (1 - tanh_c * tanh_c)  # a new array: dc may be a top's diff
    dgates = np.empty_like(gates)
    dgates[:, 0] = dc * g * i * (1 - i)
    dgates[:, 1] = dc * c_before * f * (1 - f)  # f has cont in it: exact for 0 and 1
    dgates[:, 2] = dh * tanh_c * o * (1 - o)
    dgates[:, 3] = dc * i * (1 - g * g)
    return dgates.reshape(len(gates), gates.shape[1] * gates.shape[2]), dc * f
