"""Regions and boxes: proposals, priors, ROI layers and detections, as lines of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.layers.forks.mnc import MaskResize
from minicaffe.layers.forks.mscnn.box_output import BoxOutput
from minicaffe.layers.forks.mscnn.cascade import DecodeBBox
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.roi.psroi_align import PSROIAlign
from minicaffe.layers.roi.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_align import ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.layers.roi.roi_warping import ROIWarping
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.layers.ssd.prior_box import PriorBox
from minicaffe.proto import caffe_pb2

from .source import Shapes, Source, literal, number, source


@source(Proposal)
def proposal(s: Source, layer: Proposal, bottom: Sequence[str], top: Shapes) -> str:
    if layer.by_param or layer.unnormalise:
        raise layer.error("has no form: only py-faster-rcnn's", "type")
    anchors = [[float(value) for value in anchor] for anchor in layer.anchors]
    limits = layer.limits
    numbers = (int(layer.stride), limits.pre_nms_top_n, limits.post_nms_top_n, limits.nms_threshold, limits.min_size)
    table = s.constant(f"{layer.name}_anchors", anchors)
    made = f"proposal({', '.join(bottom)}, {table}, {', '.join(map(literal, numbers))})"
    return made if len(top) > 1 else f"{made}[0]"


@source(PriorBox)
def prior_box(s: Source, layer: PriorBox, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.prior_box_param
    lists = [[float(value) for value in each or ()] for each in (layer.variance, layer.step, layer.image)]
    pairs = layer.sides, layer.offsets, layer.shifts if layer.shifts.any() else ()
    sides, places, shifts = ([[float(value) for value in pair] for pair in each] for each in pairs)
    numbers = f"{', '.join(map(literal, (sides, *lists, places, shifts)))}, {param.clip}"
    return f"prior_boxes({', '.join(bottom)}, {numbers})"


@source(DetectionOutput, subclasses=True)
def detection_output(s: Source, layer: DetectionOutput, bottom: Sequence[str], top: Shapes) -> str:
    p = layer.param.detection_output_param
    if layer.of_cells or layer.refines or p.nms_param.eta < 1 or p.code_type != caffe_pb2.PriorBoxParameter.CENTER_SIZE:
        raise layer.error("has no form: only SSD's with CENTER_SIZE codes, and eta 1", "detection_output_param")
    least = number(layer, p.confidence_threshold if p.HasField("confidence_threshold") else -np.inf)
    before = p.nms_param.top_k if p.nms_param.HasField("top_k") else -1
    flags = f"{p.num_classes}, {p.background_label_id}, {p.share_location}, {p.variance_encoded_in_target}"
    ends = f"{number(layer, p.nms_param.nms_threshold)}, {before}, {p.keep_top_k}"
    return f"detection_output({', '.join(bottom)}, {flags}, {least}, {ends})"


@source(DecodeBBox)
def decode_bbox(s: Source, layer: DecodeBBox, bottom: Sequence[str], top: Shapes) -> str:
    if layer.is_by_class:
        raise layer.error("has no form: only Cascade R-CNN's", "type")
    return f"decode_bbox({bottom[0]}, {bottom[1]}, {literal(layer.means.tolist())}, {literal(layer.stds.tolist())})"


@source(BoxOutput)
def box_output(s: Source, layer: BoxOutput, bottom: Sequence[str], top: Shapes) -> str:
    block = layer.param.box_output_param
    if block.nms_type != "IOU":
        raise layer.error("has no form: only IOU", "box_output_param.nms_type")
    fields = [tuple(map(float, field)) for field in zip(block.field_w, block.field_h, block.downsample_rate, strict=True)]
    numbers = (block.fg_thr, block.min_size, block.iou_thr, block.max_nms_num, block.max_post_nms_num)
    tables = (fields, layer.means.tolist(), layer.stds.tolist(), layer.bounds.tolist())
    made = f"box_output([{', '.join(bottom)}], {', '.join(map(literal, (*tables, *numbers)))})"
    return made if len(top) > 1 else f"{made}[0]"


def _pooled(bottom: Sequence[str], top: Shapes, scale: float) -> str:
    return f"{bottom[0]}, {bottom[1]}, {top[0][2]}, {top[0][3]}, {literal(scale)}"


@source(ROIPooling)
def roi_pooling(s: Source, layer: ROIPooling, bottom: Sequence[str], top: Shapes) -> str:
    if layer.param.roi_pooling_param.pad_ratio:
        raise layer.error("with pad_ratio has no form", "roi_pooling_param.pad_ratio")
    return f"roi_pool({_pooled(bottom, top, layer.spatial_scale)})"


@source(PSROIPooling)
def psroi_pooling(s: Source, layer: PSROIPooling, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.psroi_pooling_param
    return f"psroi_pool({bottom[0]}, {bottom[1]}, {param.output_dim}, {param.group_size}, {literal(layer.spatial_scale)})"


@source(ROIAlignMean)
def roi_align(s: Source, layer: ROIAlignMean, bottom: Sequence[str], top: Shapes) -> str:
    operator = layer.operator
    samples = f", samples={operator.sampling_ratio}" if operator.sampling_ratio > 0 else ""
    return f"roi_align({_pooled(bottom, top, layer.spatial_scale)}{samples}{', aligned=True' * operator.aligned})"


@source(ROIAlignMax)
def roi_align_max(s: Source, layer: ROIAlignMax, bottom: Sequence[str], top: Shapes) -> str:
    if len(bottom) > 2:
        raise layer.error("with a third bottom has no form", "bottom[2]")
    return f"roi_align_max({_pooled(bottom, top, layer.spatial_scale)})"


@source(PSROIAlign)
def psroi_align(s: Source, layer: PSROIAlign, bottom: Sequence[str], top: Shapes) -> str:
    operator = layer.operator
    sizes = f"{top[0][1]}, {operator.group_size}, {literal(layer.spatial_scale)}, {operator.sample_num}"
    return f"psroi_align({bottom[0]}, {bottom[1]}, {sizes})"


@source(ROIWarping)
def roi_warping(s: Source, layer: ROIWarping, bottom: Sequence[str], top: Shapes) -> str:
    return f"roi_warp({_pooled(bottom, top, layer.spatial_scale)})"


@source(MaskResize)
def mask_resize(s: Source, layer: MaskResize, bottom: Sequence[str], top: Shapes) -> str:
    return f"mask_resize({bottom[0]}, {top[0][2]}, {top[0][3]})"
