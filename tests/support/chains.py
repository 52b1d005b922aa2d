"""Nets with chains of layers that run as one step, and what must run one by one; on the CPU and the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import minicaffe
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST
from minicaffe.net import Net

DATA = 'name: "made" layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 6 dim: 7 dim: 5 } } }\n'


def conv(name: str = "conv", bottom: str = "data", outputs: int = 8, more: str = "", kind: str = "Convolution") -> str:
    return (
        f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{name}" convolution_param {{ num_output: {outputs} '
        f'kernel_size: 3 pad: 1 weight_filler {{ type: "msra" }} bias_filler {{ type: "gaussian" std: 1 }} {more} }} }}\n'
    )


def on(kind: str, blob: str, more: str = "", bottom: str = "") -> str:
    """Return a layer in place on a blob, or from bottom to it."""
    name = f"{blob}_{kind.lower()}"
    return f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom or blob}" top: "{blob}" {more} }}\n'


BIASED = 'scale_param { bias_term: true filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 } }'
LEAKY = "relu_param { negative_slope: 0.25 }"
RENAMED = 'bias_param { filler { type: "gaussian" std: 1 } }'
OTHER = conv("other") + 'layer { name: "sum" type: "Eltwise" bottom: "conv" bottom: "other" top: "sum" eltwise_param { %s } }\n'

CHAINS = {
    "conv, bn, scale, relu": (conv() + on("BatchNorm", "conv") + on("Scale", "conv", BIASED) + on("ReLU", "conv"), [(1, 4)]),
    "conv, leaky relu": (conv(more="group: 2 dilation: 2") + on("ReLU", "conv", LEAKY), [(1, 2)]),
    "conv without bias, bn, relu": (conv(more="bias_term: false") + on("BatchNorm", "conv") + on("ReLU", "conv"), [(1, 3)]),
    "depthwise, scale, bias": (
        conv(kind="DepthwiseConvolution", outputs=6) + on("Scale", "conv", BIASED) + on("Bias", "conv", RENAMED),
        [(1, 3)],
    ),
    "bn, scale, relu on a blob of their own": (
        on("BatchNorm", "y", bottom="data") + on("Scale", "y", BIASED) + on("ReLU", "y"),
        [(1, 3)],
    ),
    "scale, bias, relu": (on("Scale", "y", BIASED, "data") + on("Bias", "y", RENAMED) + on("ReLU", "y"), [(1, 3)]),
    "bn, relu in place": (
        'layer { name: "p" type: "Power" bottom: "data" top: "p" }' + on("BatchNorm", "p") + on("ReLU", "p"),
        [(2, 2)],
    ),
    "relu ends a chain": (
        conv() + on("ReLU", "conv") + on("BatchNorm", "conv") + on("Bias", "conv", RENAMED) + on("ReLU", "conv", LEAKY),
        [(1, 2), (3, 3)],
    ),
    "sum": (conv() + OTHER % "coeff: 1 coeff: -2" + on("ReLU", "sum"), [(4, 2)]),
    "product": (conv() + OTHER % "operation: PROD" + on("ReLU", "sum", LEAKY), [(4, 2)]),
    "maximum": (conv() + OTHER % "operation: MAX" + on("ReLU", "sum", LEAKY), [(4, 2)]),
    "two readers": (
        conv() + on("BatchNorm", "conv") + on("ReLU", "conv") + conv("a", "conv") + on("ReLU", "a") + conv("b", "conv"),
        [(1, 3), (5, 2)],
    ),
    "shared weights": (
        conv("a").replace("convolution_param", 'param { name: "w" } convolution_param')
        + on("ReLU", "a")
        + conv("b").replace("convolution_param", 'param { name: "w" } convolution_param')
        + on("Scale", "b", BIASED),
        [(2, 2), (4, 2)],
    ),
}

ONE_BY_ONE = {
    "a ReLU that keeps signs": conv() + on("ReLU", "conv", "relu_param { negative_slope: -0.5 }"),
    "batch statistics": conv() + on("BatchNorm", "conv", "batch_norm_param { use_global_stats: false }") + on("ReLU", "conv"),
    "a scale of rows": conv() + on("Scale", "conv", 'scale_param { axis: 2 filler { type: "gaussian" std: 1 } }'),
    "one number": conv() + on("Scale", "conv", 'scale_param { num_axes: 0 filler { type: "constant" value: 3 } }'),
    "a scale that is a bottom": conv()
    + 'layer { name: "s" type: "Scale" bottom: "conv" bottom: "conv" top: "s" scale_param { axis: 0 } }',
    "channels on another axis": (
        'layer { name: "maps" type: "Reshape" bottom: "data" top: "maps" '
        "reshape_param { shape { dim: 3 dim: 4 dim: 7 dim: 5 } } }" + conv(bottom="maps", more="axis: 0") + on("ReLU", "conv")
    ),
    "a loss": conv() + on("ReLU", "conv", "loss_weight: 2"),
    "another layer between": conv() + conv("b") + on("ReLU", "conv"),
    "not in place": conv() + on("ReLU", "y", bottom="conv"),
}


def net_of(text: str, phase: int = TEST, **options: Any) -> Net:
    minicaffe.set_random_seed(3)
    net = Net(parse_net(DATA + text, "made.prototxt"), phase, **options)
    random = np.random.default_rng(5)
    for layer in net.layers:
        if layer.type == "BatchNorm":
            mean, var, factor = (blob.data for blob in layer.blobs)
            mean[...], var[...], factor[...] = random.normal(size=mean.shape), random.uniform(1, 3, var.shape), 2
    net.blobs["data"].data[...] = random.standard_normal(net.blobs["data"].shape)
    return net


def watched(net: Net) -> Net:
    """Return the net, run layer by layer."""
    net.before_forward(lambda i: None)
    return net


def blobs_of(net: Net) -> dict[str, NDArray[Any]]:
    return {name: blob.data.copy() for name, blob in net.blobs.items()}


def assert_same(net: Net, other: Net, tolerance: float = 2e-6) -> None:
    for name, wanted in blobs_of(other).items():
        np.testing.assert_allclose(net.blobs[name].data, wanted, rtol=0, atol=tolerance * np.abs(wanted).max(), err_msg=name)


def ran_together(net: Net) -> list[tuple[int, int]]:
    return [(chain.index, len(chain.nodes)) for chain in net.plan.chains.values() if chain.together and len(chain.nodes) > 1]


FIXED = "batch_norm_param { use_global_stats: true }"
FROZEN = BIASED + " param { lr_mult: 0 } param { lr_mult: 0 }"
TRAINED = {
    "conv, relu": conv("below") + conv(bottom="below") + on("ReLU", "conv"),
    "conv, bn, scale, relu": (
        conv("below") + conv(bottom="below") + on("BatchNorm", "conv", FIXED) + on("Scale", "conv", FROZEN) + on("ReLU", "conv")
    ),
    "no relu": conv("below") + conv(bottom="below") + on("BatchNorm", "conv", FIXED) + on("Scale", "conv", FROZEN),
    "leaky": conv("below") + conv(bottom="below") + on("Scale", "conv", FROZEN) + on("ReLU", "conv", LEAKY),
    "bn, scale, relu": conv("below") + on("BatchNorm", "y", FIXED, "below") + on("Scale", "y", FROZEN) + on("ReLU", "y"),
    "sum, relu": conv("below") + conv(bottom="below") + OTHER % "coeff: 1 coeff: -2" + on("ReLU", "sum"),
    "maximum, relu": conv("below") + conv(bottom="below") + OTHER % "operation: MAX" + on("ReLU", "sum", LEAKY),
    "nothing below learns": (
        conv().replace("convolution_param", "param { lr_mult: 0 } param { lr_mult: 0 } convolution_param", 1)
        + on("BatchNorm", "conv", FIXED)
        + on("Scale", "conv", FROZEN)
        + on("ReLU", "conv")
    ),
}
