"""The part of pycaffe's Net that only old scripts need: underscored names, indices, HDF5 methods, backward for pictures.

Source: pycaffe's pycaffe.py and _caffe.cpp. backward_from_layer and deconv_from_layer are of the deep visualization toolbox's
Caffe (Yosinski et al., 2015).

forward_all runs more items than a net's batch holds: in batches, the last padded, the outputs joined.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from .blob import Array, Arrays, Blob, numbers, put_numbers
from .errors import Error, LayerError
from .parameters import Blobs, check_names, check_names_differ

if TYPE_CHECKING:
    from .layer import Layer
    from .layer_list import Node
    from .net import LoadReport, Net

GRADIENT = "gradient"
DECONV_TYPES = {"Zeiler & Fergus": "deconv", "Guided Backprop": "guided"}
"""The values of deconv_type, and the layers' backward_rule for them."""


def forward_all(net: Net, blobs: Sequence[str] | None, inputs: Mapping[str, ArrayLike]) -> Arrays:
    """Return {name: (items, ...)} of the outputs and of blobs, for inputs (items, ...) with any number of items.

    Raises Error when an input is missing or no array of numbers, or the inputs differ in their number of items.
    """
    check_names(inputs, net.inputs, "inputs", "the net's inputs")
    arrays, items = _arrays(inputs)
    return _joined([_copies(net.forward(blobs, None, None, **batch)) for batch in batches(net, arrays)], items)


def forward_backward_all(
    net: Net, blobs: Sequence[str] | None, diffs: Sequence[str] | None, given: Mapping[str, ArrayLike]
) -> tuple[Arrays, Arrays]:
    """Run forward and backward in batches; return data of the outputs and of blobs, and diffs of the inputs and of diffs.

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
    """Yield arrays (items, ...) in parts of the net's batch size, the last padded with zeros."""
    arrays, items = _arrays(inputs)
    size = net.blobs[net.inputs[0]].shape[0]  # as in pycaffe, the first input sets the batch size
    if not size:
        raise Error(f'{net.file}: the batch size is 0, that of "{net.inputs[0]}": reshape it')
    for start in range(0, items, size):
        yield {name: _padded(array[start : start + size], size) for name, array in arrays.items()}


def _arrays(inputs: Mapping[str, ArrayLike]) -> tuple[Arrays, int]:
    """Return the inputs as arrays, and the number of their items."""
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
    return {name: np.array(array, ndmin=1) for name, array in arrays.items()}  # a scalar loss needs an axis for joining


def _joined(runs: Sequence[Arrays], items: int) -> Arrays:
    """Return the batches' arrays joined, without the padding."""
    # The slice keeps scalar tops whole: they have one value for each batch, fewer than items.
    return {name: np.concatenate([run[name] for run in runs])[:items] for name in runs[0]} if runs else {}


def _padded(array: Array, batch: int) -> Array:
    missing = batch - len(array)
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)]) if missing else array


def gradient_from(net: Net, start: int, diff: ArrayLike, end: int = 0, rule: str = GRADIENT) -> None:
    """Run backward from layer number `start`, whose first top has this diff, down to layer number `end`.

    Only the layers that layer `start` depends on run. All their bottoms get gradients, weights get none. rule: the
    backward_rule of layers that have one. Raises Error for a diff of another shape, LayerError before a forward.
    """
    layer = net.layers[start]
    if not net.nodes[start].tops:
        raise layer.error("has no top to run backward from: name another layer")
    way = way_to(net, start)
    with net.running(), _for_pictures(net, way, rule):
        for node in net.nodes[: start + 1]:
            for blob in node.tops:
                blob.zero_diff()
        put_numbers(net.nodes[start].top_names[0], net.nodes[start].tops[0].diff, diff)
        net.backward_from_to(start, end)


def way_to(net: Net, start: int) -> list[Node]:
    """Return layer number `start` and, backward, the layers that its first top depends on through bottoms with gradients."""
    reached, way = {id(net.nodes[start].tops[0])}, []
    for node in reversed(net.nodes[: start + 1]):
        if any(id(top) in reached for top in node.tops):
            way.append(node)
            reached |= {id(blob) for b, blob in enumerate(node.bottoms) if b not in node.layer.index_bottoms}
    return way


@contextmanager
def _for_pictures(net: Net, way: Sequence[Node], rule: str) -> Iterator[None]:
    """In the block, backward runs these layers only, by this rule, into all bottoms and no weights."""
    needs = [(node, node.needs_backward, node.bottom_needs) for node in net.nodes]
    weights = [(layer.param_propagate_down, layer.param_propagate_down[:]) for layer in net.layers]
    ruled: list[Any] = [layer for layer in net.layers if hasattr(layer, "backward_rule")] if rule != GRADIENT else []
    tops = [(blob, weight) for node in net.nodes for blob, weight in zip(node.tops, node.layer.loss_weights, strict=True)]
    losses = [(blob, blob.read_diff().copy()) for blob, weight in tops if weight]  # forward does not write loss weights again
    try:
        for node, _, _ in needs:
            node.needs_backward = False
        for node in way:
            node.needs_backward = True
            node.bottom_needs = [b not in node.layer.index_bottoms for b in range(len(node.bottoms))]
        for wanted, _ in weights:
            wanted[:] = [False] * len(wanted)  # in place: a new list would count as a change, and drop the forward's kept steps
        for layer in ruled:
            layer.backward_rule = rule
        yield
    finally:
        for layer in ruled:
            layer.backward_rule = GRADIENT
        for (wanted, before), (node, is_needed, bottoms) in zip(weights, needs, strict=True):
            wanted[:] = before
            node.needs_backward, node.bottom_needs = is_needed, bottoms
        for blob, diff in losses:
            blob.diff[...] = diff


class PycaffeNet:
    """Net's methods for pycaffe's scripts."""

    blobs: Blobs
    inputs: list[str]
    outputs: list[str]
    blob_loss_weights: OrderedDict[str, float]
    layers: list[Layer]

    @property
    def _layer_names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    @property
    def _blob_names(self) -> list[str]:
        return list(self.blobs)

    @property
    def _blobs(self) -> list[Blob]:
        return list(self.blobs.values())

    @property
    def _blob_loss_weights(self) -> list[float]:
        return [self.blob_loss_weights.get(name, 0.0) for name in self.blobs]

    @property
    def _inputs(self) -> list[int]:
        return self._indices(self.inputs)

    @property
    def _outputs(self) -> list[int]:
        return self._indices(self.outputs)

    def _bottom_ids(self, i: int) -> list[int]:
        return self._indices(cast("Net", self).nodes[i].bottom_names)

    def _top_ids(self, i: int) -> list[int]:
        return self._indices(cast("Net", self).nodes[i].top_names)

    def _indices(self, names: Sequence[str]) -> list[int]:
        """Return indices of these blobs in net.blobs."""
        places = {name: i for i, name in enumerate(self.blobs)}
        return [places[name] for name in names]

    def _batch(self, blobs: Mapping[str, ArrayLike]) -> Iterator[Arrays]:
        return batches(cast("Net", self), blobs)

    def forward_backward_all(
        self, blobs: Sequence[str] | None = None, diffs: Sequence[str] | None = None, **inputs: ArrayLike
    ) -> tuple[Arrays, Arrays]:
        """Run forward and backward over any number of items, in batches.

        Return copies: ({output or blob: data}, {input or diff: diff}).

        inputs: arrays (items, ...) for all the net's inputs and, optionally, diffs for all its outputs, by name.
        """
        return forward_backward_all(cast("Net", self), blobs, diffs, inputs)

    def backward_from_layer(
        self, start_layer_name: str, start_diff: ArrayLike, diffs: Sequence[str] | None = None, zero_higher: bool = False
    ) -> Arrays:
        """Run backward from a layer in the middle of the net; return the diffs of the inputs and of `diffs`, as views.

        start_diff: the diff of the layer's first top. diffs: further blobs. zero_higher: zero the diffs of later layers' tops.
        The gradient needs no force_backward. The weights' diffs do not change. Raises Error as `backward` does.
        """
        return self._pictured(start_layer_name, start_diff, diffs, zero_higher, GRADIENT)

    def deconv_from_layer(
        self,
        start_layer_name: str,
        start_diff: ArrayLike,
        diffs: Sequence[str] | None = None,
        zero_higher: bool = False,
        deconv_type: str = "Zeiler & Fergus",
    ) -> Arrays:
        """Run backward_from_layer with another rule in ReLU layers.

        deconv_type: "Zeiler & Fergus" replaces the gradient by ReLU of dy, "Guided Backprop" keeps it where dy > 0.
        """
        if deconv_type not in DECONV_TYPES:
            raise Error(f"deconv_type is {' or '.join(map(repr, DECONV_TYPES))}, got {deconv_type!r}")
        return self._pictured(start_layer_name, start_diff, diffs, zero_higher, DECONV_TYPES[deconv_type])

    def _pictured(self, name: str, diff: ArrayLike, diffs: Sequence[str] | None, zero_higher: bool, rule: str) -> Arrays:
        net = cast("Net", self)
        start, names = net.index_of(name), dict.fromkeys([*net.inputs, *(diffs or [])])
        blobs = {each: net.blobs[each] for each in names}  # an unknown name is refused before the run
        if zero_higher:
            for node in net.nodes[start + 1 :]:
                for blob, weight in zip(node.tops, node.layer.loss_weights, strict=True):
                    if not weight:
                        blob.zero_diff()
        gradient_from(net, start, diff, rule=rule)
        return {each: blob.diff for each, blob in blobs.items()}

    def set_input_arrays(self, data: ArrayLike, labels: ArrayLike) -> None:
        """Give the net's first layer, which must be a MemoryData, its images (N, C, H, W) and labels. Raises LayerError."""
        first = self.layers[0] if self.layers else None
        if first is None or first.type != "MemoryData":
            kind = f'a {first.type} ("{first.name}")' if first is not None else "absent"
            raise LayerError(f"set_input_arrays needs a MemoryData as the net's first layer; it is {kind}")
        cast(Any, first).reset(np.asarray(data, np.float32), np.asarray(labels, np.float32))

    _set_input_arrays = set_input_arrays

    def save_hdf5(self, path: str | PathLike[str]) -> None:
        """Write the weights as HDF5, whatever the file's suffix. Raises LayerError for two layers of one name."""
        from .formats.hdf5 import write_hdf5

        net = cast("Net", self)
        check_names_differ(net.layers, "HDF5")
        write_hdf5(path, net.param, net.params)

    def load_hdf5(self, path: str | PathLike[str]) -> LoadReport:
        """Load weights from HDF5, as copy_from does."""
        return cast("Net", self).copy_from(path)
