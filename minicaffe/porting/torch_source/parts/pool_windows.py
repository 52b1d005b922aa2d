"""Pooling windows that PyTorch's own functions lack. Source: Caffe's pooling_layer.cpp."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def pool_windows(
    x: torch.Tensor, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int], mean: bool, floor: bool
) -> torch.Tensor:
    """Caffe's pooling for any stride and padding: as many windows as start inside the padded map."""
    ends, lengths = [], []
    for size, k, step, p in zip(x.shape[2:], kernel, stride, pad):
        left = size + 2 * p - k
        count = left // step + 1 if floor else -(-left // step) + 1
        if any(pad) and (count - 1) * step >= size + p:
            count -= 1
        ends.append((p, (count - 1) * step + k - size - p))
        starts = torch.arange(count) * step - p
        lengths.append((starts + k).clamp(max=size + p) - starts)
    if not mean:
        least = torch.finfo(torch.float32).min  # what Caffe's maxima begin at, and a window without pixels has
        return F.max_pool2d(F.pad(x, (*ends[1], *ends[0]), value=least), kernel, stride)
    sums = F.avg_pool2d(F.pad(x, (*ends[1], *ends[0])), kernel, stride, divisor_override=1)
    return sums / torch.outer(*lengths).to(x)
