"""DecodeBBox: rois moved by the regression of a cascade's stage, as the next stage's rois.

    centre' = centre + t_xy size,  size' = size exp(t_wh),  size = x2 - x1 + 1

makefile/frcnn's takes the regression of one class of each roi, with size' to its right and lower end, not size' - 1.
Source: Cai and Vasconcelos, Cascade R-CNN (arXiv:1712.00726); decode_bbox_layer.cpp of cascade-rcnn and mscnn, which are alike,
and of makefile/frcnn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import bbox_transform_inv, rows
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layers.forks.mscnn.box_output import regression_scale
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.mode import TRAIN

CASCADE, MAKEFILE = "Cascade R-CNN", "makefile/frcnn"


class DecodeBBox(DynamicTops, Forked):
    """Rois moved by the regression of the one foreground class; while training only those of use to the next stage.

    bottom: deltas (R, 8): the background's, unused, then t_x, t_y, t_w, t_h; rois (R, 5): image, x1, y1, x2, y2 in pixels, both
    ends inclusive; in TRAIN optionally the boxes (R, G) that they were matched with, whose last column is the overlap.
    top: rois (R', 5, 1, 1). TEST: R' = R. TRAIN: without rois whose end is before their start, and without those whose overlap
    is decode_bbox_param.gt_iou_thr or more (true boxes that were added to the rois); R' may be 0.
    bbox_reg_param: the deltas' means and stds; cls_aware has no effect. No gradient.
    makefile/frcnn's bottom: deltas (R, 4 K) of K classes, their scores (R, K), rois (R, 5). A roi's class is the last one whose
    score is above class 1's, else class 1, as in the fork; 0 is the background. No overlap counts.
    Raises LayerError for shapes that do not match, and for three bottoms of Cascade R-CNN's in TEST.
    """

    type = "DecodeBBox"
    num_bottom = (2, 3)
    num_top = 1
    param_block = ("decode_bbox_param", "bbox_reg_param")
    weight_names = ()
    has_gradient = False
    kinds = (
        Kind(CASCADE, ("cascade", "mscnn"), "deltas (R, 8), rois"),
        Kind(MAKEFILE, ("mkfrcnn",), "deltas (R, 4 K), scores (R, K), rois"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        columns = [math.prod(blob.shape[1:]) for blob in bottom]
        self.is_by_class = len(columns) == 3 and columns[0] == 4 * columns[1] >= 8
        """Whether it is makefile/frcnn's."""
        if self.is_by_class:
            self.choose(MAKEFILE, f"deltas and scores of {columns[1]} classes")
        elif len(bottom) == 3 and self.phase != TRAIN:
            raise self.error("takes the matched boxes, bottom 2, in phase TRAIN only", "bottom[2]")
        self.means, self.stds = regression_scale(self)
        self.makes_rois = self.phase == TRAIN
        self.index_bottoms = tuple(range(len(bottom)))

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        classes = math.prod(bottom[1].shape[1:])
        wanted = (4 * classes, classes, 5) if self.is_by_class else (8, 5, 0)
        for i, (blob, columns) in enumerate(zip(bottom, wanted, strict=False)):
            if len(blob.shape) < 2 or math.prod(blob.shape[1:]) != (columns or max(1, blob.shape[1])):
                least = f"{columns} values" if columns else "one overlap at least"
                raise self.error(f"bottom {i} must have {least} a roi, got shape {blob.shape}", f"bottom[{i}]")
            if blob.shape[0] != bottom[0].shape[0]:
                raise self.error(f"bottoms 0 and {i} are of {bottom[0].shape[0]} and {blob.shape[0]} rois", f"bottom[{i}]")
        top[0].reshape(bottom[0].shape[0], 5, 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        deltas, *_, rois = (rows(blob) for blob in (bottom if self.is_by_class else bottom[:2]))
        deltas = self._of_class(deltas, rows(bottom[1])) if self.is_by_class else deltas[:, 4:]
        boxes = bbox_transform_inv(rois[:, 1:], deltas * self.stds + self.means)
        if not self.is_by_class:
            boxes[:, 2:] -= 1  # both ends are inclusive
        dropped = np.zeros(len(boxes), bool)
        if self.phase == TRAIN:
            dropped |= (boxes[:, :2] > boxes[:, 2:]).any(axis=1)
        if len(bottom) == 3 and not self.is_by_class:
            dropped |= rows(bottom[2])[:, -1] >= self.param.decode_bbox_param.gt_iou_thr
        kept = np.flatnonzero(~dropped)
        top[0].reshape(len(kept), 5, 1, 1)
        top[0].data[:, 0, 0, 0] = rois[kept, 0]
        top[0].data[:, 1:, 0, 0] = boxes[kept]

    def _of_class(self, deltas: Array, scores: Array) -> Array:
        """Of each roi the four deltas of its class."""
        above = scores[:, 1:] > scores[:, 1:2]
        last = scores.shape[1] - 1 - above[:, ::-1].argmax(axis=1)
        chosen = np.where(above.any(axis=1), last, 1)
        return np.asarray(deltas.reshape(len(deltas), -1, 4)[np.arange(len(deltas)), chosen])
