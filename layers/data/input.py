"""Blobs that the caller sets, and that fillers fill."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.fillers import fill
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2


class Input(Layer):
    """Tops of the shapes that input_param gives; their data is the caller's.

    Blobs that the caller fills. Source: Caffe's input_layer.hpp.

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
        """Nothing: the data is already there."""

    forward_gpu = forward_cpu


class DummyData(Layer):
    """Tops of given shapes. A constant filler fills once, at setup; every other one anew at each forward.

    Tops that fillers fill, for tests and timing. Source: Caffe's dummy_data_layer.hpp.

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
