"""FrcnnOutput: Cascade R-CNN's detections, of one image's rois, their probabilities and regressions.

    rois moved by the deltas, cut to the image -> per class: probability >= conf_thr, NMS -> the max_det_num best of all classes

Source: Cai and Vasconcelos, Cascade R-CNN (arXiv:1712.00726); cascade-rcnn's frcnn_output_layer.cpp and util/bbox_util.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import bbox_transform_inv, rows
from minicaffe.layers.forks.mscnn.box_output import regression_scale
from minicaffe.layers.proposal.cascade_boxes import suppressed
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.layers.proposal.nms import DIVISORS

BLOCK = "frcnn_output_param"


class FrcnnOutput(DynamicTops):
    """Detections (1 + n, 7, 1, 1): image 0, x1, y1, x2, y2 in pixels, class, probability; the first row is 0 and -1s.

    bottom: probabilities (R, K), background first; deltas (R, 4 K), or (R, 8) with cls_aware: false, of which the last four
    are every class's; rois (R, 5) or (R, 6): 0, x1, y1, x2, y2, both ends inclusive, a sixth number is not read; the image's
    height and width (1, 2). top: detections by class, and by probability, best first; of equal ones the first roi first.
    x2 and y2 are at most the width and height. bbox_reg_param: the deltas' means and stds. nms_type: IOU, or IOMU and IOFU,
    which divide by the smaller and the better box. No gradient.
    Raises LayerError for shapes that do not match, a roi of another image, and one whose end is before its start.
    """

    type = "FrcnnOutput"
    num_bottom = 4
    num_top = 1
    index_bottoms = (0, 1, 2, 3)
    param_block = (BLOCK, "bbox_reg_param")
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        kind = self.param.frcnn_output_param.nms_type
        if kind not in DIVISORS:
            raise self.error(f'nms_type must be one of {", ".join(DIVISORS)}, got "{kind}"', f"{BLOCK}.nms_type")
        self.means, self.stds = regression_scale(self)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        scores, deltas, rois, size = (blob.shape for blob in bottom)
        if len(scores) < 2 or scores[1] < 2 or bottom[0].count != scores[0] * scores[1]:
            raise self.error(f"bottom 0 must be probabilities (R, K) of K > 1 classes, got shape {scores}", "bottom[0]")
        each = 4 * scores[1] if self.param.bbox_reg_param.cls_aware else 8
        for i, shape, wanted in ((1, deltas, (each,)), (2, rois, (5, 6))):
            if shape[:1] != scores[:1] or not any(bottom[i].count == scores[0] * n and shape[1] == n for n in wanted):
                numbers = " or ".join(map(str, wanted))
                raise self.error(
                    f"bottom {i} must be {(scores[0], numbers)}, got shape {shape}".replace("'", ""), f"bottom[{i}]"
                )
        if bottom[3].count != 2:
            raise self.error(f"bottom 3 must be one image's height and width (1, 2), got shape {size}", "bottom[3]")
        top[0].reshape(1, 7, 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, scores = self.param.frcnn_output_param, rows(bottom[0])
        boxes = self._boxes(bottom)
        parts = []
        for label in range(1, scores.shape[1]):
            own, which = scores[:, label], np.flatnonzero(scores[:, label] >= self.dtype.type(param.conf_thr))
            which = which[np.argsort(-own[which], kind="stable")]
            found = boxes[which, label if boxes.shape[1] > 2 else -1]
            best = suppressed(found, param.iou_thr, param.nms_type)
            parts.append(np.column_stack([0 * own[which[best]], found[best], 0 * own[which[best]] + label, own[which[best]]]))
        found = np.concatenate(parts)
        if 0 < param.max_det_num < len(found):
            best = np.argsort(-found[:, 6], kind="stable")[: param.max_det_num]
            found = found[np.sort(best)]
        top[0].reshape(1 + len(found), 7, 1, 1)
        top[0].data[0, :, 0, 0] = (0, *[-1] * 6)
        top[0].data[1:, :, 0, 0] = found

    def _boxes(self, bottom: Sequence[Blob]) -> Array:
        """The corners (R, K or 2, 4) that the deltas give each roi. Raises LayerError for rois that are none."""
        deltas, rois = rows(bottom[1]), rows(bottom[2])
        wrong = (rois[:, 0] != 0) | (rois[:, 3:5] < rois[:, 1:3]).any(axis=1)
        for roi in rois[wrong, :5][:1]:
            given = ", ".join(f"{value:g}" for value in roi)
            raise self.error(f"takes rois of image 0 with x1 <= x2 and y1 <= y2, got {given}", "bottom[2]")
        moved = deltas.reshape(len(deltas), deltas.shape[1] // 4, 4) * self.stds + self.means
        boxes = bbox_transform_inv(rois[:, 1:5], moved.reshape(deltas.shape)).reshape(moved.shape)
        boxes[..., 2:] -= 1  # both ends are inclusive
        np.maximum(boxes[..., :2], 0, out=boxes[..., :2])
        np.minimum(boxes[..., 2:], bottom[3].data.reshape(-1)[::-1], out=boxes[..., 2:])
        return boxes
