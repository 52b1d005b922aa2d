"""caffe-yolov2's DetectionOutput: YOLOv2's cells to rows (image, class from 0, score, centre x, centre y, width, height).

    boxes and scores as in yolo.py -> score >= confidence_threshold -> in the order of the cells, the best score or not, a box
    goes if its overlap with a kept one, both clipped to the image, is >= nms_threshold

Source: detection_output_layer.cpp and region_loss_layer.hpp of gklz1982/caffe-yolov2.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .yolo import best_classes, cells_of, decoded, pairs, suppressed

LEAST_SCORE = 0.01
"""confidence_threshold's default in the fork; SSD's has none."""
BLOCK = "detection_output_param"
FIELDS = ("side", "num_box", "coords", "nms_threshold", "biases", "label_map_file")
"""The fields that SSD's lacks."""


def region_anchors(layer: Layer) -> Array:
    """The anchors (K, 2). Raises LayerError for fields that mean nothing, and for anchors whose number is not num_box."""
    param = layer.param.detection_output_param
    if not (param.num_classes and param.num_box):
        raise layer.error("needs num_classes > 0 and num_box > 0", BLOCK)
    if param.coords != 4:
        raise layer.error(f"coords must be 4, got {param.coords}", f"{BLOCK}.coords")
    anchors = pairs(layer, param.biases, f"{BLOCK}.biases")
    if len(anchors) != param.num_box:
        raise layer.error(f"{len(anchors)} anchors given in biases for num_box {param.num_box}", f"{BLOCK}.biases")
    return anchors


def check_region(layer: Layer, bottom: Blob) -> None:
    """Raises LayerError for a bottom that is not one image's map of side x side cells."""
    param = layer.param.detection_output_param
    wanted = (1, param.num_box * (5 + param.num_classes), param.side, param.side)
    if bottom.shape != wanted:
        cells = f"{param.num_box} boxes of 5 + {param.num_classes} numbers in each of side x side cells"
        raise layer.error(f"the bottom must have the shape {wanted}, {cells}; got {bottom.shape}", "bottom[0]")


def region_rows(x: Array, anchors: Array, param: caffe_pb2.DetectionOutputParameter) -> Array:
    """The detections (n, 7) in x (1, K * (5 + C), S, S); the fork's row of -1s where there is none."""
    cells = cells_of(x, len(anchors))
    scores, classes = best_classes(cells)
    which = scores >= (param.confidence_threshold if param.HasField("confidence_threshold") else LEAST_SCORE)
    boxes = decoded(cells, anchors, 1)[which]
    low, high = (np.clip(boxes[:, :2] + sign * boxes[:, 2:] / 2, 0, 1) for sign in (-1, 1))
    kept = suppressed(np.concatenate([(low + high) / 2, high - low], axis=1), param.nms_threshold)
    if not len(kept):
        return np.array([[0, *[-1] * 6]], x.dtype)
    return np.column_stack([np.zeros(len(kept)), classes[which][kept], scores[which][kept], boxes[kept]])
