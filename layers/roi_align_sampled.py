"""The values at the samples of Caffe's ROIAlign, roi by roi, and where the greatest of each bin is.

The greatest sample is found by comparing the samples with the maxima, and the first of them as the greatest of small whole
numbers, most often of one byte, that count the bin's samples from the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .roi_geometry import LOWEST, Array, Ints
from .roi_max import Span
from .roi_samples import Samples


def sampled(x: Array, images: Ints, samples: Samples) -> Iterator[tuple[Array, list[Span], list[Span]]]:
    """For each roi the values (SH, SW, C) at its samples, bin after bin, and each bin's span of rows and columns."""
    n, c, h, w = x.shape
    padded = np.zeros((n, h + 1, w + 1, c), x.dtype)  # the row and the column past the map, which add 0
    padded[:, :h, :w] = x.transpose(0, 2, 3, 1)
    small = is_small(x)
    for r, image in enumerate(images):
        (low_h, high_h), rows = neighbours(samples.h[r])
        columns_of, columns = neighbours(samples.w[r])
        values = np.zeros((len(low_h[0]), len(columns_of[0][0]), c), x.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            for row, weight_h in (high_h, low_h):
                for column, weight_w in columns_of:
                    part = padded[image][row[:, None], column]
                    part *= (weight_w * weight_h[:, None])[..., None]
                    values += part
        if not small:
            np.fmax(values, x.dtype.type(LOWEST), out=values)
        yield values, rows, columns


def is_small(x: Array) -> bool:
    """Whether x is finite and so far from overflow that every sample of it is above -FLT_MAX."""
    return bool(max(float(x.max(initial=0)), -float(x.min(initial=0))) < -LOWEST / 8)


def neighbours(places: Array) -> tuple[list[tuple[Ints, Array]], list[Span]]:
    """places (P, K) -> (floor, its weight) and (ceil, its weight) of the S places in use, and the span of each bin in them."""
    used = ~np.isnan(places)
    ends = used.sum(axis=1).cumsum().tolist()
    place = places[used]
    low, high = np.floor(place), np.ceil(place)
    one = place.dtype.type(1)
    floor, ceil = (low.astype(np.int64), one - place + low), (high.astype(np.int64), one - high + place)
    return [floor, ceil], list(zip([0, *ends[:-1]], ends))


def first_greatest(values: Array, columns: Sequence[Span], maxima: Array, width: int, out: NDArray[np.int32]) -> None:
    """values (KH, SW, C) of a row of bins, their maxima (PW, C) -> i * width + j of each bin's first maximum, -1 for none."""
    lengths = [end - start for start, end in columns]
    height, widest = len(values), max(lengths)
    count = height * widest
    if not count:
        out[...] = -1
        return
    hits = np.equal(values, maxima.repeat(lengths, axis=0)).view(np.uint8)
    number = np.concatenate([np.arange(length) for length in lengths]) + np.arange(0, count, widest)[:, None]
    from_last = (count - number).astype(np.min_scalar_type(count))[..., None]
    hits = hits * from_last if from_last.dtype != np.uint8 else np.multiply(hits, from_last, out=hits)
    greatest = np.maximum.reduce(hits, axis=0)
    first = np.zeros(maxima.shape, greatest.dtype)
    for (start, end), most in zip(columns, first):
        if start < end:
            np.maximum.reduce(greatest[start:end], axis=0, out=most)
    i, j = np.divmod(count - np.arange(count + 1, dtype=np.int32), widest)
    (i * width + j).astype(np.int32).take(first, out=out, mode="clip")
    out[(first == 0) | (maxima <= LOWEST)] = -1
