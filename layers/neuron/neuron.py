"""The family of layers that apply one function to every element: y = f(x), dx = dy f'(x).

SavedInput: a copy of x for backward, in layers that may work in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import data_pair, diff_pair
from minicaffe.layer import Costs, Layer, Unary, data_bytes
from minicaffe.threads import Index, each_block


class Neuron(Unary):
    """y = value(x), element by element. Subclasses define value, slope and their two kernels in cuda/neuron.cu.

    bottom: x (any shape). top: y (the same shape); may be in place, where a copy of x is kept for backward. Overflow gives inf,
    and a point outside the function's domain NaN, without a warning, as in C.
    """

    in_place = True
    elementwise = True
    keeps_input = True
    copies = (0, 0)
    kernel = ""
    """The name of its forward kernel in cuda/neuron.cu. The backward kernel's has the suffix _backward."""

    def value(self, x: Array, out: Array) -> None:
        """Write f(x) to out, which may be x."""
        raise NotImplementedError

    def slope(self, x: Array) -> Array:
        """Return f'(x)."""
        raise NotImplementedError

    def constants(self) -> tuple[float, float, float]:
        """Return the kernels' a, b and c."""
        return 0.0, 0.0, 0.0

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._input = SavedInput(self)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(saved=data_bytes(bottom) if top[0] is bottom[0] else 0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].data.reshape(-1), top[0].data.reshape(-1)
        copy = self._input.array(bottom[0]) if top[0] is bottom[0] else None
        kept = None if copy is None else copy.reshape(-1)

        def step(index: Index) -> None:
            if kept is not None:
                kept[index] = x[index]  # before y is written, which may be x's memory
            with np.errstate(all="ignore"):
                self.value(x[index], y[index])

        each_block(x.shape, step)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count = top[0].count
        kept = self._input.address(bottom[0]) if top[0] is bottom[0] else 0
        x, y = data_pair(bottom[0], top[0])
        self.launch(f"neuron.{self.kernel}", count, count, x, *self.constants(), y, kept)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            x = (self._input.read() if top[0] is bottom[0] else bottom[0]).read_data().reshape(-1)
            dy, dx = top[0].diff.reshape(-1), bottom[0].diff.reshape(-1)

            def step(index: Index) -> None:
                with np.errstate(all="ignore"):
                    np.multiply(dy[index], self.slope(x[index]), out=dx[index])

            each_block(x.shape, step)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            count, x = top[0].count, (self._input.read() if top[0] is bottom[0] else bottom[0]).device_data("read")
            self.launch(f"neuron.{self.kernel}_backward", count, count, x, *self.constants(), *diff_pair(top[0], bottom[0]))


class SavedInput:
    """The input that forward saves when y overwrites x and backward reads x."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.blob = layer, Blob((0,), layer.dtype)
        self._left_out = False

    def array(self, x: Blob) -> Array | None:
        """Return the array, of x's shape, that forward on the CPU copies x to; None if it need not."""
        self._left_out = self.layer.forward_only
        if self._left_out:
            return None
        self.blob.reshape(x.shape)
        return self.blob.data

    def address(self, x: Blob) -> int:
        """Return the address that forward on the GPU copies x to; 0 if it need not.

        It need not either if the net will not run backward. On the CPU the execution plan saves most of these copies.
        """
        self._left_out = self.layer.forward_only or not self.layer.gradient_wanted
        if self._left_out:
            return 0
        self.blob.reshape(x.shape)
        return self.blob.device_data("write")

    def read(self) -> Blob:
        """Return x for backward. Raises LayerError if forward did not save it."""
        if self._left_out:
            raise self.layer.error("its forward kept nothing for backward: call force_backward before forward, not after it")
        return self.blob
