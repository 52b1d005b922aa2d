"""PyTorch source: each layer's lines beside the layer, forward and backward, in float64; and whole files."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch", reason="PyTorch (the extra torch) is not installed")
pytest.importorskip("safetensors", reason="needs safetensors")

import torch

from minicaffe import TEST, Net, registry
from minicaffe.cli import main
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.neuron.relu import ReLU
from minicaffe.porting.torch_source import compare_source, source, write_source
from minicaffe.porting.torch_source.source import MODULE
from minicaffe.rng import set_random_seed

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
INPUT = 'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {} }} }} }}\n'
FILL = 'weight_filler { type: "gaussian" std: 0.3 } bias_filler { type: "gaussian" std: 0.3 }'
LAYERS = [
    f'"Convolution" convolution_param {{ num_output: 6 kernel_h: 3 kernel_w: 2 stride: 2 pad_h: 1 group: 2 {FILL} }}',
    f'"Convolution" convolution_param {{ num_output: 5 kernel_size: 3 dilation: 2 bias_term: false {FILL} }}',
    f'"Deconvolution" convolution_param {{ num_output: 6 kernel_size: 4 stride: 2 pad: 1 group: 2 {FILL} }}',
    f'"InnerProduct" inner_product_param {{ num_output: 7 {FILL} }}',
    f'"InnerProduct" inner_product_param {{ num_output: 7 transpose: true {FILL} }}',
    '"Pooling" pooling_param { kernel_size: 3 stride: 2 }',
    '"Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 1 pool: AVE }',
    '"Pooling" pooling_param { kernel_size: 2 stride: 3 pad: 1 }',
    '"Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 2 pool: AVE }',
    '"Pooling" pooling_param { kernel_h: 1 kernel_w: 2 pad_w: 1 stride_h: 3 stride_w: 4 pad_h: 0 }',
    '"Pooling" pooling_param { kernel_size: 1 stride: 3 }',
    '"Pooling" pooling_param { kernel_h: 3 kernel_w: 2 stride: 4 pad: 1 pool: AVE_EXC_PAD }',
    '"Pooling" pooling_param { global_pooling: true pool: AVE }',
    '"Pooling" pooling_param { global_pooling: true }',
    '"LRN" lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 k: 2 }',
    '"LRN" lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 norm_region: WITHIN_CHANNEL }',
    '"BatchNorm"',
    '"BatchNorm" batch_norm_param { use_global_stats: false eps: 0.01 }',
    '"Scale" scale_param { bias_term: true filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 } }',
    '"Scale" scale_param { axis: 1 num_axes: 2 filler { type: "gaussian" std: 1 } }',
    '"Bias" bias_param { filler { type: "gaussian" std: 1 } }',
    '"PReLU"',
    '"PReLU" prelu_param { channel_shared: true }',
    '"ReLU" relu_param { negative_slope: 0.1 }',
    '"Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }',
    '"Reshape" reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } }',
    '"Reshape" reshape_param { axis: 1 num_axes: 1 shape { dim: 0 dim: 1 dim: 1 dim: -1 } }',
    '"Reshape" reshape_param { axis: -2 num_axes: 0 shape { dim: 1 dim: 1 } }',
    '"Reshape" reshape_param { axis: -3 shape { dim: -1 dim: 6 } }',
    '"Reshape" reshape_param { axis: 1 num_axes: 2 shape { dim: 0 dim: 0 dim: 1 } }',
    '"Flatten" flatten_param { axis: 2 }',
    '"Softmax" softmax_param { axis: 1 }',
    '"Power" power_param { power: 2 scale: 0.3 shift: 1.5 }',
    '"Dropout" dropout_param { dropout_ratio: 0.3 scale_train: false }',
    '"Sigmoid"',
    '"TanH"',
    '"Normalize" norm_param { across_spatial: false channel_shared: false scale_filler { type: "gaussian" std: 1 } }',
    '"Normalize" norm_param { channel_shared: true scale_filler { type: "constant" value: 3 } }',
    '"AbsVal"',
    '"ChannelNorm"',
    '"Gather"',
    '"Slice"',
    '"BNLL"',
    '"ELU" elu_param { alpha: 0.7 }',
    '"Exp" exp_param { base: 2 scale: 0.5 shift: 0.3 }',
    '"Log" log_param { base: 2 scale: 0.1 shift: 3 }',
    '"Clip" clip_param { min: -0.3 max: 0.8 }',
    '"HardSigmoid"',
    '"HardSigmoid" hardsigmoid_param { alpha: 0.5 beta: 0.25 }',
    '"HardSwish"',
    '"Unsqueeze" unsqueeze_param { dim: 2 }',
    '"ReLU6" relu6_param { negative_slope: 0.2 }',
    '"Pooling" pooling_param { kernel_size: 2 stride: 1 pad_type: 1 }',
    '"Pooling" pooling_param { kernel_size: 3 pad_l: 1 pad_b: 2 }',
    '"Mish"',
    '"Swish" swish_param { beta: 1.5 }',
    '"Swish"',
    '"Reduction" reduction_param { operation: SUMSQ axis: 1 coeff: 0.5 }',
    '"Reduction" reduction_param { operation: MEAN axis: 2 }',
    '"Reduction" reduction_param { operation: ASUM axis: 3 }',
    '"Reduction" reduction_param { axis: 1 }',
    '"Tile" tile_param { axis: 2 tiles: 3 }',
    '"PixelShuffle" pixelshuffle_param { upscale_factor: 2 }',
    '"Reshape" reshape_param { pixelshuffler: 2 }',
    '"Reverse" reverse_param { axis: 2 }',
    '"Padding" padding_param { pad_beg: 1 pad_end: 2 }',
    '"Padding" padding_param { pad_beg: -1 pad_end: -2 }',
    '"ShuffleChannel" shuffle_channel_param { group: 2 }',
    '"Transpose" transpose_param { dim: 3 dim: 0 dim: 2 dim: 1 }',
    '"Interp" interp_param { height: 5 width: 29 }',
    '"Interp" interp_param { zoom_factor: 2 pad_beg: -1 pad_end: -2 }',
    '"MVN"',
    '"MVN" mvn_param { across_channels: true eps: 1e-10 }',
    '"MVN" mvn_param { normalize_variance: false }',
    '"BN" bn_param { eps: 0.01 } param {} param {} param {} param {}',
    '"BN" bn_param { frozen: true } param {} param {} param {} param {}',
    '"CuDNNBatchNorm" cudnn_batch_norm_param { eps: 0.01 }',
    '"BN" bn_param { bn_mode: INFERENCE scale_filler { type: "gaussian" std: 1 } shift_filler { type: "gaussian" std: 1 } }',
    '"Upsample" upsample_param { scale: 3 }',
    '"Im2col" convolution_param { kernel_h: 3 kernel_w: 2 stride: 2 pad: 1 dilation: 2 }',
    '"MaskResize" mask_resize_param { output_height: 5 output_width: 13 }',
    '"Python" python_param { module: "spatial_dropout" layer: "SpatialDropoutLayer"'
    """ param_str: "{'p': 0.3, 'phase': 'TEST'}" }""",
]


def net_of(text: str, dims: str = "dim: 2 dim: 4 dim: 9 dim: 8") -> Net:
    set_random_seed(4)
    net = Net(parse_net(INPUT.format(dims) + text), TEST, dtype=np.float64)
    random = np.random.default_rng(1)
    for name in net.inputs:
        net.blobs[name].data[...] = random.standard_normal(net.blobs[name].shape)
    for layer in net.layers:
        if layer.type == "BatchNorm":
            for blob, value in zip(layer.blobs, (0.7, 1.9, 1.3)):
                blob.data[...] = value * (1 + random.random(blob.shape))
        if layer.type in ("BN", "CuDNNBatchNorm"):
            for blob in layer.blobs:
                blob.data[...] = 0.5 + random.random(blob.shape)
    return net


def check(net: Net, folder: Path, tolerance: float = 1e-9) -> list[str]:
    made = write_source(net, folder / "model.py")
    found = compare_source(net, folder / "model.py", made)
    for one in found:
        assert one.relative <= tolerance, one
    return [one.name for one in found]


@pytest.mark.parametrize(
    ("fork", "param"),
    [
        ("", "min_size: 30 max_size: 60 aspect_ratio: 2 step: 16"),
        ("faceboxes", "min_size: 32 min_size: 64 min_size: 128 step: 32 variance: 0.1"),
        ("textboxes", "min_size: 30.5 max_size: 60 aspect_ratio: 2 clip: true"),
        ("", "min_size: 20 aspect_ratio: 3 offset_h: 0.25 offset_h: 0.75 offset_w: 0.5 offset_w: 0.125"),
    ],
)
def test_prior_boxes_at_several_places_in_a_cell(fork: str, param: str, tmp_path: Path) -> None:
    inputs = 'input: "x" input_dim: 1 input_dim: 1 input_dim: 3 input_dim: 7 input: "data" input_dim: 1 input_dim: 3 '
    inputs += "input_dim: 96 input_dim: 224\n"
    layer = f'layer {{ name: "p" type: "PriorBox" bottom: "x" bottom: "data" top: "p" prior_box_param {{ {param} }} }}'
    net = Net(parse_net(inputs + layer), TEST, dtype=np.float64, fork=fork)
    assert check(net, tmp_path) == ["p"]


@pytest.mark.parametrize("text", LAYERS)
def test_a_layer(tmp_path: Path, text: str) -> None:
    net = net_of(f'layer {{ name: "y" bottom: "data" top: "y" type: {text} }}')
    names = check(net, tmp_path)
    assert "d data" in names
    learnt = 2 if '"BN"' in text or "CuDNN" in text else 0 if "BatchNorm" in text else len(net.layers[-1].blobs)
    assert len([name for name in names if name.startswith("d y.")]) == learnt


def test_a_maximum_that_has_no_gradient(tmp_path: Path) -> None:
    net = net_of('layer { name: "y" bottom: "data" top: "y" type: "ArgMax" argmax_param { axis: 1 out_max_val: true } }')
    assert check(net, tmp_path) == ["y"]


def test_a_module_of_other_shapes(tmp_path: Path) -> None:
    net = net_of(
        'layer { name: "y" bottom: "data" top: "y" type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 1 } }'
    )
    made = write_source(net, tmp_path / "model.py")
    text = (tmp_path / "model.py").read_text()
    cut = text.replace("return {", "y = y[:, :, 1:]\n        return {")
    assert cut != text
    (tmp_path / "model.py").write_text(cut)
    (found,) = compare_source(net, tmp_path / "model.py", made)
    assert found.name == "y" and found.relative > 1


@pytest.mark.parametrize(
    ("text", "dims", "learnt"),
    [
        ('"Scale" scale_param { axis: 0 }', "dim: 2 dim: 4", 0),
        ('"Scale" scale_param { axis: -2 }', "dim: 9", 0),
        ('"Scale" scale_param { bias_term: true bias_filler { type: "gaussian" std: 1 } }', "dim: 4 dim: 9", 1),
        ('"Bias" bias_param { axis: 2 }', "dim: 9 dim: 8", 0),
    ],
)
def test_a_second_bottom_that_scales_or_shifts(text: str, dims: str, learnt: int, tmp_path: Path) -> None:
    net = net_of(f'''input: "s" input_shape {{ {dims} }}
        layer {{ name: "y" bottom: "data" bottom: "s" top: "y" type: {text} }}''')  # fmt: skip
    names = check(net, tmp_path)
    assert {"d data", "d s"} <= {*names} and len([name for name in names if name.startswith("d y.")]) == learnt


SECOND = 'layer { name: "b" type: "Power" bottom: "data" top: "b" power_param { scale: -0.5 shift: 0.2 } }\n'

SMALLER = {
    "Axpy": 'type: "Reduction" reduction_param { axis: 2 }',
    "BroadcastMul": 'type: "Pooling" pooling_param { pool: AVE global_pooling: true }',
    "SpatialProduct": f'type: "Convolution" convolution_param {{ num_output: 1 kernel_size: 1 {FILL} }}',
    "Crop": 'type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pool: AVE }',
}


@pytest.mark.parametrize(
    "text",
    [
        'type: "Eltwise" eltwise_param { coeff: 0.5 coeff: -2 }',
        'type: "Eltwise" eltwise_param { operation: PROD }',
        'type: "Eltwise" eltwise_param { operation: MAX }',
        'type: "Concat" concat_param { axis: 2 }',
        'bottom: "data" type: "Axpy"',
        'type: "BroadcastMul"',
        'type: "SpatialProduct"',
        'type: "Crop" crop_param { axis: 2 offset: 2 offset: 0 }',
    ],
)
def test_two_bottoms(tmp_path: Path, text: str) -> None:
    """The second one as the layer wants it: one number or one map for each, or a smaller map."""
    made = next((made for kind, made in SMALLER.items() if f'"{kind}"' in text), None)
    second = f'layer {{ name: "b" bottom: "data" top: "b" {made} }}' if made else SECOND
    bottoms = 'bottom: "b" bottom: "data"' if "Axpy" in text else 'bottom: "data" bottom: "b"'
    check(net_of(second + f'layer {{ name: "y" {bottoms} top: "y" {text} }}'), tmp_path)


@pytest.mark.parametrize("dims", ["dim: 2 dim: 8 dim: 6 dim: 4", "dim: 1 dim: 12 dim: 4 dim: 2"])
@pytest.mark.parametrize("reverse", ["true", "false"])
def test_reorg(tmp_path: Path, dims: str, reverse: str) -> None:
    text = f'layer {{ name: "y" type: "Reorg" bottom: "data" top: "y" reorg_param {{ stride: 2 reverse: {reverse} }} }}'
    check(net_of(text, dims), tmp_path)


UNPOOLED = [
    'type: "Upsample" upsample_param { upsample_h: 9 upsample_w: 8 }',
    'type: "Unpooling" unpooling_param { unpool: MAX kernel_size: 2 stride: 2 unpool_h: 9 unpool_w: 8 }',
]


@pytest.mark.parametrize("text", UNPOOLED)
def test_a_mask_from_pooling_to_unpooling(tmp_path: Path, text: str) -> None:
    pool = """layer { name: "pool" type: "Pooling" bottom: "data" top: "small" top: "mask" pooling_param {
      kernel_size: 2 stride: 2 } }"""
    names = check(net_of(pool + f'layer {{ name: "y" bottom: "small" bottom: "mask" top: "y" {text} }}'), tmp_path)
    assert names == ["y", "d data"]


@pytest.mark.parametrize("bias", ["true", "false"])
def test_embed_and_batch_reindex(tmp_path: Path, bias: str) -> None:
    text = f"""layer {{ name: "e" type: "Embed" bottom: "data" top: "e" embed_param {{
      num_output: 3 input_dim: 7 bias_term: {bias}
      weight_filler {{ type: "gaussian" std: 1 }} bias_filler {{ type: "gaussian" std: 1 }} }} }}
    layer {{ name: "y" type: "BatchReindex" bottom: "e" bottom: "data" top: "y" }}"""
    net = net_of(text, "dim: 6")
    net.blobs["data"].data[...] = [5, 0, 2, 2, 1, 5]
    assert {"y", "d e.weight"} <= set(check(net, tmp_path))


@pytest.mark.parametrize("out_max_val", ["true", "false"])
def test_arg_max(tmp_path: Path, out_max_val: str) -> None:
    text = f'layer {{ name: "y" type: "ArgMax" bottom: "data" top: "y" argmax_param {{ axis: 1 out_max_val: {out_max_val} }} }}'
    net = net_of(text)
    write_source(net, tmp_path / "model.py")
    sys.path.insert(0, str(tmp_path))
    try:
        import model
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["model"]
    found = model.load()(torch.from_numpy(net.blobs["data"].data.copy()))["y"].detach().numpy()
    np.testing.assert_array_equal(found, net.forward()["y"])


ROIS = """layer { name: "rois" type: "Input" top: "rois" input_param { shape { dim: 5 dim: 5 } } }
layer { name: "y" bottom: "data" bottom: "rois" top: "y" type: TYPE }"""
BOXES = [[0, 1, 2, 60, 70], [1, 30, -9, 90.5, 33], [0, 50, 50, 41, 20], [1, 17.2, 22.6, 38.1, 61.7], [0, 200, 3, 260, 9]]


@pytest.mark.parametrize(
    "text",
    [
        '"ROIAlign" roi_align_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.1 pool: AVE sampling_ratio: 2 aligned: true }',
        '"ROIAlign" roi_align_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.1 pool: AVE }',
        '"ROIAlign" roi_align_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.1 }',
        '"PSROIAlign" psroi_align_param { output_dim: 2 group_size: 2 spatial_scale: 0.1 sample_num: 3 }',
        '"ROIWarping" roi_warping_param { pooled_h: 3 pooled_w: 4 spatial_scale: 0.1 }',
    ],
)
def test_rois_sampled_between_pixels(tmp_path: Path, text: str) -> None:
    """Rois inside, past the edges, turned round, and off the map."""
    net = net_of(ROIS.replace("TYPE", text), "dim: 2 dim: 8 dim: 9 dim: 8")
    net.blobs["rois"].data[...] = BOXES
    assert check(net, tmp_path) == ["y", "d data"]


@pytest.mark.parametrize(
    "options", ["group: 2 bias_term: false deformable_group: 1", "deformable_group: 2 stride: 2 dilation: 2"]
)
def test_deformable_convolution(tmp_path: Path, options: str) -> None:
    kernel = f"kernel_h: 3 kernel_w: 2 pad: 1 {options}"
    groups = 2 if "deformable_group: 2" in options else 1
    moved = "kernel_h: 3 kernel_w: 2 pad: 1" + " stride: 2 dilation: 2" * (groups == 2)
    text = f"""layer {{ name: "o" type: "Convolution" bottom: "data" top: "o" convolution_param {{ {moved}
      num_output: {12 * groups} weight_filler {{ type: "gaussian" std: 0.4 }} }} }}
    layer {{ name: "y" type: "DeformableConvolution" bottom: "data" bottom: "o" top: "y" deformable_convolution_param {{
      {kernel} num_output: 6 {FILL} }} }}"""
    assert {"y", "d data", "d y.weight", "d o.weight"} <= set(check(net_of(text), tmp_path))
    masked = f"""layer {{ name: "m" type: "Convolution" bottom: "data" top: "m" convolution_param {{ {moved}
      num_output: {6 * groups} weight_filler {{ type: "gaussian" std: 0.4 }} }} }}\n"""
    masked += text.replace("Deform", "ModulatedDeform").replace("deformable_conv", "modulated_deformable_conv")
    masked = masked.replace('bottom: "o"', 'bottom: "o" bottom: "m"')
    assert {"y", "d data", "d y.weight", "d o.weight", "d m.weight"} <= set(check(net_of(masked), tmp_path))


RECURRENT = """layer { name: "cont" type: "Input" top: "cont" input_param { shape { dim: 5 dim: 3 } } }
layer { name: "still" type: "Input" top: "still" input_param { shape { dim: 3 dim: 2 } } }
"""
UNITS = (
    'recurrent_param { num_output: 4 weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "gaussian" std: 0.5 } EX }'
)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
@pytest.mark.parametrize("more", ["", "still", "exposed"])
def test_recurrent_layers(tmp_path: Path, kind: str, more: str) -> None:
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    inputs = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ dim: 1 dim: 3 dim: 4 }} }} }}\n'
        for name in states
    )
    bottoms = ["data", "cont", *(["still"] if more == "still" else []), *(states if more == "exposed" else [])]
    tops = ["y", *(f"last {name}" for name in states if more == "exposed")]
    ends = "".join(f'layer {{ name: "no {i}" type: "Silence" bottom: "{top}" }}\n' for i, top in enumerate(tops[1:]))
    names = " ".join([*(f'bottom: "{name}"' for name in bottoms), *(f'top: "{name}"' for name in tops)])
    units = UNITS.replace("EX", "expose_hidden: true" if more == "exposed" else "")
    unused = "".join(f'layer {{ name: "s {n}" type: "Silence" bottom: "{n}" }}\n' for n in ["still"] if n not in bottoms)
    text = RECURRENT + (inputs if more == "exposed" else "") + unused
    net = net_of(text + f'layer {{ name: "y" type: "{kind}" {names} {units} }}' + ends, "dim: 5 dim: 3 dim: 2 dim: 3")
    net.blobs["cont"].data[...] = [[0, 0, 1], [1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]]
    if more != "exposed":
        net.blobs["cont"].data[0] = 0
    wanted = {"y", "d data", "d y.weight_x", "d y.weight_h", "d y.bias", *(["d y.weight_static"] if more == "still" else [])}
    assert wanted <= set(check(net, tmp_path))


@pytest.mark.parametrize("own", ["true", "false"])
@pytest.mark.parametrize("dims", ["dim: 5 dim: 2 dim: 7", "dim: 10 dim: 7"])
def test_lstm_of_forks(tmp_path: Path, dims: str, own: str) -> None:
    text = f"""layer {{ name: "y" type: "Lstm" bottom: "data" top: "y" lstm_param {{ num_output: 4 own_states: {own}
      batch_size: 2 weight_filler {{ type: "gaussian" std: 0.5 }} bias_filler {{ type: "gaussian" std: 0.5 }} }} }}"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = set(check(net_of(text, dims), tmp_path))
    name = "weight_hh_l0" if own == "true" else "weight_h"
    assert {"y", "d data", f"d y.{name}"} <= found


def test_sequences_that_begin_at_the_first_step_are_torchs_lstm(tmp_path: Path) -> None:
    text = """layer {{ name: "cont" type: "ContinuationIndicator" bottom: "data" top: "cont" continuation_indicator_param {{
      time_step: 5 axis: 1 }} }}
    layer {{ name: "y" type: "LSTM" bottom: "data" bottom: "cont" top: "y" {} }}""".format(UNITS.replace("EX", ""))
    tensors = {f"{kind}_{end}_l0" for kind in ("weight", "bias") for end in ("ih", "hh")}
    found = set(check(net_of(text, "dim: 5 dim: 3 dim: 2 dim: 3"), tmp_path))
    assert {"y", "d data", *(f"d y.{name}" for name in tensors)} <= found
    written = (tmp_path / "model.py").read_text(encoding="utf-8")
    assert "self.y = nn.LSTM(6, 4)" in written and "y = self.y(data.flatten(2))[0]" in written
    assert "cont" not in written


def test_a_changed_continuation_is_no_first_step(tmp_path: Path) -> None:
    text = """layer {{ name: "cont" type: "ContinuationIndicator" bottom: "data" top: "cont" continuation_indicator_param {{
      time_step: 5 axis: 1 }} }}
    layer {{ name: "not" type: "Power" bottom: "cont" top: "cont" power_param {{ scale: -1 shift: 1 }} }}
    layer {{ name: "y" type: "LSTM" bottom: "data" bottom: "cont" top: "y" {} }}""".format(UNITS.replace("EX", ""))
    assert "d y.weight_h" in check(net_of(text, "dim: 5 dim: 3 dim: 2 dim: 3"), tmp_path)
    assert "self.y(data, cont)[0]" in (tmp_path / "model.py").read_text(encoding="utf-8")


def test_lstm_unit(tmp_path: Path) -> None:
    text = """layer { name: "c" type: "Input" top: "c" input_param { shape { dim: 1 dim: 3 dim: 4 } } }
    layer { name: "cont" type: "Input" top: "cont" input_param { shape { dim: 1 dim: 3 } } }
    layer { name: "u" type: "LSTMUnit" bottom: "c" bottom: "data" bottom: "cont" top: "c1" top: "h1" }"""
    net = net_of(text, "dim: 1 dim: 3 dim: 16")
    net.blobs["cont"].data[...] = [[1, 0, 1]]
    assert {"c1", "h1", "d c", "d data"} <= set(check(net, tmp_path))


def test_text_without_a_continuation_has_no_form(tmp_path: Path) -> None:
    net = net_of('layer { name: "y" type: "CTCGreedyDecoder" bottom: "data" top: "y" }', "dim: 9 dim: 2 dim: 3")
    with pytest.raises(LayerError, match="has no form without the sequences' continuation"):
        write_source(net, tmp_path / "model.py")


@pytest.mark.parametrize("merge", ["true", "false"])
def test_text_from_scores(tmp_path: Path, merge: str) -> None:
    text = f"""layer {{ name: "cont" type: "ContinuationIndicator" bottom: "data" top: "cont" continuation_indicator_param {{
      time_step: 9 axis: 1 }} }}
    layer {{ name: "y" type: "CTCGreedyDecoder" bottom: "data" bottom: "cont" top: "y" top: "score" ctc_decoder_param {{
      ctc_merge_repeated: {merge} blank_index: 1 }} }}"""
    net = net_of(text, "dim: 9 dim: 3 dim: 3")
    assert set(check(net, tmp_path)) == {"y", "score"}
    assert (net.blobs["y"].data >= 0).sum() > 3


def test_a_threshold_and_its_gradient_of_0(tmp_path: Path) -> None:
    text = """layer { name: "t" type: "Threshold" bottom: "data" top: "t" threshold_param { threshold: 0.2 } }
    layer { name: "y" type: "Eltwise" bottom: "t" bottom: "data" top: "y" eltwise_param { operation: PROD } }"""
    net = net_of(text)
    assert check(net, tmp_path)[0] == "y"


CASCADE = """layer { name: "rois" type: "Input" top: "rois" input_param { shape { dim: 5 dim: 5 } } }
layer { name: "y" type: "DecodeBBox" bottom: "data" bottom: "rois" top: "y"
  bbox_reg_param { bbox_mean: 0.1 bbox_mean: 0 bbox_mean: 0.2 bbox_mean: 0
    bbox_std: 0.1 bbox_std: 0.1 bbox_std: 0.2 bbox_std: 0.3 } }"""
PROPOSED = """layer { name: "far" type: "Input" top: "far" input_param { shape { dim: 2 dim: 7 dim: 4 dim: 5 } } }
layer { name: "y" type: "BoxOutput" bottom: "data" bottom: "far" top: "y" top: "s" box_output_param { field_w: 30 field_h: 40
  field_w: 60 field_h: 70 downsample_rate: 8 downsample_rate: 16 fg_thr: FG iou_thr: 0.4 max_nms_num: 60 max_post_nms_num: 20 }
  bbox_reg_param { bbox_mean: 0 bbox_mean: 0 bbox_mean: 0 bbox_mean: 0
    bbox_std: 0.1 bbox_std: 0.1 bbox_std: 0.2 bbox_std: 0.3 } }"""


def test_boxes_of_cascades(tmp_path: Path) -> None:
    net = net_of(CASCADE, "dim: 5 dim: 8")
    net.blobs["rois"].data[...] = BOXES
    assert check(net, tmp_path) == ["y"]


@pytest.mark.parametrize("least", [-1, 99])
def test_boxes_from_maps(tmp_path: Path, least: int) -> None:
    """least: 99 leaves no box, so that the layer puts one."""
    net = net_of(PROPOSED.replace("FG", str(least)), "dim: 2 dim: 7 dim: 9 dim: 8")
    assert sorted(check(net, tmp_path)) == ["s", "y"]
    assert len(net.blobs["y"].data) > 9 or least == 99


def test_slices_names_and_layers_in_place(tmp_path: Path) -> None:
    """Names that Python has for itself, or cannot have; two blobs of one variable's name."""
    text = """
    layer { name: "class" type: "Slice" bottom: "data" top: "1/a" top: "1.a" slice_param { axis: 1 slice_point: 1 } }
    layer { name: "conv/1" type: "Convolution" bottom: "1/a" top: "self" convolution_param { num_output: 3 kernel_size: 3
      weight_filler { type: "xavier" } } }
    layer { name: "relu" type: "ReLU" bottom: "self" top: "self" }
    layer { name: "flat" type: "Flatten" bottom: "1.a" top: "torch" }
    """
    names = check(net_of(text), tmp_path)
    assert {"self", "torch"} <= set(names)
    assert "self.conv_1 = nn.Conv2d(1, 3, 3)" in (tmp_path / "model.py").read_text()


def test_names_of_every_script_are_readable(tmp_path: Path) -> None:
    """NFKC makes an "if" of bold letters; names that begin with __ would get the class's name."""
    names = ["卷积", "Свёртка", "畳み込み", "層/一", "層.一", "𝐢𝐟", "//", "ﬁ", "2²", "हिन्दी", "\N{WAVY DASH}"]
    layer = (
        'layer {{ name: "{0}" type: "InnerProduct" bottom: "{1}" top: "{0}" inner_product_param {{ num_output: 2 {2} }} }}\n'
    )
    check(net_of("".join(layer.format(*each, FILL) for each in zip(names, ["data", *names]))), tmp_path)
    text = (tmp_path / "model.py").read_text(encoding="utf-8")
    found = re.findall(r"self\.(\S+) = nn\.Linear", text)
    assert found == ["卷积", "Свёртка", "畳み込み", "層_一", "層_一_2", "if_", "_", "fi", "_22", "हिन्दी", "_2"]
    assert all(re.search(rf"^        {name} = self\.{name}\(", text, re.MULTILINE) for name in found)


def test_blobs_with_the_names_of_functions(tmp_path: Path) -> None:
    text = ROIS.replace('"y"', '"roi_align"').replace(
        "TYPE", '"ROIAlign" roi_align_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.1 pool: AVE }'
    )
    net = net_of(text, "dim: 2 dim: 8 dim: 9 dim: 8")
    net.blobs["rois"].data[...] = BOXES
    assert check(net, tmp_path) == ["roi_align", "d data"]


def test_inputs_of_another_size_than_the_prototxts(tmp_path: Path) -> None:
    net = Net(
        parse_net(INPUT.format("dim: 2 dim: 4 dim: 9 dim: 8") + 'layer { name: "y" type: "ReLU" bottom: "data" top: "y" }'),
        TEST,
    )
    net.blobs["data"].reshape(3, 4, 5, 7)
    net.blobs["data"].data[...] = np.random.default_rng(1).standard_normal((3, 4, 5, 7))
    assert check(net, tmp_path, 1e-6) == ["y", "d data"]


def test_a_bias_whose_gradient_is_rounding(tmp_path: Path) -> None:
    text = f"""layer {{ name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param {{
      num_output: 6 kernel_size: 3 {FILL} }} }}
    layer {{ name: "y" type: "BatchNorm" bottom: "c" top: "y" batch_norm_param {{ use_global_stats: false }} }}"""
    net = net_of(text, "dim: 5 dim: 4 dim: 9 dim: 8")
    assert "d c.bias" in check(net, tmp_path)
    weight, bias = (abs(blob.diff).max() for blob in net.params["c"])
    assert bias < 1e-12 and weight > 1e-3


def test_layers_that_share_their_weights(tmp_path: Path) -> None:
    layer = """layer {{ name: "{}" type: "Convolution" bottom: "{}" top: "{}" param {{ name: "w" }} param {{ name: "b" }}
      convolution_param {{ num_output: 4 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}"""
    net = net_of(layer.format("one", "data", "a") + layer.format("two", "a", "b"))
    assert "d one.weight" in check(net, tmp_path)
    assert "self.two" not in (tmp_path / "model.py").read_text()


@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_a_detector(tmp_path: Path, kind: str) -> None:
    words = [
        SHAPES / kind / "test.prototxt",
        SHAPES / kind / f"shapes_{kind}.caffemodel",
        "-o",
        tmp_path / "model.py",
        "--check",
    ]
    words += ["--input", f"data={SHAPES / 'scene.png'}", "--cfg", SHAPES / "shapes.yml", "--classes", SHAPES / "classes.txt"]
    ran = CliRunner().invoke(main, ["to-torch", *map(str, words)])
    assert ran.exit_code == 0, ran.output
    assert " d conv1.weight " in ran.output
    code = "import sys, torch; from model import CLASS_NAMES, load; net = load().eval(); print('minicaffe' in sys.modules);"
    code += "print(CLASS_NAMES[1:3]);"
    code += "print(sorted(net(torch.zeros(1, 3, 64, 96), torch.tensor([[64., 96, 1]]))))"
    alone = subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path, capture_output=True, text=True)
    assert alone.stdout.split("\n")[:3] == ["False", "['circle', 'square']", "['bbox_pred', 'cls_prob', 'rois']"], alone.stderr


def test_it_can_be_exported(tmp_path: Path) -> None:
    """Where no shape depends on the data."""
    text = f'layer {{ name: "y" bottom: "data" top: "y" type: {LAYERS[0]} }}'
    text += 'layer { name: "r" type: "ReLU" bottom: "y" top: "r" }'
    net = net_of(text)
    write_source(net, tmp_path / "model.py")
    sys.path.insert(0, str(tmp_path))
    try:
        sys.modules.pop("model", None)
        from model import load

        module = load().eval()
        x = torch.from_numpy(net.blobs["data"].data.copy())
        exported = torch.export.export(module, (x,)).module()
        torch.testing.assert_close(exported(x)["r"], module(x)["r"])
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("model", None)


def test_the_documents_name_the_types_with_a_form() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "porting.md").read_text()
    rows = text.partition("| kind | layer types |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert sorted(name for row in rows for name in row.split(" | ")[1].strip("| ").split(", ")) == source.names()


def test_what_has_no_form(tmp_path: Path) -> None:
    text = 'layer { name: "m" type: "SPP" bottom: "data" top: "m" spp_param { pyramid_height: 2 } }'
    text += 'layer { name: "t" type: "SPP" bottom: "data" top: "t" spp_param { pyramid_height: 1 } }'
    with pytest.raises(LayerError, match=r'SPP layer "m": has no form in PyTorch source; SPP layer "t" \(.*:2\)'):
        write_source(net_of(text), tmp_path / "model.py")
    assert list(tmp_path.iterdir()) == []


def test_names_cannot_write_into_the_file(tmp_path: Path) -> None:
    text = 'name: "\\"\\"\\"\\nraise SystemExit(1) #\\\\" \n' + INPUT.format("dim: 2 dim: 3")
    with pytest.raises(Exception, match="control character"):
        parse_net(text)
    head = 'name: "a\\"\\"\\" + exit(1) \\\\"\n' + INPUT.format("dim: 2 dim: 3")
    layer = 'layer { name: "y\'; exit(1) #" type: "ReLU" bottom: "data" top: "y\'}; exit(1) #" }'
    net = Net(parse_net(head + layer), TEST)
    check(net, tmp_path, 1e-6)


def named(name: str, kind: str, bottom: str, rest: str = "") -> str:
    return f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{name}_top" {rest} }}\n'


RESERVED = ["forward", "training", "eval", "_modules", "__class__", "__y", "state_dict", "class"]


def test_layers_under_the_names_of_modules_attributes(tmp_path: Path) -> None:
    """An attribute of nn.Module, a name that Python mangles in a class, and a keyword."""
    bottoms = ["data", *(f"{name}_top" for name in RESERVED)]
    net = net_of("".join(named(name, "PReLU", bottom) for name, bottom in zip(RESERVED, bottoms)))
    assert {f"d {name}.weight" for name in ("forward_", "training_", "x_modules", "x__y", "class_")} <= set(
        check(net, tmp_path)
    )


def test_the_table_of_modules_attributes() -> None:
    names = {*dir(torch.nn.Module()), *torch.nn.Module.__annotations__}
    assert {name for name in names if not name.startswith("_")} <= MODULE


def test_blobs_under_the_names_that_forward_uses(tmp_path: Path) -> None:
    names = ["torch", "self", "F", "float", "math", "__debug__"]
    bottoms = ["data", *(f"{name}" for name in names)]
    rest = "clip_param { min: -inf max: 1 }"
    layers = (named(name, "Clip", bottom, rest).replace(f"{name}_top", name) for name, bottom in zip(names, bottoms))
    assert "__debug__" in check(net_of("".join(layers)), tmp_path)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinite_and_undefined_parameters(tmp_path: Path, dtype: type) -> None:
    """In float32 also a constant that overflows."""
    text = named("clip", "Clip", "data", "clip_param { min: -inf max: inf }")
    text += named("nan", "Threshold", "data", "threshold_param { threshold: nan }")
    text += named("power", "Power", "data", "power_param { scale: 0 shift: 1e30 power: 20 }")
    text += named("zero", "Power", "data", "power_param { scale: 0 shift: 0 power: -1 }")
    net = Net(parse_net(INPUT.format("dim: 2 dim: 3") + text), TEST, dtype=dtype)
    outputs = check_values(net, tmp_path)
    np.testing.assert_array_equal(outputs["zero_top"], np.full((2, 3), np.inf))


def check_values(net: Net, folder: Path) -> dict[str, np.ndarray]:
    """The outputs of the written module, which must equal the net's."""
    write_source(net, folder / "model.py")
    space: dict[str, Any] = {"__file__": str(folder / "model.py"), "__name__": "model"}
    exec((folder / "model.py").read_text(), space)
    found = space["load"]()(*(torch.from_numpy(net.blobs[name].data.copy()) for name in net.inputs))
    expected = net.forward()
    for name, array in found.items():
        np.testing.assert_array_equal(array.numpy(), expected[name])
    return {name: array.numpy() for name, array in found.items()}


class Odd(ReLU):
    """A layer whose form the test gives."""


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (lambda s, layer, bottom, top: f"{bottom[0]} +* 1", "SyntaxError"),
        (lambda s, layer, bottom, top: f"{s.module(layer, 'nn.Linear(0.5, 2)', {})}({bottom[0]})", "TypeError"),
        (lambda s, layer, bottom, top: f"{s.module(layer, 'nn.PReLU(3)', {})}({bottom[0]})", "Missing key"),
    ],
)
def test_source_that_fails_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Callable[..., str], reason: str
) -> None:
    monkeypatch.setitem(registry.types, "Odd", Odd)
    monkeypatch.setitem(source._entries, Odd, form)
    net = net_of(named("relu", "ReLU", "data") + named("odd", "Odd", "relu_top"))
    (tmp_path / "model.py").write_text("old")
    state = torch.random.get_rng_state()
    with pytest.raises(LayerError, match=rf'Odd layer "odd": the written PyTorch source fails: .*{reason}.*:3\)'):
        write_source(net, tmp_path / "model.py")
    assert [file.name for file in tmp_path.iterdir()] == ["model.py"] and (tmp_path / "model.py").read_text() == "old"
    assert torch.equal(state, torch.random.get_rng_state())


def test_source_is_compiled_without_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.types, "Odd", Odd)
    monkeypatch.setitem(source._entries, Odd, lambda s, layer, bottom, top: "1 +* 1")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LayerError, match=r'Odd layer "odd": .*SyntaxError'):
        write_source(net_of(named("odd", "Odd", "data")), tmp_path / "model.py")
    write_source(net_of(named("relu", "ReLU", "data")), tmp_path / "model.py")
    assert (tmp_path / "model.safetensors").exists()


def test_checking_leaves_no_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    check(net_of(named("relu", "ReLU", "data")), tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.py", "model.safetensors"]


def test_dropout_that_draws_in_test_draws_in_torch(tmp_path: Path) -> None:
    param = "dropout_param { dropout_ratio: 0.25 sample_weights_test: true }"
    net = net_of(f'layer {{ name: "y" type: "Dropout" bottom: "data" top: "y" {param} }}', "dim: 40 dim: 50")
    write_source(net, tmp_path / "model.py")
    space: dict[str, Any] = {"__file__": str(tmp_path / "model.py"), "__name__": "model"}
    exec((tmp_path / "model.py").read_text(), space)
    made = space["load"]().eval()(torch.ones(40, 50))["y"]
    assert made.unique().tolist() == pytest.approx([0, 4 / 3])
