"""Bilinear samples of a map, as products with two matrices."""

from __future__ import annotations

import torch


def bilinear(places: torch.Tensor, size: int) -> torch.Tensor:
    """What each of size pixels adds to the values at places (K,) along an axis: (K, size). A place past the first or last
    pixel has that pixel's value, NaN none."""
    inside = places.nan_to_num().clamp(0, size - 1)
    low = inside.long()
    share, used = inside - low, (~places.isnan()).to(places.dtype)
    weights, sample = places.new_zeros(len(places), size), torch.arange(len(places))
    weights.index_put_((sample, low), (1 - share) * used, accumulate=True)
    weights.index_put_((sample, (low + 1).clamp(max=size - 1)), share * used, accumulate=True)
    return weights


def sampled(image: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """image (C, H, W) at rows (PH, KH) and columns (PW, KW): the sums of the samples of each bin (C, PH, PW)."""
    high, wide = bilinear(rows.flatten(), image.shape[1]), bilinear(columns.flatten(), image.shape[2])
    return high.reshape(*rows.shape, -1).sum(1).to(image) @ image @ wide.reshape(*columns.shape, -1).sum(1).to(image).T
