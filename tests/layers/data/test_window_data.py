"""WindowData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, image, net_of, run_batches, save_images
from golden import cases
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.errors import LayerError
from minicaffe.formats.weights import write_binaryproto
from minicaffe.layers.data.window_data import placed
from minicaffe.mode import TRAIN

HEAD = "# {0}\nim{0}.png\n3\n20\n24\n"
WINDOWS = HEAD.format(0) + "2\n3 0.80 4 5 15 12\n1 0.1 0 0 7 7\n" + HEAD.format(1) + "2\n2 0.10 2 1 12 17\n4 0.55 0 0 3 3\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two images, each with an object and a background window."""
    monkeypatch.chdir(tmp_path)
    save_images(tmp_path / "images", 2, height=20, width=24)
    (tmp_path / "windows.txt").write_text(WINDOWS)
    return tmp_path


def text(more: str = "", transform: str = "crop_size: 8") -> str:
    for default in ("batch_size: 4", "fg_fraction: 0.5"):
        more += f" {default}" if default.split()[0] not in more else ""
    return (
        f'layer {{ name: "in" type: "WindowData" top: "data" top: "label" transform_param {{ {transform} }}\n'
        f'window_data_param {{ source: "windows.txt" root_folder: "images/" {more} }} }}'
    )


@pytest.mark.parametrize("case", cases("WindowData"))
def test_golden(case: str) -> None:
    assert run_batches(case, 1.0)


def test_background_first_then_objects_as_they_are() -> None:
    """A window of the crop's own size is not resized."""
    seen = set()
    for data, labels in batches(net_of(text(transform="crop_size: 8 mean_value: 100")), 12):
        assert labels[:2].tolist() == [0, 0]
        assert set(labels[2:]) <= {3, 4}
        for window in data[:2]:
            pixels = image(0, 20, 24)[:8, :8, ::-1].transpose(2, 0, 1) - np.float32(100)
            seen.add(np.array_equal(window, pixels))
    assert seen == {True, False}


def test_thresholds_choose_the_windows() -> None:
    for _, labels in batches(net_of(text("fg_threshold: 0.6 bg_threshold: 0.05 fg_fraction: 1.0")), 3):
        assert labels.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("more", ["", "context_pad: 2 cache_images: true", 'crop_mode: "square" scale: 0.5'])
def test_a_seed_repeats_and_a_state_resumes(more: str) -> None:
    check_repeats_and_resumes(text(more, "crop_size: 8 mirror: true"), TRAIN, 3)


def test_placing_by_hand() -> None:
    """A 4 x 4 box in the image's corner, crop 8, 2 pixels of context: it is doubled to 8 x 8, of which 2 are outside."""
    assert placed((0, 0, 3, 3), (20, 24), 8, 2, False, False) == ((0, 0, 6, 6), 6, 6, 2, 2)
    assert placed((0, 0, 3, 3), (20, 24), 8, 2, False, True) == ((0, 0, 6, 6), 6, 6, 2, 0)
    assert placed((4, 5, 15, 12), (20, 24), 8, 0, False, False) == ((4, 5, 15, 12), 8, 8, 0, 0)


@given(
    st.tuples(st.integers(0, 23), st.integers(0, 19), st.integers(0, 23), st.integers(0, 19)),
    st.integers(9, 16), st.integers(0, 4), st.booleans(), st.booleans(),
)  # fmt: skip
def test_what_is_placed_lies_in_the_image_and_in_the_crop(corners, crop: int, pad: int, square: bool, mirrored: bool) -> None:
    x1, x2 = sorted(corners[::2])
    y1, y2 = sorted(corners[1::2])
    place = placed((x1, y1, x2, y2), (20, 24), crop, pad, square, mirrored)
    assert 0 <= place.box[0] <= place.box[2] <= 23
    assert 0 <= place.box[1] <= place.box[3] <= 19
    assert place.top + place.height <= crop
    assert place.left + place.width <= crop


@pytest.mark.parametrize(
    ("windows", "more", "transform", "message"),
    [
        (None, "", "crop_size: 8", "windows.txt: no such file"),
        ("", "", "crop_size: 8", "windows.txt: the window file is empty"),
        ("im0.png", "", "crop_size: 8", 'windows.txt:1: expected "#", got "im0.png"'),
        ("# 1\n", "", "crop_size: 8", "windows.txt:1: the image has index 1, expected 0"),
        (HEAD.format(0), "", "crop_size: 8", "windows.txt: the file ends before the number of windows"),
        (HEAD.format(0) + "1\n3 high 0 0 7 7", "", "crop_size: 8", "windows.txt:7: expected a window's overlap"),
        (HEAD.format(0) + "1\n3 0.9 0.5 0 7 7", "", "crop_size: 8", "windows.txt:7: expected a window's x1"),
        (HEAD.format(0) + f"1\n{10**399} 0.9 0 0 7 7", "", "crop_size: 8", "windows.txt:7: .* class, .* 32 bits"),
        (HEAD.format(0) + f"1\n3 0.9 0 0 7 {2**31}", "", "crop_size: 8", "windows.txt:7: .* y2, got 2147483648,"),
        (HEAD.format(0) + "1\n3 0.9 7 0 0 7", "", "crop_size: 8", "windows.txt:7: the window 7 0 0 7 has no pixels"),
        (HEAD.format(0) + "1\n0 0.9 0 0 7 7", "", "crop_size: 8", "an object's window has class 0; classes begin at 1"),
        (HEAD.format(0) + "1\n3 0.9 0 0 7 7", "", "crop_size: 8", "a batch takes 2 background windows, but the file has none"),
        (HEAD.format(0) + "1\n3 0.1 0 0 7 7", "", "crop_size: 8", "a batch takes 2 object windows, but the file has none"),
        (WINDOWS, "", "", "crop_size must be > 0, got 0"),
        (WINDOWS, "context_pad: 4", "crop_size: 8", "context_pad 4 on both sides leaves nothing of crop_size 8"),
        (WINDOWS, 'crop_mode: "bent"', "crop_size: 8", 'crop_mode "bent" is neither "warp" nor "square"'),
        (WINDOWS, "fg_fraction: 1.5", "crop_size: 8", r"fg_fraction must be in \[0, 1\], got 1.5"),
        (WINDOWS, "batch_size: 0", "crop_size: 8", "batch_size must be > 0, got 0"),
        (WINDOWS, "", 'crop_size: 8 mean_file: "m.binaryproto"', r"has shape \(3, 7, 7\), the image has \(3, 8, 8\)"),
    ],
)  # fmt: skip
def test_errors_at_setup(folder: Path, windows: str | None, more: str, transform: str, message: str) -> None:
    write_binaryproto("m.binaryproto", np.zeros((1, 3, 7, 7)))
    (folder / "windows.txt").unlink()
    if windows is not None:
        (folder / "windows.txt").write_text(windows)
    with pytest.raises(LayerError, match='WindowData layer "in": .*' + message):
        net_of(text(more, transform))


@pytest.mark.parametrize("cached", ["", "cache_images: true"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("im0.png", "absent.png", "images/absent.png: no such file"),
        ("15 12", "24 12", r"images/im0.png: is 24 x 20, which lacks the window \(4, 5, 24, 12\)"),
    ],
)
def test_errors_of_the_thread(folder: Path, cached: str, old: str, new: str, message: str) -> None:
    (folder / "windows.txt").write_text(WINDOWS.replace(old, new))
    net = net_of(text(cached))
    with pytest.raises(LayerError, match='WindowData layer "in": ' + message):
        batches(net, 20)
