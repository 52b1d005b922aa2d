"""Small ONNX models made by hand, imported and run beside onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from click.testing import CliRunner
from onnx import helper, numpy_helper, shape_inference

from minicaffe import Net
from minicaffe.cli import main
from minicaffe.porting.agreement import differences, run_of
from minicaffe.porting.onnx.session import run_model
from minicaffe.porting.onnx_import import Imported, import_onnx

Dims = Sequence[int | str]


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node named after its first output; "-" is an input that is left out."""
    names = [name.replace("-", "") for name in inputs.split()]
    return helper.make_node(operator, names, outputs.split(), name=f"{outputs.split(maxsplit=1)[0]}_node", **attributes)


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Dims],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 18,
    outputs: Sequence[str] = ("y",),
    shapes_are_computed: bool = False,
) -> Path:
    """Write a model; constants: int64 for whole numbers, else float32."""
    arrays = {name: np.asarray(value) for name, value in (constants or {}).items()}
    arrays = {name: a.astype(np.int64 if a.dtype.kind == "i" else np.float32) for name, a in arrays.items()}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, 1, dims) for name, dims in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(shape_inference.infer_shapes(model, data_prop=shapes_are_computed), path)  # adds the outputs' shapes
    return path


def check(path: Path, shapes: Mapping[str, Sequence[int]] | None = None, *, positive: bool = False) -> Imported:
    """Import a model and assert that the net's outputs are onnxruntime's."""
    imported = import_onnx(path, shapes)
    net = imported.net()
    compare(net, path, positive=positive)
    return imported


def compare(net: Net, path: Path, *, positive: bool = False) -> None:
    """Assert that net and model agree on random inputs."""
    random = np.random.default_rng(3)
    for name in net.inputs:
        x = random.normal(0, 3, net.blobs[name].shape).astype(np.float32)
        net.blobs[name].data[...] = abs(x) + 0.1 if positive else x
    made = run_model(path, {name: net.blobs[name].data.copy() for name in net.inputs})
    found = differences(run_of(net, made), made)
    assert found
    assert all(one.relative <= 2e-6 for one in found), found


def kinds(imported: Imported) -> list[str]:
    """Return the types of the layers, without Input."""
    return [layer.type for layer in imported.param.layer if layer.type != "Input"]


def run(*arguments: str | Path) -> tuple[int, str]:
    """Return the exit status of a minicaffe command, and what it wrote."""
    found = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return found.exit_code, found.output
