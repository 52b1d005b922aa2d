"""The fields of Cascade R-CNN's proposals, and what their training nets say of them.

    a map (N G, ..., H, W) has G fields of fixed size at each cell of each of N images
    labels (N G, 6, H, W): class, 0 for background; centre and size of the true box, in pixels; its overlap with the field
    target = ((centre - cell's centre) / field, log(max(size, 2) / field)), less the means, over the stds

Source: cascade-rcnn's util/bbox_util.cpp (EncodeGroupBBoxes) and detection_group_loss_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer

from .field_boxes import regression_scale


class Truths(NamedTuple):
    """Views of labels: kinds (N G, H, W), whole numbers; boxes (N G, H, W, 4): centre and size; overlaps (N G, H, W)."""

    kinds: NDArray[np.intp]
    boxes: Array
    overlaps: Array


class FieldGroups:
    """The G fields of a layer whose block has field_w, field_h, stride and cls_num. Raises LayerError for bad ones."""

    def __init__(self, layer: Layer, param: Any, block: str) -> None:
        self.layer, self.param = layer, param
        if not param.field_w or len(param.field_w) != len(param.field_h):
            sizes = f"{len(param.field_w)} field_w and {len(param.field_h)} field_h"
            raise layer.error(f"needs as many field_w as field_h, at least one; got {sizes}", block)
        if not (all(param.field_w) and all(param.field_h) and param.stride and param.cls_num):
            raise layer.error("needs field_w, field_h, stride and cls_num > 0", block)
        if param.objectness and param.cls_num != 2:
            raise layer.error(f"objectness needs cls_num 2, got {param.cls_num}", f"{block}.objectness")
        self.fields = np.array([param.field_w, param.field_h], layer.dtype).T  # (G, 2)
        self.means, self.stds = regression_scale(layer)

    def check(self, bottom: Sequence[Blob]) -> None:
        """Raises LayerError for bottoms of other shapes."""
        shape = bottom[0].shape
        for i, channels in enumerate((self.param.cls_num, 4, 6)):
            wanted = (shape[0] if shape else 0, channels, *shape[2:])
            if bottom[i].shape != wanted or len(wanted) != 4 or wanted[0] % len(self.fields):
                form = f"(N * {len(self.fields)}, {channels}, H, W), and H and W alike"
                raise self.layer.error(f"bottom {i} must be {form}; got {bottom[i].shape}", f"bottom[{i}]")

    def truths(self, labels: Blob) -> Truths:
        """The labels, and the class 1 of every object where the net only tells objects from background.

        Raises LayerError for a class that is not finite."""
        given = labels.data
        for kind in given[:, 0][~np.isfinite(given[:, 0])][:1]:
            raise self.layer.error(f"{kind:g} is no class", "bottom[2]")
        return Truths(given[:, 0].astype(np.intp), given[:, 1:5].transpose(0, 2, 3, 1), given[:, 5])

    def told(self, kinds: NDArray[np.intp]) -> NDArray[np.intp]:
        """The classes that the scores tell."""
        return np.minimum(kinds, 1) if self.param.objectness else kinds

    def bounds(self, dtype: Any) -> Array:
        """The largest |t| (4,) of a field, before means and stds."""
        far, stretch = 1 / self.param.field_xyr, math.log(self.param.field_whr)
        return np.array([far, far, stretch, stretch], dtype)

    def places(self, at: tuple[NDArray[np.intp], ...]) -> tuple[Array, Array]:
        """The centres of the cells (n, 2) and the fields (n, 2) at places (map, row, column)."""
        cells = np.stack([at[2], at[1]], axis=1).astype(self.fields.dtype)
        return (cells + self.fields.dtype.type(0.5)) * self.param.stride, self.fields[at[0] % len(self.fields)]

    def targets(self, truths: Truths, at: tuple[NDArray[np.intp], ...]) -> Array:
        """What the deltas at these places should be (n, 4)."""
        boxes, (centres, fields) = truths.boxes[at], self.places(at)
        moves = np.concatenate([(boxes[:, :2] - centres) / fields, np.log(np.maximum(boxes[:, 2:], 2) / fields)], axis=1)
        encoded: Array = (moves - self.means) / self.stds
        return encoded
