"""The ROI operators on tensors on a GPU: the kernels of cuda/ read and write the tensors' memory. Needs minicaffe[gpu].

    our stream waits for torch's current one -> kernels -> the host waits for ours, and raises what they found of bad rois

So what torch queued before is done when a kernel reads, and y and dx are done when torch gets them. The host waits once a
call, for the stream of its thread. PyCUDA launches only on its own streams, so torch's stream cannot be used.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minicaffe.blob import Access, DeviceArray
from minicaffe.cuda import device as gpu
from minicaffe.cuda.roi import Winners
from minicaffe.cuda.stream import Stream
from minicaffe.errors import Error
from minicaffe.layers.roi.operator import RoiOperator

OPERATORS = 64
"""The number of operators whose kernels a thread keeps, with their scratch memory."""


class Lent:
    """A tensor's memory, with the methods of a Blob that cuda/roi.py calls."""

    def __init__(self, tensor: Tensor) -> None:
        self.address, self.count = tensor.data_ptr(), tensor.numel()

    def device_data(self, access: Access) -> int:
        return self.address

    def device_diff(self, access: Access) -> int:
        return self.address


def lent(tensor: Tensor) -> DeviceArray:
    """Return the memory of a contiguous tensor."""
    return Lent(tensor)


class _Own(threading.local):
    """A thread's streams, by GPU, and the kernels of the operators that it used last, with their scratch memory.

    Each thread has its own: on a shared stream, one thread's bad rois would raise an error in another.
    """

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.kernels = functools.lru_cache(OPERATORS)(lambda operator, dtype, ordinal: operator.gpu_kernels(dtype))


_own = _Own()


def pool_on_gpu(operator: RoiOperator, x: Tensor, rois: Tensor) -> Tensor:
    """Return y of x (N, C, H, W) and rois (R, 5), of one type, on one GPU.

    Raises Error for bad rois, DeviceError without PyCUDA.
    """
    x, rois = x.detach().contiguous(), rois.contiguous()
    sizes, y = operator.sizes(x.shape, len(rois)), x.new_empty(len(rois), *operator.bins(x.shape[1]))
    if not y.numel():
        return y
    with on_gpu(operator, x) as kernels:
        bad = _watch(len(rois))
        if isinstance(kernels, Winners):
            kernels.pool(sizes, lent(x), lent(rois), y.data_ptr(), 0, bad)
        else:
            kernels.pool(sizes, lent(x), lent(rois), lent(y), bad)
    return y


def backward_on_gpu(operator: RoiOperator, dy: Tensor, x: Tensor, rois: Tensor) -> Tensor:
    """Return dx, of x's shape."""
    x, rois = x.detach().contiguous(), rois.contiguous()
    if not dy.numel() or not x.numel():
        return torch.zeros_like(x)
    sizes, dx = operator.sizes(x.shape, len(rois)), torch.empty_like(x)
    blobs = lent(rois), lent(dy), lent(dx)
    with on_gpu(operator, x) as kernels:
        bad = _watch(len(rois))
        if isinstance(kernels, Winners):
            # Compute argmax here: a forward without gradient does not need it.
            argmax = kernels.scratch.address("argmax", dy.numel(), np.int32)
            kernels.pool(sizes, lent(x), blobs[0], 0, argmax, bad)
            kernels.backward(sizes, blobs[0], argmax, *blobs[1:], bad)
        else:
            kernels.backward(sizes, *blobs, bad)
    return dx


def _watch(rois: int) -> int:
    """Return the address of the flag that a kernel sets to R - (first bad row)."""
    return gpu.current().current_stream.watch(
        lambda left: Error(f"roi {rois - left} is bad: its image or a corner is out of range")
    )


@contextmanager
def on_gpu(operator: RoiOperator, x: Tensor) -> Iterator[Any]:
    """In the block, run on x's GPU after torch's queued work; at the end wait. Gives the operator's kernels."""
    dtype = np.dtype(np.float64 if x.dtype == torch.float64 else np.float32)
    with gpu.chosen(x.device.index or 0) as device:
        stream = _own.streams.get(device.ordinal)
        if stream is None:
            stream = _own.streams[device.ordinal] = Stream(device)
        if x.is_cuda:
            ours = torch.cuda.ExternalStream(stream.handle.handle, device=x.device)  # wraps PyCUDA's stream for torch
            ours.wait_stream(torch.cuda.current_stream(x.device))
        with device.running(stream):
            yield _own.kernels(operator, dtype, device.ordinal)
