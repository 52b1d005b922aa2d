"""Layers that run together as one step: those that can apply what follows them, and those that can be applied.

    conv -> BatchNorm -> Scale -> ReLU      the convolution's Epilogue is (x - mean) / std * scale + bias, then ReLU

BatchNorm with global statistics, Scale and Bias in a chain are one scale and one shift, vectors of a number a channel. They are
worked out from the layers' present weights, which costs nothing compared with the maps. plan.py finds the chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeGuard

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.cuda.convolution import DeviceEpilogue
from minicaffe.layer import Layer

from .epilogue import Epilogue


class Channelwise(Layer):
    """A layer with one number for each channel (axis 1), or none, that the preceding layer may apply.

    Each class must declare this itself: a subclass may compute anything.
    """

    channelwise: ClassVar[bool] = False
    is_rectifier: ClassVar[bool] = False
    """True if no layer is fused after it."""
    is_exact_alone: ClassVar[bool] = True
    """True if its Epilogue alone gives the numbers of its forward."""

    def may_be_epilogue(self) -> bool:
        """Return whether the layer, with its parameters, can be an Epilogue whose backward does not read the input."""
        return len(self.param.bottom) == 1

    def epilogue(self, shape: tuple[int, ...]) -> Epilogue | None:
        """Return the layer as a float64 Epilogue, or None if its numbers are not along axis 1 of the shape."""
        raise NotImplementedError

    def gradient(self) -> Epilogue | None:
        """Return the factors of the gradient through the layer after it ran as an Epilogue; None if its backward is another."""
        raise NotImplementedError

    def device_epilogue(self, before: DeviceEpilogue, shape: tuple[int, ...]) -> DeviceEpilogue | None:
        """Return the launch `before` with the layer added, or None if the order is wrong or the layer runs on the host."""
        raise NotImplementedError


class Fusing(Layer):
    """A layer that can apply the following layers as its last step. Each class must declare this itself."""

    fuses: ClassVar[bool] = False

    def may_fuse(self) -> bool:
        """Return whether the layer, with its parameters, can apply others."""
        return True

    def may_apply(self, other: Channelwise) -> bool:
        """Return whether it can apply the other layer."""
        return True

    def fuses_on_device(self) -> bool:
        """Return whether it can apply other layers on the GPU."""
        return True

    def ready(self, bottom: Sequence[Blob], top: Sequence[Blob], epilogue: Epilogue) -> Callable[[], None]:
        """Return a function that runs forward_cpu and the epilogue, valid while shapes and weights stay the same."""
        raise NotImplementedError

    def forward_gpu_with_epilogue(self, bottom: Sequence[Blob], top: Sequence[Blob], after: DeviceEpilogue | None) -> None:
        """Run forward_gpu, then the epilogue on the tops, if there is one."""
        raise NotImplementedError


def may_be_epilogue(layer: Layer) -> TypeGuard[Channelwise]:
    """Return whether the preceding layer can apply this layer."""
    return isinstance(layer, Channelwise) and "channelwise" in vars(type(layer)) and layer.may_be_epilogue()


def takes_epilogue(layer: Layer) -> TypeGuard[Fusing]:
    """Return whether the layer can apply layers that follow it."""
    return isinstance(layer, Fusing) and "fuses" in vars(type(layer)) and layer.may_fuse()


def device_epilogue_of(first: Layer, after: Sequence[Layer], shape: tuple[int, ...]) -> DeviceEpilogue | None:
    """Return the single launch that applies these layers to the top of `first`, of this shape.

    Return None if they are not in the launch's order, or if one runs on the host.
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
