"""Detection with SSD nets, from Python and from the command line: one prior over a 4 x 6 input, whose code is known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from coloured import CENTRED, COLOURED, MEANS, check_planes
from detecting import DETECTOR
from detector_nets import SSD
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.detection import load
from minicaffe.detection.detect import detect
from minicaffe.detection.families import FAMILY_NAMES, detect_ssd
from minicaffe.detection.rows import RowsEnd, pick_rows, prepare_ssd_image
from minicaffe.detection.ssd import ssd_layer
from minicaffe.errors import DataError, Error

PICTURE = np.full((40, 60, 3), 104 + 2, np.uint8)


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Net:
    """Scores 0.9 for class 2; the first channel's mean moves the box by as many tenths of its width."""
    monkeypatch.chdir(tmp_path)
    Path("ssd.prototxt").write_text(SSD)
    made = Net("ssd.prototxt", TEST)
    for name in ("loc", "conf"):
        for blob in made.params[name]:
            blob.data[...] = 0
    made.params["loc"][0].data[0, 0] = 1
    made.params["conf"][1].data[...] = [0.9, 0.05, 0.9]
    made.save("ssd.caffemodel")
    Image.fromarray(PICTURE).save("photo.png")
    return made


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["detect", "ssd.prototxt", "ssd.caffemodel", "photo.png", *map(str, arguments)])


def test_boxes_come_out_in_the_images_pixels(net: Net) -> None:
    """Blue is 2 above its mean: the box moves by 0.2 of its width of 20 pixels."""
    found = detect_ssd(net, PICTURE)
    assert found.classes.tolist() == [2]
    np.testing.assert_allclose(found.scores, [0.9], rtol=1e-6)
    np.testing.assert_allclose(found.boxes, [[24, 10, 44, 30]], rtol=1e-5)


def test_means_scale_factor_and_threshold(net: Net) -> None:
    found = detect_ssd(net, PICTURE, means=(100, 0, 0), scale_factor=0.5)
    np.testing.assert_allclose(found.boxes, [[26, 10, 46, 30]], rtol=1e-5)
    assert len(detect_ssd(net, PICTURE, threshold=0.95)) == 0
    assert len(detect_ssd(net, PICTURE, max_detections=0)) == 0


@pytest.mark.parametrize("name", ["loc", "conf"])
def test_scores_and_places_that_are_no_numbers(net: Net, name: str) -> None:
    """DetectionOutput drops a NaN score: the error names the blob that it read."""
    net.params[name][1].data[2] = np.nan
    with pytest.raises(Error, match=f'scores that are NaN or infinite in "{name}": minicaffe.check_finite finds'):
        detect_ssd(net, PICTURE)
    rows = RowsEnd("found", ["data"], 3, lambda arrays: np.array([[0, 1, np.inf, 0, 0, 1, 1]]), "a net", sources=["prior"])
    with pytest.raises(Error, match='infinite in "found"'):
        rows.rows(net)


def test_load_knows_an_ssd_net(net: Net) -> None:
    detector = load(
        "ssd.prototxt", "ssd.caffemodel", classes=["__background__", "cat", "dog"], means=(100, 0, 0), scale_factor=0.5
    )
    for image in (PICTURE, "photo.png"):
        found = detector(image)
        assert [detector.classes[k] for k in found.classes] == ["dog"]  # type: ignore[index]
        np.testing.assert_allclose(found.boxes, [[26, 10, 46, 30]], rtol=1e-5)
    np.testing.assert_allclose(load(net)(PICTURE).boxes, [[24, 10, 44, 30]], rtol=1e-5)
    with pytest.raises(Error, match=r"ssd\.prototxt: an SSD net takes no proposals"):
        detector(PICTURE, proposals=[[0, 0, 9, 9]])
    with pytest.raises(Error, match=r"ssd\.prototxt: cfg has no effect: the prototxt of an SSD net fixes the input size"):
        load("ssd.prototxt", cfg={})


def test_rows_are_ranked_clipped_and_missing_ones_left_out() -> None:
    rows = np.array([[0, 1, 0.6, -0.5, 0, 0.5, 1], [0, 2, 0.9, 0.5, 0.5, 1.5, 2], [0, -1, -1, -1, -1, -1, -1]], np.float32)
    found = pick_rows(rows, (40, 60))
    assert found.classes.tolist() == [2, 1]
    np.testing.assert_allclose(found.boxes, [[30, 20, 59, 39], [0, 0, 30, 39]])
    assert found.boxes.dtype == np.float32 and len(pick_rows(rows[2:], (40, 60))) == 0


def test_the_resized_image_holds_whole_values_before_the_mean_goes() -> None:
    image = np.random.default_rng(1).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    data = prepare_ssd_image(image, (4, 6), (0.5, 0.5, 0.5), 2.0)
    assert data.shape == (1, 3, 4, 6) and (data % 2 == 1).all()
    with pytest.raises(DataError, match=r"an image must be \(height, width, 3\) of uint8, got shape \(7, 9\) of uint8"):
        prepare_ssd_image(image[..., 0], (4, 6))


def test_nets_that_do_not_fit(net: Net) -> None:
    with pytest.raises(Error, match=r"ssd\.prototxt: a DetectionOutput layer makes the detections: use minicaffe\.detection"):
        detect(net, PICTURE)
    Path("plain.prototxt").write_text('input: "data" input_shape { dim: 1 dim: 3 dim: 4 dim: 6 }')
    plain = Net("plain.prototxt", TEST)
    assert ssd_layer(plain) is None
    with pytest.raises(Error, match=f"this net does not end as {FAMILY_NAMES} do"):
        detect_ssd(plain, PICTURE)
    Path("grey.prototxt").write_text(SSD.replace("dim: 3 dim: 4", "dim: 1 dim: 4"))
    with pytest.raises(Error, match=r"an SSD net has one input, of shape \(N, 3, .*; this net's are data \(1, 1, 4, 6\)"):
        detect_ssd(Net("grey.prototxt", TEST), PICTURE)


def test_the_command_prints_draws_and_gives_json(net: Net) -> None:
    Path("names.txt").write_text("cat\ndog\n")
    lines = run("--classes", "names.txt", "--draw", "drawn")
    assert lines.exit_code == 0, lines.output
    assert "photo.png: 1 detection in" in lines.output
    assert "dog  0.900  x1   24.0  y1   10.0  x2   44.0  y2   30.0" in lines.output
    with Image.open("drawn/photo.png") as drawn:
        assert drawn.size == (60, 40)
    parsed = json.loads(run("--json", "--mean", "100,0,0", "--scale-factor", "0.5").stdout)
    assert parsed[0]["detections"] == [{"class": "class 2", "class_index": 2, "score": 0.9, "box": [26, 10, 46, 30]}]
    Path("names.txt").write_text("cat\n")
    assert "names.txt: 2 classes with the background, but found has 3" in run("--classes", "names.txt").output


@pytest.mark.parametrize("option", ["--scale", "--max-size", "--nms", "--proposals", "--cfg"])
def test_options_that_an_ssd_net_has_no_use_for(net: Net, option: str) -> None:
    Path("1").write_text("{}")
    result = run(option, "1")
    assert result.exit_code == 1
    assert f"{option} does nothing here: the prototxt of an SSD net fixes the input size and NMS" in result.output


def test_a_scale_factor_is_for_nets_that_end_in_rows(net: Net) -> None:
    Path("ssd.prototxt").write_text(DETECTOR)
    result = run("--scale-factor", "2", "--random-weights")
    assert result.exit_code == 1
    assert f"--scale-factor does nothing here: only {FAMILY_NAMES} take it" in result.output


def test_the_command_names_means_and_factor_when_nothing_is_found(net: Net) -> None:
    result = run("--threshold", "1", "--mean", "1,2,3.5", "--scale-factor", "0.5")
    assert result.exit_code == 0, result.output
    assert re.search(
        r"Preprocessing: means 1,2,3.5, factor 0.5 \(--mean.*\nnothing reaches --threshold 1: the best score is \S+ Check",
        result.stderr,
    )


def test_trace_shows_the_detections_in_pixels_of_the_photo(net: Net) -> None:
    """The image of 60 x 40 is an input of 6 x 4."""
    result = CliRunner().invoke(main, ["trace", "ssd.prototxt", "ssd.caffemodel", "--image", "photo.png", "--out", "t.html"])
    assert result.exit_code == 0, result.output
    data = json.loads(re.findall(r'id="trace">(.*?)</script>', Path("t.html").read_text(encoding="utf-8"), re.S)[0])
    (found,) = data["detections"]
    assert found["class_index"] == 2
    np.testing.assert_allclose(found["box"], [24, 10, 44, 30], rtol=1e-5)
    assert (data["image"]["scale"], data["image"]["photo"]) == (pytest.approx(0.1), 1)


def test_what_the_net_is_given(net: Net) -> None:
    detect_ssd(net, COLOURED)
    check_planes(net, "data", [6, 13, -33])
    detect_ssd(net, COLOURED, means=MEANS, scale_factor=0.5)
    check_planes(net, "data", [number / 2 for number in CENTRED])
