"""minicaffe cut: parts of nets, which joined give the whole net's numbers; heads; targets."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from extras import require

from minicaffe import TEST, TRAIN, Error, Net, set_random_seed
from minicaffe.blob import Arrays
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net
from minicaffe.formats.weights import read_weights
from minicaffe.porting.cut import TARGETS, Part, cut, drop_head, run_parts
from minicaffe.settings import read_settings

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
CONV = """layer { name: "%s" type: "Convolution" bottom: "%s" top: "%s" %s convolution_param {
  num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }
"""
RELU = 'layer { name: "%s" type: "ReLU" bottom: "%s" top: "%s" }\n'
NET = "".join(
    (
        'name: "whole"\n',
        'layer { name: "in" type: "Input" top: "x" top: "y" input_param {\n',
        "  shape { dim: 1 dim: 3 dim: 6 dim: 5 } shape { dim: 1 dim: 3 dim: 6 dim: 5 } } }\n",
        CONV % ("c1", "x", "c1", 'param { name: "w" } param { name: "b" }'),
        RELU % ("r1", "c1", "c1"),
        CONV % ("c2", "c1", "c2", 'param { name: "w" } param { name: "b" }'),
        RELU % ("r2", "c2", "c2"),
        'layer { name: "train" type: "Silence" bottom: "c2" include { phase: TRAIN } }\n',
        'layer { name: "k" type: "DummyData" top: "k" dummy_data_param { shape { dim: 1 dim: 3 dim: 6 dim: 5 }\n',
        '  data_filler { value: 2 } } exclude { phase: TRAIN } }\n',
        'layer { name: "sum" type: "Eltwise" bottom: "c1" bottom: "c2" bottom: "y" bottom: "k" top: "sum" }\n',
        CONV % ("end", "sum", "end", ""),
        RELU % ("side", "c1", "side"),
    )
)  # fmt: skip
"""c1 is read three times (a Split), changed in place, and shares its weights with c2; k is a constant."""


@pytest.fixture
def whole() -> Net:
    set_random_seed(1)
    return Net(parse_net(NET, "net.prototxt"), TEST)


def inputs_of(net: Net) -> Arrays:
    random = np.random.default_rng(2)
    return {name: random.standard_normal(net.blobs[name].shape).astype(np.float32) for name in net.inputs}


def values(net: Net, inputs: Arrays) -> Arrays:
    """Every blob's last value."""
    net.forward(**inputs)
    return {name: blob.data.copy() for name, blob in net.blobs.items()}


def layers(part: Part) -> str:
    return " ".join(layer.name for layer in part.param.layer if layer.type != "Input")


@pytest.mark.parametrize(
    ("starts", "ends", "inside", "inputs", "outputs"),
    [
        ([], ["c1"], "c1", "x", "c1"),  # the layer: before its ReLU
        ([], ["blob:c1"], "c1 r1", "x", "c1"),
        ([], ["r1"], "c1 r1", "x", "c1"),
        (["c2"], ["sum"], "c2 r2 k sum", "y c1", "sum"),
        (["blob:c2"], [], "k sum end", "y c1 c2", "end"),
        (["r1"], ["side"], "r1 side", "c1", "side"),
        (["blob:c1"], [], "c2 r2 k sum end side", "y c1", "end side"),
        (["c2", "side"], ["r2", "side"], "c2 r2 side", "c1", "c2 side"),
        (["end"], ["end"], "end", "sum", "end"),
        (["in"], ["blob:c1"], "c1 r1", "x", "c1"),
        (["y"], [], "k sum end", "y c1 c2", "end"),
        ([], ["y", "c1"], "c1", "x y", "y c1"),
        ([], [], "c1 r1 c2 r2 k sum end side", "x y", "end side"),
    ],
)
def test_the_layers_between(whole: Net, starts: list[str], ends: list[str], inside: str, inputs: str, outputs: str) -> None:
    part = cut(whole, starts, ends)
    assert (layers(part), " ".join(part.inputs), " ".join(part.outputs)) == (inside, inputs, outputs)
    assert part.inputs == dict.fromkeys(part.inputs, (1, 3, 6, 5))
    assert set(part.weights) == {"c1", "c2", "end"} & set(inside.split())
    assert not any(layer.include or layer.exclude or layer.type == "Split" for layer in part.param.layer)


@pytest.mark.parametrize("blob", ["c1", "c2", "sum"])
def test_two_parts_give_the_numbers_of_the_whole_net(whole: Net, blob: str) -> None:
    inputs = inputs_of(whole)
    second = cut(whole, [f"blob:{blob}"])
    first = cut(whole, ends=[f"blob:{name}" for name in second.inputs if name not in whole.inputs])
    made, expected = run_parts([first, second], inputs), values(whole, inputs)
    for name in second.outputs:
        np.testing.assert_array_equal(made[name], expected[name])


def test_the_value_before_an_in_place_layer(whole: Net) -> None:
    inputs = inputs_of(whole)
    (before,) = run_parts([cut(whole, ends=["c1"])], inputs).values()
    assert before.min() < 0
    np.testing.assert_array_equal(np.maximum(before, 0), values(whole, inputs)["c1"])
    (after,) = run_parts([cut(whole, ["r1"], ["r1"])], {"c1": before}).values()
    np.testing.assert_array_equal(after, np.maximum(before, 0))


def test_a_part_of_a_reshaped_net(whole: Net) -> None:
    first = cut(whole, ends=["blob:c2"]).net()
    first.blobs["x"].reshape(2, 3, 7, 9)
    first.reshape()
    assert cut(first, ["c2"], ["r2"]).inputs == {"c1": (2, 3, 7, 9)}


@pytest.mark.parametrize(
    ("starts", "ends", "text"),
    [
        ([], ["c9"], 'the net has no layer and no blob "c9"'),
        ([], ["blob:r1"], 'the net has no blob "r1"'),
        (["layer:sun"], [], r'the net has no layer "sun"; did you mean "sum"\?'),
        (["end"], ["c2"], "--to c2 does not depend on --from end"),
        (["c2"], ["sum", "side"], "--to side does not depend on --from c2"),
        (["c2", "side"], ["r2"], "--from side leads to none of --to r2"),
        (["blob:end"], [], "--from blob:end leads to none of the outputs"),
        ([], ["c1", "sum"], 'blob "c1" of layer "c1", an end of the part, is overwritten in place by layer "r1": end'),
    ],
)  # fmt: skip
def test_what_cannot_be_cut(whole: Net, starts: list[str], ends: list[str], text: str) -> None:
    with pytest.raises(Error, match=text):
        cut(whole, starts, ends)


def test_a_training_net_is_refused() -> None:
    net = Net(parse_net(NET.replace("exclude { phase: TRAIN }", "")), TRAIN)
    for way in (cut, drop_head):
        with pytest.raises(Error, match="a net is cut in TEST"):
            way(net)


CROPPED = NET + 'layer { name: "crop" type: "Crop" bottom: "c1" bottom: "small" top: "crop" }'


def test_crop_keeps_the_offsets_of_the_whole_net() -> None:
    """Without crop_param they follow from the layers up to the blob that both bottoms are made from."""
    pool = (
        'layer { name: "p" type: "Convolution" bottom: "c1" top: "small" convolution_param { num_output: 1 kernel_size: 3 } }\n'
    )
    net = Net(parse_net(CROPPED.replace('layer { name: "crop"', pool + 'layer { name: "crop"')), TEST)
    assert list(net.layer_dict["crop"].param.crop_param.offset) == [1, 1]
    assert list(cut(net, ["crop"]).net().layer_dict["crop"].param.crop_param.offset) == [1, 1]


def test_force_backward_goes_with_a_part() -> None:
    """It decides how a chain in place is computed, to the last bit."""
    assert cut(Net(parse_net("force_backward: true " + NET), TEST), ["c2"]).param.force_backward


# The command.


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["cut", *map(str, words)])
    return result.exit_code, result.output + result.stderr


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Net) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    whole.save("net.caffemodel")
    return tmp_path


def test_the_files_load_as_any_net(files: Path, whole: Net) -> None:
    code, said = run("net.prototxt", "net.caffemodel", "--from", "c2", "--to", "sum", "-o", "p.prototxt", "p.safetensors")
    assert code == 0, said
    assert "p.prototxt: 6 layers, 1 with weights\n  inputs y 1x3x6x5, c1 1x3x6x5\n  outputs sum 1x3x6x5\n" in said
    assert [layer.name for layer in read_weights("p.safetensors").layers] == ["c2"]
    inputs = inputs_of(whole)
    expected = values(whole, inputs)
    part = Net("p.prototxt", TEST, weights="p.safetensors")
    np.testing.assert_array_equal(part.forward(c1=expected["c1"], y=inputs["y"])["sum"], expected["sum"])


def test_an_error_writes_nothing(files: Path) -> None:
    before = sorted(path.name for path in files.iterdir())
    for words, text in (
        (["--to", "c9"], 'the net has no layer and no blob "c9"'),
        (["--drop-head"], "the net has no head"),
        (["--drop-head", "--to", "c1"], "leave out --from and --to"),
        (["--target", "opencv"], "net.prototxt:11: DummyData"),
    ):
        code, said = run("net.prototxt", "net.caffemodel", *words, "-o", "p.prototxt", "p.caffemodel")
        assert code and text in said, said
    assert "this is an input" in run("net.prototxt", "net.caffemodel", "-o", "p.prototxt", "net.caffemodel")[1]
    rest = run("net.prototxt", "net.caffemodel", "--drop-head", "-o", "rest.prototxt", "p.caffemodel")[1]
    assert "--out rest.prototxt: this name is for the rest of the net" in rest
    assert "names this file too" in run("net.prototxt", "net.caffemodel", "-o", "p", "p")[1]
    assert sorted(path.name for path in files.iterdir()) == before


def test_a_part_without_weights_loads(files: Path, whole: Net) -> None:
    require("hdf5")
    for suffix in ("caffemodel", "safetensors", "npz", "h5"):
        cut(whole, ["side"]).save("side.prototxt", f"side.{suffix}")
        assert Net("side.prototxt", TEST, weights=f"side.{suffix}").params == {}


@pytest.mark.parametrize("fork", ["happynear", "ssd"])
def test_the_fork_goes_with_a_part(fork: str, files: Path) -> None:
    four = 'type: "Eltwise" bottom: "c1" bottom: "c2" bottom: "y" bottom: "k"'
    Path("net.prototxt").write_text(NET.replace(four, 'type: "Normalize" bottom: "c2"'))
    Net("net.prototxt", TEST, fork=fork).save("net.caffemodel")
    for start, told in (("sum", True), ("end", False)):
        words = ["net.prototxt", "net.caffemodel", "--from", start, "--to", start, "--fork", fork]
        code, said = run(*words, "-o", "p.prototxt", "p.caffemodel")
        assert code == 0 and (f"give --fork {fork} with it, as with the whole net" in said) == told, said


# Heads.


def load_script(path: Path) -> object:
    spec = importlib.util.spec_from_file_location("joined", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_the_script_gives_the_detectors_outputs(kind: str, tmp_path: Path) -> None:
    net, weights = SHAPES / kind / "test.prototxt", SHAPES / kind / f"shapes_{kind}.caffemodel"
    out = tmp_path / "part.prototxt", tmp_path / "part.caffemodel"
    words = [net, weights, "--drop-head", "--target", "rknn", "--cfg", SHAPES / "shapes.yml", "-o", *out]
    code, said = run(*words)
    assert code == 0, said
    trunk, rest = Net(out[0], TEST), Net(tmp_path / "rest.prototxt", TEST)
    assert trunk.inputs == ["data"] and {layer.type.lower() for layer in trunk.layers} <= TARGETS["rknn"] | {"split"}
    assert rest.inputs[0] == "im_info" and set(rest.inputs[1:]) <= set(trunk.blobs)
    whole = Net(net, TEST, weights=weights, settings=read_settings(SHAPES / "shapes.yml"))
    data = np.random.default_rng(3).normal(0, 60, (1, 3, 96, 128)).astype(np.float32)  # not the prototxt's size
    whole.blobs["data"].reshape(*data.shape)
    given = {"data": data, "im_info": np.array([[96, 128, 1]], np.float32)}
    expected = whole.forward(**given)
    made = load_script(tmp_path / "join.py").forward(**given)  # type: ignore[attr-defined]
    assert set(made) == set(expected) and len(expected["cls_prob"]) > 1
    for name, array in expected.items():
        np.testing.assert_array_equal(made[name], array)
    assert "rest.prototxt already exists" in run(*words)[1]


ONE = 'layer { name: "n" type: "DummyData" top: "n" dummy_data_param { shape { dim: 1 dim: 1 } data_filler { value: 1 } } }\n'
HEAD_ALONE = """
input: "x" input_shape { dim: 1 dim: 2 dim: 4 dim: 4 } input: "rois" input_shape { dim: 1 dim: 5 }
layer { name: "pool" type: "ROIPooling" bottom: "x" bottom: "rois" top: "pool" roi_pooling_param { pooled_w: 1 pooled_h: 1 } }
"""
PRIORS = (
    NET
    + """
layer { name: "b" type: "Flatten" bottom: "end" top: "b" }
layer { name: "p" type: "PriorBox" bottom: "c2" bottom: "x" top: "p" prior_box_param { min_size: 4 } }
layer { name: "d" type: "DetectionOutput" bottom: "loc" bottom: "conf" bottom: "p" top: "d" detection_output_param {
  num_classes: 2 nms_param { nms_threshold: 0.5 } keep_top_k: 5 confidence_threshold: 0.01 } }
"""
)
LOC = """layer { name: "loc" type: "Convolution" bottom: "c2" top: "l" convolution_param { num_output: 4 kernel_size: 1
  weight_filler { type: "xavier" } } } layer { name: "loc_f" type: "Flatten" bottom: "l" top: "loc" }
layer { name: "con" type: "Convolution" bottom: "c2" top: "con" convolution_param { num_output: 2 kernel_size: 1
  weight_filler { type: "xavier" } } } layer { name: "con_f" type: "Flatten" bottom: "con" top: "conf" }
"""


def test_priors_read_only_shapes_of_the_first_part() -> None:
    set_random_seed(5)
    net = Net(parse_net(PRIORS.replace('layer { name: "p"', LOC + 'layer { name: "p"')), TEST)
    first, rest = drop_head(net)
    assert layers(rest) == "p d" and set(rest.inputs) == {"x", "c2", "loc", "conf"}
    assert "k" in layers(first) and first.outputs == ["c2", "loc", "conf", "b", "side"]
    inputs = inputs_of(net)
    made, expected = run_parts([first, rest], inputs), net.forward(**inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(made[name], array)


def test_heads_that_leave_nothing() -> None:
    filtered = 'layer { name: "f" type: "Filter" bottom: "end" bottom: "n" top: "f" }\n'
    silent = NET + ONE + filtered + 'layer { name: "s" type: "Silence" bottom: "f" }'
    for text, why in ((silent, 'no output depends on "f"'), (HEAD_ALONE, 'nothing is left of the net before "pool"')):
        with pytest.raises(Error, match=why):
            drop_head(Net(parse_net(text), TEST))


def test_names_of_a_strangers_net_are_literals_in_the_script(tmp_path: Path) -> None:
    bad = "x'] + [exit('run')] + ['\\u202e"
    text = PRIORS.replace('layer { name: "p"', LOC + 'layer { name: "p"').replace('"x"', f'"{bad}"')
    (tmp_path / "net.prototxt").write_text(text.replace("\\u202e", "\u202e"), encoding="utf-8")
    Net(tmp_path / "net.prototxt", TEST).save(tmp_path / "net.caffemodel")
    out = tmp_path / "part.prototxt", tmp_path / "part.caffemodel"
    assert run(tmp_path / "net.prototxt", tmp_path / "net.caffemodel", "--drop-head", "-o", *out)[0] == 0
    module = load_script(tmp_path / "join.py")
    assert bad.replace("\\u202e", "\u202e") in module.INPUTS  # type: ignore[attr-defined]
    assert "\u202e" not in (tmp_path / "join.py").read_text(encoding="utf-8")


# Targets.


def test_all_layers_beyond_a_target_are_named_with_their_lines_and_help(whole: Net) -> None:
    more = """
layer { name: "n" type: "Normalize" bottom: "end" top: "n" norm_param { } }
layer { name: "a" type: "BN" bottom: "n" top: "a" bn_param { eps: 1 } }
layer { name: "dw" type: "DepthwiseConvolution" bottom: "a" top: "dw" convolution_param { num_output: 3 kernel_size: 1 } }
layer { name: "rois" type: "Input" top: "rois" input_param { shape { dim: 1 dim: 5 } } }
layer { name: "pool" type: "ROIPooling" bottom: "dw" bottom: "rois" top: "pool" roi_pooling_param { pooled_w: 1 pooled_h: 1 } }
"""
    net = Net(parse_net(NET + more, "net.prototxt"), TEST)
    with pytest.raises(Error) as caught:
        cut(net).for_target("bvlc")
    head, *rest = str(caught.value).split("\n")
    first = NET.count("\n") + 2
    assert head == "4 layers have types that --target bvlc does not support (BVLC Caffe, master at 9b89154):"
    assert [re.sub(": .*", "", line.strip()) for line in rest] == [f"net.prototxt:{first + i}" for i in (0, 1, 2, 4)]
    for line, text in zip(
        rest,
        (
            'Normalize "n": --drop-head leaves it and what depends on it',
            'BN "a": minicaffe merge-bn folds',
            'DepthwiseConvolution "dw": write type "Convolution" with group: N',
            'ROIPooling "pool": --drop-head leaves it to a second net',
        ),
        strict=True,
    ):
        assert text in line
    with pytest.raises(Error, match='unknown target "tpu"; the targets are bvlc, opencv, cann, rknn, vitis-ai, horizon'):
        cut(net).for_target("tpu")


def test_drop_head_for_a_target_leaves_what_it_lacks_to_the_rest() -> None:
    four = 'type: "Eltwise" bottom: "c1" bottom: "c2" bottom: "y" bottom: "k"'
    first, rest = drop_head(Net(parse_net(NET.replace(four, 'type: "HardSigmoid" bottom: "c2"')), TEST), "bvlc")
    assert layers(first.for_target("bvlc")) == "c1 r1 c2 r2 k side" and layers(rest) == "sum end"


def test_a_dropout_that_does_nothing_is_left_out() -> None:
    dropout = 'layer { name: "drop" type: "Dropout" bottom: "c1" top: "c1" %s }\n'
    scaled, drawn = "dropout_param { scale_train: false }", "dropout_param { sample_weights_test: true }"
    for fields, kept in (("", False), (scaled, True), (drawn, True)):
        net = Net(parse_net(NET.replace(RELU % ("r1", "c1", "c1"), RELU % ("r1", "c1", "c1") + dropout % fields)), TEST)
        part = cut(net, ends=["blob:c1"])
        assert layers(part.for_target("rknn")) == "c1 r1 drop"
        if kept:
            with pytest.raises(Error, match='Dropout "drop"'):
                part.for_target("cann")
        else:
            assert layers(part.for_target("cann")) == "c1 r1"


def test_the_targets_types_are_ours() -> None:
    from minicaffe.layers import CATALOGUE

    known = {name.lower() for name in CATALOGUE}
    assert all(kinds <= known for kinds in TARGETS.values())
