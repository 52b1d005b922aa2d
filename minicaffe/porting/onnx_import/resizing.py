"""Resize and Upsample. What they do along an axis is a matrix, which onnxruntime tells: that of repeated pixels is Caffe's
Upsample, that of corners on corners is Interp, and any other one an InnerProduct along that axis."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.shape.interp import Taps

from .arrangement import permuted
from .builder import Builder, imports
from .node import Node, RefusedError

CLOSE = 1e-6
MOST = 4096
"""The longest axis that is asked about."""


@imports("Resize", "Upsample")
def resize(b: Builder, node: Node) -> list[str]:
    shape, out = b.shape(node.inputs[0]), b.shape(node.outputs[0])
    if len(shape) != 4 or shape[:2] != out[:2] or max(*shape, *out) > MOST:
        raise RefusedError(f"{shape} to {out} (height and width of maps, up to {MOST})")
    x = b.blob(node.inputs[0])
    if shape == out:
        return [x]
    rows, columns = (_matrix(b, node, axis) for axis in (2, 3))
    times = out[2] // shape[2]
    if all(np.array_equal(m, np.repeat(np.eye(m.shape[1]), times, axis=0)) for m in (rows, columns)):
        return [b("Upsample", [x], scale=times)]
    if all(np.abs(m - _interp(*m.shape)).max() <= CLOSE for m in (rows, columns)):
        return [b("Interp", [x], height=out[2], width=out[3])]
    x = _along_last(b, x, columns)
    x = _along_last(b, permuted(b, x, [0, 1, 3, 2]), rows)
    return [permuted(b, x, [0, 1, 3, 2])]


def _along_last(b: Builder, x: str, matrix: Array) -> str:
    return b("InnerProduct", [x], [matrix], num_output=len(matrix), bias_term=False, axis=3)


def _matrix(b: Builder, node: Node, axis: int) -> Array:
    """What node does along an axis (out, size): the result for each pixel that is 1 among zeros."""
    from onnx import helper, numpy_helper
    from onnxruntime import InferenceSession, SessionOptions

    size, length = b.shape(node.inputs[0])[axis], b.shape(node.outputs[0])[axis]
    if node.op == "Resize" and node.get("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        raise RefusedError("tf_crop_and_resize: export the model without it")
    inputs, given = ["x"], []
    for name in node.inputs[1:]:
        values = b.constant(name).reshape(-1) if name else np.zeros(0)
        if len(values) != 4:  # no region of interest; scales or sizes in place of these
            along = np.zeros(0, np.float32)
        else:
            along = np.array([size, 1, 1, length] if values.dtype == np.int64 else [1, 1, 1, values[axis]], values.dtype)
        inputs.append(f"i{len(inputs)}")
        given.append(numpy_helper.from_array(along, inputs[-1]))
    one = helper.make_node(node.op, inputs, ["y"], **node.attributes)
    x, y = (helper.make_tensor_value_info(name, 1, dims) for name, dims in (("x", [size, 1, 1, size]), ("y", [None] * 4)))
    opsets = [helper.make_opsetid("", b.graph.opset)]
    model = helper.make_model(helper.make_graph([one], "resize", [x], [y], given), opset_imports=opsets, ir_version=8)
    options = SessionOptions()
    options.log_severity_level = 4
    try:
        session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        made = session.run(None, {"x": np.eye(size, dtype=np.float32).reshape(size, 1, 1, size)})
    except Exception as error:  # onnxruntime's are of several types
        raise RefusedError(f"onnxruntime cannot run it: {error}") from error
    if made[0].size != size * length:
        raise RefusedError(f"it makes {made[0].size // size} of {size} places, and the model's shapes say {length}")
    matrix: Array = np.asarray(made[0], np.float32).reshape(size, length).T
    return matrix


def _interp(out: int, size: int) -> Array:
    """Interp's matrix."""
    taps, matrix = Taps(size, out), np.zeros((out, size), np.float32)
    places = np.arange(out)
    for at, share in zip((taps.before, taps.after), taps.shares(np.dtype(np.float32))):
        matrix[places, at] += share
    return matrix
