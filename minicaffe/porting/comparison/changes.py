"""Changes of a trial, to build hypotheses from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .trial import Array, Change, Trial


def parameter(block: str, **values: Any) -> Change:
    """Set fields of the layer's block; a list replaces one."""

    def change(trial: Trial) -> None:
        for name, value in values.items():
            message = getattr(trial.param, block)
            if isinstance(value, list):
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
    """Change what the layer reads as bottom `index`."""

    return of_bottoms(lambda arrays: [function(array) if i == index else array for i, array in enumerate(arrays)])


def of_bottoms(function: Callable[[list[Array]], list[Array]]) -> Change:
    """Change all that the layer reads."""

    def change(trial: Trial) -> None:
        trial.bottoms = function

    return change


def both(*changes: Change) -> Change:
    """One change after another."""

    def change(trial: Trial) -> None:
        for part in changes:
            part(trial)

    return change


def channels_last(arrays: list[Array]) -> list[Array]:
    """The first bottom's values in the order N, H, W, C, in its own shape."""
    first = arrays[0]
    if first.ndim != 4 or first.shape[1] == 1 or first.shape[2:] == (1, 1):
        raise ValueError("nothing to reorder")
    return [np.ascontiguousarray(first.transpose(0, 2, 3, 1)).reshape(first.shape), *arrays[1:]]


def after(function: Callable[[list[Array]], list[Array]], keep_bottom: bool = False) -> Change:
    """Change what the layer gives; keep_bottom: it gives its first bottom."""

    def change(trial: Trial) -> None:
        trial.after = function
        if keep_bottom:
            kept: list[Array] = []
            trial.bottoms = lambda arrays: kept.extend(arrays) or arrays  # type: ignore[func-returns-value]
            trial.after = lambda _: kept[:1]

    return change
