"""The families of detectors: YOLO, RefineDet, Cascade R-CNN, CTPN, and one that a test adds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from coloured import CENTRED, COLOURED, MEANS, check_planes
from detecting import DETECTOR
from detector_nets import (
    BLOB,
    CASCADE,
    CELLS,
    CTPN,
    DETECT_NET,
    MSCNN,
    MTCNN,
    REFINEDET,
    SSD,
    SSH,
    ULTRA_FACE,
    YOLOS,
    pooled,
    reshaped,
    squeeze_det,
)
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.data.settings import DetectionSettings, settings_from
from minicaffe.detection import families, load
from minicaffe.detection.cascade import Cascade, cascade_ends, input_size
from minicaffe.detection.families import FAMILIES, detect_ssd, family_of
from minicaffe.detection.family import Family, FindOptions
from minicaffe.detection.mtcnn import joined
from minicaffe.detection.reading import Ctpn, chains, text_lines
from minicaffe.detection.rows import RowsEnd, RowsFamily, last_output
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net, read_net, to_text
from minicaffe.layers.neuron.functions import Sigmoid

PICTURE = np.full((40, 60, 3), 104, np.uint8)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def yolo(kind: str, objectness: float) -> Net:
    """One cell with a box of half its width and a quarter of its height, in the middle; class 2 of 2."""
    Path("yolo.prototxt").write_text(f'{BLOB} {CELLS} layer {{ name: "found" bottom: "cells" top: "found" {YOLOS[kind]} }}')
    net = Net("yolo.prototxt", TEST)
    net.params["cells"][0].data[...] = 0
    net.params["cells"][1].data[...] = [0, 0, 0, 0, objectness, -9, 9]
    return net


@pytest.mark.parametrize("kind", YOLOS)
def test_yolos_boxes_come_out_in_the_images_pixels(kind: str) -> None:
    detector = load(yolo(kind, 9), classes=["background", "cat", "dog"])
    found = detector(PICTURE)
    assert found.classes.tolist() == [2] and detector.is_ssd
    np.testing.assert_allclose(found.boxes, [[15, 15, 45, 25]], rtol=1e-5)
    np.testing.assert_allclose(found.scores, [1], atol=1e-3)
    assert len(load(yolo(kind, -9))(PICTURE)) == 0
    with pytest.raises(Error, match=r"yolo\.prototxt: a YOLO takes no proposals"):
        detector(PICTURE, proposals=[[0, 0, 9, 9]])
    with pytest.raises(Error, match=r"classes: 2 classes with the background, but found of .*yolo.prototxt has 3"):
        load(yolo(kind, 9), classes=["background", "cat"])


@pytest.mark.parametrize("kind", YOLOS)
def test_a_yolos_numbers_are_finite(kind: str) -> None:
    """The layer drops a NaN score: the error names the blob that it read."""
    net = yolo(kind, np.nan)
    with pytest.raises(Error, match=r'scores that are NaN or infinite in "cells": minicaffe.check_finite finds'):
        load(net)(PICTURE)


def test_the_command_runs_a_yolo() -> None:
    yolo("YOLOv2", 9).save("yolo.caffemodel")
    Image.fromarray(PICTURE).save("photo.png")
    words = ["detect", "yolo.prototxt", "yolo.caffemodel", "photo.png", "--mean", "0,0,0", "--scale-factor", "0.004"]
    result = CliRunner().invoke(main, [*words, "--draw", "drawn"])
    assert result.exit_code == 0, result.output
    assert "class 2  1.000  x1   15.0  y1   15.0  x2   45.0  y2   25.0" in result.output
    assert Path("drawn/photo.png").is_file()
    refused = CliRunner().invoke(main, [*words, "--nms", "0.5"])
    assert refused.exit_code and "--nms" in refused.output


def test_the_command_takes_a_net_that_reads_a_database() -> None:
    """As MobileNet-YOLO's: the image's size, mean and factor are the data layer's, and the evaluation is left out. The
    objectness is the sigmoid of 7 less the sum of the channels."""
    net = yolo("YOLOv3", 7)
    net.params["cells"][0].data[4] = -1
    net.save("yolo.caffemodel")
    data = """layer { name: "data" type: "AnnotatedData" top: "data" top: "label" data_param { source: "/gone" }
      transform_param { mean_value: 101 scale: 0.5 resize_param { height: 4 width: 6 } } }"""
    ends = 'layer { name: "eval" type: "DetectionEvaluate" bottom: "found" bottom: "label" top: "eval" }'
    Path("test.prototxt").write_text(Path("yolo.prototxt").read_text().replace(BLOB, data) + ends)
    Image.fromarray(PICTURE).save("photo.png")
    for words, score in (((), "0.924"), (("--scale-factor", "0.6"), "0.832"), (("--mean", "102,102,102"), "0.982")):
        result = CliRunner().invoke(main, ["detect", "test.prototxt", "yolo.caffemodel", "photo.png", *words])
        assert result.exit_code == 0 and f"class 2  {score}  x1   15.0" in result.output, result.output


def test_refinedet() -> None:
    """The first prior is no object; the second, refined by as many tenths, is found."""
    Path("refine.prototxt").write_text(REFINEDET)
    net = Net("refine.prototxt", TEST)
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = 0
    net.params["conf"][1].data[...] = [0, 0.9, 0, 0, 0, 0.8]
    net.params["objects"][1].data[...] = [1, 0, 0, 1]
    net.params["refine"][1].data[...] = [0, 0, 0, 0, 1, 0, 0, 0]  # the second prior, 4 x 4, goes 0.1 of its width to the right
    found = load(net)(PICTURE)
    assert found.classes.tolist() == [2]
    np.testing.assert_allclose(found.boxes, [[14, 0, 54, 39]], rtol=1e-5)
    with pytest.raises(Error, match=r"refine\.prototxt: cfg has no effect: the prototxt of a RefineDet fixes the input size"):
        load("refine.prototxt", cfg={})


def test_an_input_that_a_yolo_cannot_have() -> None:
    other = 'input: "label" input_shape { dim: 5 } layer { name: "quiet" type: "Silence" bottom: "label" }'
    yolo("YOLOv3", 9)
    Path("two.prototxt").write_text(Path("yolo.prototxt").read_text() + other)
    with pytest.raises(Error, match=r"a YOLO has one input, of shape \(N, 3, .*; this net's are data .*, label \(5,\)"):
        detect_ssd(Net("two.prototxt", TEST), PICTURE)


def cascade() -> Net:
    Path("cascade.prototxt").write_text(CASCADE)
    net = Net("cascade.prototxt", TEST)
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = 0
    net.params["first"][1].data[...] = [0, 64, 160, 191, 319]
    net.params["bbox_1st"][1].data[4] = 0.5  # each stage moves by half a width
    net.params["bbox_2nd"][1].data[4] = 0.5
    net.params["cls_1st"][1].data[1], net.params["cls_2nd"][1].data[2] = 1, 9
    return net


def test_a_cascades_last_stage() -> None:
    """From 128 x 160 pixels of 608 x 608 to the photo's 40 x 60; the mean of both stages' probabilities."""
    settings = DetectionSettings()
    assert input_size(40, 60, settings) == (608, 896) and input_size(10, 60, settings) == (608, 992)
    multiples = settings_from({"TEST": {"SCALE_MULTIPLE_OF": 48}})
    assert input_size(40, 60, multiples) == (624, 912) and input_size(10, 60, multiples) == (624, 1008)
    net = cascade()
    assert cascade_ends(net) == ("output_bbox_2nd", "cls_prob_2nd_avg")
    found = load(net)(PICTURE)
    assert net.blobs["data"].shape == (1, 3, 608, 896)
    assert found.classes.tolist() == [2]
    x, y = 60 / 896, 40 / 608
    np.testing.assert_allclose(found.boxes, [[192 * x, 160 * y, 319 * x, 319 * y]], rtol=1e-4)
    first, second = (np.exp(row) / np.exp(row).sum() for row in ([0.0, 1, 0], [0.0, 0, 9]))
    np.testing.assert_allclose(found.scores, [(first + second)[2] / 2], rtol=1e-5)
    with pytest.raises(Error, match="takes no proposals"):
        load(net)(PICTURE, proposals=[[0, 0, 9, 9]])
    net.params["cls_1st"][1].data[1] = np.nan
    with pytest.raises(Error, match='NaN or infinite in "cls_prob_2nd_avg"'):
        load(net)(PICTURE)


def test_the_command_runs_a_cascade() -> None:
    cascade().save("cascade.caffemodel")
    Image.fromarray(PICTURE).save("photo.png")
    words = ["detect", "cascade.prototxt", "cascade.caffemodel", "photo.png", "--threshold"]
    result = CliRunner().invoke(main, [*words, "0.5"])
    assert result.exit_code == 0 and "class 2  0.606  x1   12.9  y1   10.5" in result.output, result.output
    result = CliRunner().invoke(main, [*words, "0.9"])
    assert "nothing reaches --threshold 0.9: the best score is 0.605" in result.output
    size = "Preprocessing: short side 600, long side at most 1000, sides multiples of"
    assert f"{size} 32, means 102.98,115.947,122.772, NMS 0.3 (--cfg" in result.output
    Path("cascade.yml").write_text("TEST: { SCALE_MULTIPLE_OF: 48, NMS: 0.4 }")
    result = CliRunner().invoke(main, [*words, "0.9", "--cfg", "cascade.yml"])
    assert f"{size} 48, means 102.98,115.947,122.772, NMS 0.4 (from cascade.yml)" in result.output


def proposals(left: list[int], top: float, height: float, slope: float = 0) -> np.ndarray:
    return np.array([[x, top + slope * x, x + 15, top + slope * x + height - 1] for x in left], np.float32)


def test_proposals_are_joined_to_lines() -> None:
    """Two rows of words, the second one sloping; a gap of more than 50 pixels parts a line."""
    first, second = proposals([0, 16, 32, 64], 10, 20), proposals([0, 16, 32, 100, 116, 132], 100, 20, 0.125)
    boxes = np.concatenate([first, second])
    scores = np.linspace(0.99, 0.9, len(boxes)).astype(np.float32)
    lines = text_lines(boxes, scores, (200, 300), threshold=0)
    # the edges are fitted to the left ends, and taken 7.5 pixels inside of the line's: at 7.5, 39.5, 107.5 and 139.5
    wanted = [[0, 10, 79, 29], [0, 100.9375, 47, 123.9375], [100, 113.4375, 147, 136.4375]]
    np.testing.assert_allclose(lines[np.lexsort((lines[:, 0], lines[:, 1])), :4], wanted, atol=1e-3)
    assert chains(boxes, scores) == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    low = scores.copy()
    low[:4] = 0.5
    assert len(text_lines(boxes, low, (200, 300), threshold=0)) == 2


def test_what_is_no_line() -> None:
    tall = proposals([0, 16], 0, 90)
    other_height = np.concatenate([proposals([0], 0, 30), proposals([16], 0, 20)])
    for boxes in (tall, other_height, tall[:0], tall[:1]):
        scores = np.full(len(boxes), 0.9, np.float32)
        assert text_lines(boxes, scores, (100, 100), threshold=-1).shape == (0, 5)


@given(st.integers(3, 30), st.integers(0, 5))
def test_a_line_spans_its_proposals(count: int, seed: int) -> None:
    """In any order."""
    order = np.random.default_rng(seed).permutation(count)
    boxes = proposals([16 * i for i in range(count)], 5, 12)[order]
    (line,) = text_lines(boxes, np.full(count, 0.9, np.float32), (60, 16 * count), threshold=-1)
    np.testing.assert_allclose(line[:4], [0, 5, 16 * count - 1, 16], atol=1e-3)


def test_a_ctpn_through_detect_and_read() -> None:
    """A bright band, 600 pixels high after scaling, is found as one line of anchors 33 pixels high."""
    Path("ctpn.prototxt").write_text(CTPN)
    net = Net("ctpn.prototxt", TEST)
    assert Ctpn().matches(net)
    for name in ("score", "move"):
        for blob in net.params[name]:
            blob.data[...] = 0
    net.params["score"][0].data[13, :, 0, 0] = 1 / 500
    net.save("ctpn.caffemodel")
    photo = np.full((600, 800, 3), 100, np.uint8)
    photo[304:320, 160:400] = 255
    photo[304:320, 160:176] = 240  # a worse proposal: of equal ones all scores are scaled to 0
    Image.fromarray(photo).save("photo.png")
    with pytest.raises(Error, match=r"classes: 3 classes with the background, but text of ctpn.prototxt has 2"):
        load(net, classes=["background", "text", "cat"])
    found = load(net, threshold=0)(photo)
    np.testing.assert_allclose(found.boxes[0], [160, 296, 399, 328], atol=1)
    net.params["score"][0].data[13] = np.nan
    with pytest.raises(Error, match='NaN or infinite in "scores"'):
        load(net, threshold=0)(photo)
    result = CliRunner().invoke(main, ["detect", "ctpn.prototxt", "ctpn.caffemodel", "photo.png", "--threshold", "0"])
    assert result.exit_code == 0 and "text  0.933  x1  160.0" in result.output, result.output
    result = CliRunner().invoke(main, ["detect", "ctpn.prototxt", "ctpn.caffemodel", "photo.png", "--threshold", "1"])
    assert "Preprocessing: short side 600, long side at most 1000, means 102.98,115.947,122.772 (--cfg" in result.output
    words = ["read", "ctpn.prototxt", "ctpn.caffemodel", "photo.png"]
    printed = CliRunner().invoke(main, words).stdout
    assert printed == "photo.png: 1 line of text\n  0.933  x1  160.0  y1  295.5  x2  399.0  y2  327.5\n"
    (read,) = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert read == {"image": "photo.png", "lines": [{"score": 0.9333, "box": [160.0, 295.5, 399.0, 327.5]}]}


def test_what_a_cascade_and_a_ctpn_are_given() -> None:
    settings = settings_from({"PIXEL_MEANS": [[list(MEANS)]]})
    net = cascade()
    Cascade().find(net, COLOURED, FindOptions(settings=settings))
    assert net.blobs["data"].shape == (1, 3, 608, 896)
    check_planes(net, "data", CENTRED)
    Path("ctpn.prototxt").write_text(CTPN)
    text = Net("ctpn.prototxt", TEST)
    Ctpn().find(text, COLOURED, FindOptions(settings=settings))
    assert text.blobs["data"].shape == (1, 3, 600, 900)
    np.testing.assert_array_equal(text.blobs["im_info"].data, [[600, 900, 15]])
    check_planes(text, "data", CENTRED)


def joined_mtcnn() -> str:
    for name, text in MTCNN.items():
        Path(name).write_text(text)
    return to_text(joined(read_net("det1.prototxt")).param)


@pytest.mark.filterwarnings("ignore:.*SSH reads its limits")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_no_other_family_comes_first_for_a_familys_net(family: Family) -> None:
    """FAMILIES are asked in their order, so a net of each is found whatever the others match."""
    nets = {
        "Ssd": SSD, "Yolo1": f"{BLOB.replace('4 dim: 6', '448 dim: 448')} {pooled(64, 30)} {reshaped(1470)}",
        "Yolo2": f"{BLOB.replace('4 dim: 6', '64 dim: 64')} {pooled(32, 14)}",
        "Mscnn": f"{BLOB.replace('4 dim: 6', '64 dim: 64')} {MSCNN}",
        "SqueezeDet": f"{BLOB.replace('4 dim: 6', '60 dim: 60')} {squeeze_det(30, 2, 2, 4)}",
        "DetectNet": DETECT_NET,
        "UltraFace": ULTRA_FACE, "Cascade": CASCADE, "Ctpn": CTPN, "Ssh": SSH, "Mtcnn": joined_mtcnn(), "Rcnn": DETECTOR,
    }  # fmt: skip
    anchors = {"Yolo2": [1, 0.5, 2, 2], "SqueezeDet": [8, 8, 20, 10]}
    settings = settings_from({"TEST": {"ANCHORS": given}} if (given := anchors.get(type(family).__name__)) else {})
    assert family_of(Net(parse_net(nets[type(family).__name__], "net.prototxt"), TEST, settings=settings)) is family


class Means(RowsFamily):
    """Nets whose one output is a Sigmoid's: a box of class 1 around the image, with the mean as its score."""

    names = ("Means",)

    def end(self, net: Net) -> RowsEnd | None:
        last = last_output(net)
        if last is None or not isinstance(last.layer, Sigmoid):
            return None
        return RowsEnd(
            last.name, [last.name], 2, lambda arrays: np.array([[0, 1, arrays[0].mean(), 0, 0, 1, 1]]), "a Means net"
        )


def test_a_family_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """load, the command and its messages know it by its place in FAMILIES alone."""
    Path("means.prototxt").write_text(f'{BLOB} layer {{ name: "up" type: "Sigmoid" bottom: "data" top: "up" }}')
    Image.fromarray(PICTURE).save("photo.png")
    with pytest.raises(Error, match="a detector's inputs are data and im_info"):
        load("means.prototxt")
    monkeypatch.setattr(families, "FAMILIES", (Means(), *FAMILIES))
    found = load("means.prototxt", means=(104, 104, 104), scale_factor=0.005)(PICTURE)
    assert found.boxes.tolist() == [[0, 0, 59, 39]] and found.scores == pytest.approx([0.5])
    words = ["detect", "means.prototxt", "--random-weights", "photo.png", "--mean", "104,104,104", "--scale-factor", "0.005"]
    assert "class 1  0.500  x1    0.0  y1    0.0  x2   59.0  y2   39.0" in CliRunner().invoke(main, words).output
    refused = CliRunner().invoke(main, [*words, "--nms", "0.5"]).output
    assert "--nms does nothing here: the script of a Means net fixes the input size and NMS" in refused
