"""Mask R-CNN's ROIAlign. Source: Mask R-CNN (arXiv:1703.06870)."""

from __future__ import annotations

import torch

from .bilinear import sampled


def roi_align(
    x: torch.Tensor, rois: torch.Tensor, height: int, width: int, scale: float, samples: int = 0, aligned: bool = False
) -> torch.Tensor:
    """ROIAlign: the mean of a grid of bilinear samples in each bin of each roi (R, 5): image, x1, y1, x2, y2.

    samples: along a side of a bin; 0: as many as the bin has pixels. (R, C, height, width).
    """

    def axis(first: torch.Tensor, last: torch.Tensor, bins: int, size: int) -> torch.Tensor:
        length = (last - first if aligned else (last - first).clamp(min=1)) / bins
        count = samples or max(int(torch.ceil(length)), 0)
        inside = (torch.arange(count, dtype=x.dtype) + 0.5) * length / max(count, 1)
        places = torch.arange(bins, dtype=x.dtype)[:, None] * length + first + inside
        return torch.where((places >= -1) & (places <= size), places, torch.nan)

    pooled = []
    for roi in rois.reshape(-1, 5).detach().cpu():
        x1, y1, x2, y2 = roi[1:] * scale - (0.5 if aligned else 0)
        rows, columns = axis(y1, y2, height, x.shape[2]), axis(x1, x2, width, x.shape[3])
        pooled.append(sampled(x[int(roi[0])], rows, columns) / max(rows.shape[1] * columns.shape[1], 1))
    return torch.stack(pooled) if pooled else x.new_zeros(0, x.shape[1], height, width)
