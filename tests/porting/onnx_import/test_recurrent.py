"""ONNX's LSTM and RNN as layers of Caffe: directions, states, and settings that Caffe's layers lack."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import onnx
from onnx_graphs import check, compare, kinds, node, save

from minicaffe.errors import Error
from minicaffe.porting.onnx import export_onnx
from minicaffe.porting.onnx_import import import_onnx

STEPS, STREAMS, INPUTS, UNITS = 5, 3, 6, 4
X = {"x": (STEPS, STREAMS, INPUTS)}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def weights(count: int = 1, gates: int = 4) -> dict[str, Any]:
    random = np.random.default_rng(count)
    wide = gates * UNITS
    shapes = {"w": (count, wide, INPUTS), "r": (count, wide, UNITS), "b": (count, 2 * wide)}
    return {name: random.normal(size=shape) / 2 for name, shape in shapes.items()}


def lstm(inputs: str = "x w r b", outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return node("LSTM", inputs, outputs, hidden_size=UNITS, **attributes)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_lstm_of_each_direction(direction: str, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [lstm(direction=direction)], X, weights(DIRECTIONS[direction]))
    forward, reverse = ["ContinuationIndicator", "LSTM"], ["Reverse", "ContinuationIndicator", "LSTM", "Reverse"]
    layers = {"forward": forward, "reverse": reverse, "bidirectional": forward + reverse}[direction]
    more = ["Reshape", "Reshape", "Concat"] if direction == "bidirectional" else ["Reshape"]
    imported = check(path)
    assert kinds(imported) == layers + more
    assert "y_node" in [layer.name for layer in imported.param.layer if layer.type == "LSTM"]


def test_a_lstm_without_a_bias(tmp_path: Path) -> None:
    check(save(tmp_path / "m.onnx", [lstm("x w r")], X, weights()))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_directions_that_are_joined_need_no_reshape(direction: str, tmp_path: Path) -> None:
    count = DIRECTIONS[direction]
    nodes = [
        lstm(outputs="all h", direction=direction),
        node("Transpose", "all", "swapped", perm=[0, 2, 1, 3]),
        node("Reshape", "swapped s", "y"),
    ]
    path = save(tmp_path / "m.onnx", nodes, X, {**weights(count), "s": [0, 0, -1]}, outputs=("y", "h"))
    found = kinds(check(path))
    assert "Permute" not in found and "Reshape" not in found
    assert found.count("Concat") == (2 if count == 2 else 0)  # of y, and of h


def test_a_squeezed_lstm_has_any_batch(tmp_path: Path) -> None:
    nodes = [lstm(outputs="all"), node("Squeeze", "all one", "y")]
    path = save(tmp_path / "m.onnx", nodes, {"x": (STEPS, "n", INPUTS)}, {**weights(), "one": [1]})
    imported = check(path, {"x": (STEPS, STREAMS, INPUTS)})
    net = imported.net()
    net.blobs["x"].reshape(STEPS, 7, INPUTS)
    compare(net, path)
    assert kinds(imported) == ["ContinuationIndicator", "LSTM"]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("outputs", ["y h", "- h", "y h c", "- - c"])
@pytest.mark.parametrize("first", ["none", "zeros", "given", "h alone"])
def test_first_and_last_states(direction: str, outputs: str, first: str, tmp_path: Path) -> None:
    count = DIRECTIONS[direction]
    shape = (count, STREAMS, UNITS)
    inputs = X | ({"h0": shape, "c0": shape} if first == "given" else {"h0": shape} if first == "h alone" else {})
    constants = weights(count) | ({"h0": np.zeros(shape), "c0": np.zeros(shape)} if first == "zeros" else {})
    names = {"none": "x w r b", "h alone": "x w r b - h0"}.get(first, "x w r b - h0 c0")
    made = outputs.replace("-", "")
    states = lstm(names, "y h c", direction=direction)
    states.output[:] = [name.replace("-", "") for name in outputs.split()]
    path = save(tmp_path / "m.onnx", [states], inputs, constants, outputs=made.split())
    imported = check(path)
    exposed = first in ("given", "h alone") or "c" in outputs
    assert {layer.recurrent_param.expose_hidden for layer in imported.param.layer if layer.type == "LSTM"} == {exposed}


def test_constant_first_states(tmp_path: Path) -> None:
    random, shape = np.random.default_rng(8), (1, STREAMS, UNITS)
    constants = weights() | {name: random.normal(size=shape) for name in ("h0", "c0")}
    check(save(tmp_path / "m.onnx", [lstm("x w r b - h0 c0")], X, constants))


def test_an_imported_lstm_is_exported_as_a_lstm(tmp_path: Path) -> None:
    inputs = X | dict.fromkeys(("h0", "c0"), (1, STREAMS, UNITS))
    path = save(tmp_path / "m.onnx", [lstm("x w r b - h0 c0")], inputs, weights())
    net = check(path).net()
    export_onnx(net, tmp_path / "again.onnx")
    (found,) = [n for n in onnx.load(tmp_path / "again.onnx").graph.node if n.op_type == "LSTM"]
    assert found.input[5:] == ["h0", "c0"]
    compare(net, tmp_path / "again.onnx")


def product(square: int = UNITS) -> dict[str, Any]:
    random = np.random.default_rng(4)
    return {"m": random.normal(size=(UNITS, square)), "v": random.normal(size=square), "one": [1]}


def rnn_and_product(*, outputs: str = "all h", **attributes: Any) -> list[onnx.NodeProto]:
    return [
        node("RNN", "x w r b", outputs, hidden_size=UNITS, **attributes),
        node("Squeeze", "all one", "s"),
        node("MatMul", "s m", "p"),
        node("Add", "p v", "q"),
        node("Tanh", "q", "y"),
    ]


@pytest.mark.parametrize("outputs", [("y",), ("y", "h")])
def test_a_rnn_with_caffes_product(outputs: tuple[str, ...], tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", rnn_and_product(), X, weights(gates=1) | product(), outputs=outputs)
    assert kinds(check(path))[-1] == "RNN"


@pytest.mark.parametrize("case", ["no tanh", "not square", "read twice", "reverse"])
def test_another_rnn_is_refused(case: str, tmp_path: Path) -> None:
    nodes = rnn_and_product(**({"direction": "reverse"} if case == "reverse" else {}))
    outputs = ("y", "q") if case == "read twice" else ("q",) if case == "no tanh" else ("y",)
    constants = weights(gates=1) | product(5 if case == "not square" else UNITS)
    path = save(tmp_path / "m.onnx", nodes, X, constants, outputs=outputs)
    with pytest.raises(Error, match=r'"all_node" \(RNN\): Caffe\'s RNN gives tanh\(W h \+ b\), not h'):
        import_onnx(path)


REFUSED: list[tuple[str, Mapping[str, Any], Mapping[str, Any], str]] = [
    ("x w r b n", {}, {"n": [5, 2, 4]}, "sequence_lens: sequences of several lengths"),
    ("x w r b - - - p", {}, {"p": np.ones((1, 3 * UNITS))}, "peepholes (P): Caffe's gates do not read c"),
    ("x w r b", {"clip": 3.0}, {}, "clip = 3: Caffe's sums have no bound"),
    ("x w r b", {"input_forget": 1}, {}, "input_forget = 1 (Caffe's layer has 0)"),
    ("x w r b", {"activations": ["HardSigmoid", "Tanh", "Tanh"]}, {}, "activations = ['HardSigmoid', 'Tanh', 'Tanh']"),
]


@pytest.mark.parametrize(("inputs", "attributes", "constants", "why"), REFUSED)
def test_settings_that_caffes_lstm_lacks(
    inputs: str, attributes: Mapping[str, Any], constants: Mapping[str, Any], why: str, tmp_path: Path
) -> None:
    path = save(tmp_path / "m.onnx", [lstm(inputs, **attributes)], X, {**weights(), **constants})
    if "n" in constants:  # sequence_lens is int32
        model = onnx.load(path)
        (lengths,) = [t for t in model.graph.initializer if t.name == "n"]
        lengths.CopyFrom(onnx.numpy_helper.from_array(np.array(constants["n"], np.int32), "n"))
        onnx.save(model, path)
    with pytest.raises(Error, match=rf'node "y_node" \(LSTM\): {re.escape(why)}'):
        import_onnx(path)


def test_caffes_own_activations_may_be_named(tmp_path: Path) -> None:
    check(save(tmp_path / "m.onnx", [lstm(activations=["Sigmoid", "Tanh", "Tanh"])], X, weights()))


def test_weights_that_are_computed_are_refused(tmp_path: Path) -> None:
    given = weights()
    path = save(tmp_path / "m.onnx", [lstm()], X | {"w": given.pop("w").shape}, given)
    with pytest.raises(Error, match='its input "w" is computed, and is a constant in Caffe'):
        import_onnx(path)


def test_a_gru_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("GRU", "x w r b", "y", hidden_size=UNITS)], X, weights(gates=3))
    with pytest.raises(Error, match=r"\(GRU\): import does not build this operator"):
        import_onnx(path)
