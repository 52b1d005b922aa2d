"""Bins of rois."""

from __future__ import annotations

import torch


def rounded(x: torch.Tensor) -> torch.Tensor:
    """To the nearest whole number, half away from zero, as C's round."""
    return torch.sign(x) * torch.floor(x.abs() + 0.5)


def bin_edges(start: torch.Tensor, size: torch.Tensor, count: int, most: int) -> list[tuple[int, int]]:
    """First and end of the cells of each of `count` bins from `start` on, of this size each; within 0 and most."""
    index = torch.arange(count + 1, dtype=start.dtype)
    first = torch.floor(index[:-1] * size + start).clamp(0, most).long()
    end = torch.ceil(index[1:] * size + start).clamp(0, most).long()
    return list(zip(first.tolist(), end.tolist()))
