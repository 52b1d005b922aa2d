"""EvalData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, net_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from minicaffe.data.image_bytes import resized
from minicaffe.errors import LayerError
from minicaffe.mode import TEST

SIZES = [(40, 64), (70, 33), (32, 96)]
FILE = """# 0
a0.png
3 40 64
2
1 0 1  4 6 20 31
3 1 0  8 0 63 39
1
0 0 5 5
# 1
a1.png
3 70 33
0
0
# 2
a2.png
3 32 96
1
2 0 0 1 2 3 4
0
"""


def pixels(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 255, (*SIZES[i], 3)).astype(np.uint8)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p").mkdir()
    for i in range(3):
        Image.fromarray(pixels(i)[:, :, ::-1]).save(f"p/a{i}.png")
    Path("list.txt").write_text(FILE)


def text(more: str, transform: str = "", tops: int = 3) -> str:
    names = " ".join(f'top: "t{i}"' for i in range(tops))
    return (
        f'layer {{ name: "in" type: "EvalData" {names} transform_param {{ {transform} }}\n'
        f'eval_data_param {{ source: "list.txt" root_folder: "p/" {more} }} }}'
    )


def test_images_and_boxes_by_hand() -> None:
    taken = batches(net_of(text("batch_size: 1", "mean_value: 1 mean_value: 2 mean_value: 3 scale: 0.5")), 4)
    data, boxes, size = taken[0]
    expected = (resized(pixels(0), 32, 64).astype(float) - [1, 2, 3]) / 2
    np.testing.assert_allclose(data[0], expected.transpose(2, 0, 1))  # 40 is rounded to 32
    np.testing.assert_allclose(
        boxes[:, :, 0, 0], [[0, 4, 6 * 0.8, 20, 31 * 0.8, 1, 0, 1], [0, 8, 0, 63, 39 * 0.8, 3, 1, 0]], rtol=1e-6
    )
    assert size.ravel().tolist() == [32, 64]
    assert taken[1][1].shape == (1, 8, 1, 1) and (taken[1][1] == -1).all()
    assert taken[1][0].shape == (1, 3, 64, 32) and (taken[3][0] == data).all()
    assert len(batches(net_of(text("batch_size: 1", tops=2)), 1)[0]) == 2


def test_sizes() -> None:
    taken = batches(net_of(text("batch_size: 1 short_size: 64 long_size: 160")), 3)
    assert [data.shape[2:] for data, _, _ in taken] == [(64, 96), (128, 64), (64, 160)]  # 102, 135 and 192 before
    data, boxes, _ = batches(net_of(text("batch_size: 3 resize_width: 96 resize_height: 64")), 1)[0]
    assert data.shape == (3, 3, 64, 96) and boxes[:, 0, 0, 0].tolist() == [0, 0, 2]
    np.testing.assert_allclose(boxes[2, 1:5, 0, 0], [1, 4, 3, 8])


def test_a_state_resumes() -> None:
    check_repeats_and_resumes(text("batch_size: 2 resize_width: 64 resize_height: 32"), TEST, 2)


@given(st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_boxes_keep_their_part_of_the_image(high: int, wide: int) -> None:
    data, boxes, _ = batches(net_of(text(f"batch_size: 1 resize_width: {32 * wide} resize_height: {32 * high}")), 1)[0]
    parts = boxes[:, 1:5, 0, 0] / ([data.shape[3], data.shape[2]] * 2)
    np.testing.assert_allclose(parts[0], [4 / 64, 6 / 40, 20 / 64, 31 / 40], rtol=1e-5)


@pytest.mark.parametrize(
    ("file", "more", "transform", "said"),
    [
        (FILE, "batch_size: 0", "", "batch_size must be > 0"),
        (FILE, "batch_size: 2", "", "a batch of several images needs resize_width and resize_height"),
        (FILE, "batch_size: 1", "mirror: true", "mirror is not for EvalData, which takes scale, mean_value"),
        (FILE, "batch_size: 1", "mean_value: 1 mean_value: 2", "2 mean_value given for 3 channels"),
        (FILE.replace("a0", "b0"), "batch_size: 1", "", "list.txt:1: p/b0.png: .*No such file|list.txt:1: .*b0.png"),
        (FILE.replace("# 1", "# 4"), "batch_size: 1", "", "list.txt:9: the image has index 4, expected 1"),
        (FILE.replace("1 0 1  4", "0 0 1  4"), "batch_size: 1", "", "list.txt:5: a window has class 0; classes begin at 1"),
        (FILE.replace("4 6 20", "24 6 20"), "batch_size: 1", "", "list.txt:5: the window 24 6 20 31 has no pixels"),
        (FILE[:-3], "batch_size: 1", "", "list.txt: the file ends before the number of regions"),
        ("", "batch_size: 1", "", "list.txt: the window file is empty"),
        (
            FILE,
            "batch_size: 1 short_size: 2 long_size: 4",
            "",
            "list.txt:1: a0.png: an image of 40 x 64 pixels would be resized to 0 x 0",
        ),
    ],
)
def test_errors(file: str, more: str, transform: str, said: str) -> None:
    Path("list.txt").write_text(file)
    with pytest.raises(LayerError, match=said):
        net_of(text(more, transform))
