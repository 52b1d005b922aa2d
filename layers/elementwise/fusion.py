"""Layers that run together as one step: those that can apply what follows them, and those that can be applied.

    conv -> BatchNorm -> Scale -> ReLU      the convolution's Epilogue is (x - mean) / std * scale + bias, then ReLU

BatchNorm with global statistics, Scale and Bias in a chain are one scale and one shift, vectors of a number a channel. They are
worked out from the layers' present weights, which costs nothing beside the maps. plan.py finds the chains.

DeviceEpilogue: what follows a convolution on the GPU, in one launch over its output.

Bias, BatchNorm of stored statistics, Scale, Bias and ReLU, each at most once and in this order. The vectors are read where they
are, on the device, at each forward: nothing is computed on the host or copied. Each number is rounded as by the layers' own
kernels, so that the results have the same bits as layer by layer. (The CPU's Epilogue folds them into one scale and one shift.)
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
    """relu((x + bias - mean) / std * scale + shift + addend), channel by channel; what is None is left out.

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
    """Whether nothing comes after it in one step."""
    is_exact_alone: ClassVar[bool] = True
    """Whether its Epilogue alone gives the numbers of its forward."""

    def may_be_epilogue(self) -> bool:
        """Whether what the layer does, with its parameters, can be an Epilogue, and its backward needs nothing of its input."""
        return len(self.param.bottom) == 1

    def epilogue(self, shape: tuple[int, ...]) -> Epilogue | None:
        """What the layer does to a bottom (N, M, ...) of this shape, in float64; None where its numbers lie along others."""
        raise NotImplementedError

    def gradient(self) -> Epilogue:
        """What multiplies a gradient on its way back through the layer, once it has run as an Epilogue."""
        raise NotImplementedError

    def device_epilogue(self, before: DeviceEpilogue, shape: tuple[int, ...]) -> DeviceEpilogue | None:
        """What comes before in one launch, and then the layer; None where the launch has another order, or the layer runs on
        the host."""
        raise NotImplementedError


class Fusing(Layer):
    """A layer that can apply what comes after it as its last step. A class is one only if it says so itself."""

    fuses: ClassVar[bool] = False

    def may_fuse(self) -> bool:
        """Whether the layer, with its parameters, can."""
        return True

    def may_apply(self, other: Channelwise) -> bool:
        """Whether it can apply this one."""
        return True

    def fuses_on_device(self) -> bool:
        """Whether it can on the GPU."""
        return True

    def ready(self, bottom: Sequence[Blob], top: Sequence[Blob], epilogue: Epilogue) -> Callable[[], None]:
        """forward_cpu, and then on the tops what comes after it: to be run as long as the shapes and weights are these."""
        raise NotImplementedError

    def forward_gpu_with_epilogue(self, bottom: Sequence[Blob], top: Sequence[Blob], after: DeviceEpilogue | None) -> None:
        """forward_gpu, and then on the tops what comes after it; None: nothing."""
        raise NotImplementedError


def may_be_epilogue(layer: Layer) -> TypeGuard[Channelwise]:
    """Whether the layer before may apply this one."""
    return isinstance(layer, Channelwise) and "channelwise" in vars(type(layer)) and layer.may_be_epilogue()


def takes_epilogue(layer: Layer) -> TypeGuard[Fusing]:
    """Whether the layer can apply what comes after it."""
    return isinstance(layer, Fusing) and "fuses" in vars(type(layer)) and layer.may_fuse()


def device_epilogue_of(first: Layer, after: Sequence[Layer], shape: tuple[int, ...]) -> DeviceEpilogue | None:
    """What the layers, which may be Epilogues and have their shapes, do to first's top of this shape on the GPU, in one launch;
    None where they are not in the launch's order, or one runs on the host."""
    if not math.prod(shape) or (isinstance(first, Fusing) and not first.fuses_on_device()):
        return None
    made: DeviceEpilogue | None = DeviceEpilogue()
    for layer in after:
        made = layer.device_epilogue(made, shape) if made is not None and isinstance(layer, Channelwise) else None
    return made


def vector(blob: Blob) -> NDArray[np.float64]:
    """A blob's values (M,) as float64."""
    return blob.read_data().reshape(-1).astype(np.float64)
