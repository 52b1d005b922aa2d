"""SegNet's Upsample, and Unpooling."""

from __future__ import annotations

import torch


def unpool(x: torch.Tensor, mask: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Maps (N, C, height, width) of zeros with each number of x (N, C, H, W) at its place h * width + w, which mask has."""
    maps = x.new_zeros(x.shape[0], x.shape[1], height * width)
    return maps.scatter(2, mask.flatten(2).long(), x.flatten(2)).unflatten(2, (height, width))
