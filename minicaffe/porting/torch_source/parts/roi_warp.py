"""ROIWarping. Source: Multi-task Network Cascades (arXiv:1512.04412)."""

from __future__ import annotations

import torch

from .bilinear import sampled
from .bins import rounded


def roi_warp(x: torch.Tensor, rois: torch.Tensor, height: int, width: int, scale: float) -> torch.Tensor:
    """ROIWarping: one bilinear sample at the start of each bin of each roi (R, 5): image, x1, y1, x2, y2; 0 off the map."""

    def axis(first: torch.Tensor, last: torch.Tensor, bins: int, size: int) -> torch.Tensor:
        places = torch.arange(bins, dtype=x.dtype)[:, None] * ((last - first).clamp(min=0) / bins) + first
        return torch.where((places >= -0.5) & (places <= size - 0.5), places, torch.nan)

    pooled = []
    for roi in rois.reshape(-1, 5).detach().cpu():
        x1, y1, x2, y2 = rounded(roi[1:] * scale)
        pooled.append(sampled(x[int(roi[0])], axis(y1, y2, height, x.shape[2]), axis(x1, x2, width, x.shape[3])))
    return torch.stack(pooled) if pooled else x.new_zeros(0, x.shape[1], height, width)
