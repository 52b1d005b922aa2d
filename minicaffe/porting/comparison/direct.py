"""Known causes of differences that the two arrays show without recomputing a layer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import in_brackets

from .result import Tolerance


def direct_causes(a: Array, b: Array, tolerance: Tolerance) -> Iterator[str]:
    """The known changes of a that give b, in words."""
    for words, made in _made(a, b):
        if made.shape == b.shape and tolerance.agree(made, b):
            yield words


def _made(a: Array, b: Array) -> Iterator[tuple[str, Array]]:
    if a.size == b.size and 2 <= a.ndim == b.ndim <= 4:
        for axes in itertools.permutations(range(a.ndim)):
            if axes != tuple(range(a.ndim)) and a.transpose(axes).shape == b.shape:
                back = ",".join(map(str, np.argsort(axes)))
                way = in_brackets("write this order in --map")
                yield f"its axes have another order: A's are B's {back}{way}", a.transpose(axes)
    if a.shape != b.shape or not a.size:
        return
    yield "A's values below 0 are 0 in B: a ReLU that A lacks or applies later", np.maximum(a, 0)
    if a.ndim == 4 and a.shape[1] == 3:
        yield "its channels are in the other order (RGB and BGR swapped)", a[:, ::-1]
        yield from _images(a, b)
    if a.shape[-1:] == (5,):
        yield "its columns are batch index, y1, x1, y2, x2", a[..., [0, 2, 1, 4, 3]]
        yield "its columns are x1, y1, x2, y2, batch index", a[..., [1, 2, 3, 4, 0]]
        ends = np.array([0, 0, 0, 1, 1], a.dtype)
        yield "its x2 and y2 are exclusive: one more than A's", a + ends
        yield "its x2 and y2 are one less than A's (boxes without the + 1)", a - ends
    if a.ndim == 2 and len(a) > 1:
        order = np.lexsort(b.T[::-1])
        rows = np.empty_like(a)
        # Both sorted by all columns, the first first; A's sorted rows take B's places.
        rows[order] = a[np.lexsort(a.T[::-1])]
        yield "its rows are A's in another order", rows
    square = float((a.astype(np.float64) ** 2).sum())
    factor = float((a.astype(np.float64) * b).sum()) / square if square and np.isfinite(square) else 1.0  # least squares
    if np.isfinite(factor) and factor:
        yield f"it is A's times {factor:.6g}", a * factor


def _images(a: Array, b: Array) -> Iterator[tuple[str, Array]]:
    """Images that differ by a scale and a mean per channel, in either order of channels."""

    def shown(values: Array) -> str:
        return ", ".join(f"{value:.6g}" for value in values.ravel())

    for words, image in (("", a), (", RGB and BGR swapped", a[:, ::-1])):
        with np.errstate(all="ignore"):
            mean = (b.astype(np.float64) - image).mean(axis=(0, 2, 3), keepdims=True)
            yield f"it is A's plus ({shown(mean)}) in its channels: a mean is not subtracted{words}", image + mean
            centred, theirs = (x - x.mean(axis=(0, 2, 3), keepdims=True, dtype=np.float64) for x in (image, b))
            factor = (centred * theirs).sum() / (centred**2).sum()
            offset = (b - factor * image).mean(axis=(0, 2, 3), keepdims=True)
            yield f"it is A's times {factor:.6g}, plus ({shown(offset)}) in its channels{words}", image * factor + offset
