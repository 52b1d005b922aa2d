"""LSTM, and RNN with the product that Caffe's RNN has: one layer for each direction, with Reverse layers around the second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array
from minicaffe.porting.onnx.recurrent import gates_swapped

from .builder import Builder, imports, refuse_others
from .graph import Node, RefusedError, Shape

BIAS, LENGTHS, STATES, PEEPHOLES = 3, 4, 5, 7
"""The places of the optional inputs."""
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Whether each direction's layer begins at the last step."""


@imports("LSTM")
def lstm(b: Builder, node: Node) -> list[str]:
    refuse_others(node, input_forget=0)
    _check(b, node, ["Sigmoid", "Tanh", "Tanh"])
    return _layers(b, node, "LSTM", [])


@imports("RNN")
def rnn(b: Builder, node: Node) -> list[str]:
    raise RefusedError(
        "Caffe's RNN gives tanh(W h + b), not h: a MatMul with a constant square matrix, an Add and a Tanh must follow, and the"
        " direction must be forward"
    )


@imports("minicaffe.RNN")
def rnn_and_product(b: Builder, node: Node) -> list[str]:
    """Add an RNN in place of an RNN, and the product and the Tanh after it."""
    _check(b, node, ["Tanh"])
    weight_y, bias_y = (b.weight(name) for name in node.attributes["product"])
    return _layers(b, node, "RNN", [weight_y.T, bias_y])


def _layers(b: Builder, node: Node, kind: str, more: Sequence[Array]) -> list[str]:
    """Add a layer for each direction. Return y, and the last states if one is read."""
    directions = DIRECTIONS[node.get("direction", "forward")]
    steps, streams, _ = shape = b.shape(node.inputs[0])
    units, count = b.shape(node.inputs[2])[2], 2 if kind == "LSTM" else 1
    first = _first(b, node, count, (len(directions), streams, units))
    read = [name in b.read for name in node.outputs[1:]]
    if not first and any(read[1:] if kind == "LSTM" else read):  # else no last state is read, or h is the last step of y
        zeros = [b.parameter(np.zeros((1, streams, units), np.float32), "zeros")] * count
    else:
        zeros = []
    ys: list[str] = []
    last: list[list[str]] = []
    for i, backwards in enumerate(directions):
        x = b.blob(node.inputs[0])
        x = b("Reverse", [x], name="reversed", axis=0) if backwards else x
        states = [b.cut(name, (len(directions), streams, units), 0, i, i + 1) for name in first] or zeros
        bottoms = [x, _cont(b, x, shape, goes_on=bool(first)), *states]
        weights, exposed = [*_weights(b, node, kind, i), *more], True if states else None
        y, *ends = b.several(kind, bottoms, weights, tops=1 + len(states), num_output=units, expose_hidden=exposed)
        last.append(ends or ([b.cut(y, (steps, streams, units), 0, steps - 1, steps)] if any(read) else []))
        ys.append(y)
    return [_joined(b, node, ys, (steps, streams, units)), *(_concat(b, pair, 0) for pair in zip(*last, strict=True))]


def _weights(b: Builder, node: Node, kind: str, i: int) -> list[Array]:
    """Return weight_x, bias and weight_h of direction i, in Caffe's order of gates."""
    weight_x, weight_h = (b.weight(name)[i] for name in node.inputs[1:3])
    bias = (
        b.weight(node.inputs[BIAS])[i].reshape(2, -1).sum(axis=0) if node.input(BIAS) else np.zeros(len(weight_x), np.float32)
    )
    arrays = [weight_x, bias, weight_h]
    return [gates_swapped(array) for array in arrays] if kind == "LSTM" else arrays


def _check(b: Builder, node: Node, activations: Sequence[str]) -> None:
    """Raise RefusedError for what Caffe's layer has not."""
    directions = DIRECTIONS[node.get("direction", "forward")]
    lengths = b.graph.constants.get(node.input(LENGTHS))
    if node.input(LENGTHS) and (lengths is None or (lengths != b.shape(node.inputs[0])[0]).any()):
        raise RefusedError("sequence_lens: sequences of several lengths (Caffe's have one): export the model without them")
    if node.input(PEEPHOLES) and np.any(b.constant(node.input(PEEPHOLES))):
        raise RefusedError("peepholes (P): Caffe's gates do not read c")
    if node.get("clip", 0.0):
        raise RefusedError(f"clip = {node.get('clip', 0.0):g}: Caffe's sums have no bound")
    refuse_others(node, layout=0, activations=[*activations] * len(directions))


def _first(b: Builder, node: Node, count: int, shape: Shape) -> list[str]:
    """Return the blobs of the first states, each (directions, S, units); none if all are 0."""
    names = [node.input(STATES + i) for i in range(count)]
    if not any(name and np.any(b.graph.constants.get(name, 1)) for name in names):
        return []
    return [b.blob(name) if name else b.parameter(np.zeros(shape, np.float32), "zeros") for name in names]


def _cont(b: Builder, x: str, shape: Shape, *, goes_on: bool) -> str:
    """Return cont for x (T, S, ...): ones if sequences go on from the first states, else 0 in the first step and then 1."""
    if goes_on:
        return b.parameter(np.ones(shape[:2], np.float32), "cont")
    return b("ContinuationIndicator", [x], name="cont", time_step=shape[0], axis=1)


def _joined(b: Builder, node: Node, ys: Sequence[str], shape: Shape) -> str:
    """Return y (T, directions, S, units), or (T, S, directions units) if the nodes after it join them."""
    if node.outputs[0] not in b.read:
        return ys[0]
    directions = DIRECTIONS[node.get("direction", "forward")]
    ys = [b("Reverse", [y], name="in_order", axis=0) if backwards else y for y, backwards in zip(ys, directions, strict=True)]
    if node.get("joined", False):
        return _concat(b, ys, 2)
    steps, streams, units = shape
    return _concat(b, [b.reshaped(y, shape, (steps, 1, streams, units), free=2) for y in ys], 1)


def _concat(b: Builder, blobs: Sequence[str], axis: int) -> str:
    return blobs[0] if len(blobs) == 1 else b("Concat", blobs, axis=axis)
