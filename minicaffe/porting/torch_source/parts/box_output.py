"""BoxOutput and DecodeBBox, of MS-CNN and Cascade R-CNN. Sources: arXiv:1607.07155, arXiv:1712.00726."""

from __future__ import annotations

import torch

from .nms import nms


def decode_bbox(deltas: torch.Tensor, rois: torch.Tensor, means: list[float], stds: list[float]) -> torch.Tensor:
    """rois (R, 5): image, x1, y1, x2, y2, moved by the second four of deltas (R, 8): (R, 5, 1, 1)."""
    moves = deltas.reshape(-1, 8)[:, 4:] * deltas.new_tensor(stds) + deltas.new_tensor(means)
    rows = rois.reshape(-1, 5)
    size = rows[:, 3:] - rows[:, 1:3] + 1
    middle, half = rows[:, 1:3] + size / 2 + moves[:, :2] * size, size * moves[:, 2:].exp() / 2
    return torch.cat([rows[:, :1], middle - half, middle + half - 1], 1)[..., None, None].detach()


def box_output(
    maps: list[torch.Tensor],
    fields: list[tuple[float, float, float]],
    means: list[float],
    stds: list[float],
    bounds: list[float],
    score: float,
    least: float,
    overlap: float,
    before: int,
    most: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best rois (R, 5, 1, 1) of each image, and with their scores (R, 6, 1, 1), from maps (N, K + 4, H, W): scores of K
    classes, background first, then deltas. fields: width, height and stride of each map. before, most: limits of the NMS."""
    found = []
    for image in range(len(maps[0])):
        parts = []
        for each, (width, height, stride) in zip(maps, fields):
            x = each[image].detach()
            moves = x[-4:].permute(1, 2, 0) * x.new_tensor(stds) + x.new_tensor(means)
            moves = moves.clamp(-x.new_tensor(bounds), x.new_tensor(bounds))
            rows, columns = (torch.arange(n, dtype=x.dtype, device=x.device) + 0.5 for n in x.shape[1:])
            cells = torch.stack([columns.expand(len(rows), -1), rows[:, None].expand(-1, len(columns))], 2) * stride
            extent = x.new_tensor([width, height])
            size = extent * moves[..., 2:].exp()
            corner = (moves[..., :2] * extent + cells - size / 2).clamp(min=0)
            size = torch.minimum(size, x.new_tensor([x.shape[2] * stride, x.shape[1] * stride]) - corner)
            best = x[1:-4].amax(0) - x[0]
            kept = (best >= score) & (size >= least).all(2)
            parts.append(torch.cat([corner[kept], corner[kept] + size[kept], best[kept][:, None]], 1))
        boxes = torch.cat(parts).flip(0)  # of equal scores the last comes first
        boxes = boxes[boxes[:, 4].sort(descending=True, stable=True).indices[: before or None]]
        boxes = boxes[nms(boxes[:, :4], overlap, most, unit=0)]
        found.append(torch.cat([boxes.new_full((len(boxes), 1), image), boxes], 1))
    rows = torch.cat(found)
    if not len(rows):
        rows = maps[0].new_tensor([[0, 1, 1, 10, 10, 0]])
        return rows[:, :5, None, None], torch.zeros_like(rows)[..., None, None]
    return rows[:, :5, None, None], rows[..., None, None]
