"""ImageSegData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, image, net_of, same
from hypothesis import given
from hypothesis import strategies as st
from labelled import blob, check_aligned, labels, save_labels, save_pairs
from PIL import Image

from minicaffe.data.image_bytes import resized
from minicaffe.errors import LayerError
from minicaffe.mode import TEST, TRAIN


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_pairs(tmp_path, 4)
    return tmp_path


def text(more: str = "", transform: str = "", kind: str = "PIXEL", tops: str = 'top: "data" top: "label" top: "dim"') -> str:
    return (
        f'layer {{ name: "in" type: "ImageSegData" {tops} transform_param {{ {transform} }}\n'
        f'image_data_param {{ source: "list.txt" root_folder: "images/" label_type: {kind} {more or "batch_size: 3"} }} }}'
    )


def test_images_labels_and_sizes_go_around() -> None:
    taken = batches(net_of(text()), 2)
    np.testing.assert_array_equal(taken[0][0], [blob(i) for i in (0, 1, 2)])
    np.testing.assert_array_equal(taken[1][1], [[labels(i)] for i in (3, 0, 1)])
    assert taken[0][2].tolist() == [[[[5, 7]]]] * 3


@pytest.mark.parametrize("kind", ["P", "L", "RGB"])
def test_labels_are_indices_of_a_palette_or_grey_values(folder: Path, kind: str) -> None:
    save_pairs(folder, 4, kind)
    np.testing.assert_array_equal(batches(net_of(text()), 1)[0][1][2, 0], labels(2))


def test_a_missing_top_is_added() -> None:
    net = net_of(text(tops='top: "data"'))
    assert len(net.top_names["in"]) == 3


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_crop_and_mirror_keep_each_label_at_its_pixel(phase) -> None:
    net, flipped = net_of(text("batch_size: 4", "crop_h: 3 crop_w: 4 mirror: true"), phase), set()
    for data, found, sizes in batches(net, 6):
        assert sizes.tolist() == [[[[3, 4]]]] * 4
        for i in range(4):
            check_aligned(data[i], found[i, 0], i)
            flipped.add((found[i, 0, 0, 1] < found[i, 0, 0, 0], found[i, 0].min() == i + 7 + 1))
    assert {flip for flip, _ in flipped} == {False, True}
    if phase == TEST:
        assert all(central for _, central in flipped)


def test_mean_scale_and_padding() -> None:
    """The crop is two rows higher than the image and a column narrower: rows of 0 and of ignore_label below it."""
    more = "batch_size: 1 ignore_label: -1"
    transform = "crop_h: 7 crop_w: 6 scale: 0.5 mean_value: 10 mean_value: 20 mean_value: 30"
    data, found, size = batches(net_of(text(more, transform)), 1)[0]
    mean = np.array([10, 20, 30]).reshape(3, 1, 1)
    np.testing.assert_array_equal(data[0, :, :5], (blob(0)[:, :, :6] - mean) / 2)
    np.testing.assert_array_equal(found[0, 0, :5], labels(0)[:, :6])
    assert (data[0, :, 5:] == 0).all()
    assert (found[0, 0, 5:] == -1).all()
    assert size.tolist() == [[[[5, 6]]]]


def test_resizing_takes_the_nearest_label() -> None:
    data, found, size = batches(net_of(text("batch_size: 1 new_height: 11 new_width: 3")), 1)[0]
    np.testing.assert_array_equal(data[0], resized(image(0)[:, :, ::-1], 11, 3).transpose(2, 0, 1))
    rows, columns = (np.arange(new) * old // new for new, old in ((11, 5), (3, 7)))
    np.testing.assert_array_equal(found[0, 0], labels(0)[rows[:, None], columns])
    assert size.tolist() == [[[[11, 3]]]]


def test_one_label_for_an_image_and_none(folder: Path) -> None:
    (folder / "list.txt").write_text("im0.png 7\n\nim1.png 255\n")
    _, found, _ = batches(net_of(text("batch_size: 2", kind="IMAGE")), 1)[0]
    assert (found[0] == 7).all()
    assert (found[1] == 255).all()
    (folder / "list.txt").write_text("im0.png\nim1.png ignored\n")
    _, found, _ = batches(net_of(text("batch_size: 2 ignore_label: 21", kind="NONE")), 1)[0]
    assert (found == 21).all()
    assert found.shape == (2, 1, 5, 7)


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_a_seed_repeats_and_a_state_resumes(phase) -> None:
    check_repeats_and_resumes(text("batch_size: 3 shuffle: true rand_skip: 3", "crop_size: 3 mirror: true"), phase)


@pytest.mark.slow
@given(st.integers(0, 999), st.integers(1, 9), st.integers(1, 9))
def test_every_crop_is_aligned(seed: int, high: int, wide: int) -> None:
    """Also where the image is padded on one side only."""
    net = net_of(text("batch_size: 4 ignore_label: 250", f"crop_h: {high} crop_w: {wide} mirror: true"), TRAIN, seed)
    data, found, _ = batches(net, 1)[0]
    for i in range(4):
        inside = found[i, 0] != 250
        assert (data[i][:, ~inside] == 0).all()
        rows, columns = np.divmod(found[i, 0][inside].astype(int) - i, 7)
        np.testing.assert_array_equal(data[i][:, inside], blob(i)[:, rows, columns])
        assert inside.sum() == min(high, 5) * min(wide, 7)


def test_images_of_several_sizes_with_a_crop(folder: Path) -> None:
    Image.fromarray(image(9, 4, 9)).save("images/other.png")
    save_labels(folder / "images/otherlab.png", labels(9, 4, 9))
    (folder / "list.txt").write_text("im0.png lab0.png\nother.png otherlab.png\n")
    data, found, size = batches(net_of(text("batch_size: 2", "crop_size: 6")), 1)[0]
    assert data.shape == (2, 3, 6, 6)
    assert size.reshape(2, 2).tolist() == [[5, 6], [4, 6]]
    np.testing.assert_array_equal(found[1, 0, :4], labels(9, 4, 9)[:, 1:7])


def test_ranks_of_a_seed_draw_alike() -> None:
    whole = batches(net_of(text("batch_size: 2 shuffle: true")), 3)
    assert same(whole, batches(net_of(text("batch_size: 2 shuffle: true")), 3))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("im0.png lab0.png\nim1.png\n", 'list.txt:2: "im1.png" is not NAME LABEL_IMAGE, two words'),
        ("im 0.png lab0.png\n", 'list.txt:1: "im 0.png lab0.png" is not NAME LABEL_IMAGE, two words'),
        ("\n\n", "list.txt: the list has no image"),
        ("im0.png absent.png\n", "list.txt:1: im0.png: images/absent.png: .*no such file"),
        ("im0.png small.png\n", "list.txt:1: im0.png: the label image is 4 wide and 3 high, the image 7 wide and 5 high"),
        ("im0.png im1.png\n", "list.txt:1: im0.png: images/im1.png: .*labels in colours; write the classes as 8-bit grey"),
        ("im0.png deep.png\n", "list.txt:1: im0.png: images/deep.png: .*labels of more than 8 bits"),
        ("im0.png lab0.png\nlarge.png largelab.png\n", "list.txt:2: large.png: the image gives .* give all images one size"),
    ],
)
def test_errors_name_the_line(folder: Path, lines: str, message: str) -> None:
    save_labels(folder / "images/small.png", labels(0, 3, 4))
    Image.fromarray(np.full((5, 7), 300, np.uint16)).save("images/deep.png")
    Image.fromarray(image(1, 6, 8)).save("images/large.png")
    save_labels(folder / "images/largelab.png", labels(0, 6, 8))
    (folder / "list.txt").write_text(lines)
    with pytest.raises(LayerError, match=message):
        batches(net_of(text("batch_size: 2")), 1)


@pytest.mark.parametrize(
    ("more", "transform", "kind", "message"),
    [
        ("batch_size: 0", "", "PIXEL", "batch_size must be > 0, got 0"),
        ("new_height: 3", "", "PIXEL", "give both new_height and new_width, got 3 and 0"),
        ("rand_skip: 9", "", "PIXEL", "rand_skip 9 is more than the 4 images listed"),
        ("", 'mean_file: "m.binaryproto"', "PIXEL", "takes no mean_file: give mean_value"),
        ("", "mean_value: 1 mean_value: 2", "PIXEL", "2 mean_value given for 3 channels"),
        ("", "resize_param { height: 3 width: 4 }", "PIXEL", "resize_param is not applied to images with a label image"),
        ("", "", "IMAGE", 'list.txt:1: the label "lab0.png" is not a whole number'),
    ],
)
def test_errors(more: str, transform: str, kind: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        batches(net_of(text(more, transform, kind)), 1)


def test_a_label_out_of_range(folder: Path) -> None:
    (folder / "list.txt").write_text("im0.png 3\nim1.png 256\n")
    with pytest.raises(LayerError, match=r"list.txt:2: the label 256 is not in \[0, 255\]"):
        batches(net_of(text("batch_size: 2", kind="IMAGE")), 1)
