"""The last steps of an imported net: outputs named as in the model, tops that nothing reads, layers in place."""

from __future__ import annotations

from collections import Counter

from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.neuron.functions import ReLU6
from minicaffe.layers.neuron.relu import PReLU, ReLU
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.proto import caffe_pb2
from minicaffe.registry import types

from .builder import Builder

SUMS = (Convolution, Deconvolution, InnerProduct, BatchNorm, Scale, Bias, Eltwise)
"""Layers whose tops backward does not read, so that the next layer may replace them, as Caffe's own nets do."""
FOLLOWING = (BatchNorm, Scale, Bias, ReLU, ReLU6, PReLU)


def finished(builder: Builder, name: str) -> caffe_pb2.NetParameter:
    """The whole net."""
    layers, outputs = builder.layers, builder.graph.outputs
    kept = {builder.blobs[output] for output in outputs}
    _rename(layers, now := _in_place(layers, kept, kept | builder.restored))
    read = {bottom for layer in layers if list(layer.bottom) != list(layer.top) for bottom in layer.bottom}
    renamed: dict[str, str] = {}
    copies = []
    for output in outputs:
        blob = now.get(builder.blobs[output], builder.blobs[output])
        if blob not in read and blob not in renamed and blob not in builder.graph.inputs and blob not in outputs:
            renamed[blob] = output
        elif blob != output:
            copies.append((blob, output))
    _rename(layers, renamed)
    for blob, output in copies:
        bottom = renamed.get(blob, blob)
        builder.add("Split", [bottom], f"{output}/copy").top.append(output)
    read |= {bottom for layer in layers for bottom in layer.bottom}.union(outputs)
    unused = [top for layer in layers for top in layer.top if top not in read]
    if unused:
        builder.add("Silence", unused, "unused")
    return caffe_pb2.NetParameter(name=name, layer=layers)


def _in_place(layers: list[caffe_pb2.LayerParameter], kept: set[str], named: set[str]) -> dict[str, str]:
    """New names by which layers overwrite a blob that they alone read, unless it is kept. A named blob keeps its name."""
    readers = Counter(bottom for layer in layers for bottom in layer.bottom)
    makers: dict[str, caffe_pb2.LayerParameter] = {}
    first: dict[str, str] = {}  # the first blob of a chain, by the later ones
    title: dict[str, str] = {}  # the name of the chain, by its first blob
    for layer in layers:
        bottom = layer.bottom[0] if layer.bottom else ""
        alone = readers[bottom] == 1 and bottom not in kept and bottom in makers
        if alone and _is(layer, FOLLOWING) and _is(makers[bottom], SUMS) and types[layer.type].in_place:
            top, root = layer.top[0], first.get(bottom, bottom)
            first[top] = root
            if top in named or root not in title:
                title[root] = top if top in named else root
        makers.update(dict.fromkeys(layer.top, layer))
    return {name: title[root] for name, root in [*first.items(), *zip(title, title)] if name != title[root]}


def _is(layer: caffe_pb2.LayerParameter, kinds: tuple[type[Layer], ...]) -> bool:
    return layer.type in types and types[layer.type] in kinds


def _rename(layers: list[caffe_pb2.LayerParameter], names: dict[str, str]) -> None:
    for layer in layers:
        layer.bottom[:] = [names.get(bottom, bottom) for bottom in layer.bottom]
        layer.top[:] = [names.get(top, top) for top in layer.top]
