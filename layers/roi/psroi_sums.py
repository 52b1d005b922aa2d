"""Sums over position-sensitive bins, and their transpose: each bin is a sum of the rows of a channels-last map.

Two neighbours in a row of pixels are added beforehand, in a second map, which halves the terms. Sums are float64 and have
no term but the bin's own pixels: nothing is lost to what lies elsewhere on the map, as it would be in an integral image.
For 300 rois this is also faster than one: the map is read once, its prefix sums would be written and read twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from minicaffe.blob import Array
from minicaffe.threads import Scratch

from .psroi_layer import GridPart
from .roi_geometry import BinPlan, Ints
from .row_sums import add_rows, items, longest_first, sum_rows

BLOCK = 256
"""Terms of a bin whose offsets one NumPy call computes."""

CHUNK = 2**18
"""Terms that backward lists at a time, about."""


class Spans(NamedTuple):
    """B bins on two maps of `pixels` rows for each place in the grid: their first rows, heights and widths, each (B,)."""

    first: Ints
    height: Ints
    width: Ints
    pixels: int
    row: int

    def terms(self) -> Ints:
        """How many terms each bin has (B,)."""
        terms: Ints = self.height * ((self.width + 1) // 2)
        return terms


def bin_spans(plan: BinPlan, part: GridPart) -> Spans:
    """The bins of a part of the grid, place after place."""
    (_, rois, gh, columns), bins, size = part, plan.places, plan.size
    top, bottom = bins.hstart[rois, gh], bins.hend[rois, gh]
    left, right = bins.wstart[rois, columns].T, bins.wend[rois, columns].T
    pixels = size[0] * size[1]
    first = np.arange(len(left))[:, None] * (2 * pixels) + top * size[1] + left  # (P, R)
    width = (right - left).clip(0)
    height = np.broadcast_to((bottom - top).clip(0), width.shape)
    return Spans(first.ravel(), height.ravel(), width.ravel(), pixels, size[1])


def sum_bins(x: Array, spans: Spans, scratch: Scratch) -> Array:
    """x (D, P, H * W), the maps of P places -> the sums (B, D) over their bins, in float64, in scratch."""
    dim, places, pixels = x.shape
    maps = scratch("maps", places, 2, pixels, dim, dtype=np.float64)
    maps[:, 0] = x.transpose(1, 2, 0)  # (P, H * W, D)
    with np.errstate(invalid="ignore"):
        # pairs across the end of a row are made too, and never read: a bin's pairs lie inside it
        np.add(maps[:, 0, :-1], maps[:, 0, 1:], out=maps[:, 1, :-1])
    order, having = longest_first(spans.terms())
    sums = scratch("of bins", len(order), dim, dtype=np.float64)
    ordered = sum_rows(maps.reshape(-1, dim), _terms(spans, order, having), having, len(order), scratch)
    items(sums)[order] = items(ordered)
    return sums


def bins_backward(dy: Array, spans: Spans, scratch: Scratch) -> Array:
    """dy (P, R, D) of the bins of P places added to each of their pixels: (P, H * W, D), in scratch."""
    places, _, dim = dy.shape
    dy = np.ascontiguousarray(dy).reshape(len(spans.first), dim)
    maps = scratch("maps", places, 2, spans.pixels, dim, dtype=dy.dtype)
    maps[...] = 0
    for bins in _slices(spans.terms()):
        some = spans._replace(first=spans.first[bins], height=spans.height[bins], width=spans.width[bins])
        order, having = longest_first(some.terms())
        target = np.concatenate([order[:0], *_terms(some, order, having)])  # order[:0]: there may be no terms
        source = np.concatenate([order[:0], *(order[:n] for n in having)]) + bins.start
        add_rows(dy, source, target, maps.reshape(-1, dim), scratch)
    with np.errstate(invalid="ignore"):
        maps[:, 0] += maps[:, 1]  # a pair's dy goes to its first pixel ...
        maps[:, 0, 1:] += maps[:, 1, :-1]  # ... and to its second
    return maps[:, 0]


def listed_bytes(terms: int) -> int:
    """Memory in which bins_backward lists that number of terms: five whole numbers each, about CHUNK at a time."""
    return 5 * 8 * min(terms, CHUNK)


def _slices(terms: Ints) -> list[slice]:
    """The bins (B,) in slices of about CHUNK terms."""
    ends = np.flatnonzero(np.diff(terms.cumsum() // CHUNK, append=-1)) + 1  # -1: the last bin ends a slice
    return [slice(a, b) for a, b in pairwise([0, *ends.tolist()])]


def _terms(spans: Spans, order: Ints, having: Sequence[int]) -> Iterator[Ints]:
    """For each k the rows of the k-th terms of the first having[k] bins of that order: pairs from the second map, then what
    is left of a row of odd length from the first."""
    first, width = spans.first[order], spans.width[order].astype(np.intp, copy=False)  # what take wants, on 32 bits too
    widths = np.arange(int(width.max(initial=0)) + 1)
    pairs = np.maximum((widths + 1) // 2, 1)  # terms in a row of each width; 1: no division by 0
    for start in range(0, len(having), BLOCK):
        row, pair = np.divmod(np.arange(start, min(start + BLOCK, len(having)))[:, None], pairs)
        # the second map follows after `pixels` rows
        offsets = row * spans.row + 2 * pair + np.where(2 * pair + 1 < widths, spans.pixels, 0)
        for n, offset in zip(having[start:], offsets):
            yield offset.take(width[:n]) + first[:n]
