"""The check of images before a training: what it decodes, lists, leaves out and counts, for each kind of list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import batches, net_of
from PIL import Image

from minicaffe.data import image_check
from minicaffe.data.image_check import ImageCheck, checking_images, readable
from minicaffe.data.roidb import entry_pixels, load_roidb
from minicaffe.errors import DataError, LayerError

TRUNCATED = "b.jpg: cannot read the image: image file is truncated"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with three JPEGs, of which the first, a truncated one, has an intact header."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(1).integers(0, 255, (20, 24, 3), np.uint8)
    for name in ("b.jpg", "c.jpg", "d.jpg"):
        Image.fromarray(pixels).save(name, quality=95)
    whole = Path("b.jpg").read_bytes()
    Path("b.jpg").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(pixels[:, :, 0]).save("labels.png")
    return tmp_path


def layer(kind: str, param: str, tops: int = 2) -> str:
    names = " ".join(f'top: "{i}"' for i in range(tops))
    return f'layer {{ name: "in" type: "{kind}" {names} {param} }}'


IMAGES = layer("ImageData", 'image_data_param { source: "list.txt" batch_size: 2 }')
SEGMENTS = layer("ImageSegData", 'image_data_param { source: "list.txt" batch_size: 2 label_type: PIXEL }', 3)
DENSE = layer("DenseImageData", 'dense_image_data_param { source: "list.txt" batch_size: 2 }')
WINDOWS = layer(
    "WindowData",
    'transform_param { crop_size: 8 } window_data_param { source: "list.txt" batch_size: 4 fg_threshold: 0.5'
    " bg_threshold: 0.5 fg_fraction: 0.5 }",
)
SQUARES = layer(
    "SquareBoxData",
    'square_box_data_param { source: "list.txt" batch_size: 2 crop_size: 8 mn_bxsz_by_imsz: 0.3 mx_bxsz_by_imsz: 0.4'
    " mx_dist: 0 }",
)
GROUPS = layer("GenericWindowData", 'generic_window_data_param { source: "list.txt" batch_size: 2 crop_size: 8 }')
HEAD = "# {}\n{}.jpg\n3\n20\n24\n2\n1 0.8 0 0 9 9\n1 0.1 2 2 9 9\n"
LISTS = {
    IMAGES: "b.jpg 0\nc.jpg 1\nd.jpg 2\n",
    SEGMENTS: "b.jpg labels.png\nc.jpg labels.png\n",
    DENSE: "c.jpg labels.png\nd.jpg b.jpg\n",  # a label image is decoded too
    WINDOWS: HEAD.format(0, "b") + HEAD.format(1, "c"),
    SQUARES: "# SqBoxWindowDataLayer\n2\n"
    + "".join(f"# {i}\n1\n{name}.jpg\n3 20 24\n12 10 12 11 8\n" for i, name in enumerate("bc")),
    GROUPS: "# GenericDataLayer\n2\n1\n1\n"
    + "".join(f"# {i}\n{name}.jpg 3 20 24 0 0 7 7\n{i}\n" for i, name in enumerate("bc")),
}


@pytest.mark.parametrize("text", LISTS, ids=lambda text: text.split('"')[3])
def test_every_list_of_images(text: str) -> None:
    Path("list.txt").write_text(LISTS[text])
    with checking_images(ImageCheck()), pytest.raises(LayerError, match=rf"1 of \d images cannot be used:\n.*{TRUNCATED}"):
        net_of(text)
    said: list[str] = []
    with checking_images(ImageCheck(skip=True, report=said.append)):
        net = net_of(text)
    batches(net, 4)  # reads each image
    assert len(said) == 1 and "cannot be used and are left out" in said[0]


def test_a_random_start_beyond_the_images_that_are_left() -> None:
    Path("list.txt").write_text("b.jpg 0\nb.jpg 1\nc.jpg 2\n")
    with checking_images(ImageCheck(skip=True)):
        net = net_of(IMAGES.replace("batch_size: 2", "batch_size: 2 rand_skip: 3"))
    assert [labels.tolist() for _, labels in batches(net, 2)] == [[2, 2], [2, 2]]


def test_at_most_ten_are_named_and_all_are_counted() -> None:
    def read(number: int) -> None:
        if number % 2:
            raise DataError(f"image {number}")

    named = "".join(f"\n  image {number}" for number in range(1, 20, 2))
    with checking_images(ImageCheck()), pytest.raises(DataError) as caught:
        readable(range(600), read, int, "list.txt")
    advice = "repair or replace them; --skip-unreadable trains without them"
    assert str(caught.value) == f"list.txt: 300 of 600 images cannot be used:{named}\n  and 290 more\n{advice}"


def test_nothing_left_is_an_error_when_skipping_too() -> None:
    Path("list.txt").write_text("b.jpg 0\n")
    with (
        checking_images(ImageCheck(skip=True)),
        pytest.raises(LayerError, match="1 of 1 images cannot be used, so none is left"),
    ):
        net_of(IMAGES)


@pytest.mark.parametrize(("most", "count"), [(3, 3), (2, 0), (None, 3)])
def test_sources_of_many_images_are_not_checked(most: int | None, count: int) -> None:
    read: list[str] = []
    said: list[str] = []
    with checking_images(ImageCheck(most=most, report=said.append)):
        assert readable(["x", "y", "z"], read.append, str, "list.txt") == ["x", "y", "z"]
    assert len(read) == count
    assert said == ["list.txt: its 3 images are more than 2 and are not checked; --check checks them"] * (count == 0)


def test_images_of_the_train_and_the_test_net_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("list.txt").write_text("c.jpg 0\nd.jpg 1\n")
    counts: list[int] = []
    faults: Any = image_check._faults
    monkeypatch.setattr(image_check, "_faults", lambda images, read: counts.append(len(images)) or faults(images, read))
    with checking_images(ImageCheck()):
        net_of(IMAGES)
        net_of(IMAGES)
    assert counts == [2, 0]


def test_nothing_is_checked_outside_the_block() -> None:
    Path("list.txt").write_text("c.jpg 0\nb.jpg 1\n")
    net_of(IMAGES)


def test_a_yolo_folder_whose_image_has_no_size(folder: Path) -> None:
    Path("b.jpg").write_bytes(b"")
    for name in "bcd":
        Path(f"{name}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    Path("classes.txt").write_text("square\n")
    Path("labels.png").unlink()
    with checking_images(ImageCheck(skip=True)):
        roidb, _ = load_roidb(folder)
    assert [Path(str(entry["image"])).name for entry in roidb] == ["c.jpg", "d.jpg"]


def test_an_image_of_another_size_than_its_annotation() -> None:
    with pytest.raises(DataError, match=r"c\.jpg: the roidb says 24 x 21, the file is 24 x 20"):
        entry_pixels({"image": "c.jpg", "width": 24, "height": 21})
    assert entry_pixels({"image": "c.jpg"}).shape == (20, 24, 3)
