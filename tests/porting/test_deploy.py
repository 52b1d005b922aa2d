"""minicaffe deploy: the deploy net of a train_val.prototxt."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.errors import Error, PrototxtError
from minicaffe.formats.prototxt import parse_net, read_net
from minicaffe.net_arguments import state_applied
from minicaffe.porting.deploy import Deployed, deploy

TRAIN_VAL = """name: "small"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "train_lmdb" batch_size: 64 }
  transform_param { crop_size: 5 mirror: true mean_value: 9 } include { phase: TRAIN } }
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "val_lmdb" batch_size: 8 }
  transform_param { crop_size: 8 mean_value: 9 mean_value: 20 mean_value: 31.5 scale: 0.017 } include { phase: TEST } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { name: "w" lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" include { phase: TRAIN } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 3
  weight_filler { type: "xavier" } } }
layer { name: "acc" type: "Accuracy" bottom: "ip" bottom: "label" top: "acc" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def deployed(text: str, stages: tuple[str, ...] = (), **shapes: tuple[int, ...]) -> Deployed:
    file = parse_net(text, "net.prototxt", warn=False)
    return deploy(file, state_applied(file.param, TEST, 0, stages).state, shapes)


def test_the_written_file_gives_the_scores_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train_val.prototxt").write_text(TRAIN_VAL)
    Image.fromarray(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)).save("photo.png")
    made = run("deploy", "train_val.prototxt", "-o", "deploy.prototxt")
    assert made.exit_code == 0, made.output
    options = "--mean 9,20,31.5 --scale-factor 0.017"
    said = ["inputs: data 1x3x8x8", "outputs: prob 1x3", f"options for classify and run: {options}"]
    assert made.stderr.splitlines() == ["written: deploy.prototxt (4 layers)", *said]
    net = Net("deploy.prototxt", TEST)
    net.params["ip"][0].data[...] = np.random.default_rng(1).normal(0, 0.3, net.params["ip"][0].shape)
    net.params["conv"][0].data[...] = np.random.default_rng(2).normal(0, 0.3, net.params["conv"][0].shape)
    net.save("net.caffemodel")
    new = run("classify", "deploy.prototxt", "net.caffemodel", "photo.png", "--json", *options.split())
    old = run("classify", "train_val.prototxt", "net.caffemodel", "photo.png", "--json", "--blob", "ip")
    scores, logits = ({c["class_index"]: c["score"] for c in json.loads(x.stdout)[0]["classes"]} for x in (new, old))
    exps = {k: np.exp(value - max(logits.values())) for k, value in logits.items()}
    assert scores == pytest.approx({k: e / sum(exps.values()) for k, e in exps.items()}, abs=2e-6)
    assert len(set(scores.values())) == 3


def test_what_is_kept_and_what_is_not() -> None:
    made = deployed(TRAIN_VAL)
    assert [(layer.type, layer.name) for layer in made.param.layer] == [
        ("Input", "data"),
        ("Convolution", "conv"),
        ("InnerProduct", "ip"),
        ("Softmax", "prob"),
    ]
    assert [spec.name for spec in made.param.layer[1].param] == ["w", ""]  # sharing by name holds
    assert not made.param.layer[1].param[0].HasField("lr_mult")
    assert not made.param.layer[1].convolution_param.HasField("weight_filler") and "include" not in made.text
    assert "# Images are prepared by the options --mean 9,20,31.5 --scale-factor 0.017\n" in made.text
    again = parse_net(made.text, "again.prototxt").param
    assert again == made.param


def test_layers_that_the_detections_replace_do_not_stay() -> None:
    """The test net's own DetectionOutput reads labels and goes; the layers before it have the names of the new ones."""
    text = """layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "x" }
      transform_param { crop_size: 8 } }
    layer { name: "loc" type: "Convolution" bottom: "data" top: "loc" convolution_param { num_output: 4 kernel_size: 8 } }
    layer { name: "conf" type: "Convolution" bottom: "data" top: "conf" convolution_param { num_output: 2 kernel_size: 8 } }
    layer { name: "prior" type: "PriorBox" bottom: "loc" bottom: "data" top: "prior" prior_box_param { min_size: 4 } }
    layer { name: "loss" type: "MultiBoxLoss" bottom: "loc" bottom: "conf" bottom: "prior" bottom: "label" top: "loss"
      include { phase: TRAIN } multibox_loss_param { num_classes: 2 } }
    layer { name: "conf_reshape" type: "Reshape" bottom: "conf" top: "conf_reshape"
      reshape_param { shape { dim: 0 dim: -1 dim: 2 } } }
    layer { name: "detection_out" type: "DetectionOutput" bottom: "loc" bottom: "conf_reshape" bottom: "prior" bottom: "label"
      top: "detection_out" include { phase: TEST } }"""
    names = [layer.name for layer in deployed(text).param.layer]
    assert names == ["data", "loc", "conf", "prior", "conf_reshape", "conf_softmax", "conf_flatten", "detection_out"]


def test_stdout_and_a_mean_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = TRAIN_VAL.replace("mean_value: 9 mean_value: 20 mean_value: 31.5 scale: 0.017", 'mean_file: "my mean.binaryproto"')
    Path("train_val.prototxt").write_text(text)
    made = run("deploy", "train_val.prototxt")
    assert made.exit_code == 0 and read_net("train_val.prototxt").param.layer[2].name == "conv"
    assert made.stderr.endswith("options for classify and run: --mean-file 'my mean.binaryproto'\n")
    assert parse_net(made.stdout, "deploy.prototxt").param == deployed(text).param


@pytest.mark.parametrize(
    ("layer", "advice"),
    [
        (
            'type: "Python" python_param { module: "roi_data_layer.layer" layer: "RoIDataLayer" '
            """param_str: "'num_classes': 4" }""",
            'Give run and detect the settings .yml of the training, if any: layer "d" subtracts its PIXEL_MEANS.',
        ),
        (
            'type: "FrcnnRoiData" window_data_param { source: "list" config: "voc.json" }',
            'Give run and detect the pixel_means of voc.json as the mean: layer "d" subtracts them.',
        ),
    ],
    ids=["RoIData", "FrcnnRoiData"],
)
def test_the_means_of_a_roidb_are_not_in_the_prototxt(
    layer: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    conv = 'name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: 2 kernel_size: 3 }'
    Path("train.prototxt").write_text(
        f'layer {{ name: "d" {layer} top: "data" top: "im_info" top: "gt_boxes" }}\nlayer {{ {conv} }}\n'
    )
    made = run("deploy", "train.prototxt", "--shape", "data=1,3,8,8", "-o", "deploy.prototxt")
    assert made.exit_code == 0, made.output
    text = Path("deploy.prototxt").read_text()
    assert made.stderr.endswith(f"{advice}\n") and f"# {advice}\n" in text
    assert "--mean 0,0,0" not in made.stderr + text


def test_a_shape_that_no_data_layer_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train_val.prototxt").write_text(TRAIN_VAL.replace("crop_size: 8", ""))
    refused = run("deploy", "train_val.prototxt", "-o", "deploy.prototxt")
    assert refused.exit_code == 1 and "give --shape data=1,3,HEIGHT,WIDTH\n" in refused.stderr
    assert not Path("deploy.prototxt").exists()
    given = run("deploy", "train_val.prototxt", "--shape", "data=2,1,9,7")
    assert given.exit_code == 0 and "inputs: data 2x1x9x7\n" in given.stderr
    refused = run("deploy", "train_val.prototxt", "--shape", "image=2,1,9,7")
    assert "--shape image=2,1,9,7: the inputs in place of data layers are data\n" in refused.stderr


V1 = """layers { name: "d" type: DATA top: "data" top: "label" data_param { source: "x" crop_size: 6 mean_file: "m" } }
layers { name: "ip" type: INNER_PRODUCT bottom: "data" top: "ip" blobs_lr: 1 inner_product_param { num_output: 2 } }
layers { name: "l" type: SIGMOID_CROSS_ENTROPY_LOSS bottom: "ip" bottom: "label" top: "l" }
"""
PAIR = """layer { name: "pair" type: "HDF5Data" top: "pair" top: "sim" hdf5_data_param { source: "x" batch_size: 5 } }
layer { name: "slice" type: "Slice" bottom: "pair" top: "a" top: "b" }
layer { name: "ipa" type: "InnerProduct" bottom: "a" top: "ipa" param { name: "w" } inner_product_param { num_output: 2
  bias_term: false } }
layer { name: "ipb" type: "InnerProduct" bottom: "b" top: "ipb" param { name: "w" } inner_product_param { num_output: 2
  bias_term: false } }
layer { name: "loss" type: "ContrastiveLoss" bottom: "ipa" bottom: "ipb" bottom: "sim" top: "loss" }
"""
MARGIN = """layer { name: "d" type: "ImageData" top: "data" top: "label" image_data_param { source: "x" } transform_param { crop_size: 6 } }
layer { name: "fc5" type: "InnerProduct" bottom: "data" top: "fc5" inner_product_param { num_output: 2 } }
layer { name: "fc6" type: "MarginInnerProduct" bottom: "fc5" bottom: "label" top: "fc6" top: "lambda"
  margin_inner_product_param { num_output: 4 type: QUADRUPLE } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc6" bottom: "label" top: "loss" }
"""  # noqa: E501 - one layer a line
READER = """layer { name: "d" type: "ImageData" top: "data" top: "label" image_data_param { source: "x" zzz: 1 new_height: 1 new_width: 9 } }
layer { name: "steps" type: "Transpose" bottom: "data" top: "steps" transpose_param { dim: 3 dim: 0 dim: 1 dim: 2 } }
layer { name: "cont" type: "ContinuationIndicator" top: "cont" continuation_indicator_param { time_step: 9 batch_size: 1 } }
layer { name: "lstm" type: "LSTM" bottom: "steps" bottom: "cont" top: "lstm" recurrent_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "lstm" bottom: "label" top: "loss" softmax_param { axis: 2 } }
"""  # noqa: E501 - one layer a line
LABELS = """layer { name: "d" type: "MemoryData" top: "data" top: "none" memory_data_param { batch_size: 9 channels: 1 height: 4 width: 6 } }
layer { name: "s" type: "Silence" bottom: "none" }
layer { name: "labels" type: "Data" top: "labels" data_param { source: "x" } }
layer { name: "cut" type: "Slice" bottom: "labels" top: "one" top: "two" }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "one_l" type: "SoftmaxWithLoss" bottom: "ip" bottom: "one" top: "one_l" }
layer { name: "two_l" type: "EuclideanLoss" bottom: "ip" bottom: "two" top: "two_l" }
"""  # noqa: E501 - one layer a line


@pytest.mark.parametrize(
    ("text", "shapes", "wanted", "inputs"),
    [
        (V1, {}, "Input data, InnerProduct ip, Sigmoid prob", [(1, 3, 6, 6)]),
        (PAIR, {"pair": (1, 2, 4, 4)}, "Input pair, Slice slice, InnerProduct ipa, InnerProduct ipb", [(1, 2, 4, 4)]),
        (MARGIN, {}, "Input data, InnerProduct fc5", [(1, 3, 6, 6)]),
        (LABELS, {}, "Input data, InnerProduct ip, Softmax prob", [(1, 1, 4, 6)]),
        (READER, {}, "ContinuationIndicator cont, Input data, Transpose steps, LSTM lstm, Softmax prob", [(1, 3, 1, 9)]),
    ],
    ids=["V1", "pair", "margin", "labels", "reader"],
)
def test_nets_of_several_kinds(text: str, shapes: dict[str, tuple[int, ...]], wanted: str, inputs: list[object]) -> None:
    made = deployed(text, **shapes)
    assert ", ".join(f"{layer.type} {layer.name}" for layer in made.param.layer) == wanted
    net = Net(parse_net(made.text, "deploy.prototxt"), TEST)
    assert [net.blobs[name].shape for name in net.inputs] == inputs
    net.forward()


def test_unknown_fields_matter_in_layers_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(READER)
    assert run("deploy", "net.prototxt").exit_code == 0
    Path("net.prototxt").write_text(READER.replace("num_output: 2", "num_output: 2 zzz: 1"))
    assert "RecurrentParameter has no field zzz" in run("deploy", "net.prototxt").stderr


def test_two_branches_share_their_weights() -> None:
    net = Net(parse_net(deployed(PAIR, pair=(1, 2, 4, 4)).text, "deploy.prototxt"), TEST)
    assert len(net.learnable_params) == 1


def test_the_data_layer_of_a_stage() -> None:
    text = TRAIN_VAL.replace("crop_size: 8", "crop_size: 7").replace("include { phase: TEST } }\nlayer { name: \"conv\"",
        "include { phase: TEST stage: \"big\" } }\nlayer { name: \"conv\"")  # fmt: skip
    assert list(deployed(text, ("big",)).param.layer[0].input_param.shape[0].dim) == [1, 3, 7, 7]


def test_a_net_of_data_alone_has_nothing_to_deploy() -> None:
    with pytest.raises(PrototxtError, match=r"net\.prototxt: no layer computes an output from an image"):
        deployed("\n".join(LABELS.splitlines()[:2]))


SSD = """layer { name: "data" type: "AnnotatedData" top: "data" top: "label" data_param { source: "x" }
  transform_param { resize_param { prob: 1 resize_mode: WARP height: 16 width: 16 } } }
layer { name: "loc" type: "Convolution" bottom: "data" top: "loc" convolution_param { num_output: 4 kernel_size: 8 stride: 8 } }
layer { name: "conf" type: "Convolution" bottom: "data" top: "conf"
  convolution_param { num_output: 2 kernel_size: 8 stride: 8 } }
layer { name: "locp" type: "Permute" bottom: "loc" top: "locp" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "locf" type: "Flatten" bottom: "locp" top: "locf" }
layer { name: "confp" type: "Permute" bottom: "conf" top: "confp" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "conff" type: "Flatten" bottom: "confp" top: "conff" }
layer { name: "pb" type: "PriorBox" bottom: "loc" bottom: "data" top: "pb" prior_box_param { min_size: 10 } }
layer { name: "loss" type: "MultiBoxLoss" bottom: "locf" bottom: "conff" bottom: "pb" bottom: "label" top: "loss"
  multibox_loss_param { num_classes: 2 } include { phase: TRAIN } }
layer { name: "r" type: "Reshape" bottom: "conff" top: "r" include { phase: TEST }
  reshape_param { shape { dim: 0 dim: -1 dim: 2 } } }
layer { name: "sm" type: "Softmax" bottom: "r" top: "sm" softmax_param { axis: 2 } include { phase: TEST } }
layer { name: "smf" type: "Flatten" bottom: "sm" top: "smf" include { phase: TEST } }
layer { name: "det" type: "DetectionOutput" bottom: "locf" bottom: "smf" bottom: "pb" top: "det" include { phase: TEST }
  detection_output_param { num_classes: 2 nms_param { nms_threshold: 0.4 } keep_top_k: 7 confidence_threshold: 0.33 } }
layer { name: "ev" type: "DetectionEvaluate" bottom: "det" bottom: "label" top: "ev" include { phase: TEST }
  detection_evaluate_param { num_classes: 2 } }
"""
BEGIN = """layer { name: "d" type: "Data" top: "data" top: "label" data_param { source: "x" } transform_param { crop_size: 4 } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: 3 kernel_size: 1 } }
"""
READ_BY_ACCURACY = """layer { name: "own" type: "%s" bottom: "c" top: "own" include { phase: TEST } }
layer { name: "acc" type: "Accuracy" bottom: "own" bottom: "label" top: "acc" include { phase: TEST } }
layer { name: "loss" type: "%s" bottom: "c" bottom: "label" top: "loss" %s }
"""
SIDES = """layer { name: "side" type: "SigmoidCrossEntropyLoss" bottom: "c" bottom: "label" top: "sl" include { phase: TRAIN } }
layer { name: "fuse" type: "Convolution" bottom: "c" top: "fuse" convolution_param { num_output: 1 kernel_size: 1 } }
layer { name: "fl" type: "SigmoidCrossEntropyLoss" bottom: "fuse" bottom: "label" top: "fl" include { phase: TRAIN } }
layer { name: "own" type: "Sigmoid" bottom: "fuse" top: "own" include { phase: TEST } }
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (SSD, "loc conf locp locf confp conff pb r sm smf det"),
        (SSD.replace(" include { phase: TRAIN }", ""), "loc conf locp locf confp conff pb r sm smf det"),
        (BEGIN + READ_BY_ACCURACY % ("Softmax", "SoftmaxWithLoss", "include { phase: TRAIN }"), "c own"),
        (BEGIN + READ_BY_ACCURACY % ("Softmax", "SoftmaxWithLoss", ""), "c own"),
        (BEGIN + READ_BY_ACCURACY % ("Sigmoid", "SigmoidCrossEntropyLoss", ""), "c own"),
        (BEGIN + READ_BY_ACCURACY % ("ArgMax", "SoftmaxWithLoss", "include { phase: TRAIN }"), "c own"),
        (BEGIN + "\n".join((READ_BY_ACCURACY % ("Softmax", "", "")).splitlines()[:2]), "c own"),
        (BEGIN + SIDES, "c fuse own"),
    ],
    ids=["SSD", "SSD in both phases", "softmax", "softmax in both phases", "sigmoid", "segmentation", "no loss", "sides"],
)
def test_the_end_for_test_is_kept_exactly(text: str, wanted: str) -> None:
    made = deployed(text)
    assert [layer.name for layer in made.param.layer[1:]] == wanted.split()
    assert "Removed, for labels" not in made.text and "replaces loss" not in made.text
    net = Net(parse_net(made.text, "deploy.prototxt"), TEST)
    assert net.outputs == [made.param.layer[-1].name]
    last, original = made.param.layer[-1], {layer.name: layer for layer in parse_net(text, warn=False).param.layer}
    assert last.detection_output_param == original[last.name].detection_output_param


STAGES = """layer { name: "td" type: "Data" top: "data" data_param { source: "i" } include { phase: TRAIN } }
layer { name: "tl" type: "Data" top: "label" data_param { source: "l" } include { phase: TRAIN } }
layer { name: "vd" type: "Data" top: "data" data_param { source: "i" } include { phase: TEST stage: "val" } }
layer { name: "vl" type: "Data" top: "label" data_param { source: "l" } include { phase: TEST stage: "val" } }
layer { name: "dd" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } }
  include { phase: TEST not_stage: "val" } }
layer { name: "tt" type: "Eltwise" bottom: "data" bottom: "label" top: "x" top: "xl" include { phase: TRAIN } }
layer { name: "vt" type: "Eltwise" bottom: "data" bottom: "label" top: "x" top: "xl" include { phase: TEST stage: "val" } }
layer { name: "dt" type: "Power" bottom: "data" top: "x" power_param { shift: -127 } include { phase: TEST not_stage: "val" } }
layer { name: "sl" type: "Slice" bottom: "xl" top: "a" top: "b" include { phase: TRAIN } include { phase: TEST stage: "val" } }
layer { name: "cov" type: "Convolution" bottom: "x" top: "cov" convolution_param { num_output: 1 kernel_size: 4 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "cov" bottom: "a" top: "loss" include { phase: TRAIN }
  include { phase: TEST stage: "val" } }
"""


def test_an_input_that_the_state_has_is_used() -> None:
    made = deployed(STAGES)
    assert [(layer.name, layer.type) for layer in made.param.layer] == [
        ("dd", "Input"),
        ("dt", "Power"),
        ("cov", "Convolution"),
    ]
    assert made.notes == [
        "Removed, for TRAIN only: tt (Eltwise).",
        "Removed, for other levels or stages only: vt (Eltwise).",
        "Removed, for TRAIN only: sl (Slice).",
        "Removed, a loss: loss (EuclideanLoss).",
    ]
    with pytest.raises(Error, match=r'net\.prototxt:3: i is missing, and "vd" lacks the size of its images'):
        deployed(STAGES, ("val",), label=(1, 1))


def test_errors_name_places_of_the_file_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(STAGES.replace("kernel_size: 4", "kernel_size: 40"))
    for more in ([], ["-o", "out.prototxt"]):
        refused = run("deploy", "net.prototxt", *more)
        assert refused.exit_code == 1 and "(net.prototxt:11)" in refused.stderr and not Path("out.prototxt").exists()
