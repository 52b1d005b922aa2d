"""BboxAccuracy: how far the regressed rois of a training batch overlap the boxes that they were matched with.

    mean intersection over union of foreground rois, but those with an overlap above 0.975 (true boxes that were added)

Source: cascade-rcnn's bbox_accuracy_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.data.boxes import bbox_transform_inv, rows
from minicaffe.layer import Layer
from minicaffe.layers.forks.mscnn.box_output import regression_scale
from minicaffe.layers.proposal.cascade_boxes import paired_overlaps

MOST = 0.975
"""An overlap above which a roi counts as a true box."""


class BboxAccuracy(Layer):
    """The mean overlap of the regressed rois, and of the rois before it.

    bottom: deltas (R, 4 K), or (R, 8) with cls_aware: false; rois (R, 5): image, x1, y1, x2, y2; matches (R, 6): class, 0 for
    background, the true box, its overlap. top: (1, 1, 1, 1) after, optionally (1, 1, 1, 1) before; -1 if no roi counts.
    bbox_reg_param: the deltas' means and stds. No gradient.
    Raises LayerError for shapes that do not match, and a class without deltas.
    """

    type = "BboxAccuracy"
    num_bottom = 3
    num_top = (1, 2)
    index_bottoms = (0, 1, 2)
    param_block = ("bbox_reg_param",)
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.means, self.stds = regression_scale(self)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, columns = bottom[0].shape[0], bottom[0].shape[1:2] or (0,)
        aware = self.param.bbox_reg_param.cls_aware
        for i, (each, what) in enumerate(((columns[0] if aware else 8, "4 K" if aware else "8"), (5, "5"), (6, "6"))):
            if bottom[i].count != count * each or bottom[i].shape[:1] != (count,) or (i == 0 and each % 4):
                raise self.error(f"bottom {i} must be ({count}, {what}), got shape {bottom[i].shape}", f"bottom[{i}]")
        for blob in top:
            blob.reshape(1, 1, 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        deltas, rois, matches = (rows(blob) for blob in bottom)
        counted = np.flatnonzero((matches[:, 0] > 0) & (matches[:, 5] <= self.dtype.type(MOST)))
        rois, true, kinds = rois[counted, 1:], matches[counted, 1:5], matches[counted, 0]
        kinds = kinds if self.param.bbox_reg_param.cls_aware else np.ones_like(kinds)
        for kind in kinds[kinds >= deltas.shape[1] // 4][:1]:
            raise self.error(f"class {kind:g} has no deltas: there are those of {deltas.shape[1] // 4}", "bottom[2]")
        own = deltas.reshape(len(deltas), deltas.shape[1] // 4, 4)[counted, kinds.astype(np.intp)]
        moved = bbox_transform_inv(rois, own * self.stds + self.means)
        moved[:, 2:] -= 1  # both ends are inclusive
        for blob, boxes in zip(top, (moved, rois)):
            blob.data[...] = paired_overlaps(boxes, true).mean() if len(counted) else -1
