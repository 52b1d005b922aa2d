"""Files as Windows writes them: CRLF, a byte order mark, backslashes in names; and names that differ in capitals alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import minicaffe
from minicaffe import TEST, TRAIN, Net
from minicaffe.cli.pictures import output_names
from minicaffe.data.settings import read_settings
from minicaffe.detection.class_names import read_names
from minicaffe.errors import Error
from minicaffe.layers.shape.split import Split
from minicaffe.scaling.batch.find import find_sources

NET = """name: "net"  # a comment
layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 5 dim: 3 }
  data_filler { type: "gaussian" } } }
layer {
  name: "ip"
  type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } }
}
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "x" top: "loss" }
"""
WAYS = pytest.mark.parametrize("way", ["crlf", "bom", "both"])


def written(name: str, text: str, way: str) -> str:
    content = text.replace("\n", "\r\n") if way != "bom" else text
    Path(name).write_bytes(b"\xef\xbb\xbf" * (way != "crlf") + content.encode())
    return name


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@WAYS
def test_a_prototxt(way: str) -> None:
    net = Net(written("net.prototxt", NET, way), TRAIN)
    assert net.name == "net" and [layer.name for layer in net.layers if not isinstance(layer, Split)] == ["x", "ip", "loss"]


@WAYS
def test_the_line_of_an_error(way: str) -> None:
    with pytest.raises(Error, match=r"net\.prototxt:7"):
        Net(written("net.prototxt", NET.replace("num_output: 3", "num_output: 0"), way), TRAIN)


@WAYS
def test_a_solver(way: str) -> None:
    Path("net.prototxt").write_text(NET)
    trainer = minicaffe.get_solver(written("solver.prototxt", 'net: "net.prototxt"\nbase_lr: 0.1\nlr_policy: "fixed"\n', way))
    trainer.step(1)
    assert trainer.iter == 1


@WAYS
def test_settings_and_names(way: str) -> None:
    assert read_settings(written("a.yml", "TEST:\n  SCALES: [300]\n  NMS: 0.5\n", way)).test.nms == 0.5
    assert read_names(written("names.txt", "circle\nblue square\n\n", way)) == ["__background__", "circle", "blue square"]


@WAYS
def test_a_list_of_images(way: str) -> None:
    Image.new("RGB", (4, 3), (1, 2, 3)).save("a b.png")
    written("list.txt", "a b.png 7\n", way)
    param = 'image_data_param { source: "list.txt" batch_size: 1 }'
    Path("net.prototxt").write_text(f'layer {{ name: "in" type: "ImageData" top: "data" top: "label" {param} }}')
    out = Net("net.prototxt", TEST).forward()
    assert out["label"].item() == 7 and out["data"].shape == (1, 3, 3, 4)


def test_a_backslash_is_part_of_a_name_here() -> None:
    """Where / separates folders; the error shows the name."""
    text = r'layer { name: "in" type: "HDF5Data" top: "data" hdf5_data_param { source: "lists\\train.txt" batch_size: 1 } }'
    Path("net.prototxt").write_text(text)
    with pytest.raises(Error, match=r"lists\\+train\.txt"):
        Net("net.prototxt", TEST)


def test_images_whose_names_differ_in_capitals_alone() -> None:
    """detect --draw gives each a file of its own, also where a file system does not tell capitals."""
    for name in ("a/Photo.png", "b/photo.png", "c/photo.jpg"):
        Path(name).parent.mkdir()
        Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(name)
    images = find_sources(["a/Photo.png", "b/photo.png", "c/photo.jpg"])
    names = [path.name.lower() for path in output_names(Path("out"), images, [], ".png")]
    assert len(set(names)) == 3
