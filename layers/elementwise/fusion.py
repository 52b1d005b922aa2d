"""Layers that run together as one step: those that can apply what follows them, and those that can be applied.

    conv -> BatchNorm -> Scale -> ReLU      the convolution's Epilogue is (x - mean) / std * scale + bias, then ReLU

BatchNorm with global statistics, Scale and Bias in a chain are one scale and one shift, vectors of a number a channel. They are
worked out from the layers' present weights, which costs nothing compared with the maps. plan.py finds the chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

import numpy as np
from numpy.typing import DTypeLike, NDArray

from minicaffe.blob import Blob
from minicaffe.cuda.blocks import launch_planes
from minicaffe.layer import Layer

from .epilogue import Epilogue


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


class Channelwise(Layer):
    """A layer with a number for each channel, along axis 1, or none at all, which the layer before it may apply.

    A class is one only if it says so itself: one derived from it may compute anything.
    """

    channelwise: ClassVar[bool] = False
    is_rectifier: ClassVar[bool] = False
    """No layer is fused after it."""
    is_exact_alone: ClassVar[bool] = True
    """Its Epilogue alone gives the numbers of its forward."""

    def may_be_epilogue(self) -> bool:
        """Return whether the layer, with its parameters, can be an Epilogue whose backward does not need the input."""
        return len(self.param.bottom) == 1

    def epilogue(self, shape: tuple[int, ...]) -> Epilogue | None:
        """Return the layer as an Epilogue in float64, or None if its numbers lie along other axes than axis 1 of the shape."""
        raise NotImplementedError

    def gradient(self) -> Epilogue:
        """Return the factors of a gradient that passes back through the layer after it ran as an Epilogue."""
        raise NotImplementedError

    def device_epilogue(self, before: DeviceEpilogue, shape: tuple[int, ...]) -> DeviceEpilogue | None:
        """Return the launch `before` with the layer added, or None if it has another order or the layer runs on the host."""
        raise NotImplementedError


class Fusing(Layer):
    """A layer that can apply what comes after it as its last step. A class is one only if it says so itself."""

    fuses: ClassVar[bool] = False

    def may_fuse(self) -> bool:
        """Return whether the layer, with its parameters, can apply others."""
        return True

    def may_apply(self, other: Channelwise) -> bool:
        """Return whether it can apply this layer."""
        return True

    def fuses_on_device(self) -> bool:
        """Return whether it can apply others on the GPU."""
        return True

    def ready(self, bottom: Sequence[Blob], top: Sequence[Blob], epilogue: Epilogue) -> Callable[[], None]:
        """Return a function that runs forward_cpu and the epilogue, valid while shapes and weights stay the same."""
        raise NotImplementedError

    def forward_gpu_with_epilogue(self, bottom: Sequence[Blob], top: Sequence[Blob], after: DeviceEpilogue | None) -> None:
        """Run forward_gpu, then the epilogue on the tops, if there is one."""
        raise NotImplementedError


def may_be_epilogue(layer: Layer) -> TypeGuard[Channelwise]:
    """Return whether the layer before it can apply this layer."""
    return isinstance(layer, Channelwise) and "channelwise" in vars(type(layer)) and layer.may_be_epilogue()


def takes_epilogue(layer: Layer) -> TypeGuard[Fusing]:
    """Return whether the layer can apply layers that follow it."""
    return isinstance(layer, Fusing) and "fuses" in vars(type(layer)) and layer.may_fuse()


def device_epilogue_of(first: Layer, after: Sequence[Layer], shape: tuple[int, ...]) -> DeviceEpilogue | None:
    """Return the one launch that applies these layers to the top of `first`, of this shape.

    None if they are not in the launch's order, or one runs on the host.
    """
    if not math.prod(shape) or (isinstance(first, Fusing) and not first.fuses_on_device()):
        return None
    made: DeviceEpilogue | None = DeviceEpilogue()
    for layer in after:
        made = layer.device_epilogue(made, shape) if made is not None and isinstance(layer, Channelwise) else None
    return made


def vector(blob: Blob) -> NDArray[np.float64]:
    """Return a blob's values (M,) as float64."""
    return blob.read_data().reshape(-1).astype(np.float64)
