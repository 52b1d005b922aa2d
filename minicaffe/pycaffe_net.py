"""The part of pycaffe's Net for old scripts only: underscored names, indices, HDF5 methods.

Source: pycaffe's pycaffe.py and _caffe.cpp.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from .batching import batches, forward_backward_all
from .blob import Arrays, Blob
from .errors import LayerError
from .named import Blobs
from .parameters import check_names_differ

if TYPE_CHECKING:
    from .layer import Layer
    from .net import LoadReport, Net


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
        """Indices of these blobs in net.blobs."""
        places = {name: i for i, name in enumerate(self.blobs)}
        return [places[name] for name in names]

    def _batch(self, blobs: Mapping[str, ArrayLike]) -> Iterator[Arrays]:
        return batches(cast("Net", self), blobs)

    def forward_backward_all(
        self, blobs: Sequence[str] | None = None, diffs: Sequence[str] | None = None, **inputs: ArrayLike
    ) -> tuple[Arrays, Arrays]:
        """forward and backward over any number of items, in batches: ({output or blob: data}, {input or diff: diff}), copies.

        inputs: arrays (items, ...) for all the net's inputs and, optionally, diffs for all its outputs, by name.
        """
        return forward_backward_all(cast("Net", self), blobs, diffs, inputs)

    def set_input_arrays(self, data: ArrayLike, labels: ArrayLike) -> None:
        """Give the net's first layer, which must be a MemoryData, its images (N, C, H, W) and labels. Raises LayerError."""
        first = self.layers[0] if self.layers else None
        if first is None or not first.takes_arrays:
            kind = f'a {first.type} ("{first.name}")' if first is not None else "absent"
            raise LayerError(f"set_input_arrays needs a MemoryData as the net's first layer; it is {kind}")
        # takes_arrays says that this layer has a reset, which Layer lacks.
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
