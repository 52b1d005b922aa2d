"""A train_val.prototxt without its database: all commands that run or convert a net get an input in its place."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.errors import LayerError

DATA = """layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "gone_lmdb" batch_size: 4 }
  transform_param { crop_size: 8 mean_value: 9 scale: 0.5 } include { phase: TEST } }
"""
BODY = """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3
  weight_filler { type: "gaussian" std: 0.01 } } param { lr_mult: 1 } param { lr_mult: 2 } }
"""
ENDS = """layer { name: "acc" type: "Accuracy" bottom: "ip" bottom: "label" top: "acc" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train_val.prototxt").write_text(DATA + BODY + ENDS)
    Path("ip.prototxt").write_text('input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }' + BODY)
    net = Net("ip.prototxt", TEST)
    net.params["ip"][0].data[...] = np.random.default_rng(1).normal(0, 0.05, net.params["ip"][0].shape)
    net.save("net.caffemodel")
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save("photo.png")
    return tmp_path


COMMANDS = [
    ["run", "N", "W"],
    ["export", "N", "W", "-o", "x.onnx"],
    ["to-torch", "N", "W", "-o", "x.py"],
    ["trace", "N", "W", "--text"],
    ["explain", "N", "ip", "W", "--at", "0,1"],
    ["summary", "N"],
    ["summary", "N", "W"],
    ["draw", "N", "-o", "x.svg", "--shapes"],
    ["cut", "N", "W", "--to", "ip", "-o", "a.prototxt", "a.caffemodel"],
    ["merge-bn", "N", "W", "-o", "b.prototxt", "b.caffemodel"],
    ["time", "N", "--phase", "TEST", "--iterations", "1"],
    ["compare", "N", "N", "--weights", "W"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_every_command_puts_an_input_in_its_place(folder: Path, words: list[str]) -> None:
    if words[0] == "export":
        pytest.importorskip("onnx", reason="onnx (the extra onnx) is not installed")
    names = {"N": "train_val.prototxt", "W": "net.caffemodel"}
    result = run(*(names.get(word, word) for word in words))
    assert result.exit_code == 0, result.output
    said = 'in place of Data layer "data" (gone_lmdb is missing): input data 4x3x8x8; left out with the labels: acc, loss\n'
    assert said in result.stderr


def test_the_input_gives_the_numbers_of_the_deploy_net(folder: Path) -> None:
    words = ("net.caffemodel", "--input", "data=photo.png", "--mean", "9,9,9", "--scale-factor", 0.5, "--out")
    for net in ("train_val", "ip"):
        assert run("run", f"{net}.prototxt", *words, f"{net}.npz").exit_code == 0
    with np.load("train_val.npz") as found, np.load("ip.npz") as wanted:
        assert list(found) == ["ip"] and np.allclose(found["ip"], wanted["ip"], rtol=1e-5)


@pytest.mark.parametrize("words", [["test", "train_val.prototxt", "net.caffemodel"], ["extract-features", "net.caffemodel"]])
def test_commands_that_are_about_the_data_need_it(folder: Path, words: list[str]) -> None:
    more = ["train_val.prototxt", "ip", "features", 1] if words[0] == "extract-features" else []
    result = run(*words, *more)
    assert result.exit_code == 1 and 'Data layer "data": gone_lmdb: no such database' in result.stderr


@pytest.mark.parametrize(
    "data", ['"Data" data_param { source: "gone" batch_size: 2 }', '"ImageData" image_data_param { source: "gone.txt" }']
)
def test_python_says_how_to_go_without_the_data(folder: Path, data: str) -> None:
    text = f'layer {{ name: "data" top: "data" top: "label" transform_param {{ crop_size: 8 }} type: {data} }}\n'
    Path("net.prototxt").write_text(text + BODY + ENDS)
    with pytest.raises(LayerError, match=r"without the data: `minicaffe (deploy .*)` writes a net") as error:
        Net("net.prototxt", TEST)
    assert run(*re.findall("`minicaffe (.*)` writes", str(error.value))[0].split()).exit_code == 0
    assert Net("deploy.prototxt", TEST).inputs == ["data"]


def test_a_list_that_is_there_is_read(folder: Path) -> None:
    Path("list.txt").write_text("photo.png 1\n")
    data = 'layer { name: "data" type: "ImageData" top: "data" top: "label" image_data_param { source: "list.txt" } }\n'
    Path("train_val.prototxt").write_text(data + BODY + ENDS)
    result = run("run", "train_val.prototxt", "net.caffemodel")
    assert result.exit_code == 0 and "in place of" not in result.stderr and "output loss" in result.stdout


def test_a_shape_that_the_layer_does_not_say(folder: Path) -> None:
    Path("train_val.prototxt").write_text(DATA.replace("crop_size: 8", "") + BODY + ENDS)
    result = run("run", "train_val.prototxt", "net.caffemodel")
    wanted = 'train_val.prototxt:1: gone_lmdb is missing, and "data" lacks the size of its images'
    assert result.exit_code == 1 and f"{wanted}: give --shape data=1,3,HEIGHT,WIDTH\n" in result.stderr
    assert "output ip 2x3" in run("run", "train_val.prototxt", "net.caffemodel", "--shape", "data=2,3,8,8").stdout
    result = run("time", "train_val.prototxt", "--phase", "TEST")  # has no --shape
    assert "minicaffe deploy train_val.prototxt --shape data=1,3,HEIGHT,WIDTH -o deploy.prototxt writes" in result.stderr


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ('type: "MemoryData" memory_data_param { batch_size: 2 channels: 1 height: 6 width: 5 }', "2x1x6x5"),
        ('type: "ImageData" image_data_param { source: "gone" batch_size: 3 new_height: 6 new_width: 5 }', "3x3x6x5"),
        ('type: "ImageData" image_data_param { source: "gone" new_height: 6 new_width: 5 is_color: false }', "1x1x6x5"),
        (
            'type: "VideoData" video_data_param { source: "gone" num_segments: 3 new_length: 5 modality: FLOW } '
            "transform_param { crop_size: 4 mean_value: [128] }",
            "1x30x4x4",
        ),
        ('type: "WindowData" window_data_param { source: "gone" batch_size: 7 crop_size: 5 }', "7x3x5x5"),
        (
            'type: "AnnotatedData" data_param { source: "gone" batch_size: 8 } '
            "transform_param { resize_param { height: 6 width: 5 } }",
            "8x3x6x5",
        ),
        ('type: "DenseImageData" dense_image_data_param { source: "gone" new_height: 4 new_width: 5 }', "1x3x4x5"),
        ('type: "Data" data_param { source: "gone" } transform_param { crop_size: 4 mean_value: [1, 2, 3, 4, 5] }', "1x5x4x4"),
    ],
)  # fmt: skip
def test_the_shape_of_each_kind_of_data_layer(folder: Path, data: str, shape: str) -> None:
    Path("train_val.prototxt").write_text(f'layer {{ name: "data" top: "data" top: "label" {data} }}\n' + BODY + ENDS)
    result = run("summary", "train_val.prototxt")
    assert result.exit_code == 0 and f"input data {shape}; left out with the labels: acc, loss" in result.stderr


def test_labels_from_a_data_layer_of_their_own(folder: Path) -> None:
    """As in FCN and in nets with several labels."""
    labels = """layer { name: "labels" type: "Data" top: "labels" data_param { source: "gone" } }
    layer { name: "slice" type: "Slice" bottom: "labels" top: "label" top: "other" }
    """
    loss2 = 'layer { name: "loss2" type: "EuclideanLoss" bottom: "ip" bottom: "other" top: "loss2" }\n'
    Path("train_val.prototxt").write_text(DATA.replace('top: "label"', "") + labels + BODY + loss2 + ENDS)
    result = run("run", "train_val.prototxt", "net.caffemodel")
    assert result.exit_code == 0 and result.stdout.splitlines()[-1].startswith("output ip 4x3")
    assert "input data 4x3x8x8; left out with the labels: slice, loss2, acc, loss\n" in result.stderr


def test_both_images_of_a_pair_are_inputs(folder: Path) -> None:
    """In an old file (layers, upper case), with a contrastive loss on two branches."""
    image = 'layers {{ name: "{0}" type: DATA top: "{0}" data_param {{ source: "gone" batch_size: 2 crop_size: 8 }} }}\n'
    branch = (
        'layers {{ name: "ip{0}" type: INNER_PRODUCT bottom: "{0}" top: "ip{0}" inner_product_param {{ num_output: 2 }} }}\n'
    )
    loss = 'layers { name: "loss" type: CONTRASTIVE_LOSS bottom: "ipa" bottom: "ipb" bottom: "sim" top: "loss" }\n'
    text = "".join(image.format(name) for name in ("a", "b", "sim")) + branch.format("a") + branch.format("b") + loss
    Path("pair.prototxt").write_text(text)
    result = run("run", "pair.prototxt")
    assert result.exit_code == 0, result.output
    assert "input a 2x3x8x8, b 2x3x8x8; left out with the labels: loss\n" in result.stderr
    assert [line.split(":")[0] for line in result.stdout.splitlines()[-2:]] == ["output ipa 2x2", "output ipb 2x2"]


def test_other_tops_that_are_no_labels(folder: Path) -> None:
    """--shape makes an input of a top that would count as a label, as captioning nets need for an HDF5Data's."""
    data = 'layer { name: "data" type: "HDF5Data" top: "data" top: "more" top: "label" hdf5_data_param { source: "gone" } }\n'
    tail = 'layer { name: "sum" type: "Eltwise" bottom: "ip" bottom: "more" top: "sum" }\n' + ENDS.replace('"ip"', '"sum"')
    Path("train_val.prototxt").write_text(data + BODY + tail)
    result = run("run", "train_val.prototxt", "net.caffemodel", "--shape", "data=2,3,8,8", "--shape", "more=2,3")
    assert result.exit_code == 0 and "output sum 2x3" in result.stdout
    assert "input data 2x3x8x8, more 2x3; left out with the labels: acc, loss\n" in result.stderr
