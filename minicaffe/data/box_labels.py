"""Boxes stored with an image in a Datum, as in YOLO's forks; random parts of the image with the boxes centred in them.

float_data holds six numbers for each box: class from 0, difficult, and centre and size, of which 1 is the image's size.
Source: data_transformer.cpp of yeahkun/caffe-yolo and choasup/caffe-yolo9000.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2

from .image_bytes import Pixels, resized

F = np.float32
SHARES = 30
"""A part takes 71 to 100 hundredths of a side."""
LEAST = 3
"""Pixels of a side from which every part has one."""


def boxes_of(datum: caffe_pb2.Datum) -> Array:
    """Return the boxes (G, 6) of a Datum, float32. Raises DataError."""
    values = np.array(datum.float_data, F)
    if not values.size or values.size % 6:
        raise DataError(f"{values.size} box numbers are stored: each box has 6, and each image needs a box")
    rows = values.reshape(-1, 6)
    if not np.isfinite(rows).all():
        raise DataError("a box is not finite")
    if (wrong := rows[(rows[:, 0] < 0) | (rows[:, 0] != np.floor(rows[:, 0]))]).size:
        raise DataError(f"a box has class {wrong[0, 0]:g}; classes are whole numbers from 0")
    if (wrong := rows[(rows[:, 1] != 0) & (rows[:, 1] != 1)]).size:
        raise DataError(f"a box is marked difficult by {wrong[0, 1]:g}, neither 0 nor 1")
    if (wrong := rows[((rows[:, 2:4] < 0) | (rows[:, 2:4] > 1)).any(axis=1)]).size:
        raise DataError(f"a box's centre, {wrong[0, 2]:g}, {wrong[0, 3]:g}, is not in the image, 0 to 1")
    return rows


def random_part(image: Pixels, boxes: Array, random: np.random.Generator) -> tuple[Pixels, Array]:
    """Return a random part of an image (H, W, C), resized to the image's size, and the boxes (G, 6) whose centres are in it.

    The boxes are relative to the part.

    Parts are drawn until one has a box's centre. Corners are whole pixels, cut. Raises DataError where no part can have one.
    """
    high, wide = image.shape[:2]
    if min(high, wide) < LEAST:
        raise DataError(f"an image of {wide} x {high} pixels is too small to crop: give one of at least {LEAST} x {LEAST}")
    pixels = (boxes[:, 2:] * np.array([wide, high] * 2, F)).astype(np.int64)
    if not ((pixels[:, 0] < wide - 1) & (pixels[:, 1] < high - 1)).any():
        raise DataError("every box has its centre in the last row or column, so no crop can contain one")
    while True:
        share = F(1.0 - int(random.integers(SHARES)) / 100.0)
        width, height = (int(F(length) * share) - 1 for length in (wide, high))
        left, top = int(random.integers(wide - width)), int(random.integers(high - height))
        x, y = pixels[:, 0] - left, pixels[:, 1] - top
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        if inside.any():
            break
    moved = boxes[inside].copy()
    places = np.column_stack([x, y, pixels[:, 2:]])[inside].astype(F)
    moved[:, 2:] = places / np.array([width, height] * 2, F)
    return resized(image[top : top + height, left : left + width], high, wide), moved


def cells_of_boxes(boxes: Array, side: int) -> Array:
    """Return boxes (G, 6) as caffe-yolo's labels (7 side^2,), for side x side cells.

    They hold, each for all cells: difficult, whether there is a box, its class (-1: none), its centre and size. If several
    boxes have their centres in one cell, the last counts.
    """
    difficult, there, kinds = np.zeros(side * side, F), np.zeros(side * side, F), np.full(side * side, -1, F)
    places = np.zeros((side * side, 4), F)
    for row in boxes:
        x, y = (min(int(np.floor(at * F(side))), side - 1) for at in row[2:4])
        cell = side * y + x
        difficult[cell], there[cell], kinds[cell], places[cell] = row[1], 1, row[0], row[2:]
    return np.concatenate([difficult, there, kinds, places.ravel()])


def rows_of_boxes(boxes: Array, most: int) -> Array:
    """Return boxes (G, 6) as caffe-yolov2's labels (5 most,): class, centre and size of each, then 0.

    Raises DataError for more.
    """
    if len(boxes) > most:
        raise DataError(f"{len(boxes)} boxes are stored, and labels hold {most}")
    labels = np.zeros((most, 5), F)
    labels[: len(boxes)] = boxes[:, [0, 2, 3, 4, 5]]
    return labels.ravel()
