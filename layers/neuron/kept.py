"""KeptInput: a copy of x for backward, in layers that may work in place."""

from __future__ import annotations

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer


class KeptInput:
    """What forward keeps where y overwrites x and backward reads x."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.blob = layer, Blob((0,), layer.dtype)
        self._left_out = False

    def array(self, x: Blob) -> Array | None:
        """Where forward on the CPU copies x to, in x's shape; None: not wanted."""
        self._left_out = self.layer.forward_only
        if self._left_out:
            return None
        self.blob.reshape(x.shape)
        return self.blob.data

    def address(self, x: Blob) -> int:
        """Where forward on the GPU copies x to; 0: not wanted. There it also counts whether the net will run backward: on the
        CPU the execution plan saves most of these copies."""
        self._left_out = self.layer.forward_only or not self.layer.gradient_wanted
        if self._left_out:
            return 0
        self.blob.reshape(x.shape)
        return self.blob.device_data("write")

    def read(self) -> Blob:
        """x, for backward. Raises LayerError where forward did not keep it."""
        if self._left_out:
            raise self.layer.error("its forward kept nothing for backward: call force_backward before forward, not after it")
        return self.blob
