"""What an exported model's metadata tell of the layers that it was made of, for `minicaffe import`, which puts them back.

minicaffe.layers   JSON: for each layer that is made of nodes its parameters as prototxt text, the names of its nodes and of the
                   tensors that are its bottoms, its tops and its learnable blobs
minicaffe.inputs   JSON: the shape of each input of the net
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from google.protobuf import text_format

from minicaffe.layer import Layer
from minicaffe.net import Net
from minicaffe.porting.layer_params import clear_fillers
from minicaffe.proto import caffe_pb2

from .graph import Graph

if TYPE_CHECKING:
    from onnx import ModelProto

LAYERS, INPUTS = "minicaffe.layers", "minicaffe.inputs"


def describe(model: ModelProto, graph: Graph, net: Net, renamed: Mapping[str, str]) -> None:
    """Add the description to a model's metadata. renamed: new names of the graph's tensors."""
    from onnx import helper

    entries, stored = [], graph.weights_by_address()
    for written in graph.layers:
        blobs = written.layer.blobs if written.layer.name not in graph.weightless else []
        addresses = [blob.read_data().__array_interface__["data"][0] for blob in blobs]
        made = [top for top in written.tops if top not in written.bottoms and top not in graph.constants]
        if made and all(address in stored for address in addresses):  # others were computed of its blobs
            weights = [stored[address] for address in addresses]
            tensors = {"bottoms": written.bottoms, "tops": written.tops, "weights": weights}
            entry = {key: [renamed.get(name, name) for name in names] for key, names in tensors.items()}
            entries.append({"layer": _text(written.layer), **entry, "nodes": [node.name for node in written.nodes]})
    shapes = {name: list(net.blobs[name].shape) for name in net.inputs}
    helper.set_model_props(model, {LAYERS: json.dumps(entries), INPUTS: json.dumps(shapes)})


def _text(layer: Layer) -> str:
    """The layer's parameters without weights, fillers, bottoms and tops."""
    param = caffe_pb2.LayerParameter()
    param.CopyFrom(layer.param)
    for field in ("bottom", "top", "blobs", "include", "exclude"):
        param.ClearField(field)
    clear_fillers(param)
    return text_format.MessageToString(param, as_one_line=True)
