"""MemoryData: batches of arrays that the caller hands over. Source: Caffe's memory_data_layer.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Blob, numbers
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.errors import Error

from .prefetching import DataLayer


class MemoryData(DataLayer):
    """Batch after batch of what reset was given (Net.set_input_arrays calls it), from the first again after the last.

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
        """Hand out the rows of data (M, C, H, W) with labels (M,) from the next forward on. Raises LayerError."""
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
        self.data = np.ascontiguousarray(data, self.dtype)  # the caller's memory where it has the type: not copied, as in Caffe
        self.labels = np.ascontiguousarray(labels, self.dtype).reshape(-1, 1, 1, 1)
        self.position = 0

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if not len(self.data):
            raise self.error("has no data: call set_input_arrays(data, labels) before the first forward")
        rows = slice(self.position, self.position + self.shape[0])
        top[0].data[...] = self.data[rows]
        top[1].data[...] = self.labels[rows]
        self.position = rows.stop % len(self.data)  # rows are a multiple of batch_size: a batch never wraps

    def training_state(self) -> dict[str, Any]:
        return {"position": self.position}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        position = Fields(state).whole("position", 0, len(self.data) - 1 if len(self.data) else MOST)
        if position % self.shape[0]:
            raise ValueError(f'"position" must be a multiple of the batch size {self.shape[0]}, got {position}')
        self.position = position
