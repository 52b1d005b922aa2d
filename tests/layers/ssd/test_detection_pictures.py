"""The pictures that DetectionOutput draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from layer_case import LayerCase
from PIL import Image
from ssd_reference import priors_blob

from minicaffe import files
from minicaffe.errors import LayerError

BOXES = np.array([[0.25, 0.25, 0.75, 0.75], [0.0, 0.0, 0.25, 0.25]])
SCORES = np.array([[[0.0, 0.9], [0.0, 0.5]], [[0.0, 0.1], [0.0, 0.1]]])
IMAGES = np.random.default_rng(2).integers(0, 256, (2, 3, 40, 60))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def text(more: str = 'save_file: "found.avi"', transform: str = "") -> str:
    return (
        f'type: "DetectionOutput" transform_param {{ {transform} }} '
        f"detection_output_param {{ num_classes: 2 visualize: true {more} }}"
    )


def case(inside: str, images: np.ndarray = IMAGES, shift: float = 0.0, scale: float = 1.0) -> LayerCase:
    blobs = (np.zeros((2, 8)), SCORES.reshape(2, 4), priors_blob(BOXES), (images - shift) * scale)
    return LayerCase(inside, *blobs, dtype=np.float32)


def read(name: str) -> np.ndarray:
    """A picture as the net's image, (3, H, W), blue, green, red."""
    return np.asarray(Image.open(name))[:, :, ::-1].transpose(2, 0, 1)


def test_what_is_likely_is_framed() -> None:
    """On the first image the box of 0.9 is drawn and that of 0.5 is not; nothing is on the second."""
    run = case(text(transform="mean_value: 100 scale: 0.5"), shift=100, scale=0.5)
    run.forward()
    np.testing.assert_array_equal(read("found_000002.png"), IMAGES[1])
    changed = (read("found_000001.png") != IMAGES[0]).any(axis=0)
    assert changed[10, 20:40].all() and changed[30, 16:44].all()
    assert not changed[32:].any() and not changed[:10].any()
    run.forward()
    assert Path("found_000004.png").is_file()
    assert run.layer.training_state() == {"pictures": 4}
    other = case(text())
    other.layer.restore_training_state({"pictures": 4})
    other.forward()
    assert Path("found_000006.png").is_file()


def test_threshold_names_and_kind() -> None:
    Path("map.prototxt").write_text('item { name: "cat" label: 1 display_name: "Cat" }')
    run = case(text('save_file: "a.jpg" visualize_threshold: 0.95 save_output_param { label_map_file: "map.prototxt" }'))
    assert run.layer.pictures.names == ["class 0", "Cat"]  # type: ignore[attr-defined]
    run.forward()
    assert np.abs(read("a_000001.jpg").astype(int).mean() - IMAGES[0].mean()) < 3


def test_grey_resized() -> None:
    run = case(text(transform="resize_param { height: 20 width: 90 interp_mode: NEAREST }"), IMAGES[:, :1])
    run.forward()
    picture = read("found_000002.png")
    assert picture.shape == (3, 20, 90)
    np.testing.assert_array_equal(picture[1], IMAGES[1, 0][::2][:, np.arange(90) * 60 // 90])


@pytest.mark.parametrize(
    ("inside", "images", "message"),
    [
        (text(), IMAGES[:1], r"visualize needs 2 images \(N, C, H, W\), bottom 3 has shape \(1, 3, 40, 60\)"),
        (text(), IMAGES[:, :2], "visualize needs images of 1 or 3 channels, got 2"),
        (text(transform="scale: 0"), IMAGES, "transform_param.scale is 0"),
        (text(transform="mean_value: 1 mean_value: 2"), IMAGES, "2 mean_value given for 3 channels"),
        (text(transform="resize_param { height: 3 }"), IMAGES, "resize_param needs a height and a width > 0"),
        (text('save_file: "/dev/null/a.png"'), IMAGES, "/dev/null/a.png is not in the working directory"),
    ],
)
def test_errors(inside: str, images: np.ndarray, message: str) -> None:
    with pytest.raises(LayerError, match='DetectionOutput layer "layer": .*' + message):
        case(inside, images).forward()


def test_a_picture_follows_no_link_to_elsewhere(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_allowed", set())
    outside = tmp_path_factory.mktemp("outside")
    Path("a_000001.png").symlink_to(outside / "new.png")
    with pytest.raises(LayerError, match=r"a_000001\.png .* is not in the working directory"):
        case(text('save_file: "a.png"')).forward()
    assert not list(outside.iterdir())


def test_a_picture_that_no_run_wrote_is_kept() -> None:
    Path("out").mkdir()
    case(text('save_file: "out/a.png"')).forward()
    case(text('save_file: "out/a.png"')).forward()
    Path("out/a_000002.png").write_bytes(b"mine")
    with pytest.raises(LayerError, match=r"a_000002\.png is there, and no run wrote it: not overwritten"):
        case(text('save_file: "out/a.png"')).forward()
    assert Path("out/a_000002.png").read_bytes() == b"mine"
