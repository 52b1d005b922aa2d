"""DenseImageData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, image, net_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from labelled import blob, check_aligned, labels, save_labels, save_pairs
from PIL import Image

from minicaffe.errors import LayerError
from minicaffe.formats.weights import write_binaryproto
from minicaffe.mode import TEST, TRAIN


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_pairs(tmp_path, 4, "L")
    return tmp_path


def text(more: str = "batch_size: 3", transform: str = "") -> str:
    return (
        f'layer {{ name: "in" type: "DenseImageData" top: "data" top: "label" transform_param {{ {transform} }}\n'
        f'dense_image_data_param {{ source: "list.txt" root_folder: "images/" {more} }} }}'
    )


def test_images_and_labels_go_around() -> None:
    taken = batches(net_of(text()), 2)
    np.testing.assert_array_equal(taken[0][0], [blob(i) for i in (0, 1, 2)])
    np.testing.assert_array_equal(taken[1][1], [[labels(i)] for i in (3, 0, 1)])


def test_labels_of_a_palette(folder: Path) -> None:
    save_pairs(folder, 4, "P")
    np.testing.assert_array_equal(batches(net_of(text()), 1)[0][1][1, 0], labels(1))


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_crop_and_mirror_are_random_in_both_phases_and_keep_labels_at_their_pixels(phase) -> None:
    places = set()
    for data, found in batches(net_of(text("batch_size: 4 mirror: true crop_height: 2 crop_width: 3"), phase), 12):
        for i in range(4):
            check_aligned(data[i], found[i, 0], i)
            places.add((found[i, 0].min() - i, found[i, 0, 0, 0] > found[i, 0, 0, 1]))
    assert len(places) > 20  # of 4 x 5 places, mirrored or not


@given(st.integers(0, 999), st.integers(1, 5), st.integers(1, 7))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_crop_is_aligned(seed: int, high: int, wide: int) -> None:
    more = f"batch_size: 4 mirror: true crop_height: {high} crop_width: {wide}"
    data, found = batches(net_of(text(more), TRAIN, seed), 1)[0]
    assert data.shape == (4, 3, high, wide)
    for i in range(4):
        check_aligned(data[i], found[i, 0], i)


def test_mean_and_scale_leave_labels_alone(folder: Path) -> None:
    data, found = batches(net_of(text(transform="mean_value: 7 scale: 2")), 1)[0]
    np.testing.assert_array_equal(data, [(blob(i) - 7) * 2 for i in range(3)])
    np.testing.assert_array_equal(found[:, 0], [labels(i) for i in range(3)])
    mean = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(np.float32)
    write_binaryproto("mean.binaryproto", mean)
    data, _ = batches(net_of(text(transform='mean_file: "mean.binaryproto"')), 1)[0]
    np.testing.assert_array_equal(data, [blob(i) - mean for i in range(3)])


def test_grey_images_and_another_size() -> None:
    data, found = batches(net_of(text("batch_size: 2 is_color: false new_height: 10 new_width: 14")), 1)[0]
    assert data.shape == (2, 1, 10, 14)
    np.testing.assert_array_equal(found[0, 0], labels(0).repeat(2, axis=0).repeat(2, axis=1))


@pytest.mark.parametrize("mirror", ["", "mirror: true"])
def test_labels_of_every_so_many_th_pixel(mirror: str) -> None:
    net = net_of(text(f"batch_size: 4 new_height: 6 new_width: 9 label_divide_factor: 3 {mirror}"))
    rows, columns = np.arange(2) * 5 // 2, np.arange(3) * 7 // 3
    seen = set()
    for data, found in batches(net, 4):
        assert data.shape == (4, 3, 6, 9)
        assert found.shape == (4, 1, 2, 3)
        for i in range(4):
            want = labels(i)[rows[:, None], columns]
            flip = found[i, 0, 0, 0] != want[0, 0]
            np.testing.assert_array_equal(found[i, 0], want[:, ::-1] if flip else want)
            seen.add(flip)
    assert seen == ({False, True} if mirror else {False})


def test_a_batch_of_one_takes_its_image_s_size(folder: Path) -> None:
    Image.fromarray(image(9, 4, 9)).save("images/other.png")
    save_labels(folder / "images/otherlab.png", labels(9, 4, 9))
    (folder / "list.txt").write_text("im0.png lab0.png\nother.png otherlab.png\n")
    taken = batches(net_of(text("batch_size: 1")), 2)
    assert [found.shape for _, found in taken] == [(1, 1, 5, 7), (1, 1, 4, 9)]


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_a_seed_repeats_and_a_state_resumes(phase) -> None:
    more = "batch_size: 3 shuffle: true rand_skip: 3 mirror: true crop_height: 2 crop_width: 3"
    check_repeats_and_resumes(text(more), phase)


@pytest.mark.parametrize(
    ("more", "transform", "message"),
    [
        ("", "", "batch_size must be > 0, got 0"),
        ("batch_size: 2 new_width: 3", "", "give both new_height and new_width, got 0 and 3"),
        ("batch_size: 2 crop_width: 3", "", "give both crop_height and crop_width, got 0 and 3"),
        ("batch_size: 2", "mirror: true", "give mirror, crop_height and crop_width in dense_image_data_param"),
        ("batch_size: 2", "crop_size: 2", "give mirror, crop_height and crop_width in dense_image_data_param"),
        ("batch_size: 2 crop_height: 6 crop_width: 3", "", "list.txt:1: im0.png: the crop, 3 wide and 6 high, is larger"),
        ("batch_size: 2 label_divide_factor: 2", "", "list.txt:1: im0.png: every 2-th row and column needs labels, but"),
        ("batch_size: 2 label_divide_factor: 0", "", "label_divide_factor must be > 0, and 1 beside a crop; got 0"),
        ("batch_size: 2 label_divide_factor: 2 crop_height: 2 crop_width: 2", "", "1 beside a crop; got 2"),
        ("batch_size: 2 rand_skip: 5", "", "rand_skip 5 is more than the 4 images listed"),
    ],
)
def test_errors(more: str, transform: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        net_of(text(more, transform))


def test_errors_name_the_line(folder: Path) -> None:
    (folder / "list.txt").write_text("im0.png lab0.png\nim1.png lab1.png more\n")
    with pytest.raises(LayerError, match=r'list.txt:2: "im1.png lab1.png more" is not NAME LABEL_IMAGE, two words'):
        net_of(text())
