"""PSROIPooling. Source: R-FCN (arXiv:1605.06409)."""

from __future__ import annotations

import torch

from .bins import bin_edges, rounded


def psroi_pool(x: torch.Tensor, rois: torch.Tensor, outputs: int, group: int, scale: float) -> torch.Tensor:
    """PSROIPooling: bin (i, j) of output c is the mean of its cells in score map (c * group + i) * group + j.

    rois (R, 5): image, x1, y1, x2, y2; the corners are rounded in the image. (R, outputs, group, group).
    """
    maps = x.reshape(len(x), outputs, group, group, *x.shape[2:])
    pooled = []
    for roi in rois.reshape(-1, 5).detach().cpu():
        low, high = rounded(roi[1:3]) * scale, (rounded(roi[3:]) + 1) * scale
        size = (high - low).clamp(min=0.1) / group
        columns = bin_edges(low[0], size[0], group, x.shape[3])
        rows = bin_edges(low[1], size[1], group, x.shape[2])
        image, means = maps[int(roi[0])], []
        for i, (top, bottom) in enumerate(rows):
            for j, (left, right) in enumerate(columns):
                cells = image[:, i, j, top:bottom, left:right].flatten(1)
                means.append(cells.mean(1) if cells.shape[1] else cells.new_zeros(outputs))
        pooled.append(torch.stack(means, 1).reshape(outputs, group, group))
    return torch.stack(pooled) if pooled else x.new_zeros(0, outputs, group, group)
