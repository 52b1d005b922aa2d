"""ONNX models as Caffe nets: a prototxt and weights.

imported = minicaffe.onnx_import.import_onnx("model.onnx")
net = imported.net()
differences = minicaffe.onnx_import.compare_with_model(net, "model.onnx")
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import LayerError
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import Weights, put_weights, weights_of
from minicaffe.porting.agreement import Difference, differences, run_of
from minicaffe.porting.onnx.session import Session
from minicaffe.proto import caffe_pb2

from . import forms, functions, recurrent  # noqa: F401  # entries
from .builder import Builder, finished, importers, imports, whole_error
from .graph import RefusedError, Shape, known_graph
from .patterns import LAYER, input_shapes, recognise, regroup
from .reading import NEWEST, OLDEST, read_model

__all__ = [
    "NEWEST", "OLDEST", "Imported", "RefusedError", "compare_with_model", "compare_with_original", "import_onnx", "importers",
    "imports",
]  # fmt: skip


@dataclass(frozen=True)
class Imported:
    """A net and the weights of its layers by name.

    output_shapes: the model's, where they are known; restored: the layers that the model's metadata describes, which
    minicaffe.export_onnx wrote.
    """

    param: caffe_pb2.NetParameter
    weights: Weights
    output_shapes: Mapping[str, Shape]
    restored: Sequence[str]

    def net(self, settings: DetectionSettings | None = None, fork: str = "") -> Net:
        """Return the net with its weights, in TEST.

        settings: those of a detection net. fork: the fork for layers that differ between forks. Raises LayerError for an output
        of another shape than the model's.
        """
        net = Net(self.param, TEST, settings=settings or DetectionSettings(), fork=fork)
        put_weights(net, weights_of(net) | dict(self.weights))  # layers without imported weights keep theirs
        for name, shape in self.output_shapes.items():
            if net.blobs[name].shape != shape:
                raise LayerError(f'output "{name}": the model gives {shape}, the net {net.blobs[name].shape}: this is a bug')
        return net


def import_onnx(
    path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]] | None = None, until: Sequence[str] = ()
) -> Imported:
    """Return the net that computes what an ONNX model (opset 9 to 22) computes.

    shapes: of its inputs; a dynamic batch is 1 by default. until: the tensors that become the outputs; what is beyond them is
    left out.

    Raises Error for a model that cannot be read, or has dynamic axes, and one that lists all nodes without a layer in Caffe.
    """
    model = read_model(path)
    given = {**input_shapes(model), **(shapes or {})}
    graph = known_graph(model, given, path, until)
    regroup(graph, model)
    recognise(graph)
    builder = Builder(graph)
    builder.build()
    if builder.refused:
        raise whole_error(os.fspath(path), list(builder.refused.values()))
    names = [node.name for node in graph.nodes if node.op == LAYER]
    shapes_of_outputs = {name: graph.shapes[name] for name in graph.outputs if name in graph.shapes}
    return Imported(finished(builder, model.graph.name), builder.weights, shapes_of_outputs, names)


def compare_with_model(net: Net, path: str | os.PathLike[str], until: Sequence[str] = ()) -> list[Difference]:
    """Run the model and the net on the net's inputs. Return a Difference for each output, or for each tensor of until."""
    inputs = {name: net.blobs[name].read_data().copy() for name in net.inputs}
    made = Session(path, inner=bool(until)).run(inputs)
    wanted = {name: made[name] for name in until or made}
    return differences(run_of(net, wanted), wanted)


def compare_with_original(net: Net, path: str | os.PathLike[str]) -> list[Difference]:
    """Import the model that a net was exported to, and run both nets on the inputs of the first.

    Return a Difference for each output of the model. Raises Error as import_onnx.
    """
    graph = read_model(path).graph
    inputs, outputs = ([item.name for item in items] for items in (graph.input, graph.output))
    back = import_onnx(path, {name: net.blobs[name].shape for name in inputs}).net(net.settings)
    for name in back.inputs:
        back.blobs[name].reshape(net.blobs[name].shape)
        back.blobs[name].data[...] = net.blobs[name].data
    theirs = run_of(back, outputs).blobs
    return differences(run_of(net, outputs), {name: theirs[name] for name in outputs})
