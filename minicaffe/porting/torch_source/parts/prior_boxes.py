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
    places: list[list[float]],
    shifts: list[list[float]],
    clip: bool,
) -> torch.Tensor:
    """SSD's boxes (1, 2, H * W * len(sides) * len(places) * 4): corners relative to the image, then their variances.

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
