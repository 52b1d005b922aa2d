"""DetectNet: a net of DIGITS that ends in ClusterDetections, whose tops are lists of boxes, one for each class.

    score = the confidence: ln(the number of cells' boxes that became this one)

A published deploy net subtracts its means itself. Source: Tao et al., DetectNet (NVIDIA, 2016);
layers/forks/detectnet/clustering.py makes the boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.forks.detectnet.clustering import ClusterDetections
from minicaffe.net import Net

from .rows import RowsEnd, RowsFamily, image_size, maker, script_rows


class DetectNet(RowsFamily):
    """Nets whose outputs are a ClusterDetections layer's tops."""

    names = ("DetectNet",)
    means = (0.0, 0.0, 0.0)

    def end(self, net: Net) -> RowsEnd | None:
        size, layers = image_size(net), {maker(net, name) for name in net.outputs}
        layer = layers.pop() if len(layers) == 1 else None
        if size is None or not isinstance(layer, ClusterDetections):
            return None
        tops, sources = net.top_names[layer.name], net.bottom_names[layer.name]
        read = partial(listed_rows, size=size)
        return RowsEnd(layer.name, tops, len(tops) + 1, read, "a DetectNet", "prototxt", sources=sources)


def listed_rows(arrays: Sequence[Array], size: tuple[int, int]) -> Array:
    """Return the rows of the boxes in arrays (1, M, 5), one for each class, of an input of size (height, width)."""
    boxes = [array[0][array[0].any(axis=1)] for array in arrays]
    classes = np.repeat(np.arange(len(boxes)), [len(of_class) for of_class in boxes])
    found = np.concatenate(boxes)
    return script_rows(found[:, :4] / np.array([*size[::-1]] * 2), found[:, 4], classes)
