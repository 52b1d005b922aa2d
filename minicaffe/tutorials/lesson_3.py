"""Questions of lesson 3: anchors and deltas."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicaffe import ops
from minicaffe.blob import Array

from .checks import question


def _recipes(rng: np.random.Generator) -> list[tuple[int, list[float], list[float]]]:
    """Return base sizes, ratios and scales; a base of 5 and a ratio of 4 make a width of 2.5."""
    drawn = [
        (int(rng.integers(6, 40)), rng.uniform(0.3, 3, 2).round(2).tolist(), rng.uniform(1, 9, 4).round(1).tolist())
        for _ in range(3)
    ]
    return [(16, [0.5, 1, 2], [8, 16]), (5, [4.0], [1, 2, 3]), (10, [0.25, 3], [2.5]), *drawn]


@question(_recipes)
def generate_anchors(base: int, ratios: list[float], scales: list[float]) -> Array:
    """Return the anchors (len(ratios) * len(scales), 4) of cell (0, 0), ratios outermost."""
    found: Array = ops.generate_anchors(base, ratios, scales)
    return found


def _anchors(base: int, ratios: list[float], scales: list[float], rounded: Any = np.round, end: float = 1) -> Array:
    width = rounded(np.sqrt(base * base / np.array(ratios)))
    return _around(np.stack([width, rounded(width * ratios)], axis=1), base, scales, end)


def _around(sides: Array, base: int, scales: list[float], end: float = 1) -> Array:
    half = (sides[:, None] * np.array(scales)[:, None] - end).reshape(-1, 2) / 2
    return np.concatenate([(base - 1) / 2 - half, (base - 1) / 2 + half], axis=1)


@generate_anchors.slip("np.round takes a half to the even neighbour: 2.5 to 2. The original uses np.round.")
def halves_go_up(base: int, ratios: list[float], scales: list[float]) -> Array:
    return _anchors(base, ratios, scales, rounded=lambda x: np.floor(np.asarray(x) + 0.5))


@generate_anchors.slip("Round the width and the height of each ratio to whole pixels, before the scales.")
def not_rounded(base: int, ratios: list[float], scales: list[float]) -> Array:
    return _anchors(base, ratios, scales, rounded=np.asarray)


@generate_anchors.slip("The height comes from the rounded width: np.round(width * ratio).")
def height_from_the_exact_width(base: int, ratios: list[float], scales: list[float]) -> Array:
    width = np.sqrt(base * base / np.array(ratios))
    return _around(np.round(np.stack([width, width * ratios], axis=1)), base, scales)


@generate_anchors.slip(
    "A side of w pixels goes from the centre - (w - 1) / 2 to the centre + (w - 1) / 2: both ends belong to the box."
)
def without_the_end(base: int, ratios: list[float], scales: list[float]) -> Array:
    return _anchors(base, ratios, scales, end=0)


@generate_anchors.slip("The ratio is height / width: the width is the square root of base * base / ratio.")
def ratio_of_the_width(base: int, ratios: list[float], scales: list[float]) -> Array:
    height = np.round(np.sqrt(base * base / np.array(ratios)))
    return _around(np.stack([np.round(height * ratios), height], axis=1), base, scales)


@generate_anchors.slip(
    "The width is the square root of base * base / ratio: divide by the ratio. The height is the width times the ratio."
)
def times_the_ratio(base: int, ratios: list[float], scales: list[float]) -> Array:
    width = np.round(np.sqrt(base * base * np.array(ratios)))
    return _around(np.stack([width, np.round(width * ratios)], axis=1), base, scales)


@generate_anchors.slip("Round before the scales, not after them: the scaled sides keep their fractions.")
def rounded_after_the_scales(base: int, ratios: list[float], scales: list[float]) -> Array:
    width = np.sqrt(base * base / np.array(ratios))
    sides = np.round(np.stack([width, width * ratios], axis=1)[:, None] * np.array(scales)[:, None]).reshape(-1, 2)
    return _around(sides, base, [1])


@generate_anchors.slip("The centre of pixels 0 to base - 1 is (base - 1) / 2.")
def centre_of_the_sides(base: int, ratios: list[float], scales: list[float]) -> Array:
    return _anchors(base, ratios, scales) + 0.5


@generate_anchors.slip("The order is: all scales of the first ratio, then all scales of the second.")
def scales_outermost(base: int, ratios: list[float], scales: list[float]) -> Array:
    found: Array = _anchors(base, ratios, scales).reshape(len(ratios), -1, 4).transpose(1, 0, 2).reshape(-1, 4)
    return found


def _moves(rng: np.random.Generator) -> list[tuple[Array, Array]]:
    """Return boxes and deltas."""
    boxes = _boxes(rng, 5)
    drawn = [(box, rng.normal(0, 0.4, 4).round(3)) for box in boxes]
    plain = np.array([10.0, 20, 49, 39])
    return [(plain, np.zeros(4)), (plain, np.array([0.5, 0, 0, 0])), (plain, np.array([0, 0, np.log(2), 0])), *drawn]


def _boxes(rng: np.random.Generator, count: int) -> list[Array]:
    corners = rng.integers(0, 60, (count, 2))
    return list(np.concatenate([corners, corners + rng.integers(8, 60, (count, 2))], axis=1).astype(np.float64))


@question(_moves)
def move(box: Array, deltas: Array) -> Array:
    """Return a box (x1, y1, x2, y2) moved by deltas (dx, dy, dw, dh)."""
    found: Array = ops.bbox_transform_inv(box[None], deltas[None])[0]
    return found


def _moved(box: Array, deltas: Array, end: float = 1, grown: Any = np.exp, new_end: float = 0) -> Array:
    size = box[2:] - box[:2] + end
    centre, half = box[:2] + size / 2 + deltas[:2] * size, size * grown(deltas[2:]) / 2
    return np.concatenate([centre - half, centre + half - new_end])


@move.slip("A side grows by the factor exp(dw): dw = 0 keeps it, and no dw makes it negative.")
def grows_by_a_part(box: Array, deltas: Array) -> Array:
    return _moved(box, deltas, grown=lambda d: 1 + d)


@move.slip("dw is the logarithm of the factor. With dw = 0 the side stays: multiply it by exp(dw).")
def delta_as_the_factor(box: Array, deltas: Array) -> Array:
    return _moved(box, deltas, grown=np.asarray)


@move.slip("dx moves the centre, not the corner. The new corners are the new centre - and + half of the new sides.")
def from_the_corner(box: Array, deltas: Array) -> Array:
    size = box[2:] - box[:2] + 1
    corner = box[:2] + deltas[:2] * size
    return np.concatenate([corner, corner + size * np.exp(deltas[2:])])


@move.slip("The last pixel belongs to the box, so that a side is x2 - x1 + 1 pixels long.")
def side_without_the_end(box: Array, deltas: Array) -> Array:
    return _moved(box, deltas, end=0)


@move.slip("The original does not subtract 1 from the new x2 and y2: they are centre + half of the new sides.")
def ends_inside(box: Array, deltas: Array) -> Array:
    return _moved(box, deltas, new_end=1)


@move.slip("dx counts in widths of the given box, not of the new one.")
def in_new_sides(box: Array, deltas: Array) -> Array:
    return _moved(box, np.concatenate([deltas[:2] * np.exp(deltas[2:]), deltas[2:]]))


@move.slip("dx counts in widths of the box, dy in heights: the centre moves by dx * w pixels, not by dx pixels.")
def moves_by_pixels(box: Array, deltas: Array) -> Array:
    return _moved(box, np.concatenate([deltas[:2] / (box[2:] - box[:2] + 1), deltas[2:]]))


@move.slip("Here the centre is x1 + w / 2. That is half a pixel further than (x1 + x2) / 2.")
def middle_of_the_corners(box: Array, deltas: Array) -> Array:
    return _moved(box, deltas) - 0.5


@move.slip("Compute the new centre from the old width and height, before you change them.")
def sides_first(box: Array, deltas: Array) -> Array:
    size = (box[2:] - box[:2] + 1) * np.exp(deltas[2:])
    corner = box[:2] + deltas[:2] * size
    return np.concatenate([corner, corner + size])


def _matches(rng: np.random.Generator) -> list[tuple[Array, Array]]:
    """Return boxes and true boxes: equal, moved by a half, twice as wide, and drawn."""
    plain = np.array([10.0, 20, 49, 39])
    others = [plain, np.array([30.0, 20, 69, 39]), np.array([10.0, 20, 89, 39])]
    return [*((plain, other) for other in others), *zip(_boxes(rng, 5), _boxes(rng, 5), strict=True)]


@question(_matches)
def deltas(box: Array, truth: Array) -> Array:
    """Return the deltas (dx, dy, dw, dh) that move a box to the true box."""
    found: Array = ops.bbox_transform(box[None], truth[None])[0]
    return found


def _between(box: Array, truth: Array, end: float = 1, centre: float = 0.5, log: Any = np.log) -> Array:
    size, wanted = (each[2:] - each[:2] + end for each in (box, truth))
    shift = truth[:2] + centre * wanted - box[:2] - centre * size
    return np.concatenate([shift / size, log(wanted / size)])


@deltas.slip("dw is the natural logarithm of the quotient of the widths; move takes it back by exp.")
def quotient_without_log(box: Array, truth: Array) -> Array:
    return _between(box, truth, log=np.asarray)


@deltas.slip("dx is the distance of the centres, not of the corners.")
def between_corners(box: Array, truth: Array) -> Array:
    return _between(box, truth, centre=0)


@deltas.slip("The last pixel belongs to a box, so that a side is x2 - x1 + 1 pixels long.")
def sides_without_the_end(box: Array, truth: Array) -> Array:
    return _between(box, truth, end=0)


@deltas.slip("Divide by the sides of the given box, which move knows. It does not know the true box.")
def in_true_sides(box: Array, truth: Array) -> Array:
    back = _between(truth, box)
    return np.concatenate([-back[:2], -back[2:]])


@deltas.slip("These deltas move the true box to the given one. The given box has to move to the true one.")
def the_other_way(box: Array, truth: Array) -> Array:
    return _between(truth, box)


@deltas.slip("dx counts in widths of the box: divide the distance of the centres by the width, that of y by the height.")
def in_pixels(box: Array, truth: Array) -> Array:
    size = box[2:] - box[:2] + 1
    found: Array = _between(box, truth) * np.concatenate([size, [1, 1]])
    return found
