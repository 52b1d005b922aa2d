"""BoxData."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, make_database
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from minicaffe import Net, set_random_seed
from minicaffe.data.box_labels import boxes_of, cells_of_boxes, random_part, rows_of_boxes
from minicaffe.errors import DataError, LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST, TRAIN
from minicaffe.proto import caffe_pb2

pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")

BOXES = [[2, 0, 0.5, 0.25, 0.5, 0.25], [1, 1, 0.875, 0.75, 0.25, 0.5], [0, 0, 0.9375, 0.75, 0.125, 0.25]]


def pixels(i: int = 0) -> np.ndarray:
    """Blue tells the column, green the row, red the image."""
    image = np.full((12, 16, 3), 20 * i, np.uint8)
    image[:, :, 0], image[:, :, 1] = 10 * np.arange(16), 10 * np.arange(12)[:, None]
    return image


def item(boxes: list[list[float]], i: int = 0, image: np.ndarray | None = None) -> caffe_pb2.Datum:
    content = BytesIO()
    Image.fromarray((pixels(i) if image is None else image)[:, :, ::-1]).save(content, "PNG")
    return caffe_pb2.Datum(encoded=True, data=content.getvalue(), float_data=np.ravel(boxes))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_database("two", [item(BOXES), item(BOXES[:1], 1)])


def net(more: str = "side: 2", tops: int = 2, phase: int = TEST, fork: str = "yolov1", transform: str = "", **file: str) -> Net:
    set_random_seed(1)
    return Net(parse_net(text(more, tops, transform, **file), file="data.prototxt"), phase, fork=fork)


def text(more: str = "side: 2", tops: int = 2, transform: str = "", source: str = "two", rest: str = "") -> str:
    names = " ".join(f'top: "t{i}"' for i in range(tops))
    return (
        f'layer {{ name: "in" type: "BoxData" {names} transform_param {{ {transform} }}\n'
        f'data_param {{ source: "{source}" backend: LMDB batch_size: 2 {more} }} }} {rest}'
    )


def test_labels_of_cells_by_hand() -> None:
    data, labels = batches(net(transform="scale: 0.5 mean_value: 2"), 1)[0]
    np.testing.assert_array_equal(data, [(pixels(i).transpose(2, 0, 1) - 2.0) / 2 for i in range(2)])
    # of cells 0 to 3: the first box in the cell above right, the last of two in the one below right
    difficult, there, kinds, places = labels[0, :4], labels[0, 4:8], labels[0, 8:12], labels[0, 12:].reshape(4, 4)
    assert (difficult.tolist(), there.tolist(), kinds.tolist()) == ([0, 0, 0, 0], [0, 1, 0, 1], [-1, 2, -1, 0])
    np.testing.assert_allclose(places, [[0] * 4, BOXES[0][2:], [0] * 4, BOXES[2][2:]])
    assert labels[1, 8:12].tolist() == [-1, 2, -1, -1]


def test_several_sides_the_default_and_no_labels() -> None:
    assert [blob.shape for blob in net("side: 2 side: 3", 3).blobs.values()] == [(2, 3, 12, 16), (2, 28), (2, 63)]
    assert [blob.shape for blob in net("").blobs.values()] == [(2, 3, 12, 16), (2, 343)]
    (data,) = batches(net("", 1, TRAIN, ""), 1)[0]
    np.testing.assert_array_equal(data[0], pixels().transpose(2, 0, 1))


def test_labels_of_boxes() -> None:
    _, labels = batches(net("", fork="yolov2"), 1)[0]
    assert labels.shape == (2, 150)
    np.testing.assert_allclose(labels[0].reshape(30, 5)[:4], [[b[0], *b[2:]] for b in BOXES] + [[0] * 5])


def test_the_nets_layers_tell_the_fork() -> None:
    cells = 'layer { name: "c" type: "Input" top: "c" input_param { shape { dim: 2 dim: 8 dim: 2 dim: 2 } } }'
    loss = (
        'layer { name: "loss" type: "DetectionLoss" bottom: "c" bottom: "t1" top: "l" '
        "detection_loss_param { side: 2 num_class: 3 num_object: 1 } }"
    )
    made = net(fork="", rest=cells + loss)
    assert str(made.forks["in"]) == "BoxData of caffe-yolo: the net has DetectionLoss layers of cells"


def test_parts_in_train_keep_boxes_at_their_pixels() -> None:
    """The pixel at a centre tells its place in the whole image, 10 for each column and row; sizes grow as the part does."""
    seen = set()
    for data, labels in batches(net("side: 5", phase=TRAIN), 10):
        there, places = labels[1, 25:50] == 1, labels[1, 75:].reshape(25, 4)
        ((x, y, w, h),) = places[there]  # the image of one box: centre (8, 3), 8 columns, 3 rows
        column, row = int(x * 16), int(y * 12)
        assert abs(data[1, 0, row, column] - 80) < 20 and abs(data[1, 1, row, column] - 30) < 20
        assert data[1, 0, 0, -1] - data[1, 0, 0, 0] <= 10 * (8 / w) + 1, "the part is 8 / w columns wide"
        assert w >= 0.5 and h >= 0.25
        seen.add((round(float(x), 3), round(float(y), 3)))
    assert len(seen) > 5


@given(st.integers(3, 40), st.integers(3, 40), st.integers(0, 2**20))
def test_a_part_has_the_boxes_centre(height: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    boxes = np.array([[3, 1, (width // 2 + 0.5) / width - 0.5 / width, 0.0, 0.5, 0.25]], np.float32)
    image = np.zeros((height, width, 1), np.uint8)
    if int(boxes[0, 2] * np.float32(width)) >= width - 1:
        return
    part, moved = random_part(image, boxes, random)
    assert part.shape == image.shape and moved.shape == (1, 6) and moved[0, :2].tolist() == [3, 1]
    assert 0 <= moved[0, 2] < 1 and moved[0, 3] == 0


def test_a_seed_repeats_and_a_state_resumes() -> None:
    set_random_seed(1)
    loss = (
        'layer { name: "c" type: "Input" top: "c" input_param { shape { dim: 2 dim: 8 dim: 2 dim: 2 } } }'
        'layer { name: "loss" type: "DetectionLoss" bottom: "c" bottom: "t1" top: "l" '
        "detection_loss_param { side: 2 num_class: 3 num_object: 1 } }"
    )
    check_repeats_and_resumes(text(rest=loss), TRAIN, 3)


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([], "0 box numbers are stored: each box has 6"),
        ([[1, 0, 0.5, 0.5, 0.5]], "5 box numbers are stored"),
        ([[1.5, 0, 0.5, 0.5, 0.5, 0.5]], "a box has class 1.5; classes are whole numbers from 0"),
        ([[1, 2, 0.5, 0.5, 0.5, 0.5]], "a box is marked difficult by 2, neither 0 nor 1"),
        ([[1, 0, 1.5, 0.5, 0.5, 0.5]], "a box's centre, 1.5, 0.5, is not in the image"),
        ([[1, 0, np.nan, 0.5, 0.5, 0.5]], "a box is not finite"),
    ],
)
def test_boxes_of_an_item(boxes: list[list[float]], message: str) -> None:
    make_database("bad", [item(boxes)])
    with pytest.raises(LayerError, match='bad, key "00000000": ' + message):
        net(source="bad").forward()
    with pytest.raises(DataError, match=message):
        boxes_of(item(boxes))


def test_errors() -> None:
    for more, tops, message in (("side: 2", 3, "1 sides give 2 tops, got 3"), ("side: 0", 2, "side must be > 0, got 0")):
        with pytest.raises(LayerError, match=message):
            net(more, tops)
    with pytest.raises(LayerError, match=r"it may be caffe-yolo's .* or caffe-yolov2's .*no field tells"):
        net(fork="")
    with pytest.raises(LayerError, match="mirror is not built in: in the forks it changes the image, and not its boxes"):
        net(transform="mirror: true")
    make_database("plain", [caffe_pb2.Datum(channels=1, height=2, width=2, data=b"abcd", float_data=BOXES[0])])
    with pytest.raises(LayerError, match="the image is not encoded, as convert_box_data stores it"):
        net(source="plain").forward()
    make_database("corner", [item([[1, 0, 1, 0.5, 0.5, 0.5]]), item(BOXES[:1], image=pixels()[:2])])
    with pytest.raises(LayerError, match='key "00000000": every box has its centre in the last row or column'):
        net(source="corner", phase=TRAIN).forward()
    make_database("small", [item(BOXES[:1], image=pixels()[:2])])
    with pytest.raises(LayerError, match="an image of 16 x 2 pixels is too small to crop"):
        net(source="small", phase=TRAIN).forward()
    with pytest.raises(DataError, match="31 boxes are stored, and labels hold 30"):
        rows_of_boxes(np.zeros((31, 6), np.float32), 30)


def test_a_centre_at_the_end_is_of_the_last_cell() -> None:
    assert cells_of_boxes(np.array([[4, 1, 1, 1, 0.5, 0.5]], np.float32), 3)[[8, 17, 26]].tolist() == [1, 1, 4]
