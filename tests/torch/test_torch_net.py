"""to_torch: every form forward and backward against the Net's, weights, names, losses, a fine-tuning step, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch (the extra torch) is not installed")


from torch_beside import differences, from_float64  # noqa: E402

import minicaffe  # noqa: E402
from minicaffe import TEST, TRAIN, Net, SGDSolver  # noqa: E402
from minicaffe.errors import Error, LayerError  # noqa: E402
from minicaffe.formats.prototxt import parse_net, parse_solver  # noqa: E402
from minicaffe.layer import Layer  # noqa: E402
from minicaffe.torch import CaffeNet, OurLayer, to_torch  # noqa: E402
from minicaffe.torch.forms import written  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def made(text: str, phase=TEST, dtype=np.float64, fork: str = "") -> Net:
    """A net with weights that are no two alike."""
    net = Net(parse_net(text, "made.prototxt"), phase, dtype=dtype, fork=fork)
    random = np.random.default_rng(5)
    for name, blobs in net.params.items():
        for blob in blobs:
            blob.data[...] = random.normal(size=blob.shape)
            if net.layer_dict[name].type in ("BatchNorm", "BN", "CuDNNBatchNorm"):
                blob.data[...] = random.uniform(1, 2, blob.shape)
    return net


def input_layer(name: str, *shape: int) -> str:
    dims = " ".join(f"dim: {d}" for d in shape)
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}'


def layer(text: str, *, bottom: str = "x", top: str = "y") -> str:
    bottoms = " ".join(f'bottom: "{name}"' for name in bottom.split())
    tops = " ".join(f'top: "{name}"' for name in top.split())
    return f'layer {{ name: "one" {bottoms} {tops} {text} }}'


def compare(net: Net, inputs: dict[str, np.ndarray], tolerance: float = 1e-10, index: tuple[str, ...] = ()) -> CaffeNet:
    """Outputs, and gradients of inputs and weights, from seeded gradients of the outputs. index: inputs without a gradient."""
    net.force_backward()
    module = to_torch(net)
    for parameter in module.parameters():
        parameter.requires_grad_()
    ours = net.forward(**inputs)
    tensors = {name: torch.tensor(net.blobs[name].data).requires_grad_(name not in index) for name in net.inputs}
    theirs = module(**tensors)
    assert list(theirs) == list(ours)
    random, total = np.random.default_rng(6), 0.0
    tops = {}
    for name, tensor in theirs.items():
        np.testing.assert_allclose(tensor.detach().numpy(), ours[name], rtol=tolerance, atol=tolerance, err_msg=name)
        tops[name] = random.normal(size=ours[name].shape).astype(net.dtype)
        if tensor.requires_grad:
            total = total + (tensor * torch.tensor(tops[name])).sum()
    if not isinstance(total, float):
        net.clear_param_diffs()
        net.backward(**tops)
        total.backward()
        for name, tensor in tensors.items():
            if name not in index:
                close(tensor.grad, net.blobs[name].diff, tolerance, name)
        for weight in module._weights:
            if isinstance(weight.tensor, torch.nn.Parameter):
                close(weight.tensor.grad, weight.blob.diff, tolerance, "weight")
    return module


def close(gradient, want: np.ndarray, tolerance: float, name: str) -> None:
    got = np.zeros_like(want) if gradient is None else gradient.numpy()
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=f"gradient of {name}")


ONE = {  # type and parameters; the bottom is (2, 4, 5, 7)
    "AbsVal": "",
    "BNLL": "",
    "ChannelNorm": "",
    "BN": "bn_param { eps: 0.001 }",
    "CuDNNBatchNorm": "cudnn_batch_norm_param { eps: 0.01 scale_filler { value: 1.5 } }",
    "BN ": "bn_param { frozen: true }",
    "BN  ": "bn_param { bn_mode: LEARN }",
    "BN   ": "bn_param { bn_mode: INFERENCE }",
    "BatchNorm": "",
    " BatchNorm": "batch_norm_param { scale_bias: true }",
    "BatchNorm ": "batch_norm_param { use_global_stats: false }",
    "Bias": "bias_param { axis: 1 num_axes: 2 }",
    "Clip": "clip_param { min: -0.5 max: 0.7 }",
    "Convolution": "convolution_param { num_output: 6 kernel_size: 3 stride: 2 pad: 1 dilation: 2 group: 2 }",
    "Convolution ": "convolution_param { num_output: 3 kernel_h: 1 kernel_w: 3 pad_h: 0 pad_w: 1 bias_term: false }",
    "Convolution  ": "convolution_param { num_output: 3 kernel_size: 3 axis: 2 }",
    "Deconvolution": "convolution_param { num_output: 6 kernel_size: 4 stride: 2 pad: 1 group: 2 }",
    "DepthwiseConvolution": "convolution_param { num_output: 4 kernel_size: 3 pad: 1 }",
    "Dropout": "dropout_param { dropout_ratio: 0.3 }",
    "Dropout ": "dropout_param { dropout_ratio: 0.3 scale_train: false }",
    "ELU": "elu_param { alpha: 0.6 }",
    "Exp": "exp_param { base: 2 scale: 0.5 shift: 0.1 }",
    "Flatten": "",
    "Flatten ": "flatten_param { axis: 2 end_axis: -1 }",
    "Gather": "",
    "HardSigmoid": "",
    "HardSwish": "",
    "Im2col": "convolution_param { kernel_size: 3 }",
    "InnerProduct": "inner_product_param { num_output: 3 }",
    " InnerProduct": "inner_product_param { num_output: 3 normalize: true }",
    "InnerProduct ": "inner_product_param { num_output: 3 axis: 2 transpose: true bias_term: false }",
    "Interp": "interp_param { height: 9 width: 4 }",
    "LRN": "lrn_param { local_size: 3 alpha: 0.4 beta: 0.75 k: 2 }",
    "LRN ": "lrn_param { local_size: 3 alpha: 0.4 norm_region: WITHIN_CHANNEL }",
    "MVN": "",
    "MaskResize": "mask_resize_param { output_height: 9 output_width: 3 }",
    "Mish": "",
    "Normalize": "norm_param { across_spatial: false }",
    "PReLU": "",
    "PReLU ": "prelu_param { channel_shared: true }",
    "Padding": "padding_param { pad_beg: 1 pad_end: 2 }",
    "Padding ": "padding_param { pad_beg: -1 pad_end: -2 }",
    "Permute": "permute_param { order: 0 order: 2 order: 3 order: 1 }",
    "Pooling": "pooling_param { pool: MAX kernel_size: 3 stride: 2 }",
    "Pooling ": "pooling_param { pool: MAX kernel_size: 3 stride: 2 pad: 2 }",
    "Pooling  ": "pooling_param { pool: AVE kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 3 pad_h: 1 pad_w: 1 }",
    "Pooling   ": "pooling_param { pool: AVE global_pooling: true }",
    "Pooling    ": "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 2 }",
    " Pooling": "pooling_param { pool: AVE kernel_size: 2 stride: 2 ceil_mode: false }",
    "Pooling     ": "pooling_param { pool: MAX kernel_size: 2 stride: 2 round_mode: FLOOR }",
    "  Pooling": "pooling_param { pool: AVE_EXC_PAD kernel_size: 3 stride: 2 pad: 1 }",
    "  Pooling ": "pooling_param { pool: AVE_TF kernel_size: 3 stride: 2 pad: 2 }",
    "  Pooling  ": "pooling_param { pool: AVE avg_include_pad: false kernel_h: 3 kernel_w: 2 stride: 4 pad: 1 }",
    "Pooling      ": "pooling_param { pool: AVE kernel_size: 2 stride: 4 }",
    "Pooling       ": "pooling_param { pool: MAX kernel_size: 2 stride: 4 }",
    "Pooling        ": "pooling_param { pool: AVE kernel_h: 3 kernel_w: 2 stride: 1 pad_h: 2 pad_w: 1 }",
    "Pooling         ": "pooling_param { pool: MAX kernel_h: 1 kernel_w: 5 stride: 5 pad_h: 0 pad_w: 1 }",
    "Pooling          ": "pooling_param { pool: AVE kernel_h: 1 kernel_w: 5 stride: 5 pad_h: 0 pad_w: 1 }",
    "Pooling           ": "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad_type: 1 }",
    "Power": "power_param { power: 2 scale: 0.5 shift: 3 }",
    "Power ": "power_param { power: 0 }",
    "ReLU": "",
    "ReLU ": "relu_param { negative_slope: 0.1 }",
    "ReLU6": "",
    "ReLU6 ": "relu6_param { negative_slope: 0.1 }",
    "Reduction": "reduction_param { operation: MEAN axis: 1 coeff: 3 }",
    "Reduction ": "reduction_param { operation: SUMSQ axis: -1 }",
    "Reduction  ": "reduction_param { operation: ASUM }",
    "Reorg": "reorg_param { stride: 2 reverse: true }",
    "Reshape": "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 7 } }",
    "Reshape ": "reshape_param { shape { dim: 10 dim: 2 } axis: 1 num_axes: 2 }",
    "PixelShuffle": "pixelshuffle_param { upscale_factor: 2 }",
    "Unsqueeze": "unsqueeze_param { dim: 1 }",
    "Reshape  ": "reshape_param { pixelshuffler: 2 }",
    "Reverse": "reverse_param { axis: -2 }",
    "SPP": "spp_param { pyramid_height: 2 }",
    "Scale": "scale_param { bias_term: true }",
    "Scale ": "scale_param { num_axes: 0 }",
    "ShuffleChannel": "shuffle_channel_param { group: 2 }",
    "Sigmoid": "",
    "Softmax": "",
    "Softmax ": "softmax_param { axis: -1 }",
    "Swish": "swish_param { beta: 1.5 }",
    "TanH": "",
    "Threshold": "threshold_param { threshold: 0.2 }",
    "Unpooling": "unpooling_param { unpool: AVE kernel_size: 3 stride: 2 unpool_size: 12 }",
    "Upsample": "upsample_param { scale: 3 }",
    "Tile": "tile_param { axis: 2 tiles: 3 }",
    "Transpose": "transpose_param { dim: 0 dim: 3 dim: 1 dim: 2 }",
}  # fmt: skip


@pytest.mark.parametrize("kind", ONE)
def test_a_layer_of_one_bottom(kind):
    text = input_layer("x", 2, 4, 5, 7) + layer(f'type: "{kind.strip()}" {ONE[kind]}')
    x = np.random.default_rng(7).normal(size=(2, 4, 5, 7))
    compare(made(text), {"x": x}, 1e-8)


def test_interp_in_float32_is_torchs_own():
    for block in ("zoom_factor: 3", "height: 3 width: 17 pad_beg: -1 pad_end: -2"):
        text = input_layer("x", 2, 3, 6, 7) + layer(f'type: "Interp" interp_param {{ {block} }}')
        x = np.random.default_rng(7).normal(size=(2, 3, 6, 7)).astype(np.float32)
        module = compare(made(text, dtype=np.float32), {"x": x}, 1e-5)
        assert not any(isinstance(inner, OurLayer) for inner in module.modules())


MORE = {  # type and parameters, tops; the bottoms are as given
    "Axpy": ("", ((2, 3), (2, 3, 5), (2, 3, 5)), "y"),
    "BroadcastMul": ("", ((2, 3, 4), (2, 3)), "y"),
    "SpatialProduct": ("", ((2, 3, 4), (2, 1, 4)), "y"),
    "Concat": ("concat_param { axis: 2 }", ((2, 3, 4), (2, 3, 5)), "y"),
    "Crop": ("crop_param { axis: 2 offset: 1 }", ((1, 2, 5, 6), (1, 3, 3, 4)), "y"),
    "Eltwise": ("eltwise_param { coeff: 2 coeff: -1 coeff: 1 }", ((2, 3),) * 3, "y"),
    "Eltwise ": ("eltwise_param { operation: PROD }", ((2, 3),) * 3, "y"),
    "Eltwise  ": ("eltwise_param { operation: MAX }", ((2, 3),) * 3, "y"),
    "EuclideanLoss": ("", ((3, 2), (3, 2)), "y"),
    "DeformableConvolution": (
        "deformable_convolution_param { num_output: 6 kernel_h: 3 kernel_w: 2 pad: 1 stride: 2 group: 2 deformable_group: 2"
        ' weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 } }',
        ((2, 4, 5, 6), (2, 24, 3, 4)),
        "y",
    ),
    "ModulatedDeformableConvolution": (
        "modulated_deformable_convolution_param { num_output: 6 kernel_h: 3 kernel_w: 2 pad: 1 stride: 2 group: 2"
        ' deformable_group: 2 weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 } }',
        ((2, 4, 5, 6), (2, 24, 3, 4), (2, 12, 3, 4)),
        "y",
    ),
    "Convolution": ("convolution_param { num_output: 3 kernel_size: 2 }", ((2, 4, 5, 6), (2, 4, 5, 6)), "y z"),
    "Scale": ("scale_param { axis: 0 bias_term: true }", ((2, 3, 4), (2, 3)), "y"),
    "Bias": ("bias_param { axis: 1 }", ((2, 3, 4), (3,)), "y"),
    "Slice": ("slice_param { axis: 1 slice_point: 2 }", ((2, 5),), "y z"),
    "Slice ": ("", ((2, 6),), "y z"),
    "MaskPooling": ("", ((2, 3, 4, 5), (2, 1, 4, 5)), "y"),
    "Reorg": ("reorg_param { stride: 2 }", ((2, 4, 6, 10),), "y"),
    "SmoothL1Loss": ("smooth_l1_loss_param { sigma: 1.5 }", ((3, 4), (3, 4)), "y"),
}


@pytest.mark.parametrize("kind", MORE)
def test_a_layer_of_more_blobs(kind):
    text, shapes, tops = MORE[kind]
    names = [f"x{i}" for i in range(len(shapes))]
    inputs = "".join(input_layer(name, *shape) for name, shape in zip(names, shapes))
    net = made(inputs + layer(f'type: "{kind.strip()}" {text}', bottom=" ".join(names), top=tops))
    random = np.random.default_rng(8)
    compare(net, {name: random.normal(size=shape) for name, shape in zip(names, shapes)}, 1e-9)


@pytest.mark.parametrize(
    "text",
    [
        'type: "ROIPooling" roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.25 }',
        'type: "ROIPooling" roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.25 pad_ratio: 0.2 }',
        'type: "ROIAlign" roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.25 pad_ratio: 0.2 }',
        'type: "ROIAlign" roi_align_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.25 }',
        'type: "ROIAlign" roi_align_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.25 sampling_ratio: 2 aligned: true }',
        'type: "ROIWarping" roi_warping_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.25 }',
        'type: "PSROIPooling" psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 0.25 }',
        'type: "PSROIAlign" psroi_align_param { output_dim: 2 group_size: 2 spatial_scale: 0.25 sample_num: 3 }',
    ],
)
def test_roi_layers(text):
    net = made(input_layer("x", 2, 8, 6, 7) + input_layer("rois", 3, 5) + layer(text, bottom="x rois"))
    rois = [[0, 0, 0, 20, 20], [1, 4, 6, 18, 12], [1, 9, 1, 26, 22]]
    x = np.random.default_rng(9).normal(size=(2, 8, 6, 7))
    compare(net, {"x": x, "rois": np.asarray(rois, float)}, 1e-9, index=("rois",))


@pytest.mark.parametrize("more", ["part_size: 3 trans_std: 0.25", "no_trans: true"])
def test_deformable_psroi_pooling(more):
    text = 'type: "DeformablePSROIPooling" deformable_psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 0.25 '
    inputs = input_layer("x", 2, 8, 6, 7) + input_layer("rois", 4, 5) + input_layer("trans", 4, 4, 3, 3)
    net = made(inputs + layer(f"{text} sample_per_part: 2 {more} }}", bottom="x rois trans"))
    rois = [[0, 0, 0, 20, 20], [1, 4, 6, 18, 12], [1, 9, 1, 26, 22], [0, 90, 90, 95, 99]]
    random = np.random.default_rng(9)
    given = {"x": random.normal(size=(2, 8, 6, 7)), "rois": np.asarray(rois, float), "trans": random.normal(size=(4, 4, 3, 3))}
    compare(net, given, 1e-9, index=("rois",) if "part" in more else ("rois", "trans"))


def test_roi_align_with_a_third_bottom():
    text = 'type: "ROIAlign" roi_align_param { pooled_h: 2 pooled_w: 3 }'
    net = made(input_layer("x", 1, 2, 6, 7) + input_layer("rois", 1, 5) + input_layer("s", 1) + layer(text, bottom="x rois s"))
    inputs = {"x": np.random.default_rng(9).normal(size=(1, 2, 6, 7)), "rois": [[0, 0, 0, 20, 20]], "s": [-0.25]}
    compare(net, inputs, 1e-9, index=("rois", "s"))


SEGNETS = "loss_param { ignore_label: 2 weight_by_label_freqs: true class_weighting: [0.25, 3, 1.5] }"


@pytest.mark.parametrize("loss", ["", "loss_param { ignore_label: 2 }", "loss_param { normalization: FULL }", SEGNETS])
@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "SigmoidCrossEntropyLoss", "SoftmaxWithLossOHEM"])
def test_losses_of_labels(kind, loss):
    shape = (2, 3, 4) if kind == "SigmoidCrossEntropyLoss" else (2, 1, 4)
    net = made(input_layer("x", 2, 3, 4) + input_layer("t", *shape) + layer(f'type: "{kind}" {loss}', bottom="x t"))
    random = np.random.default_rng(10)
    labels = random.integers(0, 3, shape).astype(float)
    compare(net, {"x": random.normal(size=(2, 3, 4)), "t": labels}, 1e-9, index=("t",))


def test_a_loss_with_mncs_weights():
    text = 'type: "SigmoidCrossEntropyLoss"'
    net = made("".join(input_layer(name, 2, 3, 4) for name in "xtw") + layer(text, bottom="x t w"))
    random = np.random.default_rng(11)
    inputs = {"x": random.normal(size=(2, 3, 4)), "t": random.integers(0, 2, (2, 3, 4)), "w": random.random((2, 3, 4))}
    compare(net, inputs, 1e-9, index=("t", "w"))


@pytest.mark.parametrize("fork", ["hed", "rcf"])
def test_heds_loss(fork: str):
    text = 'type: "SigmoidCrossEntropyLoss"'
    net = made(input_layer("x", 2, 3, 4) + input_layer("t", 2, 3, 4) + layer(text, bottom="x t"), fork=fork)
    random = np.random.default_rng(11)
    compare(net, {"x": random.normal(size=(2, 3, 4)), "t": random.integers(0, 3, (2, 3, 4)) / 2}, 1e-9, index=("t",))


def test_softmax_with_loss_of_a_hopeless_label_keeps_its_gradient():
    net = made(input_layer("x", 1, 2) + input_layer("t", 1) + layer('type: "SoftmaxWithLoss"', bottom="x t"))
    compare(net, {"x": np.array([[0.0, 200.0]]), "t": np.zeros(1)}, 1e-9, index=("t",))


def test_smooth_l1_loss_with_weights():
    names = "x t a b"
    net = made("".join(input_layer(n, 3, 4) for n in names.split()) + layer('type: "SmoothL1Loss"', bottom=names))
    random = np.random.default_rng(11)
    inputs = {name: random.normal(size=(3, 4)) for name in names.split()}
    compare(net, inputs, 1e-9, index=("a", "b"))


def test_a_recurrent_layer_has_its_weights():
    text = 'type: "LSTM" recurrent_param { num_output: 3 }'
    net = made(input_layer("x", 4, 2, 5) + input_layer("cont", 4, 2) + layer(text, bottom="x cont"))
    inputs = {"x": np.random.default_rng(12).normal(size=(4, 2, 5)), "cont": np.array([[0.0, 0], [1, 1], [1, 0], [1, 1]])}
    module = compare(net, inputs, 1e-9, index=("cont",))
    assert [name for name, _ in module.named_parameters()] == ["one.blob0", "one.blob1", "one.blob2"]


# Whole nets.

CHAIN = (
    input_layer("data", 2, 3, 6, 7)
    + """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "bn.conv" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "forward" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "a/b" type: "Convolution" bottom: "conv" top: "more"
  convolution_param { num_output: 4 kernel_size: 1 } param { lr_mult: 0 } }
layer { name: "sum" type: "Eltwise" bottom: "conv" bottom: "more" top: "sum" }
layer { name: "last" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "fc" type: "InnerProduct" bottom: "sum" top: "fc" inner_product_param { num_output: 2 } }
layer { name: "gone" type: "Silence" bottom: "sum" }
"""
)


def test_in_place_chains_and_branches():
    compare(made(CHAIN), {"data": np.random.default_rng(13).normal(size=(2, 3, 6, 7))}, 1e-9)


def test_names():
    module = to_torch(made(CHAIN))
    names = [name for name, _ in module.named_parameters()]
    layers = ["conv.weight", "conv.bias", "forward_.weight", "forward_.bias", "a/b.weight", "a/b.bias", "fc.weight", "fc.bias"]
    assert names == layers
    assert [name for name, _ in module.named_buffers()] == ["bn_conv.mean_sum", "bn_conv.variance_sum", "bn_conv.factor"]
    assert [p.requires_grad for p in module.parameters()] == [name != "a/b.weight" for name in layers]
    assert "(conv): Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))" in repr(module)


def test_state_dict(tmp_path):
    x = torch.from_numpy(np.random.default_rng(14).normal(size=(2, 3, 6, 7)))
    first, second = to_torch(made(CHAIN)), to_torch(Net(parse_net(CHAIN), TEST, dtype=np.float64))
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    assert not torch.equal(first(x)["fc"], second(x)["fc"])
    second.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(first(x)["fc"], second(x)["fc"])


def test_the_weights_are_copies_and_go_back():
    net = made(CHAIN)
    module = to_torch(net)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor += 1
    before = net.params["fc"][0].data.copy()
    module.copy_to(net)
    np.testing.assert_array_equal(net.params["fc"][0].data, before + 1)
    np.testing.assert_array_equal(net.params["bn.conv"][0].data, module.bn_conv.mean_sum.numpy())
    other = made(CHAIN.replace("num_output: 2", "num_output: 5"))
    with pytest.raises(Error, match=r"fc, blob 0: shape \(2, 80\) here, \(5, 80\) in the net"):
        module.copy_to(other)


def test_blobs_by_name_and_inputs_by_place():
    module, x = to_torch(made(CHAIN)), torch.zeros(2, 3, 6, 7, dtype=torch.float64)
    assert list(module(x, blobs=["more", "data"])) == ["fc", "more", "data"]
    with pytest.raises(Error, match='the net has no blob "mor"; '):
        module(x, blobs=["mor"])
    with pytest.raises(Error, match="2 inputs given, the net has 1: data"):
        module(x, x)
    with pytest.raises(Error, match="data"):
        module()
    with pytest.raises(Error, match="the net has no loss"):
        module.loss(x)


def test_another_size_of_map():
    net = made(CHAIN.split('layer { name: "fc"')[0])
    module, x = to_torch(net), np.random.default_rng(15).normal(size=(1, 3, 9, 8))
    net.blobs["data"].reshape(*x.shape)
    np.testing.assert_allclose(module(torch.from_numpy(x))["sum"].detach(), net.forward(data=x)["sum"], atol=1e-12)


ANY_SIZE = {
    "Interp": "interp_param { shrink_factor: 2 zoom_factor: 3 pad_beg: -1 }",
    "Pooling": "pooling_param { kernel_size: 3 stride: 2 pad: 1 }",
    "Pooling ": "pooling_param { pool: AVE kernel_size: 2 stride: 3 }",
    "Reorg": "reorg_param { stride: 2 }",
    "Reorg ": "reorg_param { stride: 2 reverse: true }",
    "Slice": "slice_param { axis: 0 }",
    "Tile": "tile_param { axis: 3 tiles: 2 }",
}


@pytest.mark.parametrize("kind", ANY_SIZE)
def test_a_layer_of_maps_of_another_size(kind):
    """The written lines do not name the sizes of the net's blobs."""
    tops = "y z" if kind == "Slice" else "y"
    text = input_layer("x", 4, 16, 6, 8) + layer(f'type: "{kind.strip()}" {ANY_SIZE[kind]}', top=tops)
    net = made(text, dtype=np.float32)
    module, x = to_torch(net), np.random.default_rng(15).normal(size=(2, 16, 10, 4)).astype(np.float32)
    assert not any(isinstance(inner, OurLayer) for inner in module.modules())
    net.blobs["x"].reshape(*x.shape)
    for name, array in net.forward(x=x).items():
        np.testing.assert_allclose(module(torch.from_numpy(x))[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_deformed_samples_are_as_near_in_float32_as_the_layers():
    """The share of a pixel comes from the place within the window: far from 0 its rounding would move gradients."""
    block = "deformable_convolution_param { num_output: 2 kernel_size: 3 deformable_group: 1"
    block += ' weight_filler { type: "gaussian" std: 1 } }'
    texts = input_layer("x", 1, 1, 3, 402), input_layer("offset", 1, 18, 1, 400)
    net = made("".join(texts) + layer(f'type: "DeformableConvolution" {block}', bottom="x offset"), dtype=np.float32)
    random = np.random.default_rng(3)
    inputs = {"x": random.normal(size=(1, 1, 3, 402)), "offset": random.normal(0, 0.01, (1, 18, 1, 400))}
    compare(net, {name: array.astype(np.float32) for name, array in inputs.items()}, 2e-5)


def test_shared_weights_are_one_parameter():
    spec = 'param { name: "w" } inner_product_param { num_output: 4 bias_term: false }'
    text = (
        input_layer("x", 3, 4)
        + f'layer {{ name: "a" type: "InnerProduct" bottom: "x" top: "a" {spec} }}'
        + f'layer {{ name: "b" type: "InnerProduct" bottom: "a" top: "b" {spec} }}'
    )
    module = compare(made(text), {"x": np.random.default_rng(16).normal(size=(3, 4))})
    assert module.a.weight is module.b.weight and len(list(module.parameters())) == 1


def test_a_loss_weight_counts():
    text = (
        input_layer("x", 3, 4)
        + input_layer("t", 3)
        + 'layer { name: "l" type: "SoftmaxWithLoss" bottom: "x" bottom: "t" top: "l" loss_weight: 0.25 }'
        + 'layer { name: "m" type: "Reduction" bottom: "x" top: "m" loss_weight: 2 }'
    )
    net = made(text)
    inputs = {"x": np.random.default_rng(17).normal(size=(3, 4)), "t": np.array([0.0, 3, 2])}
    ours = net.forward(**inputs)
    loss = to_torch(net).loss(**{name: torch.from_numpy(x) for name, x in inputs.items()})
    assert loss.item() == pytest.approx(0.25 * ours["l"].item() + 2 * ours["m"].item())


# Training.

TRAINED = (
    input_layer("data", 4, 3, 6, 7)
    + input_layer("label", 4)
    + input_layer("target", 4, 8)
    + input_layer("inside", 4, 8)
    + input_layer("outside", 4, 8)
    + """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" batch_norm_param { moving_average_fraction: 0.9 } }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "frozen" type: "Convolution" bottom: "conv" top: "frozen" param { lr_mult: 0 } param { lr_mult: 0 }
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "gaussian" std: 0.4 } } }
layer { name: "score" type: "InnerProduct" bottom: "frozen" top: "score"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "box" type: "InnerProduct" bottom: "frozen" top: "box" param { lr_mult: 3 }
  inner_product_param { num_output: 8 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "class_loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "class_loss" }
layer { name: "box_loss" type: "SmoothL1Loss" bottom: "box" bottom: "target" bottom: "inside" bottom: "outside"
  top: "box_loss" loss_weight: 1 }
"""
)


def test_fine_tuning_gives_the_same_weights():
    """Three steps of SGD with momentum, decay and multipliers, in both."""
    minicaffe.set_random_seed(4)
    text = 'base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.01 max_iter: 3 random_seed: 4'
    solver = SGDSolver(parse_solver(f"{text} net_param {{ {TRAINED} }}"))
    random, shapes = np.random.default_rng(18), {"target": (4, 8), "inside": (4, 8), "outside": (4, 8)}
    inputs = {name: random.uniform(0, 2, shape) for name, shape in shapes.items()}
    inputs |= {"data": random.normal(size=(4, 3, 6, 7)), "label": random.integers(0, 3, 4)}
    for name, values in inputs.items():
        solver.net.blobs[name].data[...] = values
    module = to_torch(solver.net)
    assert module.training
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    optimizer = torch.optim.SGD(module.parameter_groups(0.05, 0.01), momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss = module.loss(**{name: torch.from_numpy(solver.net.blobs[name].data.copy()) for name in module.inputs})
        loss.backward()
        optimizer.step()
    solver.step(3)
    for name, tensor in module.state_dict().items():
        layer, kind = name.split(".")
        i = {"weight": 0, "bias": 1, "mean_sum": 0, "variance_sum": 1, "factor": 2}[kind]
        np.testing.assert_allclose(tensor, solver.net.params[layer][i].data, rtol=1e-5, atol=1e-6, err_msg=name)
        assert torch.equal(tensor, before[name]) == (layer == "frozen"), name


def test_training_drops():
    net = made(input_layer("x", 100, 20) + layer('type: "Dropout" dropout_param { dropout_ratio: 0.25 }'), TRAIN)
    module, x = to_torch(net), torch.ones(100, 20, dtype=torch.float64)
    y = module(x)["y"]
    assert set(y.unique().tolist()) == {0, 1 / 0.75} and 0.2 < (y == 0).double().mean() < 0.3
    assert torch.equal(module.eval()(x)["y"], x)


@pytest.mark.parametrize(("scale_train", "kept"), [("true", 1 / 0.75), ("false", 1)])
def test_sample_weights_test_drops_without_training(scale_train: str, kept: float):
    param = f"dropout_param {{ dropout_ratio: 0.25 sample_weights_test: true scale_train: {scale_train} }}"
    module = to_torch(made(input_layer("x", 100, 20) + layer(f'type: "Dropout" {param}')))
    y = module(torch.ones(100, 20, dtype=torch.float64))["y"]
    assert not module.training and y.unique().tolist() == pytest.approx([0, kept])


def test_the_tops_of_a_data_layer_are_inputs():
    text = """
    layer { name: "data" type: "MemoryData" top: "data" top: "label"
      memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 } }
    layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 3 } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
    """
    module = to_torch(Net(parse_net(text), TRAIN))
    assert module.inputs == ["data", "label"]
    loss = module.loss(data=torch.zeros(7, 3, 4, 5), label=torch.zeros(7))
    assert loss.item() == pytest.approx(np.log(3))


def test_a_module_used_twice_before_backward():
    """A layer on the CPU keeps what its last forward left: an earlier one is run again."""
    module = to_torch(made(input_layer("x", 2, 4, 5, 7) + layer('type: "MVN"')))
    xs = [torch.randn(2, 4, 5, 7, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    weight = torch.randn(2, 4, 5, 7, dtype=torch.float64)
    both = [module(x)["y"] for x in xs]
    sum((y * weight).sum() for y in both).backward()
    for x in xs:
        again = x.detach().requires_grad_()
        (module(again)["y"] * weight).sum().backward()
        assert torch.equal(x.grad, again.grad)


# Detection.


@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_the_shapes_detectors(kind):
    folder = ROOT / "examples" / "shapes" / kind
    net = Net(folder / "test.prototxt", TEST, weights=folder / f"shapes_{kind}.caffemodel")
    shape = net.blobs["data"].shape
    data = np.random.default_rng(19).normal(0, 40, shape).astype(np.float32)
    ours = net.forward(data=data, im_info=[[*shape[2:], 1]], blobs=["rois"])
    with torch.no_grad():
        info = torch.tensor([[*shape[2:], 1.0]])
        theirs = to_torch(net)(data=torch.from_numpy(data), im_info=info, blobs=["rois"])
    for name, tensor in theirs.items():
        np.testing.assert_allclose(tensor, ours[name], atol=1e-5 * np.abs(ours[name]).max(), err_msg=name)


def shapes_detector(kind: str, dtype: type) -> Net:
    """With its weights, on a small picture of noise, gradients everywhere."""
    folder = ROOT / "examples" / "shapes" / kind
    net = Net(folder / "test.prototxt", TEST, weights=folder / f"shapes_{kind}.caffemodel", dtype=dtype)
    net.blobs["data"].reshape(1, 3, 96, 128)
    net.blobs["data"].data[...] = np.random.default_rng(20).normal(0, 50, (1, 3, 96, 128))
    net.blobs["im_info"].data[...] = (96, 128, 1)
    net.force_backward()
    return net


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_the_shapes_detectors_gradients(kind, dtype, tolerance):
    """Of every weight and of the image, from the outputs: to rounding in float64; in float32 too, where no near tie decides."""
    found = list(differences(shapes_detector(kind, dtype)))
    assert len(found) > 20 and max(difference for _, difference in found) < tolerance


@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_what_the_two_differ_by_in_float32_is_the_rounding_of_both(kind):
    """At equal rois, over each blob's largest number, neither is further from float64 than 5e-6."""
    ours, theirs = from_float64(shapes_detector(kind, np.float32), shapes_detector(kind, np.float64))
    assert 0 < ours < 5e-6 and 0 < theirs < 5e-6


def test_in_float32_a_near_tie_sends_a_gradient_elsewhere_and_in_float64_it_does_not():
    """1e8 + 1 is 1e8 in float32: of two equal maxima the first takes the whole gradient."""
    pool = input_layer("x", 1, 1, 1, 2) + layer('type: "Pooling" pooling_param { pool: MAX kernel_h: 1 kernel_w: 2 }')
    for dtype, wanted in ((np.float32, [1, 0]), (np.float64, [0, 1])):
        net = made(pool, dtype=dtype)
        compare(net, {"x": np.array([[[[1e8, 1e8 + 1]]]])})
        net.backward(y=np.ones((1, 1, 1, 1)))
        assert net.blobs["x"].diff.ravel().tolist() == wanted


@pytest.mark.parametrize("way", ["autocast", "bfloat16", "double"])
def test_a_detector_in_other_types(way):
    """Convolutions in bfloat16, proposals in float32; boxes near those of float32, and gradients everywhere."""
    folder = ROOT / "examples" / "shapes" / "rfcn"
    net = Net(folder / "test.prototxt", TEST, weights=folder / "shapes_rfcn.caffemodel")
    module, dtype = to_torch(net), {"bfloat16": torch.bfloat16, "double": torch.float64}.get(way, torch.float32)
    module.to(dtype)
    data, info = torch.randn(1, 3, 96, 112).mul(40).to(dtype), torch.tensor([[96.0, 112, 1]])
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way == "autocast"):
        outputs = module(data=data, im_info=info, blobs=["rois"])
    assert outputs["rois"].dtype == torch.float32
    sum(outputs[name].float().square().sum() for name in ("cls_prob", "bbox_pred")).backward()
    assert module.conv1.weight.grad.dtype == dtype and module.conv1.weight.grad.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_layer_on_the_cpu_gives_its_bottoms_type(dtype):
    net = made(input_layer("x", 2, 4, 5, 7) + layer('type: "MVN"'), dtype=np.float32)
    x = torch.randn(2, 4, 5, 7, dtype=dtype, requires_grad=True)
    y = to_torch(net)(x)["y"]
    y.sum().backward()
    assert y.dtype == x.grad.dtype == dtype


# Types without a form.


class Doubled(Layer):
    """y = 2 x, of the user's."""

    num_bottom = num_top = 1

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = 2 * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 2 * top[0].diff


@pytest.fixture
def doubled():
    minicaffe.register("Doubled", Doubled)
    return Net(parse_net(input_layer("x", 2, 3) + '\nlayer { name: "d" type: "Doubled" bottom: "x" top: "y" }', "a.prototxt"))


def test_a_type_without_a_form(doubled):
    with pytest.raises(LayerError, match=r'Doubled layer "d": has no form in PyTorch: .* \(a.prototxt:2\)'):
        to_torch(doubled)


def test_a_type_without_a_line_of_pytorch(doubled):
    with pytest.raises(LayerError, match=r'Doubled layer "d": has no line of PyTorch: .* \(a.prototxt:2\)'):
        to_torch(doubled, forms={"Doubled": written})


def test_forms_of_the_caller(doubled):
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6]], requires_grad=True)
    for form in (OurLayer, lambda layer, bottom, top: torch.nn.Hardtanh(-1e9, 1e9)):
        y = to_torch(doubled, forms={"Doubled": form})(x)["y"]
        (dx,) = torch.autograd.grad(y.sum(), x)
        assert dx.unique().tolist() == ([2] if form is OurLayer else [1])


def test_shared_weights_of_two_shapes():
    text = input_layer("x", 2, 6) + "".join(
        f'layer {{ name: "{name}" type: "Parameter" top: "{name}" parameter_param {{ shape {{ {dims} }} }}'
        ' param { name: "w" share_mode: PERMISSIVE } }\n'
        for name, dims in (("a", "dim: 6"), ("b", "dim: 2 dim: 3"))
    )
    with pytest.raises(LayerError, match=r'"b": shares a weight of shape \(6,\) as \(2, 3\)'):
        to_torch(Net(parse_net(text)))


def test_names_in_a_prototxt_are_no_code() -> None:
    """The Module evaluates lines that minicaffe writes: of numbers, never of the prototxt's texts."""
    name = "x0) or __import__('os').abort() or ("
    text = f"""input: "data" input_shape {{ dim: 2 dim: 3 dim: 5 dim: 7 }}
        layer {{ name: "{name}" type: "Convolution" bottom: "data" top: "{name}"
          convolution_param {{ num_output: 4 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "{name} 2" type: "TanH" bottom: "{name}" top: "out" }}"""
    net = Net(parse_net(text, "net.prototxt"), TEST)
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 7)).astype(np.float32)
    with torch.no_grad():
        found = to_torch(net)(torch.from_numpy(x))
    values = next(iter(found.values())) if isinstance(found, dict) else found
    np.testing.assert_allclose(values.numpy(), net.forward(data=x)["out"], rtol=1e-5, atol=1e-6)
