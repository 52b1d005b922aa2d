"""Recurrent layers in onnxruntime: ONNX's own operators where cont is constant, a Scan where it is data."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import onnx
from onnx_case import check, net_of
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.detection.reading import read_text
from minicaffe.errors import LayerError
from minicaffe.porting.onnx import compare_with_net, export_onnx, run_model
from minicaffe.porting.onnx_import import compare_with_original, import_onnx

READER = Path(__file__).parents[3] / "examples" / "reader"

STEPS, STREAMS, UNITS = 5, 3, 4
BREAKS = np.array([[0, 0, 1], [1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]], np.float32)
"""Where sequences begin in the five steps of three streams."""
MARKS = f"continuation_indicator_param {{ time_step: {STEPS}"
CONT = f'layer {{ name: "cont" type: "ContinuationIndicator" top: "cont" {MARKS} batch_size: {STREAMS} }} }}'
CONT_OF_X = f'layer {{ name: "cont" type: "ContinuationIndicator" bottom: "x" top: "cont" {MARKS} axis: 1 }} }}'
ONES = 'layer {{ name: "cont" type: "Parameter" top: "cont" parameter_param { shape { dim: 5 dim: 3 } } }'.replace("{{", "{")


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 2


def operators(folder: Path) -> list[str]:
    """Return the operators of the model, with those of a Scan's body after it."""
    found = []
    for node in onnx.load(folder / "model.onnx").graph.node:
        found.append(node.op_type)
        found += [inner.op_type for attribute in node.attribute for inner in attribute.g.node]
    return found


def unit(kind: str, bottoms: str, tops: str = "y", more: str = "") -> str:
    names = [f'bottom: "{name}"' for name in bottoms.split()] + [f'top: "{name}"' for name in tops.split()]
    return f'layer {{ name: "unit" type: "{kind}" {" ".join(names)} recurrent_param {{ num_output: {UNITS} {more} }} }}'


def states(kind: str) -> dict[str, np.ndarray[Any, Any]]:
    names = ("h", "c") if kind == "LSTM" else ("h",)
    return {name: normal(1, STREAMS, UNITS, seed=i) for i, name in enumerate(names, 7)}


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_sequences_from_the_first_step_are_the_operator(kind: str, static: bool, tmp_path: Path) -> None:
    inputs = {"x": normal(STEPS, STREAMS, 2, 7), **({"still": normal(STREAMS, 2, 3, seed=1)} if static else {})}
    check(tmp_path, CONT + unit(kind, f"x cont {'still' * static}"), inputs)
    assert kind in operators(tmp_path) and "Scan" not in operators(tmp_path)
    back = import_onnx(tmp_path / "model.onnx").param
    assert [layer.type for layer in back.layer if layer.type in ("LSTM", "RNN")] == [kind]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_a_cont_that_is_data_is_a_scan(kind: str, static: bool, tmp_path: Path) -> None:
    cont = BREAKS.copy()
    cont[0] = 0  # else the second forward goes on from the first
    inputs = {"x": normal(STEPS, STREAMS, 2, 7), "cont": cont, **({"still": normal(STREAMS, 6, seed=1)} if static else {})}
    longer = {**inputs, "x": normal(2 * STEPS, STREAMS, 2, 7, seed=3), "cont": np.concatenate([cont, BREAKS])}
    dims = check(tmp_path, unit(kind, f"x cont {'still' * static}"), inputs, longer)
    assert dims["x"] == ["x_n", STREAMS, 2, 7] and dims["cont"] == ["x_n", STREAMS]
    assert "Scan" in operators(tmp_path) and kind not in operators(tmp_path)
    (back,) = (layer for layer in import_onnx(tmp_path / "model.onnx").param.layer if layer.type == kind)
    assert (back.name, back.bottom[:2]) == ("unit", ["x", "cont"])


@pytest.mark.parametrize("cont", ["data", "ones", "starts"])
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_exposed_states(kind: str, cont: str, tmp_path: Path) -> None:
    given = states(kind)
    inputs = {"x": normal(STEPS, STREAMS, 6), **({"cont": BREAKS} if cont == "data" else {}), **given}
    last = [f"last_{name}" for name in given]
    layers = {"data": "", "ones": ONES, "starts": CONT}[cont]
    text = layers + unit(kind, f"x cont {' '.join(given)}", f"y {' '.join(last)}", "expose_hidden: true")
    net = net_of(text, inputs)
    if cont == "ones":
        net.params["cont"][0].data[...] = 1
    dims = check(tmp_path, text, inputs, net=net)
    assert [dims[name] for name in last] == [[1, STREAMS, UNITS]] * len(last)
    assert ("Scan" in operators(tmp_path)) == (cont == "data")


def test_a_comparison_begins_with_states_of_0_and_keeps_them(tmp_path: Path) -> None:
    net = net_of(unit("LSTM", "x cont"), {"x": normal(STEPS, STREAMS, 6), "cont": BREAKS})
    net.blobs["x"].data[...], net.blobs["cont"].data[...] = normal(STEPS, STREAMS, 6), BREAKS
    export_onnx(net, tmp_path / "model.onnx")
    net.forward()
    states = [blob.data.copy() for blob in net.layers[-1].last_states]
    assert all(one.agrees for one in compare_with_net(net, tmp_path / "model.onnx"))
    assert abs(states[0]).max() > 0
    for blob, state in zip(net.layers[-1].last_states, states, strict=True):
        np.testing.assert_array_equal(blob.data, state)


def test_the_marks_follow_the_streams_of_x(tmp_path: Path) -> None:
    """x is (1, N, 6) after a permutation, so its streams are dynamic; the marks have a dynamic length too."""
    swap = 'layer { name: "swap" type: "Transpose" bottom: "maps" top: "x" transpose_param { dim: 1 dim: 0 dim: 2 } }'
    text = swap + CONT_OF_X + unit("LSTM", "x cont")
    dims = check(tmp_path, text, {"maps": normal(2, STEPS, 6)}, {"maps": normal(7, STEPS, 6)})
    assert dims["maps"][0] == "maps_n"
    assert operators(tmp_path) == ["Transpose", "LSTM", "Squeeze"]  # nothing reads the marks
    check(tmp_path, swap + CONT_OF_X, {"maps": normal(2, STEPS, 6)}, {"maps": normal(7, STEPS, 6)})


@pytest.mark.parametrize("own", ["true", "false"])
@pytest.mark.parametrize("shape", [(5, 2, 7), (10, 7), (5, 1, 7)])
def test_lstm_of_forks(shape: tuple[int, ...], own: str, tmp_path: Path) -> None:
    text = f"""layer {{ name: "unit" type: "Lstm" bottom: "x" top: "y" lstm_param {{ num_output: {UNITS} own_states: {own}
      batch_size: {2 if shape[1] != 1 else 1} }} }}"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(tmp_path, text, {"x": normal(*shape)}, {"x": normal(2 * shape[0], *shape[1:], seed=1)})
    assert ("Scan" in operators(tmp_path)) == (own == "false" and shape[1] != 1)


def test_clip_of_forks(tmp_path: Path) -> None:
    text = f"""layer {{ name: "unit" type: "Lstm" bottom: "x" bottom: "clip" top: "y"
      lstm_param {{ num_output: {UNITS} batch_size: 2 own_states: true }} }}"""
    check(tmp_path, text, {"x": normal(10, 7), "clip": np.array([0, 0, 2, 0, 1], np.float32)})


def test_lstm_unit(tmp_path: Path) -> None:
    text = """layer { name: "unit" type: "LSTMUnit" bottom: "c" bottom: "gates" bottom: "cont" top: "c1" top: "h1" }"""
    inputs = {"c": normal(1, 3, 4), "gates": normal(1, 3, 16), "cont": np.array([[1, 0, 1]], np.float32)}
    check(tmp_path, text, inputs)


SCORES = np.array([2, 0, 0, 1, 1, 2, 1, 0, 0, 2, 2, 1, 2, 0, 1, 1, 1, 2, 0, 2]).reshape(10, 2)
"""The best class of 3 in each of 10 steps of 2 sequences."""


@pytest.mark.parametrize("param", ["", "ctc_merge_repeated: false", "blank_index: 1"])
@pytest.mark.parametrize("ends", [True, False])
def test_the_text_of_scores(param: str, ends: bool, tmp_path: Path) -> None:
    scores = np.eye(3, dtype=np.float32)[SCORES] + normal(10, 2, 3) / 9
    going = np.ones((10, 2), np.float32)
    going[0], going[6, 1] = 0, 0
    inputs = {"x": scores, **({"going": going} if ends else {})}
    text = f"""layer {{ name: "text" type: "CTCGreedyDecoder" bottom: "x" {'bottom: "going"' * ends}
      top: "y" {'top: "score"' * ends} ctc_decoder_param {{ {param} }} }}"""
    check(tmp_path, text, inputs)


def test_the_accuracy_of_a_text_has_no_form(tmp_path: Path) -> None:
    text = """layer { name: "text" type: "CTCGreedyDecoder" bottom: "x" bottom: "going" bottom: "true" top: "y" top: "rate" }"""
    inputs = {"x": normal(6, 2, 3), "going": np.ones((6, 2), np.float32), "true": np.ones((6, 2), np.float32)}
    with pytest.raises(LayerError, match=r'layer "text".*the accuracy has no ONNX form'):
        export_onnx(net_of(text, inputs), tmp_path / "model.onnx")


LRCN = """
layer { name: "embedding" type: "Embed" bottom: "words" top: "embedded"
  embed_param { num_output: 6 input_dim: 11 bias_term: false } }
layer { name: "lstm1" type: "LSTM" bottom: "embedded" bottom: "cont" top: "lstm1" recurrent_param { num_output: 8 } }
layer { name: "lstm2" type: "LSTM" bottom: "lstm1" bottom: "cont" bottom: "features" top: "lstm2"
  recurrent_param { num_output: 5 } }
layer { name: "predict" type: "InnerProduct" bottom: "lstm2" top: "predict" inner_product_param { num_output: 11 axis: 2 } }
layer { name: "probs" type: "Softmax" bottom: "predict" top: "probs" softmax_param { axis: 2 } }
"""
"""The layers of LRCN's caption net, factored: an image's features are the static input of the second LSTM."""


def test_a_caption_net_takes_cont_as_an_input(tmp_path: Path) -> None:
    cont = BREAKS.copy()
    cont[0] = 0
    words = np.arange(STEPS * STREAMS, dtype=np.float32).reshape(STEPS, STREAMS) % 11
    inputs = {"words": words, "cont": cont, "features": normal(STREAMS, 7)}
    dims = check(tmp_path, LRCN, inputs, {**inputs, "words": words[:3], "cont": cont[:3]})
    assert dims["probs"] == ["words_n", STREAMS, 11]
    assert operators(tmp_path).count("Scan") == 2


def test_the_reader_reads_the_same_text(tmp_path: Path) -> None:
    net = Net(str(READER / "test.prototxt"), TEST, weights=str(READER / "reader.caffemodel"))
    net.blobs["data"].data[0, 0] = (np.asarray(Image.open(READER / "string.png"), np.float32) - 128) / 128
    export_onnx(net, tmp_path / "model.onnx")
    assert operators(tmp_path).count("LSTM") == 2
    (made,) = run_model(tmp_path / "model.onnx", {"data": net.blobs["data"].data}).values()
    assert read_text(made[:, 0], "0123456789", blank=0) == "36983"
    assert all(one.relative <= 1e-5 for one in compare_with_net(net, tmp_path / "model.onnx"))
    assert all(one.relative <= 2e-6 for one in compare_with_original(net, tmp_path / "model.onnx"))
