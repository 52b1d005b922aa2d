"""Boxes: proposals, priors, detections and non-maximum suppression.

proposal is py-faster-rcnn's rpn/proposal_layer.py; prior_boxes and detection_output are SSD's; decode_bbox and box_output are
those of MS-CNN (arXiv:1607.07155) and Cascade R-CNN (arXiv:1712.00726).
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def nms(boxes: torch.Tensor, threshold: float, limit: int = 0, unit: float = 1.0) -> torch.Tensor:
    """Return indices of the boxes (N, 4), best first, that overlap no earlier kept one by more than threshold.

    limit: the most boxes (0: all).

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
    """Return the region proposal network's scores (1, 2 A, H, W) and deltas (1, 4 A, H, W) as rois (R, 5) with scores (R, 1).

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


def prior_boxes(
    maps: torch.Tensor,
    image: torch.Tensor,
    sides: list[list[float]],
    variance: list[float],
    step: list[float],
    size: list[float],
    places: list[list[float]],
    shifts: list[list[float]],
    clip: bool,
) -> torch.Tensor:
    """Return SSD's boxes (1, 2, H * W * len(sides) * len(places) * 4): corners relative to the image, then their variances.

    sides: width and height of each box. step, size: between cells and of the image, height and width; [] where they follow from
    the shapes. places: of each box in a cell, down and right, in cells. shifts: of each side, right and down, in pixels; [] for
    none.
    """
    high, wide = [float(length) for length in (size or image.shape[2:])]
    rows, columns = maps.shape[2:]
    down, right = step or [high / rows, wide / columns]
    place = torch.tensor(places, dtype=torch.float64)
    y = ((torch.arange(rows, dtype=torch.float64)[:, None] + place[:, 0]) * down).float()
    x = ((torch.arange(columns, dtype=torch.float64)[:, None] + place[:, 1]) * right).float()
    centre = torch.stack([x.repeat(rows, 1), y.repeat_interleave(columns, 0)], 2)[:, None]
    centre = (centre + torch.tensor(shifts or [[0.0, 0.0]])[:, None]).double()
    half = torch.tensor(sides, dtype=torch.float64)[:, None] / 2
    whole = torch.tensor([wide, high, wide, high], dtype=torch.float64)
    boxes = (torch.cat([centre - half, centre + half], 3) / whole).to(maps)
    boxes = boxes.clamp(0, 1) if clip else boxes
    each = maps.new_tensor(variance).expand(4).repeat(boxes.numel() // 4)
    return torch.stack([boxes.flatten(), each])[None]


@torch.no_grad()
def detection_output(
    loc: torch.Tensor,
    conf: torch.Tensor,
    priors: torch.Tensor,
    classes: int,
    background: int,
    shared: bool,
    encoded: bool,
    least: float,
    overlap: float,
    most_before: int,
    most: int,
) -> torch.Tensor:
    """Return SSD's detections (1, 1, n, 7): image, class, score and corners relative to the image.

    Without any, they are a row of -1 for each image.

    loc: codes (N, P * 4 * classes, or P * 4 where the classes share them); conf (N, P * classes); priors (1, 2, P * 4).
    most_before, most: boxes of a class before the suppression, and of an image after it; -1 for all.
    """
    prior, variance = priors.reshape(2, -1, 4)
    low, size = prior[:, :2], prior[:, 2:] - prior[:, :2]
    found = []
    for i in range(len(loc)):
        codes = loc[i].reshape(len(prior), -1, 4)
        moves = codes if encoded else codes * variance[:, None]
        centre = moves[..., :2] * size[:, None] + (low + prior[:, 2:])[:, None] / 2
        half = moves[..., 2:].exp() * size[:, None] / 2
        boxes = torch.cat([centre - half, centre + half], 2)
        scores = conf[i].reshape(-1, classes)
        rows = []
        for label in range(classes):
            if label == background:
                continue
            likely = torch.nonzero(scores[:, label] > least)[:, 0]
            order = likely[scores[likely, label].argsort(descending=True, stable=True)]
            order = order if most_before < 0 else order[:most_before]
            own = boxes[order, 0 if shared else label]
            kept = nms(own, overlap, unit=0.0)
            head = torch.stack([own.new_full((len(kept),), float(v)) for v in (i, label)] + [scores[order[kept], label]], 1)
            rows.append(torch.cat([head, own[kept]], 1))
        table = torch.cat(rows)
        if 0 <= most < len(table):
            best = table[:, 2].argsort(descending=True, stable=True)[:most]
            table = table[best.sort().values]
        found.append(table)
    table = torch.cat(found)
    if not len(table):
        table = torch.cat([torch.arange(len(loc)).to(loc)[:, None], loc.new_full((len(loc), 6), -1)], 1)
    return table[None, None]


def decode_bbox(deltas: torch.Tensor, rois: torch.Tensor, means: list[float], stds: list[float]) -> torch.Tensor:
    """Return rois (R, 5), image, x1, y1, x2, y2, moved by the second four of deltas (R, 8), as (R, 5, 1, 1)."""
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
    """Return the best rois (R, 5, 1, 1) of each image, and the same with their scores (R, 6, 1, 1).

    maps (N, K + 4, H, W): scores of K classes, background first, then deltas. fields: width, height and stride of each map.
    before, most: limits of the NMS.
    """
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
