"""ImageData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, image, net_of, run_batches, save_images
from golden import cases
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from minicaffe.data.image_bytes import resized
from minicaffe.errors import LayerError
from minicaffe.formats.weights import write_binaryproto
from minicaffe.mode import TEST, TRAIN


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with five images in images/ and their list, labels 10, 11, ..."""
    monkeypatch.chdir(tmp_path)
    names = save_images(tmp_path / "images", 5)
    (tmp_path / "list.txt").write_text("".join(f"{name} {10 + i}\n" for i, name in enumerate(names)))
    return tmp_path


def text(more: str = "", transform: str = "", source: str = "list.txt") -> str:
    return (
        f'layer {{ name: "in" type: "ImageData" top: "data" top: "label" transform_param {{ {transform} }}\n'
        f'image_data_param {{ source: "{source}" root_folder: "images/" {more or "batch_size: 2"} }} }}'
    )


def blob(i: int) -> np.ndarray:
    """An image as the net sees it: (3, H, W), blue, green, red."""
    return image(i)[:, :, ::-1].transpose(2, 0, 1).astype(np.float32)


@pytest.mark.parametrize("case", cases("ImageData"))
def test_golden(case: str) -> None:
    assert run_batches(case, 1.0 if "resize" in case else 1e-5)


def test_batches_go_around() -> None:
    taken = batches(net_of(text()), 3)
    assert [labels.tolist() for _, labels in taken] == [[10, 11], [12, 13], [14, 10]]
    np.testing.assert_array_equal(taken[2][0], [blob(4), blob(0)])


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("batch", [2, 5, 7])
def test_a_seed_repeats_and_a_state_resumes(phase, batch: int) -> None:
    more = f"batch_size: {batch} shuffle: true rand_skip: 3"
    check_repeats_and_resumes(text(more, "crop_size: 3 mirror: true"), phase)


@given(st.integers(1, 6), st.integers(0, 99))
def test_shuffling_shows_every_image_once_each_time_around(batch: int, seed: int) -> None:
    net = net_of(text(f"batch_size: {batch} shuffle: true"), seed=seed)
    labels = np.concatenate([labels for _, labels in batches(net, 5)])
    for start in range(0, len(labels) - 4, 5):
        assert sorted(labels[start : start + 5]) == [10, 11, 12, 13, 14]


def test_orders_differ() -> None:
    labels = {tuple(labels) for _, labels in batches(net_of(text("batch_size: 5 shuffle: true")), 20)}
    assert len(labels) > 10


def test_a_batch_takes_its_first_image_s_size(folder: Path) -> None:
    Image.fromarray(image(5, 3, 4)).save("images/small.png")
    (folder / "list.txt").write_text("im0.png 1\nsmall.png 2\n")
    net = net_of(text("batch_size: 1"))
    assert [data.shape for data, _ in batches(net, 3)] == [(1, 3, 5, 7), (1, 3, 3, 4), (1, 3, 5, 7)]


def test_names_with_spaces_blank_lines_and_negative_labels(folder: Path) -> None:
    Image.fromarray(image(0)).save("images/a name.png")
    (folder / "list.txt").write_text("a name.png -3\n\nim1.png\t4\r\n")
    ((data, labels),) = batches(net_of(text()), 1)
    assert labels.tolist() == [-3, 4]
    np.testing.assert_array_equal(data[0], blob(0))


def test_grey_and_resized() -> None:
    net = net_of(text("new_height: 9 new_width: 4 is_color: false"))
    assert net.blobs["data"].shape == (1, 1, 9, 4)
    net = net_of(text("new_height: 10 new_width: 14"))
    net.forward()
    data = net.blobs["data"].data
    np.testing.assert_array_equal(data[0, :, 0, 0], blob(0)[:, 0, 0])
    assert data.min() >= 0 and data.max() <= 255


@pytest.mark.parametrize(
    ("listed", "more", "transform", "message"),
    [
        (None, "", "", "list.txt: no such file"),
        ("", "", "", "list.txt: the list has no image"),
        ("im0.png\n", "", "", 'list.txt:1: "im0.png" has no label: write NAME LABEL'),
        ("im0.png 1\nim1.png one\n", "", "", 'list.txt:2: the label "one" is not a whole number'),
        ("im0.png 1\nim1.png 1_0\n", "", "", 'list.txt:2: the label "1_0" is not a whole number'),
        ("im0.png 1\nim1.png \u0663\n", "", "", 'list.txt:2: the label "\u0663" is not a whole number'),
        (f"im0.png 1\nim1.png {10**399}\n", "", "", r"list.txt:2: the label 10*0 is not in \[-2147483648, 2147483647\]"),
        ("absent.png 1\n", "", "", "list.txt:1: images/absent.png: no such file"),
        ("bad.png 1\n", "", "", "list.txt:1: images/bad.png: cannot read the image: not an image, or damaged"),
        ("im0.png 1\n", "batch_size: 0", "", r"batch_size must be > 0, got 0 \(data.prototxt:2\)"),
        ("im0.png 1\n", "new_height: 3", "", "give both new_height and new_width, got 3 and 0"),
        (
            *("im0.png 1\n", "new_height: 20000 new_width: 100000", "crop_size: 3"),
            "list.txt:1: im0.png: an image resized to 100000 x 20000 has 2,000,000,000 pixels, and the limit is .*pixels=N",
        ),
        (
            *("im0.png 1\n", "", "resize_param { height: 20000 width: 100000 } crop_size: 3"),
            "list.txt:1: im0.png: an image resized to 100000 x 20000 has 2,000,000,000 pixels, and the limit is",
        ),
        ("im0.png 1\n", "rand_skip: 2", "", "rand_skip 2 is more than the 1 images listed"),
        ("im0.png 1\n", "", "crop_size: 6", "list.txt:1: im0.png: crop_size 6 is larger than the image, 7 wide and 5 high"),
    ],
)
def test_errors_at_setup(folder: Path, listed: str | None, more: str, transform: str, message: str) -> None:
    (folder / "images" / "bad.png").write_bytes(b"no picture")
    (folder / "list.txt").unlink()
    if listed is not None:
        (folder / "list.txt").write_text(listed)
    with pytest.raises(LayerError, match='ImageData layer "in": ' + message):
        net_of(text(more, transform))


@pytest.mark.parametrize(
    ("second", "transform", "message"),
    [
        ("bad.png", "", "list.txt:2: images/bad.png: cannot read the image: not an image"),
        ("cut.png", "", "list.txt:2: images/cut.png: cannot read the image: "),
        ("large.png", "", r"list.txt:2: large.png: the image gives \(3, 6, 8\), but the batch began with \(3, 5, 7\)"),
        ("im1.png", 'mean_file: "m.binaryproto"', r"list.txt:1: im0.png: mean_file m.binaryproto has shape \(3, 4, 4\)"),
    ],
)
def test_errors_of_the_thread_name_the_line(folder: Path, second: str, transform: str, message: str) -> None:
    (folder / "images" / "bad.png").write_bytes(b"no picture")
    (folder / "images" / "cut.png").write_bytes((folder / "images" / "im0.png").read_bytes()[:90])
    Image.fromarray(image(0, 6, 8)).save("images/large.png")
    write_binaryproto("m.binaryproto", np.zeros((1, 3, 4, 4)))
    (folder / "list.txt").write_text(f"im0.png 1\n{second} 2\n")
    net = net_of(text(transform=transform))
    with pytest.raises(LayerError, match='ImageData layer "in": ' + message):
        net.forward()


def test_resized_by_transform_param() -> None:
    """resize_param makes images of several sizes one."""
    Image.fromarray(image(1, 4, 9)).save("images/im1.png")
    ((data, _),) = batches(net_of(text(transform="resize_param { height: 4 width: 5 } mean_value: 3")), 1)
    expected = [resized(pixels[:, :, ::-1], 4, 5).transpose(2, 0, 1) - 3.0 for pixels in (image(0), image(1, 4, 9))]
    np.testing.assert_array_equal(data, expected)
