"""YOLOv2's loss: a delta for each number of each box, and the gradient of the sum of their squares.

With s = sigmoid(x) of a box's centre and objectness, p the softmax of its classes, and t a true box in the cell's terms:

    centre       -scale (t - s) s (1 - s)          size     -scale (t - x)
    objectness   -scale (t - s) s (1 - s)          class    -class_scale ([its class] - p)

Source: region_loss_layer.cpp of MobileNet-YOLO and of caffe-yolov2, after darknet's region_layer.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layers.neuron.sigmoid import sigmoid

OBJECT, CLASSES = 4, 5
"""Where a box's objectness is, and where its classes begin; before them are x, y, w, h."""


@dataclass(frozen=True)
class Scales:
    """Weights of the four terms. rescore: the objectness of a matched box is to be its overlap, not 1. favours_small: the term
    of its place grows for small boxes."""

    object: float
    no_object: float
    classes: float
    coordinates: float
    rescore: bool
    favours_small: bool


class Deltas:
    """The deltas of cells (N, S, S, K, 5 + C) with anchors (K, 2) in cells, and half the gradient of their squares' sum."""

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
        """The sum of all squares."""
        return float(np.square(self.values, dtype=np.float64).sum())

    def no_object(self, image: int, truths: Array, scale: float, thresh: float) -> None:
        """Objectness of 0 for all boxes of an image, but those that overlap one of truths (T, 5) by more than thresh."""
        overlaps = overlap(self.boxes[image][..., None, :], truths[:, 1:])[0] if len(truths) else np.zeros(1)
        s = np.where(overlaps.max(axis=-1, initial=0) > thresh, 0, self.s[image, ..., 2])
        self.values[image, ..., OBJECT] = scale * s * s * (1 - s)
        self.slopes[image, ..., OBJECT] = self.values[image, ..., OBJECT] * scale * s * (2 - 3 * s) * s * (1 - s)

    def anchors_in_place(self, scale: float) -> None:
        """Every box is to be its anchor in the middle of its cell."""
        self._place(..., np.array([0.5, 0.5, 0, 0]), scale)

    def match(self, image: int, truth: Array, scales: Scales, *, by_anchor: bool) -> None:
        """The box of a true one's cell that is most of its shape is to be it, which replaces what it was to be."""
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
        by_x = by_box * np.concatenate([centre * (1 - centre) / self.side, box[2:]])  # through the overlap, the target
        self.slopes[at][:OBJECT] -= value * scales.object * slope * by_x


def overlap(box: Array, truth: Array) -> tuple[Array, Array]:
    """Intersection over union of boxes (..., 4) as centre and size, (...), and its gradient in the first (..., 4)."""
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
    """The rows before the first one with a 0 in this column."""
    empty = np.flatnonzero(rows[:, column] == 0)
    return rows[: empty[0]] if len(empty) else rows
