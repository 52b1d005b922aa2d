"""The fields of MS-CNN's and Cascade R-CNN's proposals, and what their training nets say of them.

    a map (N G, ..., H, W) has G fields of fixed size at each cell of each of N images; MS-CNN's have one
    labels (N G, 6, H, W): class, 0 for background; centre and size of the true box, in pixels; its overlap with the field

Source: cascade-rcnn's util/bbox_util.cpp (EncodeGroupBBoxes) and detection_group_accuracy_layer.cpp; mscnn's
detection_accuracy_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer


class Truths(NamedTuple):
    """Views of labels: kinds (N G, H, W), whole numbers; boxes (N G, H, W, 4): centre and size; overlaps (N G, H, W)."""

    kinds: NDArray[np.intp]
    boxes: Array
    overlaps: Array


class FieldGroups:
    """The G fields of a layer whose block has field_w, field_h, cls_num and, under this name, the stride between cells.

    Raises LayerError for bad ones.
    """

    def __init__(self, layer: Layer, param: Any, block: str, stride: str = "stride") -> None:
        self.layer, self.param, self.block, self.stride = layer, param, block, getattr(param, stride)
        widths, heights = np.atleast_1d(param.field_w), np.atleast_1d(param.field_h)
        if not len(widths) or len(widths) != len(heights):
            sizes = f"{len(widths)} field_w and {len(heights)} field_h"
            raise layer.error(f"needs as many field_w as field_h, at least one; got {sizes}", block)
        if not (widths.all() and heights.all() and self.stride and param.cls_num):
            raise layer.error(f"needs field_w, field_h, {stride} and cls_num > 0", block)
        if param.objectness and param.cls_num != 2:
            raise layer.error(f"objectness needs cls_num 2, got {param.cls_num}", f"{block}.objectness")
        if not (param.field_whr > 0 and param.field_xyr > 0):
            raise layer.error("needs field_whr and field_xyr > 0", block)
        self.fields = np.array([widths, heights], layer.dtype).T  # (G, 2)

    def check(self, bottom: Sequence[Blob], channels: Sequence[int]) -> None:
        """Raises LayerError for bottoms, the last of them the labels, that have other numbers of channels, or other shapes."""
        self.labels = f"bottom[{len(channels) - 1}]"
        shape, images = bottom[0].shape, f"N * {len(self.fields)}" if len(self.fields) > 1 else "N"
        for i, count in enumerate(channels):
            wanted = (shape[0] if shape else 0, count, *shape[2:])
            if bottom[i].shape != wanted or len(wanted) != 4 or wanted[0] % len(self.fields):
                form = f"({images}, {count}, H, W), and H and W alike"
                raise self.layer.error(f"bottom {i} must be {form}; got {bottom[i].shape}", f"bottom[{i}]")

    def channels(self) -> int:
        """How many channels scores and deltas have together. Raises LayerError for a coord_num other than 4."""
        if self.param.coord_num != 4:
            raise self.layer.error(f"coord_num must be 4, got {self.param.coord_num}", f"{self.block}.coord_num")
        return int(self.param.cls_num) + 4

    def truths(self, labels: Blob) -> Truths:
        """The labels. Raises LayerError for a class that is not finite."""
        given = labels.data
        for kind in given[:, 0][~np.isfinite(given[:, 0])][:1]:
            raise self.layer.error(f"{kind:g} is no class", self.labels)
        return Truths(given[:, 0].astype(np.intp), given[:, 1:5].transpose(0, 2, 3, 1), given[:, 5])

    def told(self, kinds: NDArray[np.intp]) -> NDArray[np.intp]:
        """The classes that the scores tell: 1 for every object where the net only tells objects from background."""
        return np.minimum(kinds, 1) if self.param.objectness else kinds

    def bounds(self, dtype: Any) -> Array:
        """The largest |t| (4,) of a field, before means and stds."""
        far, stretch = 1 / self.param.field_xyr, math.log(self.param.field_whr)
        return np.array([far, far, stretch, stretch], dtype)

    def places(self, at: tuple[NDArray[np.intp], ...]) -> tuple[Array, Array]:
        """The centres of the cells (n, 2) and the fields (n, 2) at places (map, row, column)."""
        cells = np.stack([at[2], at[1]], axis=1).astype(self.fields.dtype)
        return (cells + self.fields.dtype.type(0.5)) * self.stride, self.fields[at[0] % len(self.fields)]


def split_channels(x: Array, classes: int) -> tuple[Array, Array]:
    """Views of MS-CNN's maps (N, classes + 4, H, W): the scores and the deltas."""
    return x[:, :classes], x[:, classes:]
