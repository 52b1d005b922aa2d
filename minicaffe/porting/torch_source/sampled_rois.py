"""ROI layers that sample maps between their pixels, and what cascades do with rois, as lines of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.layers.conv.deformable_convolution import DeformableConvolution, ModulatedDeformableConvolution
from minicaffe.layers.forks.mnc import MaskResize
from minicaffe.layers.forks.mscnn.box_output import BoxOutput
from minicaffe.layers.forks.mscnn.cascade import DecodeBBox
from minicaffe.layers.roi.psroi_align import PSROIAlign
from minicaffe.layers.roi.roi_align import ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_warping import ROIWarping

from .forms import Shapes, source
from .source import Source, literal


def _pooled(bottom: Sequence[str], top: Shapes, scale: float) -> str:
    return f"{bottom[0]}, {bottom[1]}, {top[0][2]}, {top[0][3]}, {literal(scale)}"


@source(ROIAlignMean)
def roi_align(s: Source, layer: ROIAlignMean, bottom: Sequence[str], top: Shapes) -> str:
    s.part("roi_align")
    operator = layer.operator
    samples = f", samples={operator.sampling_ratio}" if operator.sampling_ratio > 0 else ""
    return f"roi_align({_pooled(bottom, top, layer.spatial_scale)}{samples}{', aligned=True' * operator.aligned})"


@source(ROIAlignMax)
def roi_align_max(s: Source, layer: ROIAlignMax, bottom: Sequence[str], top: Shapes) -> str:
    if len(bottom) > 2:
        raise layer.error("with a third bottom has no form", "bottom[2]")
    s.part("roi_align_max")
    return f"roi_align_max({_pooled(bottom, top, layer.spatial_scale)})"


@source(PSROIAlign)
def psroi_align(s: Source, layer: PSROIAlign, bottom: Sequence[str], top: Shapes) -> str:
    s.part("psroi_align")
    operator = layer.operator
    sizes = f"{top[0][1]}, {operator.group_size}, {literal(layer.spatial_scale)}, {operator.sample_num}"
    return f"psroi_align({bottom[0]}, {bottom[1]}, {sizes})"


@source(ROIWarping)
def roi_warping(s: Source, layer: ROIWarping, bottom: Sequence[str], top: Shapes) -> str:
    s.part("roi_warp")
    return f"roi_warp({_pooled(bottom, top, layer.spatial_scale)})"


@source(MaskResize)
def mask_resize(s: Source, layer: MaskResize, bottom: Sequence[str], top: Shapes) -> str:
    s.part("mask_resize")
    return f"mask_resize({bottom[0]}, {top[0][2]}, {top[0][3]})"


@source(DeformableConvolution, ModulatedDeformableConvolution)
def deformable_convolution(s: Source, layer: DeformableConvolution, bottom: Sequence[str], top: Shapes) -> str:
    s.part("deformable_conv")
    window = layer.window
    sizes = (window.kernel, window.stride, window.pad, window.dilation)
    options = "".join(
        f", {name}={value}" for name, value in (("groups", layer.group), ("deformable", layer.deformable_group)) if value != 1
    )
    options += ", bias=False" * (len(layer.blobs) == 1)
    written = ", ".join(str(tuple(int(n) for n in size)) for size in sizes)
    arrays = {name: np.asarray(blob.read_data()) for name, blob in zip(("weight", "bias"), layer.blobs)}
    made = s.module(layer, f"DeformableConv2d({layer.channels}, {layer.num_output}, {written}{options})", arrays)
    return f"{made}({', '.join(bottom)})"


@source(DecodeBBox)
def decode_bbox(s: Source, layer: DecodeBBox, bottom: Sequence[str], top: Shapes) -> str:
    if layer.is_by_class:
        raise layer.error("has no form: only Cascade R-CNN's", "type")
    s.part("box_output")
    return f"decode_bbox({bottom[0]}, {bottom[1]}, {literal(layer.means.tolist())}, {literal(layer.stds.tolist())})"


@source(BoxOutput)
def box_output(s: Source, layer: BoxOutput, bottom: Sequence[str], top: Shapes) -> str:
    block = layer.param.box_output_param
    if block.nms_type != "IOU":
        raise layer.error("has no form: only IOU", "box_output_param.nms_type")
    s.part("box_output")
    fields = [tuple(map(float, field)) for field in zip(block.field_w, block.field_h, block.downsample_rate, strict=True)]
    numbers = (block.fg_thr, block.min_size, block.iou_thr, block.max_nms_num, block.max_post_nms_num)
    tables = (fields, layer.means.tolist(), layer.stds.tolist(), layer.bounds.tolist())
    made = f"box_output([{', '.join(bottom)}], {', '.join(map(literal, (*tables, *numbers)))})"
    return made if len(top) > 1 else f"{made}[0]"
