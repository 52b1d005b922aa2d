"""YOLO's cells and their labels, as the first version has them: a class for each cell, and several boxes.

    x (N, (C + 5 B) S^2): the cells' probabilities of C classes, then the confidences of B boxes, then x, y, w, h of each box
    labels (N, 7 S^2): whether a cell's object is difficult, whether it has one, its class from 0, then centre and size by cell
    constriant: x and y count from the cell's corner, in cells; sqrt: w and h are the sides' square roots

Source: Redmon et al., YOLO (arXiv:1506.02640); detection_loss_layer.cpp and eval_detection_layer.cpp of yeahkun/caffe-yolo, as
its forks have them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer


class Cells(NamedTuple):
    """Views of x: probabilities (N, S^2, C), confidences (N, S^2, B), boxes (N, S^2, B, 4) as x has them."""

    classes: Array
    confidences: Array
    boxes: Array


class Labels(NamedTuple):
    """difficult, there (N, S^2), kinds (N, S^2), boxes (N, S^2, 4): centre and size, 1 is the image's size."""

    difficult: NDArray[np.bool_]
    there: NDArray[np.bool_]
    kinds: NDArray[np.intp]
    boxes: Array


def check_cells(layer: Layer, x: Blob, labels: Blob, param: Any, block: str) -> None:
    """Raises LayerError for a side, num_class or num_object of 0, and for bottoms of other sizes."""
    if not (param.side and param.num_class and param.num_object):
        raise layer.error("needs side, num_class and num_object > 0", block)
    cells, images = param.side**2, x.shape[0] if x.shape else 0
    for i, blob, each in ((0, x, param.num_class + 5 * param.num_object), (1, labels, 7)):
        if not blob.shape or blob.shape[0] != images or blob.count != images * cells * each:
            wanted = f"({images}, {cells * each}): {each} numbers for each of {param.side} x {param.side} cells"
            raise layer.error(f"bottom {i} must be {wanted}; got shape {blob.shape}", f"bottom[{i}]")


def cells_of_images(x: Array, classes: int, objects: int) -> Cells:
    """The views of x (N, ...)."""
    flat = x.reshape(len(x), classes + 5 * objects, math.prod(x.shape[1:]) // (classes + 5 * objects))
    boxes = flat[:, classes + objects :].reshape(len(x), objects, 4, flat.shape[2])
    ends = classes, classes + objects
    return Cells(flat[:, : ends[0]].swapaxes(1, 2), flat[:, ends[0] : ends[1]].swapaxes(1, 2), boxes.transpose(0, 3, 1, 2))


def read_labels(layer: Layer, blob: Blob, classes: int) -> Labels:
    """The labels in a blob. Raises LayerError for an object of a class that is unknown."""
    flat = blob.data.reshape(blob.shape[0], 7, math.prod(blob.shape[1:]) // 7)
    there = flat[:, 1] != 0
    given = flat[:, 2][there]
    for value in given[~((given >= 0) & (given < classes) & (given == np.floor(given)))][:1]:
        raise layer.error(f"{value:g} is no class from 0 to {classes - 1}", "bottom[1]")
    kinds = np.where(there, flat[:, 2], 0).astype(np.intp)
    return Labels(flat[:, 0] == 1, there, kinds, flat[:, 3:].reshape(len(flat), flat.shape[2], 4))


def placed(boxes: Array, param: Any) -> Array:
    """Boxes (N, S^2, B, 4) as centre and size, 1 being the image's size."""
    cell = np.arange(param.side**2)
    corner = np.stack([cell % param.side, cell // param.side], axis=1).astype(boxes.dtype)[:, None]
    centre = (corner + boxes[..., :2]) / boxes.dtype.type(param.side) if param.constriant else boxes[..., :2]
    return np.concatenate([centre, boxes[..., 2:] ** 2 if param.sqrt else boxes[..., 2:]], axis=-1)


def centre_overlaps(boxes: Array, others: Array) -> Array:
    """Intersection over union (N, K) of boxes (N, 4) with others (K, 4), centre and size; NaN of two without an area."""
    low, high = (boxes[:, None, :2] + sign * boxes[:, None, 2:] / 2 for sign in (-1, 1))
    other_low, other_high = (others[None, :, :2] + sign * others[None, :, 2:] / 2 for sign in (-1, 1))
    sides = np.minimum(high, other_high) - np.maximum(low, other_low)
    shared = np.where((sides < 0).any(axis=-1), 0, sides[..., 0] * sides[..., 1])
    areas = (boxes[:, 2] * boxes[:, 3])[:, None] + (others[:, 2] * others[:, 3])[None]
    with np.errstate(all="ignore"):
        found: Array = np.where((sides < 0).any(axis=-1), 0, shared / (areas - shared))
    return found
