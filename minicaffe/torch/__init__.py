"""minicaffe for PyTorch: the ROI operators with gradients, and nets as torch Modules. Needs PyTorch: minicaffe[torch].

roi_pool, roi_align, roi_align_max, ps_roi_pool, ps_roi_align, nms     functions of tensors (roi.py)
RoIPool, ROIAlign, PSRoIPool, ..., and the old names                   Modules (roi.py)
to_torch                                                               a Net as a Module (net.py)
"""

from __future__ import annotations

from minicaffe.errors import Error, install

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    raise Error(f"minicaffe.torch needs PyTorch: {install('torch')}") from _error

from .net import CaffeNet, to_torch
from .our_layer import OurLayer
from .roi import (
    PSRoIAlign,
    PSRoIPool,
    ROIAlign,
    RoIAlignMax,
    RoIPool,
    RoIPoolFunction,
    _RoIPooling,
    nms,
    ps_roi_align,
    ps_roi_pool,
    roi_align,
    roi_align_max,
    roi_pool,
)

__all__ = [
    "CaffeNet",
    "OurLayer",
    "PSRoIAlign",
    "PSRoIPool",
    "ROIAlign",
    "RoIAlignMax",
    "RoIPool",
    "RoIPoolFunction",
    "_RoIPooling",
    "nms",
    "ps_roi_align",
    "ps_roi_pool",
    "roi_align",
    "roi_align_max",
    "roi_pool",
    "to_torch",
]
