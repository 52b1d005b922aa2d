"""Caffe's Scale and Bias."""

from __future__ import annotations

import torch
from torch import nn


class Scale(nn.Module):
    """x times a weight that lies along its axes from `axis` on, plus a bias."""

    def __init__(self, shape: tuple[int, ...], axis: int = 1, weight: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.axis = axis
        self.weight = nn.Parameter(torch.ones(shape)) if weight else None
        self.bias = nn.Parameter(torch.zeros(shape)) if bias else None

    def along(self, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        after = x.dim() - self.axis - weight.dim()
        return weight.reshape(list(weight.shape) + [1] * after)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight is not None:
            x = x * self.along(self.weight, x)
        return x if self.bias is None else x + self.along(self.bias, x)
