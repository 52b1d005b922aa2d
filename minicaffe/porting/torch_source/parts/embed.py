"""Caffe's Embed."""

from __future__ import annotations

import torch
from torch import nn


class Embed(nn.Module):
    """The row of a table for each whole number, plus a bias."""

    def __init__(self, rows: int, columns: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns))
        self.bias = nn.Parameter(torch.zeros(columns)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.weight[x.long()]
        return y if self.bias is None else y + self.bias
