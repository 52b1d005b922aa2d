"""SSD's Normalize."""

from __future__ import annotations

import torch
from torch import nn


class Normalize(nn.Module):
    """x over its Euclidean norm at each position (or of the whole image), times a learnt scale, or one a channel: SSD's."""

    def __init__(self, scales: int, across_spatial: bool, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(scales))
        self.axes = (1, 2, 3) if across_spatial else (1,)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = (x.square().sum(self.axes, keepdim=True) + self.eps).sqrt()
        return x / norm * self.weight.reshape(1, -1, 1, 1)
