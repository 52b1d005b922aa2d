"""Detection with a DetectNet, by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from detector_nets import DETECT_NET
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.detection import load
from minicaffe.errors import Error

PHOTO = np.full((96, 128, 3), 127, np.uint8)
WORDS = ["detect", "detect.prototxt", "detect.caffemodel", "photo.png"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(PHOTO).save("photo.png")


def detect_net(bias: tuple[float, float] = (-9, 9)) -> Net:
    """All twelve cells have a box from (3, 2) to (20, 30) beyond their corners; their mean is (27, 18) to (44, 46)."""
    Path("detect.prototxt").write_text(DETECT_NET)
    net = Net("detect.prototxt", TEST)
    for name, values in (("cvg/classifier", bias), ("bbox/regressor", (3, 2, 20, 30))):
        net.params[name][0].data[...], net.params[name][1].data[...] = 0, values
    return net


def test_the_boxes_are_the_lists_in_pixels_of_the_image() -> None:
    found = load(detect_net())(PHOTO)
    assert found.boxes.tolist() == [[54, 36, 88, 92]] and found.classes.tolist() == [2]
    assert found.scores == pytest.approx([math.log(12)], rel=1e-3)  # the list has half precision
    both = load(detect_net((9, 9)))(PHOTO)
    assert both.classes.tolist() == [1, 2] and both.boxes.tolist() == [[54, 36, 88, 92]] * 2
    none = load(detect_net((-9, -9)))(PHOTO)
    assert not len(none.boxes) and none.best == 0


def test_the_net_takes_the_pixels_as_they_are() -> None:
    """The published deploy net subtracts 127 itself."""
    net = detect_net()
    load(net)(PHOTO)
    assert (net.blobs["data"].data == 127).all() and not net.blobs["pool"].data.any()


def test_the_command() -> None:
    detect_net().save("detect.caffemodel")
    Path("names.txt").write_text("car\ndog\n")
    result = CliRunner().invoke(main, [*WORDS, "--draw", "drawn", "--classes", "names.txt"])
    assert "  dog  2.484  x1   54.0  y1   36.0  x2   88.0  y2   92.0\n" in result.output, result.output
    assert Path("drawn/photo.png").is_file()
    refused = CliRunner().invoke(main, [*WORDS, "--nms", "0.5"]).output
    assert "--nms does nothing here: the prototxt of a DetectNet fixes the input size and NMS" in refused


def test_a_net_of_nan_is_an_error() -> None:
    with pytest.raises(Error, match="coverage"):
        load(detect_net((math.nan, 9)))(PHOTO)
