"""OurLayer: a layer of minicaffe as a step of a torch Module, on the CPU, for types that torch lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from minicaffe.blob import Blob
from minicaffe.layer import Layer

from .weights import learnt

Step: TypeAlias = Callable[..., Any]
"""A function of tensors that returns one or a tuple of them."""


class Run(Function):
    """A layer's forward and backward. apply(step, *bottoms, *weights) -> tops."""

    @staticmethod
    def forward(ctx: Any, step: OurLayer, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.step, ctx.run = step, object()  # the object identifies this forward
        ctx.save_for_backward(*given)
        return step.run(given, ctx.run)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *dtops: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.step.gradients(ctx.saved_tensors, ctx.run, dtops, ctx.needs_input_grad[1:]))


class OurLayer(nn.Module):
    """A new layer with the same parameters, on separate blobs. Weights: blob0, blob1, ...

    It computes in the net's type. Tops with a gradient have the first bottom's type, except for losses.
    """

    def __init__(self, layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().__init__()
        self.layer = type(layer)(layer.param, phase=layer.phase, dtype=layer.dtype, source=layer.source)
        self.layer.settings, self.layer.fork = layer.settings, layer.fork
        self.bottoms = [Blob(blob.shape, layer.dtype) for blob in bottom]
        self.tops = [Blob((), layer.dtype) for _ in top]
        self.layer.connect(self.bottoms, self.tops)
        self.names = tuple(f"blob{i}" for i in range(len(layer.blobs)))
        for i, name in enumerate(self.names):
            self.register_parameter(name, learnt(layer, i))
        self.last: object = None

    def forward(self, *bottoms: Tensor) -> tuple[Tensor, ...]:
        given = *bottoms, *(getattr(self, name) for name in self.names)
        if not self.layer.has_gradient:
            return self.run(given, None)
        tops: tuple[Tensor, ...] = Run.apply(self, *given)
        return tops if self.layer.is_loss else tuple(top.to(given[0].dtype) for top in tops)

    def run(self, given: Sequence[Tensor], run: object) -> tuple[Tensor, ...]:
        """Return the tops for the given bottoms and weights. run: a token that identifies this forward."""
        for blob, tensor in zip([*self.bottoms, *self.layer.blobs], given, strict=True):
            blob.reshape(tuple(tensor.shape))
            blob.data[...] = self._array(tensor)
        self.layer.forward_pass(self.bottoms, self.tops)
        self.last = run
        device = given[0].device if given else None
        # Copies, because the next forward overwrites the blobs.
        return tuple(torch.tensor(blob.read_data(), device=device) for blob in self.tops)

    def gradients(
        self, given: Sequence[Tensor], run: object, dtops: Sequence[Tensor], needed: Sequence[bool]
    ) -> list[Tensor | None]:
        """Return the gradients in the given bottoms and weights; None where not needed."""
        if self.last is not run:  # another forward has used the blobs since, so compute this one again
            self.run(given, run)
        for blob, dtop in zip(self.tops, dtops, strict=True):
            blob.diff[...] = self._array(dtop)
        count = len(self.bottoms)
        # None, not zeros, for labels and rois.
        wanted = [n and i not in self.layer.index_bottoms for i, n in enumerate(needed[:count])]
        self.layer.param_propagate_down = list(needed[count:])
        for blob in self.layer.blobs:
            blob.zero_diff()  # a layer adds to weights' diffs, but torch does the adding itself
        self.layer.backward_pass(self.tops, wanted, self.bottoms)
        flags = [*wanted, *needed[count:]]
        blobs = zip([*self.bottoms, *self.layer.blobs], given, flags, strict=True)
        return [torch.tensor(blob.read_diff()).to(tensor) if flag else None for blob, tensor, flag in blobs]

    def _array(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        dtype = torch.float64 if self.layer.dtype == np.float64 else torch.float32
        array: np.ndarray[Any, Any] = tensor.detach().to("cpu", dtype).numpy()
        return array

    def extra_repr(self) -> str:
        return f"{self.layer.type}, on the CPU"
