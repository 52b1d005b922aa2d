"""Run more items than a net's batch holds: in batches, the last padded, the outputs joined. Source: pycaffe's pycaffe.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .blob import numbers
from .errors import Error
from .named import check_names

if TYPE_CHECKING:
    from .net import Net

Arrays = dict[str, NDArray[Any]]


def forward_all(net: Net, blobs: Sequence[str] | None, inputs: Mapping[str, ArrayLike]) -> Arrays:
    """{name: (items, ...)} of the outputs and of blobs, for inputs of (items, ...) with any number of items.

    Raises Error when an input is missing or no array of numbers, or the inputs differ in their number of items.
    """
    check_names(inputs, net.inputs, "inputs", "the net's inputs")
    items = _items(inputs)
    runs = (net.forward(blobs, None, None, **given) for given in batches(net, inputs))
    return _joined(runs, items)


def forward_backward_all(
    net: Net, blobs: Sequence[str] | None, diffs: Sequence[str] | None, arrays: Mapping[str, ArrayLike]
) -> tuple[Arrays, Arrays]:
    """forward_all, and backward after each batch: data of the outputs and of blobs, diffs of the inputs and of diffs.

    arrays: the inputs and, all or none, diffs for the outputs. Raises Error as forward_all does.
    """
    given = {name: array for name, array in arrays.items() if name not in net.outputs}
    top_diffs = {name: array for name, array in arrays.items() if name in net.outputs}
    check_names(given, net.inputs, "inputs", "the net's inputs")
    if top_diffs:
        check_names(top_diffs, net.outputs, "top diffs", "the net's outputs")
    items = _items(arrays)
    data: list[Arrays] = []
    gradients: list[Arrays] = []
    for batch in batches(net, arrays):
        out = net.forward(blobs, None, None, **{name: batch[name] for name in given})
        data.append(_copies(out))
        gradients.append(_copies(net.backward(diffs, None, None, **{name: batch[name] for name in top_diffs})))
    return _joined(data, items), _joined(gradients, items)


def batches(net: Net, inputs: Mapping[str, ArrayLike]) -> Iterator[Arrays]:
    """Arrays (items, ...) in parts of the net's batch size, the last padded with zeros."""
    arrays = {name: numbers(name, array) for name, array in inputs.items()}
    items = _items(inputs)
    size = net.blobs[net.inputs[0]].shape[0]
    for start in range(0, items, size):
        yield {name: _padded(array[start : start + size], size) for name, array in arrays.items()}


def _items(inputs: Mapping[str, ArrayLike]) -> int:
    """How many items the inputs have."""
    arrays = {name: numbers(name, array) for name, array in inputs.items()}
    if scalars := [name for name, array in arrays.items() if not array.ndim]:
        raise Error(f'"{scalars[0]}": one number has no items; give an array (items, ...)')
    counts = {len(array) for array in arrays.values()}
    if not counts:
        raise Error("the net has no inputs to run in batches: its data come from its own layers, so call forward")
    if len(counts) > 1:
        raise Error(f"the inputs differ in their number of items: { {name: len(array) for name, array in arrays.items()} }")
    return counts.pop()


def _copies(arrays: Arrays) -> Arrays:
    return {name: array.copy() for name, array in arrays.items()}


def _joined(runs: Iterable[Arrays], items: int) -> Arrays:
    """The batches' arrays one after the other, without the padding."""
    parts: dict[str, list[NDArray[Any]]] = {}
    for run in runs:
        for name, array in run.items():
            parts.setdefault(name, []).append(np.array(array, ndmin=1))
    return {name: np.concatenate(arrays)[:items] for name, arrays in parts.items()}


def _padded(array: NDArray[Any], batch: int) -> NDArray[Any]:
    """array with zeros behind it, to a length of batch."""
    missing = batch - len(array)
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)]) if missing else array
