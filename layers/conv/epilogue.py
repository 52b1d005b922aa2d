"""What is still to be done to a convolution's sums, block by block while they are in cache: y = relu(y * scale + shift).

A bias is a shift. In TEST, BatchNorm and Scale after a convolution are a scale and a shift, and a ReLU may follow: as
steps of their own each would fetch the whole map from memory and write it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import DTypeLike, NDArray

from minicaffe.layers.relu import relu

EVERY = slice(None)


@dataclass(frozen=True)
class Finish:
    """y = y * scale + shift, channel by channel, and then ReLU with this slope; what is None is left out."""

    scale: NDArray[Any] | None = None  # (M,)
    shift: NDArray[Any] | None = None  # (M,)
    negative_slope: float | None = None

    def __call__(self, y: NDArray[Any], channels: slice = EVERY) -> None:
        """Finish y (N, M', *rows) in place; it holds the given M' of the M channels."""
        axes = [1] * (y.ndim - 2)
        if self.scale is not None:
            y *= self.scale[channels].reshape(-1, *axes)
        if self.shift is not None:
            y += self.shift[channels].reshape(-1, *axes)
        if self.negative_slope is not None:
            relu(y, self.negative_slope, out=y)


def joined(finishes: Sequence[Finish], dtype: DTypeLike) -> Finish:
    """One Finish that does what these do one after the other; its arrays are of dtype. Only the last may have a ReLU."""
    scale = shift = None
    for one in finishes:
        if one.scale is not None:
            scale = one.scale if scale is None else scale * one.scale
            shift = None if shift is None else shift * one.scale
        if one.shift is not None:
            shift = one.shift if shift is None else shift + one.shift
    slope = finishes[-1].negative_slope if finishes else None
    return Finish(
        None if scale is None else scale.astype(dtype, copy=False),
        None if shift is None else shift.astype(dtype, copy=False),
        slope,
    )
