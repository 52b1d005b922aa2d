"""Yolov3DetectionOutput: YOLOv3's cells to detections, a row for each class, scored sigmoid(t_o) sigmoid(t_class).

With gaussian_box each of x, y, w, h is followed by its uncertainty, and the score is less by their mean:
    sigmoid(t_o) sigmoid(t_class) (1 - (u_x + u_y + u_w + u_h) / 4),  u = sigmoid(t_u)

The formula of boxes and suppression, and the source, are in yolo.py; of gaussian_box Choi et al., Gaussian YOLOv3
(arXiv:1904.04620), and the fork's device code. Its code for the CPU multiplies by a number that it never wrote in place of
sigmoid(t_o), and detects nothing where that is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.neuron.sigmoid import sigmoid

from .yolo import YoloOutput, cells_of, decoded, pairs

BLOCK = "yolov3_detection_output_param"


class Yolov3DetectionOutput(YoloOutput):
    """Detections (1, 1, n, 7), one a row: 0, class from 1, score, xmin, ymin, xmax, ymax (1 is the image's size). No gradient.

    bottom: mask_group_num maps (N, num_box * (5 + num_classes), H, W), of each cell's boxes: x, y, w, h, objectness, classes;
    with gaussian_box (N, num_box * (9 + num_classes), H, W): x, u_x, y, u_y, w, u_w, h, u_h, objectness, classes.
    top: detections of all images together, best score first; without any, a row for each image, its number and then -1s.
    yolov3_detection_output_param: biases, the anchors' widths and heights in pixels; mask, which num_box of them each map has;
    anchors_scale, how many pixels a cell of each map has; confidence_threshold, which a score must pass; nms_threshold, the
    overlap from which a box goes, whatever its image and class.
    Raises LayerError for shapes that do not match, and numbers of anchors, masks and scales that do not.
    """

    type = "Yolov3DetectionOutput"
    num_bottom = (1, None)
    param_block = (BLOCK,)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.index_bottoms = tuple(range(len(bottom)))
        param = self.param.yolov3_detection_output_param
        if not (param.num_classes and param.num_box):
            raise self.error("needs num_classes > 0 and num_box > 0", BLOCK)
        if param.mask_group_num != len(bottom):
            raise self.error(f"mask_group_num is {param.mask_group_num} for {len(bottom)} bottoms", f"{BLOCK}.mask_group_num")
        if len(param.mask) != len(bottom) * param.num_box:
            wanted = f"mask must list {param.num_box} anchors (num_box) for each of {len(bottom)} bottoms"
            raise self.error(f"{wanted}, got {len(param.mask)}", f"{BLOCK}.mask")
        if len(param.anchors_scale) != len(bottom):
            wrong = f"{len(param.anchors_scale)} anchors_scale given for {len(bottom)} bottoms"
            raise self.error(wrong, f"{BLOCK}.anchors_scale")
        anchors = pairs(self, param.biases, f"{BLOCK}.biases")
        if max(param.mask) >= len(anchors):
            raise self.error(f"mask names anchor {max(param.mask)}; biases give {len(anchors)}", f"{BLOCK}.mask")
        self.sizes = anchors[np.array(param.mask)].reshape(len(bottom), param.num_box, 2)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        param = self.param.yolov3_detection_output_param
        self.check_cells(bottom, param.num_box, param.num_classes, 9 if param.gaussian_box else 5)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.put(bottom, top, self.param.yolov3_detection_output_param.nms_threshold)

    def found(self, bottom: Sequence[Blob]) -> tuple[Array, Array, Array, Array]:
        param, parts, before = self.param.yolov3_detection_output_param, [], 0
        for blob, sizes, pixels in zip(bottom, self.sizes, param.anchors_scale, strict=True):
            cells = cells_of(blob.data, param.num_box)
            certainty: Array | float = 1.0
            if param.gaussian_box:
                certainty = 1 - sigmoid(cells[..., 1:8:2]).mean(axis=-1, keepdims=True)
                cells = np.concatenate([cells[..., 0:8:2], cells[..., 8:]], axis=-1)
            scores = sigmoid(cells[..., 5:]) * sigmoid(cells[..., 4:5]) * certainty
            scores = scores.reshape(-1, param.num_classes)
            of, classes = np.nonzero(scores > param.confidence_threshold)
            parts.append((decoded(cells, sizes, pixels).reshape(-1, 4), before + of, scores[of, classes], classes))
            before += len(scores)
        boxes, of, scores, classes = (np.concatenate(arrays) for arrays in zip(*parts))
        return boxes, of, scores, classes
