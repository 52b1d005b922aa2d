"""Boxes in the pixels of the images they were found in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.data.resizing import resized_by
from minicaffe.errors import DataError
from minicaffe.layers.ssd.detection_files import Sized, boxes_in_pixels, check_frame, read_name_sizes
from minicaffe.proto import caffe_pb2

Resize = caffe_pb2.ResizeParameter
BOX = np.array([[0.25, 0.5, 0.5, 1.5]])


@pytest.mark.parametrize(
    ("resize", "expected"),
    [
        (None, [5, 5, 10, 10]),
        (Resize(height=7, width=9), [5, 5, 10, 10]),
        (Resize(height=7, width=9, resize_mode=Resize.FIT_SMALL_SIZE), [5, 5, 10, 10]),
        (Resize(height=7, width=9, resize_mode=Resize.FIT_SMALL_SIZE, height_scale=16, width_scale=12), [3, 8, 6, 10]),
        (Resize(height=8, width=8, resize_mode=Resize.FIT_LARGE_SIZE_AND_PAD), [5, 5, 10, 10]),
        (Resize(height=4, width=16, resize_mode=Resize.FIT_LARGE_SIZE_AND_PAD), [0, 5, 10, 10]),
    ],
)
def test_by_hand(resize: caffe_pb2.ResizeParameter | None, expected: list[int]) -> None:
    """An image 20 wide and 10 high; it fills rows .25 .. .75 of a square, and columns .25 .. .75 of 4 x 16."""
    np.testing.assert_allclose(boxes_in_pixels(BOX, Sized("a", 10, 20), resize), [expected])


@given(st.integers(2, 40), st.integers(2, 40))
def test_the_way_back_from_a_padded_frame(height: int, width: int) -> None:
    """A whole image, padded, is its own pixels again, but for the rounding of its size in the frame."""
    resize = Resize(height=300, width=400, resize_mode=Resize.FIT_LARGE_SIZE_AND_PAD)
    _, frame = resized_by(np.zeros((height, width, 1), np.uint8), resize, np.random.default_rng(0))
    assert frame is not None
    size = frame[2:] - frame[:2]
    whole = np.concatenate([-frame[:2] / size, (1 - frame[:2]) / size])[None]
    np.testing.assert_allclose(boxes_in_pixels(whole, Sized("a", height, width), resize), [[0, 0, width, height]], atol=0.5)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "sizes.txt"
    file.write_text("one 10 20\n\ntwo 3 4\n")
    assert read_name_sizes(str(file)) == [("one", 10, 20), ("two", 3, 4)]
    for wrong in ("0 10", "10 0", "-1 5", "5 2147483648", "1 " + "9" * 400):
        file.write_text(f"one {wrong}\n")
        with pytest.raises(DataError, match=r"sizes\.txt: one: no image has the height \S+ and the width \S+$"):
            read_name_sizes(str(file))
    with pytest.raises(DataError, match="resize_param needs a height and a width > 0, got 3 and 0"):
        check_frame(Resize(height=3))
