"""Steps without weights as Modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn import functional

from minicaffe.layers.neuron.dropout import Dropout as DropoutLayer

Step: TypeAlias = Callable[..., Any]
"""A function of tensors, that gives one or a tuple of them."""


class Apply(nn.Module):
    """A step without weights."""

    def __init__(self, kind: str, function: Step) -> None:
        super().__init__()
        self.kind, self.function = kind, function

    def forward(self, *x: Tensor) -> Any:
        return self.function(*x)

    def extra_repr(self) -> str:
        return self.kind


class Dropout(nn.Module):
    """Dropout, with torch's own random numbers while the Module trains."""

    def __init__(self, layer: DropoutLayer) -> None:
        super().__init__()
        self.ratio, self.scale_train = layer.dropout_ratio, layer.scale_train

    def forward(self, x: Tensor) -> Tensor:
        if self.scale_train:
            return functional.dropout(x, self.ratio, self.training)
        # torch scales while training, this Caffe form in TEST
        return functional.dropout(x, self.ratio) * (1 - self.ratio) if self.training else x * (1 - self.ratio)
