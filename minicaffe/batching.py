"""Run more items than a net's batch holds: in batches, the last padded, the outputs joined. Source: pycaffe's forward_all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .blob import numbers
from .errors import Error

if TYPE_CHECKING:
    from .net import Net


def forward_all(net: Net, blobs: Sequence[str] | None, inputs: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
    """{name: (items, ...)} of the outputs and of blobs, for inputs of (items, ...) with any number of items.

    Raises Error when an input is missing or no array of numbers, or the inputs differ in their number of items.
    """
    arrays = {name: numbers(name, array) for name, array in inputs.items()}
    if set(arrays) != set(net.inputs):
        raise Error(f"inputs {sorted(arrays)} do not match the net's inputs {net.inputs}")
    if scalars := [name for name, array in arrays.items() if not array.ndim]:
        raise Error(f'"{scalars[0]}": one number has no items; give an array (items, ...)')
    counts = {len(array) for array in arrays.values()}
    if len(counts) != 1:
        raise Error(f"the inputs differ in their number of items: { {name: len(array) for name, array in arrays.items()} }")
    items, batch = counts.pop(), net.blobs[net.inputs[0]].shape[0]
    parts: dict[str, list[NDArray[Any]]] = {}
    for start in range(0, items, batch):
        given = {name: _padded(array[start : start + batch], batch) for name, array in arrays.items()}
        for name, out in net.forward(blobs, None, None, **given).items():
            parts.setdefault(name, []).append(out[: items - start].copy())
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _padded(array: NDArray[Any], batch: int) -> NDArray[Any]:
    """array with zeros behind it, to a length of batch."""
    missing = batch - len(array)
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)]) if missing else array
