"""The people in the maps of an OpenPose net.

    maps     a heat map for each part, one for the background, and for each limb a field of two maps, x and y
    peaks    from each part's heat map, by non-maximum suppression
    limbs    pairs of peaks, scored by the line integral of the limb's field between them; best first, each peak used once
    people   limb after limb along the skeleton, joined at shared peaks

Source: Cao et al. 2017, and OpenPose's nmsBase.cpp, bodyPartConnectorBase.cpp and poseParameters.cpp, whose numbers these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.resizing import resize_cubic
from minicaffe.errors import Error
from minicaffe.net import Net

from .inputs import check_scores


@dataclass(frozen=True)
class Skeleton:
    """The skeleton of a kind of net.

    parts: their names. limbs: the two parts of each, in the order in which people are assembled. fields: the field of each
    limb. ears: limbs at the end of it that no person begins with, from shoulder to ear. feet: parts that do not count towards
    a person's fewest. threshold: of a part's score. field_threshold: of a field along a limb.
    """

    name: str
    parts: tuple[str, ...]
    limbs: tuple[tuple[int, int], ...]
    fields: tuple[int, ...]
    ears: frozenset[tuple[int, int]] = frozenset()
    feet: frozenset[int] = frozenset()
    threshold: float = 0.05
    field_threshold: float = 0.05

    @property
    def heat_maps(self) -> int:
        """The number of maps of parts, including the background's."""
        return len(self.parts) + 1

    @property
    def field_maps(self) -> int:
        return 2 * len(self.limbs)

    @property
    def maps(self) -> int:
        return self.heat_maps + self.field_maps


_ARMS = "Neck RShoulder RElbow RWrist LShoulder LElbow LWrist".split()
_LEGS = "RHip RKnee RAnkle LHip LKnee LAnkle".split()
_FACE = "REye LEye REar LEar".split()
_FEET = "LBigToe LSmallToe LHeel RBigToe RSmallToe RHeel".split()

COCO = Skeleton(
    "COCO",
    ("Nose", *_ARMS, *_LEGS, *_FACE),
    (
        (1, 2), (1, 5), (2, 3), (3, 4), (5, 6), (6, 7), (1, 8), (8, 9), (9, 10), (1, 11), (11, 12), (12, 13),
        (1, 0), (0, 14), (14, 16), (0, 15), (15, 17), (2, 16), (5, 17),
    ),
    (6, 10, 7, 8, 11, 12, 0, 1, 2, 3, 4, 5, 14, 15, 17, 16, 18, 9, 13),
    ears=frozenset([(2, 16), (5, 17)]),
)  # fmt: skip
MPI = Skeleton(
    "MPI",
    ("Head", *_ARMS, *_LEGS, "Chest"),
    (
        (0, 1), (1, 2), (2, 3), (3, 4), (1, 5), (5, 6), (6, 7), (1, 14), (14, 8), (8, 9), (9, 10), (14, 11), (11, 12),
        (12, 13),
    ),
    tuple(range(14)),
    threshold=0.6,
    field_threshold=0.01,
)  # fmt: skip
BODY_25 = Skeleton(
    "BODY_25",
    ("Nose", *_ARMS, "MidHip", *_LEGS, *_FACE, *_FEET),
    (
        (1, 8), (1, 2), (1, 5), (2, 3), (3, 4), (5, 6), (6, 7), (8, 9), (9, 10), (10, 11), (8, 12), (12, 13), (13, 14),
        (1, 0), (0, 15), (15, 17), (0, 16), (16, 18), (2, 17), (5, 18),
        (14, 19), (19, 20), (14, 21), (11, 22), (22, 23), (11, 24),
    ),
    (0, 7, 11, 8, 9, 12, 13, 3, 1, 2, 4, 5, 6, 15, 16, 18, 17, 19, 10, 14, 20, 21, 22, 23, 24, 25),
    ears=frozenset([(2, 17), (5, 18)]),
    feet=frozenset(range(19, 25)),
)  # fmt: skip

SKELETONS = (COCO, MPI, BODY_25)


MOST_PEAKS = 127
"""Most peaks of a part: the highest."""
AROUND = 3
"""A peak's place is the mean of so many pixels to each side, weighted by their scores."""
FEWEST_POINTS, MOST_POINTS = 5, 25
"""Points along a limb: sqrt(5 d) for d pixels, the larger of both axes' distances, in these bounds."""
SHARE = 0.95
"""More than this share of the points must be above field_threshold."""
FEWEST_PARTS, LEAST_SCORE = 3, 0.4
"""A person has so many parts at least, and a score for each: the sum of the scores of parts and limbs by the parts."""


@dataclass
class Person:
    """A person.

    peaks: the index of the peak of each of the person's parts.

    total: the sum of the scores of its parts and limbs. counted: parts, without feet and without ears that a shoulder gave.
    parts: x, y and score of each.
    """

    peaks: dict[int, int]
    total: float
    counted: int
    parts: dict[int, tuple[float, float, float]] = field(default_factory=dict)


def map_blobs(net: Net, wanted: Sequence[str], file: str) -> tuple[list[str], Skeleton]:
    """Return the outputs with the maps, heat maps before fields, and their skeleton.

    They are wanted, or one output with all maps, or two. Raises Error for none and for several.
    """
    counts = {name: net.blobs[name].shape[1] if len(net.blobs[name].shape) == 4 else 0 for name in wanted or net.outputs}
    if wanted:
        tries = [list(wanted)]
    else:
        tries = [[name] for name in counts]
        tries += [
            [heat, fields]
            for heat, fields in permutations(counts, 2)
            if any((one.heat_maps, one.field_maps) == (counts[heat], counts[fields]) for one in SKELETONS)
        ]
    found = [(names, one) for names in tries for one in SKELETONS if sum(counts[name] for name in names) == one.maps]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{one.maps} ({one.name}: {one.heat_maps} and {one.field_maps})" for one in SKELETONS)
    shapes = ", ".join(f"{name} {'x'.join(map(str, net.blobs[name].shape))}" for name in counts)
    said = "several outputs that hold" if found else "no output that holds"
    raise Error(f"{file}: {said} an OpenPose net's maps: {known}; {'given' if wanted else 'its outputs'}: {shapes}")


def find_people(maps: Array, skeleton: Skeleton, height: int, width: int, threshold: float | None = None) -> list[Person]:
    """Return the people in maps (P + 1 + 2 L, h, w), which are resized to height x width, bicubic.

    The parts' places are in those pixels, whose centres are whole numbers. threshold: a part's score must exceed it (default:
    the skeleton's). Raises Error for another number of maps, and for NaN and infinite ones.
    """
    if maps.ndim != 3 or len(maps) != skeleton.maps or not maps.size:
        raise Error(f"maps of shape {maps.shape} are not those of {skeleton.name}: ({skeleton.maps}, h, w)")
    check_scores(maps)
    least = skeleton.threshold if threshold is None else threshold
    heat = maps[: len(skeleton.parts)]  # one map at a time: together the resized maps may not fit in memory
    peaks = [find_peaks(resize_cubic(one[..., None], height, width)[..., 0], least) for one in heat]
    fields = maps[skeleton.heat_maps :].reshape(-1, 2, *maps.shape[1:])
    people: list[Person] = []
    for (a, b), k in zip(skeleton.limbs, skeleton.fields, strict=True):
        if len(peaks[a]) and len(peaks[b]):
            both = resize_cubic(fields[k].transpose(1, 2, 0), height, width)
            scores = limb_scores(peaks[a], peaks[b], both, skeleton.field_threshold)
            if (a, b) in skeleton.ears:
                _add_ears(people, a, b, scores)
            else:
                _add_limbs(people, a, b, peaks, scores, skeleton.feet)
    for person in people:
        person.parts = {part: tuple(peaks[part][i].tolist()) for part, i in sorted(person.peaks.items())}
    return [one for one in people if one.counted >= FEWEST_PARTS and one.total >= LEAST_SCORE * one.counted]


def find_peaks(heat: Array, threshold: float) -> Array:
    """Return the peaks (n, 3), x, y and score, of a heat map (H, W), in the order of the rows: the highest MOST_PEAKS.

    A peak is a pixel above threshold and not lower than its eight neighbours; of equal neighbours it is the first.
    """
    height, width = heat.shape
    padded = np.pad(heat, 1, constant_values=-np.inf)
    found = heat > threshold
    for dy in range(3):
        for dx in range(3):
            other = padded[dy : dy + height, dx : dx + width]
            if (dy, dx) != (1, 1):
                found &= heat > other if (dy, dx) < (1, 1) else heat >= other
    ys, xs = np.nonzero(found)
    if len(ys) > MOST_PEAKS:
        kept = np.sort(np.argsort(-heat[ys, xs], kind="stable")[:MOST_PEAKS])
        ys, xs = ys[kept], xs[kept]
    return np.array([_centre(heat, y, x) for y, x in zip(ys.tolist(), xs.tolist(), strict=True)]).reshape(-1, 3)


def _centre(heat: Array, y: int, x: int) -> tuple[float, float, float]:
    """Return a peak's place with subpixel precision, and its score."""
    top, left = max(y - AROUND, 0), max(x - AROUND, 0)
    weights = np.maximum(heat[top : y + AROUND + 1, left : x + AROUND + 1], 0).astype(np.float64)
    down, right = np.arange(weights.shape[0]) + top, np.arange(weights.shape[1]) + left
    total = weights.sum()
    return float(weights.sum(axis=0) @ right / total), float(weights.sum(axis=1) @ down / total), float(heat[y, x])


def limb_scores(a: Array, b: Array, both: Array, threshold: float) -> Array:
    """Return the score (n, m) of a limb between peaks a (n, 3) and b (m, 3).

    It is the mean of the field's component in the limb's direction, over the points along the limb where that is above
    threshold; 0 if too few are. both: the field (H, W, 2), x and y.
    """
    way = b[None, :, :2] - a[:, None, :2]
    length = np.linalg.norm(way, axis=2)
    count = np.clip(np.rint(np.sqrt(5 * np.abs(way).max(axis=2))), FEWEST_POINTS, MOST_POINTS)
    direction = way / np.maximum(length, 1e-6)[..., None]
    total, above = np.zeros_like(length), np.zeros_like(length)
    for k in range(MOST_POINTS):  # as in the reference, the end point is not sampled
        at = np.rint(a[:, None, :2] + way * (k / count)[..., None]).astype(np.intp)
        x, y = np.clip(at[..., 0], 0, both.shape[1] - 1), np.clip(at[..., 1], 0, both.shape[0] - 1)
        along = (both[y, x] * direction).sum(axis=2)
        counted = (along > threshold) & (k < count)
        total += np.where(counted, along, 0)
        above += counted
    good = (above > SHARE * count) & (length > 1e-6)
    return np.where(good, total / np.maximum(above, 1), 0)


def best_pairs(scores: Array) -> list[tuple[int, int]]:
    """Return the pairs (i, j) of the highest scores (n, m) above 0, the best first.

    Each i and each j is in one pair at most.
    """
    pairs, used_a, used_b = [], set[int](), set[int]()
    for place in np.argsort(-scores, axis=None, kind="stable").tolist():
        i, j = divmod(place, scores.shape[1])
        if scores[i, j] <= 0:
            break
        if i not in used_a and j not in used_b:
            pairs.append((i, j))
            used_a.add(i)
            used_b.add(j)
    return pairs


def _add_limbs(people: list[Person], a: int, b: int, peaks: Sequence[Array], scores: Array, feet: frozenset[int]) -> None:
    """Give the people who have the first part the second one. Other limbs begin new people."""
    for i, j in best_pairs(scores):
        person = next((one for one in people if one.peaks.get(a) == i), None)
        if person is None:
            person = Person({a: i}, float(peaks[a][i, 2]), int(a not in feet))
            people.append(person)
        person.peaks[b] = j
        person.total += float(scores[i, j] + peaks[b][j, 2])
        person.counted += b not in feet


def _add_ears(people: list[Person], a: int, b: int, scores: Array) -> None:
    """Give the people who lack an ear or a shoulder the one at the limb's other end. It adds nothing to the score."""
    for i, j in best_pairs(scores):
        for person in people:
            if person.peaks.get(a) == i:
                person.peaks.setdefault(b, j)
            elif person.peaks.get(b) == j:
                person.peaks.setdefault(a, i)
