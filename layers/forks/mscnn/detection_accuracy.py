"""The accuracy of proposals: the share with the right class, and their overlap with the true boxes.

The fields of MS-CNN's and Cascade R-CNN's proposals:

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
from minicaffe.layers.forks.mscnn.box_output import regression_scale
from minicaffe.layers.metric.accuracy import among_highest
from minicaffe.layers.proposal.cascade_boxes import corners, paired_overlaps


class Truths(NamedTuple):
    """Views of labels.

    kinds (N G, H, W): classes; boxes (N G, H, W, 4): centre and size; overlaps (N G, H, W).
    """

    kinds: NDArray[np.intp]
    boxes: Array
    overlaps: Array


class FieldGroups:
    """The G fields of a layer whose parameter block has field_w, field_h, cls_num and a stride field of this name.

    Raises LayerError for bad fields.
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
        """Raise LayerError for bottoms with other channels or shapes. The last bottom is the labels."""
        self.labels = f"bottom[{len(channels) - 1}]"
        shape, images = bottom[0].shape, f"N * {len(self.fields)}" if len(self.fields) > 1 else "N"
        for i, count in enumerate(channels):
            wanted = (shape[0] if shape else 0, count, *shape[2:])
            if bottom[i].shape != wanted or len(wanted) != 4 or wanted[0] % len(self.fields):
                form = f"({images}, {count}, H, W), and H and W alike"
                raise self.layer.error(f"bottom {i} must be {form}; got {bottom[i].shape}", f"bottom[{i}]")

    def channels(self) -> int:
        """Return the number of channels of scores and deltas. Raises LayerError for a coord_num other than 4."""
        if self.param.coord_num != 4:
            raise self.layer.error(f"coord_num must be 4, got {self.param.coord_num}", f"{self.block}.coord_num")
        return int(self.param.cls_num) + 4

    def truths(self, labels: Blob) -> Truths:
        """Return the labels. Raises LayerError for a class that is not finite."""
        given = labels.data
        for kind in given[:, 0][~np.isfinite(given[:, 0])][:1]:
            raise self.layer.error(f"{kind:g} is no class", self.labels)
        return Truths(given[:, 0].astype(np.intp), given[:, 1:5].transpose(0, 2, 3, 1), given[:, 5])

    def told(self, kinds: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the classes that the scores distinguish: 1 for every object if the net predicts objectness only."""
        return np.minimum(kinds, 1) if self.param.objectness else kinds

    def bounds(self, dtype: Any) -> Array:
        """Return the largest |t| (4,) of a field, before means and stds are applied."""
        far, stretch = 1 / self.param.field_xyr, math.log(self.param.field_whr)
        return np.array([far, far, stretch, stretch], dtype)

    def places(self, at: tuple[NDArray[np.intp], ...]) -> tuple[Array, Array]:
        """Return the centres of the cells (n, 2) and the fields (n, 2) at positions (map, row, column)."""
        cells = np.stack([at[2], at[1]], axis=1).astype(self.fields.dtype)
        return (cells + self.fields.dtype.type(0.5)) * self.stride, self.fields[at[0] % len(self.fields)]


def split_channels(x: Array, classes: int) -> tuple[Array, Array]:
    """Return views of MS-CNN's maps (N, classes + 4, H, W): the scores and the deltas."""
    return x[:, :classes], x[:, classes:]


class FieldAccuracy(Layer):
    """The fraction of right classes and, optionally, the mean overlap of boxes; -1 if nothing counts.

    top: (1, 1, 1, 2): the fraction of all fields and of those with an object; optionally (1, 1, 1, 1): the mean overlap of the
    latter's boxes. Background with an overlap >= bg_threshold and ignore_label do not count.
    """

    num_top = (1, 2)
    weight_names = ()
    has_gradient = False
    groups: FieldGroups

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for blob, values in zip(top, (2, 1)):
            blob.reshape(1, 1, 1, values)

    def put(self, top: Sequence[Blob], truths: Truths, right: NDArray[np.bool_], moves: Array, unit: int) -> None:
        """Fill in the tops from right classes (N G, H, W) and moves (N G, 4, H, W).

        unit: 1 if a box's last row and column belong to it, else 0.
        """
        kinds, overlaps = self.groups.told(truths.kinds), truths.overlaps
        counts = ~self._ignored(kinds) & ~((kinds == 0) & (overlaps >= self.dtype.type(self.groups.param.bg_threshold)))
        for i, mask in enumerate((counts, counts & (kinds != 0))):
            top[0].data[0, 0, 0, i] = right[mask].mean() if mask.any() else -1
        if len(top) > 1:
            at = np.nonzero((truths.kinds != 0) & ~self._ignored(truths.kinds))
            bounds, (centres, fields) = self.groups.bounds(self.dtype), self.groups.places(at)
            moved = np.clip(moves.transpose(0, 2, 3, 1)[at], -bounds, bounds)
            boxes = np.concatenate([moved[:, :2] * fields + centres, fields * np.exp(moved[:, 2:])], axis=1)
            found = paired_overlaps(corners(boxes, unit), corners(truths.boxes[at], unit), unit)
            top[1].data[...] = found.mean() if len(found) else -1

    def _ignored(self, kinds: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which of these classes are ignored."""
        loss = self.param.loss_param
        return np.asarray(loss.HasField("ignore_label") & (kinds == loss.ignore_label))


BLOCK = "detection_accuracy_param"


class DetectionAccuracy(FieldAccuracy):
    """The fraction of top_k classes, over all fields and those with an object; the mean overlap of the latter's boxes.

    Source: mscnn's detection_accuracy_layer.cpp.

    bottom: x (N, cls_num + 4, H, W), scores and deltas; labels (N, 6, H, W).
    top: (1, 1, 1, 2); optionally (1, 1, 1, 1). -1 if nothing counts. Background with an overlap >= bg_threshold and
    ignore_label do not count. Of equal scores the last class goes first. bbox_reg_param is not read: the deltas count as they
    are. No gradient.
    Raises LayerError for shapes that do not match, sizes, strides and bounds that are not > 0, a coord_num other than 4, and a
    top_k that is not from 1 to cls_num.
    """

    type = "DetectionAccuracy"
    num_bottom = 2
    param_block = (BLOCK, "loss_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.detection_accuracy_param
        self.groups = FieldGroups(self, param, BLOCK, "downsample_rate")
        if not 0 < param.top_k <= param.cls_num:
            raise self.error(f"top_k must be from 1 to cls_num {param.cls_num}, got {param.top_k}", f"{BLOCK}.top_k")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.groups.check(bottom, (self.groups.channels(), 6))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, truths = self.param.detection_accuracy_param, self.groups.truths(bottom[1])
        scores, deltas = split_channels(bottom[0].data, param.cls_num)
        kinds = self.groups.told(truths.kinds)
        known = np.clip(kinds, 0, param.cls_num - 1)
        self.put(top, truths, among_highest(scores, known, param.top_k) & (known == kinds), deltas, unit=0)


GROUP_BLOCK = "detection_group_accuracy_param"


class DetectionGroupAccuracy(FieldAccuracy):
    """The fraction of right classes, over all fields and those with an object; the mean overlap of the latter's boxes.

    Source: cascade-rcnn's detection_group_accuracy_layer.cpp.

    bottom: scores (N G, cls_num, H, W), deltas (N G, 4, H, W), labels (N G, 6, H, W).
    top: (1, 1, 1, 2); optionally (1, 1, 1, 1). -1 if nothing counts. Background with an overlap >= bg_threshold and
    ignore_label do not count. Of equal scores the first class counts. No gradient.
    Raises LayerError for shapes that do not match, and sizes, strides and bounds that are not > 0.
    """

    type = "DetectionGroupAccuracy"
    num_bottom = 3
    param_block = (GROUP_BLOCK, "bbox_reg_param", "loss_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.groups = FieldGroups(self, self.param.detection_group_accuracy_param, GROUP_BLOCK)
        self.means, self.stds = (values.reshape(4, 1, 1) for values in regression_scale(self))

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.groups.check(bottom, (self.param.detection_group_accuracy_param.cls_num, 4, 6))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        truths = self.groups.truths(bottom[2])
        right = bottom[0].data.argmax(axis=1) == self.groups.told(truths.kinds)
        self.put(top, truths, right, bottom[1].data * self.stds + self.means, unit=1)
