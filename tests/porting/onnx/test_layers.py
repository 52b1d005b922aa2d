"""Every layer type with an ONNX form: each in onnxruntime, compared with minicaffe at the exported size and at others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from onnx_case import check, net_of

from minicaffe.errors import LayerError
from minicaffe.porting.onnx import export_onnx
from minicaffe.registry import exports


def maps(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def layer(inside: str, *, bottoms: int = 1, tops: int = 1) -> str:
    """A layer block with bottoms x, x1, ... and tops y, y1, ..."""
    names = [f'bottom: "x{i or ""}"' for i in range(bottoms)] + [f'top: "y{i or ""}"' for i in range(tops)]
    return f'layer {{ name: "layer" {" ".join(names)} {inside} }}'


IMAGES = [(2, 4, 7, 9)], [(3, 4, 10, 6)]
"""The sizes to export at and to run at too: batch, height and width all free."""

SAME = [(2, 4, 7, 9)], [(5, 4, 7, 9)]
"""Only the batch is free."""

ANY_SIZE = {
    "channel_norm": 'type: "ChannelNorm"',
    "conv": 'type: "Convolution" convolution_param { num_output: 6 kernel_size: 3 stride: 2 pad: 1 }',
    "conv_group": 'type: "Convolution" convolution_param { num_output: 6 kernel_h: 3 kernel_w: 2 pad: 2 dilation: 2 group: 2 }',
    "conv_no_bias": 'type: "Convolution" convolution_param { num_output: 3 kernel_size: 1 bias_term: false }',
    "depthwise": 'type: "DepthwiseConvolution" convolution_param { num_output: 4 kernel_size: 3 pad: 1 }',
    "deconv": 'type: "Deconvolution" convolution_param { num_output: 6 kernel_size: 4 stride: 2 pad: 1 group: 2 }',
    "deconv_dilation": 'type: "Deconvolution" convolution_param { num_output: 3 kernel_size: 3 dilation: 2 bias_term: false }',
    "im2col": 'type: "Im2col" convolution_param { kernel_h: 3 kernel_w: 2 stride: 2 pad: 1 dilation: 2 }',
    "pool_max": 'type: "Pooling" pooling_param { kernel_size: 3 stride: 2 }',
    "pool_max_pad": 'type: "Pooling" pooling_param { kernel_h: 3 kernel_w: 2 stride: 2 pad: 1 }',
    "pool_ave_pad": 'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }',
    "pool_exc_pad": 'type: "Pooling" pooling_param { pool: AVE_EXC_PAD kernel_size: 3 stride: 2 pad: 1 }',
    "pool_exc_pad_floor": 'type: "Pooling" pooling_param { pool: AVE_TF kernel_size: 3 stride: 2 pad: 1 ceil_mode: false }',
    "pool_exc_pad_sparse": 'type: "Pooling" pooling_param { pool: AVE_EXC_PAD kernel_h: 3 kernel_w: 2 stride: 4 pad: 1 }',
    "pool_floor_of_forks": 'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 ceil_mode: false }',
    "pool_floor": 'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 round_mode: FLOOR }',
    "pool_sparse": 'type: "Pooling" pooling_param { kernel_size: 1 stride: 2 }',
    "pool_sparse_axis": 'type: "Pooling" pooling_param { kernel_h: 3 kernel_w: 1 stride: 2 }',
    "pool_sparse_ave": 'type: "Pooling" pooling_param { pool: AVE kernel_size: 2 stride: 3 }',
    "pool_global": 'type: "Pooling" pooling_param { pool: AVE global_pooling: true }',
    "pool_global_max": 'type: "Pooling" pooling_param { global_pooling: true }',
    "lrn": 'type: "LRN" lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 k: 2 }',
    "lrn_within": 'type: "LRN" lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 norm_region: WITHIN_CHANNEL }',
    "bn": 'type: "BN" bn_param { eps: 0.001 }',
    "cudnn_bn": 'type: "CuDNNBatchNorm" cudnn_batch_norm_param { eps: 0.01 scale_filler { value: 1.5 } }',
    "bn_of_batch": 'type: "BN" bn_param { bn_mode: LEARN }',
    "bn_inference": 'type: "BN" bn_param { bn_mode: INFERENCE }',
    "batch_norm": 'type: "BatchNorm"',
    "normalize_l1": 'type: "Normalize" normalize_param { normalize_type: "L1" }',
    "normalize_l2": 'type: "Normalize" normalize_param { }',
    "batch_norm_scaled": 'type: "BatchNorm" batch_norm_param { scale_bias: true }',
    "batch_norm_scaled_of_batch": 'type: "BatchNorm" phase: TRAIN batch_norm_param { scale_bias: true }',
    "batch_norm_of_batch": 'type: "BatchNorm" batch_norm_param { use_global_stats: false eps: 0.01 }',
    "scale": 'type: "Scale" scale_param { bias_term: true }',
    "scale_scalar": 'type: "Scale" scale_param { num_axes: 0 }',
    "bias": 'type: "Bias"',
    "interp_zoom": 'type: "Interp" interp_param { zoom_factor: 3 }',
    "interp_shrink_zoom": 'type: "Interp" interp_param { shrink_factor: 2 zoom_factor: 3 pad_beg: -1 pad_end: -2 }',
    "interp_size": 'type: "Interp" interp_param { height: 5 width: 1 }',
    "upsample": 'type: "Upsample" upsample_param { scale: 3 }',
    "padding": 'type: "Padding" padding_param { pad_beg: 1 pad_end: 2 }',
    "padding_crop": 'type: "Padding" padding_param { pad_beg: -1 pad_end: -2 }',
    "relu": 'type: "ReLU"',
    "leaky": 'type: "ReLU" relu_param { negative_slope: 0.1 }',
    "prelu": 'type: "PReLU"',
    "prelu_shared": 'type: "PReLU" prelu_param { channel_shared: true }',
    "abs": 'type: "AbsVal"',
    "bnll": 'type: "BNLL"',
    "clip": 'type: "Clip" clip_param { min: -0.5 max: 0.7 }',
    "elu": 'type: "ELU" elu_param { alpha: 0.5 }',
    "exp": 'type: "Exp" exp_param { base: 2 scale: 0.5 shift: 1 }',
    "exp_e": 'type: "Exp"',
    "log": 'type: "Log" log_param { base: 10 scale: 0.1 shift: 5 }',
    "power": 'type: "Power" power_param { power: 2 scale: 0.5 shift: 1 }',
    "power_linear": 'type: "Power" power_param { scale: 0.5 }',
    "power_constant": 'type: "Power" power_param { scale: 0 shift: 3 power: 2 }',
    "sigmoid": 'type: "Sigmoid"',
    "mish": 'type: "Mish"',
    "pool_same": 'type: "Pooling" pooling_param { kernel_size: 2 stride: 1 pad_type: 1 }',
    "pool_left": 'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 pad_l: 1 }',
    "pool_strided": 'type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad_l: 2 pad_b: 1 round_mode: FLOOR }',
    "pool_sides": 'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 pad_t: 1 pad_r: 2 round_mode: FLOOR }',
    "swish": 'type: "Swish" swish_param { beta: 0.5 }',
    "hard_sigmoid": 'type: "HardSigmoid"',
    "hard_sigmoid_slope": 'type: "HardSigmoid" hardsigmoid_param { alpha: 0.5 beta: 0.25 }',
    "hard_swish": 'type: "HardSwish"',
    "relu6": 'type: "ReLU6"',
    "relu6_leaky": 'type: "ReLU6" relu6_param { negative_slope: 0.1 }',
    "tanh": 'type: "TanH"',
    "threshold": 'type: "Threshold" threshold_param { threshold: 0.3 }',
    "dropout": 'type: "Dropout"',
    "dropout_scaled": 'type: "Dropout" dropout_param { dropout_ratio: 0.3 scale_train: false }',
    "softmax": 'type: "Softmax"',
    "softmax_axis": 'type: "Softmax" softmax_param { axis: -1 }',
    "mvn": 'type: "MVN"',
    "mvn_across": 'type: "MVN" mvn_param { across_channels: true normalize_variance: false }',
    "normalize": 'type: "Normalize" norm_param { across_spatial: false channel_shared: false }',
    "normalize_across": 'type: "Normalize" norm_param { }',
    "permute": 'type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }',
    "transpose": 'type: "Transpose" transpose_param { dim: 0 dim: 3 dim: 1 dim: 2 }',
    "reverse": 'type: "Reverse" reverse_param { axis: -2 }',
    "shuffle_channel": 'type: "ShuffleChannel" shuffle_channel_param { group: 2 }',
    "reorg_reverse": 'type: "Reorg" reorg_param { stride: 2 reverse: true }',
    "flatten": 'type: "Flatten"',
    "flatten_some": 'type: "Flatten" flatten_param { axis: 0 end_axis: 1 }',
    "flatten_last": 'type: "Flatten" flatten_param { axis: 2 }',
    "reshape_zero": 'type: "Reshape" reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } }',
    "reshape_axis": 'type: "Reshape" reshape_param { shape { dim: 2 dim: 2 } axis: 1 num_axes: 1 }',
    "reshape_infer": 'type: "Reshape" reshape_param { shape { dim: 0 dim: -1 } }',
    "pixel_shuffle": 'type: "PixelShuffle" pixelshuffle_param { upscale_factor: 2 }',
    "unsqueeze": 'type: "Unsqueeze" unsqueeze_param { dim: -1 }',
    "reshape_pixel_shuffle": 'type: "Reshape" reshape_param { pixelshuffler: 2 }',
    "gather_one": 'type: "Gather"',
    "reduction": 'type: "Reduction" reduction_param { axis: 1 coeff: 0.5 }',
    "reduction_all": 'type: "Reduction" reduction_param { operation: ASUM }',
    "reduction_squares": 'type: "Reduction" reduction_param { operation: SUMSQ axis: -1 }',
    "reduction_mean": 'type: "Reduction" reduction_param { operation: MEAN axis: 2 }',
    "arg_max": 'type: "ArgMax"',
    "arg_max_top": 'type: "ArgMax" argmax_param { top_k: 3 out_max_val: true }',
    "arg_max_axis": 'type: "ArgMax" argmax_param { axis: 1 top_k: 2 }',
    "tile": 'type: "Tile" tile_param { tiles: 3 axis: 1 }',
    "tile_batch": 'type: "Tile" tile_param { tiles: 2 axis: 0 }',
    "concat_one": 'type: "Concat"',
    "inner_product_normalized": 'type: "InnerProduct" inner_product_param { num_output: 5 axis: 3 normalize: true }',
    "inner_product_last_axis": 'type: "InnerProduct" inner_product_param { num_output: 5 axis: 3 }',
}
FIXED_MAP = {"inner_product_last_axis", "inner_product_normalized"}


@pytest.mark.parametrize("name", ANY_SIZE)
def test_layers_of_one_bottom(name: str, tmp_path: Path) -> None:
    sizes = SAME if name in FIXED_MAP else IMAGES
    inputs = [{"x": maps(*shape)} for (shape,) in sizes]
    back = name != "batch_norm_scaled_of_batch"  # what the model computes of its weights is in no layer
    dims = check(tmp_path, layer(ANY_SIZE[name]), *inputs, rtol=1e-4, atol=1e-5, back=back)
    assert dims["x"] == (["x_n", 4, "x_h", 9] if name in FIXED_MAP else ["x_n", 4, "x_h", "x_w"])


def test_mask_layers(tmp_path: Path) -> None:
    text = 'type: "MaskResize" mask_resize_param { output_height: 9 output_width: 3 }'
    check(tmp_path, layer(text), {"x": maps(2, 4, 7, 9)}, {"x": maps(3, 4, 12, 6)}, rtol=1e-4, atol=1e-5)
    check(tmp_path, layer('type: "MaskPooling"', bottoms=2), {"x": maps(2, 4, 7, 9), "x1": maps(2, 1, 7, 9)})


def test_reorg(tmp_path: Path) -> None:
    inputs = [{"x": maps(*shape)} for shape in ((2, 4, 6, 8), (3, 4, 10, 6), (1, 4, 12, 2))]
    dims = check(tmp_path, layer('type: "Reorg" reorg_param { stride: 2 }'), *inputs)
    assert dims["x"] == ["x_n", 4, "x_h", "x_w"]


TWO = {
    "sum": 'type: "Eltwise"',
    "sum_coeff": 'type: "Eltwise" eltwise_param { coeff: 0.5 coeff: -2 }',
    "prod": 'type: "Eltwise" eltwise_param { operation: PROD }',
    "max": 'type: "Eltwise" eltwise_param { operation: MAX }',
    "concat": 'type: "Concat"',
    "concat_rows": 'type: "Concat" concat_param { axis: 2 }',
    "scale": 'type: "Scale" scale_param { axis: 0 bias_term: false }',
}


@pytest.mark.parametrize("name", TWO)
def test_layers_of_two_bottoms_have_their_free_axes_together(name: str, tmp_path: Path) -> None:
    inputs = [{"x": maps(*shape), "x1": maps(*shape, seed=1)} for (shape,) in IMAGES]
    dims = check(tmp_path, layer(TWO[name], bottoms=2), *inputs)
    assert dims["x"][0] == dims["x1"][0] == "x_n" and dims["x"][3] == dims["x1"][3] == "x_w"


def test_bn_shows_the_statistics_of_the_batch(tmp_path: Path) -> None:
    check(tmp_path, layer('type: "BN"', tops=3), {"x": maps(4, 3, 5, 2)}, {"x": maps(2, 3, 7, 6)})


def test_numbers_go_where_a_mask_says(tmp_path: Path) -> None:
    mask = np.arange(24, dtype=np.float32)[::-1].reshape(1, 2, 3, 4) % 12 * 3
    for block in (
        'type: "Upsample" upsample_param { pad_out_w: true }',
        'type: "Upsample" upsample_param { upsample_h: 7 upsample_w: 5 }',
        'type: "Unpooling" unpooling_param { kernel_size: 2 stride: 2 unpool_h: 5 unpool_w: 8 }',
    ):
        check(tmp_path, layer(block, bottoms=2), {"x": maps(1, 2, 3, 4), "x1": mask})


def test_products_of_maps(tmp_path: Path) -> None:
    check(tmp_path, layer('type: "BroadcastMul"', bottoms=2), {"x": maps(2, 3, 4, 5), "x1": maps(2, 3, seed=1)})
    check(tmp_path, layer('type: "SpatialProduct"', bottoms=2), {"x": maps(2, 3, 4, 5), "x1": maps(2, 1, 4, 5, seed=1)})


def test_axpy(tmp_path: Path) -> None:
    shapes = {"x": (2, 3), "x1": (2, 3, 4, 5), "x2": (2, 3, 4, 5)}
    inputs = {name: maps(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    check(tmp_path, layer('type: "Axpy"', bottoms=3), inputs)


def test_three_bottoms_are_summed(tmp_path: Path) -> None:
    inputs = {name: maps(2, 3, seed=i) for i, name in enumerate(("x", "x1", "x2"))}
    check(tmp_path, layer('type: "Eltwise"', bottoms=3), inputs)


@pytest.mark.parametrize(
    ("block", "shape"),
    [("scale_param { axis: 1 }", (4,)), ("scale_param { axis: 0 }", (2,)), ("scale_param { axis: 1 }", (4, 7))],
)
def test_scale_by_a_blob_that_lies_along_some_axes(block: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    check(tmp_path, layer(f'type: "Scale" {block}', bottoms=2), {"x": maps(2, 4, 7, 9), "x1": maps(*shape)})
    block = block.replace("scale_param", "bias_param")
    check(tmp_path, layer(f'type: "Bias" {block}', bottoms=2), {"x": maps(2, 4, 7, 9), "x1": maps(*shape)})


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_convolutions_over_one_and_three_axes(kind: str, axes: int, tmp_path: Path) -> None:
    text = layer(f'type: "{kind}" convolution_param {{ num_output: 4 kernel_size: 2 stride: 2 group: 2 }}')
    check(tmp_path, text, {"x": maps(2, 4, *(5, 6, 7)[:axes])}, {"x": maps(3, 4, *(8, 5, 6)[:axes])})


@pytest.mark.parametrize("shape", [(3, 4), (5, 3, 4), (4,)])
def test_convolution_without_spatial_axes(shape: tuple[int, ...], tmp_path: Path) -> None:
    text = layer('type: "Convolution" convolution_param { num_output: 6 axis: -1 group: 2 }')
    check(tmp_path, text, {"x": maps(*shape)})


def test_convolution_with_its_channels_on_another_axis(tmp_path: Path) -> None:
    text = layer('type: "Convolution" convolution_param { num_output: 3 kernel_size: 2 axis: 2 }')
    check(tmp_path, text, {"x": maps(2, 3, 4, 6, 5)}, {"x": maps(4, 3, 4, 6, 7)})


@pytest.mark.parametrize("param", ["", "transpose: true", "axis: 0", "axis: 2 bias_term: false", "axis: -1"])
def test_inner_product(param: str, tmp_path: Path) -> None:
    text = layer(f'type: "InnerProduct" inner_product_param {{ num_output: 5 {param} }}')
    dims = check(tmp_path, text, {"x": maps(2, 3, 4)})
    assert dims["x"][0] == (2 if param == "axis: 0" else "x_n")


def test_the_mask_of_max_pooling(tmp_path: Path) -> None:
    text = layer('type: "Pooling" pooling_param { kernel_size: 3 stride: 2 }', tops=2)
    check(tmp_path, text, {"x": maps(2, 3, 6, 8)}, {"x": maps(1, 3, 9, 5)})


@given(st.data())
def test_pooling_windows_are_caffes(tmp_path: Path, data: st.DataObject) -> None:
    kernel = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)), "kernel")
    stride = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)), "stride")
    pad = [data.draw(st.integers(0, k - 1), "pad") for k in kernel]
    sizes = data.draw(st.lists(st.tuples(st.integers(5, 14), st.integers(5, 14)), min_size=2, max_size=3), "sizes")
    pool = data.draw(st.sampled_from(["MAX", "AVE", "AVE_EXC_PAD"]), "pool")
    if pool == "AVE_EXC_PAD" or (pool == "AVE" and not any(pad)):
        stride = (
            min(stride[0], kernel[0]),
            min(stride[1], kernel[1]),
        )  # Caffe divides by nothing where a window is past the map
    named = zip(("kernel", "stride", "pad"), (kernel, stride, pad))
    text = layer(
        f'type: "Pooling" pooling_param {{ pool: {pool} {" ".join(f"{n}_h: {h} {n}_w: {w}" for n, (h, w) in named)} }}'
    )
    check(tmp_path, text, *({"x": maps(1, 2, *size)} for size in sizes), rtol=1e-4, atol=1e-5)


def test_a_stride_past_the_map_is_its_own_on_a_larger_one(tmp_path: Path) -> None:
    text = layer('type: "Pooling" pooling_param { kernel_size: 2 stride: 9 }')
    check(tmp_path, text, {"x": maps(1, 2, 4, 5)}, {"x": maps(1, 2, 21, 30)})


def test_slices(tmp_path: Path) -> None:
    points = 'type: "Slice" slice_param { slice_point: 1 slice_point: 3 }'
    check(tmp_path, layer(points, tops=3), *({"x": maps(*shape)} for (shape,) in IMAGES))
    check(tmp_path, layer('type: "Slice"', tops=2), *({"x": maps(*shape)} for (shape,) in IMAGES))
    rows = layer('type: "Slice" slice_param { axis: 0 }', tops=2)
    check(tmp_path, rows, {"x": maps(4, 3)}, {"x": maps(6, 3)})


def test_crop_takes_its_lengths_from_the_second_bottom(tmp_path: Path) -> None:
    text = layer('type: "Crop" crop_param { offset: 1 offset: 2 }', bottoms=2)
    check(tmp_path, text, {"x": maps(2, 3, 9, 13), "x1": maps(2, 5, 4, 5)}, {"x": maps(2, 3, 12, 9), "x1": maps(2, 5, 6, 7)})


def test_embed_and_batch_reindex_read_indices(tmp_path: Path) -> None:
    text = layer('type: "Embed" embed_param { num_output: 3 input_dim: 7 }')
    check(tmp_path, text, {"x": np.array([[0, 6, 2], [1, 1, 5]], np.float32)})
    check(tmp_path, layer('type: "BatchReindex"', bottoms=2), {"x": maps(3, 4, 2), "x1": np.array([2, 0, 0, 1, 2], np.float32)})


def test_spp_is_for_the_map_it_was_exported_at(tmp_path: Path) -> None:
    text = layer('type: "SPP" spp_param { pyramid_height: 3 }')
    dims = check(tmp_path, text, {"x": maps(2, 3, 9, 11)}, {"x": maps(4, 3, 9, 11)})
    assert dims["x"] == ["x_n", 3, 9, 11]


def test_in_place_layers_and_silence(tmp_path: Path) -> None:
    text = """
        layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: 3 kernel_size: 1 } }
        layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
        layer { name: "scale" type: "Scale" bottom: "y" top: "y" }
        layer { name: "other" type: "Power" bottom: "x" top: "z" }
        layer { name: "quiet" type: "Silence" bottom: "z" }
    """
    dims = check(tmp_path, text, *({"x": maps(*shape)} for (shape,) in IMAGES))
    assert list(dims) == ["x", "y"]


def test_an_input_changed_in_place_keeps_its_name(tmp_path: Path) -> None:
    text = """
        layer { name: "scale" type: "Power" bottom: "x" top: "x" power_param { scale: 2 } }
        layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: 3 kernel_size: 1 } }
    """
    dims = check(tmp_path, text, *({"x": maps(*shape)} for (shape,) in IMAGES))
    assert list(dims) == ["x", "y"]


def test_a_dropout_that_draws_in_test_has_no_form(tmp_path: Path) -> None:
    net = net_of(layer('type: "Dropout" dropout_param { sample_weights_test: true }'), {"x": maps(2, 3)})
    with pytest.raises(LayerError, match=r'Dropout layer "layer": a random mask in TEST has no ONNX form'):
        export_onnx(net, tmp_path / "model.onnx")


def test_a_parameter_is_a_constant(tmp_path: Path) -> None:
    text = 'layer { name: "p" type: "Parameter" top: "p" parameter_param { shape { dim: 2 dim: 3 } } }'
    check(tmp_path, text + layer('type: "Eltwise"', bottoms=2).replace('"x1"', '"p"'), {"x": maps(2, 3)})


def test_a_class_of_the_users_has_no_emitter() -> None:
    net = net_of(layer('type: "ReLU"'), {"x": maps(2, 3)})
    relu = net.layer_dict["layer"]
    assert type(relu) in exports

    class Mine(type(relu)):  # type: ignore[misc]
        pass

    assert Mine not in exports
