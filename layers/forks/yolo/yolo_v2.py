"""YOLOv2: RegionLoss, with a delta for each number of each box; and caffe-yolov2's DetectionOutput.

With s = sigmoid(x) of a box's centre and objectness, p the softmax of its classes, and t a true box in the cell's terms:

    centre       -scale (t - s) s (1 - s)          size     -scale (t - x)
    objectness   -scale (t - s) s (1 - s)          class    -class_scale ([its class] - p)

DetectionOutput turns cells to rows (image, class from 0, score, centre x, centre y, width, height):

    boxes and scores of the cells -> score >= confidence_threshold -> in the order of the cells, the best score or not, a box
    goes if its overlap with a kept one, both clipped to the image, is >= nms_threshold

Source: region_loss_layer.cpp of MobileNet-YOLO and of caffe-yolov2, after darknet's region_layer.c; detection_output_layer.cpp
and region_loss_layer.hpp of gklz1982/caffe-yolov2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layer import Costs, data_bytes
from minicaffe.layers.forks.yolo.yolo import best_classes, cells_of, decoded, pairs, suppressed
from minicaffe.layers.loss.loss import Loss
from minicaffe.layers.neuron.functions import sigmoid
from minicaffe.layers.ssd.detection_output import DetectionOutput

OBJECT, CLASSES = 4, 5
"""The index of a box's objectness, and that of its first class. x, y, w, h come before them."""


@dataclass(frozen=True)
class Scales:
    """The weights of the four terms.

    rescore: a matched box's target objectness is its overlap, not 1. favours_small: its position's term grows for small boxes.
    """

    object: float
    no_object: float
    classes: float
    coordinates: float
    rescore: bool
    favours_small: bool


class Deltas:
    """The deltas of cells (N, S, S, K, 5 + C) with anchors (K, 2) in cells, and half the gradient of their sum of squares."""

    def __init__(self, cells: Array, anchors: Array) -> None:
        self.cells, self.anchors, self.side = cells, anchors, cells.shape[1]
        self.s = np.concatenate([sigmoid(cells[..., :2]), sigmoid(cells[..., OBJECT:CLASSES])], axis=-1)
        weights = np.exp(cells[..., CLASSES:] - cells[..., CLASSES:].max(axis=-1, keepdims=True))
        self.p = weights / weights.sum(axis=-1, keepdims=True)
        across = np.arange(self.side)
        corner = np.stack(np.meshgrid(across, across), axis=-1)[:, :, None].astype(cells.dtype)
        extent = np.exp(cells[..., 2:4]) * anchors
        self.boxes = np.concatenate([corner + self.s[..., :2], extent], axis=-1) / cells.dtype.type(self.side)
        """Predicted boxes (N, S, S, K, 4): centre and size, of an image that is 1 wide and high."""
        self.values = np.zeros_like(cells)
        self.slopes = np.zeros_like(cells)

    @property
    def loss(self) -> float:
        """Return the sum of all squares."""
        return float(np.square(self.values, dtype=np.float64).sum())

    def no_object(self, image: int, truths: Array, scale: float, thresh: float) -> None:
        """Set the target objectness to 0, except for boxes that overlap one of truths (T, 5) by more than thresh."""
        overlaps = overlap(self.boxes[image][..., None, :], truths[:, 1:])[0] if len(truths) else np.zeros(1)
        s = np.where(overlaps.max(axis=-1, initial=0) > thresh, 0, self.s[image, ..., 2])
        self.values[image, ..., OBJECT] = scale * s * s * (1 - s)
        self.slopes[image, ..., OBJECT] = self.values[image, ..., OBJECT] * scale * s * (2 - 3 * s) * s * (1 - s)

    def anchors_in_place(self, scale: float) -> None:
        """Set every box's target to its anchor in the middle of its cell."""
        self._place(..., np.array([0.5, 0.5, 0, 0]), scale)

    def match(self, image: int, truth: Array, scales: Scales, *, by_anchor: bool) -> None:
        """Match a true box with the box of its cell whose shape overlaps it most. This replaces that box's target."""
        kind, (x, y, w, h) = int(truth[0]), truth[1:]
        column, row = int(x * self.side), int(y * self.side)
        shapes = self.anchors / self.side if by_anchor else self.boxes[image, row, column, :, 2:]
        shared = np.minimum(shapes, truth[3:]).prod(axis=-1)
        best = int(np.argmax(shared / (shapes.prod(axis=-1) + w * h - shared)))
        at = image, row, column, best
        size = np.log(truth[3:] * self.side / self.anchors[best])
        target = np.array([x * self.side - column, y * self.side - row, *size])
        self._place(at, target, scales.coordinates * (2 - w * h if scales.favours_small else 1))
        self._object(at, truth[1:], scales)
        p = self.p[at]
        values = scales.classes * (p - (np.arange(len(p)) == kind))
        self.values[at][CLASSES:] = values
        self.slopes[at][CLASSES:] = scales.classes * p * (values - values @ p)

    def _place(self, at: Any, target: Array, scale: float) -> None:
        s, x = self.s[at][..., :2], self.cells[at][..., 2:4]
        off, slope = target[:2] - s, s * (1 - s)
        self.values[at][..., :2] = -scale * off * slope
        self.slopes[at][..., :2] = self.values[at][..., :2] * scale * (slope - off * (1 - 2 * s)) * slope
        self.values[at][..., 2:4] = -scale * (target[2:] - x)
        self.slopes[at][..., 2:4] = self.values[at][..., 2:4] * scale

    def _object(self, at: tuple[int, ...], truth: Array, scales: Scales) -> None:
        s, box = self.s[at][2], self.boxes[at]
        target, by_box = overlap(box, truth) if scales.rescore else (1.0, np.zeros(4))
        slope = s * (1 - s)
        value = self.values[at][OBJECT] = -scales.object * (target - s) * slope
        self.slopes[at][OBJECT] = value * scales.object * (slope - (target - s) * (1 - 2 * s)) * slope
        centre = self.s[at][:2]
        # the target depends on x through the overlap
        by_x = by_box * np.concatenate([centre * (1 - centre) / self.side, box[2:]])
        self.slopes[at][:OBJECT] -= value * scales.object * slope * by_x


def overlap(box: Array, truth: Array) -> tuple[Array, Array]:
    """Return the intersection over union (...) of boxes (..., 4), centre and size, and its gradient in box (..., 4)."""
    low, high = box[..., :2] - box[..., 2:] / 2, box[..., :2] + box[..., 2:] / 2
    true_low, true_high = truth[..., :2] - truth[..., 2:] / 2, truth[..., :2] + truth[..., 2:] / 2
    sides = np.minimum(high, true_high) - np.maximum(low, true_low)
    meet = np.asarray((sides >= 0).all(axis=-1))
    shared = np.where(meet, sides.prod(axis=-1), 0)
    union = box[..., 2:].prod(axis=-1) + truth[..., 2:].prod(axis=-1) - shared
    at_high, at_low = (high < true_high).astype(box.dtype), (low > true_low).astype(box.dtype)
    by_sides = np.where(meet[..., None], sides[..., ::-1], 0)
    by_shared = np.concatenate([by_sides * (at_high - at_low), by_sides * (at_high + at_low) / 2], axis=-1)
    by_area = np.concatenate([np.zeros_like(sides), np.broadcast_to(box[..., :1:-1], sides.shape)], axis=-1)
    u, i = union[..., None], shared[..., None]
    return shared / union, (by_shared * (u + i) - i * by_area) / (u * u)


def until_zero(rows: NDArray[np.floating], column: int) -> NDArray[np.floating]:
    """Return the rows before the first row with 0 in this column."""
    empty = np.flatnonzero(rows[:, column] == 0)
    return rows[: empty[0]] if len(empty) else rows


FIRST_IMAGES = 12800
"""While fewer images have been seen, each box is also trained towards its anchor."""
YOLO, YOLO2 = "MobileNet-YOLO", "caffe-yolov2"
YOLO2_BOXES = 30
"""Truths of an image in caffe-yolov2, which accepts no other number."""


class RegionLoss(Forked, Loss):
    """The sum of squared deltas of all boxes: MobileNet-YOLO's, divided by the number of images, or caffe-yolov2's.

    bottom: x (N, num * (5 + num_class), S, S), of each cell's boxes: x, y, w, h, objectness, classes; truths (N, 5 T), T boxes
    an image: class from 0, centre, width, height (1 is the image's size), with 0 after the last. top: loss ().
    A truth is matched with the box of its cell whose anchor (bias_match: 0: whose size) is most of its shape; a later one of
    the same box replaces it. All other boxes are to have no object, but those that overlap a truth by more than thresh.
    The first 12800 images also draw every box to its anchor. biases: the anchors' widths and heights in cells.
    caffe-yolov2's, chosen by the net's fork, else by 30 truths an image, is not divided. It computes as with rescore 0, but
    the place of a small box counts no more than that of others.
    side, softmax, jitter, absolute and random have no effect, as in the fork.
    Raises LayerError for shapes that do not match, another number of anchors than num, a softmax_tree or class_map, and a
    truth whose centre is not in the image, whose size is not above 0, or whose class is unknown.
    """

    type = "RegionLoss"
    index_bottoms = (1,)
    stateful = True
    param_block = ("region_loss_param",)
    kinds = (
        Kind(YOLO, ("yolo",), "divided by the number of images"),
        Kind(YOLO2, ("yolov2",), f"{YOLO2_BOXES} truths an image, not divided"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, block = self.param.region_loss_param, "region_loss_param"
        if not (param.num and param.num_class):
            raise self.error("needs num > 0 and num_class > 0", block)
        if param.coords != OBJECT:
            raise self.error(f"coords must be 4, got {param.coords}", f"{block}.coords")
        for name in ("softmax_tree", "class_map"):
            if getattr(param, name):
                raise self.error(f"{name} is not built; leave it out if classes are numbered from 0", f"{block}.{name}")
        if len(param.biases) != 2 * param.num:
            raise self.error(f"biases must be {param.num} pairs of a width and a height, as num says", f"{block}.biases")
        if min(param.biases) <= 0:
            raise self.error(f"biases must be > 0, got {min(param.biases):g}", f"{block}.biases")
        self.anchors = np.array(param.biases, self.dtype).reshape(-1, 2)
        weights = param.object_scale, param.noobject_scale, param.class_scale, param.coord_scale
        self.is_yolo2 = self._kind(bottom[1]) == YOLO2
        rescore = bool(param.rescore) and not self.is_yolo2
        self.scales = Scales(*weights, rescore=rescore, favours_small=not (param.rescore or self.is_yolo2))
        self.forwards = 0
        """The number of forwards so far."""

    def _kind(self, truths: Blob) -> str:
        if kind := self.choose_by_fork():
            return kind
        return self.choose(YOLO2, f"{YOLO2_BOXES} truths") if math.prod(truths.shape[1:]) == YOLO2_BOXES * CLASSES else YOLO

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        param, x, truths = self.param.region_loss_param, bottom[0].shape, bottom[1].shape
        channels = param.num * (CLASSES + param.num_class)
        if len(x) != 4 or x[1] != channels or x[2] != x[3] or not x[2]:
            wanted = f"(N, {channels}, S, S): {param.num} boxes of 5 + {param.num_class} numbers a cell"
            raise self.error(f"x must be {wanted}; got shape {x}", "bottom[0]")
        if truths[:1] != x[:1] or math.prod(truths[1:]) % 5:
            raise self.error(f"the truths must be ({x[0]}, 5 T), 5 numbers a box; got shape {truths}", "bottom[1]")

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(saved=data_bytes(bottom[:1]), working=6 * data_bytes(bottom[:1]))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, images = self.param.region_loss_param, bottom[0].shape[0]
        deltas = Deltas(np.ascontiguousarray(cells_of(bottom[0].data, param.num)), self.anchors)
        if images and self.forwards < FIRST_IMAGES // images:
            deltas.anchors_in_place(0.01)
        rows = bottom[1].data.reshape(images, bottom[1].count // max(1, images) // CLASSES, CLASSES)
        for image in range(images):
            deltas.no_object(image, until_zero(rows[image], 1), param.noobject_scale, param.thresh)
            for truth in until_zero(rows[image], 3):
                self._check(truth, image)
                deltas.match(image, truth, self.scales, by_anchor=bool(param.bias_match))
        top[0].data[...] = deltas.loss / self._divisor(images)
        self._slopes = deltas.slopes
        self.forwards += 1

    def _check(self, truth: Array, image: int) -> None:
        kind, x, y, w, h = truth.tolist()
        classes = self.param.region_loss_param.num_class
        if not (0 <= kind < classes and kind == int(kind)):
            raise self.error(f"image {image}: {kind:g} is no class from 0 to {classes - 1}", "bottom[1]")
        if not (0 <= x < 1 and 0 <= y < 1 and 0 < w < math.inf and 0 < h < math.inf):
            box = f"a centre ({x:g}, {y:g}) and size {w:g} x {h:g}"
            raise self.error(f"image {image}: a box must have its centre in [0, 1) and a size > 0, got {box}", "bottom[1]")

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            cells = cells_of(bottom[0].diff, len(self.anchors))
            np.multiply(self._slopes, 2 * float(top[0].diff.item()) / self._divisor(cells.shape[0]), out=cells)

    def _divisor(self, images: int) -> int:
        return 1 if self.is_yolo2 else max(1, images)

    def training_state(self) -> dict[str, Any]:
        return {"forwards": self.forwards}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        self.forwards = Fields(state).whole("forwards", 0, MOST)


LEAST_SCORE = 0.01
"""The fork's default of confidence_threshold. SSD's has none."""
BLOCK = "detection_output_param"


class CellDetectionOutput(DetectionOutput):
    """Detections (1, 1, n, 7) of one image, in cells; one row (0, -1, ...) if there are none.

    bottom: x (1, num_box * (5 + num_classes), side, side). top: rows. biases: the anchors' widths and heights, in cells. Raises
    LayerError for fields without effect, anchors whose number is not num_box, and another shape.
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
        """Return the detections (n, 7) in x (1, K * (5 + C), S, S)."""
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
