"""The inputs of a rescued net: the blobs of its data layers, and their shapes, derived from the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile

import numpy as np

from minicaffe.errors import Error
from minicaffe.formats.weights import LayerWeights, WeightsFile
from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.data.input import DummyData, MemoryData
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.neuron.relu import PReLU
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.normalize import Normalize
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of

from .graph import Graph, clear_fillers, input_layer

LayerParameter = caffe_pb2.LayerParameter

FIXED = {"im_info": (1, 3), "rois": (1, 5)}
"""Inputs of detectors that are no images."""
COMMON_SIZES = (224, 227, 32, 28, 256, 299, 231, 112, 96, 128, 64, 48, 24, 12, 300, 512)
"""Tried first if an InnerProduct determines the size of the map before it."""
LARGEST = 640
MOST_FITTED, MOST_TRIED = 4, 400_000
"""The most inputs whose size is searched; the most layers to reshape, over all sizes beyond COMMON_SIZES."""
BY_CHANNEL = (BatchNorm, Scale, PReLU, Bias, Normalize)
"""Layers whose first blob has a number per channel."""


def add_inputs(
    layers: list[LayerParameter],
    original: list[LayerParameter],
    weights: WeightsFile,
    shapes: Mapping[str, tuple[int, ...]],
    notes: list[str],
) -> tuple[list[LayerParameter], list[str]]:
    """Return layers after an Input layer for each blob that they read but do not make, and a sentence for each guessed size.

    shapes: of inputs whose shape is known. Raises Error for one that is no input.
    """
    needed = Graph(layers).inputs
    for name, given_shape in shapes.items():
        if name not in needed:
            text = ",".join(map(str, given_shape))
            raise Error(f"--shape {name}={text}: the rescued net's inputs are {', '.join(needed) or 'none'}")
    if not needed:
        return layers, []
    stored = {layer.name: layer for layer in weights.layers if layer.blobs}
    sources = {top: layer for layer in original if not layer.bottom for top in layer.top}
    readers = _Readers(layers, stored)
    found = {name: (shapes[name], True) if name in shapes else _shape(name, sources.get(name), readers) for name in needed}
    inputs = [input_layer(name, shape, top=name) for name, (shape, _) in found.items()]
    unsure = [layer for layer, (_, sure) in zip(inputs, found.values()) if not sure]
    guesses = []
    if (product := _sizing_product(layers, stored)) is not None:
        guesses = [_fit(layer, inputs, layers, product, stored) for layer in unsure[:MOST_FITTED]]
        notes.extend(guesses)
    else:
        notes.extend(f"The size of {layer.name} is not in the file: use any that the layers accept." for layer in unsure)
    for layer in inputs:
        notes.append(input_note(layer, sources.get(layer.name)))
    return [*inputs, *layers], guesses


def input_note(layer: LayerParameter, source: LayerParameter | None) -> str:
    """Return a sentence on an Input layer, and on the data layer that it replaces."""
    shape = "x".join(map(str, layer.input_param.shape[0].dim))
    return f"Input {layer.name} ({shape})" + (f" replaces {source.name} ({source.type})." if source else ".")


def dummy_shape(source: LayerParameter, top: str) -> tuple[int, ...]:
    """Return the shape that a DummyData layer gives a top; () for another layer, or if it has no shape."""
    shapes = source.dummy_data_param.shape if class_of(source) is DummyData else ()
    return tuple(shapes[min(list(source.top).index(top), len(shapes) - 1)].dim) if shapes else ()


def _shape(name: str, source: LayerParameter | None, readers: _Readers) -> tuple[tuple[int, ...], bool]:
    """Return a shape for an input, and whether it is certain."""
    if given := FIXED.get(name) or (source is not None and dummy_shape(source, name)):
        return given, True
    if source is not None and class_of(source) is MemoryData:
        block = source.memory_data_param
        return (1, block.channels, block.height, block.width), True
    channels = readers.channels(name)
    if channels is None:
        return readers.features(name), True
    crop = _crop(source) if source is not None else 0
    return (1, channels, crop or 224, crop or 224), bool(crop)  # 224: ImageNet's usual crop


def _crop(source: LayerParameter) -> int:
    blocks = (source.data_param, source.image_data_param, source.window_data_param)
    transform = source.transform_param
    sizes = [transform.crop_size, *(block.crop_size for block in blocks), source.image_data_param.new_height]
    return next((size for size in [*sizes, transform.resize_param.height] if size), 0)


class _Readers:
    """The first readers of a blob, direct or through other layers. stored: the weights by layer."""

    def __init__(self, layers: list[LayerParameter], stored: dict[str, LayerWeights]) -> None:
        self._layers, self._stored = layers, stored
        self._weighted = self._first(lambda layer: layer.name in stored and stored[layer.name].blobs[0] is not None)
        self._products = self._first(lambda layer: class_of(layer) is InnerProduct and layer.name in stored)

    def _first(self, wanted: Callable[[LayerParameter], bool]) -> dict[str, int]:
        """Return for each blob the first wanted layer that depends on it."""
        found: dict[str, int] = {}
        # Backwards, so that a blob's readers are known before its maker.
        for i, layer in reversed(list(enumerate(self._layers))):
            at = i if wanted(layer) else min((found[top] for top in layer.top if top in found), default=None)
            if at is not None:
                found.update((name, min(at, found.get(name, at))) for name in layer.bottom)
        return found

    def channels(self, name: str) -> int | None:
        """Return a map's number of channels, from the first layer with weights that depends on it; None for an InnerProduct."""
        if name not in self._weighted:
            return 3
        layer = self._layers[self._weighted[name]]
        blob = self._stored[layer.name].blobs[0]
        assert blob is not None
        kind = class_of(layer)
        if kind in (Convolution, DepthwiseConvolution):
            # (outputs, inputs / group, ...)
            return blob.shape[0] if kind is DepthwiseConvolution else blob.shape[1] * max(layer.convolution_param.group, 1)
        if kind in BY_CHANNEL:
            return int(np.prod(blob.shape))
        return blob.shape[0] if kind is Deconvolution else None  # (inputs, outputs / group, ...)

    def features(self, name: str) -> tuple[int, ...]:
        """Return the shape of an InnerProduct's bottom: a vector along its axis."""
        if name not in self._products:
            return 1, 1
        layer = self._layers[self._products[name]]
        return (1,) * max(layer.inner_product_param.axis, 1) + (_length(layer, self._stored),)


def _sizing_product(layers: list[LayerParameter], stored: dict[str, LayerWeights]) -> int | None:
    """Return the index of the first InnerProduct if its weights determine the image's size; after rois they do not."""
    at = next((i for i, layer in enumerate(layers) if class_of(layer) is InnerProduct and layer.name in stored), None)
    return None if at is None or any(issubclass(class_of(layer), RoiLayer) for layer in layers[:at]) else at


def _fit(
    given: LayerParameter,
    inputs: list[LayerParameter],
    layers: list[LayerParameter],
    at: int,
    stored: dict[str, LayerWeights],
) -> str:
    """Find the height and width at which the map before the InnerProduct layers[at] fits its weights.

    Return a sentence on them.
    """
    none = f"No square {given.name} fits the weights of {layers[at].name}: give its shape."
    wanted = _length(layers[at], stored)
    graph = Graph(layers[:at])
    before = graph.before(filter(None, [graph.last.get(layers[at].bottom[0])]))
    net = caffe_pb2.NetParameter(layer=[*inputs, *(layers[i] for i in sorted(before))])
    for layer in net.layer:
        clear_fillers(layer)  # only shapes matter: no time for random weights
    try:
        running = Net(net)
    except Error:
        return none
    batch, channels = given.input_param.shape[0].dim[:2]

    def fits(size: int) -> bool:
        running.blobs[given.name].reshape(batch, channels, size, size)  # only squares are tried
        try:
            running.reshape()
        except Error:
            return False
        return bool(np.prod(running.blobs[layers[at].bottom[0]].shape[1:]) == wanted)

    sizes = range(1, min(LARGEST, MOST_TRIED // len(net.layer)))
    size = next(filter(fits, (*COMMON_SIZES, *sizes)), None)
    if size is None:
        return none
    if size not in COMMON_SIZES:  # of the sizes that fit, the one that halves most often: 8 of 5 to 8
        size = max(takewhile(fits, sizes[size - 1 :]), key=lambda size: size & -size)
    given.input_param.shape[0].dim[2:] = [size, size]
    return f"The size of {given.name}, {size}x{size}, fits the weights of {layers[at].name}; others may fit too."


def _length(layer: LayerParameter, stored: dict[str, LayerWeights]) -> int:
    blob = stored[layer.name].blobs[0]
    assert blob is not None
    return blob.shape[-2 if layer.inner_product_param.transpose else -1]
