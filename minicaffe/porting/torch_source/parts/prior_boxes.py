"""SSD's PriorBox."""

from __future__ import annotations

import torch


def prior_boxes(
    maps: torch.Tensor,
    image: torch.Tensor,
    sides: list[list[float]],
    variance: list[float],
    step: list[float],
    size: list[float],
    offset: float,
    clip: bool,
) -> torch.Tensor:
    """SSD's boxes (1, 2, H * W * len(sides) * 4): corners relative to the image, then their variances.

    sides: width and height of each box. step, size: between cells and of the image, height and width; [] where they follow from
    the shapes.
    """
    high, wide = [float(length) for length in (size or image.shape[2:])]
    rows, columns = maps.shape[2:]
    down, right = step or [high / rows, wide / columns]
    y = ((torch.arange(rows, dtype=torch.float64) + offset) * down).float().double()
    x = ((torch.arange(columns, dtype=torch.float64) + offset) * right).float().double()
    centre = torch.stack([x.repeat(rows), y.repeat_interleave(columns)], 1)[:, None]
    half = torch.tensor(sides, dtype=torch.float64) / 2
    whole = torch.tensor([wide, high, wide, high], dtype=torch.float64)
    boxes = (torch.cat([centre - half, centre + half], 2) / whole).to(maps)
    boxes = boxes.clamp(0, 1) if clip else boxes
    each = torch.tensor(variance).to(maps).expand(4).repeat(boxes.numel() // 4)
    return torch.stack([boxes.flatten(), each])[None]
