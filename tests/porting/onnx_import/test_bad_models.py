"""Models that are refused: damaged, hostile, with dynamic axes, with operators that Caffe lacks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from first import first

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import onnx
from onnx import TensorProto, helper, shape_inference
from onnx_graphs import check, kinds, node, run, save

from minicaffe import Error, limits
from minicaffe.porting.onnx_import import import_onnx

X = (2, 3)


def refused(path: Path, message: str, **shapes: Any) -> None:
    with pytest.raises(Error, match=re.escape(message)):
        import_onnx(path, shapes).net()


@pytest.mark.parametrize("content", [b"layer { }", b"\x08\x08\x12", b""])
def test_files_that_are_no_model(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    refused(tmp_path / "m.onnx", "ONNX model")


def test_half_a_model(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Add", "x a", "y")], {"x": X}, {"a": np.ones(X)})
    path.write_bytes(path.read_bytes()[:60])
    refused(path, "m.onnx: damaged, or not an ONNX model")


def test_a_graph_that_is_not_valid(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Relu", "x", "y")], {"x": X})
    model = onnx.load(path)
    model.graph.node[0].input[0] = "nothing"
    path.write_bytes(model.SerializeToString())
    refused(path, "m.onnx: not a valid ONNX model")


@pytest.mark.parametrize("opset", [8, 23])
def test_opsets_that_are_not_read(opset: int, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Relu", "x", "y")], {"x": X}, opset=opset)
    refused(path, f"opset {opset}: opsets 9 to 22 are read")


def test_all_operators_without_a_layer_are_named_at_once(tmp_path: Path) -> None:
    nodes = [node("Erf", "x", "a"), node("Relu", "a", "b"), node("Einsum", "b b", "y", equation="ij,ij->ij")]
    path = save(tmp_path / "m.onnx", nodes, {"x": X})
    with pytest.raises(Error) as error:
        import_onnx(path)
    assert str(error.value).splitlines() == [
        f"{path}: 2 of its nodes cannot be imported:",
        '  node "a_node" (Erf): import does not build this operator',
        '  node "y_node" (Einsum): import does not build this operator',
        "nothing was written (--until TENSOR imports what is before a tensor)",
    ]


def test_a_refused_node_is_not_blamed_on_those_after_it(tmp_path: Path) -> None:
    nodes = [node("NonZero", "x", "a"), node("Cast", "a", "b", to=1), node("Relu", "b", "y")]
    with pytest.raises(Error) as error:
        import_onnx(save(tmp_path / "m.onnx", nodes, {"x": X}))
    assert re.findall(r'node "(\w+)"', str(error.value)) == ["a_node"]


def test_dynamic_axes(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Relu", "x", "y")], {"x": ("n", 3, "h", "w")})
    refused(path, "m.onnx: axes of its inputs are dynamic: give their sizes with --shape 'x=1,3,?,?'")
    refused(path, "--shape x: the model wants ? x 3 x ? x ?, got (1, 4, 5, 6)", x=(1, 4, 5, 6))
    refused(path, "--shape z: the model's inputs are x", z=(1, 2))
    assert kinds(check(path, {"x": (1, 3, 5, 6)})) == ["ReLU"]


def test_many_dynamic_inputs(tmp_path: Path) -> None:
    inputs = {"x": X, **{f"i{i}": (1, "n") for i in range(1000)}}
    path = save(tmp_path / "m.onnx", [node("Relu", "x", "y")], inputs)
    refused(path, "with --shape 'i0=1,?' --shape 'i1=1,?' --shape 'i2=1,?' ")
    refused(path, "--shape 'i7=1,?' and 992 more")
    refused(path, "--shape z: the model's inputs are x, i0, i1, i2, i3, i4, i5, i6 and 993 more", z=(1, 2))


def shown_to_inference(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes of all models that shape inference gets while this one is imported."""
    infer, shown = shape_inference.infer_shapes, 0

    def count(model: onnx.ModelProto) -> onnx.ModelProto:
        nonlocal shown
        shown += model.ByteSize()
        return infer(model)

    monkeypatch.setattr(shape_inference, "infer_shapes", count)
    import_onnx(path)
    return shown


def test_each_node_gets_the_opsets_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("Relu", "x" if i == 0 else f"t{i - 1}", "y" if i == 99 else f"t{i}") for i in range(100)]
    path = save(tmp_path / "m.onnx", nodes, {"x": X})
    model = onnx.load(path)
    model.opset_import.extend(helper.make_opsetid(f"d{i}", 1) for i in range(2000))
    path.write_bytes(model.SerializeToString())
    assert shown_to_inference(path, monkeypatch) < 2 * path.stat().st_size


def test_constants_are_not_shown_to_every_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = {f"k{i}": np.ones(X[1], np.float32) * np.ones((300, 1)) for i in range(50)}
    nodes = [node("Sum", " ".join(["z", *constants]), f"t{i}") for i in range(50)]
    path = save(tmp_path / "m.onnx", [node("Sigmoid", "x", "z"), *nodes, node("Relu", "z", "y")], {"x": (300, X[1])}, constants)
    assert shown_to_inference(path, monkeypatch) < 16 * path.stat().st_size  # 50 times, if each node gets them all


@pytest.mark.parametrize(
    ("nodes", "size"),
    first(
        1,
        [
            ([node("ConstantOfShape", "s", "c")], [60_000, 60_000]),
            ([node("Expand", "one s", "c")], [2**33]),
            ([node("Tile", "one s", "c")], [2**40]),
            ([node("Concat", f"{'one' if i == 0 else f'c{i}'} " * 2, f"c{i + 1}", axis=0) for i in range(40)], [1]),
        ],
    ),
)
def test_constants_larger_than_the_model_gives_reason_for(nodes: list[Any], size: list[int], tmp_path: Path) -> None:
    nodes = [*nodes, node("ReduceSum", nodes[-1].output[0], "d"), node("Mul", "x d", "y")]
    refused(save(tmp_path / "m.onnx", nodes, {"x": X}, {"s": size, "one": np.ones(1)}), "makes a constant of")


def test_tensors_larger_than_a_blob(tmp_path: Path) -> None:
    refused(
        save(tmp_path / "m.onnx", [node("Relu", "x", "y")], {"x": (2**20, 2**20)}), 'the tensor "x" of shape (1048576, 1048576)'
    )
    path = save(tmp_path / "m.onnx", [node("Tile", "x s", "y")], {"x": X}, {"s": [2**40, 1]})
    refused(path, 'the tensor "y" of shape (2199023255552, 3)')


def test_too_many_nodes(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Relu", "x", "y")], {"x": X})
    model = onnx.load(path)
    for i in range(40):  # 2**40 of them, if they were unfolded
        inner = [("x", "t"), ("t", "y")] if i < 39 else [("x", "y")]
        nodes = [helper.make_node(f"F{i + 1}" if i < 39 else "Relu", [a], [b], domain="f" * (i < 39)) for a, b in inner]
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
        model.functions.append(helper.make_function("f", f"F{i}", ["x"], ["y"], nodes, opsets))
    model.opset_import.append(helper.make_opsetid("f", 1))
    model.graph.node[0].op_type, model.graph.node[0].domain = "F0", "f"
    path.write_bytes(model.SerializeToString())
    refused(path, "m.onnx: the graph has 10,001 layers, and the limit is 10,000")
    with limits.raised({"layers": 1}):
        refused(save(path, [node("Relu", "x", "a"), node("Relu", "a", "y")], {"x": X}), "the graph has 2 layers")


def calling(path: Path, bodies: list[list[Any]]) -> Path:
    """A model that calls the first of these functions, F0; each has its own body from x to y."""
    model = onnx.load(save(path, [node("Relu", "x", "y")], {"x": X}))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    for i, body in enumerate(bodies):
        model.functions.append(helper.make_function("f", f"F{i}", ["x"], ["y"], body, opsets))
    model.opset_import.append(opsets[1])
    model.graph.node[0].op_type, model.graph.node[0].domain = "F0", "f"
    path.write_bytes(model.SerializeToString())
    return path


def call(i: int, source: str, target: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(f"F{i}", [source], [target], domain="f", **attributes)


def branching(i: int) -> list[onnx.NodeProto]:
    """An If whose two branches call the function i."""
    value = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
    graphs = [helper.make_graph([call(i, "x", "t")], name, [], [value]) for name in "ab"]
    condition = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    return [condition, helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1])]


def test_functions_unfold_in_sub_graphs_too(tmp_path: Path) -> None:
    path = calling(tmp_path / "m.onnx", [*(branching(i + 1) for i in range(24)), [helper.make_node("Relu", ["x"], ["y"])]])
    assert path.stat().st_size < 5000
    refused(path, "m.onnx: the graph has 10,001 layers, and the limit is 10,000")


def test_sub_graphs_count(tmp_path: Path) -> None:
    with limits.raised({"layers": 3}):
        path = calling(tmp_path / "m.onnx", [branching(1), [helper.make_node("Relu", ["x"], ["y"])]])
        refused(path, "the graph has 4 layers, and the limit is 3")


@pytest.mark.slow
def test_functions_that_call_each_other_in_a_long_chain(tmp_path: Path) -> None:
    bodies = [[call(i + 1, "x", "y")] for i in range(3000)]
    refused(calling(tmp_path / "m.onnx", bodies), "m.onnx: its functions or sub-graphs nest more than 100 deep")


def test_functions_that_nothing_calls_in_a_long_chain(tmp_path: Path) -> None:
    path = calling(tmp_path / "m.onnx", [[call(i + 1, "x", "y")] for i in range(1, 3000)])
    model = onnx.load(path)
    model.graph.node[0].op_type, model.graph.node[0].domain = "Relu", ""
    path.write_bytes(model.SerializeToString())
    refused(path, "m.onnx: its functions or sub-graphs nest more than 100 deep")


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    refused(calling(tmp_path / "m.onnx", [[call(0, "x", "y")]]), "a function calls itself")


def test_calls_of_functions_without_nodes_count_too(tmp_path: Path) -> None:
    bodies = [[call(i + 1, "x", "t"), call(i + 1, "x", "y")] for i in range(40)]
    refused(calling(tmp_path / "m.onnx", [*bodies, []]), "the graph has 10,001 layers")


def test_copies_of_a_large_function(tmp_path: Path) -> None:
    large = helper.make_node(
        "Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.FLOAT, [2**20], bytes(2**22), raw=True)
    )
    calls = [call(1, "x", "y" if i == 199 else f"t{i}") for i in range(200)]
    path = calling(tmp_path / "m.onnx", [calls, [large, helper.make_node("Relu", ["x"], ["y"])]])
    refused(path, "the copies of its functions take more than")


def referring(operator: str, attribute: str, outer: str, kind: int, inputs: list[str], output: str) -> onnx.NodeProto:
    """A node of a function's body whose attribute is one of the function's."""
    made = helper.make_node(operator, inputs, [output])
    made.attribute.append(onnx.AttributeProto(name=attribute, type=kind, ref_attr_name=outer))
    return made


def test_an_attribute_that_a_function_puts_into_many_nodes(tmp_path: Path) -> None:
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [2**18], bytes(2**20), raw=True)
    inner = [referring("Constant", "value", "t", onnx.AttributeProto.TENSOR, [], f"c{i}") for i in range(300)]
    relu = helper.make_node("Relu", ["x"], ["y"])
    for bodies in ([[*inner, relu]], [[helper.make_node("F1", ["x"], ["y"], domain="f", t=tensor)], [*inner, relu]]):
        path = calling(tmp_path / "m.onnx", bodies)
        if len(bodies) == 1:
            model = onnx.load(path)
            model.graph.node[0].attribute.append(helper.make_attribute("t", tensor))
            path.write_bytes(model.SerializeToString())
        refused(path, "m.onnx: the copies of its functions take more than")


@pytest.mark.parametrize("levels", [1, 2])
def test_a_long_name_that_a_function_puts_into_many_nodes(levels: int, tmp_path: Path) -> None:
    long = "n" * 2**20
    inner = [helper.make_node("Identity", ["x"], [f"c{i}"]) for i in range(300)]
    bodies = [[call(1, "x", "y")], [*inner, helper.make_node("Relu", ["x"], ["y"])]][2 - levels :]
    path = calling(tmp_path / "m.onnx", bodies)
    model = onnx.load(path)
    model.graph.node[0].input[0] = long
    model.graph.node.insert(0, helper.make_node("Identity", ["x"], [long]))
    path.write_bytes(model.SerializeToString())
    refused(path, "m.onnx: the copies of its functions take more than")


def test_default_attributes_of_functions_are_used(tmp_path: Path) -> None:
    body = [referring("LeakyRelu", "alpha", "slope", onnx.AttributeProto.FLOAT, ["x"], "y")]
    for given, slope in ({}, 0.25), ({"slope": 0.5}, 0.5):
        path = calling(tmp_path / "m.onnx", [[call(1, "x", "y", **given)], body])
        model = onnx.load(path)
        model.functions[1].attribute_proto.append(helper.make_attribute("slope", 0.25))
        path.write_bytes(model.SerializeToString())
        imported = check(path)
        assert imported.param.layer[1].relu_param.negative_slope == slope


@pytest.mark.slow
def test_copies_of_a_large_default(tmp_path: Path) -> None:
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [2**20], bytes(2**22), raw=True)
    calls = [call(1, "x", "y" if i == 99 else f"t{i}") for i in range(100)]
    path = calling(tmp_path / "m.onnx", [calls, [helper.make_node("Relu", ["x"], ["y"])]])
    model = onnx.load(path)
    model.functions[1].attribute_proto.append(helper.make_attribute("t", tensor))
    path.write_bytes(model.SerializeToString())
    refused(path, "m.onnx: the copies of its functions take more than")
    model.graph.node[0].op_type, model.graph.node[0].domain = "Relu", ""  # nothing calls them
    path.write_bytes(model.SerializeToString())
    refused(path, "m.onnx: the default attributes of its functions take more than")


def test_a_sub_graph_that_is_handed_to_a_function(tmp_path: Path) -> None:
    handed = helper.make_graph([call(1, "x", "t")], "g", [], [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)])
    path = calling(tmp_path / "m.onnx", [[call(1, "x", "y", body=handed)], [helper.make_node("Relu", ["x"], ["y"])]])
    refused(path, "passes a sub-graph to a function, which is not supported")


def external(path: Path, **place: str) -> Path:
    """A model whose one weight, of 24 bytes, lies elsewhere."""
    model = onnx.load(save(path, [node("Add", "x a", "y")], {"x": X}, {"a": np.ones(X)}))
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        weight.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"location": "../secret"}, "not a valid ONNX model"),
        ({"location": "/etc/passwd"}, "not a valid ONNX model"),
        ({"location": "absent"}, "not a valid ONNX model"),
        ({"location": "link"}, "not a valid ONNX model"),
        ({"location": "short"}, 'the weight "a" needs 24 bytes, which short does not have for it'),
        ({"location": "file", "offset": "8"}, 'the weight "a" needs 24 bytes, which file does not have for it'),
        ({"location": "file", "length": "12"}, 'the weight "a" needs 24 bytes, which file does not have for it'),
        ({"location": "file", "offset": "x"}, 'the weight "a" cannot be read'),
    ],
)
def test_weights_elsewhere(place: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(24))
    (tmp_path / "short").write_bytes(bytes(20))
    (tmp_path / "link").symlink_to("file")
    refused(external(tmp_path / "m.onnx", **place), message)


def test_a_file_of_weights_is_not_read_many_times(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(24))
    model = onnx.load(external(tmp_path / "m.onnx", location="file"), load_external_data=False)
    for i in range(9):
        model.graph.initializer.add().CopyFrom(model.graph.initializer[0])
        model.graph.initializer[-1].name = f"a{i}"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    refused(tmp_path / "m.onnx", "its weights take 240 bytes, and the files of weights have 24")


def described(path: Path, entries: Any) -> Path:
    """A model of one Relu whose metadata say something else."""
    model = onnx.load(save(path, [node("Relu", "x", "y")], {"x": X}))
    helper.set_model_props(model, {"minicaffe.layers": entries if isinstance(entries, str) else json.dumps(entries)})
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    "layer",
    [
        'name: "r" type: "HDF5Data" hdf5_data_param { source: "/etc/passwd" }',
        'name: "r" type: "HDF5Output" hdf5_output_param { file_name: "/tmp/written.h5" }',
        'name: "r" type: "Python" python_param { module: "os" layer: "system" }',
        'name: "r" type: "Nothing"',
        "no prototxt",
    ],
)
def test_metadata_make_no_layers_but_exported_ones(layer: str, tmp_path: Path) -> None:
    entry = {"layer": layer, "bottoms": ["x"], "tops": ["y"], "weights": [], "nodes": ["y_node"]}
    assert kinds(import_onnx(described(tmp_path / "m.onnx", [entry]))) == ["ReLU"]


@pytest.mark.parametrize("entries", ["[" * 100_000, "5", [5, None, {"layer": 5, "bottoms": 3}], {"a": 1}])
def test_metadata_that_are_none(entries: Any, tmp_path: Path) -> None:
    assert kinds(check(described(tmp_path / "m.onnx", entries))) == ["ReLU"]


def test_metadata_that_lie_fail_the_check(tmp_path: Path) -> None:
    entry = {"layer": 'name: "r" type: "Sigmoid"', "bottoms": ["x"], "tops": ["y"], "weights": [], "nodes": ["y_node"]}
    path = described(tmp_path / "m.onnx", [entry])
    code, shown = run("import", path, "-o", tmp_path / "net.prototxt", tmp_path / "net.caffemodel")
    assert code == 1 and "FAIL: more than 0.0001 of the largest number apart: y" in shown
    assert list(tmp_path.iterdir()) == [path]


def _read_only(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o500)
    return folder / "net.prototxt"


OUTPUTS: list[tuple[Callable[[Path], tuple[Path, Path]], str]] = [
    (lambda folder: (folder / "m.onnx", folder / "w"), "this is an input, and would be replaced"),
    (lambda folder: (folder / "net", folder / "net"), "names this file too; give another name"),
    (lambda folder: (folder / "absent" / "net", folder / "w"), "there is no folder"),
    (lambda folder: (folder, folder / "w"), "this is a folder"),
]


@pytest.mark.parametrize(("outputs", "message"), OUTPUTS)
def test_outputs_that_cannot_be_written(outputs: Callable[[Path], tuple[Path, Path]], message: str, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Relu", "x", "y")], {"x": X})
    code, shown = run("import", path, "-o", *outputs(tmp_path))
    assert code == 1 and message in shown
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Relu", "x", "y")], {"x": X})
    code, shown = run("import", path, "-o", _read_only(tmp_path / "closed"), tmp_path / "w")
    assert code == 1 and "permission denied" in shown
