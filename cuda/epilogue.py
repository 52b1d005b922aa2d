"""What follows a convolution, or one of the layers after it, in one launch on the GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import DTypeLike

from minicaffe.blob import Blob

from .blocks import launch_planes


@dataclass(frozen=True)
class DeviceEpilogue:
    """relu((x + bias - mean) / std * scale + shift + addend) on the GPU, channel by channel; what is None is left out.

    One launch, which reads the vectors where they are, on the device, and rounds each number as the layers' own kernels do: the
    results have the same bits as layer by layer. (The CPU's Epilogue folds them into one scale and one shift.)

    sums: BatchNorm's mean sum (C,), variance sum (C,) and factor (1,); inverse_std (C,): where 1 / sqrt(var + eps) goes, for
    its backward; scale, shift: Scale's (C,); addend: Bias's (C,); negative_slope: ReLU's, 1 without one.
    """

    sums: tuple[Blob, Blob, Blob] | None = None
    eps: float = 0.0
    inverse_std: Blob | None = None
    scale: Blob | None = None
    shift: Blob | None = None
    addend: Blob | None = None
    negative_slope: float = 1.0

    def __call__(self, dtype: DTypeLike, shape: tuple[int, ...], x: int, y: int, bias: int = 0) -> None:
        """Send the launch. x, y: addresses of arrays (N, C, ...) of this shape, maybe one; bias: of a vector (C,), or 0."""
        sums = [blob.device_data("read") for blob in self.sums] if self.sums else [0, 0, 0]
        inverse_std = self.inverse_std.device_data("write") if self.inverse_std else 0
        vectors = (_address(blob) for blob in (self.scale, self.shift, self.addend))
        sizes = shape[0] * shape[1], math.prod(shape[2:]), shape[1]
        arguments = x, bias, *sums, self.eps, inverse_std, *vectors, self.negative_slope, y
        launch_planes("epilogue.epilogue", dtype, *sizes, *arguments)


def _address(blob: Blob | None) -> int:
    return 0 if blob is None else blob.device_data("read")
