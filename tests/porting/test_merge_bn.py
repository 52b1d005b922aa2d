"""BatchNorm, Scale and Bias folded into the layer before them: numbers by hand, every kind of layer, what is left and why."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from recordings import SHARED, needs

from minicaffe.cli import main
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net
from minicaffe.net import Net
from minicaffe.parameters import weight_name, weights_of
from minicaffe.porting.merge_bn import Merged, merge_batch_norm, merge_net

MODELS = SHARED / "models"
needs_models = needs(MODELS)

INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 6 dim: 5 dim: 4 } } }\n'
CONV = 'layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 4 kernel_size: 3 %s } }\n'
NORM = 'layer { name: "n" type: "BatchNorm" bottom: "c" top: "n" %s }\n'
SCALE = 'layer { name: "s" type: "Scale" bottom: "n" top: "s" scale_param { bias_term: true } }\n'
RELU = 'layer { name: "r" type: "ReLU" bottom: "%s" top: "r" }\n'
PLAIN = CONV % ""
PRODUCT = 'layer { name: "c" type: "InnerProduct" bottom: "x" top: "c" inner_product_param { num_output: 7 %s } }\n'
DEPTHWISE = (CONV % "pad: 1").replace("num_output: 4", "num_output: 6").replace("Convolution", "DepthwiseConvolution")


def net_of(text: str, seed: int = 3, dtype: type = np.float64) -> Net:
    """A TEST net with weights of all signs, statistics as a training leaves them, and a random input."""
    net, random = Net(parse_net(INPUT + text), 1, dtype=dtype), np.random.default_rng(seed)
    for name, blobs in net.params.items():
        for blob in blobs:
            blob.data[...] = random.normal(size=blob.shape)
        if net.layer_dict[name].param.type == "BatchNorm":
            blobs[1].data[...] = random.uniform(0.5, 4, blobs[1].shape)
            blobs[2].data[...] = random.uniform(0.5, 3)
    net.blobs["x"].data[...] = random.normal(size=net.blobs["x"].shape)
    return net


def folded(net: Net) -> Merged:
    """What was done, after a check that both nets give the same and that net's weights are as they were."""
    kept = {name: [array.copy() for array in arrays] for name, arrays in weights_of(net).items()}
    new, merged = merge_net(net)
    new.blobs["x"].data[...] = net.blobs["x"].data
    for name, arrays in weights_of(net).items():
        for array, before in zip(arrays, kept[name], strict=True):
            np.testing.assert_array_equal(array, before)
    expected, got = net.forward(), new.forward()
    assert sorted(expected) == sorted(got)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-10, atol=1e-10)
    return merged


def test_by_hand() -> None:
    text = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 1 dim: 1 } } }
        layer { name: "c" type: "Convolution" bottom: "x" top: "c"
          convolution_param { num_output: 1 kernel_size: 1 bias_term: false } }
        layer { name: "n" type: "BatchNorm" bottom: "c" top: "c" batch_norm_param { eps: 1 } }
        layer { name: "s" type: "Scale" bottom: "c" top: "y" scale_param { bias_term: true } }"""
    weights = {"c": [[[[[3.0]]]]], "n": [[20.0], [30.0], [10.0]], "s": [[8.0], [1.0]]}
    param = parse_net(text).param
    merged = merge_batch_norm(param, {name: [np.array(v) for v in values] for name, values in weights.items()})
    weight, bias = merged.weights["c"]  # mean 2, variance 3, so y = (3 x - 2) / sqrt(3 + 1) * 8 + 1
    assert weight.item() == pytest.approx(12)
    assert bias.item() == pytest.approx(-7)
    assert [layer.name for layer in merged.param.layer] == ["in", "c"]
    assert merged.param.layer[1].top == ["y"]
    assert merged.param.layer[1].convolution_param.bias_term
    assert merged.folded == {"c": ["n", "s"]}
    assert len(param.layer) == 4, "the net given was changed"


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (PLAIN + NORM % "" + SCALE + RELU % "s", ["n", "s"]),
        (CONV % "bias_term: false group: 2 stride: 2 pad: 1" + NORM % "" + SCALE, ["n", "s"]),
        (PLAIN + NORM % "" + RELU % "n", ["n"]),
        (PLAIN + SCALE.replace('"n"', '"c"'), ["s"]),
        (PLAIN + SCALE.replace('"n"', '"c"').replace('top: "s"', 'top: "n"') + NORM.replace('"c"', '"n"') % "", ["s", "n"]),
        (PLAIN + 'layer { name: "b" type: "Bias" bottom: "c" top: "c" }' + NORM % "", ["b", "n"]),
        (PLAIN + 'layer { name: "s" type: "Scale" bottom: "c" top: "s" scale_param { num_axes: 0 } }', ["s"]),
        (PLAIN + 'layer { name: "s" type: "Scale" bottom: "c" top: "s" scale_param { axis: -3 } }', ["s"]),
        (PLAIN.replace("Convolution", "Deconvolution") + NORM % "" + SCALE, ["n", "s"]),
        ((CONV % "group: 2 bias_term: false").replace("Convolution", "Deconvolution") + NORM % "" + SCALE, ["n", "s"]),
        (PRODUCT % "" + NORM % "", ["n"]),
        (PRODUCT % "transpose: true bias_term: false" + NORM % "" + SCALE, ["n", "s"]),
        (DEPTHWISE + NORM % "", ["n"]),
    ],
)  # fmt: skip
def test_the_same_outputs(text: str, gone: list[str]) -> None:
    merged = folded(net_of(text))
    assert merged.folded == {"c": gone}
    assert not merged.left


def test_nvidias_five_blobs() -> None:
    """0.17's learnt scale and bias are folded, too; so are those of 0.15, and a net that keeps such a layer has its blobs."""
    assert folded(net_of(PLAIN + NORM % "batch_norm_param { scale_bias: true eps: 0.01 }")).folded == {"c": ["n"]}
    for text, gone in ((PLAIN + NORM % ("param {} " * 5), {"c": ["n"]}), (NORM.replace('"c"', '"x"') % ("param {} " * 5), {})):
        net = net_of(text)
        net.params["n"][3].data[...] = 2.5
        assert folded(net).folded == gone


def test_in_place_chains_and_the_name_of_what_follows() -> None:
    text = PLAIN + 'layer { name: "n" type: "BatchNorm" bottom: "c" top: "c" }\n'
    text += 'layer { name: "r" type: "ReLU" bottom: "c" top: "c" }\n'
    text += 'layer { name: "s" type: "Scale" bottom: "c" top: "c" }\n'
    merged = folded(net_of(text))
    assert merged.folded == {"c": ["n"]}
    assert merged.left == {"s": 'it follows ReLU layer "r", which is not a convolution or inner product'}


def test_the_new_bias_learns_as_the_weight_does() -> None:
    text = (
        PLAIN.replace("convolution_param {", "param { lr_mult: 0 decay_mult: 0 } convolution_param { bias_term: false")
        + NORM % ""
    )
    merged = folded(net_of(text))
    assert [(spec.lr_mult, spec.decay_mult) for spec in merged.param.layer[1].param] == [(0, 0), (0, 0)]


TWO = PLAIN + PLAIN.replace('name: "c"', 'name: "d"').replace('top: "c"', 'top: "d"')


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        (PLAIN + NORM % "" + RELU % "c", "n", 'the blob "c" before it has other readers'),
        (PLAIN + NORM % "batch_norm_param { use_global_stats: false }", "n",
         "it uses the statistics of the batch (use_global_stats: false)"),
        (PLAIN + NORM % "phase: TRAIN", "n", "the statistics of the batch"),
        (NORM.replace('"c"', '"x"') % "", "n", 'it follows Input layer "in", which is not a convolution or inner product'),
        (TWO.replace("convolution_param", 'param { name: "w" } convolution_param') + NORM % "", "n",
         'Convolution layer "c" before it shares its weights with another layer'),
        (PLAIN.replace('top: "c"', 'top: "c" bottom: "x" top: "d"') + NORM % "", "n", "2 tops with one set of weights"),
        (PLAIN + 'layer { name: "v" type: "DummyData" top: "v" dummy_data_param { shape { dim: 4 } data_filler { value: 2 } } }'
         'layer { name: "s" type: "Scale" bottom: "c" bottom: "v" top: "s" }', "s",
         'its second bottom "v" is a computed blob'),
        (PLAIN + 'layer { name: "s" type: "Scale" bottom: "c" top: "s" scale_param { axis: 2 } }', "s",
         'its axis 2 (3 values) is not the axis of the 4 outputs of Convolution layer "c"'),
        (PLAIN + NORM % "loss_weight: 1", "n", "it is a loss"),
        ('layer { name: "c" type: "InnerProduct" bottom: "x" top: "c" inner_product_param { num_output: 4 normalize: true } }'
         + NORM % "", "n", 'InnerProduct layer "c" before it scales its weights to length 1'),
        (PLAIN.replace("Convolution", "ConvolutionRistretto") + NORM % "", "n",
         'ConvolutionRistretto layer "c" before it rounds its numbers'),
    ],
)  # fmt: skip
def test_what_is_left_and_why(text: str, name: str, reason: str) -> None:
    merged = folded(net_of(text))
    assert not merged.folded
    assert reason in merged.left[name]


def test_a_variance_that_has_no_root() -> None:
    net = net_of(PLAIN + NORM % "")
    net.params["n"][1].data[2], net.params["n"][2].data[0] = -6, 2
    with np.errstate(invalid="ignore"):
        assert folded(net).left == {"n": "its variance + eps is not positive everywhere (the minimum is -3)"}


@pytest.mark.parametrize(
    ("blobs", "what"),
    [(([0.0], [1e-30], [1.0]), "weights"), (([1e30], [1e-30], [1.0]), "weights"), (([1e38], [1.0], [1.0]), "bias")],
)
def test_a_layer_stays_whose_product_is_too_large(blobs: tuple[list[float], ...], what: str) -> None:
    """It was folded into infinite numbers, with warnings of NumPy's that named no layer."""
    net = net_of(PLAIN + NORM % "batch_norm_param { eps: 0 }" + SCALE)
    for blob, value in zip(net.params["n"], blobs, strict=True):
        blob.data[...] = value
    net.params["c"][0].data[...] = 1e30 if what == "weights" else 1
    net.params["s"][0].data[...] = 1e10
    arrays = {name: [array.astype(np.float32) for array in own] for name, own in weights_of(net).items()}
    merged = merge_batch_norm(net.param, arrays)
    reason = f'the {what} of Convolution layer "c" would be too large for float32'
    assert reason in merged.left.values()
    assert all(np.isfinite(array).all() for array in merged.weights["c"])


def test_a_factor_of_0_is_folded_as_caffe_counts_it_and_noted() -> None:
    net = net_of(PLAIN + NORM % "batch_norm_param { eps: 0.25 }")
    net.params["n"][2].data[0] = 0
    merged = folded(net)
    assert merged.folded == {"c": ["n"]}
    assert merged.notes["n"].startswith("its factor (blob 2) is 0")


def test_a_train_net() -> None:
    with pytest.raises(Error, match="folded in a TEST net: in TRAIN it uses the statistics of the batch"):
        merge_net(Net(parse_net(INPUT + PLAIN), 0))


@given(st.integers(0, 10**6), st.sampled_from([1, 2]), st.booleans(), st.booleans(), st.booleans())
def test_any_weights(seed: int, group: int, transposed: bool, bias: bool, scale: bool) -> None:
    conv = CONV % f"group: {group} bias_term: {str(bias).lower()}"
    text = conv.replace("Convolution", "Deconvolution" if transposed else "Convolution") + NORM % "" + SCALE * scale
    assert folded(net_of(text, seed)).folded == {"c": ["n", "s"][: 1 + scale]}


def run(*words: str) -> str:
    result = CliRunner().invoke(main, ["merge-bn", *words])
    return result.output if not result.exit_code else f"error: {result.output}"


def test_command(tmp_path: Path) -> None:
    text = INPUT + 'layer { name: "t" type: "Silence" bottom: "x" include { phase: TRAIN } }' + PLAIN + NORM % "" + SCALE
    (tmp_path / "a.prototxt").write_text(text + RELU % "s")
    net = net_of(PLAIN + NORM % "" + SCALE + RELU % "s", dtype=np.float32)
    net.save(tmp_path / "a.caffemodel")
    files = [str(tmp_path / name) for name in ("a.prototxt", "a.caffemodel", "b.prototxt", "b.caffemodel")]
    said = run(*files[:2], "-o", *files[2:4], "--check")
    assert "2 layers folded into 1; 0 left where they are\n  c <- n, s\n" in said
    assert re.search(r" r +\S+ +\d\.\d\de-\d\d +\d\.\d\de-\d\d", said) and "PASS: every output within 0.0001 of" in said
    new = Net(files[2], files[3], 1)
    assert [layer.name for layer in new.layers] == ["in", "c", "r"]
    new.blobs["x"].data[...] = net.blobs["x"].data
    np.testing.assert_allclose(new.forward()["r"], net.forward()["r"], rtol=1e-5, atol=1e-5)


def test_command_whose_check_fails_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.prototxt").write_text(INPUT + PLAIN + NORM % "" + SCALE)
    net_of(PLAIN + NORM % "" + SCALE, dtype=np.float32).save(tmp_path / "a.caffemodel")
    (tmp_path / "b.prototxt").write_text("before")
    files = [str(tmp_path / name) for name in ("a.prototxt", "a.caffemodel", "b.prototxt", "b.caffemodel")]
    monkeypatch.setattr("minicaffe.cli.convert.put_weights", lambda net, weights: net.params["c"][0].data.fill(0.5))
    said = run(*files[:2], "-o", *files[2:4], "--check")
    assert re.search(
        r"error: .*FAIL: more than 0.0001 of the largest number apart: s \(\S+\); nothing was written", said, re.DOTALL
    )
    assert Path(files[2]).read_text() == "before" and not Path(files[3]).exists() and len(list(tmp_path.iterdir())) == 3


def test_command_with_a_stage(tmp_path: Path) -> None:
    """What a stage and a level let in is part of the net written, which needs neither."""
    rule = "include { phase: TEST stage: 'deploy' min_level: 2 }"
    (tmp_path / "a.prototxt").write_text(INPUT + PLAIN + NORM % rule + SCALE.replace("scale_param", rule + " scale_param"))
    net = net_of(PLAIN + NORM % "" + SCALE, dtype=np.float32)
    net.save(tmp_path / "a.caffemodel")
    files = [str(tmp_path / name) for name in ("a.prototxt", "a.caffemodel", "b.prototxt", "b.caffemodel")]
    run(*files[:2], "--stage", "deploy", "--level", "2", "-o", *files[2:4])
    assert Net(files[2], files[3], 1).outputs == ["s"]
    staged = Net(files[0], 1, 2, ["deploy"], files[1])
    assert merge_net(staged)[0].outputs == ["s"]


def test_command_without_all_weights(tmp_path: Path) -> None:
    (tmp_path / "a.prototxt").write_text(INPUT + PLAIN + NORM % "")
    net_of(PLAIN).save(tmp_path / "a.caffemodel")
    net_of(PLAIN.replace('name: "c"', 'name: "q"')).save(tmp_path / "q.caffemodel")
    outs = ["-o", str(tmp_path / "b.prototxt"), str(tmp_path / "b.caffemodel")]
    said = run(str(tmp_path / "a.prototxt"), str(tmp_path / "a.caffemodel"), *outs)
    assert "a.caffemodel: it has no weights for n, which folding needs" in said
    said = run(str(tmp_path / "a.prototxt"), str(tmp_path / "q.caffemodel"), *outs)
    assert "none of its layers has the name of a layer with weights" in said
    assert not (tmp_path / "b.prototxt").exists()


@pytest.mark.slow
@needs_models
def test_resnet_50() -> None:
    """All 53 BatchNorm and Scale pairs of R-FCN's ResNet-50 go; its score maps stay as they were."""
    net = Net(MODELS / "py-R-FCN/pascal_voc/ResNet-50/rfcn_end2end/test_agnostic.prototxt", 1)
    random = np.random.default_rng(5)
    for name, blobs in net.params.items():
        kind = net.layer_dict[name].param.type
        for blob in blobs:
            std = (2 / max(1, blob.count // blob.shape[0])) ** 0.5
            blob.data[...] = random.normal(0, std, blob.shape) if len(blob.shape) > 1 else random.uniform(0.4, 1.2, blob.shape)
        if kind == "Scale":
            blobs[0].data[...] *= 0.5
            blobs[1].data[...] -= 0.8
    net.blobs["data"].reshape(1, 3, 64, 96)
    net.blobs["data"].data[...] = random.normal(0, 50, (1, 3, 64, 96))
    net.blobs["im_info"].data[...] = 64, 96, 1
    new, merged = merge_net(net)
    assert len(merged.folded) == 53
    assert not merged.left
    for name in net.inputs:
        new.blobs[name].data[...] = net.blobs[name].data
    net.forward()
    new.forward()
    for name in ("rpn_bbox_pred", "rfcn_cls", "rfcn_bbox"):
        expected = net.blobs[name].data
        assert np.abs(new.blobs[name].data - expected).max() < 1e-5 * np.abs(expected).max()


# BN, and NVIDIA's BatchNorm, which have scale and bias of their own.

FORKS = {
    "pspnet": ("BN", "bn_param { frozen: true eps: 0.5 }"),
    "genet": ("CuDNNBatchNorm", "cudnn_batch_norm_param { eps: 0.5 }"),
    "segnet": ("BN", "bn_param { bn_mode: INFERENCE }"),
    "nv15": ("BatchNorm", "param {} " * 5),
    "nv17": ("BatchNorm", "batch_norm_param { scale_bias: true eps: 0 }"),
    "intel": ("BatchNorm", "param {} " * 4),
    "nv17 without scale": ("BatchNorm", "batch_norm_param { scale_bias: false eps: 0 }"),
}


def fork_net(kind: str, fields: str, layers: str = PLAIN, phase: int = 1, fork: str = "") -> Net:
    """A net whose normalising layer has weights as a training leaves them; each variance is positive, some are small."""
    text = layers + f'layer {{ name: "n" type: "{kind}" bottom: "c" top: "n" {fields} }}'
    net, random = Net(parse_net(INPUT + text), phase, dtype=np.float64, fork=fork), np.random.default_rng(4)
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = random.normal(size=blob.shape)
    for i, blob in enumerate(net.params["n"]):
        if weight_name(net.layer_dict["n"], i) in ("variance", "variance_sum", "correction", "factor"):
            blob.data[...] = random.uniform(1e-2, 2, blob.shape)
    net.blobs["x"].data[...] = random.normal(size=net.blobs["x"].shape)
    return net


@pytest.mark.parametrize("layers", [PLAIN, CONV % "bias_term: false", (CONV % "").replace("Conv", "Deconv"), PRODUCT % ""])
@pytest.mark.parametrize("name", FORKS)
def test_a_forks_layer_is_folded_with_its_scale_and_bias(name: str, layers: str) -> None:
    assert folded(fork_net(*FORKS[name], layers=layers)).folded == {"c": ["n"]}


@pytest.mark.parametrize(("kind", "fork"), [("BN", "pspnet"), ("BatchNorm", "nv15"), ("BatchNorm", "nv17")])
def test_a_layer_that_only_the_fork_names_is_folded(kind: str, fork: str, tmp_path: Path) -> None:
    net = fork_net(kind, "", fork=fork)
    assert folded(net).folded == {"c": ["n"]}
    (tmp_path / "net.prototxt").write_text(INPUT + PLAIN + f'layer {{ name: "n" type: "{kind}" bottom: "c" top: "n" }}')
    net.save(tmp_path / "net.caffemodel")
    arguments = ["net.prototxt", "net.caffemodel", "--out-net", "new.prototxt", "--out-weights", "new.caffemodel"]
    paths = [str(tmp_path / word) if "." in word else word for word in arguments]
    result = CliRunner().invoke(main, ["merge-bn", *paths, "--fork", fork, "--check"])
    assert result.exit_code == 0, result.output
    assert "c <- n" in result.output


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ("bn_param { bn_mode: LEARN }", "it uses the statistics of the batch, as SegNet's does without bn_mode: INFERENCE"),
        ("bn_param { momentum: 0.5 } phase: TRAIN", "it uses the statistics of the batch (phase: TRAIN)"),
    ],
)
def test_a_bn_that_normalises_by_the_batch_is_left(fields: str, reason: str) -> None:
    assert folded(fork_net("BN", fields)).left == {"n": reason}


def test_a_bn_whose_variance_is_negative_is_left() -> None:
    net = fork_net("BN", "bn_param { frozen: true }")
    net.params["n"][3].data[...] = -1
    left = merge_batch_norm(net.param, weights_of(net)).left["n"]
    assert left.startswith("its variance + eps is not positive everywhere (the minimum is -1")
