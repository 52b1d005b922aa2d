"""Non-maximum suppression."""

from __future__ import annotations

import torch


def nms(boxes: torch.Tensor, threshold: float, limit: int = 0, unit: float = 1.0) -> torch.Tensor:
    """Indices of the boxes (N, 4), best first, that overlap no kept one before by more than threshold; limit: most (0: all).

    unit: 1 where x2 and y2 are pixels in the box, so that its width is x2 - x1 + 1; 0 where they are points.
    """
    areas = (boxes[:, 2] - boxes[:, 0] + unit) * (boxes[:, 3] - boxes[:, 1] + unit)
    kept: list[torch.Tensor] = []
    left = torch.arange(len(boxes), device=boxes.device)
    while len(left) and not (limit and len(kept) == limit):
        best, left = left[0], left[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[left, :2])
        high = torch.minimum(boxes[best, 2:], boxes[left, 2:])
        shared = (high - low + unit).clamp(min=0).prod(1)
        left = left[~(shared / (areas[best] + areas[left] - shared) > threshold)]
    return torch.stack(kept) if kept else torch.zeros(0, dtype=torch.long, device=boxes.device)
