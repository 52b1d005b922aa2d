"""Detection with nets whose end a script decodes: YOLO v1, YOLO v2 without its last layer, MS-CNN, SqueezeDet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from detector_nets import MSCNN, pooled, reshaped, squeeze_det
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.data.settings import DetectionSettings, SettingsError, settings_from
from minicaffe.detection import load
from minicaffe.detection.class_names import VOC
from minicaffe.detection.families import family_of, rows_end
from minicaffe.detection.mscnn import proposal_rows
from minicaffe.detection.squeeze_det import ANCHORS, anchor_rows
from minicaffe.detection.yolo import cell_rows, map_rows, region_rows, yolo1_corners
from minicaffe.errors import Error
from minicaffe.layers.forks.squeezedet import grid

WILD = Path(__file__).resolve().parents[3] / "shared" / "wild"
SIZE = (120, 200)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(text: str, side: int, cfg: dict[str, object] | None = None) -> Net:
    """A net of these layers whose weights are zero, for an image of side x side."""
    Path("net.prototxt").write_text(f'input: "data" input_shape {{ dim: 1 dim: 3 dim: {side} dim: {side} }} {text}')
    net = Net("net.prototxt", TEST, settings=settings_from(cfg or {}))
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = 0
    return net


def bright(side: int, cell: int, row: int, column: int) -> np.ndarray:
    """A photo of side x side, the means' colour but for one cell, which is brighter by 100."""
    photo = np.full((side, side, 3), (104, 117, 123), np.uint8)
    photo[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] += 100
    return photo


def yolo1() -> Net:
    """In a bright cell two boxes of class 12 of 20: 0.9 and 0.6 sure, each 1/4 x 4/25 of the image."""
    net = made(pooled(64, 30) + reshaped(1470), 448)
    values = np.zeros(30)
    values[11], values[20:22] = 1, [0.9, 0.6]
    values[22:30] = [0.5, 0.25, 0.5, 0.4, 0.75, 0.25, 0.5, 0.4]
    net.params["cells"][0].data[:, 0, 0, 0] = values / 100
    return net


def test_a_yolo1_of_a_map() -> None:
    """Cell (2, 4) of 7 x 7: the centre is ((4 + 0.5) / 7, (2 + 0.25) / 7). The second box is 1/28 of the image to the right."""
    detector = load(yolo1(), threshold=0.2)
    found = detector(bright(448, 64, 2, 4))
    x, y, half = 448 * 4.5 / 7, 448 * 2.25 / 7, np.array([448 / 8, 448 * 0.08])
    np.testing.assert_allclose(found.boxes, [[x - half[0], y - half[1], x + half[0], y + half[1]]], rtol=1e-5)
    np.testing.assert_allclose(found.scores, [0.9], rtol=1e-5)
    assert found.classes.tolist() == [12] and detector.classes == VOC and VOC[12] == "dog"
    assert found.best == pytest.approx(0.9)


def numbers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Class probabilities (49, 20), confidences (49, 2) and boxes (49, 2, 4); cells 9 and 30 have objects of class 3 and 7."""
    classes, confidences, boxes = np.zeros((49, 20)), np.zeros((49, 2)), np.full((49, 2, 4), 0.1)
    classes[9, 3], classes[30, 7], classes[30, 2] = 0.8, 0.5, 0.4
    confidences[9, 1], confidences[30, 0] = 1, 1
    boxes[9, 1], boxes[30, 0] = [0.5, 0, 0.5, 0.2], [0.1, 0.6, 0.3, 0.4]
    return classes, confidences, boxes


FOUND = [
    [2.5 / 7 - 0.125, 1 / 7 - 0.02, 2.5 / 7 + 0.125, 1 / 7 + 0.02],
    [2.1 / 7 - 0.045, 4.6 / 7 - 0.08, 2.1 / 7 + 0.045, 4.6 / 7 + 0.08],
]


def test_the_two_orders_of_yolo1s_numbers() -> None:
    """Of a map each number of all cells; of an inner product the numbers of each cell. Cell 9 is (1, 2), cell 30 (4, 2)."""
    classes, confidences, boxes = numbers()
    by_map = np.concatenate([classes.T.ravel(), confidences.T.ravel(), boxes.transpose(1, 2, 0).ravel()])[None].astype(
        np.float32
    )
    by_cell = np.concatenate([part.ravel() for part in (classes, confidences, boxes)])[None].astype(np.float32)
    for rows in (map_rows([by_map]), cell_rows([by_cell])):
        kept = rows[rows[:, 2] > 0.1]
        np.testing.assert_allclose(kept[:, :3], [[0, 4, 0.8], [0, 8, 0.5]], rtol=1e-6)
        np.testing.assert_allclose(kept[:, 3:], FOUND, rtol=1e-5)


def test_yolo1s_suppressions() -> None:
    """Two boxes of different classes, of which one holds the other: their overlap is 4 / 9, but above 0.7 with 1 added to each
    side as parts of the image."""
    classes, confidences, boxes = numbers()
    classes[30], confidences[30] = 0, 0
    classes[10, 5], confidences[10, 0], boxes[10, 0] = 0.7, 1, [-0.5, 0, 0.5, 0.3]  # cell (1, 3): the centre of cell 9's box
    by_cell = np.concatenate([part.ravel() for part in (classes, confidences, boxes)])[None].astype(np.float32)
    by_map = np.concatenate([classes.T.ravel(), confidences.T.ravel(), boxes.transpose(1, 2, 0).ravel()])[None].astype(
        np.float32
    )
    assert cell_rows([by_cell])[:2, 1].tolist() == [4, 6]  # 0.01 / 0.0225
    assert map_rows([by_map])[0, 1] == 4 and 6 not in map_rows([by_map])[:, 1]


@given(st.integers(0, 99))
def test_yolo1s_centres_lie_in_their_cells(seed: int) -> None:
    boxes = np.random.default_rng(seed).uniform(0.01, 0.99, (49, 2, 4))
    corners = yolo1_corners(boxes).reshape(7, 7, 2, 4)
    centre = (corners[..., :2] + corners[..., 2:]) / 2 * 7
    assert (np.floor(centre[..., 0]) == np.arange(7)[None, :, None]).all()
    assert (np.floor(centre[..., 1]) == np.arange(7)[:, None, None]).all()
    np.testing.assert_allclose(corners[..., 2:] - corners[..., :2], boxes.reshape(7, 7, 2, 4)[..., 2:] ** 2, atol=1e-12)


def test_a_yolo1_of_an_inner_product() -> None:
    text = """layer { name: "map" type: "Pooling" bottom: "data" top: "map" pooling_param { global_pooling: true pool: AVE } }
      layer { name: "fc" type: "InnerProduct" bottom: "map" top: "result" inner_product_param { num_output: 1470 } }"""
    net = made(text, 448)
    net.params["fc"][1].data[...] = np.concatenate([part.ravel() for part in numbers()])
    found = load(net, threshold=0.2)(np.zeros((30, 70, 3), np.uint8))
    np.testing.assert_allclose(found.boxes, np.array(FOUND) * [70, 30, 70, 30], rtol=1e-5)
    assert found.classes.tolist() == [4, 8]
    with pytest.raises(Error, match="a detector's inputs are data and im_info"):
        load(made(text.replace("1470", "1000"), 448))


def test_another_yolo1_is_refused() -> None:
    net = made(pooled(64, 14) + reshaped(686), 448)
    wanted = r'"flat" has 686 numbers, 14 for each of 7 x 7 cells, of an image of 448 x 448; detect supports YOLO v1 with 1470 '
    with pytest.raises(Error, match=wanted):
        load(net)
    assert rows_end(net) is None
    with pytest.raises(Error, match=r"cfg has no effect: the script of a YOLO v1 fixes the input size and NMS"):
        load(yolo1().file, cfg={"TEST": {"NMS": 0.4}})


def region(anchors: list[float], channels: int = 14, side: int = 64) -> Net:
    net = made(pooled(32, channels), side, {"TEST": {"ANCHORS": anchors}} if anchors else None)
    net.params["cells"][0].data[4, :, 0, 0] = 0.1
    net.params["cells"][1].data[:8] = [0, 0, 0, 0, -9, 0, 5, 0]
    return net


def test_a_yolo2_without_its_end() -> None:
    """Cell (1, 0) of 2 x 2, the first of two anchors, 1 x 0.5 cells; class 2 of 2."""
    net = region([1, 0.5, 2, 2])
    found = load(net)(bright(64, 32, 1, 0))
    np.testing.assert_allclose(found.boxes, [[0, 40, 32, 56]], rtol=1e-5)
    score = 1 / (1 + np.exp(-(30 - 9))) / (1 + np.exp(-5))
    assert found.classes.tolist() == [2] and found.scores == pytest.approx([score])
    assert family_of(net).classes(net).number == 3
    with pytest.raises(Error, match=r"net\.prototxt: a YOLO v2 takes no proposals"):
        load(net)(np.zeros((40, 60, 3), np.uint8), proposals=[[0, 0, 9, 9]])


def test_yolo2s_suppression_is_of_all_classes() -> None:
    """Of two boxes of one cell, the one inside of the other and half as large."""
    x = np.zeros((1, 14, 1, 1), np.float32)
    x[0, [4, 5, 11, 13]] = np.array([2, 3, 1, 3])[:, None, None]
    rows = region_rows([x], np.array([[1, 1], [0.5, 1]], np.float32))
    np.testing.assert_allclose(rows[:, 1], [1])
    assert len(region_rows([x], np.array([[1, 1], [0.4, 1]], np.float32))) == 2


def test_yolo2s_anchors() -> None:
    net = made(pooled(32, 70), 416)
    assert family_of(net).classes(net).number == 10
    with pytest.raises(
        Error, match=r'"cells" has 14 numbers for each of 2 x 2 cells: if they are a YOLO v2.s, give its anchors'
    ):
        load(region([]))
    with pytest.raises(Error, match=r"2 x 2 cells: a YOLO v2 with 3 anchors has 3 times 5 \+ its classes"):
        load(region([1, 1, 2, 2, 3, 3]))
    with pytest.raises(SettingsError, match=r"TEST.ANCHORS must be pairs of a width and a height, got 3 numbers"):
        region([1, 1, 2])
    with pytest.raises(SettingsError, match=r"TEST.ANCHORS must be > 0"):
        region([1, -1])


def test_the_command_takes_anchors() -> None:
    region([1, 0.5, 2, 2]).save("net.caffemodel")
    Image.fromarray(bright(64, 32, 1, 0)[..., ::-1]).save("photo.png")
    words = ["detect", "net.prototxt", "net.caffemodel", "photo.png"]
    result = CliRunner().invoke(main, [*words, "--anchors", "1,0.5,2,2"])
    assert "class 2  0.993  x1    0.0  y1   40.0  x2   32.0  y2   56.0" in result.output, result.output
    assert "give its anchors in cells (--anchors" in CliRunner().invoke(main, words).output
    assert "--anchors 1,x: give pairs" in CliRunner().invoke(main, [*words, "--anchors", "1,x"]).output
    Path("net.yml").write_text("TEST: { ANCHORS: [1, 0.5, 2, 2] }")
    assert CliRunner().invoke(main, [*words, "--cfg", "net.yml"]).output.split(" in ")[0] == result.output.split(" in ")[0]
    Path("net.yml").write_text("PIXEL_MEANS: [1, 2, 3]")
    refused = CliRunner().invoke(main, [*words, "--cfg", "net.yml", "--anchors", "1,0.5,2,2"])
    assert "--cfg net.yml: PIXEL_MEANS of cfg has no effect: the script of a YOLO v2" in refused.output
    refused = CliRunner().invoke(main, [*words, "--anchors", "1,0.5,2,2", "--nms", "0.4"])
    assert "--nms does nothing here: the script of a YOLO v2 fixes the input size and NMS" in refused.output
    yolo1().save("net.caffemodel")
    refused = CliRunner().invoke(main, [*words, "--anchors", "1,1"])
    assert "--anchors does nothing here: only a SqueezeDet, and a YOLO v2 without its last layer" in refused.output


def rows_of(rois: list[list[float]], scores: list[list[float]], deltas: list[list[float]], **train: object) -> np.ndarray:
    arrays = np.array(rois).reshape(-1, 6, 1, 1), np.array(scores, float), np.array(deltas, float)
    return proposal_rows([array.astype(np.float32) for array in arrays], SIZE, settings_from({"TRAIN": train}))


ROI = [0, 10, 20, 50, 100, 3]
"""40 x 80 pixels around (30, 60)."""


def test_mscnns_boxes_by_hand() -> None:
    """0.1 of its size to the right and up, and twice as wide: 80 x 80 around (34, 52). What is left of the image moves it."""
    moves = [9, 9, 9, 9, 1, -1, np.log(2) / 0.2, 0]
    (row,) = rows_of([ROI], [[1, 3]], [moves])
    np.testing.assert_allclose(row, [0, 1, 1 / (1 + np.exp(-2)), 0, 12 / 120, 80 / 200, 92 / 120], rtol=1e-5, atol=1e-7)
    (row,) = rows_of([ROI], [[1, 3]], [[0] * 4 + [0.25, 0, 0, 0]], BBOX_NORMALIZE_TARGETS=False)
    np.testing.assert_allclose(row[3:], [20 / 200, 20 / 120, 60 / 200, 100 / 120], rtol=1e-5)
    (row,) = rows_of([ROI], [[1, 3]], [[0] * 8], BBOX_NORMALIZE_MEANS=[0, 0.25, 0, 0])
    np.testing.assert_allclose(row[3:], [10 / 200, 40 / 120, 50 / 200, 1], rtol=1e-5)


def test_mscnns_proposals_and_suppression() -> None:
    """Without width, or far below the background: no box. Each class is suppressed by itself, above an overlap of 0.5."""
    flat, bad, near, far = [0, 10, 20, 10, 100, 3], [*ROI[:5], -11], [0, 10, 40, 50, 100, 2], [0, 10, 61, 50, 100, 1]
    rows = rows_of([flat, bad, ROI, near, far], [[0, 2, 2]] * 2 + [[0, 2, 1], [0, 1, 1], [0, 1, 1]], [[0] * 12] * 5)
    assert rows[:, 1].tolist() == [1, 1, 2]  # of class 1 near shares 60 / 80 with ROI, far 39 / 80; of class 2 near is the best
    np.testing.assert_allclose(rows[:, 4], [20 / 120, 61 / 120, 40 / 120], rtol=1e-6)


@given(st.integers(0, 99))
def test_mscnns_boxes_lie_in_the_image(seed: int) -> None:
    random = np.random.default_rng(seed)
    rois = np.column_stack([np.zeros(5), np.sort(random.uniform(0, 90, (5, 2, 2)), axis=1).reshape(5, 4), np.zeros(5)])
    rows = rows_of(rois.tolist(), random.normal(size=(5, 3)).tolist(), random.normal(0, 30, (5, 12)).tolist())
    assert (rows[:, 3:5] >= 0).all() and (rows[:, 5:] <= 1 + 1e-6).all() and np.isfinite(rows).all()


def test_an_mscnn() -> None:
    """One proposal, the bright cell; twice its size in the photo."""
    net = made(MSCNN, 64)
    net.params["cells"][0].data[1, 0] = 0.1
    net.params["cells"][1].data[0] = 8
    net.params["cls_pred"][1].data[1] = 3
    net.params["bbox_pred"][1].data[4] = 10  # its width to the right
    photo = np.kron(bright(64, 16, 1, 2), np.ones((2, 2, 1), np.uint8))
    found = load(net)(photo)
    x, y = net.blobs["proposals_score"].data[0, 1:3, 0, 0]
    np.testing.assert_allclose(found.boxes, [[2 * x + 32, 2 * y, min(2 * x + 64, 127), 2 * y + 32]], rtol=1e-5)
    assert found.classes.tolist() == [1] and found.scores == pytest.approx([1 / (1 + np.exp(-3))])
    net.save("net.caffemodel")
    raw = load("net.prototxt", "net.caffemodel", cfg={"TRAIN": {"BBOX_NORMALIZE_STDS": [0.05, 0.05, 1, 1]}})(photo)
    np.testing.assert_allclose(raw.boxes[0, 0], 2 * x + 16, rtol=1e-5)
    with pytest.raises(
        Error, match=r"TEST.NMS, TEST.ANCHORS of cfg has no effect: the script of an MS-CNN fixes the input size"
    ):
        load("net.prototxt", cfg={"TEST": {"NMS": 0.4, "ANCHORS": [1, 2]}})
    net.params["bbox_pred"][1].data[4] = np.nan
    with pytest.raises(Error, match='NaN or infinite in "bbox_pred"'):
        load(net)(photo)
    with pytest.raises(Error, match=r"in cls_pred and deltas .* in bbox_pred; this net's are \(\d+, 2\) and \(\d+, 4\)"):
        load(made(MSCNN.replace("num_output: 8", "num_output: 4"), 64))


def test_a_squeeze_det() -> None:
    """The bright cell (0, 1) of 2 x 2 stands for column 1, row 2, as in InferBbox: (20, 40) of 60 pixels. Its second anchor,
    20 x 10, goes by a tenth of its sizes to (22, 41), and is twice as high; class 1 of 2."""
    net = made(squeeze_det(30, 2, 2, 4), 60, {"TEST": {"ANCHORS": [8, 8, 20, 10]}})
    weight, bias = net.params["cells"]
    bias.data[2:6] = [3, 0, -20, -20]  # the second anchor's classes, both confidences
    weight.data[5, :, 0, 0] = 0.1
    bias.data[10:14] = [0.1, 0.1, np.log(2), 0]
    found = load(net)(bright(60, 30, 0, 1))
    np.testing.assert_allclose(found.boxes, [[12, 31, 32, 51]], rtol=1e-5)
    assert found.classes.tolist() == [1]
    np.testing.assert_allclose(found.scores, [1 / (1 + np.exp(-3)) / (1 + np.exp(-10))], rtol=1e-5)
    bias.data[10] = np.inf
    with pytest.raises(Error, match='NaN or infinite in "deltas"'):
        load(net)(bright(60, 30, 0, 1))
    with pytest.raises(Error, match=r"class_scores 8x2; conf_scores 2x2x2; deltas 2x2x8 has 2 anchors.*, got 3"):
        load(made(squeeze_det(30, 2, 2, 4), 60, {"TEST": {"ANCHORS": [1] * 6}}))
    with pytest.raises(Error, match=r"has 2 anchors, a width and a height in pixels of the input each, got 0 \(--anchors"):
        load(made(squeeze_det(30, 2, 2, 4), 60))
    wrong = squeeze_det(30, 2, 2, 4).replace("dim: 8 dim: 2", "dim: 4 dim: 4")
    with pytest.raises(
        Error, match=r"a SqueezeDet of A anchors has classes .*; this net has class_scores 4x4; conf_scores 2x2x2"
    ):
        load(made(wrong, 60))


def test_squeeze_dets_published_shapes_have_anchors_and_64_boxes() -> None:
    end = rows_end(made(squeeze_det(16, 9, 20, 529, kernel=64), 416))
    assert end is not None and end.classes == 21 and end.blobs == ["class_scores", "conf_scores", "deltas"]
    random = np.random.default_rng(0)
    shapes = (1, 4761, 20), (1, 23, 23, 9), (1, 23, 23, 36)
    rows = end.decode([random.uniform(size=shape).astype(np.float32) for shape in shapes])
    assert rows.shape == (64, 7) and (np.diff(rows[:, 2]) <= 0).all()
    anchors = grid(np.array([[30.0, 20]]), 1, 1, 60)
    (row,) = anchor_rows([np.ones((1, 1, 1)), np.full((1, 1, 1, 1), 0.25), np.array([[[[1.0, 0, 0, 0]]]])], anchors, 60)
    np.testing.assert_allclose(row, [0, 1, 0.25, 45 / 60, 20 / 60, 59 / 60, 40 / 60], rtol=1e-6)
    assert len(ANCHORS) == 18


@pytest.mark.skipif(not WILD.is_dir(), reason="../shared/wild is absent")
@pytest.mark.parametrize(
    ("file", "name", "classes"),
    [
        ("yeahkun__caffe-yolo/examples/yolo/gnet_deploy.prototxt", "regression", 21),
        ("gklz1982__caffe-yolov2/examples/indoor/eval_detection/deploy.prototxt", "conv22", 10),
        ("opencv__opencv_contrib/modules/dnn_objdetect/samples/data/SqueezeDet_deploy.prototxt", "class_scores", 21),
        ("zhaoweicai__mscnn/examples/caltech/mscnn-7s-480/mscnn_deploy.prototxt", "cls_pred", 2),
    ],
)
def test_published_nets_are_known(file: str, name: str, classes: int) -> None:
    end = rows_end(Net(str(WILD / file), TEST, settings=DetectionSettings()))
    assert end is not None and (end.name, end.classes) == (name, classes)
