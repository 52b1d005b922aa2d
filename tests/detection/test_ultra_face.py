"""Detection of faces with an UltraFace, by hand and against its script's arithmetic as plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from coloured import COLOURED, check_planes
from detector_nets import ULTRA_FACE
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.detection import load
from minicaffe.detection.ultra_face import prior_rows, priors
from minicaffe.errors import Error

PHOTO = np.zeros((48, 120, 3), np.uint8)
"""Thrice as wide and twice as high as the net's input."""


@pytest.fixture(autouse=True)
def prototxt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ultra.prototxt").write_text(ULTRA_FACE)


def ultra_face(prior: int, score: float, deltas: list[float]) -> Net:
    """One prior has this score, as a logit, and these deltas; the others have a score of 0.0001."""
    net = Net("ultra.prototxt", TEST)
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = 0
    conf, loc = net.params["conf"][1].data.reshape(64, 2), net.params["loc"][1].data.reshape(64, 4)
    conf[:, 0] = 9
    conf[prior] = [0, score]
    loc[prior] = deltas
    return net


MOVED = 22, 2.0, [1, -2, 0, np.log(1.5) / 0.2]
"""In the cell (1, 2) of 8 pixels the prior of 16: its centre, (20, 12), moves by 1.6 and -3.2, its height grows by half."""


def test_a_prior_that_moves() -> None:
    found = load(ultra_face(*MOVED))(PHOTO)
    assert found.classes.tolist() == [1]
    np.testing.assert_allclose(found.scores, [1 / (1 + np.exp(-2))], rtol=1e-6)
    np.testing.assert_allclose(found.boxes, [[40.8, 0, 88.8, 41.6]], rtol=1e-5)
    assert len(load(ultra_face(22, 0.5, [0] * 4))(PHOTO)) == 0, "0.62 is less than its script's threshold, 0.7"
    assert len(load(ultra_face(22, 0.5, [0] * 4), threshold=0.5)(PHOTO)) == 1


def test_how_an_image_is_prepared() -> None:
    """Red first; --rgb and --mean, blue first, change that of no colour."""
    net = ultra_face(*MOVED)
    load(net)(COLOURED)
    check_planes(net, "input", [(90 - 127) / 128, (130 - 127) / 128, (110 - 127) / 128])
    load(net, means=(10, 30, 80), scale_factor=0.5)(COLOURED)
    check_planes(net, "input", [5, 50, 50])


def test_priors_are_placed_as_in_its_script() -> None:
    wanted = []
    for stride, sides in ((8, (10, 16, 24)), (16, (32, 48)), (32, (64, 96)), (64, (128, 192, 256))):
        for y in range(-(-24 // stride)):
            for x in range(-(-40 // stride)):
                wanted += [[(x + 0.5) * stride / 40, (y + 0.5) * stride / 24, side / 40, side / 24] for side in sides]
    np.testing.assert_allclose(priors(24, 40), np.clip(wanted, 0, 1), rtol=1e-6)
    assert len(priors(240, 320)) == 4420


def by_script(scores: np.ndarray, deltas: np.ndarray, placed: np.ndarray) -> np.ndarray:
    """Rows of score and corners, the best first."""
    left = []
    for score, t, (x, y, w, h) in zip(scores, deltas, placed, strict=True):
        cx, cy, wide, high = x + 0.1 * t[0] * w, y + 0.1 * t[1] * h, w * np.exp(0.2 * t[2]), h * np.exp(0.2 * t[3])
        left.append([score, cx - wide / 2, cy - high / 2, cx + wide / 2, cy + high / 2])
    left = sorted(left, reverse=True)[:200]
    kept: list[list[float]] = []
    for one in left:
        if all(overlap(one[1:], other[1:]) <= 0.3 for other in kept):
            kept.append(one)
    return np.array(kept)


def overlap(a: list[float], b: list[float]) -> float:
    shared = max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


@pytest.mark.parametrize("seed", range(3))
def test_the_rows_are_those_of_its_script(seed: int) -> None:
    """Of 270 priors, of which the 200 best count."""
    random, placed = np.random.default_rng(seed), priors(48, 88)
    scores = random.uniform(size=len(placed)).astype(np.float32)
    deltas = random.normal(size=(len(placed), 4)).astype(np.float32)
    rows = prior_rows([np.stack([1 - scores, scores], axis=1)[None], deltas[None]], placed)
    wanted = by_script(scores, deltas, placed)
    assert 10 < len(wanted) < 200 < len(placed)
    np.testing.assert_allclose(rows[:, 2:], wanted, rtol=1e-4, atol=1e-5)
    assert (rows[:, 1] == 1).all()


def test_other_numbers_of_boxes_are_named() -> None:
    Path("other.prototxt").write_text(ULTRA_FACE.replace("dim: 24", "dim: 32"))
    with pytest.raises(Error, match=r'"boxes" has 64 boxes; an UltraFace of an image of 32 x 40 has 79'):
        load("other.prototxt")


def test_the_command() -> None:
    ultra_face(*MOVED).save("ultra.caffemodel")
    Image.fromarray(PHOTO).save("photo.png")
    words = ["detect", "ultra.prototxt", "ultra.caffemodel", "photo.png"]
    result = CliRunner().invoke(main, [*words, "--draw", "drawn"])
    assert "  face  0.881  x1   40.8  y1    0.0  x2   88.8  y2   41.6\n" in result.output, result.output
    assert Path("drawn/photo.png").is_file()
    result = CliRunner().invoke(main, [*words, "--threshold", "0.9"])
    assert "Preprocessing: means 127,127,127, factor 0.0078125 (--mean and --scale-factor change them)\n" in result.output
    assert "nothing reaches --threshold 0.9: the best score is 0.8808. Check" in result.output
    refused = CliRunner().invoke(main, [*words, "--nms", "0.5"]).output
    assert "--nms does nothing here: the script of an UltraFace fixes the input size and NMS" in refused


@pytest.mark.parametrize("rgb", [[], ["--rgb"]])
def test_trace_shows_the_face(rgb: list[str]) -> None:
    """The net takes red first with and without --rgb."""
    ultra_face(*MOVED).save("ultra.caffemodel")
    Image.fromarray(np.ascontiguousarray(COLOURED[..., ::-1])).save("photo.png")
    words = ["trace", "ultra.prototxt", "ultra.caffemodel", "--image", "photo.png", "-o", "trace.html", "--npz", "a.npz"]
    result = CliRunner().invoke(main, [*words, *rgb])
    assert result.exit_code == 0, result.output
    with np.load("a.npz") as arrays:
        np.testing.assert_allclose(arrays["data/input"][0, :, 0, 0], [(90 - 127) / 128, 3 / 128, (110 - 127) / 128], rtol=1e-5)
    assert "face" in Path("trace.html").read_text(encoding="utf-8")
