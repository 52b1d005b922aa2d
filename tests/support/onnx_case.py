"""A small net and its ONNX model in onnxruntime, compared on the given arrays and at other sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from numpy.typing import NDArray

from minicaffe import TEST, Net
from minicaffe.data.settings import DetectionSettings
from minicaffe.porting.onnx import export_onnx, run_model
from minicaffe.proto import caffe_pb2

Arrays = dict[str, NDArray[Any]]


def net_of(text: str, inputs: Arrays, seed: int = 0, settings: DetectionSettings | None = None) -> Net:
    """Return a net with an Input for each array, then the layers of text; all weights random and nonzero."""
    head = "".join(
        f'layer {{ name: "{name}_in" type: "Input" top: "{name}" input_param {{ shape {{ '
        + " ".join(f"dim: {d}" for d in array.shape)
        + " } } }\n"
        for name, array in inputs.items()
    )
    net = Net(text_format.Parse(head + text, caffe_pb2.NetParameter()), TEST, settings=settings)
    random = np.random.default_rng(seed)
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = random.uniform(0.3, 1.2, blob.shape) * random.choice([-1, 1], blob.shape)
    for blobs, layer in ((net.params[name], net.layer_dict[name]) for name in net.params):
        if layer.type == "BN":
            for blob in blobs[3:]:
                blob.data[...] = np.abs(blob.data)
        if layer.type == "BatchNorm":
            blobs[1].data[...] = np.abs(blobs[1].data)
            blobs[2].data[...] = 1.7
    return net


def run_net(net: Net, inputs: Arrays) -> Arrays:
    """Every blob of the net after forward."""
    for name, array in inputs.items():
        net.blobs[name].reshape(array.shape)
        net.blobs[name].data[...] = array
    net.forward()
    return {name: blob.data.copy() for name, blob in net.blobs.items()}


def check(
    folder: Path,
    text: str,
    inputs: Arrays,
    *others: Arrays,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    net: Net | None = None,
    back: bool = True,
    **options: Any,
) -> dict[str, list[int | str]]:
    """Export at the first arrays' sizes; the net and the model must agree on those and on the others.
    back: the model, imported, gives the net's outputs too.

    Returns the shapes of the model's inputs and outputs, with names for dynamic axes.
    """
    import onnx

    net = net or net_of(text, inputs)
    path = folder / "model.onnx"
    for name, array in inputs.items():
        net.blobs[name].reshape(array.shape)
        net.blobs[name].data[...] = array
    export_onnx(net, path, **options)
    for name, array in inputs.items():
        np.testing.assert_array_equal(net.blobs[name].data, array.astype(np.float32))
    for given in (inputs, *others):
        made = run_model(path, given)
        wanted = run_net(net, given)
        assert made
        if back and given is inputs:
            _check_back(path, net, given, list(made))
        for name, array in made.items():
            assert array.shape == wanted[name].shape, f"{name}: {array.shape}, minicaffe has {wanted[name].shape}"
            np.testing.assert_allclose(array, wanted[name], rtol=rtol, atol=atol, err_msg=name)
    graph = onnx.load(path).graph
    return {x.name: [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] for x in [*graph.input, *graph.output]}


def _check_back(path: Path, net: Net, given: Arrays, outputs: list[str]) -> None:
    """Assert that the imported model gives the net's outputs."""
    from minicaffe.porting.onnx_import import import_onnx

    imported = import_onnx(path)
    back = imported.net(net.settings)
    run_net(back, {name: array for name, array in given.items() if name in back.inputs})
    for name in outputs:
        np.testing.assert_allclose(back.blobs[name].data, net.blobs[name].data, rtol=2e-6, atol=1e-6, err_msg=name)
