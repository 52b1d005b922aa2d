"""Detection of faces with an SSH, against its script's arithmetic as a plain loop."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from coloured import CENTRED, COLOURED, check_planes
from coloured import MEANS as COLOUR_MEANS
from detector_nets import INPUTS, SSH, module
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.data.images import resize_bilinear
from minicaffe.data.settings import DetectionSettings, settings_from
from minicaffe.detection import Detections, load
from minicaffe.detection.family import FindOptions
from minicaffe.detection.ssh import Ssh, image_scales, ssh_modules
from minicaffe.errors import Error

pytestmark = pytest.mark.filterwarnings("ignore:.*SSH reads its limits")
WILD = Path(__file__).resolve().parents[3] / "shared" / "wild" / "mahyarnajibi__SSH"
MEANS = (102.9801, 115.9465, 122.7717)
PHOTO = np.random.default_rng(3).integers(0, 256, (40, 60, 3), dtype=np.uint8)
SMALL: dict[str, object] = {"TEST": {"SCALES": [48], "MAX_SIZE": 64}}


@pytest.fixture(autouse=True)
def prototxt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ssh.prototxt").write_text(SSH)


def ssh(settings: DetectionSettings | None = None) -> Net:
    return Net("ssh.prototxt", TEST, settings=settings)


def detect_ssh(net: Net, image: np.ndarray, threshold: float = 0.05, most: int = 100) -> Detections:
    return Ssh().find(net, image, FindOptions(threshold, most))


def by_script(net: Net, scales: list[float], pyramid: bool, threshold: float) -> np.ndarray:
    """Its test.py, face by face: (n, 5), before they are cut to the image."""
    found = []
    for i, scale in enumerate(scales):
        pixels = PHOTO.astype(np.float32) - np.float32(MEANS)
        pixels = resize_bilinear(pixels, round(40 * scale), round(60 * scale), scale)
        net.blobs["data"].reshape(1, 3, *pixels.shape[:2])
        net.blobs["data"].data[0] = pixels.transpose(2, 0, 1)
        net.blobs["im_info"].data[...] = [*pixels.shape[:2], scale]
        net.forward()
        for number in (1, 2, 3):
            if pyramid and i == len(scales) - 1 and number == 3:
                continue
            for box, score in zip(
                net.blobs[f"m{number}@ssh_boxes"].data, net.blobs[f"m{number}@ssh_cls_prob"].data, strict=True
            ):
                if score[0] > threshold:
                    found.append([*(box[1:5] / np.float32(scale)), score[0]])
    left, kept = sorted(found, key=lambda row: -row[4]), []
    while left:
        best = left.pop(0)
        kept.append(best)
        left = [row for row in left if overlap(best, row) <= 0.3]
    return np.array(kept)


def overlap(one: list[float], other: list[float]) -> float:
    sides = [min(one[k + 2], other[k + 2]) - max(one[k], other[k]) + 1 for k in (0, 1)]
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (one, other)]
    shared = max(sides[0], 0) * max(sides[1], 0)
    return float(shared / (areas[0] + areas[1] - shared))


@pytest.mark.parametrize("scales", [[48], [16, 32, 48]])
def test_as_the_script(scales: list[int]) -> None:
    """One scale: 64 / 60, as the long side decides; a pyramid: each over 800 times a base of 20, as the short side decides."""
    net = ssh(settings_from({"TEST": {"SCALES": scales, "MAX_SIZE": 64}}))
    assert ssh_modules(net) == [[f"m{i}@ssh_boxes", f"m{i}@ssh_cls_prob"] for i in (1, 2, 3)]
    found = detect_ssh(net, PHOTO, threshold=0.6, most=999)
    factors = [64 / 60] if len(scales) == 1 else [scale / 800 * 20 for scale in scales]
    assert image_scales(40, 60, net.settings) == factors
    wanted = by_script(net, factors, len(scales) > 1, 0.6)
    assert 5 < len(wanted) < 300 and len(found) == len(wanted)
    np.testing.assert_allclose(found.scores, wanted[:, 4], rtol=1e-6)
    np.testing.assert_allclose(found.boxes, np.clip(wanted[:, :4], 0, [59, 39, 59, 39]), atol=1e-4)
    assert set(found.classes) == {1} and found.best == wanted[0, 4]
    assert len(detect_ssh(net, PHOTO, threshold=0.6, most=3)) == 3


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_a_pyramids_scales(height: int, width: int) -> None:
    """Proportional; the long side of the base is at most 1200."""
    settings = settings_from({"TEST": {"SCALES": [500, 800, 1600]}})
    small, base, large = image_scales(height, width, settings)
    assert base * min(height, width) <= 800 * (1 + 1e-9) and round(base * max(height, width)) <= 1200
    assert math.isclose(small, base * 5 / 8) and math.isclose(large, base * 2)


def test_scales_of_its_own() -> None:
    """1200 and 1600 where nobody gave any; the given ones, also if they are an R-CNN's."""
    detector = load("ssh.prototxt")
    test = detector.net.settings.test
    assert (test.scales, test.max_size, detector.classes) == ((1200,), 1600, ["__background__", "face"])
    assert load("ssh.prototxt", cfg={"TEST": {"SCALES": [600]}}).net.settings.test.scales == (600,)
    assert load(ssh()).net.settings.test.scales == (600,)


def test_the_command() -> None:
    ssh().save("ssh.caffemodel")
    Image.fromarray(PHOTO[..., ::-1]).save("photo.png")
    words = ["detect", "ssh.prototxt", "ssh.caffemodel", "photo.png", "--threshold"]
    result = CliRunner().invoke(main, [*words, "0.999", "--scale", "48", "--max-size", "64"])
    net = ssh(settings_from(SMALL))
    net.copy_from("ssh.caffemodel")
    best = detect_ssh(net, PHOTO, threshold=0)
    assert f"the best score is {best.scores[0]:.4g}. Check" in result.output
    assert "Preprocessing: short side 48, long side at most 64, means" in result.output
    assert "122.772, NMS 0.3 (--cfg FILE.yml changes them" in result.output
    shown = CliRunner().invoke(main, [*words, "0.6", "--scale", "48", "--max-size", "64", "--max-detections", "1"]).output
    assert f"  face  {best.scores[0]:.3f}  x1 {best.boxes[0, 0]:>6.1f}" in shown, shown
    assert "short side 1200, long side at most 64" in CliRunner().invoke(main, [*words, "1", "--max-size", "64"]).output
    Path("net.yml").write_text("TEST: { SCALES: [16, 32, 48] }")
    text = CliRunner().invoke(main, [*words, "1", "--cfg", "net.yml"]).output
    assert "the best score is 0." in text and "Preprocessing: a pyramid of 16,32,48 over 800, means" in text


def test_what_is_no_ssh_and_what_does_not_fit() -> None:
    net = ssh(settings_from(SMALL))
    net.params["m2@ssh_score"][1].data[0] = np.nan
    with pytest.raises(Error, match='NaN or infinite in "m2@ssh_cls_prob"'):
        detect_ssh(net, PHOTO)
    with pytest.raises(Error, match=r"TEST\.SCALE_MULTIPLE_OF must be 1 for an SSH, got 32"):
        Ssh().find(net, PHOTO, FindOptions(settings=settings_from({"TEST": {"SCALE_MULTIPLE_OF": 32}})))
    with pytest.raises(Error, match="takes no proposals"):
        load(net)(PHOTO, proposals=[[0, 0, 9, 9]])
    Path("ssh.prototxt").write_text(INPUTS + module(1))
    assert ssh_modules(ssh()) == [["m1@ssh_boxes", "m1@ssh_cls_prob"]]
    more = '\nlayer { name: "more" type: "Power" bottom: "m1@ssh_boxes" top: "more" }'
    Path("ssh.prototxt").write_text(INPUTS + module(1) + more)
    assert ssh_modules(ssh()) == []


@pytest.mark.skipif(not WILD.is_dir(), reason="../shared/wild is absent")
def test_the_published_net_is_known() -> None:
    net = Net(str(WILD / "SSH" / "models" / "test_ssh.prototxt"), TEST)
    assert ssh_modules(net) == [[f"m{i}@ssh_boxes", f"m{i}@ssh_cls_prob"] for i in (1, 2, 3)]


def test_what_the_net_is_given() -> None:
    """At a scale of 64 / 60: the long side decides."""
    net = ssh(settings_from({"PIXEL_MEANS": [[list(COLOUR_MEANS)]], "TEST": {"SCALES": [48], "MAX_SIZE": 64}}))
    detect_ssh(net, COLOURED)
    assert net.blobs["data"].shape == (1, 3, 43, 64)
    np.testing.assert_allclose(net.blobs["im_info"].data, [[43, 64, 64 / 60]], rtol=1e-6)
    check_planes(net, "data", CENTRED)
