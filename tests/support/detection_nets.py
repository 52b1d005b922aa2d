"""Two small detection nets with the layers of the well-known ones: R-FCN over a ResNet's blocks, Faster R-CNN over a VGG's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from chains import BIASED, on
from detection_case import python_layer

from minicaffe import Net
from minicaffe.data.settings import DetectionSettings
from minicaffe.formats.prototxt import parse_net

ROIS = 5
SHAPE = (1, 3, 64, 96)


def conv(name: str, bottom: str, outputs: int, kernel: int = 3, stride: int = 1, bias: bool = True) -> str:
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{ '
        f"num_output: {outputs} kernel_size: {kernel} pad: {kernel // 2} stride: {stride} "
        f"bias_term: {str(bias).lower()} }} }}\n"
    )


def inner(name: str, bottom: str, outputs: int) -> str:
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" inner_product_param {{ num_output: '
        f'{outputs} weight_filler {{ type: "xavier" }} }} }}\n'
    )


def block(name: str, bottom: str, stride: int) -> str:
    """Return a ResNet's block: convolution, BatchNorm, Scale, ReLU, a shortcut, a sum."""
    first = (
        conv(f"{name}a", bottom, 8, stride=stride, bias=False) + on("BatchNorm", f"{name}a") + on("Scale", f"{name}a", BIASED)
    )
    second = conv(f"{name}b", f"{name}a", 8, bias=False) + on("BatchNorm", f"{name}b") + on("Scale", f"{name}b", BIASED)
    shortcut = conv(f"{name}s", bottom, 8, 1, stride)
    total = f'layer {{ name: "{name}" type: "Eltwise" bottom: "{name}s" bottom: "{name}b" top: "{name}" }}\n'
    return first + on("ReLU", f"{name}a") + second + shortcut + total + on("ReLU", name)


def reshaped(name: str, bottom: str, *dims: int) -> str:
    shape = " ".join(f"dim: {dim}" for dim in dims)
    return (
        f'layer {{ name: "{name}" type: "Reshape" bottom: "{bottom}" top: "{name}" reshape_param {{ shape {{ {shape} }} }} }}\n'
    )


def softmax(name: str, bottom: str) -> str:
    return f'layer {{ name: "{name}" type: "Softmax" bottom: "{bottom}" top: "{name}" }}\n'


def pooled(name: str, kind: str, bottom: str, param: str) -> str:
    return f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" bottom: "rois" top: "{name}" {param} }}\n'


INPUTS = """
name: "small" input: "data" input_shape { dim: 1 dim: 3 dim: 64 dim: 96 }
input: "im_info" input_shape { dim: 1 dim: 3 }
"""
PROPOSAL = python_layer("Proposal", feat_stride=16)


def rpn(features: str) -> str:
    return (
        conv("rpn", features, 8)
        + on("ReLU", "rpn")
        + conv("rpn_cls_score", "rpn", 18, 1)
        + conv("rpn_bbox_pred", "rpn", 36, 1)
        + reshaped("rpn_reshaped", "rpn_cls_score", 0, 2, -1, 0)
        + softmax("rpn_prob", "rpn_reshaped")
        + reshaped("rpn_prob_reshaped", "rpn_prob", 0, 18, -1, 0)
        + f'layer {{ name: "proposal" {PROPOSAL} bottom: "rpn_prob_reshaped" bottom: "rpn_bbox_pred" bottom: "im_info"'
        + ' top: "rois" }\n'
    )


def position_sensitive(name: str, bottom: str, outputs: int) -> str:
    param = f"psroi_pooling_param {{ spatial_scale: 0.0625 output_dim: {outputs} group_size: 2 }}"
    mean = (
        f'layer {{ name: "{name}_mean" type: "Pooling" bottom: "{name}" top: "{name}_mean" '
        "pooling_param { pool: AVE kernel_size: 2 stride: 2 } }\n"
    )
    return pooled(name, "PSROIPooling", bottom, param) + mean


RFCN = (
    INPUTS
    + "".join(block(f"res{i}", bottom, 2) for i, bottom in enumerate(("data", "res0", "res1", "res2")))
    + rpn("res3")
    + conv("rfcn_cls", "res3", 12, 1)
    + conv("rfcn_bbox", "res3", 32, 1)
    + position_sensitive("cls", "rfcn_cls", 3)
    + position_sensitive("bbox", "rfcn_bbox", 8)
    + softmax("cls_prob_all", "cls_mean")
    + reshaped("cls_prob", "cls_prob_all", -1, 3)
    + reshaped("bbox_pred", "bbox_mean", -1, 8)
)
FASTER_RCNN = (
    INPUTS
    + "".join(
        conv(f"conv{i}", bottom, 8)
        + on("ReLU", f"conv{i}")
        + f'layer {{ name: "pool{i}" type: "Pooling" bottom: "conv{i}" top: "pool{i}" '
        + "pooling_param { kernel_size: 2 stride: 2 } }\n"
        for i, bottom in enumerate(("data", "pool0", "pool1", "pool2"))
    )
    + rpn("pool3")
    + pooled("roi_pool", "ROIPooling", "pool3", "roi_pooling_param { pooled_w: 3 pooled_h: 3 spatial_scale: 0.0625 }")
    + inner("fc6", "roi_pool", 16)
    + on("ReLU", "fc6")
    + on("Dropout", "fc6")
    + inner("cls_score", "fc6", 3)
    + inner("bbox_pred", "fc6", 12)
    + softmax("cls_prob", "cls_score")
)
NETS = {"R-FCN": RFCN, "Faster R-CNN": FASTER_RCNN}
OUTPUTS = ("cls_prob", "bbox_pred")


def detection_net(name: str, seed: int = 0, keep: Any = "all") -> Net:
    """Return one of NETS with weights of a seed, which proposes ROIS rois."""
    base = DetectionSettings()
    settings = dataclasses.replace(base, test=dataclasses.replace(base.test, rpn_post_nms_top_n=ROIS, rpn_nms_thresh=1.0))
    net = Net(parse_net(NETS[name]), keep=keep, settings=settings)
    put_weights(net, seed)
    return net


def put_weights(net: Net, seed: int) -> None:
    """Weights of a seed: those of a BatchNorm have a positive variance and factor."""
    draw = np.random.default_rng(seed)
    for layer in net.layers:
        for i, blob in enumerate(layer.blobs):
            values = draw.normal(0, 0.4, blob.shape)
            blob.data[...] = np.abs(values) + 0.5 if layer.type == "BatchNorm" and i else values


def image(seed: int, shape: tuple[int, ...] = SHAPE) -> dict[str, np.ndarray]:
    """Return the inputs of an image of a seed."""
    return {
        "data": np.random.default_rng(seed).standard_normal(shape).astype(np.float32),
        "im_info": np.array([[shape[2], shape[3], 1]], np.float32),
    }


def detect(net: Net, seed: int, shape: tuple[int, ...] = SHAPE) -> dict[str, np.ndarray]:
    """Copies of the outputs for the image of a seed."""
    net.blobs["data"].reshape(*shape)
    found = net.forward(**image(seed, shape))
    return {name: found[name].copy() for name in OUTPUTS}
