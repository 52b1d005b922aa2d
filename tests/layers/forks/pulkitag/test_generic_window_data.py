"""GenericWindowData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, image, net_of, save_images
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minicaffe.data.image_bytes import resized
from minicaffe.errors import LayerError
from minicaffe.formats.weights import write_binaryproto
from minicaffe.layers.data.window_data import clipped
from minicaffe.mode import TRAIN

HEAD = "# GenericDataLayer\n{0}\n{1}\n{2}\n"
EXAMPLES = (
    "# 0\nim0.png 3 20 24 0 0 7 7\nim1.png 3 20 24 4 5 11 12\n0.5\n-2\n"
    "# 1\nim1.png 3 20 24 0 0 15 15\nim1.png 3 20 24 16 12 23 19\n3\n4\n"
)
GROUPS = HEAD.format(2, 2, 2) + EXAMPLES


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two images, and two examples of two windows and two numbers."""
    monkeypatch.chdir(tmp_path)
    save_images(tmp_path / "images", 2, height=20, width=24)
    (tmp_path / "windows.txt").write_text(GROUPS)
    return tmp_path


def text(more: str = "", transform: str = "") -> str:
    for default in ("batch_size: 1", "crop_size: 8"):
        more += f" {default}" if default.split()[0] not in more else ""
    return (
        f'layer {{ name: "in" type: "GenericWindowData" top: "data" top: "label" transform_param {{ {transform} }}\n'
        f'generic_window_data_param {{ source: "windows.txt" root_folder: "images/" {more} }} }}'
    )


def part(index: int, x: int, y: int, size: int = 8) -> np.ndarray:
    """A square of an image, (3, size, size), BGR."""
    pixels = image(index, 20, 24)[y : y + size, x : x + size, ::-1]
    return resized(np.ascontiguousarray(pixels), 8, 8).transpose(2, 0, 1).astype(np.float32)


def test_examples_in_order_and_again_with_their_images_as_channels() -> None:
    """Windows of the crop's own size are not resized; one of twice the size is."""
    first, second, third = batches(net_of(text()), 3)
    assert first[0].shape == (1, 6, 8, 8)
    np.testing.assert_array_equal(first[0][0], np.concatenate([part(0, 0, 0), part(1, 4, 5)]))
    np.testing.assert_array_equal(second[0][0], np.concatenate([part(1, 0, 0, 16), part(1, 16, 12)]))
    np.testing.assert_array_equal(third[0], first[0])
    assert [labels.ravel().tolist() for _, labels in (first, second)] == [[0.5, -2], [3, 4]]
    assert first[1].shape == (1, 2, 1, 1)


@given(st.integers(0, 16), st.integers(0, 12), st.integers(1, 8))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_window_in_the_image_is_that_square(x: int, y: int, size: int) -> None:
    window = f"# 0\nim1.png 3 20 24 {x} {y} {x + size - 1} {y + size - 1}\n7\n"
    Path("windows.txt").write_text(HEAD.format(1, 1, 1) + window)
    data, label = batches(net_of(text()), 1)[0]
    np.testing.assert_array_equal(data[0], part(1, x, y, size))
    assert label.item() == 7


def test_mean_and_scale() -> None:
    [(data, _)] = batches(net_of(text("scale: 0.5", "mean_value: 10")), 1)
    np.testing.assert_array_equal(data[0, :3], (part(0, 0, 0) - 10) / 2)


def test_a_mean_images_centre_counts() -> None:
    mean = np.arange(3 * 100, dtype=np.float32).reshape(1, 3, 10, 10)
    write_binaryproto("m.binaryproto", mean)
    [(data, _)] = batches(net_of(text(transform='mean_file: "m.binaryproto"')), 1)
    np.testing.assert_array_equal(data[0, :3], part(0, 0, 0) - mean[0, :, 1:9, 1:9])


def test_gray_images_have_a_channel_each() -> None:
    [(data, _)] = batches(net_of(text("is_gray: true")), 1)
    assert data.shape == (1, 2, 8, 8)
    np.testing.assert_allclose(data[0, 0], np.tensordot([0.114, 0.587, 0.299], part(0, 0, 0), 1), atol=1)


def test_the_images_of_an_example_are_mirrored_together() -> None:
    seen, wanted = set(), np.concatenate([part(0, 0, 0), part(1, 4, 5)])
    for data, _ in batches(net_of(text("mirror: true")), 24)[::2]:
        mirrored = not np.array_equal(data[0], wanted)
        np.testing.assert_array_equal(data[0], wanted[:, :, ::-1] if mirrored else wanted)
        seen.add(mirrored)
    assert seen == {True, False}


def test_a_random_crop_is_one_for_the_images_of_an_example(folder: Path) -> None:
    """Two windows of one image: their own places do not count."""
    places = set()
    for data, _ in batches(net_of(text("random_crop: true")), 24)[1::2]:
        np.testing.assert_array_equal(data[0, :3], data[0, 3:])
        [place] = [(x, y) for x in range(16) for y in range(12) if np.array_equal(part(1, x, y), data[0, :3])]
        places.add(place)
    assert len(places) > 4


def test_a_window_with_its_surroundings_by_hand() -> None:
    """A 4 x 4 box, crop 8, 2 pixels of context: it is doubled to 8 x 8, of which 2 are outside in the image's corner."""
    assert clipped((0, 0, 3, 3), (20, 24), 8, 2, False) == (0, 0, 6, 6)
    assert clipped((0, 0, 3, 3), (20, 24), 8, 0, False) == (0, 0, 3, 3)
    [(data, _)] = batches(net_of(text("context_pad: 2")), 1)
    x1, y1, x2, y2 = clipped((0, 0, 7, 7), (20, 24), 8, 2, False)
    assert x1 == y1 == 0
    assert x2 == y2 > 7
    np.testing.assert_array_equal(data[0, :3], part(0, 0, 0, x2 + 1))


@pytest.mark.parametrize("more", ["", "mirror: true", 'random_crop: true crop_mode: "square" batch_size: 3 cache_images: true'])
def test_a_seed_repeats_and_a_state_resumes(more: str) -> None:
    check_repeats_and_resumes(text(more), TRAIN, 3)


@pytest.mark.parametrize(
    ("windows", "more", "transform", "message"),
    [
        (None, "", "", "windows.txt: no such file"),
        ("# WindowData\n", "", "", 'windows.txt:1: expected "GenericDataLayer", got "WindowData"'),
        ("im0.png", "", "", 'windows.txt:1: expected "#", got "im0.png"'),
        (HEAD.format(0, 1, 1), "", "", "windows.txt:4: 0 examples of 1 images and 1 labels"),
        (HEAD.format(1, 2, 2) + EXAMPLES, "", "", "windows.txt: has more than its 1 examples"),
        (HEAD.format(3, 2, 2) + EXAMPLES, "", "", "windows.txt: the file ends before an example"),
        (HEAD.format(1, 1, 1) + "im0.png", "", "", 'windows.txt:5: expected "#", got "im0.png"'),
        (HEAD.format(1, 1, 1) + "# 0\nim0.png 3 20 24 0 0 24 7\n1", "", "", "the window 0 0 24 7 is outside the image"),
        (HEAD.format(1, 1, 1) + "# 0\nim0.png 3 20 24 0 0 7 7\nhigh", "", "", "windows.txt:7: expected a label"),
        (GROUPS, "crop_size: 0", "", "crop_size must be > 0, got 0"),
        (GROUPS, "batch_size: 0", "", "batch_size must be > 0, got 0"),
        (GROUPS, "context_pad: 4", "", "context_pad 4 on both sides leaves nothing of crop_size 8"),
        (GROUPS, 'crop_mode: "bent"', "", 'crop_mode "bent" is neither "warp" nor "square"'),
    ],
)  # fmt: skip
def test_errors_at_setup(folder: Path, windows: str | None, more: str, transform: str, message: str) -> None:
    (folder / "windows.txt").unlink()
    if windows is not None:
        (folder / "windows.txt").write_text(windows)
    with pytest.raises(LayerError, match='GenericWindowData layer "in": .*' + message):
        net_of(text(more, transform))


@pytest.mark.parametrize(
    ("windows", "more", "message"),
    [
        (GROUPS.replace("im0.png 3 20 24", "im0.png 3 24 20"), "", "im0.png: is 24 x 20, windows.txt says 20 x 24"),
        (GROUPS.replace("im0", "im7"), "", "im7.png"),
        (GROUPS, "random_crop: true crop_size: 20", "im0.png: is 24 x 20, a random crop of 20 needs more"),
    ],
)
def test_errors_while_reading(folder: Path, windows: str, more: str, message: str) -> None:
    (folder / "windows.txt").write_text(windows)
    with pytest.raises(LayerError, match='GenericWindowData layer "in": .*' + message):
        batches(net_of(text(more)), 1)
