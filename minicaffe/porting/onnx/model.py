"""A net as an ONNX model: the nodes of its layers, its weights, its metadata and its file.

The metadata describe the layers for `minicaffe import`, which restores them:

minicaffe.layers   JSON: for each layer made of nodes, its parameters as prototxt text, and the names of its nodes and of the
                   tensors of its bottoms, tops and learnable blobs
minicaffe.inputs   JSON: the shape of each input of the net

Weights too large for the model go to a separate file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from google.protobuf import text_format

from minicaffe.blob import Array
from minicaffe.data.drawings import class_name
from minicaffe.detection.class_names import BACKGROUND
from minicaffe.detection.families import family_of
from minicaffe.detection.task import class_names
from minicaffe.errors import Error, install, pasted, ways
from minicaffe.files import replacing, unlinked
from minicaffe.layer import Layer
from minicaffe.layer_list import Node
from minicaffe.layers.data.input import Input
from minicaffe.layers.proposal.dynamic_tops import dynamic_rois
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.porting.graph import clear_fillers, graph_of, without
from minicaffe.registry import exports
from minicaffe.tracing.net_state import state_kept
from minicaffe.version import __version__

from .graph import Dims, Graph, Value, Written, symbolic_shapes
from .whole import IMAGE, OUTPUTS, Whole

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto


OLDEST_OPSET = 18
"""The first opset in which reductions take their axes as an input, and Split its number of parts."""

DEFAULT_OPSET = 18

TYPES = {IMAGE: np.uint8, **OUTPUTS}
"""Of a whole detector's inputs and outputs; all others are float32."""


def onnx_model(
    net: Net,
    *,
    opset: int = DEFAULT_OPSET,
    until: str | None = None,
    whole: Whole | None = None,
    classes: Sequence[str] | None = None,
) -> tuple[ModelProto, dict[str, Array]]:
    """Return the ModelProto of net, or of what the layer `until` needs, without weights; and the weights by name.

    whole: with the photo as its input, or boxes as its outputs. classes: the names of the net's classes for the metadata; by
    default the usual ones for their number.

    Raises Error, and LayerError for a layer without an ONNX form.
    """
    _check(net, opset)
    if whole:
        whole.check(net, until)
    with state_kept(net):
        return _model(net, opset, until, whole, classes)


def _model(
    net: Net, opset: int, until: str | None, whole: Whole | None, classes: Sequence[str] | None
) -> tuple[ModelProto, dict[str, Array]]:
    nodes, outputs = _wanted(net, until)
    shapes = symbolic_shapes(net, nodes)
    graph = Graph()
    for name in net.blobs:
        graph.reserve(name)
    used = [name for name in net.inputs if name in outputs or any(name in node.bottom_names for node in nodes)]
    inputs = {name: Value(name, shapes[name]) for name in used}
    values = dict(inputs)
    if whole:
        inputs, values, photo = whole.begin(graph, net, shapes)
    for node in nodes:
        if not isinstance(node.layer, Input):
            _emit(graph, net, node, values, shapes)
    made = whole.end(graph, net, values, photo) if whole and whole.boxes else {name: values[name] for name in outputs}
    for name in made:
        if name in inputs and made[name].name != name:
            raise Error(f'input "{name}" is changed in place and is also an output: rename the top')
    _drop_unread(graph, {value.name for value in made.values()})
    model = _assembled(graph, net, inputs, made, values, opset)
    for key, value in {**(whole.facts() if whole else {}), **_names(net, until, whole, classes)}.items():
        model.metadata_props.add(key=key, value=value)
    read = {name for node in _with_inner(graph.nodes) for name in node.input}
    return model, {name: array for name, array in graph.constants.items() if name in read}


def _names(net: Net, until: str | None, whole: Whole | None, classes: Sequence[str] | None) -> dict[str, str]:
    """Return the metadata of the classes. A model that gives boxes has a name for each of their classes, as detect has."""
    names = class_names(net, classes) if until is None or classes else None
    if not names and whole and whole.boxes:
        names = [BACKGROUND, *(class_name(k, None) for k in range(1, family_of(net).classes(net).number))]
    return {"class_names": json.dumps(names)} if names else {}


def _check(net: Net, opset: int) -> None:
    try:
        from onnx import defs
    except ImportError:
        raise Error(f"the export needs onnx: {install('onnx')}") from None
    newest = defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise Error(f"opset {opset}: the export writes opsets {OLDEST_OPSET} to {newest} (the newest of the installed onnx)")
    if net.phase != TEST:
        raise Error("a net is exported in TEST; this one is in TRAIN")


def _wanted(net: Net, until: str | None) -> tuple[list[Node], list[str]]:
    """Return the layers to export, in order, and the output blobs."""
    nodes, outputs = list(net.nodes), list(net.outputs)
    if until is not None:
        end = net.index_of(until)
        nodes, outputs = nodes[: end + 1], list(nodes[end].top_names)
        if not outputs:
            raise net.layers[end].error("it has no top to export as an output")
    for node in nodes:
        if until is None and dynamic_rois(node.layer):  # rois are outputs even if layers read them: boxes need them
            outputs += [top for top in node.top_names if top not in outputs]
    if not outputs:
        raise Error("the net has no outputs to export")
    graph = graph_of(nodes)
    needed = graph.before(graph.last[name] for name in outputs)
    return [nodes[i] for i in sorted(needed)], outputs


def _emit(graph: Graph, net: Net, node: Node, values: dict[str, Value], shapes: dict[str, Dims]) -> None:
    layer, bottoms, tops = node.layer, node.bottom_names, node.top_names
    emitter = exports.get(type(layer))
    if emitter is None:
        raise layer.error(f"this layer has no ONNX form{_why(layer)}{_instead(net, bottoms)}")
    graph.scope, before = layer.name, len(graph.nodes)
    made = emitter(graph, layer, [values[name] for name in bottoms], [shapes[name] for name in tops])
    graph.layers.append(Written(layer, [values[name].name for name in bottoms], made, graph.nodes[before:]))
    values.update((top, Value(name, shapes[top])) for top, name in zip(tops, made, strict=True))


def _why(layer: Layer) -> str:
    if layer.is_loss:
        return ": it computes a loss, for training"
    if not layer.param.bottom and not layer.blobs:
        return ": it makes data; replace it with an Input layer"
    return ""


def _instead(net: Net, bottoms: Sequence[str]) -> str:
    """Return advice on the sub-net that can be exported, up to the layer that makes this one's bottom."""
    makers = [layer.name for layer in net.layers if bottoms and bottoms[0] in layer.param.top and not isinstance(layer, Input)]
    makers = [name for name in makers if not isinstance(net.layer_dict[name], Split)] or makers
    if not makers:
        return ""
    option, argument = ways(f"--until {pasted(makers[-1])}"), f"until={makers[-1]!r}"
    way = f"{option} ({argument})" if option else argument
    return f"; {way} exports the net up to the layer before"


def _drop_unread(graph: Graph, read: set[str]) -> None:
    """Remove the nodes whose outputs nothing reads, such as the marks that an LSTM of ONNX does not take."""
    kept = []
    for node in reversed(graph.nodes):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read.update(name for inner in _with_inner([node]) for name in inner.input)
    graph.nodes[:] = kept[::-1]


def _assembled(
    graph: Graph, net: Net, inputs: dict[str, Value], outputs: dict[str, Value], values: dict[str, Value], opset: int
) -> ModelProto:
    from onnx import helper

    renamed = _name_after_blobs(graph, inputs, list(outputs), {**values, **outputs})

    def info(name: str, value: Value) -> ValueInfoProto:
        kind = np.dtype(TYPES.get(name, np.float32))
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), value.dims)

    first, last = ([info(*item) for item in tensors.items()] for tensors in (inputs, outputs))
    whole = helper.make_graph(graph.nodes, net.name or "net", first, last)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(whole, opset_imports=opsets, producer_name="minicaffe", producer_version=__version__)
    model.ir_version = helper.find_min_ir_version_for(opsets)
    describe(model, graph, net, renamed)
    return model


def _name_after_blobs(
    graph: Graph, inputs: Collection[str], outputs: Sequence[str], values: dict[str, Value]
) -> dict[str, str]:
    """Give tensors the names of the net's blobs; of a blob changed in place, the last tensor gets it, of an input the first.

    Return the new names.
    """
    made = {name for node in graph.nodes for name in node.output}
    renamed: dict[str, str] = {}
    for blob in (*outputs, *values):  # outputs first: their names are the model's interface
        name = values[blob].name
        if name in made and name not in renamed and blob not in inputs:
            renamed[name] = blob
    for node in _with_inner(graph.nodes):
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = renamed.get(name, name)
    for blob in outputs:
        name = renamed.get(values[blob].name, values[blob].name)
        if name != blob:
            from onnx import helper

            # The tensor has another blob's name, or is an input or a weight, which cannot be renamed.
            graph.nodes.append(helper.make_node("Identity", [name], [blob], name=graph.reserve(f"{blob}/Identity")))
    return renamed


def _with_inner(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    """Yield all nodes, including those of sub-graphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _with_inner(attribute.g.node)


# Metadata.


LAYERS, INPUTS = "minicaffe.layers", "minicaffe.inputs"


def describe(model: ModelProto, graph: Graph, net: Net, renamed: Mapping[str, str]) -> None:
    """Add the descriptions of layers to a model's metadata. renamed: new names of the graph's tensors."""
    from onnx import helper

    entries, stored = [], graph.weights_by_address()
    for written in graph.layers:
        blobs = written.layer.blobs if written.layer.name not in graph.weightless else []
        addresses = [blob.read_data().__array_interface__["data"][0] for blob in blobs]
        made = [top for top in written.tops if top not in written.bottoms and top not in graph.constants]
        if made and all(address in stored for address in addresses):  # else the graph holds values computed from its blobs
            weights = [stored[address] for address in addresses]
            tensors = {"bottoms": written.bottoms, "tops": written.tops, "weights": weights}
            entry = {key: [renamed.get(name, name) for name in names] for key, names in tensors.items()}
            entries.append({"layer": _text(written.layer), **entry, "nodes": [node.name for node in written.nodes]})
    shapes = {name: list(net.blobs[name].shape) for name in net.inputs}
    helper.set_model_props(model, {LAYERS: json.dumps(entries), INPUTS: json.dumps(shapes)})


def _text(layer: Layer) -> str:
    """Return the layer's parameters without weights, fillers, bottoms and tops."""
    param = without(layer.param, "bottom", "top", "blobs", "include", "exclude")
    clear_fillers(param)
    return text_format.MessageToString(param, as_one_line=True)


# The file.


LIMIT = 2_000_000_000
"""The most bytes of weights in the model: a protobuf message has at most 2^31 - 1."""

SMALL = 1024
"""Weights of fewer bytes stay in the model: shape inference reads them."""


def write_model(model: ModelProto, weights: Mapping[str, Array], path: str | os.PathLike[str]) -> str | None:
    """Write a model and its weights, checked with onnx's checker and shape inference.

    Return the name of a file of weights, if any.
    """
    import onnx

    data = None
    if sum(array.nbytes for array in weights.values()) > LIMIT:
        data = _write_beside(model, weights, Path(path))
    else:
        _put_inside(model, weights)
    with replacing(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
        try:
            onnx.checker.check_model(os.fspath(temporary), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise Error(f"{path}: the exported model is invalid, which is a bug: {error}") from error
    return data


def _put_inside(model: ModelProto, weights: Mapping[str, Array]) -> None:
    from onnx import numpy_helper

    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))


def _write_beside(model: ModelProto, weights: Mapping[str, Array], path: Path) -> str:
    """Write all but the small weights to a separate file, without a copy. A single weight may be too large for a message."""
    from onnx import TensorProto, helper

    data = path.with_name(path.name + ".data")
    with replacing(unlinked(data)) as temporary, open(temporary, "wb") as file:
        for name, array in weights.items():
            if array.nbytes < SMALL:
                _put_inside(model, {name: array})
                continue
            weight = model.graph.initializer.add(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
            weight.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            for key, value in {"location": data.name, "offset": file.tell(), "length": array.nbytes}.items():
                weight.external_data.add(key=key, value=str(value))
            file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)  # ONNX stores little-endian
    return data.name
