"""The ROI layers' geometry, one number at a time, in the originals' order of operations.

Written from the originals' kernels and independent of minicaffe's: what the layers' plans are compared with. Each function
tells one axis of one bin: bin number i of n, of a roi from first to last in the image, on an axis of that size of the map.
Every intermediate is of the map's type, f. What each bin's values are is in the layers' *_by_definition.
"""

from __future__ import annotations

import math
from typing import Any

Type = Any
"""np.float32 or np.float64."""


def round_away(value: float) -> int:
    """C's round()."""
    whole = math.floor(abs(float(value)) + 0.5)
    return whole if value > 0 else -whole


def clip(value: Any, size: Any) -> Any:
    return min(max(value, type(value)(0)), size)


def roi_pool(f: Type, first: Any, last: Any, scale: float, i: int, n: int, size: int) -> tuple[int, int]:
    """Return the bin's first pixel, and one past its last."""
    first, last = round_away(f(first) * f(scale)), round_away(f(last) * f(scale))
    length = f(max(last - first + 1, 1)) / f(n)
    return clip(math.floor(f(i) * length) + first, size), clip(math.ceil(f(i + 1) * length) + first, size)


def ps_roi_pool(f: Type, first: Any, last: Any, scale: float, i: int, n: int, size: int) -> tuple[int, int]:
    """Return the bin's first pixel, and one past its last."""
    first, end = f(round_away(first)) * f(scale), (f(round_away(last)) + f(1)) * f(scale)
    length = max(end - first, f(0.1)) / f(n)
    return clip(math.floor(f(i) * length + first), size), clip(math.ceil(f(i + 1) * length + first), size)


def roi_align_max(f: Type, first: Any, last: Any, scale: float, i: int, n: int, size: int) -> list[Any]:
    """Return the places of the bin's samples."""
    first, last = f(first) * f(scale), f(last) * f(scale)
    length = (last - first + f(1)) / f(n)
    place, end, places = clip(f(i) * length + first, f(size)), clip(f(i + 1) * length + first, f(size)), []
    while place < end:
        places.append(place)
        place = place + f(1)
    return places


def roi_align(
    f: Type, first: Any, last: Any, scale: float, i: int, n: int, size: int, *, sampling_ratio: int, aligned: bool
) -> list[Any]:
    """Return the places of the bin's samples, also off the map."""
    first, last = (f(v) * f(scale) - f(0.5 if aligned else 0) for v in (first, last))
    length = (last - first if aligned else max(last - first, f(1))) / f(n)
    count = sampling_ratio if sampling_ratio > 0 else math.ceil(length)
    return [first + f(i) * length + f(j + 0.5) * length / f(count) for j in range(count)]


def ps_roi_align(f: Type, first: Any, last: Any, scale: float, i: int, n: int, size: int, *, sample_num: int) -> list[Any]:
    """Return the places of the bin's samples."""
    first, end = f(first) * f(scale), (f(last) + f(1)) * f(scale)
    length = max(end - first, f(0.1)) / f(n)
    start, end = clip(f(i) * length + first, f(size - 1)), clip(f(i + 1) * length + first, f(size - 1))
    places = [start + f(j) * (length / f(sample_num + 1)) for j in range(1, sample_num + 1)]
    return [place for place in places if place < end]
