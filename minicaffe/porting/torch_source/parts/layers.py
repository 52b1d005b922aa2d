"""Layers of feature maps that PyTorch's own functions lack. Sources: Caffe's .cpp files of these names.

DeformableConv2d is DeformableConvolution (arXiv:1703.06211), and with a mask ModulatedDeformableConvolution (arXiv:1811.11168).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def pool_windows(
    x: torch.Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    mean: bool,
    floor: bool,
    counts_padding: bool = True,
) -> torch.Tensor:
    """Pool as Caffe for any stride and padding, over all windows that start inside the padded map."""
    ends, lengths = [], []
    for size, k, step, p in zip(x.shape[2:], kernel, stride, pad):
        left = size + 2 * p - k
        count = left // step + 1 if floor else -(-left // step) + 1
        if any(pad) and (count - 1) * step >= size + p:
            count -= 1
        ends.append((p, (count - 1) * step + k - size - p))
        starts = torch.arange(count) * step - p
        lengths.append((starts + k).clamp(max=size + p) - starts)
        if not counts_padding:
            lengths[-1] = (starts + k).clamp(max=size) - starts.clamp(min=0)
    if not mean:
        least = torch.finfo(torch.float32).min  # what Caffe's maxima begin at, and a window without pixels has
        return F.max_pool2d(F.pad(x, (*ends[1], *ends[0]), value=least), kernel, stride)
    sums = F.avg_pool2d(F.pad(x, (*ends[1], *ends[0])), kernel, stride, divisor_override=1)
    return sums / torch.outer(*lengths).to(x)


def mvn(x: torch.Tensor, axes: tuple[int, ...], eps: float | None = None) -> torch.Tensor:
    """Return x minus its mean over these of its four axes, divided by its deviation plus eps; without eps not divided."""
    x = x.reshape(list(x.shape) + [1] * (4 - x.dim()))
    x = x - x.mean(axes, keepdim=True)
    return x if eps is None else x / (x.square().mean(axes, keepdim=True).sqrt() + eps)


class Normalize(nn.Module):
    """SSD's normalization: x over its Euclidean norm, times one learnt scale, or one for each channel.

    The norm is that of each position, or with across_spatial of the whole image.
    """

    def __init__(self, scales: int, across_spatial: bool, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(scales))
        self.axes = (1, 2, 3) if across_spatial else (1,)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = (x.square().sum(self.axes, keepdim=True) + self.eps).sqrt()
        return x / norm * self.weight.reshape(1, -1, 1, 1)


def along(weight: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """Return weight with axes of length 1 after it, so that it lies along x's axes from `axis` on."""
    return weight.reshape(list(weight.shape) + [1] * (x.dim() - axis - weight.dim()))


class Scale(nn.Module):
    """x times a weight that lies along its axes from `axis` on, its own or a given one, plus a bias."""

    def __init__(self, shape: tuple[int, ...], axis: int = 1, weight: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.axis = axis
        self.weight = nn.Parameter(torch.ones(shape)) if weight else None
        self.bias = nn.Parameter(torch.zeros(shape)) if bias else None

    def forward(self, x: torch.Tensor, given: torch.Tensor | None = None) -> torch.Tensor:
        weight = self.weight if given is None else given
        if weight is not None:
            x = x * along(weight, x, self.axis)
        return x if self.bias is None else x + along(self.bias, x, self.axis)


def unpool(x: torch.Tensor, mask: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return maps (N, C, height, width) of zeros, with each number of x (N, C, H, W) at the index in mask, h * width + w."""
    maps = x.new_zeros(x.shape[0], x.shape[1], height * width)
    return maps.scatter(2, mask.flatten(2).long(), x.flatten(2)).unflatten(2, (height, width))


class Embed(nn.Module):
    """A table's row for each whole number, plus a bias."""

    def __init__(self, rows: int, columns: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns))
        self.bias = nn.Parameter(torch.zeros(columns)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.weight[x.long()]
        return y if self.bias is None else y + self.bias


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
        (is_row, *rows), (is_column, *columns) = (
            self.neighbours(axis, moves[:, :, :, axis], (down, across), x.shape[2 + axis], rim) for axis in (0, 1)
        )
        maps = x.reshape(images, self.deformable, channels // self.deformable, height * width)
        values = x.new_zeros(())
        for row, of_row in ((rows[0], 1 - rows[2]), (rows[1], rows[2])):
            for column, of_column in ((columns[0], 1 - columns[2]), (columns[1], columns[2])):
                index = (row * width + column).flatten(2)[:, :, None].expand(-1, -1, maps.shape[2], -1)
                values = values + maps.gather(3, index) * (of_row * of_column).flatten(2)[:, :, None]
        values = torch.where((is_row & is_column).flatten(2)[:, :, None], values, 0)
        if mask is not None:
            values = values * mask.reshape(images, self.deformable, 1, taps * down * across)
        samples = values.reshape(images, self.groups, -1, down * across)
        found = (self.weight.reshape(self.groups, -1, samples.shape[2]) @ samples).reshape(images, -1, down, across)
        return found if self.bias is None else found + self.bias[:, None, None]

    def neighbours(
        self, axis: int, moves: torch.Tensor, windows: tuple[int, int], size: int, rim: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return, along an axis, whether the samples are inside, the pixels before and after them, and the latter's weight.

        Samples are (N, deformable, taps, windows). The weight comes from the place within the window, so it is also exact far
        from 0.
        """
        kernel = self.weight.shape[2:]
        tap = torch.arange(kernel[axis], device=moves.device) * self.dilation[axis]
        tap = (tap.repeat(kernel[0]) if axis else tap.repeat_interleave(kernel[1]))[:, None]
        start = torch.arange(windows[axis], device=moves.device) * self.stride[axis] - self.padding[axis] + rim
        start = start.repeat(windows[0]) if axis else start.repeat_interleave(windows[1])
        at = (tap + start).to(moves) + moves
        inside = (at >= 0) & (at < size)
        within = torch.where(inside, tap.to(moves) + moves, 0)
        low = (within.detach().floor().long() + start).clamp(0, size - 1)
        last = low >= size - 1
        return inside, low, torch.where(last, low, low + 1), torch.where(last, 0, within - within.detach().floor())
