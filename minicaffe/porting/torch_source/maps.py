"""The layers of segmentation nets, and others that resize or normalise maps, as lines of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.layers.conv.inner_product import Embed
from minicaffe.layers.norm.bn import BN, SEGNET
from minicaffe.layers.norm.mvn import MVN
from minicaffe.layers.pool.unpooling import MAX, Unpooling, Upsample
from minicaffe.layers.shape.interp import Interp

from .forms import Shapes, number, source
from .source import Source


@source(Interp)
def interp(s: Source, layer: Interp, bottom: Sequence[str], top: Shapes) -> str:
    """Also in float64 the layer has the original's step in float32, so the two are apart by up to 1e-6 there."""
    start, end = -layer.pads[0], layer.pads[1] or None
    cut = f"{start or ''}:{end or ''}"
    x = bottom[0] if cut == ":" else f"{bottom[0]}[:, :, {cut}, {cut}]"
    return f'F.interpolate({x}, {top[0][2:]}, mode="bilinear", align_corners=True)'


@source(MVN)
def mvn(s: Source, layer: MVN, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.mvn_param
    s.part("mvn")
    eps = f", {number(layer, param.eps)}" if param.normalize_variance else ""
    return f"mvn({bottom[0]}, {layer.axes}{eps})"


@source(BN)
def bn(s: Source, layer: BN, bottom: Sequence[str], top: Shapes) -> str:
    layer.check_kind()
    if layer.of_batch or len(top) > 1:
        raise layer.error("with the statistics of the batch has no form (bn_mode: INFERENCE has)", "bn_param.bn_mode")
    names = ("weight", "bias", "running_mean", "running_var")
    arrays = {name: np.asarray(blob.read_data()).reshape(-1) for name, blob in zip(names, layer.blobs)}
    channels = len(arrays["weight"])
    if layer.kind == SEGNET:
        s.part("scale")
        return f"{s.module(layer, f'Scale(({channels},), bias=True)', arrays)}({bottom[0]})"
    axes = {4: "2d", 5: "3d"}.get(len(top[0]), "1d")
    still = ".requires_grad_(False)" if layer.frozen else ""
    made = f"nn.BatchNorm{axes}({channels}, eps={number(layer, layer.eps)}){still}"
    return f"{s.module(layer, made, arrays)}({bottom[0]})"


@source(Unpooling)
def unpooling(s: Source, layer: Unpooling, bottom: Sequence[str], top: Shapes) -> str:
    if layer.method != MAX or len(bottom) == 1:
        raise layer.error("has no form: only MAX with a mask", "unpooling_param")
    return _unpool(s, bottom, top)


@source(Upsample)
def upsample(s: Source, layer: Upsample, bottom: Sequence[str], top: Shapes) -> str:
    if len(bottom) == 2:
        return _unpool(s, bottom, top)
    rows, columns = layer.scale
    return f"{bottom[0]}.repeat_interleave({rows}, -2).repeat_interleave({columns}, -1)"


def _unpool(s: Source, bottom: Sequence[str], top: Shapes) -> str:
    s.part("unpool")
    return f"unpool({bottom[0]}, {bottom[1]}, {top[0][2]}, {top[0][3]})"


@source(Embed)
def embed(s: Source, layer: Embed, bottom: Sequence[str], top: Shapes) -> str:
    s.part("embed")
    arrays = {name: np.asarray(blob.read_data()) for name, blob in zip(("weight", "bias"), layer.blobs)}
    bias = "" if len(arrays) > 1 else ", bias=False"
    return f"{s.module(layer, 'Embed({}, {}{})'.format(*arrays['weight'].shape, bias), arrays)}({bottom[0]})"
