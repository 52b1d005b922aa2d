"""DetectionGroupAccuracy: how often Cascade R-CNN's proposals tell their class, and how far they overlap the true boxes.

Source: cascade-rcnn's detection_group_accuracy_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layer import Layer

from .boxes.cascade_boxes import corners, paired_overlaps
from .boxes.field_groups import FieldGroups

BLOCK = "detection_group_accuracy_param"


class DetectionGroupAccuracy(Layer):
    """The fraction of right classes, of all fields and of those with an object; the mean overlap of the latter's boxes.

    bottom: scores (N G, cls_num, H, W), deltas (N G, 4, H, W), labels (N G, 6, H, W) (boxes/field_groups.py).
    top: (1, 1, 1, 2); optionally (1, 1, 1, 1). -1 where nothing counts: background with an overlap >= bg_threshold, and
    ignore_label, do not.
    Of equal scores the first class is told. No gradient.
    Raises LayerError for shapes that do not match, and sizes, strides and bounds that are not > 0.
    """

    type = "DetectionGroupAccuracy"
    num_bottom = 3
    num_top = (1, 2)
    index_bottoms = (0, 1, 2)
    param_block = (BLOCK, "bbox_reg_param", "loss_param")
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.detection_group_accuracy_param
        self.groups = FieldGroups(self, param, BLOCK)
        if not (param.field_whr > 0 and param.field_xyr > 0):
            raise self.error("needs field_whr and field_xyr > 0", BLOCK)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.groups.check(bottom)
        for blob, values in zip(top, (2, 1)):
            blob.reshape(1, 1, 1, values)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, loss = self.param.detection_group_accuracy_param, self.param.loss_param
        truths = self.groups.truths(bottom[2])
        kinds = self.groups.told(truths.kinds)
        ignored = loss.HasField("ignore_label")
        counts = ~((kinds == 0) & (truths.overlaps >= self.dtype.type(param.bg_threshold)))
        counts &= ~(ignored & (kinds == loss.ignore_label))
        right = bottom[0].data.argmax(axis=1) == kinds
        for i, mask in enumerate((counts, counts & (kinds != 0))):
            top[0].data[0, 0, 0, i] = right[mask].mean() if mask.any() else -1
        if len(top) > 1:
            at = np.nonzero((truths.kinds != 0) & ~(ignored & (truths.kinds == loss.ignore_label)))
            moves = bottom[1].data.transpose(0, 2, 3, 1)[at] * self.groups.stds + self.groups.means
            bounds, (centres, fields) = self.groups.bounds(self.dtype), self.groups.places(at)
            moves = np.clip(moves, -bounds, bounds)
            boxes = np.concatenate([moves[:, :2] * fields + centres, fields * np.exp(moves[:, 2:])], axis=1)
            overlaps = paired_overlaps(corners(boxes), corners(truths.boxes[at]))
            top[1].data[...] = overlaps.mean() if len(overlaps) else -1
