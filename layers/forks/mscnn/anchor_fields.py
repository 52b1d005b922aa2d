"""The labels (class, box and overlap) of maps with one anchor of a field's size at each position.

Source: MS-CNN's image_gt_data_layer.cpp and Cascade R-CNN's detection_data_layer.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layers.data.scenes import Placed, rounded

F = np.float32


@dataclass(frozen=True)
class Field:
    """A map's stride in pixels, and its anchors' height and width."""

    stride: int
    height: int
    width: int

    def map_size(self, frame: tuple[int, int]) -> tuple[int, int]:
        """Return the map's height and width for a frame's."""
        return rounded(F(frame[0]) / F(self.stride)), rounded(F(frame[1]) / F(self.stride))

    def anchors(self, frame: tuple[int, int]) -> Array:
        """Return the anchors' corners (h * w, 4)."""
        height, width = self.map_size(frame)
        y, x = np.meshgrid(
            (np.arange(height, dtype=F) + F(0.5)) * self.stride,
            (np.arange(width, dtype=F) + F(0.5)) * self.stride,
            indexing="ij",
        )
        half_w, half_h = F(self.width) / 2, F(self.height) / 2
        return np.stack([x - half_w, y - half_h, x + half_w, y + half_h], axis=-1).reshape(-1, 4).astype(F)


@dataclass(frozen=True)
class Rules:
    """The rules for labelling anchors.

    unit: 1 if a box's width is x2 - x1 + 1, else 0. threshold: the overlap above which an anchor is an object's. regions: an
    anchor is ignored if its parts in ignored regions sum up to this; regions_first: even if it is an object's. least: the
    overlap that an object without an anchor needs to get the one at its centre.
    """

    unit: int
    threshold: float
    regions: float
    regions_first: bool
    least: float
    margin: float | None = None
    inside: float | None = None


@dataclass(frozen=True)
class Objects:
    """Boxes (N, 4), their classes (N,), and whether they are ignored (N,)."""

    boxes: Array
    classes: Array
    ignored: NDArray[np.bool_]


def overlaps(boxes: Array, others: Array, unit: int, of_first: bool = False) -> Array:
    """Return the intersection over union (N, M) float32, or with of_first over the first box's area."""
    sizes = [at[:, 2:] - at[:, :2] + F(unit) for at in (boxes, others)]
    shared = np.minimum(boxes[:, None, 2:], others[None, :, 2:]) - np.maximum(boxes[:, None, :2], others[None, :, :2])
    # Cascade R-CNN counts a shared column of width 0, but no shared row of height 0.
    apart = (shared[..., 0] < 0) | ((shared[..., 1] <= 0) if unit else (shared[..., 1] < 0))
    area = np.where(apart, F(0), (shared[..., 0] + F(unit)) * (shared[..., 1] + F(unit)))
    areas = [size[:, 0] * size[:, 1] for size in sizes]
    whole = areas[0][:, None] if of_first else areas[0][:, None] + areas[1][None] - area
    valid = (sizes[0].min(axis=1) > 0)[:, None] & (sizes[1].min(axis=1) > 0)[None] & (whole > 0)
    result: Array = np.divide(area, whole, out=np.zeros(area.shape, F), where=valid)
    return result


def label_maps(
    frame: tuple[int, int], placed: tuple[Placed, Placed], objects: Objects, regions: Array, fields: list[Field], rules: Rules
) -> list[Array]:
    """Return a map (6, h, w) for each field: class (0: none), x and y of the centre, width, height, overlap.

    placed: across and down, the image's position in the frame (height, width). An anchor of class 0 whose overlap is above the
    threshold is ignored.
    """
    maps, best, best_field, matched = [], np.zeros(len(objects.boxes), F), np.zeros(len(objects.boxes), int), set()
    rows = _rows(objects, rules.unit)
    for number, field in enumerate(fields):
        anchors = field.anchors(frame)
        free = _inside(frame, placed, field) & _is_good(anchors, placed, rules, field)
        in_regions = overlaps(anchors, regions, rules.unit, of_first=True).sum(axis=1, dtype=F) >= F(rules.regions)
        if rules.regions_first:
            free &= ~in_regions
        label = np.zeros((6, len(anchors)), F)
        label[5] = 1
        shared = np.where(free[:, None], overlaps(anchors, objects.boxes, rules.unit), F(0))
        most = shared.max(axis=1, initial=0)
        label[5, free] = np.where(in_regions & (most <= F(rules.threshold)), F(1), most)[free]
        for at in np.flatnonzero(most > F(rules.threshold)):
            winner = int(shared[at].argmax())
            label[:5, at] = rows[winner]
            label[0, at] *= not objects.ignored[winner]
            matched.add(winner)
        for_each = shared.max(axis=0, initial=0)
        best_field[for_each > best] = number
        best = np.maximum(best, for_each)
        maps.append(label.reshape(6, *field.map_size(frame)))
    for i in sorted(set(np.flatnonzero(~objects.ignored).tolist()) - matched):
        if fields and best[i] >= F(rules.least) and maps[best_field[i]].size:
            _pick_up(maps[best_field[i]], fields[best_field[i]], rows[i], best[i] if rules.unit else None)
    return maps


def _rows(objects: Objects, unit: int) -> Array:
    """Return the class, centre and size of each object (N, 5)."""
    corners = objects.boxes
    return np.concatenate(
        [objects.classes[:, None], (corners[:, :2] + corners[:, 2:]) / F(2), corners[:, 2:] - corners[:, :2] + F(unit)], axis=1
    ).astype(F)


def _pick_up(label: Array, field: Field, row: Array, overlap: float | None) -> None:
    """Give an object without an anchor the one at its centre, unless another object has it."""
    height, width = label.shape[1:]
    y = min(max(int(np.floor(row[2] / F(field.stride))), 0), height - 1)
    x = min(max(int(np.floor(row[1] / F(field.stride))), 0), width - 1)
    if label[0, y, x] > 0:
        return
    label[:5, y, x] = row
    if overlap is not None:
        label[5, y, x] = overlap


def _inside(frame: tuple[int, int], placed: tuple[Placed, Placed], field: Field) -> NDArray[np.bool_]:
    """Return which positions of the map lie in the image."""
    spans = []
    for size, axis in zip(field.map_size(frame), placed[::-1], strict=True):
        first, count = rounded(F(axis.to) / F(field.stride)), rounded(F(axis.count) / F(field.stride))
        at = np.arange(size)
        spans.append((at >= first) & (at < first + count))
    return (spans[0][:, None] & spans[1][None]).reshape(-1)


def _is_good(anchors: Array, placed: tuple[Placed, Placed], rules: Rules, field: Field) -> NDArray[np.bool_]:
    """Return which anchors lie far enough inside the image.

    The rule is `margin`, a share of half the field, or `inside`, the share of the anchor in the image.
    """
    across, down = placed
    image = np.array([[across.to, down.to, across.to + across.count, down.to + down.count]], F)
    if rules.margin is not None:
        margin = F(rules.margin) * np.array([field.width, field.height] * 2, F) / F(2)
        low = anchors[:, :2] >= image[:, :2] - margin[:2]
        return np.asarray(low.all(axis=1) & (anchors[:, 2:] < image[:, 2:] + margin[:2]).all(axis=1))
    if rules.inside is not None:
        return np.asarray(overlaps(anchors, image, rules.unit, of_first=True)[:, 0] >= F(rules.inside))
    return np.ones(len(anchors), bool)
