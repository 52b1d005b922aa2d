"""Whole models: groups of nodes that are one layer, names, what an exported net's metadata restore, and the command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import onnx
import onnxruntime
from onnx_graphs import Dims, check, compare, kinds, node, run, save

from minicaffe import TEST, Net
from minicaffe.data.settings import read_settings
from minicaffe.detection.inputs import fill_inputs
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.data.input import Input
from minicaffe.layers.shape.split import Split
from minicaffe.porting.onnx import export_onnx
from minicaffe.porting.onnx_import import compare_with_model, import_onnx

SHAPES = Path(__file__).parents[3] / "examples" / "shapes"
X = (2, 6, 5, 7)
RANDOM = np.random.default_rng(7)


SIGMOID, SOFTPLUS = node("Sigmoid", "x", "s"), node("Softplus", "x", "p")
TANH = node("Tanh", "p", "s")


@pytest.mark.parametrize(
    ("gate", "product", "layers"),
    [
        ([SIGMOID], "s x", ["Swish"]),
        ([SIGMOID], "x s", ["Swish"]),
        ([SOFTPLUS, TANH], "x s", ["Mish"]),
        ([SOFTPLUS, TANH], "s x", ["Mish"]),
        ([node("HardSigmoid", "x", "s", alpha=1 / 6)], "x s", ["HardSwish"]),
        ([node("HardSigmoid", "x", "s", alpha=1 / 6, beta=0.4)], "x s", ["Power", "Clip", "Eltwise"]),
        ([node("HardSigmoid", "x", "s")], "x s", ["HardSigmoid", "Eltwise"]),
        ([node("Softplus", "x", "s")], "x s", ["BNLL", "Eltwise"]),
        ([SOFTPLUS, TANH], "p s", ["BNLL", "TanH", "Eltwise"]),
        ([node("Neg", "x", "n"), node("Softplus", "n", "p"), TANH], "x s", ["Power", "BNLL", "TanH", "Eltwise"]),
    ],
)
def test_a_product_of_x_and_its_gate(gate: list[Any], product: str, layers: list[str], tmp_path: Path) -> None:
    """Mish is an operator since opset 18, HardSwish since 14."""
    path = save(tmp_path / "m.onnx", [*gate, node("Mul", product, "y")], {"x": X})
    assert [kind for kind in kinds(check(path)) if kind != "Split"] == layers


def test_activations_come_back_as_they_were_exported(tmp_path: Path) -> None:
    types = ["Mish", "HardSwish", "Swish", "ReLU6", "HardSigmoid", "BNLL", "ELU", "Sigmoid"]
    lines = [f'layer {{ name: "{kind}" type: "{kind}" bottom: "{b}" top: "{kind}" }}' for b, kind in zip(["x", *types], types)]
    net = Net(parse_net('input: "x" input_shape { dim: 2 dim: 6 dim: 5 dim: 7 }' + "".join(lines)), TEST)
    export_onnx(net, tmp_path / "m.onnx")
    assert kinds(check(tmp_path / "m.onnx")) == types
    model = onnx.load(tmp_path / "m.onnx")
    del model.metadata_props[:]  # as another program's model
    onnx.save(model, tmp_path / "other.onnx")
    assert kinds(check(tmp_path / "other.onnx", {"x": X})) == types


def test_a_gate_that_is_an_output_too_stays(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", "x", "s"), node("Mul", "s x", "y")]
    assert kinds(check(save(tmp_path / "m.onnx", nodes, {"x": X}, outputs=("y", "s")))) == ["Sigmoid", "Swish"]


def test_shuffled_channels(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "x a", "table"),
        node("Transpose", "table", "swapped", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "swapped b", "y"),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": X}, {"a": [2, 3, 2, 5, 7], "b": [2, 6, 5, 7]})
    assert kinds(check(path)) == ["ShuffleChannel"]


def test_a_product_and_its_bias(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "m"), node("Add", "b m", "y")]
    path = save(tmp_path / "m.onnx", nodes, {"x": (3, 4)}, {"w": RANDOM.normal(size=(4, 5)), "b": RANDOM.normal(size=5)})
    assert kinds(check(path)) == ["InnerProduct"]


FUSED = pytest.mark.skipif(
    onnxruntime.__version__.startswith("1.22."), reason="onnxruntime 1.22 takes a Pad by 0 for a MaxPool's own, by -inf"
)


@pytest.mark.parametrize(
    ("operator", "value", "attributes", "layers"),
    [
        ("MaxPool", -np.inf, {"kernel_shape": [3, 3]}, ["Pooling"]),
        pytest.param("MaxPool", 0.0, {"kernel_shape": [3, 3]}, ["Padding", "Pooling"], marks=FUSED),
        ("AveragePool", 0.0, {"kernel_shape": [3, 3]}, ["Pooling"]),
        ("AveragePool", 0.0, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, ["Padding", "Pooling"]),
    ],
)
def test_a_pad_is_the_padding_of_what_follows(
    operator: str, value: float, attributes: dict[str, list[int]], layers: list[str], tmp_path: Path
) -> None:
    nodes = [node("Pad", "x p v", "padded"), node(operator, "padded", "y", **attributes)]
    path = save(tmp_path / "m.onnx", nodes, {"x": X}, {"p": [0, 0, 1, 1, 0, 0, 1, 1], "v": value})
    assert kinds(check(path)) == layers


def test_arithmetic_on_shapes_is_folded(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "n"),
        node("Concat", "n rest", "target", axis=0),
        node("Reshape", "x target", "y"),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": ("n", *X[1:])}, {"zero": [0], "rest": [-1, 7]}, shapes_are_computed=True)
    imported = check(path)
    assert [tuple(layer.reshape_param.shape.dim) for layer in imported.param.layer[1:]] == [(0, -1, 7)]
    net = imported.net()
    net.blobs["x"].reshape(3, *X[1:])
    compare(net, path)  # of another batch


@pytest.mark.parametrize(
    ("nodes", "others"),
    [
        ([node("Flatten", "x", "y", axis=3)], {}),
        ([node("Mul", "x z", "y")], {"z": ("n", 6, 1, 1)}),
        ([node("Add", "z x", "y")], {"z": (1, 1)}),
        ([node("GlobalAveragePool", "x", "p"), node("Sub", "x p", "y")], {}),
        ([node("SpaceToDepth", "x", "y", blocksize=1)], {}),
    ],
)
def test_a_dynamic_batch_stays_free(nodes: list[Any], others: dict[str, Dims], tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", nodes, {"x": ("n", *X[1:]), **others})
    net = check(path).net()
    for name, dims in {"x": ("n", *X[1:]), **others}.items():
        net.blobs[name].reshape(*(3 if dim == "n" else dim for dim in dims))
    compare(net, path)


def test_layers_have_the_nodes_names_and_overwrite_what_they_alone_read(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "c"),
        node("BatchNormalization", "c s b m v", "n"),
        node("Relu", "n", "r"),
        node("Add", "r r", "y"),
    ]
    nodes[0].name = "/features/conv1/Conv"
    weights = {"w": RANDOM.normal(size=(4, 6, 1, 1)), **{name: RANDOM.random(4) + 0.5 for name in "sbmv"}}
    imported = check(save(tmp_path / "m.onnx", nodes, {"x": X}, weights))
    layers = {layer.name: (list(layer.bottom), list(layer.top)) for layer in imported.param.layer}
    conv = "features/conv1/Conv"
    assert layers == {
        "x": ([], ["x"]),
        conv: (["x"], [conv]),
        "n_node": ([conv], [conv]),
        "n_node/scale": ([conv], [conv]),
        "r_node": ([conv], [conv]),
        "y_node": ([conv, conv], ["y"]),
    }


def test_an_output_that_is_read_has_a_copy(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "y"), node("Exp", "y", "z")]
    imported = check(save(tmp_path / "m.onnx", nodes, {"x": X}, outputs=("y", "z")))
    assert kinds(imported) == ["ReLU", "Exp", "Split"]
    assert sorted(imported.net().outputs) == ["y", "z"]


def test_an_input_that_nothing_reads_stays(tmp_path: Path) -> None:
    imported = check(save(tmp_path / "m.onnx", [node("Relu", "x", "y")], {"x": X, "z": (1, 3)}))
    assert kinds(imported) == ["ReLU", "Silence"]
    net = imported.net()
    assert (net.inputs, net.outputs) == (["x", "z"], ["y"])


def test_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Add", "x a", "y")], {"x": (2, 300)}, {"a": RANDOM.normal(size=(2, 300))})
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights", size_threshold=0)
    assert (tmp_path / "weights").stat().st_size >= 2400
    assert kinds(check(path)) == ["Bias"]


def test_local_functions(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Relu", "x", "y")], {"x": X})
    model = onnx.load(path)
    opsets = [onnx.helper.make_opsetid("", 18)]
    model.functions.append(
        onnx.helper.make_function("mine", "Act", ["a"], ["b"], [onnx.helper.make_node("Tanh", ["a"], ["b"])], opsets)
    )
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    model.graph.node[0].op_type, model.graph.node[0].domain = "Act", "mine"
    onnx.save(model, path)
    assert kinds(check(path)) == ["TanH"]


# Exported nets.


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "rfcn.onnx"
    settings = read_settings(SHAPES / "shapes.yml")
    weights = SHAPES / "rfcn" / "shapes_rfcn.caffemodel"
    export_onnx(Net(SHAPES / "rfcn" / "test.prototxt", TEST, weights=weights, settings=settings), path)
    return path


def test_a_detector_comes_back_as_it_was(exported: Path) -> None:
    before = Net(SHAPES / "rfcn" / "test.prototxt", TEST)
    imported = import_onnx(exported)
    net = imported.net(read_settings(SHAPES / "shapes.yml"))
    types = {layer.name: layer.type for layer in before.layers if not isinstance(layer, Input | Split)}
    assert {layer.name: layer.type for layer in net.layers if not isinstance(layer, Input | Split)} == types
    assert set(imported.restored) == set(types)
    assert set(net.blobs) <= {*before.blobs, *(top for name in net.top_names for top in net.top_names[name])}
    fill_inputs(net, {"data": str(SHAPES / "scene.png")})
    found = compare_with_model(net, exported)
    assert [one.name for one in found] == ["bbox_pred", "cls_prob", "rois"]
    assert all(one.agrees for one in found)


def test_a_group_that_was_changed_is_imported_by_its_operators(tmp_path: Path) -> None:
    text = 'layer { name: "s" type: "ShuffleChannel" bottom: "x" top: "y" shuffle_channel_param { group: 3 } }'
    head = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 6 dim: 4 dim: 5 } } }'
    (tmp_path / "net.prototxt").write_text(head + text)
    path = tmp_path / "m.onnx"
    export_onnx(Net(tmp_path / "net.prototxt", TEST), path)
    shapes = {"x": (1, 6, 4, 5)}
    assert import_onnx(path, shapes).restored == ["s"]
    model = onnx.load(path)
    first = next(one for one in model.graph.node if one.op_type == "Reshape")
    first.input[0] = "z"  # reads another tensor now
    model.graph.node.insert(0, node("Relu", "x", "z"))
    onnx.save(model, path)
    imported = check(path, shapes)
    assert not imported.restored
    assert "ReLU" in kinds(imported)


# The command.


def test_the_command_writes_net_and_weights(exported: Path, tmp_path: Path) -> None:
    net, weights = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    code, shown = run("import", exported, "-o", net, weights, "--cfg", SHAPES / "shapes.yml")
    assert code == 0, shown
    assert "PASS" in shown and f"written: {net}, {weights}" in shown
    ours = Net(net, TEST, weights=weights, settings=read_settings(SHAPES / "shapes.yml"))
    fill_inputs(ours, {})
    assert all(one.agrees for one in compare_with_model(ours, exported))


def test_a_model_up_to_a_tensor(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node("Exp", "r", "e"), node("Erf", "e", "y")]
    path = save(tmp_path / "m.onnx", nodes, {"x": X})
    code, shown = run("import", path, "-o", tmp_path / "net.prototxt", tmp_path / "w.caffemodel", "--until", "e")
    assert code == 0 and re.search(r"^ e +2x6x5x7", shown, re.MULTILINE), shown
    assert kinds(import_onnx(path, until=["e", "r"])) == ["ReLU", "Exp", "Split"]
    code, shown = run("import", path, "-o", tmp_path / "net.prototxt", tmp_path / "w.caffemodel", "--until", "x/E")
    assert code == 1 and 'no node makes the tensor "x/E"' in shown


def test_the_command_writes_nothing_that_fails_the_check(exported: Path, tmp_path: Path) -> None:
    """Other settings give other proposals."""
    code, shown = run("import", exported, "-o", tmp_path / "net.prototxt", tmp_path / "net.caffemodel")
    assert code == 1 and "FAIL" in shown
    assert not list(tmp_path.iterdir())
    assert run("import", exported, "-o", tmp_path / "a.prototxt", tmp_path / "a.caffemodel", "--no-check")[0] == 0
