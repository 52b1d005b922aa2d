"""ImageLabelmapData, and the published nets of HED and RCF that read with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, image, net_of
from labelled import blob
from PIL import Image
from recordings import SHARED, needs

from minicaffe import Net, set_random_seed
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net, read_net
from minicaffe.mode import TEST, TRAIN

GREY = np.arange(35, dtype=np.uint8).reshape(5, 7) * 7
"""0 to 238: 127 is not above half of 255; 133 is."""
HED = SHARED / "wild/s9xie__hed/examples/hed/train_val.prototxt"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    for i in range(3):
        Image.fromarray(image(i)).save(f"images/im{i}.png")
        Image.fromarray(np.roll(GREY, i)).save(f"images/edges{i}.png")
    (tmp_path / "list.txt").write_text("".join(f"im{i}.png edges{i}.png\n" for i in range(3)))
    return tmp_path


def text(more: str = "batch_size: 2", transform: str = "") -> str:
    return (
        f'layer {{ name: "in" type: "ImageLabelmapData" top: "data" top: "label" transform_param {{ {transform} }}\n'
        f'image_data_param {{ source: "list.txt" root_folder: "images/" {more} }} }}'
    )


def labelled(grey: np.ndarray, keeps_weak: bool) -> list[list[float]]:
    """Pixel by pixel, as the forks' loops: HED divides whole numbers, which rounds; RCF compares with 0.5."""
    rows = []
    for row in grey.tolist():
        if keeps_weak:
            rows.append([1.0 if value / 255 > 0.5 else float(np.float32(value) / np.float32(255)) for value in row])
        else:
            rows.append([float(round(value / 255)) for value in row])
    return rows


@pytest.mark.parametrize("fork", ["", "hed", "rcf"])
def test_images_and_edges(fork: str) -> None:
    net = Net(parse_net(text(transform="mean_value: 7 scale: 2")), TEST, fork=fork)
    (data, found), (again, _) = batches(net, 2)
    np.testing.assert_array_equal(data, [(blob(i) - 7) * 2 for i in (0, 1)])
    np.testing.assert_array_equal(again[1], (blob(0) - 7) * 2)
    expected = [[labelled(np.roll(GREY, i), fork == "rcf")] for i in (0, 1)]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    assert len(np.unique(found)) == (20 if fork == "rcf" else 2)


def test_the_edges_of_each_grey_value() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    for name in ("images/im0.png", "images/edges0.png"):
        Image.fromarray(every).save(name)
    for fork in ("hed", "rcf"):
        net = Net(parse_net(text("batch_size: 1 is_color: false")), TEST, fork=fork)
        found = batches(net, 1)[0][1]
        np.testing.assert_array_equal(found[0, 0], np.array(labelled(every, fork == "rcf"), np.float32))


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_crop_and_mirror_are_random_in_both_phases_and_move_the_edges_along(phase) -> None:
    """Images whose pixels are their edges: grey values of 0 and 255, none like another window."""
    bits = np.random.default_rng(0).integers(0, 2, (5, 7), dtype=np.uint8) * 255
    for i in range(3):
        Image.fromarray(bits).save(f"images/im{i}.png")
        Image.fromarray(bits).save(f"images/edges{i}.png")
    windows = set()
    for data, found in batches(net_of(text("batch_size: 2 is_color: false", "crop_size: 4 mirror: true"), phase), 20):
        assert data.shape == found.shape == (2, 1, 4, 4)
        np.testing.assert_array_equal(data / 255, found)
        windows |= {one.tobytes() for one in found}
    assert len(windows) > 10  # of 2 x 4 places, mirrored or not


def test_another_size_and_a_seed() -> None:
    data, found = batches(net_of(text("batch_size: 2 new_height: 10 new_width: 14")), 1)[0]
    assert (data.shape, found.shape) == ((2, 3, 10, 14), (2, 1, 10, 14))
    assert set(np.unique(found)) == {0, 1}
    check_repeats_and_resumes(text("batch_size: 2 shuffle: true rand_skip: 2", "crop_size: 3 mirror: true"), TRAIN)


@pytest.mark.parametrize(
    ("more", "transform", "message"),
    [
        ("batch_size: 0", "", "batch_size must be > 0, got 0"),
        ("batch_size: 1 new_width: 3", "", "give both new_height and new_width, got 0 and 3"),
        ("batch_size: 1 rand_skip: 4", "", "rand_skip 4 is more than the 3 images listed"),
        ("batch_size: 1", "crop_size: 6", "list.txt:1: im0.png: the crop, 6 wide and 6 high, is larger than the image"),
    ],
)
def test_errors(more: str, transform: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        net_of(text(more, transform))


def test_errors_name_the_line(folder: Path) -> None:
    (folder / "list.txt").write_text("im0.png\n")
    with pytest.raises(LayerError, match=r'list.txt:1: "im0.png" is not NAME MAP, two words'):
        net_of(text())
    Image.fromarray(GREY[:4]).save("images/low.png")
    (folder / "list.txt").write_text("im0.png low.png\n")
    with pytest.raises(LayerError, match=r"list.txt:1: im0.png: the label image is 7 wide and 4 high, the image 7 wide and 5"):
        net_of(text()).forward()


@needs(HED)
@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_the_published_net_of_hed(folder: Path, monkeypatch: pytest.MonkeyPatch, phase) -> None:
    """Unedited: its list is ../../data/HED-BSDS/train_pair.lst."""
    there = folder / "data/HED-BSDS"
    there.mkdir(parents=True)
    Image.fromarray(image(0, 20, 24)).save(there / "im.png")
    Image.fromarray(np.eye(20, 24, dtype=np.uint8) * 255).save(there / "edges.png")
    (there / "train_pair.lst").write_text("im.png edges.png\n")
    (folder / "examples/hed").mkdir(parents=True)
    monkeypatch.chdir(folder / "examples/hed")
    set_random_seed(1)
    net = Net(read_net(HED), phase)
    net.forward()
    assert net.blobs["label"].data.sum() == 20
    assert {str(choice) for choice in net.forks.values()} >= {
        "SigmoidCrossEntropyLoss of HED: the net has ImageLabelmapData layers",
        "Crop of longjon's Caffe: the net has ImageLabelmapData layers",
    }
    assert net.blobs["fuse_loss"].data > 0


RCFS = """
layer { name: "data" type: "ImageLabelmapData" top: "data" top: "label"
  transform_param { mirror: false mean_value: 104.00699 mean_value: 116.66877 mean_value: 122.67892 }
  image_data_param { root_folder: "images/" source: "list.txt" batch_size: 1 shuffle: true new_height: 0 new_width: 0 } }
layer { name: "conv1_1" type: "Convolution" bottom: "data" top: "conv1_1" param { lr_mult: 1 decay_mult: 1 }
  param { lr_mult: 2 decay_mult: 0 } convolution_param { engine: CUDNN num_output: 2 pad: 1 kernel_size: 3 } }
layer { name: "relu1_1" type: "ReLU" bottom: "conv1_1" top: "conv1_1" }
layer { name: "pool1" type: "Pooling" bottom: "conv1_1" top: "pool1" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "score-dsn2" type: "Convolution" bottom: "pool1" top: "score-dsn2"
  convolution_param { engine: CUDNN num_output: 1 kernel_size: 1 weight_filler { type: "gaussian" std: 0.01 }
    bias_filler { type: "constant" value: 0 } } }
layer { name: "upsample_2" type: "Deconvolution" bottom: "score-dsn2" top: "score-dsn2-up"
  param { lr_mult: 0 decay_mult: 1 } param { lr_mult: 0 decay_mult: 0 }
  convolution_param { kernel_size: 4 stride: 2 num_output: 1 } }
layer { name: "crop2" type: "AutoCrop" bottom: "score-dsn2-up" bottom: "data" top: "upscore-dsn2" }
layer { name: "dsn2_loss" type: "SigmoidCrossEntropyLoss" bottom: "upscore-dsn2" bottom: "label" top: "dsn2_loss"
  loss_weight: 1 }
"""
"""Layers of RCF's examples/rcf/train_val.prototxt, with two channels."""


def test_layers_of_rcf() -> None:
    net = Net(parse_net(RCFS), TRAIN)
    net.forward()
    net.backward()
    assert list(net.layer_dict["crop2"].param.crop_param.offset) == [1, 1]
    np.testing.assert_array_equal(net.blobs["upscore-dsn2"].data, net.blobs["score-dsn2-up"].data[:, :, 1:6, 1:8])
    assert "SigmoidCrossEntropyLoss of RCF: the net has AutoCrop layers" in map(str, net.forks.values())
    assert len(np.unique(net.blobs["label"].data)) > 2
