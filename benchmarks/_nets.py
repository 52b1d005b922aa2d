"""Nets that the benchmarks run: the convolutions of VGG16 and of R-FCN's ResNet-50 as prototxt text; random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import TEST, Net, rng
from minicaffe.formats.prototxt import parse_net

VGG = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512)
"""Output channels of VGG16's convolutions; 0: max pooling."""
RESNET = ((3, 64, 1, 1), (4, 128, 2, 1), (6, 256, 2, 1), (3, 512, 1, 2))
"""Of ResNet-50's stages: blocks, channels within, stride, dilation (R-FCN's last stage keeps its map's size)."""


def data(name: str, channels: int, size: int = 8) -> str:
    """The start of a prototxt: the net's name and its input, a square image."""
    shape = f"dim: 1 dim: {channels} dim: {size} dim: {size}"
    return f'name: "{name}" layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {shape} }} }} }}\n'


def convolution(name: str, bottom: str, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1, group: int = 1,
                bias: bool = True) -> str:  # fmt: skip
    """A Convolution layer, padded so that stride 1 keeps the map's size."""
    pad = kernel // 2 * dilation
    param = f"num_output: {outputs} kernel_size: {kernel} stride: {stride} pad: {pad} dilation: {dilation} group: {group}"
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" '
        f"convolution_param {{ {param} bias_term: {str(bias).lower()} }} }}\n"
    )


def _relu(blob: str) -> str:
    return f'layer {{ name: "{blob}_relu" type: "ReLU" bottom: "{blob}" top: "{blob}" }}\n'


def _pool(name: str, bottom: str, kernel: int) -> str:
    return (
        f'layer {{ name: "{name}" type: "Pooling" bottom: "{bottom}" top: "{name}" '
        f"pooling_param {{ pool: MAX kernel_size: {kernel} stride: 2 }} }}\n"
    )


def vgg16(*, whole: bool = False) -> str:
    """data to conv5_3, or to the probabilities, with fc6 to fc8."""
    text, at = data("VGG16", 3, 224 if whole else 8), "data"
    for i, outputs in enumerate(VGG):
        name = f"l{i}"
        text += convolution(name, at, outputs, 3) + _relu(name) if outputs else _pool(name, at, 2)
        at = name
    if whole:
        text += _pool("pool5", at, 2)
        for name, bottom, outputs in (("fc6", "pool5", 4096), ("fc7", "fc6", 4096), ("fc8", "fc7", 1000)):
            param = f"inner_product_param {{ num_output: {outputs} }}"
            text += f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" {param} }}\n'
            text += _relu(name) if name != "fc8" else ""
    return text


def resnet50() -> str:
    """data to res5c, with its BatchNorm and Scale layers, in place."""
    text = data("ResNet-50", 3) + _normalised("conv1", "data", 64, 7, stride=2) + _relu("conv1")
    text, at = text + _pool("pool1", "conv1", 3), "pool1"
    for stage, (blocks, width, stride, dilation) in enumerate(RESNET, 2):
        for block in range(blocks):
            name, first = f"res{stage}{'abcdef'[block]}", stride if block == 0 else 1
            text += _normalised(f"{name}_2a", at, width, 1, stride=first) + _relu(f"{name}_2a")
            text += _normalised(f"{name}_2b", f"{name}_2a", width, 3, dilation=dilation) + _relu(f"{name}_2b")
            text += _normalised(f"{name}_2c", f"{name}_2b", 4 * width, 1)
            beside = at
            if block == 0:
                beside = f"{name}_1"
                text += _normalised(beside, at, 4 * width, 1, stride=first)
            text += f'layer {{ name: "{name}" type: "Eltwise" bottom: "{beside}" bottom: "{name}_2c" top: "{name}" }}\n'
            text, at = text + _relu(name), name
    return text


def _normalised(name: str, bottom: str, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1) -> str:
    """Convolution, BatchNorm and Scale."""
    places = f'bottom: "{name}" top: "{name}"'
    return (
        convolution(name, bottom, outputs, kernel, stride=stride, dilation=dilation, bias=False)
        + f'layer {{ name: "{name}_bn" type: "BatchNorm" {places} batch_norm_param {{ use_global_stats: true }} }}\n'
        + f'layer {{ name: "{name}_scale" type: "Scale" {places} scale_param {{ bias_term: true }} }}\n'
    )


def random_net(source: str | Path, shape: tuple[int, ...], **options: Any) -> Net:
    """The net of a file (Path) or a text (str), its inputs filled (data of this shape), with random weights; options: Net's."""
    net = Net(parse_net(source) if isinstance(source, str) else str(source), TEST, **options)
    random = np.random.default_rng(0)
    net.blobs["data"].reshape(*shape)
    net.blobs["data"].data[...] = random.standard_normal(shape, dtype=np.float32)
    if "im_info" in net.blobs:
        net.blobs["im_info"].data[...] = [*shape[2:], 1]
    randomise(net)
    return net


def randomise(net: Net) -> None:
    """Random weights such that each product has a standard deviation of 1, or 0.1 for boxes: larger ones would make all rois
    the whole image. Runs the net once."""
    rng.set_random_seed(0)
    random = np.random.default_rng(0)
    for layer in net.layers:
        for i, blob in enumerate(layer.blobs):
            blob.data[...] = weights(layer.param.type, i, blob.shape, random)

    def rescale(i: int) -> None:
        layer = net.layers[i]
        if layer.param.type in ("Convolution", "InnerProduct"):
            y = net.blobs[layer.param.top[0]].data
            factor = (0.1 if "bbox" in layer.name else 1) / max(float(y.std()), 1e-30)
            y *= factor
            layer.blobs[0].data[...] *= factor

    net.after_forward(rescale)
    net.forward()
    net.remove_hook(rescale)


def weights(kind: str, i: int, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[Any] | float:
    """Blob i of a layer: mean 0, variance 1, scale 1, biases 0, and factors that keep the magnitude of their inputs."""
    if kind == "BatchNorm":
        return float(i > 0)
    if kind in ("Scale", "PReLU") or len(shape) < 2:
        return float(kind in ("Scale", "PReLU") and i == 0)
    deviation = np.sqrt(2 / np.prod(shape[1:]))
    return np.asarray(random.standard_normal(shape, dtype=np.float32) * np.float32(deviation))
