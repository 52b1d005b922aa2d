"""A small R-FCN, and a Faster R-CNN on ZF, both trained end to end with an RPN.

The R-FCN's trunk is small enough to train from scratch on a CPU. BatchNorm uses each image's own statistics, in TEST too,
because a batch is one image. ZF has the names and sizes of py-faster-rcnn's prototxts, so ImageNet's weights load.

Source: Dai et al., R-FCN (arXiv:1605.06409); Ren et al., Faster R-CNN (arXiv:1506.01497); Zeiler and Fergus (arXiv:1311.2901).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minicaffe.proto import caffe_pb2
from minicaffe.pycaffe.net_spec import NetSpec, layers, params

from .parts import MSRA, WEIGHTS, biased, convolution, gaussian, named, normalised

OWN_STATISTICS = {"use_global_stats": False}
TRUNK = ((16, 2, 1), (32, 2, 1), (32, 1, 1), (64, 2, 1), (64, 1, 1), (64, 1, 2), (64, 1, 4), (64, 1, 8))
"""The widths, strides and dilations of the R-FCN's convolutions."""
BINS = 3
"""The rows and columns of the R-FCN's position-sensitive score maps."""


def rfcn(classes: int, train: bool) -> caffe_pb2.NetParameter:
    """Return the R-FCN. classes: their number with the background."""
    n, stride = NetSpec(), 8
    _inputs(n, classes, train, (240, 320))
    last = n.data
    for i, (width, step, dilation) in enumerate(TRUNK, 1):
        last = _block(n, f"conv{i}", last, width, (f"bn_conv{i}", f"scale_conv{i}", f"relu{i}"), stride=step, dilation=dilation)
    scales = [1, 1.6, 2.5, 4, 6.5, 10.5]
    names = ("bn_rpn_conv", "scale_rpn_conv", "rpn_relu/3x3")
    rpn = _block(n, "rpn/output", last, 64, names, name="rpn_conv/3x3")
    _proposals(n, rpn, classes, train, stride, scales)
    names = ("bn_conv_new_1", "scale_conv_new_1", "conv_new_1_relu")
    new = _block(n, "conv_new_1", last, 64, names)
    pooled = {}
    for name, maps, values in (("rfcn_cls", "cls", classes), ("rfcn_bbox", "loc", 4 * classes)):
        n[name] = convolution(new, values * BINS**2, 1, **biased(gaussian(0.01)))
        pooled[maps] = f"psroipooled_{maps}_rois"
        n[pooled[maps]] = layers.PSROIPooling(n[name], n.rois, spatial_scale=1 / stride, output_dim=values, group_size=BINS)
    average = {"pool": params.Pooling.AVE, "kernel_size": BINS, "stride": BINS}
    n.cls_score = layers.Pooling(n[pooled["cls"]], name="ave_cls_score_rois", **average)
    box = "bbox_pred" if train else "bbox_pred_pre"
    n[box] = layers.Pooling(n[pooled["loc"]], name="ave_bbox_pred_rois", **average)
    if train:
        losses = (("loss", "loss_cls"), ("loss_bbox", "loss_bbox"))
        fixed = {"normalization": params.Loss.PRE_FIXED, "pre_fixed_normalizer": 64}
        _losses(n, losses, "SmoothL1LossOHEM", ["bbox_inside_weights"], loss_param=fixed)
        n.silence = layers.Silence(n.bbox_outside_weights, ntop=0)
    else:
        n.cls_prob_pre = layers.Softmax(n.cls_score, name="cls_prob")
        n.cls_prob = layers.Reshape(n.cls_prob_pre, name="cls_prob_reshape", shape={"dim": [-1, classes]})
        n.bbox_pred = layers.Reshape(n.bbox_pred_pre, name="bbox_pred_reshape", shape={"dim": [-1, 4 * classes]})
    return named(n, "R-FCN")


def zf(classes: int, train: bool) -> caffe_pb2.NetParameter:
    """Return the Faster R-CNN. classes: their number with the background."""
    n, stride = NetSpec(), 16
    _inputs(n, classes, train, (600, 800))
    last = n.data
    for i, (width, kernel, step) in enumerate(((96, 7, 2), (256, 5, 2), (384, 3, 1), (384, 3, 1), (256, 3, 1)), 1):
        n[f"conv{i}"] = convolution(last, width, kernel, step, **biased(MSRA))
        n[f"relu{i}"] = last = layers.ReLU(n[f"conv{i}"], in_place=True)
        if i <= 2:
            norm = {"local_size": 3, "alpha": 0.00005, "beta": 0.75, "norm_region": params.LRN.WITHIN_CHANNEL}
            n[f"norm{i}"] = layers.LRN(last, **norm)
            n[f"pool{i}"] = last = layers.Pooling(n[f"norm{i}"], pool=params.Pooling.MAX, kernel_size=3, stride=2, pad=1)
    n["rpn/output"] = convolution(last, 256, 3, name="rpn_conv/3x3", **biased(gaussian(0.01)))
    n["rpn_relu/3x3"] = layers.ReLU(n["rpn/output"], in_place=True)
    _proposals(n, n["rpn_relu/3x3"], classes, train, stride, None)
    n.roi_pool_conv5 = layers.ROIPooling(last, n.rois, pooled_w=6, pooled_h=6, spatial_scale=1 / stride)
    last = n.roi_pool_conv5
    for i in (6, 7):
        n[f"fc{i}"] = layers.InnerProduct(last, num_output=4096, **biased(MSRA))
        n[f"relu{i}"] = layers.ReLU(n[f"fc{i}"], in_place=True)
        # As in py-faster-rcnn, activations are scaled in TEST, not in TRAIN.
        n[f"drop{i}"] = last = layers.Dropout(n[f"relu{i}"], in_place=True, dropout_ratio=0.5, scale_train=False)
    n.cls_score = layers.InnerProduct(last, num_output=classes, **biased(gaussian(0.01)))
    n.bbox_pred = layers.InnerProduct(last, num_output=4 * classes, **biased(gaussian(0.001)))
    if train:
        names = (("loss_cls", "cls_loss"), ("loss_bbox", "bbox_loss"))
        _losses(n, names, "SmoothL1Loss", ["bbox_inside_weights", "bbox_outside_weights"])
    else:
        n.cls_prob = layers.Softmax(n.cls_score)
    return named(n, "ZF Faster R-CNN")


def _inputs(n: NetSpec, classes: int, train: bool, size: tuple[int, int]) -> None:
    """Add the data layer, or in TEST the inputs for an image of this height and width."""
    if train:
        made = _python("roi_data_layer.layer", "RoIDataLayer", f"'num_classes': {classes}", name="input-data", ntop=3)
        n.data, n.im_info, n.gt_boxes = made
    else:
        n.data = layers.Input(shape={"dim": [1, 3, *size]})
        n.im_info = layers.Input(shape={"dim": [1, 3]})


def _python(module: str, kind: str, text: str, *bottoms: Any, **more: Any) -> Any:
    """Return one of py-faster-rcnn's Python layers. text: its parameters."""
    return layers.Python(*bottoms, python_param={"module": module, "layer": kind, "param_str": text}, **more)


def _block(n: NetSpec, top: str, bottom: Any, width: int, names: tuple[str, str, str], **more: Any) -> Any:
    """Add a 3 x 3 convolution with BatchNorm, Scale and ReLU; return the last. more: fields of the convolution."""
    n[top] = convolution(bottom, width, 3, bias_term=False, param=[WEIGHTS], weight_filler=MSRA, **more)
    return normalised(n, n[top], names, **OWN_STATISTICS)


def _proposals(n: NetSpec, bottom: Any, classes: int, train: bool, stride: int, scales: list[float] | None) -> None:
    """Add the RPN and its losses, up to the rois. scales: of the anchors; None: py-faster-rcnn's three."""
    anchors = 3 * len(scales or (8, 16, 32))
    anchor_text = f"'feat_stride': {stride}" + (f"\n'scales': {scales}" if scales else "")
    n.rpn_cls_score = convolution(bottom, 2 * anchors, 1, **biased(gaussian(0.01)))
    n.rpn_bbox_pred = convolution(bottom, 4 * anchors, 1, **biased(gaussian(0.01)))
    n.rpn_cls_score_reshape = layers.Reshape(n.rpn_cls_score, shape={"dim": [0, 2, -1, 0]})
    if train:
        wanted = (n.rpn_cls_score, n.gt_boxes, n.im_info, n.data)
        tops = ("rpn_labels", "rpn_bbox_targets", "rpn_bbox_inside_weights", "rpn_bbox_outside_weights")
        targets = _python("rpn.anchor_target_layer", "AnchorTargetLayer", anchor_text, *wanted, name="rpn-data", ntop=4)
        for name, top in zip(tops, targets, strict=True):
            n[name] = top
        n.rpn_cls_loss = layers.SoftmaxWithLoss(
            n.rpn_cls_score_reshape, n.rpn_labels, name="rpn_loss_cls", propagate_down=[True, False], loss_weight=1,
            loss_param={"ignore_label": -1, "normalize": True},
        )  # fmt: skip
        n.rpn_loss_bbox = layers.SmoothL1Loss(n.rpn_bbox_pred, *targets[1:], loss_weight=1, sigma=3)
    n.rpn_cls_prob = layers.Softmax(n.rpn_cls_score_reshape)
    n.rpn_cls_prob_reshape = layers.Reshape(n.rpn_cls_prob, shape={"dim": [0, 2 * anchors, -1, 0]})
    read = (n.rpn_cls_prob_reshape, n.rpn_bbox_pred, n.im_info)
    proposed = _python("rpn.proposal_layer", "ProposalLayer", anchor_text, *read, name="proposal")
    if not train:
        n.rois = proposed
        return
    n.rpn_rois = proposed
    inputs = ("rois", "labels", "bbox_targets", "bbox_inside_weights", "bbox_outside_weights")
    text = f"'num_classes': {classes}"
    sampled = _python("rpn.proposal_target_layer", "ProposalTargetLayer", text, proposed, n.gt_boxes, name="roi-data", ntop=5)
    for name, top in zip(inputs, sampled, strict=True):
        n[name] = top


def _losses(n: NetSpec, names: Sequence[tuple[str, str]], box_loss: str, bottoms: Sequence[str], **fields: Any) -> None:
    """Add the losses of the detector. names: layer and top of each. box_loss: a type; bottoms, fields: of this layer."""
    (layer, top), (box_layer, box_top) = names
    n[top] = layers.SoftmaxWithLoss(n.cls_score, n.labels, name=layer, propagate_down=[True, False], loss_weight=1)
    read = (n.bbox_pred, n.bbox_targets, *(n[name] for name in bottoms))
    n[box_top] = getattr(layers, box_loss)(*read, name=box_layer, loss_weight=1, **fields)
