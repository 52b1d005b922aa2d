"""How often MS-CNN's and Cascade R-CNN's proposals tell their class, and how far they overlap the true boxes.

Source: mscnn's detection_accuracy_layer.cpp, cascade-rcnn's detection_group_accuracy_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer
from minicaffe.layers.proposal.cascade_boxes import corners, paired_overlaps

from .field_groups import FieldGroups, Truths


class FieldAccuracy(Layer):
    """top: (1, 1, 1, 2), the fraction of right classes, of all fields and of those with an object; optionally (1, 1, 1, 1), the
    mean overlap of the latter's boxes. -1 where nothing counts: background with an overlap >= bg_threshold, and ignore_label,
    do not.
    """

    num_top = (1, 2)
    weight_names = ()
    has_gradient = False
    groups: FieldGroups

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for blob, values in zip(top, (2, 1)):
            blob.reshape(1, 1, 1, values)

    def put(self, top: Sequence[Blob], truths: Truths, right: NDArray[np.bool_], moves: Array, unit: int) -> None:
        """The tops of right classes (N G, H, W) and moves (N G, 4, H, W).

        unit: 1 where a box's last row and column belong to it, 0 where not.
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
        """Which of these classes do not count."""
        loss = self.param.loss_param
        return np.asarray(loss.HasField("ignore_label") & (kinds == loss.ignore_label))
