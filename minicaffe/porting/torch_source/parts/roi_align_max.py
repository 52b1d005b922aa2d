"""Caffe's ROIAlign: maxima of samples at unit steps. Source: the ROIAlign layer written for Caffe."""

from __future__ import annotations

import torch


def roi_align_max(x: torch.Tensor, rois: torch.Tensor, height: int, width: int, scale: float) -> torch.Tensor:
    """The greatest of the bilinear samples, one pixel apart, in each bin of each roi (R, 5): image, x1, y1, x2, y2.

    A sample at a whole coordinate has its pixel twice, one past the map less of it. (R, C, height, width).
    """

    def axis(first: torch.Tensor, last: torch.Tensor, bins: int, size: int) -> list[torch.Tensor]:
        length, index = (last - first + 1) / bins, torch.arange(bins + 1, dtype=x.dtype)
        edges = (index * length + first).clamp(0, size)
        counts = torch.ceil(edges[1:] - edges[:-1]).clamp(min=0).long()
        return [weights(edges[i] + torch.arange(int(counts[i]), dtype=x.dtype), size) for i in range(bins)]

    def weights(places: torch.Tensor, size: int) -> torch.Tensor:
        found, sample = places.new_zeros(len(places), size + 1), torch.arange(len(places))
        for pixel, share in ((places.floor(), 1 - places + places.floor()), (places.ceil(), 1 - places.ceil() + places)):
            found.index_put_((sample, pixel.long()), share, accumulate=True)
        return found[:, :size].to(x)

    pooled = []
    for roi in rois.reshape(-1, 5).detach().cpu():
        x1, y1, x2, y2 = roi[1:] * scale
        image, best = x[int(roi[0])], []
        columns = axis(x1, x2, width, x.shape[3])
        for row in axis(y1, y2, height, x.shape[2]):
            for column in columns:
                values = (row @ image @ column.T).flatten(1)
                best.append(values.max(1).values if values.shape[1] else values.new_zeros(len(image)))
        pooled.append(torch.stack(best, 1).reshape(-1, height, width))
    return torch.stack(pooled) if pooled else x.new_zeros(0, x.shape[1], height, width)
