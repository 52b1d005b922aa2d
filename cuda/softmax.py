"""Softmax on the GPU: softmax.cu."""

from __future__ import annotations

from numpy.typing import DTypeLike

from .blocks import launch_sums
from .device import launch


def launch_softmax(dtype: DTypeLike, outer: int, length: int, inner: int, *arrays: int, backward: bool = False) -> None:
    """Along the middle axis of (outer, length, inner): forward with the addresses x, y, or backward with y, dy, dx.
    A thread for each line, or a block where a line's numbers are closer to each other than to the next line's."""
    lines, end = outer * inner, "_backward" if backward else ""
    if not lines * length:
        return
    if inner >= length:
        launch(f"softmax.softmax_lines{end}", dtype, lines, lines, length, inner, *arrays)
    else:
        launch_sums(f"softmax.softmax_rows{end}", dtype, lines, length, length, inner, *arrays)
