"""DecodeBBox: rois moved by the regression of a cascade's stage, as the next stage's rois.

    centre' = centre + t_xy size,  size' = size exp(t_wh),  size = x2 - x1 + 1

Source: Cai and Vasconcelos, Cascade R-CNN (arXiv:1712.00726); decode_bbox_layer.cpp of cascade-rcnn and mscnn, which are alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.data.boxes import bbox_transform_inv, rows
from minicaffe.layer import Layer
from minicaffe.mode import TRAIN

from .boxes.field_boxes import regression_scale


class DecodeBBox(Layer):
    """Rois moved by the regression of the one foreground class; while training only those of use to the next stage.

    bottom: deltas (R, 8): the background's, unused, then t_x, t_y, t_w, t_h; rois (R, 5): image, x1, y1, x2, y2 in pixels, both
    ends inclusive; in TRAIN optionally the boxes (R, G) that they were matched with, whose last column is the overlap.
    top: rois (R', 5, 1, 1). TEST: R' = R. TRAIN: without rois whose end is before their start, and without those whose overlap
    is decode_bbox_param.gt_iou_thr or more (true boxes that were added to the rois); R' may be 0.
    bbox_reg_param: the deltas' means and stds; cls_aware has no effect. No gradient.
    Raises LayerError for shapes that do not match, and for three bottoms in TEST.
    """

    type = "DecodeBBox"
    num_bottom = (2, 3)
    num_top = 1
    param_block = ("decode_bbox_param", "bbox_reg_param")
    weight_names = ()
    has_gradient = False
    found_axis = 0

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom) == 3 and self.phase != TRAIN:
            raise self.error("takes the matched boxes, bottom 2, in phase TRAIN only", "bottom[2]")
        self.means, self.stds = regression_scale(self)
        self.makes_rois = self.phase == TRAIN
        self.index_bottoms = tuple(range(len(bottom)))

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for i, (blob, columns) in enumerate(zip(bottom, (8, 5, 0), strict=False)):
            if len(blob.shape) < 2 or math.prod(blob.shape[1:]) != (columns or max(1, blob.shape[1])):
                wanted = f"{columns} values" if columns else "one overlap at least"
                raise self.error(f"bottom {i} must have {wanted} a roi, got shape {blob.shape}", f"bottom[{i}]")
            if blob.shape[0] != bottom[0].shape[0]:
                raise self.error(f"bottoms 0 and {i} are of {bottom[0].shape[0]} and {blob.shape[0]} rois", f"bottom[{i}]")
        top[0].reshape(bottom[0].shape[0], 5, 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        deltas, rois = (rows(blob) for blob in bottom[:2])
        boxes = bbox_transform_inv(rois[:, 1:], deltas[:, 4:] * self.stds + self.means)
        boxes[:, 2:] -= 1  # both ends are inclusive
        dropped = np.zeros(len(boxes), bool)
        if self.phase == TRAIN:
            dropped |= (boxes[:, :2] > boxes[:, 2:]).any(axis=1)
        if len(bottom) == 3:
            dropped |= rows(bottom[2])[:, -1] >= self.param.decode_bbox_param.gt_iou_thr
        kept = np.flatnonzero(~dropped)
        top[0].reshape(len(kept), 5, 1, 1)
        top[0].data[:, 0, 0, 0] = rois[kept, 0]
        top[0].data[:, 1:, 0, 0] = boxes[kept]
