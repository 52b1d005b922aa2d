"""Questions of lesson 5: ROI pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import ops
from minicaffe.layers.roi.roi_geometry import round_half_away

from .checks import question

Floats = NDArray[np.floating[Any]]
Case = tuple[Any, ...]
Rounding = Callable[[Any], Any]
SCALE = 1 / 16


def _halves(rng: np.random.Generator) -> list[Case]:
    values = [[0.5, 1.5, 2.5], [-0.5, -1.5, -2.5], [0.25, 1.25, 6.75, -3.75]]
    return [(np.array(each),) for each in [*values, rng.integers(-40, 40, 12) / 4]]


@question(_halves)
def round(values: Floats) -> Floats:
    """Return an array rounded to whole numbers, halves away from zero."""
    rounded: Floats = round_half_away(values)
    return rounded


@round.slip("np.round takes a half to the even neighbour: 0.5 to 0, 2.5 to 2. C's round goes away from zero: 1 and 3.")
def to_even(values: Floats) -> Floats:
    whole: Floats = np.round(values)
    return whole


@round.slip("floor(v + 0.5) takes -0.5 to 0. Away from zero it is -1: round the absolute value, then give it back its sign.")
def halves_up(values: Floats) -> Floats:
    whole: Floats = np.floor(values + 0.5)
    return whole


@round.slip("Cutting off the fraction takes 6.75 to 6. The nearest whole number is 7.")
def cut_off(values: Floats) -> Floats:
    whole: Floats = np.trunc(values)
    return whole


@round.slip(
    "Adding 0.5 and cutting off is right for positive numbers only. Round the absolute value, then give it back its sign."
)
def half_added_and_cut(values: Floats) -> Floats:
    whole: Floats = np.trunc(values + 0.5)
    return whole


def _pools(rng: np.random.Generator) -> list[Case]:
    """Return maps, boxes within them, and grids. The first corners lie on halves of cells."""
    values = rng.standard_normal((20, 30)).astype(np.float32)
    cases = [(values, (40, 24, 184, 120), pooled, SCALE) for pooled in (2, 3)]
    for pooled in (1, 2, 3, 4, 7):
        x1, y1 = rng.integers(20, 200, 2)
        box = (int(x1), int(y1), int(x1 + rng.integers(60, 240)), int(y1 + rng.integers(50, 90)))
        cases.append((values, box, pooled, SCALE))
    return cases


@question(_pools)
def roi_pooling(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    """Return ROIPooling's grid of one box on one map (H, W)."""
    grid: Floats = ops.roi_pool(values[None, None], [[0, *box]], pooled, pooled, scale)[0, 0]
    return grid


def _grid(
    values: Floats,
    box: tuple[float, ...],
    pooled: int,
    scale: float,
    *,
    last: int = 1,
    nearest: Rounding = round_half_away,
    outward: tuple[Rounding, Rounding] = (np.floor, np.ceil),
    reduce: Any = np.max,
) -> Floats:
    """Return ROIPooling's grid, or with another rule for the last cell, the corners, the bins' edges or the values."""
    x1, y1, x2, y2 = (int(nearest(np.float64(side * scale))) for side in box)
    sides = max(y2 - y1 + last, 1), max(x2 - x1 + last, 1)
    edges = [[[int(end(np.float64(p * side / pooled))) for p in range(pooled + 1)] for end in outward] for side in sides]
    grid = np.zeros((pooled, pooled), values.dtype)
    for h, w in np.ndindex(pooled, pooled):
        top, bottom = y1 + edges[0][0][h], y1 + edges[0][1][h + 1]
        left, right = x1 + edges[1][0][w], x1 + edges[1][1][w + 1]
        cells = values[top:bottom, left:right]
        grid[h, w] = reduce(cells) if cells.size else 0
    return grid


@roi_pooling.slip("The last column and the last row belong to the roi: from column 1 to column 6 there are 6 - 1 + 1 columns.")
def without_the_end(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _grid(values, box, pooled, scale, last=0)


@roi_pooling.slip("Each bin is rounded outward: it begins at the floor of its first edge and ends at the ceil of its last.")
def bins_to_nearest(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _grid(values, box, pooled, scale, outward=(round_half_away, round_half_away))


@roi_pooling.slip("Each bin ends at the ceil of its last edge. With floor at both edges, bins leave cells out.")
def bins_down(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _grid(values, box, pooled, scale, outward=(np.floor, np.floor))


@roi_pooling.slip("The corners are rounded to the nearest cell with halves away from zero: 2.5 becomes 3. np.round gives 2.")
def corners_to_even(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _grid(values, box, pooled, scale, nearest=np.round)


@roi_pooling.slip("The corners are rounded to the nearest cell, halves away from zero. int() cuts the fraction off.")
def corners_down(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _grid(values, box, pooled, scale, nearest=np.trunc)


@roi_pooling.slip("ROIPooling takes the maximum of each bin, not the mean.")
def means(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _grid(values, box, pooled, scale, reduce=np.mean)


@roi_pooling.slip("Your bins begin at cell 0 of the map. Add the roi's first row and column to their edges.")
def from_the_corner_of_the_map(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    x1, y1, *_ = (int(round_half_away(np.float64(side * scale))) for side in box)
    return _grid(np.pad(values, ((y1, 0), (x1, 0))), box, pooled, scale)


@roi_pooling.slip("The rows of the grid go along y: bin row ph and bin column pw belong into grid[ph, pw].")
def grid_turned(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    grid: Floats = _grid(values, box, pooled, scale).T
    return grid


def _places(rng: np.random.Generator) -> list[Case]:
    values = rng.standard_normal((7, 9)).astype(np.float32)
    return [(values, 2.25, 5.5), (values, 3.0, 4.0), *((values, *rng.uniform(0, (5.9, 7.9))) for _ in range(6))]


@question(_places)
def bilinear(values: Floats, y: float, x: float) -> float:
    """Return a map's (H, W) value at a place between cells, as ROIAlign interpolates it."""
    return float(
        ops.roi_align(values[None, None], [[0, x - 0.5, y - 0.5, x + 0.5, y + 0.5]], 1, 1, 1, sampling_ratio=1)[0, 0, 0, 0]
    )


def _bilinear(values: Floats, y: float, x: float) -> float:
    h, w = int(y), int(x)
    down, right = y - h, x - w
    rows = values[[h, h + 1]][:, [w, w + 1]]
    return float(np.array([1 - down, down]) @ rows @ np.array([1 - right, right]))


@bilinear.slip("The nearer cell has the greater weight: at x = 2.25, cell 2 has the weight 0.75.")
def weights_swapped(values: Floats, y: float, x: float) -> float:
    return _bilinear(values, 2 * int(y) + 1 - y, 2 * int(x) + 1 - x)


@bilinear.slip("This is the value of the nearest cell. Take the mean of the four cells around the place, by their weights.")
def nearest_cell(values: Floats, y: float, x: float) -> float:
    return float(values[int(y + 0.5), int(x + 0.5)])


@bilinear.slip(
    "This is the plain mean of the four cells. Nearer cells weigh more: at x = 5.25, cell 5 weighs 0.75 and cell 6 weighs 0.25."
)
def plain_mean(values: Floats, y: float, x: float) -> float:
    return _bilinear(values, int(y) + 0.5, int(x) + 0.5)


@bilinear.slip("x counts columns and y counts rows: the weights along x belong to the two columns.")
def weights_exchanged(values: Floats, y: float, x: float) -> float:
    return _bilinear(values, int(y) + x - int(x), int(x) + y - int(y))


@question(_pools)
def roi_align(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    """Return ROIAlign's grid of one box on one map (H, W): the mean of 2 x 2 samples in each bin."""
    return _align(values, box, pooled, scale)


def _align(
    values: Floats, box: tuple[float, ...], pooled: int, scale: float, *, samples: int = 2, aligned: bool = False
) -> Floats:
    rois = [[0, *box]]
    grid: Floats = ops.roi_align(values[None, None], rois, pooled, pooled, scale, sampling_ratio=samples, aligned=aligned)[0, 0]
    return grid


def _sampled(values: Floats, box: tuple[float, ...], pooled: int, scale: float, places: tuple[float, ...]) -> Floats:
    """Return ROIAlign's grid with the samples of a bin at other places of its sides."""
    x1, y1, x2, y2 = (side * scale for side in box)
    height, width = (y2 - y1) / pooled, (x2 - x1) / pooled
    grid = np.zeros((pooled, pooled))
    for h, w in np.ndindex(pooled, pooled):
        samples = [_bilinear(values, y1 + (h + a) * height, x1 + (w + b) * width) for a in places for b in places]
        grid[h, w] = np.mean(samples)
    return grid


@roi_align.slip("The roi is shifted by half a cell: here the value of cell k lies at k. Only aligned=True subtracts 0.5.")
def shifted(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _align(values, box, pooled, scale, aligned=True)


@roi_align.slip("Each bin has one sample, at its middle. Take the mean of four: at 1/4 and 3/4 of each side.")
def one_sample(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _align(values, box, pooled, scale, samples=1)


@roi_align.slip("ROIAlign does not include the last cell: the roi's width on the map is (x2 - x1) * scale, without + 1.")
def with_the_end(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _align(values, (*box[:2], *(side + 1 / scale for side in box[2:])), pooled, scale)


@roi_align.slip("The corners are rounded. ROIAlign rounds nothing: scale them and go on with the fractions.")
def rounded(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    whole = tuple(float(round_half_away(np.float64(side * scale))) / scale for side in box)
    return _align(values, whole, pooled, scale)


@roi_align.slip("The corners are rounded by np.round. ROIAlign rounds nothing: scale them and go on with the fractions.")
def rounded_to_even(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _align(values, tuple(float(np.round(side * scale)) / scale for side in box), pooled, scale)


@roi_align.slip("The samples lie at the start and in the middle of the bin. Take those at 1/4 and 3/4 of its sides.")
def samples_at_the_start(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _sampled(values, box, pooled, scale, (0, 1 / 2))


@roi_align.slip("The samples lie at 1/3 and 2/3 of the bin. Each stands for half of the bin: take 1/4 and 3/4 of its sides.")
def samples_at_thirds(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    return _sampled(values, box, pooled, scale, (1 / 3, 2 / 3))


@roi_align.slip("The rows of the grid go along y: bin row ph and bin column pw belong into grid[ph, pw].")
def rows_along_x(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    grid: Floats = _align(values, box, pooled, scale).T
    return grid


@roi_align.slip("Take the mean of the samples, not their maximum.")
def greatest_sample(values: Floats, box: tuple[float, ...], pooled: int, scale: float) -> Floats:
    fine = _align(values, box, 2 * pooled, scale, samples=1)
    grid: Floats = fine.reshape(pooled, 2, pooled, 2).max(axis=(1, 3))
    return grid
