"""The nets that the benchmarks run, with random weights and inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import TEST, Net, rng
from minicaffe.formats.prototxt import parse_net


def random_net(source: str | Path, shape: tuple[int, ...], **options: Any) -> Net:
    """Return the net of a file (Path) or text (str), with filled inputs and random weights.

    shape: of the input data; options: Net's.
    """
    net = Net(parse_net(source) if isinstance(source, str) else str(source), TEST, **options)
    random = np.random.default_rng(0)
    net.blobs["data"].reshape(*shape)
    net.blobs["data"].data[...] = random.standard_normal(shape, dtype=np.float32)
    if "im_info" in net.blobs:
        net.blobs["im_info"].data[...] = [*shape[2:], 1]
    randomise(net)
    return net


def twin(net: Net) -> Net:
    """Return a copy of the net that shares its weights and has the same inputs, run once in the current way of loops.

    It keeps only the outputs, like onnxruntime and `minicaffe run` and `detect`.
    """
    other = Net(net.param, TEST, keep="outputs")
    for name in net.inputs:
        other.blobs[name].reshape(*net.blobs[name].shape)
        other.blobs[name].data[...] = net.blobs[name].read_data()
    other.share_with(net)
    return other


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
        if layer.param.type in ("Convolution", "ConvolutionDepthwise", "InnerProduct"):
            y = net.blobs[layer.param.top[0]].data
            factor = (0.1 if "bbox" in layer.name or "mbox_loc" in layer.name else 1) / max(float(y.std()), 1e-30)
            y *= factor
            layer.blobs[0].data[...] *= factor

    net.after_forward(rescale)
    net.forward()
    net.remove_hook(rescale)


def weights(kind: str, i: int, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[Any] | float:
    """Blob i of a layer: mean 0, variance 1, scale 1, biases 0, and factors that keep the magnitude of their inputs."""
    if kind == "BatchNorm":
        return float(i > 0)
    if kind in ("BN", "Scale", "PReLU") or len(shape) < 2:
        return float(kind in ("BN", "Scale", "PReLU") and i == 0)
    deviation = np.sqrt(2 / np.prod(shape[1:]))
    return np.asarray(random.standard_normal(shape, dtype=np.float32) * np.float32(deviation))
