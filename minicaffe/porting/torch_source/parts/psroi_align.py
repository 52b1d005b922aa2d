"""PSROIAlign. Source: afantideng's R-FCN-PSROIAlign."""

from __future__ import annotations

import torch

from .bilinear import bilinear


def psroi_align(x: torch.Tensor, rois: torch.Tensor, outputs: int, group: int, scale: float, samples: int) -> torch.Tensor:
    """PSROIAlign: bin (i, j) of output c is the mean of samples^2 bilinear samples of score map (c * group + i) * group + j.

    rois (R, 5): image, x1, y1, x2, y2. Samples at or past a bin's end count as 0. (R, outputs, group, group).
    """

    def axis(first: torch.Tensor, end: torch.Tensor, size: int) -> torch.Tensor:
        length, index = (end - first).clamp(min=0.1) / group, torch.arange(group + 1, dtype=x.dtype)
        edges = (index * length + first).clamp(0, size - 1)
        places = edges[:-1, None] + torch.arange(1, samples + 1, dtype=x.dtype) * length / (samples + 1)
        places = torch.where(places < edges[1:, None], places, torch.nan)
        return bilinear(places.flatten(), size).reshape(group, samples, size).sum(1).to(x)

    maps = x.reshape(len(x), outputs, group, group, *x.shape[2:])
    pooled = []
    for roi in rois.reshape(-1, 5).detach().cpu():
        x1, y1 = roi[1:3] * scale
        x2, y2 = (roi[3:] + 1) * scale
        rows, columns = axis(y1, y2, x.shape[2]), axis(x1, x2, x.shape[3])
        pooled.append(torch.einsum("ih,oijhw,jw->oij", rows, maps[int(roi[0])], columns) / samples**2)
    return torch.stack(pooled) if pooled else x.new_zeros(0, outputs, group, group)
