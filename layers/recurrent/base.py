"""The base of RNN and LSTM: bottoms and tops, input weights, and states passed between steps and batches.

    u[t] = weight_x x[t] + bias (+ weight_static x_static) + weight_h (cont[t] h[t - 1])        for t = 0 ... T - 1
Source: Caffe's recurrent_layer.cpp, which builds a net with a copy of the layers for every step; here it is one loop.
The product with x is taken for all steps at once. With recurrent_param.debug_info that net runs too.

The net that Caffe unrolls an RNN or LSTM into, built to show its blobs: recurrent_param.debug_info.

    RNN:  h[t - 1] times cont[t] -> h_conted -> W_hh -> + W_xh x[t] (+ W_xh_static) -> tanh -> h[t] -> W_ho -> tanh -> o[t]
    LSTM: h[t - 1] times cont[t] -> h_conted -> W_hc -> + W_xc x[t] (+ W_xc_static) -> LSTMUnit with c[t - 1] -> c[t], h[t]

The layer computes without it; with debug_info it runs too, on copies, and its lines go to the log.
Source: Caffe's recurrent_layer.cpp, rnn_layer.cpp and lstm_layer.cpp, whose names of layers and blobs these are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from minicaffe import limits
from minicaffe.blob import Array, Blob
from minicaffe.data.state_fields import Fields, numbers, pair, same_shape
from minicaffe.errors import Error
from minicaffe.hooks import debug_info
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.proto import caffe_pb2

Shape = tuple[int, ...]


class Unrolled:
    """A recurrent layer's unrolled net.

    states: h of an RNN, h and c of an LSTM. inputs: x, cont and, where there is one, x_static, by name.
    """

    def __init__(self, states: Sequence[str], name: str, units: int, inputs: Mapping[str, Shape], **options: Any) -> None:
        from minicaffe.net import Net  # here, because net imports the layers

        self.shapes = dict(inputs)
        self.net = Net(unrolled_net(states, name, units, inputs), **options)
        self.last = len(self.net.layers) - 2  # skips the pseudo-loss, which only provides a gradient

    def forward(self, weights: Sequence[Blob], arrays: Mapping[str, Array]) -> None:
        """Run on copies of the layer's weights, the inputs and the first states, by name. Each layer logs its lines."""
        for mine, blob in zip(self.net.learnable_params, weights, strict=True):
            mine.data[...] = blob.data
        for name, array in arrays.items():
            self.net.blobs[name].data[...] = array
        with debug_info(self.net, whole=False):
            self.net.forward_from_to(0, self.last)

    def backward(self, weights: Sequence[Blob], dy: Array) -> None:
        """Run backward from dy (T, S, D), adding to copies of the weights' diffs. Each layer logs its lines."""
        for mine, blob in zip(self.net.learnable_params, weights, strict=True):
            mine.diff[...] = blob.diff  # Caffe's diffs accumulate, so its log lines show sums
        self.net.nodes[self.last].tops[0].diff[...] = dy  # replaces the pseudo-loss's gradient
        with debug_info(self.net, whole=False):
            self.net.backward_from_to(self.last, 0)


def unrolled_net(kept: Sequence[str], name: str, units: int, inputs: Mapping[str, Shape]) -> caffe_pb2.NetParameter:
    """Return the net of T steps. Its layers are named after the recurrent layer; its output is o (RNN) or h (LSTM)."""
    net = caffe_pb2.NetParameter()
    steps, streams = inputs["cont"]
    lstm = "c" in kept
    w, wide, states = ("W_xc", 4 * units, ("c_0", "h_0")) if lstm else ("W_xh", units, ("h_0",))
    numbers = range(1, steps + 1)
    _input(net, inputs)
    _input(net, dict.fromkeys(states, (1, streams, units)))
    _add(net, "cont_slice", "Slice", ["cont"], [f"cont_{t}" for t in numbers], slice_param={"axis": 0})
    _product(net, "x_transform", "x", f"{w}_x", wide, [w, "b_c" if lstm else "b_h"], propagate_down=[True])
    static = [f"{w}_x_static"] if "x_static" in inputs else []
    for top in static:
        _product(net, top, "x_static", f"{top}_preshape", wide, [f"{w}_static"], axis=1, propagate_down=[True])
        shape = {"shape": {"dim": [1, -1, wide]}}  # Eltwise adds the static input to each step, which is one more axis
        _add(net, f"{top}_reshape", "Reshape", [f"{top}_preshape"], [top], reshape_param=shape)
    _add(net, f"{w}_x_slice", "Slice", [f"{w}_x"], [f"{w}_x_{t}" for t in numbers], slice_param={"axis": 0})
    for t in numbers:
        scaled = f"h_conted_{t - 1}"
        _add(net, scaled, "Scale", [f"h_{t - 1}", f"cont_{t}"], [scaled], scale_param={"axis": 0})
        (_lstm_step if lstm else _rnn_step)(net, t, units, static)
    if lstm:
        _add(net, "", "Split", [f"c_{steps}"], ["c_T"])  # nameless in Caffe too
    y = "h" if lstm else "o"
    _add(net, f"{y}_concat", "Concat", [f"{y}_{t}" for t in numbers], [y], concat_param={"axis": 0})
    for layer in net.layer if name else ():  # as Caffe names them; the pseudo-loss follows
        layer.name = f"{name}_{layer.name}"
    _add(net, f"{y}_pseudoloss", "Reduction", [y], [f"{y}_pseudoloss"], loss_weight=[1])
    return net


def _rnn_step(net: caffe_pb2.NetParameter, t: int, units: int, static: list[str]) -> None:
    carried, summed, before_tanh = f"W_hh_h_{t - 1}", f"h_neuron_input_{t}", f"W_ho_h_{t}"
    _product(net, carried, f"h_conted_{t - 1}", carried, units, ["W_hh"])
    _add(net, f"h_input_sum_{t}", "Eltwise", [carried, f"W_xh_x_{t}", *static], [summed])
    _add(net, f"h_neuron_{t}", "TanH", [summed], [f"h_{t}"])
    _product(net, before_tanh, f"h_{t}", before_tanh, units, ["W_ho", "b_o"])
    _add(net, f"o_neuron_{t}", "TanH", [before_tanh], [f"o_{t}"])


def _lstm_step(net: caffe_pb2.NetParameter, t: int, units: int, static: list[str]) -> None:
    carried, gates = f"W_hc_h_{t - 1}", f"gate_input_{t}"
    _product(net, f"transform_{t}", f"h_conted_{t - 1}", carried, 4 * units, ["W_hc"])
    _add(net, gates, "Eltwise", [carried, f"W_xc_x_{t}", *static], [gates])
    _add(net, f"unit_{t}", "LSTMUnit", [f"c_{t - 1}", gates, f"cont_{t}"], [f"c_{t}", f"h_{t}"])


def _product(
    net: caffe_pb2.NetParameter,
    name: str,
    bottom: str,
    top: str,
    outputs: int,
    weights: list[str],
    *,
    axis: int = 2,
    **more: Any,
) -> None:
    """Add an InnerProduct, with a bias if a second weight is named."""
    param = {"num_output": outputs, "bias_term": len(weights) > 1, "axis": axis}
    named = [{"name": weight} for weight in weights]
    _add(net, name, "InnerProduct", [bottom], [top], param=named, inner_product_param=param, **more)


def _input(net: caffe_pb2.NetParameter, shapes: Mapping[str, Shape]) -> None:
    _add(net, "", "Input", [], list(shapes), input_param={"shape": [{"dim": shape} for shape in shapes.values()]})


def _add(net: caffe_pb2.NetParameter, name: str, kind: str, bottom: list[str], top: list[str], **more: Any) -> None:
    net.layer.add(name=name, type=kind, bottom=bottom, top=top, **more)


class Stateful(Layer):
    """A layer of `units` units that continues from its last forward's states, (1, S, units) each."""

    stateful = True
    states: ClassVar[tuple[str, ...]] = ()
    units: int
    last_states: list[Blob]

    def hold_states(self) -> None:
        """Set the states to zeros, until the first batch has passed."""
        self.last_states = [Blob((), self.dtype) for _ in self.states]

    def add_gradient(self, i: int, dy: Array, x: Array | None = None) -> None:
        """Add dy^T x to the diff of blob i, or for a bias (no x) dy's sum. dy (M, J), x (M, K)."""
        if self.param_propagate_down[i]:
            self.blobs[i].diff[...] += dy.sum(axis=0) if x is None else dy.T @ x

    def training_state(self) -> dict[str, Any]:
        return {
            name: [list(blob.shape), blob.data.ravel().tolist()]
            for name, blob in zip(self.states, self.last_states, strict=True)
        }

    def restore_training_state(self, state: dict[str, Any]) -> None:
        fields, found = Fields(state), []
        for name in self.states:
            shape, values = pair(fields.get(name), fields.path(name))
            array = np.array(numbers(values, f"{name}[1]"), self.dtype)
            same_shape(shape, f"{name}[0]", (1, len(array) // self.units, self.units))
            found.append(array.reshape(shape))  # read all states before restoring one
        for blob, array in zip(self.last_states, found, strict=True):
            blob.reshape(array.shape)
            blob.data[...] = array


class Recurrent(Stateful):
    """A recurrent layer of D = num_output units, S streams of T steps.

    Subclasses set states and gates, and define steps, steps_backward and, for further weights, more_shapes and more_names.

    blobs: weight_x (gates D, inputs), bias (gates D), with a static input weight_static (gates D, its size), then weight_h
    (gates D, D), then the subclass's.
    """

    index_bottoms: tuple[int, ...] = (1,)
    param_block = ("recurrent_param",)
    gates: ClassVar[int] = 1
    more_names: ClassVar[tuple[str, ...]] = ()

    def steps(self, u: Array, cont: Array, start: list[Array], y: Array) -> list[Array]:
        """Run the loop on u (T, S, gates D), which lacks weight_h's part, and return the last states.

        It starts from the states start (S, D). y (T, S, D) is overwritten.
        """
        raise NotImplementedError

    def steps_backward(self, cont: Array, dy: Array) -> Array:
        """Return du (T, S, gates D) from dy (T, S, D), and add to the diffs of the subclass's weights."""
        raise NotImplementedError

    def more_shapes(self, units: int) -> list[tuple[int, ...]]:
        """Return the shapes of the blobs after weight_h, weights and biases in turn."""
        return []

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.recurrent_param
        units = self.units = param.num_output
        if units < 1:
            raise self.error(f"num_output must be > 0, got {units}", "recurrent_param.num_output")
        exposed = len(self.states) * param.expose_hidden
        what = f"with expose_hidden {str(param.expose_hidden).lower()} takes"
        if len(bottom) not in (2 + exposed, 3 + exposed):
            raise self.error(f"{what} {2 + exposed} bottoms, or {3 + exposed} with a static input, got {len(bottom)}", "bottom")
        if len(top) != 1 + exposed:
            raise self.error(f"{what} {1 + exposed} top{'s' * (exposed > 0)}, got {len(top)}", "top")
        self.static = len(bottom) == 3 + exposed
        self.exposed = slice(2 + self.static, 2 + self.static + exposed)
        self.inputs = [math.prod(bottom[0].shape[2:])]
        if self.static:
            self.inputs.append(math.prod(bottom[2].shape[1:]))
        wide, fillers = self.gates * units, [param.weight_filler, param.bias_filler]
        shapes: list[tuple[int, ...]] = [(wide, self.inputs[0]), (wide,)]
        shapes += [(wide, size) for size in self.inputs[1:]] + [(wide, units)]
        # The order: weight_x and bias, the weights without a bias, the pairs of the subclass.
        used = fillers + fillers[:1] * (len(shapes) - 2) + fillers * 2
        self.learn(shapes + self.more_shapes(units), used)
        static = ["weight_static"] * self.static
        self.weight_names = ("weight_x", "bias", *static, "weight_h", *self.more_names)
        self.h_weight = len(shapes) - 1
        self.hold_states()
        self._unrolled: Unrolled | None = None

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].shape
        if len(x) < 2:
            raise self.error(f"the first bottom must have shape (steps, streams, ...), it has {x}", "bottom[0]")
        if bottom[1].shape != x[:2]:
            raise self.error(
                f"cont, the second bottom, must have shape {x[:2]}, as the first has {x}; it has {bottom[1].shape}", "bottom[1]"
            )
        if self.static and bottom[2].shape[:1] != x[1:2]:
            raise self.error(f"the static input must have {x[1]} streams first, its shape is {bottom[2].shape}", "bottom[2]")
        sizes = [math.prod(x[2:])] + ([math.prod(bottom[2].shape[1:])] if self.static else [])
        for i, had, now in zip((0, 2), self.inputs, sizes):  # bottom 1 is cont
            if had != now:
                raise self.error(f"its weights take {had} inputs from bottom {i}, it now gives {now}", f"bottom[{i}]")
        state = (1, x[1], self.units)
        for i, blob in enumerate(bottom[self.exposed], self.exposed.start):
            if blob.shape != state:
                raise self.error(f"bottom {i}, a first state, must have shape {state}, it has {blob.shape}", f"bottom[{i}]")
        top[0].reshape(*x[:2], self.units)
        for blob in (*top[1:], *self.last_states):
            blob.reshape(state)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        steps, streams = bottom[1].count, bottom[1].shape[1]
        matrices = zip(self.weight_names or (), self.blobs, strict=True)
        multiply_adds = sum(  # the static input is multiplied once, the others in each step
            blob.count * (streams if name == "weight_static" else steps) for name, blob in matrices if len(blob.shape) == 2
        )
        # Saved: each step's states and gates. Working: the gates and their sums.
        size = data_bytes(top[:1])
        return Costs(multiply_adds, (len(self.states) + self.gates) * size, 0, 2 * self.gates * size)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        steps, streams = bottom[1].shape
        # all steps in one product; only weight_h must wait for the previous step
        u = self._rows(bottom[0], 0) @ self.blobs[0].data.T
        u += self.blobs[1].data
        u = u.reshape(steps, streams, u.shape[1])
        if self.static:
            u += self._rows(bottom[2], 1) @ self.blobs[2].data.T  # (S, gates D), equal in all steps
        start = [blob.data[0].copy() for blob in bottom[self.exposed] or self.last_states]
        if self.param.recurrent_param.debug_info:
            self._show_forward(bottom, start)
        last = self.steps(u, bottom[1].data, start, top[0].data)
        for blob, state in zip(top[1:] or self.last_states, last, strict=True):
            blob.data[0] = state  # the next batch continues from here

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self._unrolled is not None:
            self._unrolled.backward(self.blobs, top[0].diff)
        for blob, wanted in zip(bottom[self.exposed], propagate_down[self.exposed], strict=True):
            if wanted:
                blob.diff[...] = 0  # Caffe propagates nothing to initial states
        du = self.steps_backward(bottom[1].data, top[0].diff)
        # the static input is part of every step
        flat, summed = du.reshape(du.shape[0] * du.shape[1], du.shape[2]), du.sum(axis=0)
        self.add_gradient(0, flat, self._rows(bottom[0], 0))
        self.add_gradient(1, flat)
        if propagate_down[0]:
            bottom[0].diff[...] = (flat @ self.blobs[0].data).reshape(bottom[0].shape)
        if self.static:
            self.add_gradient(2, summed, self._rows(bottom[2], 1))
            if propagate_down[2]:
                bottom[2].diff[...] = (summed @ self.blobs[2].data).reshape(bottom[2].shape)

    def _show_forward(self, bottom: Sequence[Blob], start: Sequence[Array]) -> None:
        """Let Caffe's unrolled net, rebuilt for other shapes, log its lines."""
        inputs = dict(zip(("x", "cont", "x_static"), bottom[: 2 + self.static]))
        shapes = {name: blob.shape for name, blob in inputs.items()}
        if self._unrolled is None or self._unrolled.shapes != shapes:
            try:
                limits.check("with debug_info the unrolled net", 5 * bottom[1].shape[0], "layers")
            except Error as error:
                raise self.error(str(error), "recurrent_param.debug_info") from None
            self._unrolled = Unrolled(self.states, self.name, self.units, shapes, phase=self.phase, dtype=self.dtype)
        arrays = {name: blob.data for name, blob in inputs.items()}
        first = {f"{name}_0": state[None] for name, state in zip(self.states, start, strict=True)}
        self._unrolled.forward(self.blobs, {**arrays, **first})

    def _rows(self, blob: Blob, which: int) -> Array:
        """Return an input's data as a matrix (items, size)."""
        size = self.inputs[which]
        return blob.data.reshape(math.prod(blob.shape[: 2 - which]), size)
