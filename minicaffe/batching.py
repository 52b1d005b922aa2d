"""Run more items than a net's batch holds: in batches, the last padded, the outputs joined. Source: pycaffe's pycaffe.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from .blob import Array, Arrays, numbers
from .errors import Error
from .named import check_names

if TYPE_CHECKING:
    from .net import Net


def forward_all(net: Net, blobs: Sequence[str] | None, inputs: Mapping[str, ArrayLike]) -> Arrays:
    """{name: (items, ...)} of the outputs and of blobs, for inputs of (items, ...) with any number of items.

    Raises Error when an input is missing or no array of numbers, or the inputs differ in their number of items.
    """
    check_names(inputs, net.inputs, "inputs", "the net's inputs")
    arrays, items = _arrays(inputs)
    return _joined([_copies(net.forward(blobs, None, None, **batch)) for batch in batches(net, arrays)], items)


def forward_backward_all(
    net: Net, blobs: Sequence[str] | None, diffs: Sequence[str] | None, given: Mapping[str, ArrayLike]
) -> tuple[Arrays, Arrays]:
    """forward_all, and backward after each batch: data of the outputs and of blobs, diffs of the inputs and of diffs.

    given: the inputs and, all or none, diffs for the outputs. Raises Error as forward_all does.
    """
    inputs = [name for name in given if name not in net.outputs]
    top_diffs = [name for name in given if name in net.outputs]
    check_names(inputs, net.inputs, "inputs", "the net's inputs")
    if top_diffs:
        check_names(top_diffs, net.outputs, "top diffs", "the net's outputs")
    arrays, items = _arrays(given)
    data: list[Arrays] = []
    gradients: list[Arrays] = []
    for batch in batches(net, arrays):
        data.append(_copies(net.forward(blobs, None, None, **{name: batch[name] for name in inputs})))
        gradients.append(_copies(net.backward(diffs, None, None, **{name: batch[name] for name in top_diffs})))
    return _joined(data, items), _joined(gradients, items)


def batches(net: Net, inputs: Mapping[str, ArrayLike]) -> Iterator[Arrays]:
    """Arrays (items, ...) in parts of the net's batch size, the last padded with zeros."""
    arrays, items = _arrays(inputs)
    size = net.blobs[net.inputs[0]].shape[0]  # as in pycaffe, the first input's
    if not size:
        raise Error(f'{net.file}: the batch size is 0, that of "{net.inputs[0]}": reshape it')
    for start in range(0, items, size):
        yield {name: _padded(array[start : start + size], size) for name, array in arrays.items()}


def _arrays(inputs: Mapping[str, ArrayLike]) -> tuple[Arrays, int]:
    """The inputs as arrays, and how many items they have."""
    arrays = {name: numbers(name, array) for name, array in inputs.items()}
    if scalars := [name for name, array in arrays.items() if not array.ndim]:
        raise Error(f'"{scalars[0]}": one number has no items; give an array (items, ...)')
    counts = {name: len(array) for name, array in arrays.items()}
    if not counts:
        raise Error("the net has no inputs to run in batches: its data come from its own layers, so call forward")
    if len(set(counts.values())) > 1:
        raise Error(f"the inputs differ in their number of items: {counts}")
    return arrays, next(iter(counts.values()))


def _copies(arrays: Arrays) -> Arrays:
    return {name: np.array(array, ndmin=1) for name, array in arrays.items()}  # a scalar loss gets an axis to join along


def _joined(runs: Sequence[Arrays], items: int) -> Arrays:
    """The batches' arrays joined, without the padding."""
    # A scalar top gives one value for each batch, fewer than items.
    return {name: np.concatenate([run[name] for run in runs])[:items] for name in runs[0]} if runs else {}


def _padded(array: Array, batch: int) -> Array:
    missing = batch - len(array)
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)]) if missing else array
