"""ROIPooling. Source: Fast R-CNN (arXiv:1504.08083)."""

from __future__ import annotations

import torch

from .bins import bin_edges, rounded


def roi_pool(x: torch.Tensor, rois: torch.Tensor, height: int, width: int, scale: float) -> torch.Tensor:
    """ROIPooling: the maximum of each bin of each roi (R, 5): image, x1, y1, x2, y2. (R, C, height, width)."""
    pooled = []
    for roi in rois.reshape(-1, 5).detach().cpu():
        x1, y1, x2, y2 = rounded(roi[1:] * scale)
        rows = bin_edges(y1, (y2 - y1 + 1).clamp(min=1) / height, height, x.shape[2])
        columns = bin_edges(x1, (x2 - x1 + 1).clamp(min=1) / width, width, x.shape[3])
        image = x[int(roi[0])]
        cells = [image[:, top:bottom, left:right].flatten(1) for top, bottom in rows for left, right in columns]
        best = [each.max(1).values if each.shape[1] else each.new_zeros(len(each)) for each in cells]
        pooled.append(torch.stack(best, 1).reshape(-1, height, width))
    return torch.stack(pooled) if pooled else x.new_zeros(0, x.shape[1], height, width)
