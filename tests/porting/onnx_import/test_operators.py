"""Each ONNX operator as layers of Caffe, on one-node models beside onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from onnx_graphs import check, kinds, node, save

from minicaffe.errors import Error
from minicaffe.porting.onnx_import import import_onnx, importers
from minicaffe.porting.onnx_import.builder import UNBUILT
from minicaffe.registry import types

X = (2, 4, 6, 7)
RANDOM = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RANDOM.normal(size=shape)


NEURONS = {
    "Relu": "ReLU", "Sigmoid": "Sigmoid", "Tanh": "TanH", "Abs": "AbsVal", "Exp": "Exp", "Log": "Log", "Softplus": "BNLL",
    "Neg": "Power", "Sqrt": "Power", "Reciprocal": "Power", "LeakyRelu": "ReLU", "Elu": "ELU", "HardSigmoid": "HardSigmoid",
    "Softmax": "Softmax", "LogSoftmax": "Softmax Log", "Identity": "Split", "Dropout": "Split",
    "HardSwish": "HardSwish", "Mish": "Mish",
    "GlobalAveragePool": "Pooling", "GlobalMaxPool": "Pooling", "Flatten": "Flatten",
}  # fmt: skip


@pytest.mark.parametrize("operator", NEURONS)
def test_an_operator_of_one_tensor(operator: str, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node(operator, "x", "y")], {"x": X})
    assert kinds(check(path, positive=True)) == NEURONS[operator].split()


Case = tuple[str, str, str, Mapping[str, Any], Mapping[str, Any]]
CASES: Sequence[Case] = [
    # layers, operator, inputs, constants, attributes
    ("ReLU", "Clip", "x a", {"a": 0.0}, {}),
    ("ReLU6", "Clip", "x a b", {"a": 0.0, "b": 6.0}, {}),
    ("Clip", "Clip", "x a b", {"a": -1.5, "b": 2.0}, {}),
    ("Clip", "Clip", "x - b", {"b": 1.0}, {}),
    ("ReLU", "Max", "x a", {"a": 0.0}, {}),
    ("Clip", "Min", "x a", {"a": 0.5}, {}),
    ("PReLU", "PRelu", "x a", {"a": normal(4, 1, 1)}, {}),
    ("PReLU", "PRelu", "x a", {"a": [0.3]}, {}),
    ("ReLU", "LeakyRelu", "x", {}, {"alpha": 0.2}),
    ("Power Clip", "HardSigmoid", "x", {}, {"alpha": 0.3, "beta": 0.4}),
    ("Power", "Pow", "x a", {"a": 2.0}, {}),
    ("Power", "Add", "x a", {"a": 2.0}, {}),
    ("Power Power", "Sub", "a x", {"a": 2.0}, {}),
    ("Power", "Mul", "x a", {"a": [[[[3.0]]]]}, {}),
    ("Power Power", "Div", "a x", {"a": 3.0}, {}),
    ("Power", "Div", "x a", {"a": 3.0}, {}),
    ("Bias", "Add", "x a", {"a": normal(4, 1, 1)}, {}),
    ("Bias", "Sub", "x a", {"a": normal(1, 4, 1, 1)}, {}),
    ("Scale", "Mul", "x a", {"a": normal(7)}, {}),
    ("Scale", "Mul", "x a", {"a": normal(4, 1, 7)}, {}),
    ("Scale", "Div", "x a", {"a": normal(1, 4, 6, 1)}, {}),
    ("Convolution", "Conv", "x a b", {"a": normal(8, 4, 3, 2), "b": normal(8)}, {"pads": [1, 0, 1, 0], "strides": [2, 1]}),
    ("Convolution", "Conv", "x a", {"a": normal(4, 1, 3, 3)}, {"group": 4, "pads": [0, 0, 1, 1], "strides": [2, 2]}),
    ("Convolution", "Conv", "x a", {"a": normal(2, 4, 3, 3)}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("Convolution", "Conv", "x a", {"a": normal(2, 4, 2, 2)}, {"dilations": [2, 3], "pads": [0, 3, 2, 0]}),
    ("Deconvolution", "ConvTranspose", "x a b", {"a": normal(4, 3, 3, 3), "b": normal(3)}, {"strides": [2, 2]}),
    ("Deconvolution", "ConvTranspose", "x a", {"a": normal(4, 1, 4, 4)},
     {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1], "group": 4}),
    ("InnerProduct", "MatMul", "x a", {"a": normal(7, 3)}, {}),
    ("Pooling", "MaxPool", "x", {}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("Pooling", "MaxPool", "x", {}, {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("Pooling", "MaxPool", "x", {}, {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("Pooling", "AveragePool", "x", {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("Pooling", "AveragePool", "x", {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("Pooling", "AveragePool", "x", {}, {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("Pooling", "ReduceMean", "x a", {"a": [2, 3]}, {}),
    ("Pooling Flatten", "ReduceMean", "x a", {"a": [-1, -2]}, {"keepdims": 0}),
    ("Pooling", "ReduceMax", "x a", {"a": [2, 3]}, {}),
    ("Reduction", "ReduceSum", "x a", {"a": [2, 3]}, {"keepdims": 0}),
    ("Permute Reduction Reshape", "ReduceMean", "x a", {"a": [1]}, {}),
    ("Reduction Power Reshape", "ReduceL2", "x a", {"a": [3]}, {}),
    ("BatchNorm Scale", "BatchNormalization", "x a b c d",
     {"a": normal(4), "b": normal(4), "c": normal(4), "d": abs(normal(4)) + 0.1}, {"epsilon": 1e-3}),
    ("BatchNorm", "BatchNormalization", "x a b c d",
     {"a": np.ones(4), "b": np.zeros(4), "c": normal(4), "d": abs(normal(4)) + 0.1}, {}),
    ("Reshape BatchNorm Reshape Scale", "InstanceNormalization", "x a b", {"a": normal(4), "b": normal(4)}, {"epsilon": 0.1}),
    ("Reshape BatchNorm Reshape Scale", "LayerNormalization", "x a b", {"a": normal(7), "b": normal(7)}, {"epsilon": 0.1}),
    ("Reshape BatchNorm Reshape Scale", "LayerNormalization", "x a", {"a": normal(6, 1)}, {"axis": 2}),
    ("MVN", "MeanVarianceNormalization", "x", {}, {"axes": [-1, -2]}),
    ("MVN", "MeanVarianceNormalization", "x", {}, {"axes": [3, 1, 2]}),
    ("Normalize", "LpNormalization", "x", {}, {"axis": 1}),
    ("Permute Normalize Permute", "LpNormalization", "x", {}, {}),
    ("Permute Normalize Permute", "LpNormalization", "x", {}, {"axis": 0}),
    ("LRN", "LRN", "x", {}, {"size": 3, "alpha": 0.02, "beta": 0.6, "bias": 2.0}),
    ("Softmax", "Softmax", "x", {}, {"axis": 1}),
    ("Permute", "Transpose", "x", {}, {"perm": [0, 2, 3, 1]}),
    ("Reshape", "Reshape", "x a", {"a": [0, 2, -1, 7]}, {}),
    ("Reshape", "Unsqueeze", "x a", {"a": [2]}, {}),
    ("Reshape", "Flatten", "x", {}, {"axis": 2}),
    ("Tile", "Tile", "x a", {"a": [1, 3, 1, 1]}, {}),
    ("Slice Silence", "Slice", "x a b c", {"a": [1], "b": [3], "c": [1]}, {}),
    ("Slice Slice Silence", "Slice", "x a b c", {"a": [1, -3], "b": [99, -1], "c": [2, 3]}, {}),
    ("Slice Convolution Silence", "Slice", "x a b c d", {"a": [0, 1], "b": [9, 9], "c": [2, 3], "d": [2, 2]}, {}),
    ("Slice Reshape Silence", "Gather", "x a", {"a": -1}, {"axis": 1}),
    ("Slice Silence", "Gather", "x a", {"a": [2, 3, 4]}, {"axis": 2}),
    ("Split", "Gather", "x a", {"a": [0, 1]}, {}),
    ("Reshape Permute Reshape", "DepthToSpace", "x", {}, {"blocksize": 2}),
    ("Reshape Permute Reshape", "DepthToSpace", "x", {}, {"blocksize": 2, "mode": "CRD"}),
    ("Padding", "Pad", "x a", {"a": [0, 0, 1, 1, 0, 0, 2, 2]}, {}),
    ("Padding Slice Slice Silence", "Pad", "x a", {"a": [0, 0, 1, 0, 0, 0, 2, 3]}, {}),
    ("Slice Silence", "Pad", "x a", {"a": [0, 0, 0, -2, 0, 0, 0, 0]}, {}),
    ("Upsample", "Resize", "x - a", {"a": [1.0, 1.0, 2.0, 2.0]},
     {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    ("Upsample", "Resize", "x - a", {"a": [1.0, 1.0, 3.0, 3.0]}, {"mode": "nearest"}),
    ("Interp", "Resize", "x - - a", {"a": [2, 4, 11, 13]},
     {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    ("InnerProduct Permute InnerProduct Permute", "Resize", "x - - a", {"a": [2, 4, 9, 15]}, {"mode": "linear"}),
    ("InnerProduct Permute InnerProduct Permute", "Resize", "x - a", {"a": [1.0, 1.0, 0.5, 1.5]}, {"mode": "cubic"}),
    ("Reverse ArgMax Power", "ArgMax", "x", {}, {"axis": 1}),
    ("Reverse ArgMax Power Reshape", "ArgMax", "x", {}, {"axis": -1, "keepdims": 0}),
    ("ArgMax Reshape", "ArgMax", "x", {}, {"select_last_index": 1, "keepdims": 0}),
    ("Power Reverse ArgMax Power", "ArgMin", "x", {}, {"axis": 2}),
    ("Parameter Concat", "Concat", "x a", {"a": normal(2, 1, 6, 7)}, {"axis": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("layers", "operator", "inputs", "constants", "attributes"), CASES)
def test_an_operator_with_constants(
    layers: str, operator: str, inputs: str, constants: Mapping[str, Any], attributes: Mapping[str, Any], tmp_path: Path
) -> None:
    path = save(tmp_path / "m.onnx", [node(operator, inputs, "y", **attributes)], {"x": X}, constants)
    assert kinds(check(path, positive=operator in ("Pow", "Log"))) == layers.split()


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_the_index_of_equal_numbers(operator: str, last: int, tmp_path: Path) -> None:
    nodes = [node("Mul", "x z", "a"), node(operator, "a", "y", axis=1, select_last_index=last)]
    net = check(save(tmp_path / "m.onnx", nodes, {"x": (2, 5, 3)}, {"z": 0.0})).net()
    assert set(net.forward()["y"].reshape(-1)) == {4.0 if last else 0.0}


TWO: Sequence[tuple[str, str, tuple[int, ...]]] = [
    ("Eltwise", "Add", X), ("Eltwise", "Sub", X), ("Eltwise", "Mul", X), ("Power Eltwise", "Div", X),
    ("Eltwise", "Max", X), ("Power Power Eltwise Power", "Min", X), ("Eltwise", "Sum", X), ("Eltwise", "Mean", X),
    ("Flatten Scale", "Mul", (2, 4, 1, 1)), ("Flatten Bias", "Add", (2, 4, 1, 1)), ("Reshape Scale", "Mul", (4, 1, 1)),
    ("Scale", "Mul", (7,)), ("Tile Eltwise", "Mul", (2, 1, 6, 7)), ("Power Reshape Bias", "Sub", (2, 4, 6, 1)),
    ("Power Flatten Scale", "Div", (2, 4, 1, 1)), ("Bias", "Add", ()), ("Reshape Scale", "Mul", (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("layers", "operator", "shape"), TWO)
def test_an_operator_of_two_tensors(layers: str, operator: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node(operator, "x z", "y")], {"x": X, "z": shape})
    assert kinds(check(path, positive=operator == "Div")) == layers.split()


@pytest.mark.parametrize(("operator", "first"), [("Sub", (2, 4, 1, 1)), ("Div", (2, 4, 1, 1)), ("Mul", (2, 1, 1, 7))])
def test_the_smaller_tensor_may_be_the_first(operator: str, first: tuple[int, ...], tmp_path: Path) -> None:
    check(save(tmp_path / "m.onnx", [node(operator, "z x", "y")], {"z": first, "x": X}), positive=True)


@pytest.mark.parametrize("attributes", [{}, {"transB": 1, "alpha": 0.5, "beta": 2.0}])
def test_gemm(attributes: Mapping[str, Any], tmp_path: Path) -> None:
    shape = (3, 5) if attributes else (5, 3)
    path = save(
        tmp_path / "m.onnx", [node("Gemm", "x a b", "y", **attributes)], {"x": (2, 5)}, {"a": normal(*shape), "b": normal(3)}
    )
    assert kinds(check(path)) == ["InnerProduct"]


OLD: Sequence[tuple[int, str, str, str, Mapping[str, Any], Mapping[str, Any]]] = [
    (9, "ReLU6", "Clip", "x", {}, {"min": 0.0, "max": 6.0}),
    (9, "Upsample", "Upsample", "x a", {"a": [1.0, 1.0, 2.0, 2.0]}, {"mode": "nearest"}),
    (10, "Upsample", "Resize", "x a", {"a": [1.0, 1.0, 2.0, 2.0]}, {"mode": "nearest"}),
    (11, "Upsample", "Resize", "x r a", {"r": np.zeros(0, np.float32), "a": [1.0, 1.0, 2.0, 2.0]}, {"mode": "nearest"}),
    (12, "Interp", "Resize", "x r s a", {"r": np.zeros(0, np.float32), "s": np.zeros(0, np.float32), "a": [2, 4, 11, 13]},
     {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    (9, "Slice Silence", "Slice", "x", {}, {"starts": [1], "ends": [3], "axes": [1]}),
    (9, "Padding", "Pad", "x", {}, {"pads": [0, 0, 1, 1, 0, 0, 1, 1]}),
    (11, "Reshape", "Unsqueeze", "x", {}, {"axes": [1]}),
    (11, "Pooling Flatten", "ReduceMean", "x", {}, {"axes": [2, 3], "keepdims": 0}),
    (12, "Softmax", "Softmax", "x", {}, {"axis": 3}),
    (22, "Pooling", "MaxPool", "x", {}, {"kernel_shape": [2, 2]}),
]  # fmt: skip


@pytest.mark.parametrize(("opset", "layers", "operator", "inputs", "constants", "attributes"), OLD)
def test_other_opsets(
    opset: int,
    layers: str,
    operator: str,
    inputs: str,
    constants: Mapping[str, Any],
    attributes: Mapping[str, Any],
    tmp_path: Path,
) -> None:
    path = save(tmp_path / "m.onnx", [node(operator, inputs, "y", **attributes)], {"x": X}, constants, opset=opset)
    assert kinds(check(path)) == layers.split()


@pytest.mark.parametrize("opset", range(9, 23))
def test_a_classifier_of_every_opset(opset: int, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c v v v v", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "p", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f m b", "l", transB=1),
        node("Softmax", "l", "y", axis=1),
    ]
    random = np.random.default_rng(2)
    shapes = {"w": (4, 3, 3, 3), "b": (4,), "v": (4,), "m": (4, 4)}
    constants = {name: random.uniform(0.1, 0.4, shape) for name, shape in shapes.items()}
    path = save(tmp_path / "m.onnx", nodes, {"x": (1, 3, 6, 8)}, constants, opset=opset)
    found = ["Convolution", "BatchNorm", "Scale", "ReLU", "Pooling", "Pooling", "Flatten", "InnerProduct", "Softmax"]
    assert kinds(check(path)) == found


def test_split_gives_all_parts(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Split", "x a", "y z", axis=1)], {"x": X}, {"a": [1, 3]}, outputs=("y", "z"))
    assert kinds(check(path)) == ["Slice"]


REFUSED: Sequence[tuple[str, str, Mapping[str, Any], Mapping[str, Any], str]] = [
    ("Erf", "x", {}, {}, "import does not build this operator"),
    ("LpNormalization", "x", {}, {"p": 1}, "p = 1 (Caffe's layer has 2)"),
    ("Greater", "x a", {"a": 2.0}, {}, "import does not build it as Threshold, which gives numbers, not truth values"),
    ("MeanVarianceNormalization", "x", {}, {"axes": [0, 2, 3]}, "over axes [0, 2, 3]"),
    ("LayerNormalization", "x a", {"a": normal(2, 4, 6, 7)}, {"axis": 0}, "there must be axes before"),
    ("LRN", "x", {}, {"size": 4}, "size = 4 (LRN's is odd)"),
    ("Pad", "x a b", {"a": [0, 0, 1, 1, 0, 0, 1, 1], "b": 2.0}, {}, "it pads with 2"),
    ("Pad", "x a", {"a": [0, 0, 1, 1, 0, 0, 1, 1]}, {"mode": "reflect"}, "mode = reflect"),
    ("Pad", "x a", {"a": [0, 0, -3, 0, 0, 0, -3, 0]}, {}, "leave nothing"),
    ("Pad", "x a", {"a": [0, 1, 0, 0, 0, 0, 0, 0]}, {}, "Padding pads height and width"),
    ("AveragePool", "x", {}, {"kernel_shape": [3, 3], "pads": [0, 0, 1, 1], "count_include_pad": 1}, "Caffe's windows differ"),
    ("MaxPool", "x", {}, {"kernel_shape": [2, 2], "dilations": [2, 2]}, "dilations = [2, 2]"),
    ("Conv", "x a", {"a": normal(2, 4, 2, 2)}, {"dilations": [2, 2], "pads": [0, 0, 1, 1]}, "Caffe pads both ends alike"),
    ("Conv", "x a", {"a": normal(2, 4, 1, 1)}, {"auto_pad": "SAME_UPPER", "strides": [4, 4]}, "auto_pad = SAME_UPPER"),
    ("Slice", "x a b c d", {"a": [-1], "b": [-99], "c": [1], "d": [-1]}, {}, "along axis 1"),
    ("Gather", "x a", {"a": [2, 0]}, {"axis": 1}, "indices [2, 0] along axis 1"),
    ("ReduceSum", "x a", {"a": [0]}, {}, "over axes [0]"),
    ("Pow", "x a", {"a": [1, 2, 3, 1, 2, 3, 1]}, {}, "Power has one"),
    ("Cast", "x", {}, {"to": 7}, "blobs hold no whole numbers"),
    ("Add", "x a", {"a": normal(5, 2, 4, 6, 7)}, {}, "would repeat x"),
    ("MatMul", "x a", {"a": normal(4, 7, 3)}, {}, "InnerProduct has a matrix"),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "inputs", "constants", "attributes", "why"), REFUSED)
def test_what_caffe_cannot_say_is_refused(
    operator: str, inputs: str, constants: Mapping[str, Any], attributes: Mapping[str, Any], why: str, tmp_path: Path
) -> None:
    path = save(tmp_path / "m.onnx", [node(operator, inputs, "y", **attributes)], {"x": X}, constants)
    with pytest.raises(Error) as error:
        import_onnx(path)
    assert f'node "y_node" ({operator}): ' in str(error.value)
    assert why in str(error.value)


def test_softmax_of_old_opsets_over_several_axes_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Softmax", "x", "y", axis=1)], {"x": X}, opset=11)
    with pytest.raises(Error, match="over all axes from 1 on"):
        import_onnx(path)


def test_the_table_of_operators_that_are_not_built() -> None:
    named = {word for layer, _ in UNBUILT.values() for word in layer.split(" or ")}
    assert named <= set(types)
    assert not set(UNBUILT) & set(importers)


def test_normalised_maps_are_of_one_batch(tmp_path: Path) -> None:
    layer = node("InstanceNormalization", "x a b", "y")
    path = save(tmp_path / "m.onnx", [layer], {"x": ("n", 4, 6, 7)}, {"a": normal(4), "b": normal(4)})
    net = check(path).net()
    net.blobs["x"].reshape(3, 4, 6, 7)
    with pytest.raises(Error, match="has 12 channels, the statistics are for 4"):
        net.reshape()


def test_the_length_of_zeros(tmp_path: Path) -> None:
    nodes = [node("Mul", "x z", "a"), node("LpNormalization", "a", "y", axis=1)]
    net = check(save(tmp_path / "m.onnx", nodes, {"x": (2, 5, 3)}, {"z": 0.0})).net()
    assert not net.forward()["y"].any()
