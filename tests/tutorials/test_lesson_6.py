"""What the text of lesson 6 claims, computed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from minicaffe import TEST, Net, ops
from minicaffe.blob import Array
from minicaffe.data.images import load_image
from minicaffe.data.settings import read_settings
from minicaffe.detection import load
from minicaffe.detection.detect import Detections
from minicaffe.tracing.summary import summarize

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ROOT / "examples" / "shapes"
CELLS = json.loads((ROOT / "docs" / "tutorials" / "6-two-heads.ipynb").read_text(encoding="utf-8"))["cells"]
TEXT = " ".join(" ".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown").split())
SQUARE = 2


def run(kind: str) -> tuple[Net, Detections]:
    settings = read_settings(SHAPES / "shapes.yml")
    net = Net(SHAPES / kind / "test.prototxt", TEST, weights=SHAPES / kind / f"shapes_{kind}.caffemodel", settings=settings)
    return net, load(net)(load_image(SHAPES / "scene.png"))


@pytest.fixture(scope="module")
def rfcn() -> Net:
    return run("rfcn")[0]


@pytest.fixture(scope="module")
def faster() -> tuple[Net, Detections]:
    return run("faster_rcnn")


def multiply_adds(kind: str, *names: str) -> int:
    """Return the multiply-adds of layers for one roi of the photo. It reshapes a net of its own."""
    return sum(layer.multiply_adds or 0 for layer in summarize(run(kind)[0], rois=1).layers if layer.name in names)


def roi_of_square(net: Net) -> Array:
    """Return the roi (5,) with the highest probability of square."""
    best = int(net.blobs["cls_prob"].data[:, SQUARE].argmax())
    roi: Array = net.blobs["rois"].data[best].copy()
    return roi


def table(net: Net, roi: Array) -> Array:
    """Return the means of the nine maps of square (rows) over the nine bins (columns)."""
    maps = net.blobs["rfcn_cls"].data[:, 9 * SQUARE : 9 * SQUARE + 9]
    rows = [ops.ps_roi_pool(np.repeat(maps[:, [m]], 9, axis=1), roi[None], 3, 1 / 8) for m in range(9)]
    return np.array(rows).reshape(9, 9)


def test_the_fully_connected_head_is_cheaper_for_each_number_of_rois(faster: tuple[Net, Detections]) -> None:
    net, _ = faster
    votes = multiply_adds("rfcn", "conv_new_1", "rfcn_cls", "rfcn_bbox")
    each = multiply_adds("faster_rcnn", "fc9", "cls_score", "bbox_pred")
    rois, most = len(net.blobs["rois"].data), net.settings.test.rpn_post_nms_top_n
    assert votes == 90_091_008
    assert each == 207_360
    assert rois < most == 300 < votes / each
    assert f"The lines meet at {votes / each:.0f} rois. The net never has more than {most}." in TEXT
    assert f"always the cheaper one: {most * each:,.0f} multiply-adds against {votes:,}" in TEXT


def test_vgg16s_head_is_dearer() -> None:
    each = 512 * 7 * 7 * 4096 + 4096 * 4096 + 4096 * 5 * 21
    votes = 38 * 63 * (9 * 512**2 + 512 * 7 * 7 * 5 * 21)
    assert votes / (300 * each) == pytest.approx(1 / 3, abs=0.005)
    assert "With 300 rois, votes cost a third" in TEXT


def test_the_own_bin_ranks_first_on_all_nine_maps(rfcn: Net) -> None:
    found = table(rfcn, roi_of_square(rfcn))
    assert found.argmax(axis=1).tolist() == list(range(9))
    assert "On all nine." in TEXT


def test_the_votes_fall_as_the_roi_moves(rfcn: Net) -> None:
    roi = roi_of_square(rfcn)
    left = [table(rfcn, roi - np.array([0, step, 0, step, 0], np.float32)) for step in (0, 10, 70)]
    scores = [np.diag(each).mean() for each in left]
    assert scores[1] > scores[0] > 0 > scores[2]
    assert not (left[2].argmax(axis=1) == np.arange(9)).any()
    assert "The first 10 pixels do no harm: the score even rises a little. By half the width, no map has its maximum" in TEXT
    half = (roi[3] - roi[1]) / 2
    assert half == pytest.approx(70, abs=2)
    moved = roi + np.array([0, half, 0, half, 0], np.float32)
    right = ops.ps_roi_pool(rfcn.blobs["rfcn_cls"].data, moved[None], 3, 1 / 8)
    assert (right[0, SQUARE] < 0).all()
    assert "None of them does." in TEXT
    assert f"The roi of the square is {roi[3] - roi[1] + 1:.0f} pixels wide" in TEXT


def test_two_detections_of_two_classes_share_a_place(faster: tuple[Net, Detections]) -> None:
    _, found = faster
    circles, squares = (found.boxes[found.classes == k].astype(np.float64) for k in (1, SQUARE))
    assert ops.bbox_overlaps(circles, squares).max() > 0.8
    assert "finds a circle and a square at nearly the same place" in TEXT
