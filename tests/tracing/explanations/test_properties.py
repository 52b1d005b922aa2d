"""What explain works out is the layer's own number: for random geometry, forward and backward, for every type it covers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from explained import check, explained_alike, net_of, places
from hypothesis import given, settings
from hypothesis import strategies as st
from roi_cases import Case, cases

from minicaffe import TEST, TRAIN
from minicaffe.layers import CATALOGUE
from minicaffe.registry import explains
from minicaffe.tracing.explanations import explain

seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from([np.float32, np.float64])

ROI = {
    "ROIPooling": "roi_pooling_param {{ pooled_h: {h} pooled_w: {w} spatial_scale: {s} }}",
    "ROIAlign": "roi_align_param {{ pooled_h: {h} pooled_w: {w} spatial_scale: {s} }}",
    "ROIWarping": "roi_warping_param {{ pooled_h: {h} pooled_w: {w} spatial_scale: {s} }}",
    "PSROIPooling": "psroi_pooling_param {{ group_size: {h} output_dim: {d} spatial_scale: {s} }}",
    "PSROIAlign": "psroi_align_param {{ group_size: {h} output_dim: {d} spatial_scale: {s} sample_num: {k} }}",
}


def roi_net(kind: str, case: Case, more: str = "", k: int = 2, dtype: Any = np.float32, third: float | None = None) -> Any:
    h, w = case.pooled
    text = ROI[kind].format(h=h, w=w, s=case.scale, d=case.x.shape[1] // h**2, k=k)
    inputs = [case.x, case.rois] + ([np.array([third])] if third is not None else [])
    return net_of(f'type: "{kind}" {text[:-1]} {more} }}', *inputs, dtype=dtype), inputs


@given(cases(), seeds, dtypes)
def test_roi_pooling(case: Case, seed: int, dtype: Any) -> None:
    net, inputs = roi_net("ROIPooling", case, dtype=dtype)
    explained_alike(net, inputs, np.random.default_rng(seed))


@given(cases(), seeds, dtypes, st.sampled_from([None, 0.25, -0.5]))
def test_roi_align_max(case: Case, seed: int, dtype: Any, third: float | None) -> None:
    net, inputs = roi_net("ROIAlign", case, dtype=dtype, third=third)
    explained_alike(net, inputs, np.random.default_rng(seed))


@given(cases(), seeds, dtypes, st.integers(0, 3), st.booleans())
def test_roi_align_mean(case: Case, seed: int, dtype: Any, ratio: int, aligned: bool) -> None:
    net, inputs = roi_net("ROIAlign", case, f"pool: AVE sampling_ratio: {ratio} aligned: {str(aligned).lower()}", dtype=dtype)
    explained_alike(net, inputs, np.random.default_rng(seed))


@given(cases(), seeds, dtypes)
def test_roi_warping(case: Case, seed: int, dtype: Any) -> None:
    net, inputs = roi_net("ROIWarping", case, dtype=dtype)
    explained_alike(net, inputs, np.random.default_rng(seed))


@given(cases(groups=True), seeds, dtypes, st.booleans())
@settings(max_examples=4, deadline=None)
def test_deformable_psroi_pooling(case: Case, seed: int, dtype: Any, by_class: bool) -> None:
    dim, random = case.x.shape[1] // case.pooled[0] ** 2, np.random.default_rng(seed)
    trans = random.standard_normal((len(case.rois), 2 * (dim if by_class else 1), 3, 3))
    sizes = f"spatial_scale: {case.scale} output_dim: {dim} group_size: {case.pooled[0]} part_size: 3 sample_per_part: 2"
    text = f'type: "DeformablePSROIPooling" deformable_psroi_pooling_param {{ {sizes} trans_std: 0.2 }}'
    explained_alike(net_of(text, case.x, case.rois, trans, dtype=dtype), [case.x, case.rois, trans], random)


@given(cases(groups=True), seeds, dtypes)
def test_psroi_pooling(case: Case, seed: int, dtype: Any) -> None:
    net, inputs = roi_net("PSROIPooling", case, dtype=dtype)
    explained_alike(net, inputs, np.random.default_rng(seed))


@given(cases(groups=True), seeds, dtypes, st.integers(1, 3))
def test_psroi_align(case: Case, seed: int, dtype: Any, k: int) -> None:
    net, inputs = roi_net("PSROIAlign", case, k=k, dtype=dtype)
    explained_alike(net, inputs, np.random.default_rng(seed))


@given(cases(), seeds)
def test_the_argmax_is_the_layers(case: Case, seed: int) -> None:
    net, _ = roi_net("ROIPooling", case)
    net_train = net_of('type: "ROIPooling" ' + ROI["ROIPooling"].format(h=case.pooled[0], w=case.pooled[1], s=case.scale),
                       case.x, case.rois, phase=TRAIN)  # fmt: skip
    net_train.forward()
    argmax = net_train.layer_dict["it"].argmax.read_data()
    for at in places(net.blobs["out0"].shape, np.random.default_rng(seed), 5):
        found = explain(net, "it", at).argmax  # type: ignore[attr-defined]
        assert argmax[at] == (-1 if found is None else found[0] * case.x.shape[3] + found[1])


# Windows.


@st.composite
def windows(draw: Any) -> tuple[str, tuple[int, ...], str]:
    """A convolution's parameters, the shape of its bottom, and the group's."""
    axes, group = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(axes)]
    dilation = [draw(st.integers(1, 2)) for _ in range(axes)]
    pad = [draw(st.integers(0, 2)) for _ in range(axes)]
    spatial = [max(1, d * (k - 1) + 1 - 2 * p) + draw(st.integers(0, 4)) for k, d, p in zip(kernel, dilation, pad)]
    fields = {"kernel_size": kernel, "dilation": dilation, "pad": pad, "stride": [draw(st.integers(1, 3)) for _ in kernel]}
    text = " ".join(f"{name}: {v}" for name, values in fields.items() for v in values)
    outputs = group * draw(st.integers(1, 3))
    bias = "bias_filler { type: 'gaussian' }" if draw(st.booleans()) else "bias_term: false"
    text = f"num_output: {outputs} group: {group} weight_filler {{ type: 'gaussian' }} {bias} {text}"
    return text, (draw(st.integers(1, 2)), group * draw(st.integers(1, 3)), *spatial), bias


@given(windows(), seeds, st.booleans())
def test_convolution(window: tuple[str, tuple[int, ...], str], seed: int, two: bool) -> None:
    text, shape, _ = window
    random = np.random.default_rng(seed)
    inputs = [random.standard_normal(shape) for _ in range(1 + two)]
    net = net_of(f'type: "Convolution" convolution_param {{ {text} }}', *inputs, tops=1 + two)
    explained_alike(net, inputs, random, most=3)


@given(windows(), seeds)
def test_deconvolution(window: tuple[str, tuple[int, ...], str], seed: int) -> None:
    text, shape, _ = window
    random = np.random.default_rng(seed)
    pads = [int(word) for word, before in zip(text.split()[1:], text.split()) if before == "pad:"]
    x = random.standard_normal((*shape[:2], *(n + 2 * p for n, p in zip(shape[2:], pads))))
    explained_alike(net_of(f'type: "Deconvolution" convolution_param {{ {text} }}', x), [x], random, most=3)


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(4, 9),
    st.sampled_from(["MAX", "AVE", "AVE_EXC_PAD", "STOCHASTIC"]),
    st.sampled_from([TRAIN, TEST]),
    seeds,
)
def test_pooling(kernel: int, stride: int, pad: int, size: int, method: str, phase: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = np.round(2 * random.standard_normal((2, 3, size, size + 2)))
    x = np.abs(x) if method == "STOCHASTIC" else x
    pad = 0 if method == "STOCHASTIC" else min(pad, kernel - 1)
    text = f"pool: {method} kernel_size: {kernel} stride: {stride} pad: {pad}"
    tops = 2 if method == "MAX" else 1
    explained_alike(net_of(f'type: "Pooling" pooling_param {{ {text} }}', x, tops=tops, phase=phase), [x], random)


AXIS = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.integers(0, 4))


@given(st.lists(AXIS, min_size=1, max_size=3), st.integers(0, 2), st.sampled_from(["MAX", "AVE"]), st.booleans(), seeds)
def test_pooling_of_axes(axes: list[tuple[int, ...]], channel_axis: int, method: str, floor: bool, seed: int) -> None:
    fields, size = [f"pool: {method} axis: {channel_axis} round_mode: {'FLOOR' if floor else 'CEIL'}"], []
    for kernel, stride, most, dilation, more in axes:
        extent = dilation * (kernel - 1) + 1
        pad = min(most, extent - 1)
        fields.append(f"kernel_sizes: {kernel} strides: {stride} pads: {pad} dilation: {dilation}")
        size.append(max(1, extent - 2 * pad) + more)
    random = np.random.default_rng(seed)
    x = np.round(2 * random.standard_normal((*(2, 3, 2)[: channel_axis + 1], *size)))
    tops = 2 if method == "MAX" else 1
    explained_alike(net_of(f'type: "Pooling" pooling_param {{ {" ".join(fields)} }}', x, tops=tops), [x], random)


# The others: a layer's text, the bottoms' shapes (labels: whole numbers below 4), and how many tops.

NORMAL = "{ type: 'gaussian' std: 1 }"
CONV = f"convolution_param {{ weight_filler {NORMAL} num_output:"
IP = f"inner_product_param {{ weight_filler {NORMAL} num_output: 4"
OTHERS = [
    ('type: "AbsVal"', [(2, 3, 5)], 1),
    ('type: "BN" bn_param { eps: 0.001 }', [(4, 3, 5)], 1),
    ('type: "BN" bn_param { frozen: true }', [(4, 3)], 1),
    ('type: "BN" bn_param { bn_mode: LEARN }', [(4, 3, 5, 2)], 3),
    ('type: "BN" bn_param { bn_mode: INFERENCE }', [(4, 3, 5)], 1),
    ('type: "CuDNNBatchNorm" cudnn_batch_norm_param { eps: 0.01 scale_filler { value: 1.5 } }', [(4, 3, 5)], 1),
    ('type: "BNLL"', [(2, 3, 5)], 1),
    ('type: "ChannelNorm"', [(2, 3, 5)], 1),
    ('type: "BatchNorm"', [(2, 3, 5)], 1),
    ('type: "BatchNorm" batch_norm_param { use_global_stats: false }', [(4, 3, 5, 2)], 1),
    ('type: "BatchNorm" batch_norm_param { use_global_stats: false }', [(4, 3)], 1),
    (f'type: "BatchNorm" batch_norm_param {{ scale_filler {NORMAL} bias_filler {NORMAL} }}', [(2, 3, 5)], 1),
    (f'type: "BatchNorm" phase: TRAIN batch_norm_param {{ scale_filler {NORMAL} bias_filler {NORMAL} }}', [(4, 3, 5)], 1),
    (f'type: "Bias" bias_param {{ filler {NORMAL} }}', [(2, 3, 5)], 1),
    ('type: "Bias"', [(2, 3, 5), (3,)], 1),
    ('type: "Clip" clip_param { min: -0.5 max: 0.7 }', [(2, 3, 5)], 1),
    ('type: "Concat"', [(2, 3, 5), (2, 1, 5), (2, 4, 5)], 1),
    ('type: "Concat" concat_param { axis: -1 }', [(2, 3, 5), (2, 3, 2)], 1),
    (f'type: "ConvolutionDepthwise" {CONV} 6 kernel_size: 2 }}', [(2, 3, 4, 5)], 1),
    (f'type: "DepthwiseConvolution" {CONV} 3 kernel_size: 3 pad: 1 }}', [(2, 3, 4, 5)], 1),
    (f'type: "Convolution" {CONV} 4 axis: 1 }}', [(2, 3)], 1),
    (f'type: "Convolution" {CONV} 4 axis: 2 kernel_size: 2 }}', [(2, 2, 3, 5)], 1),
    ('type: "Dropout"', [(2, 3, 5)], 1),
    ('type: "Dropout" dropout_param { scale_train: false dropout_ratio: 0.3 }', [(2, 3, 5)], 1),
    ('type: "ELU" elu_param { alpha: 0.7 }', [(2, 3, 5)], 1),
    (
        'type: "DeformableConvolution" deformable_convolution_param { num_output: 4 kernel_size: 3 pad: 1 group: 2 '
        f"deformable_group: 2 weight_filler {NORMAL} bias_filler {NORMAL} }}",
        [(2, 4, 3, 5), (2, 36, 3, 5)],
        1,
    ),
    (
        'type: "ModulatedDeformableConvolution" modulated_deformable_convolution_param { num_output: 4 kernel_size: 3 pad: 1 '
        f"group: 2 deformable_group: 2 weight_filler {NORMAL} bias_filler {NORMAL} }}",
        [(2, 4, 3, 5), (2, 36, 3, 5), (2, 18, 3, 5)],
        1,
    ),
    ('type: "Eltwise"', [(2, 3, 5)] * 3, 1),
    ('type: "Eltwise" eltwise_param { coeff: 0.5 coeff: -2 }', [(2, 3, 5)] * 2, 1),
    ('type: "Eltwise" eltwise_param { operation: PROD }', [(2, 3, 5)] * 3, 1),
    ('type: "Eltwise" eltwise_param { operation: PROD stable_prod_grad: false }', [(2, 3, 5)] * 2, 1),
    ('type: "Eltwise" eltwise_param { operation: MAX }', [(2, 3, 5)] * 3, 1),
    (f'type: "Embed" embed_param {{ num_output: 3 input_dim: 4 weight_filler {NORMAL} }}', ["labels (5, 2)"], 1),
    ('type: "EuclideanLoss"', [(4, 3, 2), (4, 6)], 1),
    ('type: "Exp" exp_param { base: 2 scale: 0.5 shift: -1 }', [(2, 3, 5)], 1),
    ('type: "Flatten"', [(2, 3, 5, 2)], 1),
    (f'type: "InnerProduct" {IP} bias_filler {NORMAL} }}', [(2, 3, 5)], 1),
    (f'type: "SparseInnerProduct" {IP} bias_filler {NORMAL} }}', [(2, 3, 5)], 1),
    (f'type: "InnerProduct" {IP} axis: 2 transpose: true }}', [(2, 3, 5)], 1),
    (f'type: "InnerProduct" {IP} normalize: true }}', [(2, 3, 5)], 1),
    ('type: "Gather"', [(2, 3, 5), (4, 2)], 2),
    ('type: "Scatter"', [(3, 2), (2, 5, 4)], 2),
    ('type: "HardSigmoid"', [(2, 3, 5)], 1),
    ('type: "HardSigmoid" hardsigmoid_param { alpha: 0.5 beta: 0.25 }', [(2, 3, 5)], 1),
    ('type: "HardSwish"', [(2, 3, 5)], 1),
    ('type: "Interp" interp_param { shrink_factor: 2 zoom_factor: 3 pad_beg: -1 }', [(1, 2, 6, 5)], 1),
    ('type: "Interp" interp_param { height: 3 width: 5 }', [(2, 1, 6, 5)], 1),
    ('type: "LRN" lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 k: 2 }', [(2, 5, 3, 4)], 1),
    ('type: "LRN" lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 norm_region: WITHIN_CHANNEL }', [(2, 2, 5, 4)], 1),
    ('type: "Log" log_param { base: 10 scale: 0.5 shift: 9 }', [(2, 3, 5)], 1),
    ('type: "LSTMUnit"', [(1, 3, 2), (1, 3, 8), "bits (1, 3)"], 2),
    ('type: "MVN"', [(2, 3, 4, 5)], 1),
    ('type: "MVN" mvn_param { across_channels: true eps: 0.1 }', [(2, 3, 4)], 1),
    ('type: "MVN" mvn_param { normalize_variance: false }', [(2, 3, 4, 5)], 1),
    ('type: "MaskPooling"', [(2, 3, 4, 5), (2, 1, 4, 5)], 1),
    ('type: "MaskResize" mask_resize_param { output_height: 9 output_width: 3 }', [(2, 2, 5, 6)], 1),
    (f'type: "Normalize" norm_param {{ channel_shared: false across_spatial: false scale_filler {NORMAL} }}', [(2, 3, 4)], 1),
    (f'type: "Normalize" norm_param {{ scale_filler {NORMAL} }}', [(2, 3, 4, 2)], 1),
    ('type: "Normalize" normalize_param { normalize_type: "L1" bp_norm: true }', [(2, 3, 4)], 2),
    ('type: "Normalize" normalize_param { normalize_type: "L2" }', [(2, 3)], 1),
    (f'type: "PReLU" prelu_param {{ filler {NORMAL} }}', [(2, 3, 5)], 1),
    ('type: "PReLU" prelu_param { channel_shared: true }', [(2, 3, 5)], 1),
    (f'type: "Parameter" parameter_param {{ shape {{ dim: 2 dim: 3 }} blob_filler {NORMAL} }}', [], 1),
    ('type: "Permute" permute_param { order: 0 order: 2 order: 1 }', [(2, 3, 5)], 1),
    ('type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad_type: 1 }', [(2, 2, 5, 6)], 1),
    ('type: "Pooling" pooling_param { axis: 1 global_pooling: true }', [(2, 2, 3, 2, 4)], 2),
    ('type: "Pooling" pooling_param { axis: 1 pool: AVE global_pooling: true }', [(2, 2, 3, 2, 4)], 1),
    ('type: "Pooling" pooling_param { axis: 1 pool: AVE kernel_size: 1 stride: 3 }', [(2, 2, 6)], 1),
    ('type: "Power" power_param { power: 2 scale: 0.5 shift: 1.5 }', [(2, 3, 5)], 1),
    ('type: "Power" power_param { scale: -3 shift: 0.25 }', [(2, 3, 5)], 1),
    ('type: "ReLU"', [(2, 3, 5)], 1),
    ('type: "ReLU" relu_param { negative_slope: 0.1 }', [(2, 3, 5)], 1),
    ('type: "ReLU" relu_param { negative_slope: -0.4 }', [(2, 3, 5)], 1),
    ('type: "ReLU6" relu6_param { negative_slope: 0.1 }', [(2, 3, 5)], 1),
    ('type: "Reorg" reorg_param { stride: 2 }', [(2, 4, 2, 4)], 1),
    ('type: "Reorg" reorg_param { stride: 2 reverse: true }', [(2, 8, 2, 3)], 1),
    ('type: "Reshape" reshape_param { shape { dim: 0 dim: -1 } }', [(2, 3, 5)], 1),
    ('type: "PixelShuffle" pixelshuffle_param { upscale_factor: 2 }', [(2, 4, 3, 5)], 1),
    ('type: "Reshape" reshape_param { pixelshuffler: 2 }', [(2, 4, 3, 5)], 1),
    ('type: "Unsqueeze" unsqueeze_param { dim: 1 }', [(2, 3, 5)], 1),
    ('type: "Reverse" reverse_param { axis: 1 }', [(2, 3, 5)], 1),
    (f'type: "Scale" scale_param {{ filler {NORMAL} bias_term: true bias_filler {NORMAL} }}', [(2, 3, 5)], 1),
    ('type: "Scale" scale_param { axis: 1 }', [(2, 3, 5), (3, 5)], 1),
    ('type: "ShuffleChannel" shuffle_channel_param { group: 3 }', [(2, 6, 5)], 1),
    ('type: "Sigmoid"', [(2, 3, 5)], 1),
    ('type: "Slice" slice_param { slice_point: 1 slice_point: 4 }', [(2, 5, 3)], 3),
    ('type: "Slice" slice_param { axis: 2 }', [(2, 5, 4)], 2),
    ('type: "SmoothL1Loss" smooth_l1_loss_param { sigma: 3 }', [(4, 3, 2)] * 2, 1),
    ('type: "SmoothL1Loss"', [(4, 3, 2)] * 3, 1),
    ('type: "SmoothL1Loss"', [(4, 3, 2)] * 4, 1),
    ('type: "SmoothL1LossOHEM" loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 7 }', [(4, 3, 2, 1)] * 3, 2),
    ('type: "SmoothL1LossOHEM"', [(4, 3)] * 2, 2),
    ('type: "Softmax"', [(2, 4, 3)], 1),
    ('type: "Softmax" softmax_param { axis: -1 }', [(2, 4, 3)], 1),
    ('type: "SoftmaxWithLoss" loss_param { ignore_label: 2 }', [(3, 4, 5), "labels (3, 5)"], 2),
    ('type: "SoftmaxWithLoss" loss_param { normalization: BATCH_SIZE }', [(3, 4), "labels (3,)"], 1),
    (
        'type: "SoftmaxWithLoss" loss_param { weight_by_label_freqs: true class_weighting: [0.25, 3, 1.5, 2] }',
        [(3, 4, 5), "labels (3, 5)"],
        1,
    ),
    ('type: "SoftmaxWithLossOHEM"', [(3, 4, 5), "labels (3, 5)"], 3),
    ('type: "Split"', [(2, 3)], 3),
    ('type: "Mish"', [(2, 3, 5)], 1),
    ('type: "Swish" swish_param { beta: 1.5 }', [(2, 3, 5)], 1),
    ('type: "Unpooling" unpooling_param { kernel_size: 2 stride: 2 unpool_h: 4 unpool_w: 5 }', [(2, 1, 2, 3)], 1),
    ('type: "Unpooling" unpooling_param { kernel_size: 1 unpool_size: 2 }', [(2, 1, 2, 3), "labels (2, 1, 2, 3)"], 1),
    ('type: "Unpooling" unpooling_param { unpool: AVE kernel_size: 3 stride: 2 unpool_size: 5 }', [(2, 1, 2, 3)], 1),
    ('type: "Unpooling" unpooling_param { unpool: TILE kernel_size: 2 unpool_size: 3 }', [(2, 1, 2, 3)], 1),
    ('type: "Upsample" upsample_param { scale: 3 }', [(2, 1, 2, 3)], 1),
    ('type: "Upsample" upsample_param { scale: 2 }', [(2, 1, 2, 3), "labels (2, 1, 2, 3)"], 1),
    ('type: "Padding" padding_param { pad_beg: 1 pad_end: 2 }', [(2, 1, 2, 3)], 1),
    ('type: "Padding" padding_param { pad_beg: -1 pad_end: -1 }', [(2, 1, 3, 4)], 1),
    ('type: "Axpy"', [(2, 3), (2, 3, 5), (2, 3, 5)], 1),
    ('type: "BroadcastMul"', [(2, 3, 4), (2, 3)], 1),
    ('type: "SpatialProduct"', [(2, 3, 4), (2, 1, 4)], 1),
    ('type: "TanH"', [(2, 3, 5)], 1),
    ('type: "Threshold" threshold_param { threshold: 0.2 }', [(2, 3, 5)], 1),
    ('type: "Transpose" transpose_param { dim: 2 dim: 0 dim: 1 }', [(2, 3, 5)], 1),
]  # fmt: skip


def inputs_of(shapes: list[Any], random: np.random.Generator) -> list[Any]:
    """standard normal values; labels: whole numbers below 4; bits: 0 or 1."""
    most = {"labels": 4, "bits": 2}
    return [
        random.integers(0, most[shape.split()[0]], eval(shape.split(maxsplit=1)[1])).astype(float)
        if isinstance(shape, str)
        else random.standard_normal(shape)
        for shape in shapes
    ]


@pytest.mark.parametrize(("text", "shapes", "tops"), OTHERS, ids=[text[6:60] for text, _, _ in OTHERS])
def test_others(text: str, shapes: list[Any], tops: int) -> None:
    random = np.random.default_rng(OTHERS.index((text, shapes, tops)))
    for dtype, phase in ((np.float32, TRAIN), (np.float64, TEST)):
        inputs = inputs_of(shapes, random)
        net = net_of(text, *inputs, tops=tops, dtype=dtype, phase=phase)
        for blob in net.params.get("it", []):
            if "BN" in text or "BatchNorm" in text or np.ptp(blob.data) == 0:  # a filler's constant would hide a factor
                blob.data[...] = random.uniform(0.5, 2, blob.shape)
        assert explained_alike(net, inputs, random, most=3)


IN_PLACE = [text for text, shapes, tops in OTHERS if len(shapes) == tops == 1 and CATALOGUE[text.split('"')[1]].in_place]


@pytest.mark.parametrize("text", IN_PLACE, ids=[text[6:60] for text in IN_PLACE])
def test_in_place(text: str) -> None:
    phase = (TRAIN, TEST)[IN_PLACE.index(text) % 2]
    random = np.random.default_rng(3)
    inputs = [random.standard_normal((4, 3, 5, 1) if "MVN" in text else (4, 3, 5))]  # MVN's tops have 4 axes
    net = net_of(text, *inputs, in_place=True, phase=phase)
    assert explained_alike(net, inputs, random)


BOXES = {"Proposal", "AnchorTarget", "ProposalTarget", "PriorBox", "DetectionOutput", "MultiBoxLoss", "BoxAnnotatorOHEM"}
"""In test_boxes.py."""


def test_every_covered_type_is_tested() -> None:
    tested = {text.split('"')[1] for text, _, _ in OTHERS} | set(ROI) | {"Deconvolution", "DeformablePSROIPooling", "Pooling"}
    assert tested | BOXES == set(explains.names())


def test_values_that_are_not_finite() -> None:
    x = np.array([[[[np.nan, 1.0, -np.inf], [np.inf, 2.0, np.nan]]]])
    rois = np.array([[0, 0, 0, 2, 1], [0, 0, 0, 0, 0], [0, 2, 0, 2, 1.0]])
    case = Case(x, rois, 1.0, (1, 1))
    for kind in ROI:
        net, _ = roi_net(kind, case)
        for r in range(3):
            check(explain(net, "it", (r, 0, 0, 0)))
