"""Recurrent layers, and the text of a CTC net.

LSTM and RNN become ONNX's operators of these names if cont is a constant: 0 in the first step and then 1, or all ones. With any
other cont they become a Scan, whose body is one step of Caffe's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.recurrent.ctc_greedy_decoder import CTCGreedyDecoder
from minicaffe.layers.recurrent.lstm import LSTM, Lstm, LSTMUnit
from minicaffe.layers.recurrent.rnn import RNN, ContinuationIndicator
from minicaffe.registry import exports

from .functions import LAST
from .graph import Dims, Graph, Operand, Tensor, Value


def gates_swapped(array: Array) -> Array:
    """Return the rows (4 D, ...) of Caffe's gates i, f, o, g in ONNX's order i, o, f, c, or the reverse."""
    swapped: Array = array.reshape(4, -1, *array.shape[1:])[[0, 2, 1, 3]].reshape(array.shape)
    return swapped


@exports(ContinuationIndicator)
def continuation_indicator(g: Graph, layer: ContinuationIndicator, bottom: list[Value], top: list[Dims]) -> list[str]:
    steps, streams = layer.param.continuation_indicator_param.time_step, top[0][1]
    if isinstance(streams, int):
        made = g.constant(np.repeat(np.arange(steps)[:, None] > 0, streams, axis=1).astype(np.float32), "cont")
    else:
        made = _continues(g, [steps], g.size(bottom[0], layer.param.continuation_indicator_param.axis % bottom[0].rank))
    g.starts.add(made)
    return [made]


def _continues(g: Graph, steps: Operand, streams: Operand) -> str:
    """Return cont (T, S) of sequences that begin at the first step. steps, streams: (1,)."""
    later = g.cast(g("Greater", _numbers(g, steps, 1), 0), np.float32)
    return g("Expand", later, g("Concat", [1], streams, axis=0))


def _numbers(g: Graph, count: Operand, axis: int) -> str:
    """Return 0, 1, ..., count - 1 as (count, 1), or (1, count) for axis 0. count: (1,)."""
    return g("Unsqueeze", g.arange(g("Squeeze", count, [0])), [axis])


@exports(LSTM, RNN)
def recurrent(g: Graph, layer: LSTM | RNN, bottom: list[Value], top: list[Dims]) -> list[str]:
    x, cont = _flat(g, bottom[0], layer.inputs[0]), bottom[1]
    static = g("Flatten", bottom[2], axis=1) if layer.static else None
    first = list(bottom[layer.exposed])
    if _starts(g, cont) or _is_constant(g, cont, 1):
        found = _of_operator(g, layer, x, static, [] if _starts(g, cont) else first)
    else:
        u = _sums(g, layer, x)
        if static:
            u = g("Add", u, g("Gemm", static, g.weight(layer, 2), transB=1))
        states = [g("Squeeze", state, [0]) for state in first] or _zeros(g, x, layer.units, len(layer.states))
        *last, y = _steps(g, layer, layer.h_weight, states, u, cont)
        found = [y, *(g("Unsqueeze", state, [0]) for state in last[: len(top) - 1])]
    return found[: len(top)]


def _of_operator(g: Graph, layer: LSTM | RNN, x: Value, static: str | None, first: Sequence[Value]) -> list[str]:
    """Emit ONNX's operator; return y and the last states. A static input joins the inputs of each step."""
    arrays = [np.asarray(blob.read_data(), np.float32) for blob in layer.blobs]
    weight_x, weight_h = arrays[0], arrays[layer.h_weight]
    if static:
        repeated = g("Expand", g("Unsqueeze", static, [0]), g("Concat", g.size(x, 0), [1, 1], axis=0))
        x = Value(g("Concat", x, repeated, axis=2), (*x.dims[:2], sum(layer.inputs)))
        weight_x = np.concatenate([weight_x, arrays[2]], axis=1)
    y, *last = _operator(g, layer.units, x, (weight_x, weight_h, arrays[1]), first)
    if isinstance(layer, RNN):
        weight_y, bias_y = arrays[layer.h_weight + 1 :]
        product = g("MatMul", y, g.constant(np.ascontiguousarray(weight_y.T), "weight_y"))
        y = g("Tanh", g("Add", product, g.constant(bias_y, "bias_y")))
    return [y, *last]


@exports(Lstm)
def lstm_of_forks(g: Graph, layer: Lstm, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit an LSTM, or a Scan with clip, or if all streams go on from the h of the first."""
    x, param = _with_streams(g, layer, bottom[0]), layer.param.lstm_param
    if len(bottom) == 1 and (param.own_states or x.dims[1] == 1):
        weight_x, weight_h, bias = (np.asarray(blob.read_data(), np.float32) for blob in layer.blobs)
        y = _operator(g, layer.units, x, (weight_x, weight_h, bias), [])[0]
    else:
        sizes = g.size(x, 0), g.size(x, 1)
        cont = _clip(g, bottom[1], *sizes) if len(bottom) > 1 else _continues(g, *sizes)
        states, u = _zeros(g, x, layer.units, 2), _sums(g, layer, x, bias=2)
        y = _steps(g, layer, 1, states, u, cont, first_only=not param.own_states)[-1]
    return [y if layer.streams_apart else g.reshape(y, [-1, layer.units])]


def _with_streams(g: Graph, layer: Lstm, x: Value) -> Value:
    """Return x as (T, S, inputs)."""
    if layer.streams_apart:
        return _flat(g, x, layer.inputs)
    streams = layer.param.lstm_param.batch_size
    steps = x.dims[0] // streams if isinstance(x.dims[0], int) else "steps"
    return Value(g.reshape(x, [-1, streams, layer.inputs]), (steps, streams, layer.inputs))


def _flat(g: Graph, x: Value, inputs: int) -> Value:
    """Return x (T, S, ...) as (T, S, inputs)."""
    return x if x.rank == 3 else Value(g.reshape(x, g.shape(x, 0, 2), [inputs]), (*x.dims[:2], inputs))


def _clip(g: Graph, clip: Value, steps: str, streams: str) -> str:
    """Return cont (T, S): step t of stream s reads entry t + s of clip, and 0 past its end."""
    marks = g.cast(g.cast(clip, bool), np.float32)
    padded = g("Concat", marks, g("Expand", np.zeros(1, np.float32), streams), axis=0)
    return g("Gather", padded, g("Add", _numbers(g, steps, 1), _numbers(g, streams, 0)))


def _starts(g: Graph, cont: Value) -> bool:
    """Return True if cont is known to be 0 in the first step, and 1 in all others."""
    return cont.name in g.starts or (_is_constant(g, cont, 1, 1) and not g.constants[cont.name][:1].any())


def _is_constant(g: Graph, x: Value, number: float, start: int = 0) -> bool:
    return x.name in g.constants and bool((g.constants[x.name][start:] == number).all())


def _operator(g: Graph, units: int, x: Value, arrays: tuple[Array, Array, Array], first: Sequence[Value]) -> list[str]:
    """Emit an LSTM or RNN; return y (T, S, D) and the last states (1, S, D). arrays: weight_x, weight_h, bias."""
    is_lstm = len(arrays[2]) == 4 * units
    weight_x, weight_h, bias = (gates_swapped(array) if is_lstm else array for array in arrays)
    weights = {"weight_x": weight_x, "weight_h": weight_h, "bias": np.concatenate([bias, np.zeros_like(bias)])}
    given = [g.constant(array[None], name) for name, array in weights.items()]
    states = [None, *first] if first else []
    y, *last = g.several("LSTM" if is_lstm else "RNN", 2 + is_lstm, x, *given, *states, hidden_size=units)
    return [g("Squeeze", y, [1]), *last]


def _sums(g: Graph, layer: LSTM | RNN | Lstm, x: Value, bias: int = 1) -> str:
    """Return weight_x x + bias for all steps (T, S, gates D). bias: the index of its blob."""
    wide, inputs = layer.blobs[0].shape
    sums = g("Gemm", g.reshape(x, [-1, inputs]), g.weight(layer, 0), g.weight(layer, bias), transB=1)
    return g.reshape(sums, g.shape(x, 0, 2), [wide])


def _zeros(g: Graph, x: Value, units: int, states: int) -> list[str]:
    """Return first states of 0, (S, D) each. x: (T, S, ...)."""
    zeros = g("Expand", np.zeros((1, 1), np.float32), g("Concat", g.size(x, 1), [units], axis=0))
    return [zeros] * states


def _steps(
    g: Graph, layer: Layer, h_weight: int, states: Sequence[str], u: str, cont: Operand, *, first_only: bool = False
) -> list[str]:
    """Emit a Scan over u (T, S, gates D) and cont (T, S); return the last states (S, D) and y (T, S, D)."""

    def step(inner: Graph, names: list[str]) -> list[Tensor]:
        *before, sums, mark = names
        mark = inner("Unsqueeze", mark, [1])
        h = inner.columns(before[0], 0, 1, axis=0) if first_only else before[0]
        sums = inner("Gemm", inner("Mul", mark, h), inner.weight(layer, h_weight), sums, transB=1)
        if len(before) > 1:
            c, h = _unit(inner, sums, before[1], mark)
            made = [h, c, inner("Identity", h)]
        else:
            h = inner("Tanh", sums)
            weight_y, bias_y = (inner.weight(layer, h_weight + i) for i in (1, 2))
            made = [h, inner("Tanh", inner("Gemm", h, weight_y, bias_y, transB=1))]
        return [(name, np.float32, 2) for name in made]

    kinds: list[Tensor] = [(f"state{i}", np.float32, 2) for i in range(len(states))]
    body = g.sub_graph([*kinds, ("sums", np.float32, 2), ("cont", np.float32, 1)], step)
    return g.several("Scan", len(states) + 1, *states, u, cont, body=body, num_scan_inputs=2)


def _unit(g: Graph, gates: Operand, c: Operand, mark: Operand, axis: int = 1) -> tuple[str, str]:
    """Return the next c and h of Caffe's gates, with the forget gate times mark."""
    i, f, o, new = g.several("Split", 4, gates, axis=axis, num_outputs=4)
    kept = g("Mul", g("Mul", mark, g("Sigmoid", f)), c)
    c = g("Add", kept, g("Mul", g("Sigmoid", i), g("Tanh", new)))
    return c, g("Mul", g("Sigmoid", o), g("Tanh", c))


@exports(LSTMUnit)
def lstm_unit(g: Graph, layer: LSTMUnit, bottom: list[Value], top: list[Dims]) -> list[str]:
    c, gates, cont = bottom
    return list(_unit(g, gates, c, g("Unsqueeze", cont, [2]), axis=2))


@exports(CTCGreedyDecoder)
def ctc_greedy_decoder(g: Graph, layer: CTCGreedyDecoder, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit the labels of the best classes, in front of -1, and the negated sum of the best scores."""
    if layer.accuracy_top is not None:
        raise layer.error("the accuracy has no ONNX form", f"top[{layer.accuracy_top}]")
    scores = g.reshape(bottom[0], g.shape(bottom[0], 0, 3))
    blank: Operand = g("Sub", g.size(bottom[0], 2), 1) if layer.blank_is_last else layer.blank
    best, classes = g("ReduceMax", scores, [2], keepdims=0), g("ArgMax", scores, axis=2, keepdims=0)  # (T, N)
    kept = g("Not", g("Equal", classes, blank))
    if layer.param.ctc_decoder_param.ctc_merge_repeated:
        before = g("Pad", g.columns(classes, 0, -1, axis=0), [1, 0, 0, 0], -1)
        kept = g("And", kept, g("Not", g("Equal", classes, before)))
    if len(bottom) > 1:  # a 0 after the first step ends the sequence
        marks = g.reshape(bottom[1], g.shape(bottom[0], 0, 2))
        ends = g.cast(g("Less", g.columns(marks, 1, LAST, axis=0), 0.5), np.int64)
        inside = g("Equal", g("CumSum", g("Pad", ends, [1, 0, 0, 0]), 0), 0)
        kept, best = g("And", kept, inside), g("Where", inside, best, 0.0)
    place = g("Sub", g("CumSum", g.cast(kept, np.int64), 0), 1)
    past = g.number(bottom[0], 0)  # the row of the classes that are dropped, which is cut off
    empty = g("Expand", -1.0, g("Add", g.shape(bottom[0], 0, 2), [1, 0]))
    labels = g("ScatterElements", empty, g("Where", kept, place, past), g.cast(classes, np.float32), axis=0)
    spelt = g("Unsqueeze", g("Transpose", g.columns(labels, 0, -1, axis=0), perm=[1, 0]), [2, 3])
    total = g("Unsqueeze", g("Neg", g("ReduceSum", best, [0], keepdims=0)), [1, 2, 3])
    return [spelt, total][: len(top)]
