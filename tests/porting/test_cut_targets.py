"""What --target says of fields and sizes beyond the limits that its document names."""

from __future__ import annotations

import re

import pytest

from minicaffe import TEST, Error, Net
from minicaffe.formats.prototxt import parse_net
from minicaffe.porting.cut import cut
from minicaffe.porting.cut_targets import TARGETS

DATA = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: %d dim: 4 dim: %d dim: %d } } }\n'
CONV = 'type: "%s" convolution_param { num_output: 4 bias_term: false %s }'


@pytest.mark.parametrize(
    ("target", "shape", "layer", "says"),
    [
        (
            "cann",
            (1, 9, 12),
            'type: "Pooling" pooling_param { kernel_size: 3 stride: 7 }',
            ["stride is 7x7, at most twice the"],
        ),
        ("cann", (1, 90, 90), 'type: "Pooling" pooling_param { kernel_size: 40 stride: 64 }', ["stride is 64x64, at most 63"]),
        (
            "cann",
            (1, 9, 900),
            'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 }',
            [
                "3x3 on a width of 900: kernel_h kernel_w 32 + width (31 stride_h + kernel_w) is 58788, at most 32768",
            ],
        ),
        (
            "cann",
            (1, 9, 12),
            'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 3 }',
            ["pool is STOCHASTIC, MAX or AVE"],
        ),
        *(
            (
                target,
                (1, 9, 12),
                'type: "Pooling" pooling_param { kernel_size: 2 stride: [1, 2] }',
                ["pooling_param is for maps of any number of axes, with dilation; 2-d without dilation only"],
            )
            for target in TARGETS
        ),
        (
            "opencv",
            (1, 9, 12),
            'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 3 }',
            ["pool is STOCHASTIC, MAX or"],
        ),
        (
            "cann",
            (1, 9, 12),
            'type: "LRN" lrn_param { local_size: 257 norm_region: WITHIN_CHANNEL }',
            [
                "lrn_param.local_size is 257, at most 255",
                "norm_region is WITHIN_CHANNEL, ACROSS_CHANNELS only",
            ],
        ),
        ("cann", (1, 1, 260), CONV % ("Convolution", "kernel_h: 1 kernel_w: 256"), ["kernel_size is 1x256, at most 255"]),
        (
            "cann",
            (1, 9, 12),
            CONV % ("Deconvolution", "kernel_size: 4 stride: 16"),
            ["stride is 16x16, whose product is at most 255"],
        ),
        (
            "cann",
            (1, 5, 12),
            CONV % ("Deconvolution", "kernel_size: 6 stride: 2"),
            ["kernel_size is 6x6, at most the padded map: 5x12"],
        ),
        (
            "cann",
            (1, 9, 600),
            CONV % ("Deconvolution", "kernel_size: 4 stride: 7"),
            ["9x600: 4200, at most 4096", 'blob "y" is 1x4x60x4197'],
        ),
        (
            "cann",
            (1, 2, 2040),
            CONV % ("Deconvolution", "kernel_size: 1 stride: 2"),
            ["at most 2032 wide", "2x2040: 8160, at most 4096"],
        ),
        (
            "cann",
            (1, 9, 12),
            'type: "BatchNorm" batch_norm_param { use_global_stats: false }',
            ["use_global_stats is false, true only"],
        ),
        (
            "cann",
            (1, 2, 3),
            'type: "InnerProduct" inner_product_param { num_output: 40000 }',
            ["num_output is 40000, at most 32768"],
        ),
        ("cann", (1, 2, 3), 'type: "InnerProduct" inner_product_param { num_output: 4 axis: 3 }', ["axis is 3, 1 or 2 only"]),
        (
            "cann",
            (1, 9, 12),
            'type: "Reshape" reshape_param { axis: 4 num_axes: 0 shape { dim: 1 } }',
            ["axis is 4, from -4 to 3"],
        ),
        (
            "cann",
            (1, 9, 12),
            'type: "Reshape" reshape_param { num_axes: 4 shape { dim: 0 dim: -1 } }',
            ["num_axes is 4, at most 3"],
        ),
        ("cann", (1, 9, 12), 'bottom: "data" ' * 32 + 'type: "Eltwise"', ["bottom is 33 of them, at most 32"]),
        (
            "cann",
            (1, 2, 4097),
            'type: "AbsVal"',
            ['blob "data" is 1x4x2x4097, at most 4096 high', 'blob "y" is 1x4x2x4097, at most 4096'],
        ),
        ("rknn", (1, 9, 12), CONV % ("ConvolutionDepthwise", "kernel_size: 9"), ["kernel_size is 9x9, at most 8"]),
        ("rknn", (2, 9, 12), 'type: "Softmax"', ["bottom[0] is 2x4x9x12, a batch of 1 only"]),
        ("rknn", (2, 9, 12), 'type: "Tile" tile_param { tiles: 2 }', ["bottom[0] is 2x4x9x12, a batch of 1 only"]),
        (
            "vitis-ai",
            (1, 9, 12),
            'bottom: "data" type: "Eltwise" eltwise_param { operation: MAX }',
            ["operation is MAX, SUM only"],
        ),
        (
            "vitis-ai",
            (1, 9, 12),
            'bottom: "data" type: "Eltwise" eltwise_param { coeff: 1 coeff: -0.5 }',
            ["coeff is 1, -0.5, 1 only"],
        ),
        (
            "vitis-ai",
            (1, 9, 12),
            'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 3 }',
            ["pool is STOCHASTIC, MAX or AVE"],
        ),
        ("vitis-ai", (1, 2, 3), 'type: "InnerProduct" inner_product_param { num_output: 4 axis: 2 }', ["axis is 2, 1 only"]),
        (
            "vitis-ai",
            (1, 9, 12),
            'bottom: "data" type: "PriorBox" prior_box_param { min_size: 3 }',
            ["step is not given, > 0 only"],
        ),
        ("horizon", (1, 64, 64), 'type: "SPP" spp_param { pyramid_height: 7 }', ["pyramid_height is 7, at most 6"]),
        (
            "horizon",
            (1, 2, 3),
            'type: "Reshape" reshape_param { axis: 4 num_axes: 0 shape { dim: 1 dim: 1 dim: 1 dim: 1 dim: 1 } }',
            ["shape is 5 dims, from 1 to 4", "axis is 4, from -4 to 3"],
        ),
        (
            "horizon",
            (1, 2, 3),
            'type: "Reshape" reshape_param { num_axes: 4 shape { dim: 0 dim: -1 } }',
            ["num_axes is 4, from -1 to 3"],
        ),
        ("horizon", (1, 2, 3), 'type: "Flatten" flatten_param { end_axis: 2 }', ["end_axis is 2, -1 only"]),
        (
            "bvlc",
            (1, 9, 12),
            'type: "Pooling" pooling_param { kernel_size: 3 ceil_mode: false }',
            [
                "pooling_param.ceil_mode is a field that its caffe.proto lacks",
            ],
        ),
    ],
)
def test_fields_and_sizes_beyond_a_targets_limits(target: str, shape: tuple[int, ...], layer: str, says: list[str]) -> None:
    net = Net(parse_net(DATA % shape + f'layer {{ name: "y" bottom: "data" top: "y" {layer} }}', "net.prototxt"), TEST)
    with pytest.raises(Error) as caught:
        cut(net).for_target(target)
    head, *rest = str(caught.value).split("\n")
    assert head.startswith(
        "1 value is beyond the limits of" if len(says) == 1 else f"{len(says)} values are beyond the limits of"
    )
    assert all(text in line for text, line in zip(says, rest, strict=True)), rest
    assert re.match(r'  net.prototxt:2: \w+ "y": ', rest[-1])


@pytest.mark.parametrize(
    ("target", "shape", "layer"),
    [
        ("cann", (1, 9, 12), 'type: "Pooling" pooling_param { kernel_size: 3 stride: 6 pad: 2 }'),
        ("cann", (1, 90, 900), 'type: "Pooling" pooling_param { pool: AVE global_pooling: true }'),
        ("cann", (1, 9, 12), 'type: "LRN" lrn_param { local_size: 255 }'),
        ("cann", (1, 5, 12), CONV % ("Deconvolution", "kernel_size: 5 stride_h: 15 stride_w: 17")),
        ("cann", (2, 9, 12), 'type: "BatchNorm"'),
        ("cann", (2, 9, 12), 'type: "Reshape" reshape_param { axis: 1 num_axes: 3 shape { dim: -1 } }'),
        ("cann", (2, 2, 4096), 'type: "AbsVal"'),
        ("opencv", (2, 9, 12), 'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 }'),
        ("rknn", (1, 9, 12), CONV % ("ConvolutionDepthwise", "kernel_size: 8")),
        ("rknn", (1, 9, 12), 'type: "Softmax"'),
        ("bvlc", (2, 9, 12), 'type: "Pooling" pooling_param { kernel_size: 3 round_mode: FLOOR }'),
        ("vitis-ai", (2, 9, 12), 'type: "DeephiResize" deephi_resize_param { scale_h: 2 scale_w: 2 }'),
        ("vitis-ai", (2, 9, 12), 'bottom: "data" type: "Eltwise" eltwise_param { coeff: 1 coeff: 1 }'),
        ("vitis-ai", (2, 9, 12), 'bottom: "data" type: "PriorBox" prior_box_param { min_size: 3 step_h: 4 step_w: 5 }'),
        ("vitis-ai", (2, 9, 12), 'type: "BatchNorm"'),
        ("horizon", (2, 64, 64), 'type: "SPP" spp_param { pyramid_height: 6 }'),
        ("horizon", (2, 9, 12), 'type: "Reshape" reshape_param { axis: 3 num_axes: 0 shape { dim: 1 dim: 1 dim: 1 } }'),
        ("horizon", (2, 9, 12), 'type: "Flatten" flatten_param { axis: -4 }'),
        ("horizon", (2, 9, 12), 'bottom: "data" type: "Eltwise" eltwise_param { operation: MAX }'),
    ],
)
def test_the_limits_themselves_are_taken(target: str, shape: tuple[int, ...], layer: str) -> None:
    net = Net(parse_net(DATA % shape + f'layer {{ name: "y" bottom: "data" top: "y" {layer} }}'), TEST)
    assert [made.name for made in cut(net).for_target(target).param.layer] == ["data", "y"]


def test_types_and_limits_are_named_together() -> None:
    text = DATA % (2, 9, 12) + 'layer { name: "a" type: "Swish" bottom: "data" top: "a" }\n'
    net = Net(parse_net(text + 'layer { name: "b" type: "Softmax" bottom: "a" top: "b" }', "net.prototxt"), TEST)
    with pytest.raises(Error) as caught:
        cut(net).for_target("rknn")
    lines = str(caught.value).split("\n")
    assert [line[:9] for line in lines] == ["1 layer h", "  net.pro", "1 value i", "  net.pro"]
