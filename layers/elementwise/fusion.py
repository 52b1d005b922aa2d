"""Layers that run together as one step: those that can apply what follows them, and those that can be applied.

    conv -> BatchNorm -> Scale -> ReLU      the convolution's Epilogue is (x - mean) / std * scale + bias, then ReLU

BatchNorm with global statistics, Scale and Bias in a chain are one scale and one shift, vectors of a number a channel. They are
worked out from the layers' present weights, which costs nothing beside the maps. plan.py finds the chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeGuard

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.layer import Layer

from .epilogue import Epilogue
from .epilogue_gpu import DeviceEpilogue


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
