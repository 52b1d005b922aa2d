"""DetectionGroupAccuracy: how often Cascade R-CNN's proposals tell their class, and how far they overlap the true boxes.

Source: cascade-rcnn's detection_group_accuracy_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob

from .field_accuracy import FieldAccuracy
from .field_boxes import regression_scale
from .field_groups import FieldGroups

BLOCK = "detection_group_accuracy_param"


class DetectionGroupAccuracy(FieldAccuracy):
    """The fraction of right classes, of all fields and of those with an object; the mean overlap of the latter's boxes.

    bottom: scores (N G, cls_num, H, W), deltas (N G, 4, H, W), labels (N G, 6, H, W) (field_groups.py).
    top: (1, 1, 1, 2); optionally (1, 1, 1, 1). -1 where nothing counts: background with an overlap >= bg_threshold, and
    ignore_label, do not.
    Of equal scores the first class is told. No gradient.
    Raises LayerError for shapes that do not match, and sizes, strides and bounds that are not > 0.
    """

    type = "DetectionGroupAccuracy"
    num_bottom = 3
    index_bottoms = (0, 1, 2)
    param_block = (BLOCK, "bbox_reg_param", "loss_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.groups = FieldGroups(self, self.param.detection_group_accuracy_param, BLOCK)
        self.means, self.stds = (values.reshape(4, 1, 1) for values in regression_scale(self))

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.groups.check(bottom, (self.param.detection_group_accuracy_param.cls_num, 4, 6))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        truths = self.groups.truths(bottom[2])
        right = bottom[0].data.argmax(axis=1) == self.groups.told(truths.kinds)
        self.put(top, truths, right, bottom[1].data * self.stds + self.means, unit=1)
