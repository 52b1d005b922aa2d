"""YOLO v1, and YOLO v2 without its last layer: nets that end in numbers that a script decodes.

    v1: S x S cells, C class probabilities, B boxes of a confidence and x, y, sqrt(w), sqrt(h) in each
        centre = (cell + x, y) / S        size = sqrt^2        score = confidence * probability of the best class
    v2: layers/forks/yolo/yolo.py has the formulas

All classes are suppressed together, as in the scripts:

    caffe-yolo, a convolution's map reshaped to (N, (C + 5 B) S S): overlap > 0.7, where a side of the overlap is x2 - x1 + 1 in
        parts of the image. Source: examples/yolo/show_det.py of yeahkun's (Harick1's) caffe-yolo
    caffe-yolo, an inner product in darknet's order: of each cell its classes, then its confidences, then its boxes;
        overlap > 0.5. Source: yolo_main.py of xingwangsfu/caffe-yolo, which names the first class above its
        threshold; this names the best
    caffe-yolov2: overlap >= 0.45. Source: examples/indoor/eval_detection/test_yolo_v2.py of gklz1982/caffe-yolov2
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error, in_brackets, ways
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.forks.yolo.yolo import best_classes, cells_of, decoded, suppressed
from minicaffe.layers.proposal.nms import PIXELS
from minicaffe.layers.shape.reshape import Flatten, Reshape
from minicaffe.net import Net

from .rows import LastOutput, RowsEnd, RowsFamily, last_output, maker, script_rows, suppressed_rows

SIDE, CLASSES, BOXES = 7, 20, 2
"""The published YOLO v1: cells of a side, classes, boxes of a cell."""
COUNT = SIDE * SIDE * (CLASSES + 5 * BOXES)
SIZE = (448, 448)
STRIDE = 32
"""Pixels of a YOLO v2's cell."""
INDOOR = (0.738768, 0.874946, 2.42204, 2.65704, 4.30971, 7.04493, 10.246, 4.59428, 12.6868, 11.8741)
"""Anchors of caffe-yolov2's net of INDOOR_SHAPE for images of 416 x 416, in cells."""
INDOOR_SHAPE = (70, 13, 13)


class Yolo1(RowsFamily):
    """YOLO v1: nets that end in one number for each class and box of each cell."""

    names = ("YOLO",)

    def end(self, net: Net) -> RowsEnd | None:
        last = last_output(net)
        if last is None or len(net.blobs[last.name].shape) != 2:
            return None
        count = net.blobs[last.name].shape[1]
        if isinstance(last.layer, InnerProduct):
            read = cell_rows if (count, last.size) == (COUNT, SIZE) else None
        elif isinstance(last.layer, Reshape | Flatten):
            read = map_rows if _is_map(net, last) else None
        else:
            read = None
        return read and RowsEnd(last.name, [last.name], CLASSES + 1, read, "a YOLO v1")


def _is_map(net: Net, last: LastOutput) -> bool:
    """Return True if a YOLO v1's map was reshaped. Raises Error for the map of another YOLO v1."""
    cells = net.bottom_names[last.layer.name][0]
    shape = net.blobs[cells].shape[1:]
    if not isinstance(maker(net, cells), Convolution) or len(shape) != 3 or shape[1] != shape[2] or shape[1] == 1:
        return False
    if shape != (CLASSES + 5 * BOXES, SIDE, SIDE) or last.size != SIZE:
        each, height, width = shape
        raise Error(
            f'{net.file}: "{last.name}" has {each * height * width} numbers, {each} for each of {height} x {width} cells, of '
            f"an image of {last.size[0]} x {last.size[1]}; detect supports YOLO v1 with {COUNT} numbers, {CLASSES} + 5 * "
            f"{BOXES} for each of {SIDE} x {SIDE} cells, of an image of {SIZE[0]} x {SIZE[1]}"
        )
    return True


def map_rows(arrays: Sequence[Array]) -> Array:
    """Return the rows left by suppression of (1, 1470), a reshaped map, in which each number of all cells is together."""
    x = arrays[0].reshape(CLASSES + 5 * BOXES, SIDE * SIDE)
    classes, confidences = x[:CLASSES], x[CLASSES : CLASSES + BOXES]
    scores = (confidences * classes.max(axis=0)).T
    labels = np.repeat(classes.argmax(axis=0), BOXES)
    boxes = x[CLASSES + BOXES :].reshape(BOXES, 4, SIDE * SIDE).transpose(2, 0, 1)
    return suppressed_rows(script_rows(yolo1_corners(boxes), scores.reshape(-1), labels), 0.7, PIXELS)


def cell_rows(arrays: Sequence[Array]) -> Array:
    """Return the rows left by suppression of (1, 1470): each cell's classes, then each cell's confidences, then its boxes."""
    x, cells = arrays[0].reshape(-1), SIDE * SIDE
    classes, confidences, boxes = np.split(x, [cells * CLASSES, cells * (CLASSES + BOXES)])
    scores = confidences.reshape(cells, BOXES, 1) * classes.reshape(cells, 1, CLASSES)
    corners = yolo1_corners(boxes.reshape(cells, BOXES, 4))
    return suppressed_rows(script_rows(corners, scores.max(axis=2).reshape(-1), scores.argmax(axis=2).reshape(-1)), 0.5)


def yolo1_corners(boxes: Array) -> Array:
    """Return the corners (S S B, 4), as parts of the image, of boxes (S S, B, 4): x and y in the cell, sqrt(w), sqrt(h)."""
    row, column = np.divmod(np.arange(SIDE * SIDE, dtype=boxes.dtype), SIDE)
    centre = (boxes[..., :2] + np.stack([column, row], axis=1)[:, None]) / boxes.dtype.type(SIDE)
    half = np.square(boxes[..., 2:]) / 2
    return np.concatenate([centre - half, centre + half], axis=2).reshape(-1, 4)


class Yolo2(RowsFamily):
    """YOLO v2 without its last layer: a convolution's map with a cell for each 32 x 32 pixels."""

    names = ("YOLO",)

    def end(self, net: Net) -> RowsEnd | None:
        last = last_output(net)
        if last is None or not isinstance(last.layer, Convolution):
            return None
        name, shape = last.name, net.blobs[last.name].shape[1:]
        if len(shape) != 3 or (shape[1] * STRIDE, shape[2] * STRIDE) != last.size:
            return None
        given = net.settings.test.anchors or (INDOOR if shape == INDOOR_SHAPE else ())
        what = f'{net.file}: "{name}" has {shape[0]} numbers for each of {shape[1]} x {shape[2]} cells'
        if not given:
            way = in_brackets(ways("--anchors", "TEST.ANCHORS of the settings"))
            raise Error(f"{what}: if they are a YOLO v2's, give its anchors in cells{way}")
        count = len(given) // 2
        if shape[0] % count or shape[0] // count <= 5:
            raise Error(f"{what}: a YOLO v2 with {count} anchors has {count} times 5 + its classes")
        anchors = np.array(given, np.float32).reshape(count, 2)
        read = partial(region_rows, anchors=anchors)
        return RowsEnd(name, [name], shape[0] // count - 4, read, "a YOLO v2", settings=("TEST.ANCHORS",))


def region_rows(arrays: Sequence[Array], anchors: Array) -> Array:
    """Return the rows left by suppression of a map (1, K (5 + C), H, W), with anchors (K, 2) in cells."""
    cells = cells_of(arrays[0], len(anchors))
    scores, classes = (x.reshape(-1) for x in best_classes(cells))
    boxes = decoded(cells, anchors, 1).reshape(-1, 4)
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    rows = script_rows(np.concatenate([centre - half, centre + half], axis=1), scores, classes)
    order = np.argsort(-scores, kind="stable")
    return rows[order[suppressed(boxes[order], 0.45)]]
