"""DeformableConvolution (arXiv:1703.06211), and with a mask ModulatedDeformableConvolution (arXiv:1811.11168)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class DeformableConv2d(nn.Module):
    """A convolution whose taps are moved by offsets (N, 2 * deformable * taps, OH, OW), of each tap first down, then right.

    x between pixels is bilinear, 0 outside [0, H) x [0, W), and past the last pixel's centre it is that pixel. With a mask
    (N, deformable * taps, OH, OW), the samples' factors, there are zeros around the map.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
        dilation: tuple[int, int], groups: int = 1, deformable: int = 1, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.stride, self.padding, self.dilation, self.groups, self.deformable = stride, padding, dilation, groups, deformable
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, *kernel))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        rim = 0 if mask is None else 1
        x = F.pad(x, (rim,) * 4)
        (images, channels, height, width), (down, across) = x.shape, offset.shape[2:]
        taps = self.weight.shape[2] * self.weight.shape[3]
        moves = offset.reshape(images, self.deformable, taps, 2, down * across)
        rows, columns = (self.places(axis, offset).to(x) + rim for axis in (0, 1))
        y, x_at = moves[:, :, :, 0] + rows, moves[:, :, :, 1] + columns  # (N, groups, taps, windows)
        inside = (y >= 0) & (y < height) & (x_at >= 0) & (x_at < width)
        y, x_at = y.clamp(0, height - 1), x_at.clamp(0, width - 1)
        top, left = y.detach().floor(), x_at.detach().floor()
        maps = x.reshape(images, self.deformable, channels // self.deformable, height * width)
        values = x.new_zeros(())
        for row, of_row in ((top, top + 1 - y), ((top + 1).clamp(max=height - 1), y - top)):
            for column, of_column in ((left, left + 1 - x_at), ((left + 1).clamp(max=width - 1), x_at - left)):
                index = (row * width + column).long().flatten(2)[:, :, None].expand(-1, -1, maps.shape[2], -1)
                share = (of_row * of_column * inside).flatten(2)[:, :, None]
                values = values + maps.gather(3, index) * share
        if mask is not None:
            values = values * mask.reshape(images, self.deformable, 1, taps * down * across)
        columns_of = values.reshape(images, channels * taps, down * across)
        kernels = self.weight.flatten(1).reshape(self.groups, -1, channels // self.groups * taps)
        found = torch.einsum("gok,ngkw->ngow", kernels, columns_of.reshape(images, self.groups, -1, down * across))
        found = found.reshape(images, -1, down, across)
        return found if self.bias is None else found + self.bias[:, None, None]

    def places(self, axis: int, offset: torch.Tensor) -> torch.Tensor:
        """Where the taps of the windows are along an axis before they are moved: (taps, windows)."""
        kernel, windows = self.weight.shape[2:], offset.shape[2:]
        start = torch.arange(windows[axis]) * self.stride[axis] - self.padding[axis]
        step = torch.arange(kernel[axis]) * self.dilation[axis]
        if axis == 0:
            return (step.repeat_interleave(kernel[1])[:, None] + start.repeat_interleave(windows[1])).to(offset.device)
        return (step.repeat(kernel[0])[:, None] + start.repeat(windows[0])).to(offset.device)
