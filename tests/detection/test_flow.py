"""Optical flow: Middlebury's file format and colours, templates, and flows in the images' pixels."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from minicaffe import limits
from minicaffe.data.drawings import draw_flow, wheel
from minicaffe.detection.flow import end_point_error, fill_template, flow_in_image
from minicaffe.errors import Error
from minicaffe.formats.flo import read_flo, write_flo

FLOW = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7.5


def test_a_file_by_hand(tmp_path: Path) -> None:
    write_flo(tmp_path / "a.flo", FLOW[:, :1, :2])
    assert (tmp_path / "a.flo").read_bytes() == struct.pack("<f2i4f", 202021.25, 2, 1, -7.5, 4.5, -6.5, 5.5)


def test_a_file_is_read_back(tmp_path: Path) -> None:
    write_flo(tmp_path / "a.flo", FLOW)
    found = read_flo(tmp_path / "a.flo")
    assert found.dtype == np.float32 and found.shape == (2, 3, 4)
    assert (found == FLOW).all()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not begin with"),
        (b"PIEH\1\0\0\0", "does not begin with"),
        (struct.pack("<4s2i", b"HEIP", 1, 1) + bytes(8), "does not begin with"),
        (struct.pack("<4s2i", b"PIEH", -1, 2), "a flow of -1 x 2 pixels"),
        (struct.pack("<4s2i", b"PIEH", 2, 3) + bytes(47), "takes 60 bytes, but the file has 59"),
        (struct.pack("<4s2i", b"PIEH", 2, 3) + bytes(49), "takes 60 bytes, but the file has 61"),
    ],
)
def test_files_that_are_none(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.flo").write_bytes(data)
    with pytest.raises(Error, match=message):
        read_flo(tmp_path / "a.flo")


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "a.flo").write_bytes(struct.pack("<4s2i", b"PIEH", 40, 30) + bytes(9600))
    with limits.raised({"pixels": 1199}), pytest.raises(Error, match="1,200 pixels"):
        read_flo(tmp_path / "a.flo")


@pytest.mark.parametrize("shape", [(3, 4), (1, 3, 4), (2, 0, 4)])
def test_arrays_that_are_no_flow(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(Error, match=r"a flow is \(2, H, W\)"):
        write_flo(tmp_path / "a.flo", np.zeros(shape, np.float32))
    assert not list(tmp_path.iterdir())


def test_the_wheel_turns_through_six_colours() -> None:
    assert wheel().shape == (55, 3)
    assert wheel()[[0, 15, 21, 25, 36, 49]].tolist() == [
        [255, 0, 0], [255, 255, 0], [0, 255, 0], [0, 255, 255], [0, 0, 255], [255, 0, 255],
    ]  # fmt: skip
    assert wheel()[1].tolist() == [255, 17, 0] and wheel()[16].tolist() == [255 - 42, 255, 0]


def test_colours_by_hand() -> None:
    """To the right: red; nothing: white; half as far: half as full; unknown: black; longer than the longest: darker."""
    flow = np.zeros((2, 1, 5), np.float32)
    flow[0, 0] = [4, 0, 2, np.nan, 8]
    drawn = np.asarray(draw_flow(flow, 4))
    assert drawn[0].tolist() == [[255, 0, 0], [255, 255, 255], [255, 127, 127], [0, 0, 0], [191, 0, 0]]
    flow[0, 0, 3:] = 2e9, 1
    assert np.asarray(draw_flow(flow))[0, [0, 3]].tolist() == [[255, 0, 0], [0, 0, 0]]
    assert (np.asarray(draw_flow(np.zeros((2, 3, 4)))) == 255).all()


def test_directions_have_their_hues() -> None:
    """Down is yellow, left cyan to blue, up blue to violet: a quarter of the 54 steps each."""
    flow = np.array([[[0, -1, 0]], [[1, 0, -1]]], np.float32)
    down, left, up = np.asarray(draw_flow(flow))[0].tolist()
    assert down[0] == 255 and down[1] > 220 and down[2] == 0
    assert left[0] == 0 and left[2] == 255
    assert up[2] == 255 and 50 < up[0] < 150 and up[1] == 0


def test_templates_are_filled_in() -> None:
    text = "w: $TARGET_WIDTH$ h: $TARGET_HEIGHT$ $ADAPTED_WIDTH$ $ADAPTED_HEIGHT$ $SCALE_WIDTH$ $SCALE_HEIGHT$ $OTHER$"
    assert fill_template(text, 96, 128) == "w: 128 h: 96 128 128 1.0 0.75 $OTHER$"
    assert fill_template("crop_width: $TARGET_WIDTH\nw: $ADAPTED_WIDTH\n", 5, 65) == "crop_width: 65\nw: 128\n"


def test_a_flow_grows_with_its_image() -> None:
    flow = np.stack([np.full((3, 4), 2.0), np.full((3, 4), -1.0)])
    found = flow_in_image(flow, (6, 8), 12, 40)
    assert found.shape == (2, 12, 40)
    assert (found[0] == 10).all() and (found[1] == -2).all()
    with pytest.raises(Error, match="NaN or infinite"):
        flow_in_image(flow * np.nan, (6, 8), 12, 40)


def test_end_point_errors() -> None:
    truth = FLOW.copy()
    truth[:, 0, 0] += [3, 4]
    assert end_point_error(FLOW, truth) == pytest.approx(5 / 12)
    truth[0, 1, 1] = 2e9
    assert end_point_error(FLOW, truth) == pytest.approx(5 / 11)
    with pytest.raises(Error, match="the flow is 4 x 3 pixels, but the true one 3 x 3"):
        end_point_error(FLOW, truth[:, :, :3])
    with pytest.raises(Error, match="has no known value"):
        end_point_error(FLOW, truth * 0 + 2e9)
