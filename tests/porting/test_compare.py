"""minicaffe compare: planted differences are found at the right layer, with their causes; what agrees, agrees."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from minicaffe import TEST, Error, Net, compare, rng, set_random_seed
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net
from minicaffe.porting.comparison import Tolerance
from minicaffe.porting.comparison.sides import Name, read_map

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

NET = """name: "net"
input: "data" input_shape { dim: 2 dim: 3 dim: 15 dim: 13 }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param {
  num_output: 6 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 0.3 }
  bias_filler { type: "constant" value: 0.4 } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" # slope
}
layer { name: "norm1" type: "LRN" bottom: "conv1" top: "norm1" lrn_param { local_size: 5 alpha: 0.4 beta: 0.75 } }
layer { name: "pool1" type: "Pooling" bottom: "norm1" top: "pool1" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2" convolution_param {
  num_output: 6 kernel_size: 3 pad: 2 dilation: 2 bias_term: false weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "bn2" type: "BatchNorm" bottom: "conv2" top: "bn2" batch_norm_param { eps: 0.01 } }
layer { name: "scale2" type: "Scale" bottom: "bn2" top: "scale2" scale_param { bias_term: true
  filler { type: "gaussian" std: 1 } bias_filler { type: "constant" value: 0.3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "scale2" top: "ip" inner_product_param {
  num_output: 7 weight_filler { type: "gaussian" std: 0.2 } bias_filler { type: "constant" value: 0.3 } } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip" top: "ip2" inner_product_param {
  num_output: 7 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "prob" type: "Softmax" bottom: "ip2" top: "prob" }
"""
HEAD = """name: "head"
input: "map" input_shape { dim: 2 dim: 8 dim: 11 dim: 14 }
input: "rois" input_shape { dim: 5 dim: 5 }
layer { name: "pool5" type: "%s" bottom: "map" bottom: "rois" top: "pool5" %s }
layer { name: "fc" type: "InnerProduct" bottom: "pool5" top: "fc" inner_product_param {
  num_output: 3 weight_filler { type: "gaussian" std: 0.2 } } }
"""
POOL = "roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.25 }"
ALIGN = "roi_align_param { pool: AVE pooled_h: 3 pooled_w: 2 spatial_scale: 0.25 sampling_ratio: 2 }"
PSROI = "psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 0.25 }"
ROIS = np.array([[0, 3, 5, 30, 40], [1, 10, 2, 50, 21], [0, 8, 8, 24, 31], [1, 0, 4, 33, 38], [0, 20, 11, 47, 39]], np.float32)


def made(text: str = NET, seed: int = 3) -> Net:
    set_random_seed(seed)
    net = Net(parse_net(text))
    if "bn2" in net.params:
        for blob, value in zip(net.params["bn2"], (np.arange(6), np.arange(6) + 0.2, 5)):
            blob.data[...] = value
    return net


def image(scale: float = 60) -> Array:
    pixels: Array = np.random.default_rng(7).standard_normal((2, 3, 15, 13)).astype(np.float32) * np.float32(scale)
    return pixels


def blobs(net: Net, **inputs: Array) -> Arrays:
    """What another framework would have stored of a run: every blob's last value."""
    net.forward(None, None, None, **inputs)
    return {name: blob.data.copy() for name, blob in net.blobs.items() if "split" not in name}


def changed(old: str, new: str, text: str = NET) -> str:
    assert old in text
    return text.replace(old, new)


def fill(net: Net, layer: str, blob: int, function: Callable[[Array], Array]) -> None:
    net.params[layer][blob].data[...] = function(net.params[layer][blob].data.copy())


def test_the_random_numbers_continue_as_without_a_comparison() -> None:
    net, other = made(), made()
    before = rng.generator().bit_generator.state
    compare(net, other)
    assert rng.generator().bit_generator.state == before


def test_the_same_net_agrees_with_itself() -> None:
    result = compare(made(), blobs(made(), data=image()))
    assert result.same and not result.unmatched[1:] and result.first is None
    assert result.agreed[0][1] == "data"
    assert re.search(r"all 10 blobs that both have agree; largest difference 0", str(result))


# Ten planted differences and more, each against what another framework would have stored.

PARAMETERS = [
    ("pool1", "stride: 2", "stride: 2 round_mode: FLOOR", "rounded down (floor)"),
    ("pool1", "stride: 2", "stride: 2 ceil_mode: false", "rounded down (floor)"),
    ("norm1", "alpha: 0.4", "alpha: 2.0", "its alpha is not divided by local_size"),
    ("norm1", "beta: 0.75", "beta: 0.75 k: 2", "its k is 2, not 1"),
    ("norm1", "beta: 0.75", "beta: 0.75 norm_region: WITHIN_CHANNEL", "within each channel"),
    ("bn2", "eps: 0.01", "eps: 0.001", "its eps is 0.001, not 0.01"),
    ("conv2", "pad: 2 dilation: 2", "pad: 1", "its dilation is ignored, and its pad made smaller"),
    ("conv2", "dilation: 2", "dilation: 1", "its dilation is ignored"),
    ("relu1", "# slope", "relu_param { negative_slope: 0.1 }", "slope is 0.1"),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "old", "new", "cause"), PARAMETERS)
def test_planted_in_a_parameter(layer: str, old: str, new: str, cause: str) -> None:
    theirs = blobs(made(changed(old, new)), data=image(2))
    result = compare(made(), theirs)
    assert result.first and result.first.layer == layer and cause in result.first.cause, str(result)


WEIGHTS: list[tuple[str, int, Callable[[Array], Array], str]] = [
    ("conv1", 0, lambda w: w[:, ::-1], "RGB and BGR swapped"),
    ("conv1", 0, lambda w: w.swapaxes(2, 3), "transposed (width before height)"),
    ("conv1", 0, lambda w: w[:, :, ::-1, ::-1], "flipped"),
    ("conv1", 1, np.zeros_like, "its bias is missing"),
    ("bn2", 2, np.ones_like, "the factor of its statistics (its third blob) is ignored"),
    ("scale2", 1, np.zeros_like, "its bias is missing"),
    ("ip2", 0, lambda w: w.T, "weights are transposed"),
    ("ip", 0, lambda w: w.reshape(w.shape[1], 7).T, "stored transposed"),
]


@pytest.mark.parametrize(("layer", "blob", "function", "cause"), WEIGHTS)
def test_planted_in_the_weights(layer: str, blob: int, function: Callable[[Array], Array], cause: str) -> None:
    other = made()
    fill(other, layer, blob, function)
    result = compare(made(), blobs(other, data=image(2)))
    assert result.first and result.first.layer == layer, str(result)
    assert any(cause in found for found in result.first.causes), str(result)


IMAGES: list[tuple[Callable[[Array], Array], str]] = [
    (lambda x: x[:, ::-1], "RGB and BGR swapped"),
    (lambda x: x + np.array([104, 117, 123], np.float32)[:, None, None], "the mean (104.0, 117.0, 123.0) is not subtracted"),
    (lambda x: x / 255, "its image is scaled by 0.00392157"),
]


@pytest.mark.parametrize(("function", "cause"), IMAGES)
def test_planted_in_the_picture(function: Callable[[Array], Array], cause: str) -> None:
    """B's input is not stored, so that it shows in the first layer only: through the ReLU in place."""
    theirs = blobs(made(), data=function(image()))
    del theirs["data"]
    result = compare(made(), theirs, inputs={"data": image()})
    assert result.first and result.first.layer == "conv1" and any(cause in found for found in result.first.causes), str(result)


def test_a_stored_picture_is_compared_itself() -> None:
    pixels = image() + np.array([104, 117, 123], np.float32)[:, None, None]
    result = compare(made(), blobs(made(), data=pixels), inputs={"data": image()})
    assert result.first and result.first.top == "data"
    assert "it is A's plus (104, 117, 123) in its channels: a mean is not subtracted" in result.first.cause


def regions(kind: str, block: str) -> Net:
    return made(HEAD % (kind, block))


ROI = [
    ("ROIPooling", POOL, lambda r: r - [0, 0, 0, 4, 4], None),
    ("ROIPooling", POOL, lambda r: r - [0, 0, 0, 1, 1], "x2 and y2 are exclusive (boxes without the + 1)"),
    ("ROIPooling", POOL, lambda r: r[:, [0, 2, 1, 4, 3]], "columns of its rois are batch index, y1, x1, y2, x2"),
    ("PSROIPooling", PSROI, lambda r: r - [0, 0, 0, 1, 1], "boxes without the + 1"),
    ("ROIAlign", ALIGN, lambda r: r - [0, 2, 2, 2, 2], "half-pixel"),
]


@pytest.mark.parametrize(("kind", "block", "function", "cause"), ROI)
def test_planted_in_the_regions(kind: str, block: str, function: Callable[[Array], Array], cause: str | None) -> None:
    pixels = np.random.default_rng(5).standard_normal((2, 8, 11, 14)).astype(np.float32)
    theirs = blobs(regions(kind, block), map=pixels, rois=function(ROIS))
    del theirs["rois"]
    result = compare(regions(kind, block), theirs, inputs={"map": pixels, "rois": ROIS})
    assert result.first and result.first.layer == "pool5"
    if cause:
        assert any(cause in found for found in result.first.causes), str(result)
    else:
        assert not result.first.causes and "none of the known causes" in str(result)


def test_aligned_regions_are_known() -> None:
    pixels = np.random.default_rng(5).standard_normal((2, 8, 11, 14)).astype(np.float32)
    theirs = blobs(regions("ROIAlign", ALIGN.replace("pool: AVE", "pool: AVE aligned: true")), map=pixels, rois=ROIS)
    result = compare(regions("ROIAlign", ALIGN), theirs)
    assert result.first and "moved (aligned) by half a pixel" in str(result)


def test_proposals_without_the_one() -> None:
    text = """input: "scores" input_shape { dim: 1 dim: 18 dim: 4 dim: 5 }
    input: "deltas" input_shape { dim: 1 dim: 36 dim: 4 dim: 5 } input: "im_info" input_shape { dim: 1 dim: 3 }
    layer { name: "proposal" type: "Python" bottom: "scores" bottom: "deltas" bottom: "im_info" top: "rois"
    python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "'feat_stride': 16" } }"""
    rng = np.random.default_rng(1)
    inputs = {
        "scores": rng.uniform(size=(1, 18, 4, 5)),
        "deltas": 0.1 * rng.standard_normal((1, 36, 4, 5)),
        "im_info": [[64, 80, 1]],
    }
    other = Net(parse_net(text))
    proposal = other.layers[-1]
    proposal.anchors = proposal.anchors - [0, 0, 1, 1]  # type: ignore[attr-defined]
    theirs = blobs(other, **{name: np.asarray(value, np.float32) for name, value in inputs.items()})
    result = compare(Net(parse_net(text)), theirs)
    assert result.first and result.first.cause == "its boxes have no + 1 when its boxes are decoded"


def test_axes_in_another_order() -> None:
    theirs = blobs(made(), data=image())
    theirs["norm1"] = theirs["norm1"].transpose(0, 2, 3, 1)
    result = compare(made(), theirs)
    assert result.first and "its axes have another order: A's are B's 0,3,1,2" in result.first.cause
    assert compare(made(), theirs, names={"norm1": Name("norm1", (0, 3, 1, 2))}).same


# Two nets.


def test_two_nets_with_the_known_face_and_the_fields() -> None:
    result = compare(made(), made(changed("stride: 2", "stride: 2 round_mode: FLOOR")))
    assert result.first and result.first.layer == "pool1" and result.first.place.startswith("<text>:")
    fields = "the prototxts differ: pooling_param.round_mode: CEIL in A, FLOOR in B"
    assert "floor" in result.first.causes[0] and result.first.causes[1] == fields
    assert "its shape is (2, 6, 8, 7) in A, (2, 6, 7, 6) in B" in str(result)


def test_all_goes_on_from_as_values() -> None:
    text = changed("alpha: 0.4", "alpha: 0.9")
    other = made(changed("eps: 0.01", "eps: 0.02", text))
    result = compare(made(), other, go_on=True)
    assert [found.layer for found in result.differences] == ["norm1", "bn2"]
    assert "lrn_param.alpha: 0.4 in A, 0.9 in B" in result.differences[0].cause
    assert "then: bn2" in str(result) and not result.same


def test_weights_of_two_nets() -> None:
    other = made()
    fill(other, "conv2", 0, lambda w: w * np.array([1, 2, 1, 1, 1, 1], np.float32)[:, None, None, None])
    result = compare(made(), other)
    assert result.first and result.first.layer == "conv2" and result.first.cause == "the weights differ: blob 0"


def test_numbers_of_a_difference() -> None:
    theirs = blobs(made(), data=image())
    theirs["norm1"][1, 4, 2, 3] += 5
    first = compare(made(), theirs).first
    assert (
        first
        and first.at == (1, 4, 2, 3)
        and first.a is not None
        and first.b == pytest.approx(first.a + 5)
        and first.largest == pytest.approx(5)
    )
    assert first.fraction == 1 / theirs["norm1"].size and not first.causes


def test_nan_is_a_difference_and_agrees_with_nan() -> None:
    a = np.array([1.0, np.nan, np.inf])
    assert Tolerance().agree(a, a.copy()) and not Tolerance().agree(a, np.array([1.0, 2.0, np.inf]))
    assert not Tolerance().agree(a, np.array([np.nan, np.nan, np.inf])) and not Tolerance().agree(a, a[:2])


def test_layers_without_a_counterpart_are_named_and_searched() -> None:
    theirs = blobs(made(changed("alpha: 0.4", "alpha: 2.0")), data=image(2))
    kept = {name: theirs[name] for name in ("data", "pool1", "prob")}
    first = compare(made(), kept).first
    assert first and first.top == "pool1" and first.layer == "norm1" and first.uncompared == ["conv1", "relu1", "norm1"]
    assert "alpha is not divided" in first.cause


def test_a_blob_stored_before_a_layer_in_place() -> None:
    theirs = blobs(made(), data=image())
    net = made()
    net.forward(data=image(), end="conv1")
    theirs["conv1"] = net.blobs["conv1"].data.copy()
    first = compare(made(), theirs).first
    assert first and first.layer == "relu1" and first.cause.startswith("it is the top of conv1: B stored it before")


# Files and the command line.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.prototxt").write_text(NET)
    (tmp_path / "b.prototxt").write_text(changed("eps: 0.01", "eps: 0.001"))
    made().save("w.caffemodel")
    np.savez("b.npz", **blobs(made(), data=image()))  # type: ignore[arg-type]
    return tmp_path


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, words)])


def test_command_line(folder: Path) -> None:
    same = run("a.prototxt", "b.npz", "--weights", "w.caffemodel")
    assert same.exit_code == 0 and "all 10 blobs that both have agree" in same.output, same.output
    other = run("a.prototxt", "b.prototxt", "--weights", "w.caffemodel")
    assert other.exit_code == 1 and re.search(
        r"the first that differs: bn2 \(BatchNorm, a.prototxt:\d+\), blob bn2", other.output
    )
    assert "why: its eps is 0.001, not 0.01" in other.output
    made(seed=9).save("v.caffemodel")
    weights = run("a.prototxt", "a.prototxt", "--weights-a", "w.caffemodel", "--weights-b", "v.caffemodel")
    assert weights.exit_code == 1 and "the weights differ: blob" in weights.output
    (folder / "floor.prototxt").write_text(changed("stride: 2", "stride: 2 round_mode: FLOOR"))
    floor = run("a.prototxt", "floor.prototxt", "--weights", "w.caffemodel")
    assert "w.caffemodel does not fit floor.prototxt in ip" in floor.output and "blob pool1" in floor.output
    assert "B has A's weights in 5 layers, and weights from its fillers in ip" in run("a.prototxt", "floor.prototxt").output
    (folder / "renamed.prototxt").write_text(re.sub(r'name: "', 'name: "x_', NET))
    near = run("a.prototxt", "renamed.prototxt", "--weights", "w.caffemodel")
    assert near.exit_code == 1 and "x_conv1 (in the file: conv1)" in near.output
    assert run("a.prototxt", "b.prototxt", "--weights", "w.caffemodel", "--rtol", 0.9, "--atol", 9, "--all").exit_code == 0


def test_weights_that_nothing_gives_are_not_left_zero(folder: Path) -> None:
    text = re.sub(r"(weight_|bias_)?filler \{[^}]*\}", "", NET)
    (folder / "bare.prototxt").write_text(text)
    (folder / "other.prototxt").write_text(changed("alpha: 0.4", "alpha: 2", text))
    result = compare(str(folder / "bare.prototxt"), str(folder / "other.prototxt"))
    assert result.first and result.first.layer == "norm1" and "name no weight_filler and got Gaussian values" in str(result)
    assert "blob norm1" in run("bare.prototxt", "other.prototxt").output


def test_map_and_transpose(folder: Path) -> None:
    theirs = blobs(made(), data=image())
    renamed = {"input": theirs["data"], "features.0": theirs["conv1"].transpose(0, 2, 3, 1), "out": theirs["prob"]}
    np.savez("c.npz", **renamed)
    (folder / "names.txt").write_text("# A B\ndata input\nconv1 features.0 0,3,1,2\nprob out\n")
    words = ("a.prototxt", "c.npz", "--weights", "w.caffemodel", "--map", "names.txt")
    result = run(*words)
    assert result.exit_code == 0 and "all 3 blobs" in result.output and "in A only" in result.output
    (folder / "names.txt").write_text("data input\nconv1 features.0\nprob out\n")
    assert run(*words).exit_code == 1
    assert run(*words, "--transpose", "conv1=0,3,1,2").exit_code == 0


def test_errors(folder: Path) -> None:
    (folder / "bad.txt").write_text("data\n")
    (folder / "axes.txt").write_text("data input 0,2\n")
    (folder / "gone.txt").write_text("conv1 nowhere\n")
    (folder / "no.npz").write_bytes(b"garbage")
    packed = bytearray((folder / "b.npz").read_bytes())
    packed[packed.index(b"\x93NUMPY") + 8] = 9  # the header's length: it ends inside a bracket
    (folder / "cut.npz").write_bytes(packed)
    (folder / "no.onnx").write_bytes(b"garbage")
    for words, message in [
        (["b.npz", "--map", "bad.txt"], "bad.txt:1: write a pair of names"),
        (["b.npz", "--map", "axes.txt"], "0,2 is not an order of axes"),
        (["b.npz", "--map", "gone.txt"], "A's conv1 with B's \"nowhere\", which b.npz lacks"),
        (["b.npz", "--transpose", "conv1=1,0"], "do not fit its shape"),
        (["b.npz", "--transpose", "conv1"], "write it as NAME=0,3,1,2"),
        (["no.npz"], "no.npz: not a readable .npz"),
        (["cut.npz"], "cut.npz: not a readable .npz"),
        (["missing.npz"], "no such file"),
        (["b.npz", "--weights-b", "w.caffemodel"], "--weights-b is for a net"),
        (["no.onnx"], " cannot load it: "),
    ]:
        if "no.onnx" in words:
            pytest.importorskip("onnx")
            pytest.importorskip("onnxruntime")
        result = run("a.prototxt", *words)
        assert result.exit_code in (1, 2) and message in result.output, (words, result.output)
    with pytest.raises(Error, match='"images" is not an input of A'):
        compare(made(), "b.npz", inputs={"images": image()})
    np.savez("other.npz", unrelated=np.zeros(3))
    assert "nothing was compared" in run("a.prototxt", "other.npz").output
    assert read_map(folder / "gone.txt") == {"conv1": Name("nowhere")}


def test_an_output_that_b_lacks(folder: Path) -> None:
    """What there is agrees, but the output was never compared: that is no agreement."""
    theirs = blobs(made(), data=image())
    assert compare(made(), theirs).same
    del theirs["prob"]
    result = compare(made(), theirs)
    assert not result.same and not result.differences and result.missing == ["prob"]
    assert str(result).endswith("outputs of A that B lacks, not compared: prob")
    np.savez("less.npz", **theirs)
    words = run("a.prototxt", "less.npz", "--weights", "w.caffemodel")
    assert words.exit_code == 1


def test_one_output_of_a_layer_that_has_two() -> None:
    text = (
        NET[: NET.index("layer")]
        + 'layer { name: "cut" type: "Slice" bottom: "data" top: "a" top: "b" slice_param { axis: 1 slice_point: 1 } }'
    )
    theirs = blobs(made(text), data=image())
    del theirs["b"]
    assert compare(made(text), theirs).missing == ["b"]


def test_an_input_that_a_layer_changes_in_place(folder: Path) -> None:
    text = 'input: "x" input_shape { dim: 2 dim: 3 }'
    text += 'layer { name: "double" type: "Power" bottom: "x" top: "x" power_param { scale: 2 } }'
    text += 'layer { name: "tanh" type: "TanH" bottom: "x" top: "y" }'
    result = compare(Net(parse_net(text)), Net(parse_net(text)))
    assert result.same and [layer for layer, _, _ in result.agreed] == ["input", "double", "tanh"]
    pytest.importorskip("onnxruntime")
    from minicaffe.porting.onnx import export_onnx

    net = Net(parse_net(text), TEST)
    export_onnx(net, "m.onnx")
    result = compare(net, "m.onnx")  # whose x is the input
    assert result.same and [layer for layer, _, _ in result.agreed] == ["tanh"]


def test_losses_without_a_top_are_compared_with_arrays() -> None:
    loss = 'layer {{ name: "{0}" type: "EuclideanLoss" bottom: "x" bottom: "y" loss_weight: {1} }}'
    inputs = 'input: "x" input_shape { dim: 2 dim: 3 } input: "y" input_shape { dim: 2 dim: 3 }'
    net = Net(parse_net(f"{inputs} {loss.format('first', 1)} {loss.format('last', 2)}"))
    net.forward(x=np.ones((2, 3)), y=np.zeros((2, 3)))
    result = compare(net, {name: blob.data.copy() for name, blob in net.blobs.items()})
    assert result.same and [layer for layer, _, _ in result.agreed][-1] == "last"


def test_the_mean_of_images(folder: Path) -> None:
    from PIL import Image

    text = NET.replace("dim: 2 dim: 3", "dim: 1 dim: 3", 1)
    Path("one.prototxt").write_text(text)
    pixels = np.random.default_rng(1).integers(0, 255, (15, 13, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("one.png")
    data = (pixels[:, :, ::-1].astype(np.float32) - np.float32([10, 20, 30])) * np.float32(0.25)
    np.savez("one.npz", **blobs(made(text), data=data.transpose(2, 0, 1)[None]))
    words = ["one.prototxt", "one.npz", "--weights", "w.caffemodel", "--input", "data=one.png", "--scale-factor", "0.25"]
    assert run(*words, "--mean", "10,20,30").exit_code == 0
    result = run(*words)
    assert result.exit_code == 1 and "the first that differs: input (Input" in result.output


def test_an_onnx_model_with_its_weights_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay in their file, also where the model is in another folder: a model of more than 2 GB is never one message."""
    pytest.importorskip("onnxruntime")
    from minicaffe.porting.onnx import export_onnx, model

    monkeypatch.setattr(model, "LIMIT", 500)
    monkeypatch.setattr(model, "SMALL", 100)
    (folder / "deep").mkdir()
    net = made()
    assert export_onnx(net, "deep/m.onnx") == "m.onnx.data"
    result = compare(net, "deep/m.onnx")
    assert result.same and len(result.agreed) == 10, result
    net.params["ip"][0].data[3] += 1
    assert compare(net, "deep/m.onnx").first.layer == "ip"


def test_an_onnx_model(folder: Path) -> None:
    """With every inner tensor, built by hand: convolution, ReLU, and pooling that rounds down."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    net, helper = made(), onnx.helper
    weights = [onnx.numpy_helper.from_array(blob.data, f"w{i}") for i, blob in enumerate(net.params["conv1"])]
    lrn = {"size": 5, "alpha": 0.4, "beta": 0.75, "bias": 1.0}
    nodes = [
        helper.make_node("Conv", ["data", "w0", "w1"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["conv1"]),
        helper.make_node("LRN", ["conv1"], ["norm1"], **lrn),
        helper.make_node("MaxPool", ["norm1"], ["pool1"], kernel_shape=[2, 2], strides=[2, 2]),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("data", 1, ["n", 3, "h", "w"])], [value("pool1", 1, None)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, "m.onnx")
    result = compare(net, "m.onnx")
    assert [name for _, name, _ in result.agreed] == ["data", "conv1", "norm1"]
    assert result.first and result.first.layer == "pool1" and "floor" in result.first.cause
    assert run("a.prototxt", "m.onnx", "--weights", "w.caffemodel").exit_code == 1
