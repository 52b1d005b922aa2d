"""YoloDetectionOutput and Yolov3DetectionOutput: detections from YOLO's cells, by MobileNet-YOLO's two layers.

    centre = (cell + sigmoid(t_xy)) / cells        size = anchor exp(t_wh) / (cells, or the image's pixels)
    all boxes of all images and classes together, best score first: one goes if its overlap with a kept one is >= nms_threshold

Source: Redmon and Farhadi, YOLO9000 (arXiv:1612.08242), YOLOv3 (arXiv:1804.02767); yolo_detection_output_layer.cpp and
yolov3_detection_output_layer.cpp of MobileNet-YOLO.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer
from minicaffe.layers.neuron.functions import sigmoid
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.layers.proposal.nms import Measure, kept_boxes


class YoloOutput(DynamicTops):
    """Detections (1, 1, n, 7), one a row: 0, class from 1, score, xmin, ymin, xmax, ymax (1 is the image's width or height).

    Subclasses define `found`. Without detections there is one row for each image: its number, then -1s.
    """

    num_top = 1
    weight_names = ()
    has_gradient = False
    dynamic_axis = 2

    def found(self, bottom: Sequence[Blob]) -> tuple[Array, Array, Array, Array]:
        """Return the boxes before suppression (m, 4), centre and size, and each row's (n,) box, score and class."""
        raise NotImplementedError

    def check_cells(self, bottom: Sequence[Blob], boxes: int, classes: int, others: int = 5) -> None:
        """Raise LayerError unless each bottom has bottom 0's images, and others + classes channels for each box of a cell."""
        for i, blob in enumerate(bottom):
            if len(blob.shape) != 4 or blob.shape[1] != boxes * (others + classes):
                wanted = f"(N, {boxes * (others + classes)}, H, W): {boxes} boxes of {others} + {classes} numbers a cell"
                raise self.error(f"bottom {i} must be {wanted}; got shape {blob.shape}", f"bottom[{i}]")
            if blob.shape[0] != bottom[0].shape[0]:
                raise self.error(f"bottoms 0 and {i} have {bottom[0].shape[0]} and {blob.shape[0]} images", f"bottom[{i}]")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(1, 1, 1, 7)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        threshold = getattr(self.param, self.param_block[0]).nms_threshold
        boxes, of, scores, classes = self.found(bottom)
        order = np.argsort(-scores, kind="stable")
        kept = order[suppressed_rows(boxes, of[order], threshold)]
        centre, half = boxes[of[kept], :2], boxes[of[kept], 2:] / 2
        rows = np.column_stack([np.zeros(len(kept)), classes[kept] + 1, scores[kept], centre - half, centre + half])
        if not len(rows):
            rows = np.full((bottom[0].shape[0], 7), -1.0)
            rows[:, 0] = np.arange(len(rows))
        top[0].reshape(1, 1, len(rows), 7)
        top[0].data[0, 0] = rows


def pairs(layer: Layer, biases: Sequence[float], field: str) -> Array:
    """Return the anchors' widths and heights (K, 2). Raises LayerError for an odd number of them."""
    if len(biases) % 2:
        raise layer.error(f"biases must be pairs of a width and a height, got {len(biases)} numbers", field)
    return np.array(biases, layer.dtype).reshape(-1, 2)


def best_classes(cells: Array) -> tuple[Array, Array]:
    """Return the score (...) and number (...) of the best class of cells (..., 5 + C).

    The score is sigmoid(t_o) times the class's softmax.
    """
    weights = np.exp(cells[..., 5:] - cells[..., 5:].max(axis=-1, keepdims=True))
    scores: Array = sigmoid(cells[..., 4]) * weights.max(axis=-1) / weights.sum(axis=-1)
    return scores, weights.argmax(axis=-1)


def cells_of(x: Array, boxes: int) -> Array:
    """Return a bottom (N, boxes * K, H, W) as (N, H, W, boxes, K)."""
    n, channels, h, w = x.shape
    cells: Array = x.reshape(n, boxes, channels // boxes, h, w).transpose(0, 3, 4, 1, 2)
    return cells


def decoded(cells: Array, anchors: Array, pixels: float) -> Array:
    """Return the boxes (N, H, W, boxes, 4), centre and size.

    anchors (boxes, 2) are in pixels; a cell's side is `pixels` long.
    """
    h, w = cells.shape[1:3]
    size = np.array([w, h], cells.dtype)
    corner = np.stack(np.meshgrid(np.arange(w), np.arange(h)), axis=-1).astype(cells.dtype)
    centre = (corner[:, :, None] + sigmoid(cells[..., :2])) / size
    extent = np.exp(cells[..., 2:4]) * anchors / (size * cells.dtype.type(pixels))
    return np.concatenate([centre, extent], axis=-1)


def suppressed_rows(boxes: Array, of: Array, threshold: float) -> Array:
    """Return which rows remain, in order of their scores.

    boxes (m, 4): centre and size; of (n,): the box of each row. A box has a row for each class. If its best row is suppressed,
    so are the others; else it suppresses them, unless the box has no area.
    """
    rows = np.arange(len(of))
    best = np.zeros(len(boxes), np.intp)
    best[of[::-1]] = rows[::-1]
    corners, area = _corners(boxes)
    shared = np.maximum(corners[:, 2:] - corners[:, :2], 0).prod(axis=1)
    with np.errstate(all="ignore"):
        suppresses_itself = shared / (area + area - shared) > _below(threshold, boxes)
    left = rows[(best[of] == rows) | ~suppresses_itself[of]]
    kept: Array = left[suppressed(boxes[of[left]], threshold)]
    return kept


def suppressed(boxes: Array, threshold: float) -> NDArray[np.intp]:
    """Return the rows that remain of boxes (n, 4), centre and size, which are in order of their scores."""
    return kept_boxes(*_corners(boxes), _below(threshold, boxes), Measure(unit=0))


def _corners(boxes: Array) -> tuple[Array, Array]:
    """Return the corners (n, 4) and areas (n,) of boxes (n, 4), centre and size."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1), boxes[:, 2] * boxes[:, 3]


def _below(threshold: float, boxes: Array) -> Any:
    """Return the greatest number below threshold in the boxes' type: an overlap equal to threshold is suppressed."""
    return np.nextafter(boxes.dtype.type(threshold), boxes.dtype.type(-np.inf))


class YoloDetectionOutput(YoloOutput):
    """Detections (1, 1, n, 7), one a row: 0, class from 1, score, xmin, ymin, xmax, ymax (1 is the image's size). No gradient.

    YOLOv2's: a box's score is sigmoid(t_o) times its best class's softmax.

    bottom: one or two maps (N, num_box * (5 + num_classes), S, S), of each cell's boxes: x, y, w, h, objectness, classes. top:
    detections of all images together, best score first; without any, a row for each image, its number and then -1 throughout.
    yolo_detection_output_param: biases, the anchors' widths and heights in cells; confidence_threshold, the least score;
    nms_threshold, the overlap from which a box goes, whatever its image and class. side and label_map_file have no effect.
    Raises LayerError for shapes that do not match, a map that is not square, and another number of anchors than num_box.
    """

    type = "YoloDetectionOutput"
    num_bottom = (1, 2)
    param_block = ("yolo_detection_output_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, block = self.param.yolo_detection_output_param, "yolo_detection_output_param"
        if not (param.num_classes and param.num_box):
            raise self.error("needs num_classes > 0 and num_box > 0", block)
        if param.coords != 4:
            raise self.error(f"coords must be 4, got {param.coords}", f"{block}.coords")
        self.sizes = pairs(self, param.biases, f"{block}.biases")
        if len(self.sizes) != param.num_box:
            raise self.error(f"{len(self.sizes)} anchors given in biases for num_box {param.num_box}", block)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        param = self.param.yolo_detection_output_param
        self.check_cells(bottom, param.num_box, param.num_classes)
        for i, blob in enumerate(bottom):
            if blob.shape[2] != blob.shape[3]:
                raise self.error(f"bottom {i} must be square maps, got shape {blob.shape}", f"bottom[{i}]")

    def found(self, bottom: Sequence[Blob]) -> tuple[Array, Array, Array, Array]:
        least, parts = self.param.yolo_detection_output_param.confidence_threshold, []
        for blob in bottom:
            cells = cells_of(blob.data, len(self.sizes))
            scores, best = best_classes(cells)
            which = scores >= least
            parts.append((decoded(cells, self.sizes, 1)[which], scores[which], best[which]))
        boxes, scores, classes = (np.concatenate(arrays) for arrays in zip(*parts))
        return boxes, np.arange(len(boxes)), scores, classes


BLOCK = "yolov3_detection_output_param"


class Yolov3DetectionOutput(YoloOutput):
    """Detections (1, 1, n, 7), one a row: 0, class from 1, score, xmin, ymin, xmax, ymax (1 is the image's size). No gradient.

    YOLOv3's: a row for each class, scored sigmoid(t_o) sigmoid(t_class). With gaussian_box each of x, y, w, h is followed by
    its uncertainty, and the score is less by their mean:

        sigmoid(t_o) sigmoid(t_class) (1 - (u_x + u_y + u_w + u_h) / 4),  u = sigmoid(t_u)

    Source of gaussian_box: Choi et al., Gaussian YOLOv3 (arXiv:1904.04620), and the fork's device code. Its code for the CPU
    multiplies by a number that it never wrote in place of sigmoid(t_o), and detects nothing where that is 0.

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
