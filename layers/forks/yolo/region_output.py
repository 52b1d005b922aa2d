"""caffe-yolov2's DetectionOutput: YOLOv2's cells to rows (image, class from 0, score, centre x, centre y, width, height).

    boxes and scores as in yolo.py -> score >= confidence_threshold -> in the order of the cells, the best score or not, a box
    goes if its overlap with a kept one, both clipped to the image, is >= nms_threshold

Source: detection_output_layer.cpp and region_loss_layer.hpp of gklz1982/caffe-yolov2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.ssd.detection_output import DetectionOutput

from .yolo import best_classes, cells_of, decoded, pairs, suppressed

LEAST_SCORE = 0.01
"""confidence_threshold's default in the fork; SSD's has none."""
BLOCK = "detection_output_param"


class CellDetectionOutput(DetectionOutput):
    """Detections (1, 1, n, 7) in cells, of one image; one row (0, -1, ...) where there is none.

    bottom: x (1, num_box * (5 + num_classes), side, side). top: rows. biases: the anchors' widths and heights, in cells.
    Raises LayerError for fields that mean nothing, anchors whose number is not num_box, and another shape.
    """

    of_cells = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.choose("caffe-yolov2", "1 bottom")
        param = self.param.detection_output_param
        if not (param.num_classes and param.num_box):
            raise self.error("needs num_classes > 0 and num_box > 0", BLOCK)
        if param.coords != 4:
            raise self.error(f"coords must be 4, got {param.coords}", f"{BLOCK}.coords")
        self.anchors = pairs(self, param.biases, f"{BLOCK}.biases")
        if len(self.anchors) != param.num_box:
            wrong = f"{len(self.anchors)} anchors given in biases for num_box {param.num_box}"
            raise self.error(wrong, f"{BLOCK}.biases")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.detection_output_param
        wanted = (1, param.num_box * (5 + param.num_classes), param.side, param.side)
        if bottom[0].shape != wanted:
            cells = f"{param.num_box} boxes of 5 + {param.num_classes} numbers in each of side x side cells"
            raise self.error(f"the bottom must have the shape {wanted}, {cells}; got {bottom[0].shape}", "bottom[0]")
        top[0].reshape(1, 1, 1, 7)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        rows = self._rows(bottom[0].data)
        top[0].reshape(1, 1, len(rows), 7)
        top[0].data[0, 0] = rows

    def _rows(self, x: Array) -> Array:
        """The detections (n, 7) in x (1, K * (5 + C), S, S)."""
        param = self.param.detection_output_param
        cells = cells_of(x, len(self.anchors))
        scores, classes = best_classes(cells)
        which = scores >= (param.confidence_threshold if param.HasField("confidence_threshold") else LEAST_SCORE)
        boxes = decoded(cells, self.anchors, 1)[which]
        low, high = (np.clip(boxes[:, :2] + sign * boxes[:, 2:] / 2, 0, 1) for sign in (-1, 1))
        kept = suppressed(np.concatenate([(low + high) / 2, high - low], axis=1), param.nms_threshold)
        if not len(kept):
            return np.array([[0, *[-1] * 6]], x.dtype)
        return np.column_stack([np.zeros(len(kept)), classes[which][kept], scores[which][kept], boxes[kept]])
