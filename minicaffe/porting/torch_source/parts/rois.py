"""ROI layers, and the samples and bins that they share.

roi_pool (arXiv:1504.08083), psroi_pool (R-FCN, arXiv:1605.06409), roi_align (Mask R-CNN, arXiv:1703.06870), psroi_align
(afantideng's R-FCN-PSROIAlign), roi_align_max (the ROIAlign layer written for Caffe), roi_warp and mask_resize (Multi-task
Network Cascades, arXiv:1512.04412).
"""

from __future__ import annotations

import torch


def bilinear(places: torch.Tensor, size: int) -> torch.Tensor:
    """Return the weights (K, size) of an axis's pixels in the values at places (K,).

    A place past the first or last pixel has that pixel's value, NaN none.
    """
    inside = places.nan_to_num().clamp(0, size - 1)
    low = inside.long()
    share, used = inside - low, (~places.isnan()).to(places.dtype)
    weights, sample = places.new_zeros(len(places), size), torch.arange(len(places))
    weights.index_put_((sample, low), (1 - share) * used, accumulate=True)
    weights.index_put_((sample, (low + 1).clamp(max=size - 1)), share * used, accumulate=True)
    return weights


def sampled(image: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return the sums of the samples of each bin (C, PH, PW), of image (C, H, W) at rows (PH, KH) and columns (PW, KW)."""
    high, wide = bilinear(rows.flatten(), image.shape[1]), bilinear(columns.flatten(), image.shape[2])
    return high.reshape(*rows.shape, -1).sum(1).to(image) @ image @ wide.reshape(*columns.shape, -1).sum(1).to(image).T


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest whole number, half away from zero, as C's round."""
    return torch.sign(x) * torch.floor(x.abs() + 0.5)


def bin_edges(start: torch.Tensor, size: torch.Tensor, count: int, most: int) -> list[tuple[int, int]]:
    """Return the first and end cell of `count` bins of this size from `start` on, clipped to 0 and most."""
    index = torch.arange(count + 1, dtype=start.dtype)
    first = torch.floor(index[:-1] * size + start).clamp(0, most).long()
    end = torch.ceil(index[1:] * size + start).clamp(0, most).long()
    return list(zip(first.tolist(), end.tolist()))


def roi_pool(x: torch.Tensor, rois: torch.Tensor, height: int, width: int, scale: float) -> torch.Tensor:
    """Return the maximum of each bin (R, C, height, width), as ROIPooling does. rois (R, 5): image, x1, y1, x2, y2."""
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


def psroi_pool(x: torch.Tensor, rois: torch.Tensor, outputs: int, group: int, scale: float) -> torch.Tensor:
    """Pool as PSROIPooling: bin (i, j) of output c is the mean of its cells in score map (c * group + i) * group + j.

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


def roi_align(
    x: torch.Tensor, rois: torch.Tensor, height: int, width: int, scale: float, samples: int = 0, aligned: bool = False
) -> torch.Tensor:
    """Pool as ROIAlign: the mean of a grid of bilinear samples in each bin of each roi (R, 5): image, x1, y1, x2, y2.

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


def psroi_align(x: torch.Tensor, rois: torch.Tensor, outputs: int, group: int, scale: float, samples: int) -> torch.Tensor:
    """Pool as PSROIAlign: bin (i, j) of output c is the mean of samples^2 bilinear samples.

    They are from score map (c * group + i) * group + j.

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


def roi_align_max(x: torch.Tensor, rois: torch.Tensor, height: int, width: int, scale: float) -> torch.Tensor:
    """Return the greatest bilinear sample, one pixel apart, in each bin of each roi (R, 5): image, x1, y1, x2, y2.

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


def roi_warp(x: torch.Tensor, rois: torch.Tensor, height: int, width: int, scale: float) -> torch.Tensor:
    """Pool as ROIWarping: one bilinear sample at the start of each bin, 0 off the map. rois (R, 5): image, x1, y1, x2, y2."""

    def axis(first: torch.Tensor, last: torch.Tensor, bins: int, size: int) -> torch.Tensor:
        places = torch.arange(bins, dtype=x.dtype)[:, None] * ((last - first).clamp(min=0) / bins) + first
        return torch.where((places >= -0.5) & (places <= size - 0.5), places, torch.nan)

    pooled = []
    for roi in rois.reshape(-1, 5).detach().cpu():
        x1, y1, x2, y2 = rounded(roi[1:] * scale)
        pooled.append(sampled(x[int(roi[0])], axis(y1, y2, height, x.shape[2]), axis(x1, x2, width, x.shape[3])))
    return torch.stack(pooled) if pooled else x.new_zeros(0, x.shape[1], height, width)


def mask_resize(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return bilinear samples (N, C, height, width) of x (N, C, H, W) at places i * H / height and j * W / width."""
    rows, columns = (
        bilinear(torch.arange(count, dtype=torch.float64) * (size / count), size).to(x)
        for count, size in ((height, x.shape[2]), (width, x.shape[3]))
    )
    return rows @ x @ columns.T
