"""The ROI operators as functions of tensors, with gradients: the layers' operators work on the tensors' memory.

x (N, C, H, W) is float32 or float64; float16 and bfloat16 are computed in float32 and cast back, under autocast too. rois: see
boxes.rois_table. Only x has a gradient, and there is no second gradient. Tensors on a GPU: roi_gpu.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as operator_index
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from minicaffe.errors import Error
from minicaffe.layers.roi.operator import RoiOperator
from minicaffe.layers.roi.psroi_align import PsRoiAlign
from minicaffe.layers.roi.psroi_pooling import PsRoiPool
from minicaffe.layers.roi.roi_align_max import RoiAlignMax
from minicaffe.layers.roi.roi_align_mean import RoiAlign
from minicaffe.layers.roi.roi_pooling import RoiPool

from .boxes import rois_table
from .roi_gpu import backward_on_gpu, pool_on_gpu

Rois: TypeAlias = Tensor | Sequence[Tensor]
Size: TypeAlias = int | tuple[int, int]


class Pool(Function):
    """An operator's forward and backward. apply(x (N, C, H, W), rois (R, 5) of x's type, operator) -> y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rois: Tensor, operator: RoiOperator) -> Tensor:
        ctx.operator = operator
        if x.is_cuda:
            ctx.save_for_backward(x, rois)
            return pool_on_gpu(operator, x, rois)
        y, ctx.saved = operator.forward(x.detach().numpy(), rois.numpy(), with_argmax=ctx.needs_input_grad[0])
        return torch.from_numpy(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None]:
        if dy.is_cuda:
            return backward_on_gpu(ctx.operator, dy.contiguous(), *ctx.saved_tensors), None, None
        return torch.from_numpy(ctx.operator.backward(dy.contiguous().numpy(), ctx.saved)).contiguous(), None, None


def pooled(operator: RoiOperator, x: Tensor, rois: Rois) -> Tensor:
    """y of an operator, in x's type."""
    if not isinstance(x, Tensor) or x.ndim != 4 or not x.is_floating_point():
        raise Error(f"the feature map must be a floating-point tensor (N, C, H, W), got {_text(x)}")
    given = x if x.dtype in (torch.float32, torch.float64) else x.float()  # NumPy and the kernels have no bfloat16
    y: Tensor = Pool.apply(given, rois_table(rois, given), operator)
    return y.to(x.dtype)


def _text(x: object) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def grid(size: Size, spatial_scale: float) -> dict[str, Any]:
    """The parameters that operators with an output size have in common."""
    pooled_h, pooled_w = pair(size)
    return {"pooled_h": pooled_h, "pooled_w": pooled_w, "spatial_scale": float(spatial_scale)}


def pair(size: Size) -> tuple[int, int]:
    """An output size, one number or (height, width)."""
    both: Any = (size, size) if hasattr(size, "__index__") else size  # also NumPy's and torch's whole numbers
    try:
        h, w = both
        return operator_index(h), operator_index(w)
    except (TypeError, ValueError):
        raise Error(f"an output size is a whole number, or two: height and width; got {size!r}") from None


def roi_pool(x: Tensor, rois: Rois, output_size: Size, spatial_scale: float = 1.0) -> Tensor:
    """Caffe's ROIPooling: maxima (R, C, PH, PW)."""
    return pooled(RoiPool(**grid(output_size, spatial_scale)), x, rois)


def roi_align(
    x: Tensor, rois: Rois, output_size: Size, spatial_scale: float = 1.0, sampling_ratio: int = 0, aligned: bool = False
) -> Tensor:
    """Mask R-CNN's ROIAlign: means of bilinear samples (R, C, PH, PW). sampling_ratio 0 or -1: as many as a bin has pixels."""
    given = grid(output_size, spatial_scale)
    return pooled(RoiAlign(**given, sampling_ratio=int(sampling_ratio), aligned=bool(aligned)), x, rois)


def roi_align_max(x: Tensor, rois: Rois, output_size: Size, spatial_scale: float = 1.0) -> Tensor:
    """The ROIAlign written for Caffe: maxima of bilinear samples (R, C, PH, PW)."""
    return pooled(RoiAlignMax(**grid(output_size, spatial_scale)), x, rois)


def ps_roi_pool(x: Tensor, rois: Rois, group_size: int, spatial_scale: float = 1.0) -> Tensor:
    """R-FCN's PSROIPooling: x (N, D * G * G, H, W) -> averages (R, D, G, G). torchvision's ps_roi_pool is another function."""
    return pooled(PsRoiPool(group_size=int(group_size), spatial_scale=float(spatial_scale)), x, rois)


def ps_roi_align(x: Tensor, rois: Rois, group_size: int, spatial_scale: float = 1.0, sample_num: int = 2) -> Tensor:
    """PSROIAlign: x (N, D * G * G, H, W) -> averages of sample_num^2 bilinear samples (R, D, G, G)."""
    operator = PsRoiAlign(group_size=int(group_size), spatial_scale=float(spatial_scale), sample_num=int(sample_num))
    return pooled(operator, x, rois)
