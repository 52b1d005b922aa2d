"""The ROI operators as functions of tensors and as Modules, with gradients, and non-maximum suppression.

The layers' operators work on the tensors' memory.

x (N, C, H, W) is float32 or float64; float16 and bfloat16 are computed in float32 and cast back, under autocast too. rois: see
rois_table. Only x has a gradient, and there is no second gradient. Tensors on a GPU: roi_gpu.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as operator_index
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from minicaffe import ops
from minicaffe.errors import Error
from minicaffe.layers.roi.operator import RoiOperator
from minicaffe.layers.roi.psroi_align import PsRoiAlign
from minicaffe.layers.roi.psroi_pooling import PsRoiPool
from minicaffe.layers.roi.roi_align_max import RoiAlignMax
from minicaffe.layers.roi.roi_align_mean import RoiAlign
from minicaffe.layers.roi.roi_pooling import RoiPool

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
    """Return y of an operator, in x's type."""
    if not isinstance(x, Tensor) or x.ndim != 4 or not x.is_floating_point():
        raise Error(f"the feature map must be a floating-point tensor (N, C, H, W), got {_text(x)}")
    given = x if x.dtype in (torch.float32, torch.float64) else x.float()  # NumPy and the kernels lack bfloat16
    y: Tensor = Pool.apply(given, rois_table(rois, given), operator)
    return y.to(x.dtype)


def rois_table(rois: Rois, like: Tensor) -> Tensor:
    """Return rois as (R, 5) of like's type, on its device; like: the map (N, C, H, W).

    rois: (R, 5) or (R, 5, 1, 1) with the image's index first; (R, 4): all of image 0; or a list of (R_i, 4), one for each
    image. Raises Error for anything else.
    """
    if isinstance(rois, Tensor):
        table = rois.flatten(1) if rois.ndim == 4 else rois
        if table.ndim != 2 or table.shape[1] not in (4, 5):
            raise Error(f"rois must have shape (R, 5) or (R, 4), got {tuple(rois.shape)}")
        return (table if table.shape[1] == 5 else _of_image(table, 0)).detach().to(like)
    if len(rois) != len(like):
        raise Error(f"a list of rois has one tensor for each image: got {len(rois)} for {len(like)} images")
    for i, boxes in enumerate(rois):
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise Error(f"rois[{i}] must have shape (R, 4), got {tuple(boxes.shape)}")
    return torch.cat([like.new_zeros(0, 5), *(_of_image(boxes.detach().to(like), i) for i, boxes in enumerate(rois))])


def _of_image(boxes: Tensor, image: int) -> Tensor:
    return torch.cat([boxes.new_full((len(boxes), 1), image), boxes], dim=1)


def _text(x: object) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def grid(size: Size, spatial_scale: float) -> dict[str, Any]:
    """Return the parameters that all operators with an output size share."""
    pooled_h, pooled_w = pair(size)
    return {"pooled_h": pooled_h, "pooled_w": pooled_w, "spatial_scale": float(spatial_scale)}


def pair(size: Size) -> tuple[int, int]:
    """Return an output size, given as one number or (height, width), as a pair."""
    both: Any = (size, size) if hasattr(size, "__index__") else size  # __index__ also accepts NumPy's and torch's whole numbers
    try:
        h, w = both
        return operator_index(h), operator_index(w)
    except (TypeError, ValueError):
        raise Error(f"an output size is a whole number, or two: height and width; got {size!r}") from None


def roi_pool(x: Tensor, rois: Rois, output_size: Size, spatial_scale: float = 1.0) -> Tensor:
    """Pool as Caffe's ROIPooling: maxima (R, C, PH, PW)."""
    return pooled(RoiPool(**grid(output_size, spatial_scale)), x, rois)


def roi_align(
    x: Tensor, rois: Rois, output_size: Size, spatial_scale: float = 1.0, sampling_ratio: int = 0, aligned: bool = False
) -> Tensor:
    """Pool as Mask R-CNN's ROIAlign: means of bilinear samples (R, C, PH, PW).

    sampling_ratio 0 or -1: as many as a bin has pixels.
    """
    given = grid(output_size, spatial_scale)
    return pooled(RoiAlign(**given, sampling_ratio=int(sampling_ratio), aligned=bool(aligned)), x, rois)


def roi_align_max(x: Tensor, rois: Rois, output_size: Size, spatial_scale: float = 1.0) -> Tensor:
    """Pool as the ROIAlign written for Caffe: maxima of bilinear samples (R, C, PH, PW)."""
    return pooled(RoiAlignMax(**grid(output_size, spatial_scale)), x, rois)


def ps_roi_pool(x: Tensor, rois: Rois, group_size: int, spatial_scale: float = 1.0) -> Tensor:
    """Pool as R-FCN's PSROIPooling: x (N, D * G * G, H, W) -> averages (R, D, G, G).

    torchvision's ps_roi_pool is another function.
    """
    return pooled(PsRoiPool(group_size=int(group_size), spatial_scale=float(spatial_scale)), x, rois)


def ps_roi_align(x: Tensor, rois: Rois, group_size: int, spatial_scale: float = 1.0, sample_num: int = 2) -> Tensor:
    """Pool as PSROIAlign: x (N, D * G * G, H, W) -> averages of sample_num^2 bilinear samples (R, D, G, G)."""
    operator = PsRoiAlign(group_size=int(group_size), spatial_scale=float(spatial_scale), sample_num=int(sample_num))
    return pooled(operator, x, rois)


def nms(dets: Tensor, scores: Tensor | float, threshold: float | None = None) -> Tensor:
    """Return the indices (K,) of the boxes that are kept, best first.

    Call nms(boxes (N, 4), scores (N,), threshold), or nms(dets (N, 5), threshold) with the score in column 4.

    Areas count both ends (+1), and a box goes when it overlaps a better one by more than threshold, as in py-faster-rcnn
    and maskrcnn-benchmark; torchvision.ops.nms has no +1. Computed by the CPU, in float for half and bfloat16.
    """
    if threshold is None:
        if isinstance(scores, Tensor) and scores.ndim:
            raise Error("nms(boxes, scores, threshold) or nms(dets, threshold): there is no threshold")
        table, threshold = dets, float(scores)
    else:
        if not isinstance(scores, Tensor) or dets.ndim != 2 or dets.shape[1] != 4 or scores.shape != dets.shape[:1]:
            raise Error(f"boxes must be (N, 4) and scores (N,), got {_shape(dets)} and {_shape(scores)}")
        table = torch.cat([dets, scores.to(dets)[:, None]], dim=1)
    table = table.detach().cpu()
    kept = ops.nms((table if table.dtype == torch.float64 else table.float()).numpy(), threshold)
    return torch.from_numpy(kept.astype("int64")).to(dets.device)


def _shape(value: object) -> object:
    return tuple(value.shape) if isinstance(value, Tensor) else value


# The same as Modules, and under the names of old PyTorch code: _RoIPooling and RoIPoolFunction as in jwyang's
# faster-rcnn.pytorch, ROIAlign as in maskrcnn-benchmark.


class RoIPool(nn.Module):
    """roi_pool as a Module."""

    def __init__(self, output_size: Size, spatial_scale: float = 1.0) -> None:
        super().__init__()
        self.output_size, self.spatial_scale = output_size, float(spatial_scale)

    def forward(self, features: Tensor, rois: Rois) -> Tensor:
        return roi_pool(features, rois, self.output_size, self.spatial_scale)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(output_size={self.output_size}, spatial_scale={self.spatial_scale})"


class RoIAlignMax(RoIPool):
    """roi_align_max as a Module."""

    def forward(self, features: Tensor, rois: Rois) -> Tensor:
        return roi_align_max(features, rois, self.output_size, self.spatial_scale)


class _RoIPooling(RoIPool):
    """RoIPool with the arguments (pooled_height, pooled_width, spatial_scale)."""

    def __init__(self, pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
        super().__init__((int(pooled_height), int(pooled_width)), spatial_scale)
        self.pooled_height, self.pooled_width = pair(self.output_size)


class RoIPoolFunction:
    """The function of PyTorch before 1.5: RoIPoolFunction(pooled_height, pooled_width, spatial_scale)(features, rois)."""

    def __init__(self, pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
        self.pooled_height, self.pooled_width = int(pooled_height), int(pooled_width)
        self.spatial_scale = float(spatial_scale)

    def __call__(self, features: Tensor, rois: Rois) -> Tensor:
        return roi_pool(features, rois, (self.pooled_height, self.pooled_width), self.spatial_scale)


class ROIAlign(nn.Module):
    """roi_align as a Module, with maskrcnn-benchmark's arguments and repr."""

    def __init__(self, output_size: Size, spatial_scale: float, sampling_ratio: int, aligned: bool = False) -> None:
        super().__init__()
        self.output_size, self.spatial_scale = output_size, spatial_scale
        self.sampling_ratio, self.aligned = sampling_ratio, aligned

    def forward(self, input: Tensor, rois: Rois) -> Tensor:
        return roi_align(input, rois, self.output_size, self.spatial_scale, self.sampling_ratio, self.aligned)

    def __repr__(self) -> str:
        sizes = f"output_size={self.output_size}, spatial_scale={self.spatial_scale}, sampling_ratio={self.sampling_ratio}"
        return f"{type(self).__name__}({sizes}{', aligned=True' if self.aligned else ''})"


class PSRoIPool(nn.Module):
    """ps_roi_pool as a Module."""

    def __init__(self, group_size: int, spatial_scale: float = 1.0) -> None:
        super().__init__()
        self.group_size, self.spatial_scale = int(group_size), float(spatial_scale)

    def forward(self, features: Tensor, rois: Rois) -> Tensor:
        return ps_roi_pool(features, rois, self.group_size, self.spatial_scale)

    def extra_repr(self) -> str:
        return f"group_size={self.group_size}, spatial_scale={self.spatial_scale}"


class PSRoIAlign(PSRoIPool):
    """ps_roi_align as a Module."""

    def __init__(self, group_size: int, spatial_scale: float = 1.0, sample_num: int = 2) -> None:
        super().__init__(group_size, spatial_scale)
        self.sample_num = int(sample_num)

    def forward(self, features: Tensor, rois: Rois) -> Tensor:
        return ps_roi_align(features, rois, self.group_size, self.spatial_scale, self.sample_num)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sample_num={self.sample_num}"
