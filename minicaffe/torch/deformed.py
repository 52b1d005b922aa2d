"""The deformable layers in PyTorch's operators: samples gathered from the flat map.

torchvision's deform_conv2d is ModulatedDeformableConvolution; DeformableConvolution is another function past the last pixels'
centres.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from minicaffe.layers.conv.deformable_convolution import DeformableConvolution as OurDeformableConvolution
from minicaffe.layers.roi.deformable_psroi_pooling import DeformablePSROIPooling

from .apply import Step
from .boxes import rois_table
from .weights import Weighted


def neighbours(low: Tensor, high: Tensor, share: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(pixel, share) of both pixels of a sample along an axis."""
    return (low, 1 - share), (high, share)


class DeformableConvolution(Weighted):
    """DeformableConvolution, and with a mask ModulatedDeformableConvolution."""

    def __init__(self, layer: OurDeformableConvolution) -> None:
        super().__init__(layer)
        self.window, self.rim = layer.rimmed_window, layer.rim
        self.group, self.deformable_group = layer.group, layer.deformable_group

    def forward(self, x: Tensor, offset: Tensor, mask: Tensor | None = None) -> Tensor:
        x = functional.pad(x, [self.rim] * 4)
        count, channels, *size = x.shape
        output, groups, window = offset.shape[2:], self.deformable_group, self.window
        moves = offset.reshape(count, groups, *window.kernel, 2, *output)
        maps = x.reshape(count, groups, channels // groups, size[0] * size[1])
        rows, columns = (self._axis(moves[:, :, :, :, i], i, size[i]) for i in (0, 1))
        inside, samples = (rows[0] & columns[0])[:, :, None], torch.zeros((), dtype=x.dtype, device=x.device)
        for row, of_row in neighbours(*rows[1:]):
            for column, of_column in neighbours(*columns[1:]):
                pixel = torch.where(inside[:, :, 0], row * size[1] + column, 0).flatten(2)[:, :, None]
                values = maps.gather(3, pixel.expand(-1, -1, maps.shape[2], -1)).unflatten(3, inside.shape[3:])
                samples = samples + values * (of_row * of_column)[:, :, None]
        samples = torch.where(inside, samples, 0)
        if mask is not None:
            samples = samples * mask.reshape(count, groups, 1, *samples.shape[3:])
        samples = samples.reshape(count, self.group, -1, output[0] * output[1])
        y = (self.weight.reshape(self.group, len(self.weight) // self.group, -1) @ samples).reshape(count, -1, *output)
        return y if self.bias is None else y + self.bias[:, None, None]

    def _axis(self, moves: Tensor, i: int, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """moves (N, groups, kh, kw, OH, OW) -> inside, low, high, share of high."""
        window, before, after = self.window, (1, 0)[i], (0, 1)[i]
        tap = torch.arange(window.kernel[i], device=moves.device) * window.dilation[i]
        corner = torch.arange(moves.shape[4 + i], device=moves.device) * window.stride[i] - window.pad[i]
        tap = tap.reshape(-1, *[1] * (before + 2))
        corner = corner.reshape(-1, *[1] * (1 - after))
        at = (tap + corner).to(moves.dtype) + moves
        inside = (at >= 0) & (at < size)
        own = torch.where(inside, tap.to(moves.dtype) + moves, 0)
        low = (own.floor().long() + corner).clamp(0, size - 1)
        last = low >= size - 1
        return inside, low, torch.where(last, low, low + 1), torch.where(last, 0, own - own.detach().floor())


def deformable_psroi_pooling(layer: DeformablePSROIPooling) -> Step:
    operator = layer.operator
    group, n = operator.group_size, operator.sample_per_part

    def axis(start: Tensor, step: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """start (R, K, G, G), step (R,) -> used, low, high, share of high, each (R, K, G, G, n)."""
        number = torch.arange(n, dtype=start.dtype, device=start.device)
        places = start[..., None] + number * step[:, None, None, None, None]
        used = (places >= -0.5) & (places <= size - 0.5)
        places = torch.where(used, places, 0).clamp(0, size - 1)
        low = places.detach().floor()
        return used, low.long(), places.detach().ceil().long(), places - low

    def run(x: Tensor, rois: Tensor, trans: Tensor | None = None) -> Tensor:
        rois = rois_table(rois, x)
        count, channels, *size = x.shape
        dim = channels // group**2
        rounded = rois[:, 1:].sign() * (rois[:, 1:].abs() + 0.5).floor()
        ends: Any = torch.tensor([0.0, 0, 1, 1], dtype=x.dtype, device=x.device)
        corners = (rounded + ends) * operator.spatial_scale - 0.5
        extent = (corners[:, 2:] - corners[:, :2]).clamp(min=0.1)  # (R, 2): across, down
        edges = torch.arange(group, dtype=x.dtype, device=x.device) * (extent / group)[..., None] + corners[:, :2, None]
        moves = x.new_zeros(len(rois), 1, 2, group, group)
        if trans is not None and not operator.no_trans:
            parts = torch.as_tensor(operator.parts(layer.dtype), device=x.device)
            moves = trans.unflatten(1, (-1, 2))[..., parts[:, None], parts] * operator.trans_std
        step = extent / group / n
        columns = axis(edges[:, 0, None, None, :] + moves[:, :, 0] * extent[:, 0, None, None, None], step[:, 0], size[1])
        rows = axis(edges[:, 1, None, :, None] + moves[:, :, 1] * extent[:, 1, None, None, None], step[:, 1], size[0])
        used = (rows[0][..., None] & columns[0][..., None, :]).repeat_interleave(dim // moves.shape[1], 1)
        maps = x.reshape(count, dim, group, group, -1)[rois[:, 0].long()]
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for row, of_row in neighbours(*rows[1:]):
            for column, of_column in neighbours(*columns[1:]):
                pixel = (row[..., None] * size[1] + column[..., None, :]).repeat_interleave(dim // moves.shape[1], 1)
                share = (of_row[..., None] * of_column[..., None, :]).repeat_interleave(dim // moves.shape[1], 1)
                values = maps.gather(4, pixel.flatten(4)).unflatten(4, (n, n))
                total = total + torch.where(used, values * share, 0).sum((4, 5))
        return total / used.sum((4, 5)).clamp(min=1)

    return run
