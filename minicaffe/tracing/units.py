"""Pictures of a unit: the pixels that raise one number of a layer, by the gradient and by the two rules of deconvolution.

Sources: Zeiler and Fergus, 2014; Springenberg et al., 2015 (guided backpropagation).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.detection.inputs import image_input
from minicaffe.errors import Error
from minicaffe.net import Net
from minicaffe.pycaffe_net import DECONV_TYPES, GRADIENT, gradient_from

from .explanations.terms import Index, number, place
from .receptive_fields import Field, receptive_field
from .trace import shrunk

RULES = {"gradient": GRADIENT, "Zeiler and Fergus": DECONV_TYPES["Zeiler & Fergus"], "guided": DECONV_TYPES["Guided Backprop"]}
LONGEST = 256
"""The most pixels of a side of a picture."""


@dataclass(frozen=True)
class UnitPicture:
    """The part of the input that a unit reads, or what a backward pass gives there: rgb (h, w, 3).

    size: the number that the lightest or darkest pixel stands for, None for the input. Grey is 0.
    """

    title: str
    rgb: NDArray[np.uint8]
    size: float | None


@dataclass(frozen=True)
class Unit:
    """One number of a layer's top, and its pictures.

    name: its blob and index. after: the last layer that changes the number in place, or "". rows, columns: of the input.
    """

    layer: str
    name: str
    value: float
    after: str
    at: Index
    rows: tuple[int, int]
    columns: tuple[int, int]
    pictures: list[UnitPicture]

    @property
    def words(self) -> str:
        """The unit and its value, as text."""
        return f"{self.name} = {number(self.value)}" + f", after {self.after}" * bool(self.after)


def parsed(net: Net, text: str) -> tuple[str, list[int]]:
    """Return the layer and the index of LAYER[:CHANNEL[,ROW,COLUMN]]. Raises Error for an unknown layer."""
    found = re.fullmatch(r"(.+):(\d{1,9}(?:,\d{1,9},\d{1,9})?)", text, re.DOTALL)
    if found is None or text in net.layer_dict:
        net.index_of(text)
        return text, []
    net.index_of(found[1])
    return found[1], [int(part) for part in found[2].split(",")]


def unit(net: Net, layer: str, at: Sequence[int] = ()) -> Unit:
    """Return the pictures of a unit of a layer's first top, for the first image that the net has just run on.

    at: its channel, or channel, row and column; by default the greatest number, of the channel or of all. The number is that
    after later layers in place, as ReLU. Weights and their diffs do not change. Raises Error for an index out of range, and
    for a net without an input that holds an image.
    """
    i = net.index_of(layer)
    if not net.nodes[i].tops or not net.nodes[i].tops[0].count:
        raise net.layers[i].error("has no number to picture: name another layer")
    name, blob = net.nodes[i].top_names[0], net.nodes[i].tops[0]
    source = image_input(net, "pictures of a unit")
    index = _index(net, i, at)
    start = max(j for j, node in enumerate(net.nodes) if name in node.top_names)
    field = _field(net, name, index, source)
    rows, columns = ((axis.start, axis.stop - 1) for axis in (field.rows, field.columns))
    pixels = net.blobs[source]
    lowest, highest = float(pixels.read_data()[0].min()), float(pixels.read_data()[0].max())

    def cut(array: Array) -> NDArray[np.float64]:
        part = array[0, :, rows[0] : rows[1] + 1, columns[0] : columns[1] + 1].astype(np.float64)
        return shrunk(part, -(-max(part.shape[1:]) // LONGEST))

    shown = (cut(pixels.read_data()) - lowest) * (255 / ((highest - lowest) or 1))
    pictures = [UnitPicture("input", _rgb(shown), None)]
    diff = np.zeros(blob.shape, net.dtype)
    diff[index] = 1
    for title, rule in RULES.items():
        gradient_from(net, start, diff, rule=rule)
        found = cut(pixels.read_diff())
        size = float(np.abs(found).max(initial=0))
        pictures.append(UnitPicture(title, _rgb(127.5 + found * (127.5 / (size or 1))), size))
    after = net.layers[start].name if start != i else ""
    return Unit(layer, place(name, index), float(blob.read_data()[index]), after, index, rows, columns, pictures)


def _index(net: Net, i: int, at: Sequence[int]) -> Index:
    """Return the whole index of a unit of layer i's first top: the greatest number where `at` does not say."""
    y = net.nodes[i].tops[0].read_data()
    shape, given = y.shape, (0, *at)
    if len(given) > max(len(shape), 1) or any(not 0 <= k < size for k, size in zip(given, shape)):
        given_text = ",".join(map(str, at))
        raise net.layers[i].error(f"there is no unit {given_text}: its top {net.nodes[i].top_names[0]} has shape {shape}")
    given = given[: len(shape)]
    rest = y[given]
    return (*given, *(int(k) for k in np.unravel_index(np.argmax(rest), rest.shape))) if rest.shape else given


def _field(net: Net, name: str, index: Index, source: str) -> Field:
    """Return the pixels that a unit reads: all of them for a blob without maps."""
    if len(index) == 4:
        fields = receptive_field(net, name, *index[2:])
        if source not in fields:
            raise Error(f"{place(name, index)} does not depend on the input {source}")
        return fields[source]
    height, width = net.blobs[source].shape[2:]
    return Field(range(height), range(width))


def _rgb(maps: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return maps (C, H, W) as a picture (H, W, 3): three channels are blue, green and red, one is grey."""
    rgb = np.broadcast_to(maps[::-1], (3, *maps.shape[1:])).transpose(1, 2, 0)
    return np.ascontiguousarray(np.nan_to_num(rgb).round().clip(0, 255).astype(np.uint8))
