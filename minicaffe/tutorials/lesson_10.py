"""Questions of lesson 10: SSD's matching and deltas, the level of a roi in a feature pyramid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import ops

from .checks import question

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]


def _overlaps(rng: np.random.Generator) -> list[tuple[Floats, float]]:
    """Return IoUs of priors and true boxes, and a threshold. In the first case two boxes want one prior."""
    first = [[0.8, 0.7], [0.1, 0.3], [0.6, 0.2], [0.2, 0.5]]
    second = [[0.2, 0.3, 0.1], [0.1, 0.4, 0.2], [0.55, 0.9, 0.1], [0.1, 0.2, 0.1], [0.1, 0.65, 0.3]]
    drawn = [rng.random((priors, boxes)) ** 2 for priors, boxes in ((9, 2), (14, 4))]
    return [(np.array(one, np.float32), 0.5) for one in (first, second, *drawn)]


@question(_overlaps)
def match(overlaps: Floats, threshold: float) -> Ints:
    """Return for each prior the number of its true box, or -1, from their IoUs (priors, true boxes)."""
    return ops.ssd_match(overlaps, threshold)[0]


def _joined(matched: Ints, overlaps: Floats, threshold: float) -> Ints:
    """Return the matches with those of the other priors that reach the threshold."""
    good = (matched < 0) & (overlaps.max(axis=1) >= threshold)
    return np.where(good, overlaps.argmax(axis=1), matched)


@match.slip(
    "In the first step each true box takes one prior, even below the threshold. Otherwise nothing would learn to find it."
)
def threshold_alone(overlaps: Floats, threshold: float) -> Ints:
    return _joined(np.full(len(overlaps), -1), overlaps, threshold)


@match.slip(
    "Take the pairs globally, the largest IoU of all first. Box after box, an early box takes a prior that suits a later one."
)
def box_after_box(overlaps: Floats, threshold: float) -> Ints:
    matched, left = np.full(len(overlaps), -1), overlaps.copy()
    for box in range(overlaps.shape[1]):
        prior = left[:, box].argmax()
        matched[prior], left[prior] = box, -1
    return _joined(matched, overlaps, threshold)


@match.slip(
    "A prior that one true box took is no longer free for the others. Take the next pair without its row and its column."
)
def taken_twice(overlaps: Floats, threshold: float) -> Ints:
    matched = np.full(len(overlaps), -1)
    matched[overlaps.argmax(axis=0)] = np.arange(overlaps.shape[1])
    return _joined(matched, overlaps, threshold)


@match.slip(
    "After the first step, each other prior with an IoU of the threshold or more also joins the box that it overlaps most."
)
def first_step_alone(overlaps: Floats, threshold: float) -> Ints:
    matched, left = np.full(len(overlaps), -1), overlaps.copy()
    for _ in range(overlaps.shape[1]):
        prior, box = np.unravel_index(left.argmax(), left.shape)
        matched[prior], left[prior], left[:, box] = box, -1, -1
    return matched


@match.slip("In the second step only priors without a box join one. Those of the first step keep theirs.")
def second_step_overwrites(overlaps: Floats, threshold: float) -> Ints:
    matched = first_step_alone(overlaps, threshold)
    overwritten: Ints = np.where(overlaps.max(axis=1) >= threshold, overlaps.argmax(axis=1), matched)
    return overwritten


def _codes(rng: np.random.Generator) -> list[tuple[Floats, Floats]]:
    corners = rng.uniform(0, 0.5, (4, 2))
    priors = np.concatenate([corners, corners + rng.uniform(0.1, 0.5, (4, 2))], axis=1)
    return list(zip(rng.normal(0, 1, (4, 4)), priors, strict=True))


@question(_codes)
def decode(code: Floats, prior: Floats) -> Floats:
    """Return the box of SSD's deltas for a prior, both as x1, y1, x2, y2 in parts of the image. Variances: 0.1 and 0.2."""
    return np.asarray(ops.ssd_decode(code[None].astype(np.float32), prior[None].astype(np.float32))[0])


def _decode(code: Floats, prior: Floats, centre_variance: float = 0.1, size_variance: float = 0.2) -> Floats:
    centre, side = (prior[:2] + prior[2:]) / 2, prior[2:] - prior[:2]
    centre, side = centre + centre_variance * code[:2] * side, side * np.exp(size_variance * code[2:])
    return np.concatenate([centre - side / 2, centre + side / 2])


@decode.slip("SSD's deltas are divided by variances. Multiply the centre's by 0.1 and the size's by 0.2.")
def without_variances(code: Floats, prior: Floats) -> Floats:
    return _decode(code, prior, 1, 1)


@decode.slip("The size's variance is 0.2, that of the centre 0.1.")
def one_variance(code: Floats, prior: Floats) -> Floats:
    return _decode(code, prior, 0.1, 0.1)


@decode.slip("That is centre and size. Return the corners: the centre, half a side before and after.")
def centre_and_size(code: Floats, prior: Floats) -> Floats:
    box = _decode(code, prior)
    return np.concatenate([(box[:2] + box[2:]) / 2, box[2:] - box[:2]])


@decode.slip("A delta of the size is a logarithm: the side grows by the factor exp(0.2 * code).")
def without_exp(code: Floats, prior: Floats) -> Floats:
    return _decode(np.concatenate([code[:2], 5 * np.log(np.maximum(1 + 0.2 * code[2:], 1e-9))]), prior)


@question(lambda rng: [(224.0, 224.0), (112, 112), (100, 120), (30, 40), (700, 500), (60, 400), *rng.uniform(20, 900, (6, 2))])
def level(width: float, height: float) -> int:
    """Return the level of a feature pyramid, 2 to 5, from which a roi of this size in pixels is pooled."""
    return min(max(math.floor(4 + math.log2(math.sqrt(width * height) / 224)), 2), 5)


@level.slip("Take the side of a square of the same area: the root of width times height.")
def without_root(width: float, height: float) -> int:
    return min(max(math.floor(4 + math.log2(width * height / 224)), 2), 5)


@level.slip("Round down: math.floor. A roi of 200 x 200 pixels is smaller than 224 and belongs to level 3.")
def rounded(width: float, height: float) -> int:
    return min(max(round(4 + math.log2(math.sqrt(width * height) / 224)), 2), 5)


@level.slip("The pyramid has the levels 2 to 5: smaller rois belong to 2, larger ones to 5.")
def without_ends(width: float, height: float) -> int:
    return math.floor(4 + math.log2(math.sqrt(width * height) / 224))


@level.slip("A larger roi belongs to a higher level: log2(size / 224), not log2(224 / size).")
def turned(width: float, height: float) -> int:
    return min(max(math.floor(4 - math.log2(math.sqrt(width * height) / 224)), 2), 5)
