"""Region proposals. Source: py-faster-rcnn's rpn/proposal_layer.py."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from .nms import nms


@torch.no_grad()
def proposal(
    scores: torch.Tensor,
    deltas: torch.Tensor,
    im_info: torch.Tensor,
    anchors: list[list[float]],
    stride: int,
    most_before: int,
    most_after: int,
    overlap: float,
    least: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The region proposal network's scores (1, 2 A, H, W) and deltas (1, 4 A, H, W) as rois (R, 5) with their scores (R, 1).

    im_info: height, width and scale of the image. most_before, most_after: how many boxes go into and come out of the
    suppression of those that overlap by more than `overlap`; least: the least side in pixels of the photo.
    """
    count = len(anchors)
    height, width = scores.shape[2:]
    base = torch.tensor(anchors, dtype=scores.dtype, device=scores.device)
    y, x = (torch.arange(size, dtype=scores.dtype, device=scores.device) * stride for size in (height, width))
    x, y = x.repeat(height), y.repeat_interleave(width)
    boxes = (torch.stack([x, y, x, y], 1)[:, None] + base).reshape(-1, 4)
    score = scores[:, count:].permute(0, 2, 3, 1).reshape(-1)
    moves = deltas.permute(0, 2, 3, 1).reshape(-1, 4)
    size = boxes[:, 2:] - boxes[:, :2] + 1
    centre = boxes[:, :2] + size * 0.5 + moves[:, :2] * size
    half = moves[:, 2:].exp() * size * 0.5
    high, wide, scale = im_info.reshape(-1)[:3].tolist()
    most = torch.tensor([wide, high, wide, high], dtype=scores.dtype, device=scores.device) - 1
    boxes = torch.minimum(torch.cat([centre - half, centre + half], 1), most).clamp(min=0)
    large = (boxes[:, 2:] - boxes[:, :2] + 1 >= least * scale).all(1)
    boxes, score = boxes[large], score[large]
    order = score.argsort(descending=True, stable=True)
    order = order[:most_before] if most_before > 0 else order
    kept = order[nms(boxes[order], overlap, max(most_after, 0))]
    return F.pad(boxes[kept], (1, 0)), score[kept][:, None]
