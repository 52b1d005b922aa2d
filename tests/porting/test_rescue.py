"""minicaffe rescue: the training nets that files carry become nets that load and run with the same weights."""

from __future__ import annotations

import random
import re
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from recordings import SHARED, needs

from minicaffe import TEST, TRAIN, Error, Net, WeightsError, set_random_seed
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net, read_net
from minicaffe.porting.rescue import Rescued, rescue
from minicaffe.proto import caffe_pb2

needs_shared = needs(SHARED)

DATA = """layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { crop_size: %d } data_param { source: "nowhere" batch_size: 64 } }"""
BODY = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" batch_norm_param { use_global_stats: false } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" include { phase: TRAIN } }
layer { name: "aux" type: "InnerProduct" bottom: "conv" top: "aux" inner_product_param { num_output: 5 } }
layer { name: "aux_loss" type: "SoftmaxWithLoss" bottom: "aux" bottom: "label" top: "aux_loss" loss_weight: 0.3 }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
  inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "scaled" type: "Power" bottom: "label" top: "scaled" power_param { scale: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
layer { name: "loss2" type: "EuclideanLoss" bottom: "aux" bottom: "fc" top: "loss2" loss_weight: 0 }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" }
layer { name: "quiet" type: "Silence" bottom: "scaled" }
"""
INPUTS = """layer { name: "data" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 2 dim: 3 dim: 12 dim: 12 } shape { dim: 2 } } }"""


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A file as Caffe's snapshots are: the train net's layers with their splits, phases and data layer."""
    set_random_seed(4)
    net = Net(parse_net(INPUTS + BODY), TRAIN)
    data = parse_net(DATA % 12).param.layer[0]
    net.param.layer[0].CopyFrom(data)
    for layer in net.param.layer:
        layer.phase = caffe_pb2.TRAIN
    net.params["bn"][2].data[...] = 1
    net.save(tmp_path / "net.caffemodel")
    return tmp_path / "net.caffemodel"


def names(rescued: Rescued) -> list[str]:
    return [layer.name for layer in rescued.param.layer]


def test_a_training_net_becomes_one_to_run(trained: Path) -> None:
    rescued = rescue(trained)
    assert names(rescued) == ["data", "conv", "bn", "relu", "aux", "fc", "prob"]
    assert list(rescued.param.layer[0].input_param.shape[0].dim) == [1, 3, 12, 12]
    for word in ("blobs", "lr_mult", "phase", "filler", "loss_weight", "use_global_stats", "split"):
        assert word not in rescued.text.split("name:", 1)[1], word


def test_it_loads_and_computes_what_the_net_computed(trained: Path) -> None:
    image = np.random.default_rng(1).standard_normal((1, 3, 12, 12)).astype(np.float32)
    rescued = Net(parse_net(rescue(trained).text), TEST)
    assert not rescued.copy_from(trained).missing
    probabilities = rescued.forward(data=image)["prob"]
    original = Net(parse_net(INPUTS + BODY.replace("use_global_stats: false", "")), TEST)
    original.copy_from(trained)
    original.blobs["data"].data[...] = image
    original.forward()
    scores = np.exp(original.blobs["fc"].data[0].astype(np.float64))
    np.testing.assert_allclose(probabilities[0], scores / scores.sum(), rtol=1e-3, atol=1e-6)


def test_the_notes_say_what_was_done(trained: Path) -> None:
    text = rescue(trained).text
    assert "# Softmax prob replaces the loss loss (SoftmaxWithLoss)." in text
    assert "# Input data (1x3x12x12) replaces data (Data)." in text
    assert "scaled" in text.split("name:")[0]


def test_the_size_is_found_from_an_inner_product(tmp_path: Path) -> None:
    net = Net(parse_net(INPUTS.replace("dim: 12 dim: 12", "dim: 19 dim: 19") + BODY), TRAIN)
    net.param.layer[0].CopyFrom(parse_net(DATA % 0).param.layer[0])
    net.save(tmp_path / "net.caffemodel")
    assert list(rescue(tmp_path / "net.caffemodel").param.layer[0].input_param.shape[0].dim) == [1, 3, 19, 19]


def test_command_line(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "deploy.prototxt"
    result = CliRunner().invoke(main, ["rescue", str(trained), "-o", str(out)])
    assert result.exit_code == 0 and "it loads with 4 layers' weights and runs: loss" not in result.output
    assert "and runs: " in result.output and "prob 1x5" in result.output
    assert read_net(out).param.layer[1].name == "conv"
    printed = CliRunner().invoke(main, ["rescue", str(trained), "--no-check"])
    assert printed.output.startswith("# Rescued by minicaffe from net.caffemodel")


def test_names_that_are_no_utf8(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "n.caffemodel").write_bytes(trained.read_bytes().replace(b"conv", b"\xcc\xee\xb7v"))
    rescued = Net(rescue(tmp_path / "n.caffemodel").param, TEST)
    assert not rescued.copy_from(tmp_path / "n.caffemodel").missing


def test_damaged_files_raise_errors_of_ours(trained: Path, tmp_path: Path) -> None:
    whole, rng = trained.read_bytes(), random.Random(5)
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(3):
            data[rng.randrange(1200)] = rng.randrange(256)
        (tmp_path / "d").write_bytes(data)
        with suppress(Error):
            rescue(tmp_path / "d")


def test_no_net_to_rescue(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    net = Net(parse_net(INPUTS + BODY), TRAIN)
    net.save(tmp_path / "n.caffemodel.h5")
    with pytest.raises(WeightsError, match="HDF5 weights contain no net"):
        rescue(tmp_path / "n.caffemodel.h5")
    (tmp_path / "garbage").write_bytes(b"\xff\x07garbage")
    with pytest.raises(WeightsError, match=r"not a \.caffemodel"):
        rescue(tmp_path / "garbage")


def test_layers_that_nothing_connects(tmp_path: Path) -> None:
    param = caffe_pb2.NetParameter(name="parts")
    param.layer.add(name="conv1", type="Convolution").blobs.add(shape={"dim": [2]}, data=[1, 2])
    path = tmp_path / "parts.caffemodel"
    path.write_bytes(param.SerializeToString())
    with pytest.raises(WeightsError, match=r"parts.caffemodel: it contains no net: none of its 1 layers computes"):
        rescue(path)


def test_a_rescued_rfcn_gives_what_its_test_prototxt_gives() -> None:
    folder = Path(__file__).parents[2] / "examples" / "shapes" / "rfcn"
    outputs = []
    test = (folder / "test.prototxt").read_text().replace("use_global_stats: false", "")
    for net in (Net(rescue(folder / "shapes_rfcn.caffemodel").param, TEST), Net(parse_net(test), TEST)):
        net.copy_from(folder / "shapes_rfcn.caffemodel")
        net.blobs["data"].reshape(1, 3, 96, 128)
        net.blobs["im_info"].data[...] = (96, 128, 1)
        net.blobs["data"].data[...] = 50 * np.random.default_rng(2).standard_normal((1, 3, 96, 128))
        net.forward()
        outputs.append({name: net.blobs[name].data.squeeze() for name in ("rois", "cls_prob", "bbox_pred")})
    for name, array in outputs[0].items():
        np.testing.assert_array_equal(array, outputs[1][name], err_msg=name)


@needs_shared
@pytest.mark.parametrize(
    ("file", "outputs"),
    [
        ("zoo/cifar10_bvlc_examples/cifar10_quick_iter_4000.caffemodel", {"prob": (1, 10)}),
        ("zoo/hyperlpr_mininet_ssd/HorizonalFinemapping.caffemodel", {"dense": (1, 2)}),
        ("zoo/yufacedetect_v2/yufacedetectnet-open-v2.caffemodel", {"detection_out": (1, 1, 200, 7)}),
        ("zoo/mtcnn/det2.caffemodel", {"conv5-2": (1, 4), "conv5-3": (1, 10), "prob": (1, 2)}),
        ("zoo/mtcnn/det3.caffemodel", {"conv6-2": (1, 4), "conv6-3": (1, 10)}),
        ("golden/solvers/sgd_conv_bn_iter_10.caffemodel", {"prob": (1, 3)}),
    ],
)
def test_published_files(file: str, outputs: dict[str, tuple[int, ...]]) -> None:
    net = Net(rescue(SHARED / file).param, TEST)
    assert not net.copy_from(SHARED / file).missing
    assert {name: array.shape for name, array in net.forward().items()} == outputs


@needs_shared
def test_an_old_file_is_upgraded(tmp_path: Path) -> None:
    for name in ("v0_binary", "v1_binary"):
        rescued = rescue(SHARED / f"golden/upgrade/{name}.in.caffemodel")
        assert {"Convolution", "Pooling"} <= {layer.type for layer in rescued.param.layer}


@needs_shared
@pytest.mark.parametrize("name", ["v0_binary", "v1_binary"])
def test_a_stored_net_that_no_caffe_could_run(name: str, tmp_path: Path) -> None:
    """These files' own pool1 has no kernel_size: the prototxt is written, and what it lacks is named with its line."""
    out = tmp_path / "r.prototxt"
    result = CliRunner().invoke(main, ["rescue", str(SHARED / f"golden/upgrade/{name}.in.caffemodel"), "-o", str(out)])
    assert result.exit_code == 1 and out.exists()
    assert re.search(r'Pooling layer "pool1": kernel_size is missing.*\(.*r.prototxt:\d+\)\nhint: the net in', result.output)
    completed = out.read_text().replace('type: "Pooling"', 'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }')
    out.write_text(completed.replace("dim: 224", "dim: 6", 1).replace("dim: 224", "dim: 8"))
    net = Net(out, TEST)
    assert not net.copy_from(SHARED / f"golden/upgrade/{name}.in.caffemodel").missing
    assert net.forward()["prob"].shape == (1, 6)


@needs_shared
def test_a_faster_rcnn_becomes_one_that_detects(tmp_path: Path) -> None:
    file = read_net(SHARED / "models/py-faster-rcnn/pascal_voc/ZF/faster_rcnn_end2end/train.prototxt")
    for layer in file.param.layer:
        if layer.type == "Convolution":
            layer.convolution_param.num_output = min(layer.convolution_param.num_output, 36)
        if layer.name in ("fc6", "fc7"):
            layer.inner_product_param.num_output = 16
    net = Net(file, TRAIN)
    net.save(tmp_path / "zf.caffemodel")
    rescued = Net(rescue(tmp_path / "zf.caffemodel").param, TEST)
    assert rescued.inputs == ["data", "im_info"] and rescued.outputs == ["bbox_pred", "cls_prob"] and "rois" in rescued.blobs
    assert not rescued.copy_from(tmp_path / "zf.caffemodel").missing
    rescued.blobs["data"].reshape(1, 3, 96, 128)
    rescued.blobs["im_info"].data[...] = (96, 128, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rescued.forward()["cls_prob"].shape[1] == 21


DIGITS = """layer { name: "digits" type: "Data" top: "data" top: "label" data_param { source: "digits" batch_size: 4 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 3 kernel_size: 3 pad: 1 } }
layer { name: "pool1" type: "Pooling" bottom: "conv" top: "pool1" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "pool2" type: "Pooling" bottom: "pool1" top: "pool2" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool2" top: "ip" inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }"""


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A net of images of 8 x 8, whose ip fits all sizes from 5 to 8."""
    inputs = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 1 dim: 8 dim: 8 } } }\n'
    layers = DIGITS.split("\n")
    net = Net(parse_net(inputs + "\n".join(layers[1:-1])), TEST)
    net.param.layer[0].CopyFrom(parse_net(layers[0]).param.layer[0])
    net.param.layer.add().CopyFrom(parse_net(layers[-1]).param.layer[0])
    net.save(tmp_path / "digits.caffemodel")
    return tmp_path / "digits.caffemodel"


def test_of_the_sizes_that_fit_the_one_that_halves_most_often(digits: Path) -> None:
    rescued = rescue(digits)
    assert list(rescued.param.layer[0].input_param.shape[0].dim) == [1, 1, 8, 8]
    assert rescued.guesses == ["The size of data, 8x8, fits the weights of ip; others may fit too."]


def test_a_guessed_size_is_said_and_shape_sets_it(digits: Path) -> None:
    guessed = CliRunner().invoke(main, ["rescue", str(digits)])
    assert "WARNING: The size of data, 8x8, fits the weights of ip; others may fit too. --shape" in guessed.output
    given = CliRunner().invoke(main, ["rescue", str(digits), "--shape", "data=2,1,7,6"])
    assert given.exit_code == 0 and "WARNING" not in given.output
    assert "# Input data (2x1x7x6) replaces digits (Data)." in given.output and "prob 2x5" in given.output
    wrong = CliRunner().invoke(main, ["rescue", str(digits), "--shape", "image=2,1,7,6"])
    assert wrong.exit_code == 1 and "--shape image=2,1,7,6: the rescued net's inputs are data" in wrong.output
