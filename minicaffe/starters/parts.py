"""Parts that the starter nets share, written with NetSpec."""

from __future__ import annotations

from typing import Any

from minicaffe.proto import caffe_pb2
from minicaffe.pycaffe.net_spec import NetSpec, layers

WEIGHTS = {"lr_mult": 1, "decay_mult": 1}
BIAS = {"lr_mult": 2, "decay_mult": 0}
FIXED = {"lr_mult": 0, "decay_mult": 0}
XAVIER, MSRA = {"type": "xavier"}, {"type": "msra"}
ZERO = {"type": "constant", "value": 0}


def gaussian(std: float) -> dict[str, Any]:
    return {"type": "gaussian", "std": std}


def biased(filler: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a layer with weights from this filler, and a bias that learns at twice the rate."""
    return {"param": [WEIGHTS, BIAS], "weight_filler": filler, "bias_filler": ZERO}


def convolution(bottom: Any, width: int, kernel: int, stride: int = 1, dilation: int = 1, **more: Any) -> Any:
    """Return a convolution that keeps the size, except for the stride. more: other fields."""
    fields = {"num_output": width, "kernel_size": kernel, "pad": dilation * (kernel // 2), "stride": stride}
    return layers.Convolution(bottom, **fields, **({"dilation": dilation} if dilation > 1 else {}), **more)


def normalised(n: NetSpec, convolved: Any, names: tuple[str, str, str], **batch_norm: Any) -> Any:
    """Add BatchNorm, Scale and ReLU, in place, under these names; return the last. batch_norm: fields of BatchNorm."""
    bn, scale, relu = names
    n[bn] = layers.BatchNorm(convolved, in_place=True, param=[FIXED] * 3, **batch_norm)
    learned = {"lr_mult": 1, "decay_mult": 0}
    n[scale] = layers.Scale(n[bn], in_place=True, param=[learned] * 2, bias_term=True)
    n[relu] = layers.ReLU(n[scale], in_place=True)
    return n[relu]


def named(n: NetSpec, name: str) -> caffe_pb2.NetParameter:
    """Return the net with this name."""
    net = n.to_proto()
    net.name = name
    return net
