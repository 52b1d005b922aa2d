"""The ROI operators on tensors that lie on a GPU: the kernels of cuda/, on the tensors' own memory. Needs minicaffe[gpu].

    our stream waits for torch's current one -> kernels -> the host waits for ours, and raises what they found of bad rois

So what torch queued before is done when a kernel reads, and y and dx are done when torch gets them; the host waits once
a call. PyCUDA launches on no stream but its own, so that torch's cannot be used itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from minicaffe.blob import Access, Blob, DeviceArray
from minicaffe.cuda import device as gpu
from minicaffe.cuda.roi import Means, PositionSensitive, Sizes, Winners
from minicaffe.errors import Error
from minicaffe.layers.roi.psroi_layer import check_channels

from .operators import Operator, PsRoiAlign, PsRoiPool, RoiAlign, RoiAlignMax, RoiPool


class Lent:
    """A tensor's memory, as cuda/roi.py asks a blob for its own."""

    def __init__(self, tensor: Tensor) -> None:
        self.address, self.count = tensor.data_ptr(), tensor.numel()

    def device_data(self, access: Access) -> int:
        return self.address

    def device_diff(self, access: Access) -> int:
        return self.address


def lent(tensor: Tensor) -> DeviceArray:
    """The memory of a contiguous tensor."""
    return Lent(tensor)


def pool_on_gpu(operator: Operator, x: Tensor, rois: Tensor) -> Tensor:
    """y of x (N, C, H, W) and rois (R, 5), of one type, on one GPU. Raises Error for bad rois, DeviceError without PyCUDA."""
    x, rois = x.detach().contiguous(), rois.contiguous()
    sizes = sizes_of(operator, x, rois)
    y = x.new_zeros(sizes.rois, *_bin_shape(operator, x))
    if not y.numel():
        return y
    blobs = lent(x), lent(rois), lent(y)
    with on_gpu(x) as dtype:
        bad = _watch(len(rois))
        match operator:
            case RoiPool() | RoiAlignMax():
                Winners(_stem(operator), dtype).pool(sizes, blobs[0], blobs[1], y.data_ptr(), 0, bad)
            case RoiAlign():
                Means(dtype, operator.sampling_ratio, operator.aligned).pool(sizes, *blobs, bad)
            case PsRoiPool() | PsRoiAlign():
                _position_sensitive(operator, dtype).pool(sizes, *blobs, bad)
    return y


def spread_on_gpu(operator: Operator, dy: Tensor, x: Tensor, rois: Tensor) -> Tensor:
    """dx of x's shape."""
    x, rois = x.detach().contiguous(), rois.contiguous()
    sizes, dx = sizes_of(operator, x, rois), torch.zeros_like(x)
    if not dy.numel() or not dx.numel():
        return dx
    blobs = lent(rois), lent(dy), lent(dx)
    with on_gpu(x) as dtype:
        bad = _watch(len(rois))
        match operator:
            case RoiPool() | RoiAlignMax():
                winners, at = Winners(_stem(operator), dtype), Blob(dy.shape, np.int32)
                winners.pool(sizes, lent(x), blobs[0], 0, at.device_data("write"), bad)
                winners.backward(sizes, blobs[0], at.device_data("read"), *blobs[1:], bad)
            case RoiAlign():
                Means(dtype, operator.sampling_ratio, operator.aligned).backward(sizes, *blobs, bad)
            case PsRoiPool() | PsRoiAlign():
                _position_sensitive(operator, dtype).backward(sizes, *blobs, bad)
    return dx


def sizes_of(operator: Operator, x: Tensor, rois: Tensor) -> Sizes:
    """The kernels' first arguments."""
    images, channels, height, width = x.shape
    _, *pooled = _bin_shape(operator, x)
    return Sizes(len(rois), images, channels, height, width, pooled[0], pooled[1], cast(Any, operator).scale)


def _bin_shape(operator: Operator, x: Tensor) -> tuple[int, int, int]:
    """y's axes after the rois."""
    channels = x.shape[1]
    if isinstance(operator, PsRoiPool | PsRoiAlign):
        check_channels(channels, operator.group)
        return channels // operator.group**2, operator.group, operator.group
    sizes = cast(Any, operator)
    return channels, sizes.height, sizes.width


def _stem(operator: Operator) -> str:
    return "roi_pooling" if isinstance(operator, RoiPool) else "roi_align_max"


def _position_sensitive(operator: PsRoiPool | PsRoiAlign, dtype: np.dtype[Any]) -> PositionSensitive:
    if isinstance(operator, PsRoiPool):
        return PositionSensitive("psroi_pooling", dtype)
    return PositionSensitive("psroi_align", dtype, operator.samples)


def _watch(rois: int) -> int:
    """The address of the flag that a kernel sets to R - (first bad row)."""
    return gpu.current().current_stream.watch(
        lambda left: Error(f"roi {rois - left} is bad: its image or a corner is out of range")
    )


@contextmanager
def on_gpu(x: Tensor) -> Iterator[np.dtype[Any]]:
    """Send launches to x's GPU, after what torch has queued there; at the end wait for them. Gives x's type."""
    dtype = np.dtype(np.float64 if x.dtype == torch.float64 else np.float32)
    with gpu.chosen(x.device.index or 0) as device:
        stream = device.stream
        if x.is_cuda:
            ours = torch.cuda.ExternalStream(stream.handle.handle, device=x.device)
            ours.wait_stream(torch.cuda.current_stream(x.device))
        with device.running(stream):
            yield dtype
