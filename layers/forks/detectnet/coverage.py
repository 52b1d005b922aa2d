"""Labels of DetectNet: for each cell of a grid the box that covers it.

    covered: the middle of a box, scale_cvg times its size; each side is limited:
        GRIDBOX_MIN: at least min_cvg_len, but no more than the box        GRIDBOX_MAX: at most max_cvg_len
    a cell belongs to the last box whose covered part reaches into it

Source: NVIDIA/caffe's src/caffe/util/detectnet_coverage_rectangular.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.proto import caffe_pb2

Param = caffe_pb2.DetectNetGroundTruthParameter
FIXED = 8
"""The channels before the classes': foreground, the box's four ends, 1 / width, 1 / height, the object's norm."""
LEAST = float(np.finfo(np.float32).eps)
"""The least area of a box, and the least part of a cell, that counts."""
KITTI = {1: 0}
"""The classes without object_class: KITTI's cars."""


@dataclass
class Coverage:
    """The grid of an image, and the maps of its labels."""

    param: Param

    def __post_init__(self) -> None:
        param = self.param
        self.classes = {mapping.src: mapping.dst for mapping in param.object_class} or KITTI
        self.image = (float(param.image_size_x), float(param.image_size_y))
        # rounded, a half to the even number, as OpenCV makes whole points of a size
        self.columns, self.rows = (round(side / param.stride) for side in self.image)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an image's maps: channels, rows, columns."""
        return FIXED + max(self.classes.values()) + 1, self.rows, self.columns

    def maps(self, boxes: Array, classes: NDArray[Any]) -> Array:
        """Return the maps (channels, rows, columns) of boxes (n, 4), left, upper, width, height, and their classes (n,)."""
        maps = np.zeros(self.shape)
        for box, kind in zip(boxes, classes, strict=True):
            ends = np.concatenate([box[:2], box[:2] + box[2:]])
            if self.param.crop_bboxes:
                ends = np.clip(ends, 0, [*self.image] * 2)
            width, height = ends[2:] - ends[:2]
            if kind in self.classes and np.isfinite(ends).all() and min(width, height) > 0 and width * height >= LEAST:
                self._add(maps, ends, self.classes[kind])
        return maps

    def covered(self, ends: Array) -> Array:
        """Return the ends of the part that a box covers, from the ends (4,) of the box."""
        param, size = self.param, ends[2:] - ends[:2]
        sides = size * param.scale_cvg
        if param.gridbox_type == Param.GRIDBOX_MIN:
            sides = np.minimum(size, np.maximum(param.min_cvg_len, sides))
        else:
            sides = np.minimum(param.max_cvg_len, sides)
        centre = (ends[:2] + ends[2:]) / 2
        return np.concatenate([centre - sides / 2, centre + sides / 2])

    def _add(self, maps: Array, ends: Array, channel: int) -> None:
        """Write a box to the cells of maps that it covers."""
        stride, part = self.param.stride, self.covered(ends)
        (x, wide), (y, high) = (self._cells(part[i::2], count) for i, count in ((0, self.columns), (1, self.rows)))
        inside = np.outer(high, wide) / stride**2 > LEAST
        rows, columns = (indices + start for indices, start in zip(np.nonzero(inside), (y, x), strict=True))
        corners = np.stack([columns, rows, columns, rows]) * stride
        area = (part[2] - part[0]) * (part[3] - part[1])
        cells = maps[:, rows, columns]
        cells[0] = 1
        cells[1:5] = ends[:, None] - corners
        cells[5], cells[6] = 1 / (ends[2:] - ends[:2])
        if len(rows):
            cells[7] = max(0.0 if self.param.obj_norm else 1.0, stride**2 / area)
        cells[FIXED:] = 0
        cells[FIXED + channel] = 1
        maps[:, rows, columns] = cells

    def _cells(self, ends: Array, count: int) -> tuple[int, Array]:
        """Return the first cell of those that a part of an axis touches, and how much of each it fills, in pixels."""
        stride = self.param.stride
        low, high = ends.clip(0, count * stride)
        first = math.floor(low / stride)
        edges = np.arange(first, math.ceil(high / stride) + 1) * stride
        return first, (np.minimum(edges[1:], high) - np.maximum(edges[:-1], low)).clip(0)
