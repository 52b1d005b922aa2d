"""Pooling (MAX with one top, and AVE) and LRN with torch's functions, built from their layers."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from minicaffe.layer import Layer
from minicaffe.layers.norm.lrn import WITHIN_CHANNEL
from minicaffe.layers.pool.pooling import AVE, Pooling
from minicaffe.layers.pool.pooling_windows import LOWEST, PoolAxis, pool_axes

from .apply import Step


def pooling(layer: Pooling) -> Step:
    """Caffe's windows: torch's function where its windows are the same."""
    param, (kernel, stride, pad) = layer.param.pooling_param, layer.sizes
    floor, counts_padding = layer.floor, layer.counts_padding
    mean = layer.method == AVE

    def run(x: Tensor) -> Tensor:
        windows = tuple(x.shape[2:]) if param.global_pooling else kernel
        axes = pool_axes(x.shape[2:], windows, stride, pad, floor, counts_padding)
        if not all(map(_torch_has, axes)):
            return _padded_pool(x, axes, mean)
        pool = partial(functional.avg_pool2d, count_include_pad=counts_padding) if mean else functional.max_pool2d
        return pool(x, windows, stride, pad, ceil_mode=not floor)

    return run


def _torch_has(axis: PoolAxis) -> bool:
    """Whether torch has these windows: padding of half a kernel at most, and none that starts past the map."""
    return 2 * axis.pad <= axis.kernel and (axis.pooled - 1) * axis.stride < axis.size + axis.pad


def _padded_pool(x: Tensor, axes: tuple[PoolAxis, PoolAxis], mean: bool) -> Tensor:
    """Pooling of a map that is padded, or cut, to what the windows cover."""
    ends = [(a.pad, (a.pooled - 1) * a.stride + a.kernel - a.size - a.pad) for a in axes]
    kernel, stride = (tuple(getattr(a, name) for a in axes) for name in ("kernel", "stride"))
    if not mean:
        covered = functional.pad(x, (*ends[1], *ends[0]), value=-torch.inf)  # pad takes the last axis first; below 0 it cuts
        return functional.max_pool2d(covered, kernel, stride).clamp(min=LOWEST)  # Caffe's maximum of nothing
    covered = functional.pad(x, (*ends[1], *ends[0]))
    sizes = torch.outer(*(torch.from_numpy(a.lengths("f8")) for a in axes)).to(x)
    # sums; the divisors are Caffe's, which clip to size + pad
    return functional.avg_pool2d(covered, kernel, stride, divisor_override=1) / sizes


def lrn(layer: Layer) -> Step:
    param = layer.param.lrn_param
    size, alpha, beta = param.local_size, param.alpha, param.beta
    if param.norm_region != WITHIN_CHANNEL:
        return lambda x: functional.local_response_norm(x, size, alpha, beta, param.k)  # torch divides alpha by size too
    return lambda x: x / (1 + alpha * functional.avg_pool2d(x * x, size, 1, size // 2)) ** beta  # k is 1 here, as in Caffe
