"""LSTM, the forks' Lstm, and LSTMUnit, one step of both.

    u[t] = weight_h (cont[t] h[t-1]) + weight_x x[t] + bias (+ weight_static x_static, LSTM's with a static input)
    i, f, o = sigmoid(u's first three quarters)        g = tanh(the last)
    c[t] = cont[t] f c[t-1] + i g                      y[t] = h[t] = o tanh(c[t])

Sources: Caffe's lstm_layer.cpp; the files of that name of junhyukoh/caffe-lstm and of tianzhi0549/CTPN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.neuron.functions import sigmoid
from minicaffe.layers.recurrent.base import Recurrent, Stateful


class LSTMUnit(Layer):
    """One time step of an LSTM, after the products with the weights.

        i, f, o = sigmoid(gates 0, 1, 2), f times cont; g = tanh(gate 3); c = f c_before + i g; h = o tanh(c)
    Source: Caffe's lstm_unit_layer.cpp. Its derivative of f is f (1 - f) with cont in f, which is exact for cont 0 and 1.

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
    """Return activated gates (N, 4, D) of gates (N, 4 D): i, f, o as sigmoids, f times cont (N), and g as tanh."""
    n, wide = gates.shape
    y: Array = np.empty((n, 4, wide // 4), gates.dtype)
    x = gates.reshape(y.shape)
    sigmoid(x[:, :3], out=y[:, :3])
    np.tanh(x[:, 3], out=y[:, 3])
    y[:, 1] *= cont[:, None]  # f is 0 where a sequence begins, which drops c_before
    return y


def lstm_step(gates: Array, c_before: Array, *, c: Array, h: Array) -> None:
    """Compute c = f c_before + i g and h = o tanh(c) from activated gates (N, 4, D).

    c and h are overwritten; all are (N, D).
    """
    i, f, o, g = (gates[:, k] for k in range(4))
    np.multiply(f, c_before, out=c)
    c += i * g
    np.multiply(o, np.tanh(c), out=h)


def lstm_step_gradient(gates: Array, c_before: Array, c: Array, *, dc: Array, dh: Array) -> tuple[Array, Array]:
    """Return the gradients in the gates before activation (N, 4 D) and in c_before (N, D).

    dc, dh: those in c and h (N, D).
    """
    i, f, o, g = (gates[:, k] for k in range(4))
    tanh_c = np.tanh(c)
    dc = dc + dh * o * (1 - tanh_c * tanh_c)  # a new array, because dc may be a top's diff
    dgates = np.empty_like(gates)
    dgates[:, 0] = dc * g * i * (1 - i)
    dgates[:, 1] = dc * c_before * f * (1 - f)  # f includes cont, which is exact for 0 and 1
    dgates[:, 2] = dh * tanh_c * o * (1 - o)
    dgates[:, 3] = dc * i * (1 - g * g)
    return dgates.reshape(len(gates), gates.shape[1] * gates.shape[2]), dc * f


class LstmSteps:
    """The forward run of T steps of S streams of D units. It keeps what backward needs.

    first_only: the first stream's h replaces every stream's.
    """

    def __init__(self, weight_h: Array, cont: Array, *, first_only: bool = False) -> None:
        self.weight_h, self.cont, self.first_only = weight_h, cont, first_only

    def forward(self, u: Array, start: Sequence[Array], y: Array) -> list[Array]:
        """Compute y (T, S, D) = h after each step, and return the last h and c.

        u: (T, S, 4 D); h and c before the first step: (S, D).
        """
        h, c = start
        self.carried = np.empty_like(y)
        self.gates = np.empty((*y.shape[:2], 4, y.shape[2]), y.dtype)
        self.c = np.empty((len(y) + 1, *y.shape[1:]), y.dtype)  # before each step, and after the last one
        self.c[0] = c
        for t in range(len(u)):
            np.multiply(self.cont[t, :, None], h[:1] if self.first_only else h, out=self.carried[t])
            # cont 0 resets both: h in carried, c through f.
            self.gates[t] = activated(u[t] + self.carried[t] @ self.weight_h.T, self.cont[t])
            lstm_step(self.gates[t], self.c[t], c=self.c[t + 1], h=y[t])
            h = y[t]  # before the net continues and may overwrite the top
        return [h, self.c[-1]]

    def backward(self, dy: Array, *, bound: float = np.inf) -> Array:
        """Return du (T, S, 4 D) from dy (T, S, D).

        Each step's du is clipped to [-bound, bound] before it is propagated further.
        """
        steps, streams, units = dy.shape
        du = np.empty((steps, streams, 4 * units), dy.dtype)
        dh = dc = np.zeros((streams, units), dy.dtype)  # no gradient comes from the next batch
        for t in reversed(range(steps)):
            du[t], dc = lstm_step_gradient(self.gates[t], self.c[t], self.c[t + 1], dc=dc, dh=dy[t] + dh)
            if bound < np.inf:
                np.clip(du[t], -bound, bound, out=du[t])
            dh = self.cont[t, :, None] * (du[t] @ self.weight_h)  # dc includes cont, through f
            if self.first_only:
                dh = np.concatenate([dh.sum(axis=0, keepdims=True), np.zeros_like(dh[1:])])
        return du


CTPN, CAFFE_LSTM = "CTPN", "caffe-lstm"
"""The variants of Lstm."""


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

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        # Working memory: the sums of all steps' gates.
        return super().costs(bottom, top, propagate_down)._replace(working=4 * data_bytes(top[:1]))

    def steps(self, u: Array, cont: Array, start: list[Array], y: Array) -> list[Array]:
        self._steps = LstmSteps(self.blobs[self.h_weight].data, cont)
        return self._steps.forward(u, start, y)

    def steps_backward(self, cont: Array, dy: Array) -> Array:
        du = self._steps.backward(dy)  # as in Caffe, no gradient comes from the next batch
        self.add_gradient(self.h_weight, du.reshape(-1, 4 * self.units), self._steps.carried.reshape(-1, self.units))
        return du


class Lstm(Forked, Stateful):
    """Long short-term memory of D = num_output units, of caffe-lstm and CTPN: h[t] = o tanh(c[t]), c[t] = f c[t-1] + i g.

    bottom: x (T, S, ...), T steps of S streams; top: y (T, S, D). Or x (T * S, ...), S being batch_size; top: y (T * S, D).
    x has CTPN's form, the first, if the net's fork says so; without a fork if it has three axes or more, unless a batch_size is
    given that is not its second length. Stored weights of the other form change it: CTPN's takes two axes as T and S too.
    Optional bottom: clip (T or more). As the forks read it, step t of stream s goes on from the step before if clip[t + s] is
    not 0; past its end it is 0 here. With clip the states of one forward are the first of the next, at first 0; without it
    every forward begins with 0.
    Every stream goes on from the h of the first stream, and from its own c, as in the forks' CPU code;
    lstm_param { own_states: true }: from its own h, as in their GPU code.
    blobs: weight_x (4 D, inputs), weight_h (4 D, D), bias (4 D). A clipping_threshold above 0 bounds every gradient in u.
    Raises LayerError when num_output or batch_size is 0, T * S is no multiple of batch_size, the inputs are not as many as
    setup found, or clip has fewer than T numbers or more than one axis.
    """

    type = "Lstm"
    num_bottom = (1, 2)
    num_top = 1
    index_bottoms = (1,)
    param_block = ("lstm_param",)
    weight_names = ("weight_x", "weight_h", "bias")
    states = ("h", "c")
    kinds = (
        Kind(CTPN, ("ctpn", "caffeocr", "mkfrcnn"), "x (T, S, ...)"),
        Kind(CAFFE_LSTM, ("jlstm",), "x (T * S, ...)"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, shape = self.param.lstm_param, bottom[0].shape
        for name in ("num_output", "batch_size"):
            if getattr(param, name) < 1:
                raise self.error(f"{name} must be > 0, got {getattr(param, name)}", f"lstm_param.{name}")
        if not shape:
            raise self.error("x must have an axis of steps", "bottom[0]")
        self.units = param.num_output
        self.streams_apart = self._are_streams_apart(shape)
        """True if x is (T, S, ...), not (T * S, ...)."""
        self._inputs_of = {apart: math.prod(shape[1 + apart :]) for apart in (False, True)[: len(shape)]}
        self.bound = param.clipping_threshold if param.clipping_threshold > 0 else np.inf
        self._warned = False
        self.hold_states()
        self._make()

    def _are_streams_apart(self, shape: tuple[int, ...]) -> bool:
        param = self.param.lstm_param
        if not self.choose_by_fork():  # first, because CTPN's schema has batch_size, but its code ignores it
            given = param.HasField("batch_size")
            is_ctpns = len(shape) > 2 and not (given and param.batch_size != shape[1])
            self.choose(CTPN if is_ctpns else CAFFE_LSTM, f"{len(shape)} axes{f', batch_size {param.batch_size}' * given}")
        apart = self.choice is not None and self.choice.whose == CTPN
        if apart and len(shape) < 2:
            raise self.error(f"x must have 2 axes or more, its shape is {shape}", "bottom[0]")
        return apart

    def _make(self) -> None:
        wide, param = 4 * self.units, self.param.lstm_param
        self.inputs = self._inputs_of[self.streams_apart]
        fillers = [param.weight_filler, param.weight_filler, param.bias_filler]
        self.learn([(wide, self.inputs), (wide, self.units), (wide,)], fillers)

    def adopt_layout(self, shapes: Sequence[Sequence[int]]) -> bool:
        stored = shapes[0][-1] if shapes and shapes[0] else self.inputs
        if stored == self.inputs or stored != self._inputs_of.get(not self.streams_apart):
            return False
        self.streams_apart = not self.streams_apart
        self.choose(CTPN if self.streams_apart else CAFFE_LSTM, f"{stored} inputs in the stored weights")
        del self.blobs[:]
        self._make()
        return True

    def _steps_of(self, x: Blob) -> tuple[int, int]:
        """Return T and S."""
        if self.streams_apart:
            return x.shape[0], x.shape[1]
        streams = self.param.lstm_param.batch_size
        if x.shape[0] % streams:
            raise self.error(f"x must have a multiple of batch_size, {streams}, rows, got {x.shape[0]}", "bottom[0]")
        return x.shape[0] // streams, streams

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].shape
        axes = 1 + self.streams_apart
        if len(x) < axes:
            raise self.error(f"x must have {axes} axes or more, its shape is {x}", "bottom[0]")
        if math.prod(x[axes:]) != self.inputs:
            raise self.error(f"its weights take {self.inputs} inputs, x {x} has {math.prod(x[axes:])}", "bottom[0]")
        steps, streams = self._steps_of(bottom[0])
        if len(bottom) == 2 and (bottom[1].shape[:1] != (bottom[1].count,) or bottom[1].count < steps):
            raise self.error(f"clip must have shape ({steps},) or longer, it has {bottom[1].shape}", "bottom[1]")
        if streams > 1 and not self.param.lstm_param.own_states and not self._warned:
            self._warned = True
            self.warn(
                f"{streams} streams go on from the first one's h, as in the fork's CPU code; for its GPU code, with which"
                " models are usually trained, write lstm_param { own_states: true }",
                "lstm_param",
            )
        top[0].reshape(*x[:axes], self.units)
        for blob in self.last_states:
            blob.reshape(1, streams, self.units)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        # Saved: each step's state before, gates and states after. Working: the sums of all steps' gates.
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(
            multiply_adds=sum(blob.count for blob in self.blobs[:2]) * (top[0].count // self.units),
            saved=6 * data_bytes(top[:1]),
            working=4 * data_bytes(top[:1]),
        )

    def _continues(self, bottom: Sequence[Blob], steps: int, streams: int) -> Array:
        """Return (T, S): 1 where a stream continues from the step before, else 0."""
        if len(bottom) == 1:
            return np.repeat(np.arange(steps)[:, None] > 0, streams, axis=1).astype(self.dtype)
        clip = np.concatenate([bottom[1].data.reshape(-1) != 0, np.zeros(streams)]).astype(self.dtype)
        return clip[np.add.outer(np.arange(steps), np.arange(streams))]

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        steps, streams = self._steps_of(bottom[0])
        weight_x, weight_h, bias = (blob.data for blob in self.blobs)
        u = self._rows(bottom[0].data) @ weight_x.T  # all steps in one product
        u += bias
        start = [blob.data[0] * (len(bottom) == 2) for blob in self.last_states]
        cont = self._continues(bottom, steps, streams)
        self._steps = LstmSteps(weight_h, cont, first_only=not self.param.lstm_param.own_states)
        y = top[0].data.reshape(steps, streams, self.units)
        states = self._steps.forward(u.reshape(steps, streams, 4 * self.units), start, y)
        for blob, state in zip(self.last_states, states, strict=True):
            blob.data[0] = state

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        carried = self._steps.carried
        du = self._steps.backward(top[0].diff.reshape(carried.shape), bound=self.bound).reshape(-1, 4 * self.units)
        self.add_gradient(0, du, self._rows(bottom[0].data))
        self.add_gradient(1, du, carried.reshape(-1, self.units))
        self.add_gradient(2, du)
        if propagate_down[0]:
            bottom[0].diff[...] = (du @ self.blobs[0].data).reshape(bottom[0].shape)

    def _rows(self, x: Array) -> Array:
        """Return x as a view (T * S, inputs)."""
        return x.reshape(math.prod(x.shape[: 1 + self.streams_apart]), self.inputs)
