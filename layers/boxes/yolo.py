"""YOLO's cells to detections, as MobileNet-YOLO's two layers do it.

    centre = (cell + sigmoid(t_xy)) / cells        size = anchor exp(t_wh) / (cells, or the image's pixels)
    all boxes of all images and classes together, best score first: one goes if its overlap with a kept one is >= nms_threshold

Source: Redmon and Farhadi, YOLO9000 (arXiv:1612.08242), YOLOv3 (arXiv:1804.02767); yolo_detection_output_layer.cpp and
yolov3_detection_output_layer.cpp of MobileNet-YOLO.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer
from minicaffe.layers.sigmoid import sigmoid


class YoloOutput(Layer):
    """Detections (1, 1, n, 7), one a row: 0, class from 1, score, xmin, ymin, xmax, ymax (1 is the image's width or height).

    A layer of the family writes `found`. Where there is none: one row for each image, its number and then -1 throughout.
    """

    num_top = 1
    weight_names = ()
    has_gradient = False
    found_axis = 2

    def found(self, bottom: Sequence[Blob]) -> tuple[Array, Array, Array]:
        """The boxes (n, 4) as centre and size, their scores (n,) and classes (n,), before suppression."""
        raise NotImplementedError

    def check_cells(self, bottom: Sequence[Blob], boxes: int, classes: int, others: int = 5) -> None:
        """Each bottom has others + classes channels for each of a cell's boxes, and as many images. Raises LayerError."""
        for i, blob in enumerate(bottom):
            if len(blob.shape) != 4 or blob.shape[1] != boxes * (others + classes):
                wanted = f"(N, {boxes * (others + classes)}, H, W): {boxes} boxes of {others} + {classes} numbers a cell"
                raise self.error(f"bottom {i} must be {wanted}; got shape {blob.shape}", f"bottom[{i}]")
            if blob.shape[0] != bottom[0].shape[0]:
                raise self.error(f"bottoms 0 and {i} have {bottom[0].shape[0]} and {blob.shape[0]} images", f"bottom[{i}]")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(1, 1, 1, 7)

    def put(self, bottom: Sequence[Blob], top: Sequence[Blob], threshold: float) -> None:
        """Write the detections that suppression leaves."""
        boxes, scores, classes = self.found(bottom)
        order = np.argsort(-scores, kind="stable")
        boxes, scores, classes = boxes[order], scores[order], classes[order]
        kept = suppressed(boxes, threshold)
        centre, half = boxes[kept, :2], boxes[kept, 2:] / 2
        rows = np.column_stack([np.zeros(len(kept)), classes[kept] + 1, scores[kept], centre - half, centre + half])
        if not len(rows):
            rows = np.full((bottom[0].shape[0], 7), -1.0)
            rows[:, 0] = np.arange(len(rows))
        top[0].reshape(1, 1, len(rows), 7)
        top[0].data[0, 0] = rows


def pairs(layer: Layer, biases: Sequence[float], field: str) -> Array:
    """The anchors' widths and heights (K, 2). Raises LayerError for an odd number of them."""
    if len(biases) % 2:
        raise layer.error(f"biases must be pairs of a width and a height, got {len(biases)} numbers", field)
    return np.array(biases, layer.dtype).reshape(-1, 2)


def best_classes(cells: Array) -> tuple[Array, Array]:
    """Of cells (..., 5 + C): sigmoid(t_o) times the best class's softmax (...), and that class (...)."""
    weights = np.exp(cells[..., 5:] - cells[..., 5:].max(axis=-1, keepdims=True))
    scores: Array = sigmoid(cells[..., 4]) * weights.max(axis=-1) / weights.sum(axis=-1)
    return scores, weights.argmax(axis=-1)


def cells_of(x: Array, boxes: int) -> Array:
    """A bottom (N, boxes * K, H, W) as (N, H, W, boxes, K)."""
    n, channels, h, w = x.shape
    cells: Array = x.reshape(n, boxes, channels // boxes, h, w).transpose(0, 3, 4, 1, 2)
    return cells


def decoded(cells: Array, anchors: Array, pixels: float) -> Array:
    """The boxes (N, H, W, boxes, 4) as centre and size, of anchors (boxes, 2) in pixels, so many of which are a cell's side."""
    h, w = cells.shape[1:3]
    size = np.array([w, h], cells.dtype)
    corner = np.stack(np.meshgrid(np.arange(w), np.arange(h)), axis=-1).astype(cells.dtype)
    centre = (corner[:, :, None] + sigmoid(cells[..., :2])) / size
    extent = np.exp(cells[..., 2:4]) * anchors / (size * cells.dtype.type(pixels))
    return np.concatenate([centre, extent], axis=-1)


def suppressed(boxes: Array, threshold: float) -> list[int]:
    """The rows of boxes (n, 4), centre and size, that stay, of those in order of their scores.

    A box comes once for each class. What suppresses its best row suppresses the others, and else that row does: they go first.
    """
    low, high, area = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2, boxes[:, 2] * boxes[:, 3]

    def overlap(rows: NDArray[np.intp], others: NDArray[np.intp] | np.intp) -> NDArray[np.bool_]:
        sides = np.minimum(high[rows], high[others]) - np.maximum(low[rows], low[others])
        shared = np.where((sides < 0).any(axis=1), 0, sides[:, 0] * sides[:, 1])
        with np.errstate(all="ignore"):
            enough: NDArray[np.bool_] = shared / (area[rows] + area[others] - shared) >= threshold
        return enough

    left, kept = np.arange(len(boxes)), list[int]()
    repeated = np.setdiff1d(left, np.unique(boxes, axis=0, return_index=True)[1])
    left = np.delete(left, repeated[overlap(repeated, repeated)])
    while len(left):
        first, left = left[0], left[1:]
        kept.append(int(first))
        left = left[~overlap(left, first)]
    return kept
