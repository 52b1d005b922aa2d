"""MaskResize. Source: Multi-task Network Cascades (arXiv:1512.04412)."""

from __future__ import annotations

import torch

from .bilinear import bilinear


def mask_resize(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """x (N, C, H, W) at places i * H / height and j * W / width, bilinear: (N, C, height, width)."""
    rows, columns = (
        bilinear(torch.arange(count, dtype=torch.float64) * (size / count), size).to(x)
        for count, size in ((height, x.shape[2]), (width, x.shape[3]))
    )
    return rows @ x @ columns.T
