"""The losses of MS-CNN's and Cascade R-CNN's proposals.

    mean of -log p of the counted fields' classes, weighted;  lambda mean of h(t - t*) of the counted fields with an object
    t* = ((centre - cell's centre) / field, log(max(size, 2) / field)), less the means, over the stds
    h(d) = d^2 / 2 where |d| < 1, else |d| - 1 / 2; or d^2 / 2 everywhere

Source: mscnn's detection_loss_layer.cpp, cascade-rcnn's detection_group_loss_layer.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layer import Layer

from .field_boxes import regression_scale
from .field_groups import FieldGroups, Truths

Places = tuple[NDArray[np.intp], ...]
"""Maps, rows and columns (n,) of fields."""


class FieldLosses(FieldGroups):
    """The fields of a layer whose block also has lambda. Raises LayerError for bad ones, and for a bad bbox_reg_param."""

    def __init__(self, layer: Layer, param: Any, block: str, stride: str = "stride") -> None:
        super().__init__(layer, param, block, stride)
        self.means, self.stds = regression_scale(layer)

    def normalised_bounds(self) -> tuple[Array, Array]:
        """The least and the largest delta (4,), as if x and y, and width and height, had the same mean and std."""
        means, stds = self.means.reshape(2, 2), self.stds.reshape(2, 2)
        mean, std = np.repeat(means.mean(axis=1), 2), np.repeat(np.sqrt(stds.prod(axis=1)), 2)
        most = self.bounds(self.fields.dtype)
        return (-most - mean) / std, (most - mean) / std

    def targets(self, truths: Truths, at: Places) -> Array:
        """What the deltas at these places should be (n, 4)."""
        boxes, (centres, fields) = truths.boxes[at], self.places(at)
        moves = np.concatenate([(boxes[:, :2] - centres) / fields, np.log(np.maximum(boxes[:, 2:], 2) / fields)], axis=1)
        encoded: Array = (moves - self.means) / self.stds
        return encoded

    def class_loss(
        self, probabilities: Array, kinds: NDArray[np.intp], kept: NDArray[np.bool_], weights: Array
    ) -> tuple[float, Array]:
        """The loss of the kept fields' classes (N G, H, W), and its slopes in the scores.

        probabilities (N G, cls_num, H, W) are overwritten. Raises LayerError for a class without scores.
        """
        classes = probabilities.shape[1]
        for kind in kinds[kept & ~((kinds >= 0) & (kinds < classes))][:1]:
            raise self.layer.error(f"class {kind} has no scores: cls_num is {classes}", self.labels)
        at = np.nonzero(kept)
        own, count = (at[0], kinds[at], *at[1:]), max(1, len(at[0]))
        losses = -np.log(np.maximum(probabilities[own], np.finfo(np.float32).tiny)) * weights[at]
        probabilities[own] -= 1
        return float(losses.sum() / count), probabilities * (np.where(kept, weights, 0) / count)[:, None]

    def box_loss(
        self, deltas: Array, truths: Truths, at: Places, bound: tuple[Array, Array] | None, *, smooth: bool
    ) -> tuple[float, Array]:
        """The loss of the deltas (N G, 4, H, W) at these places, and its slopes; a bounded delta has those of its bound."""
        scale, found = getattr(self.param, "lambda"), deltas.transpose(0, 2, 3, 1)[at]
        differences = (found if bound is None else np.clip(found, *bound)) - self.targets(truths, at)
        slopes = np.clip(differences, -1, 1) if smooth else differences
        spread = np.zeros(deltas.shape, deltas.dtype)
        spread.transpose(0, 2, 3, 1)[at] = slopes * (scale / max(1, slopes.size))
        return float(scale * (slopes * (differences - slopes / 2)).sum() / max(1, slopes.size)), spread
