"""SquareBoxData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, image, net_of, save_images
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from minicaffe.data.image_bytes import resized
from minicaffe.errors import LayerError
from minicaffe.formats.weights import write_binaryproto
from minicaffe.layers.data.window_data import padded
from minicaffe.mode import TRAIN

BOXES = "# SqBoxWindowDataLayer\n2\n# 0\n2\nim0.png\n3 20 24\n12 10 12 11 8\n5 6 5 6 4\n# 1\n1\nim1.png\n3 20 24\n9 8 9 8 6\n"
ONE = "# SqBoxWindowDataLayer\n1\n# 0\n1\nim0.png\n3 20 24\n12 10 12 11 8\n"
WHOLE = "mn_bxsz_by_imsz: 0.3125 mx_bxsz_by_imsz: 0.3125 mx_dist: 0"
"""Squares of 7.5 pixels around the object itself: 8 x 8 pixels, as 12 - 3.75 and 12 + 3.75 are rounded to 8 and 16."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two images and three objects."""
    monkeypatch.chdir(tmp_path)
    save_images(tmp_path / "images", 2, height=20, width=24)
    (tmp_path / "boxes.txt").write_text(BOXES)
    return tmp_path


def text(more: str = "", transform: str = "") -> str:
    for default in ("batch_size: 2", "crop_size: 9"):
        more += f" {default}" if default.split()[0] not in more else ""
    return (
        f'layer {{ name: "in" type: "SquareBoxData" top: "data" top: "label" transform_param {{ {transform} }}\n'
        f'square_box_data_param {{ source: "boxes.txt" root_folder: "images/" {more} }} }}'
    )


def pixels(index: int = 0) -> np.ndarray:
    """An image as the layer has it, (3, H, W), BGR."""
    return image(index, 20, 24)[..., ::-1].transpose(2, 0, 1).astype(np.float32)


def place(side: float, right: float = 0, down: float = 0) -> tuple[int, int, int, int]:
    """The square around ONE's object, halves rounded up."""
    ends = (12 + right - side / 2, 10 + down - side / 2, 12 + right + side / 2, 10 + down + side / 2)
    x1, y1, x2, y2 = (int(np.floor(end + 0.5)) for end in ends)
    return x1, y1, x2, y2


def test_a_square_around_its_object_is_cut_out_by_hand(folder: Path) -> None:
    """A square of 7.5 pixels, which is the crop's size: columns 8 to 16 and rows 6 to 14 of the image."""
    (folder / "boxes.txt").write_text(ONE)
    data, labels = batches(net_of(text(WHOLE)), 1)[0]
    assert place(7.5) == (8, 6, 16, 14)
    np.testing.assert_array_equal(data, np.stack([pixels()[:, 6:15, 8:17]] * 2))
    assert labels.shape == (2, 1, 1, 1)
    assert not labels.any()


@pytest.mark.slow
@given(st.integers(-2, 26), st.integers(-3, 23), st.integers(1, 24), st.integers(0, 12), st.integers(0, 2**20))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_square_keeps_to_its_rules(x: int, y: int, side: int, reach: int, seed: int) -> None:
    """An image whose pixels are their own places: those in the crop are of a square about as large, and none further away."""
    grid = np.stack([*np.indices((20, 24)) * 4 + 40, np.full((20, 24), 255)], axis=2).astype(np.uint8)
    Image.fromarray(grid).save("images/im0.png")
    Path("boxes.txt").write_text(ONE.replace("12 10 12 11 8", f"{x} {y} 0 0 0"))
    share = side / 24
    net = net_of(text(f"mn_bxsz_by_imsz: {share} mx_bxsz_by_imsz: {share} mx_dist: {reach}"), seed=seed)
    near = min(reach, side) if reach else 0.5
    if not (-near < x < 24 + near and -near < y < 20 + near) or (not reach and not (0 < x < 24 and 0 < y < 20)):
        with pytest.raises(LayerError, match="none of 10,000 squares had its centre"):
            batches(net, 1)
        return
    try:
        data = batches(net, 1)[0][0]
    except LayerError:  # a centre in the image is possible, but rare
        assert not (0 < x < 24 and 0 < y < 20)
        return
    for crop in data:
        inside = crop[0] == 255
        assert (crop[:, ~inside] == 0).all()
        for places, at in ((crop[1][inside] / 4 - 10, x), (crop[2][inside] / 4 - 10, y)):
            assert (abs(places - at) <= side / 2 + min(reach, side) + 1.5).all()


def test_sizes_and_distances_are_spread_evenly() -> None:
    """100 squares of a white image: what is not 0 tells how far they reach beyond it."""
    Path("boxes.txt").write_text(ONE)
    Image.new("RGB", (24, 20), "white").save("images/im0.png")
    data = batches(net_of(text("mn_bxsz_by_imsz: 1 mx_bxsz_by_imsz: 2 mx_dist: 8 batch_size: 100")), 1)[0][0]
    rows, columns = data[:, 0].any(axis=2), data[:, 0].any(axis=1)
    assert 0.35 < rows.mean() / columns.mean() / (20 / 24) < 1.4
    for covered in (rows, columns):
        assert len(np.unique(covered.sum(axis=1))) >= 4  # sizes
        first, last = covered.argmax(axis=1), covered[:, ::-1].argmax(axis=1)
        assert (first > last + 1).sum() > 15  # to the one side
        assert (last > first + 1).sum() > 15  # and to the other


def test_what_lies_outside_the_image_is_zero_and_the_mean_is_not_subtracted_there(folder: Path) -> None:
    """A square of 40 pixels around 12, 10: columns -8 to 32, of which 24 of 41 are the image's."""
    (folder / "boxes.txt").write_text(ONE)
    more = f"mn_bxsz_by_imsz: {40 / 24} mx_bxsz_by_imsz: {40 / 24} mx_dist: 0 crop_size: 41"
    data = batches(net_of(text(more, "mean_value: 7 mean_value: 8 mean_value: 9")), 1)[0][0]
    wanted = np.zeros((3, 41, 41), np.float32)
    wanted[:, 10:30, 8:32] = pixels() - np.array([7, 8, 9], np.float32).reshape(3, 1, 1)
    np.testing.assert_array_equal(data[1], wanted)


def test_a_mean_images_centre_counts(folder: Path) -> None:
    (folder / "boxes.txt").write_text(ONE)
    mean = np.arange(3 * 121, dtype=np.float32).reshape(1, 3, 11, 11)
    write_binaryproto("m.binaryproto", mean)
    data = batches(net_of(text(WHOLE, 'mean_file: "m.binaryproto"')), 1)[0][0]
    np.testing.assert_array_equal(data[0], pixels()[:, 6:15, 8:17] - mean[0, :, 1:10, 1:10])


def test_a_warped_square_and_its_mirror(folder: Path) -> None:
    """A square over the right edge: mirrored, its padding is on the left."""
    (folder / "boxes.txt").write_text(ONE.replace("12 10 12", "20 10 12"))
    more = f"mn_bxsz_by_imsz: {16 / 24} mx_bxsz_by_imsz: {16 / 24} mx_dist: 0 batch_size: 12"
    seen = set()
    for crop in batches(net_of(text(more, "mirror: true")), 1)[0][0]:
        mirrored = not crop[:, :, 0].any()
        at = padded((12, 2, 28, 18), (20, 24), 9, mirrored)
        assert at.box == (12, 2, 23, 18)
        part = image(0, 20, 24)[2:19, 12:24, ::-1]
        warped = resized(np.ascontiguousarray(part), at.height, at.width).transpose(2, 0, 1)
        wanted = np.zeros((3, 9, 9), np.float32)
        wanted[:, :, at.left : at.left + at.width] = warped[:, :, ::-1] if mirrored else warped
        np.testing.assert_array_equal(crop, wanted)
        seen.add(mirrored)
    assert seen == {True, False}


def test_all_objects_are_drawn() -> None:
    more = "mn_bxsz_by_imsz: 0.125 mx_bxsz_by_imsz: 0.125 mx_dist: 0 crop_size: 4 batch_size: 40"
    data = batches(net_of(text(more)), 1)[0][0]
    assert len(np.unique(data.reshape(40, -1), axis=0)) == 3


@pytest.mark.parametrize("transform", ["", "mirror: true"])
def test_a_seed_repeats_and_a_state_resumes(transform: str) -> None:
    check_repeats_and_resumes(text("", transform), TRAIN, 3)


HEAD = "# SqBoxWindowDataLayer\n1\n"


@pytest.mark.parametrize(
    ("boxes", "more", "message"),
    [
        (None, "", "boxes.txt: no such file"),
        ("", "", 'boxes.txt: the file ends before "#"'),
        ("# GenericDataLayer\n", "", 'boxes.txt:1: expected "SqBoxWindowDataLayer", got "GenericDataLayer"'),
        ("im0.png", "", 'boxes.txt:1: expected "#", got "im0.png"'),
        (HEAD + "im0.png", "", 'boxes.txt:3: expected "#", got "im0.png"'),
        (HEAD + "# 1\n1\nim0.png 3 20 24 1 2 3 4 5", "", "boxes.txt:3: the image has index 1, expected 0"),
        (HEAD + "# 0\n-1\nim0.png 3 20 24", "", "boxes.txt:4: the number of objects must be >= 0, got -1"),
        (HEAD + "# 0\n1\nim0.png 3 20 24 1 2 3 4", "", "boxes.txt: the file ends before a box's side"),
        (HEAD + "# 0\n1\nim0.png 3 20 24 1 far 3 4 5", "", "boxes.txt:5: expected an object's y, got \"far\""),
        (HEAD + "# 0\n0\nim0.png 3 20 24", "", "boxes.txt: has no objects"),
        (BOXES.replace("\n2\n# 0", "\n3\n# 0"), "", "boxes.txt: has 2 images, but says 3"),
        (BOXES, "crop_size: 0", "crop_size must be > 0, got 0"),
        (BOXES, "batch_size: 0", "batch_size must be > 0, got 0"),
        (BOXES, "mn_bxsz_by_imsz: 2", r"mn_bxsz_by_imsz must be in \[0, 1\], got 2"),
        (BOXES, "mn_bxsz_by_imsz: -0.5", r"mn_bxsz_by_imsz must be in \[0, 1\], got -0.5"),
        (BOXES, "mx_dist: -1", "mx_dist must be >= 0, got -1"),
        (BOXES, "mx_dist: nan", "mx_dist"),
    ],
)  # fmt: skip
def test_errors_at_setup(folder: Path, boxes: str | None, more: str, message: str) -> None:
    (folder / "boxes.txt").unlink()
    if boxes is not None:
        (folder / "boxes.txt").write_text(boxes)
    with pytest.raises(LayerError, match='SquareBoxData layer "in": .*' + message):
        net_of(text(more))


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        (ONE.replace("3 20 24", "3 24 20"), "im0.png: is 24 x 20 with 3 channels, boxes.txt says 20 x 24 with 3 channels"),
        (ONE.replace("3 20 24", "1 20 24"), "im0.png: is 24 x 20 with 3 channels, boxes.txt says 24 x 20 with 1 channels"),
        (ONE.replace("im0", "im7"), "im7.png"),
        (ONE.replace("12 10 12", "99 10 12"), "none of 10,000 squares had its centre in the image"),
    ],
)
def test_errors_while_reading(folder: Path, boxes: str, message: str) -> None:
    (folder / "boxes.txt").write_text(boxes)
    with pytest.raises(LayerError, match='SquareBoxData layer "in": .*' + message):
        batches(net_of(text()), 1)
