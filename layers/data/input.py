"""Blobs that the caller, fillers or weights fill: Input, DummyData, MemoryData and Parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Blob, numbers
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.errors import Error
from minicaffe.fillers import fill
from minicaffe.layer import Costs, Layer
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.proto import caffe_pb2


class Input(Layer):
    """Tops of input_param's shapes, which the caller fills.

    Source: Caffe's input_layer.hpp.

    No bottom. top[i]: input_param.shape[i], or the one shape for every top.
    Raises LayerError when the number of shapes is neither 0, 1 nor the number of tops.
    """

    type = "Input"
    num_bottom = 0
    num_top = (1, None)
    param_block = ("input_param",)
    weight_names = ()
    has_gradient = False
    only_shares = True
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shapes = self.param.input_param.shape
        if len(shapes) not in (0, 1, len(top)):
            raise self.error(f"{len(shapes)} shapes given for {len(top)} tops: give none, one, or one for each", "input_param")
        for i, blob in enumerate(top):
            if shapes:
                blob.reshape(shapes[min(i, len(shapes) - 1)].dim)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Do nothing: the data is already there."""

    forward_gpu = forward_cpu


class DummyData(Layer):
    """Tops of given shapes. A constant filler fills once, at setup; other fillers fill at each forward.

    For tests and timing. Source: Caffe's dummy_data_layer.hpp.

    No bottom. top[i]: shape[i], or the older num, channels, height, width (4 axes); one shape, or one number of a kind, serves
    every top. data_filler likewise; none given: zeros.
    Raises LayerError when the numbers of shapes, fillers or legacy fields do not go with the tops, or both kinds are given.
    """

    type = "DummyData"
    num_bottom = 0
    num_top = (1, None)
    param_block = ("dummy_data_param",)
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.dummy_data_param
        fillers = list(param.data_filler) or [caffe_pb2.FillerParameter()]
        self._check_number(len(fillers), len(top), "data_filler")
        self.stateful = any(filler.type != "constant" for filler in fillers)
        self.fillers = [fillers[min(i, len(fillers) - 1)] for i in range(len(top))]
        for blob, shape, filler in zip(top, self._shapes(len(top)), self.fillers, strict=True):
            blob.reshape(shape)
            if filler.type == "constant":
                fill(blob.data, filler)

    def _shapes(self, tops: int) -> list[tuple[int, ...]]:
        param = self.param.dummy_data_param
        legacy = {"num": param.num, "channels": param.channels, "height": param.height, "width": param.width}
        if not any(legacy.values()):
            self._check_number(len(param.shape), tops, "shape")
            return [tuple(param.shape[min(i, len(param.shape) - 1)].dim) for i in range(tops)]
        if param.shape:
            raise self.error("give shape or num, channels, height and width, not both", "dummy_data_param.shape")
        for field, values in legacy.items():
            self._check_number(len(values), tops, field)
        return [tuple(values[min(i, len(values) - 1)] for values in legacy.values()) for i in range(tops)]

    def _check_number(self, given: int, tops: int, field: str) -> None:
        if given not in (1, tops):
            raise self.error(f"{given} {field} given for {tops} tops: give one, or one for each", f"dummy_data_param.{field}")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for blob, filler in zip(top, self.fillers, strict=True):
            if filler.type != "constant":
                fill(blob.data, filler)


class MemoryData(DataLayer):
    """Batches of the arrays given to reset (see Net.set_input_arrays), again and again.

    Source: Caffe's memory_data_layer.cpp.

    No bottom. top: data (batch_size, channels, height, width), labels (batch_size, 1, 1, 1). transform_param is not applied, as
    in Caffe.
    Raises LayerError for a size of 0, arrays of another shape or whose number of rows is no multiple of batch_size, and a
    forward before reset.
    """

    type = "MemoryData"
    num_top = 2
    param_block = ("memory_data_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.memory_data_param
        self.shape = (param.batch_size, param.channels, param.height, param.width)
        if min(self.shape) < 1:
            raise self.error(
                "batch_size, channels, height and width must be > 0, got " + ", ".join(map(str, self.shape)),
                "memory_data_param",
            )
        self.data = np.zeros((0, *self.shape[1:]), self.dtype)
        self.labels = np.zeros(0, self.dtype)
        self.position = 0
        top[0].reshape(self.shape)
        top[1].reshape(self.shape[0], 1, 1, 1)

    def reset(self, data: ArrayLike, labels: ArrayLike) -> None:
        """Use the rows of data (M, C, H, W) and labels (M,) from the next forward on. Raises LayerError."""
        try:
            data, labels = numbers("data", data), numbers("labels", labels)
        except Error as error:
            raise self.error(str(error)) from error
        if data.shape[1:] != self.shape[1:]:
            raise self.error(f"the data has shape {data.shape}, the layer takes (rows, {', '.join(map(str, self.shape[1:]))})")
        if labels.shape[:1] != data.shape[:1] or labels.size != len(data):
            raise self.error(f"the labels have shape {labels.shape}: give one for each of {len(data)} rows")
        if not len(data) or len(data) % self.shape[0]:
            raise self.error(f"{len(data)} rows are no multiple of batch_size {self.shape[0]}")
        # as in Caffe, the caller's memory is not copied if it has the right type
        self.data = np.ascontiguousarray(data, self.dtype)
        self.labels = np.ascontiguousarray(labels, self.dtype).reshape(-1, 1, 1, 1)
        self.position = 0

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if not len(self.data):
            raise self.error("has no data: call set_input_arrays(data, labels) before the first forward")
        rows = slice(self.position, self.position + self.shape[0])
        top[0].data[...] = self.data[rows]
        top[1].data[...] = self.labels[rows]
        self.position = rows.stop % len(self.data)  # batches never wrap, because rows are a multiple of batch_size

    def training_state(self) -> dict[str, Any]:
        return {"position": self.position}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        position = Fields(state).whole("position", 0, len(self.data) - 1 if len(self.data) else MOST)
        if position % self.shape[0]:
            raise ValueError(f'"position" must be a multiple of the batch size {self.shape[0]}, got {position}')
        self.position = position


class Parameter(Layer):
    """y = weight.

    A learnable blob as a top. Source: Caffe's parameter_layer.hpp; happynear's.

    No bottom. top: y, of the shape that parameter_param gives (none: a scalar). blobs: weight, of y's shape, filled by
    blob_filler (happynear's; default: 0).
    Raises LayerError when a given weight has another shape.
    """

    type = "Parameter"
    num_bottom = 0
    num_top = 1
    param_block = ("parameter_param",)
    weight_names = ("parameter",)
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.parameter_param
        shape = tuple(param.shape.dim)
        self.learn([shape], [param.blob_filler])
        top[0].reshape(shape)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = self.blobs[0].data

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.param_propagate_down[0]:
            self.blobs[0].diff[...] += top[0].diff
