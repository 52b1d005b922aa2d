"""Changes of a trial, from which hypotheses are built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minicaffe.blob import Array

from .trial import Change, Trial


def parameter(block: str, **values: Any) -> Change:
    """Set fields of the layer's block; a list replaces one, None clears the field."""

    def change(trial: Trial) -> None:
        for name, value in values.items():
            message = getattr(trial.param, block)
            if value is None:
                message.ClearField(name)
            elif isinstance(value, list):
                message.ClearField(name)
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)

    return change


def of_blob(index: int, function: Callable[[Array], Array]) -> Change:
    """Change the layer's weights `index`."""

    def change(trial: Trial) -> None:
        trial.blobs[index] = function(trial.blobs[index])

    return change


def of_bottom(index: int, function: Callable[[Array], Array]) -> Change:
    """Change the values that the layer reads from bottom `index`."""
    return of_bottoms(lambda arrays: [function(array) if i == index else array for i, array in enumerate(arrays)])


def of_bottoms(function: Callable[[list[Array]], list[Array]]) -> Change:
    """Change the values that the layer reads from all bottoms."""

    def change(trial: Trial) -> None:
        trial.bottoms = function

    return change


def of_top(function: Callable[[Array, Array], Array]) -> Change:
    """Replace the first top by function(first bottom, first top)."""

    def change(trial: Trial) -> None:
        trial.top = function

    return change


def channels_last(arrays: list[Array]) -> list[Array]:
    """The first bottom's values in the order N, H, W, C, in an array of the same shape."""
    first = arrays[0]
    if first.ndim != 4 or first.shape[1] == 1 or first.shape[2:] == (1, 1):
        raise ValueError("nothing to reorder")
    return [np.ascontiguousarray(first.transpose(0, 2, 3, 1)).reshape(first.shape), *arrays[1:]]


def interleaved(x: Array, groups: int) -> Array:
    """The channels of x (N, C, H, W), in equal groups, reordered: the first of each group, then the second of each, ..."""
    n, _, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, groups, -1, h, w).swapaxes(1, 2)).reshape(x.shape)
