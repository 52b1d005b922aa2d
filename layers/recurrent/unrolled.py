"""The net that Caffe unrolls an RNN or LSTM into, built to show its blobs: recurrent_param.debug_info.

    RNN:  h[t - 1] times cont[t] -> h_conted -> W_hh -> + W_xh x[t] (+ W_xh_static) -> tanh -> h[t] -> W_ho -> tanh -> o[t]
    LSTM: h[t - 1] times cont[t] -> h_conted -> W_hc -> + W_xc x[t] (+ W_xc_static) -> LSTMUnit with c[t - 1] -> c[t], h[t]

The layer computes without it (base.py); with debug_info it runs too, on copies, and its lines go to the log.
Source: Caffe's recurrent_layer.cpp, rnn_layer.cpp and lstm_layer.cpp, whose names of layers and blobs these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minicaffe.blob import Array, Blob
from minicaffe.hooks import debug_info
from minicaffe.proto import caffe_pb2

if TYPE_CHECKING:
    from minicaffe.net import Net

Shape = tuple[int, ...]


class Unrolled:
    """A recurrent layer's unrolled net. net_class: Net. states: h of an RNN, h and c of an LSTM. inputs: x, cont and, where
    there is one, x_static, by name."""

    def __init__(
        self, net_class: type[Net], states: Sequence[str], name: str, units: int, inputs: Mapping[str, Shape], **options: Any
    ) -> None:
        self.shapes = dict(inputs)
        self.net = net_class(unrolled_net(states, name, units, inputs), **options)
        self.last = len(self.net.layers) - 2  # the pseudo-loss is there for its gradient only

    def forward(self, weights: Sequence[Blob], arrays: Mapping[str, Array]) -> None:
        """Run on copies of the layer's weights and of the inputs and first states, by name; each layer writes its lines."""
        for mine, blob in zip(self.net.learnable_params, weights, strict=True):
            mine.data[...] = blob.data
        for name, array in arrays.items():
            self.net.blobs[name].data[...] = array
        with debug_info(self.net, whole=False):
            self.net.forward_from_to(0, self.last)

    def backward(self, weights: Sequence[Blob], dy: Array) -> None:
        """Run backward from dy (T, S, D), on top of copies of the weights' diffs; each layer writes its lines."""
        for mine, blob in zip(self.net.learnable_params, weights, strict=True):
            mine.diff[...] = blob.diff  # Caffe's diffs add up: the lines show sums
        self.net.nodes[self.last].tops[0].diff[...] = dy  # in place of the pseudo-loss's diff
        with debug_info(self.net, whole=False):
            self.net.backward_from_to(self.last, 0)


def unrolled_net(kept: Sequence[str], name: str, units: int, inputs: Mapping[str, Shape]) -> caffe_pb2.NetParameter:
    """The net of T steps, layers named after the recurrent layer; its output is o (RNN) or h (LSTM)."""
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
        shape = {"shape": {"dim": [1, -1, wide]}}  # one more axis, of steps: Eltwise adds it to each
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
    for layer in net.layer if name else ():  # as Caffe names them; the pseudo-loss comes after
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
    """An InnerProduct, with a bias where a second weight is named."""
    param = {"num_output": outputs, "bias_term": len(weights) > 1, "axis": axis}
    named = [{"name": weight} for weight in weights]
    _add(net, name, "InnerProduct", [bottom], [top], param=named, inner_product_param=param, **more)


def _input(net: caffe_pb2.NetParameter, shapes: Mapping[str, Shape]) -> None:
    _add(net, "", "Input", [], list(shapes), input_param={"shape": [{"dim": shape} for shape in shapes.values()]})


def _add(net: caffe_pb2.NetParameter, name: str, kind: str, bottom: list[str], top: list[str], **more: Any) -> None:
    net.layer.add(name=name, type=kind, bottom=bottom, top=top, **more)
