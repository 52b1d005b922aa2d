"""DetectionAccuracy: how often MS-CNN's proposals tell their class, and how far they overlap the true boxes.

Source: mscnn's detection_accuracy_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layers.metric.accuracy import among_highest

from .field_accuracy import FieldAccuracy
from .field_groups import FieldGroups, split_channels

BLOCK = "detection_accuracy_param"


class DetectionAccuracy(FieldAccuracy):
    """The fraction of classes among the top_k highest scores, of all fields and of those with an object; the latter's overlap.

    bottom: x (N, cls_num + 4, H, W), scores and deltas; labels (N, 6, H, W) (field_groups.py).
    top: (1, 1, 1, 2); optionally (1, 1, 1, 1). -1 where nothing counts: background with an overlap >= bg_threshold, and
    ignore_label, do not.
    Of equal scores the last class goes first. bbox_reg_param is not read: the deltas count as they are. No gradient.
    Raises LayerError for shapes that do not match, sizes, strides and bounds that are not > 0, a coord_num other than 4, and a
    top_k that is not from 1 to cls_num.
    """

    type = "DetectionAccuracy"
    num_bottom = 2
    index_bottoms = (0, 1)
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
