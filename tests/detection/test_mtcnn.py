"""Detection of faces with an MTCNN, three nets in a row, by hand on made nets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from detector_nets import MTCNN
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.data.images import resize_bilinear
from minicaffe.data.settings import read_settings, settings_from
from minicaffe.detection import load
from minicaffe.detection.mtcnn import crop, following, joined, moved, scales, squares, stage_of
from minicaffe.errors import DataError, Error, SettingsError
from minicaffe.formats.prototxt import parse_net, read_net, to_text
from minicaffe.parameters import weights_of
from minicaffe.scaling.batch.recipe import Recipe
from minicaffe.scaling.batch.sources import Picture

MOVES = {"det1": (0.1, -0.2, 0.3, 0.1), "det2": (0, 0.05, -0.5, 0.22), "det3": (0.1, 0.2, 0, -0.1)}
DETECT = ["detect", "det1.prototxt", "det1.caffemodel"]
SAID = """\
det1.prototxt is MTCNN's first net; det2.prototxt and det3.prototxt in the same folder run after it
Preprocessing: means 127.5,127.5,127.5, factor 0.0078125, faces >= 20 pixels, pyramid factor 0.709, first thresholds 0.6,0.7 \
(--mean, --min-face and --scale-factor change them)
"""


def picture(*left: int, green: int = 255) -> np.ndarray:
    """Black, 60 x 40, with white squares of 20 x 20 from row 10 and these columns on; the last one has this green."""
    photo = np.zeros((40, 60, 3), np.uint8)
    for column in left:
        photo[10:30, column : column + 20] = 255
    photo[10:30, left[-1] : left[-1] + 20, 1] = green
    return photo


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P-Net finds cells that are all red, R-Net boxes with green in their mean; O-Net's score is the red of the left half."""
    monkeypatch.chdir(tmp_path)
    for name, text in MTCNN.items():
        Path(name).write_text(text)
        net = Net(name, TEST)
        for blobs in net.params.values():
            for blob in blobs:
                blob.data[...] = 0
        stem = Path(name).stem
        net.params["move"][1].data[...] = MOVES[stem]
        score, bias = (blob.data for blob in net.params["score"])
        planes = score.reshape(2, 3, *net.blobs["data"].shape[2:])  # red, green, blue; columns before rows
        if stem == "det1":
            planes[1, 0], bias[1] = 100 / 144, -95
        elif stem == "det2":
            planes[1, 1], bias[1] = 9 / 24**2, 3
        else:
            planes[1, 0, :24] = 2 / (24 * 48)
            bias[1] = 2
        net.save(f"{stem}.caffemodel")
    Image.fromarray(np.ascontiguousarray(picture(30)[..., ::-1])).save("photo.png")


FOUND = [24, 12.8, 50, 32.1]
"""P-Net's cell at the scale 0.6 is 31, 11 to 50, 30, counted from 1; moved 32.9, 7.2 to 55.7, 31.9; a square 31, 7 to 56, 31.
R-Net moves it to 31, 8.25, 43, 36.5; as a square 22, 8 to 51, 36. O-Net moves it to 25, 13.8, 51, 33.1."""


def test_a_face_goes_through_all_three_nets() -> None:
    found = load("det1.prototxt", "det1.caffemodel")(picture(30))
    assert found.classes.tolist() == [1]
    np.testing.assert_allclose(found.boxes, [FOUND], atol=1e-4)
    seen = resize_bilinear(picture(30)[7:36, 21:51, 2:].astype(np.float32), 48, 48)[:, :24]
    logit = 2 + 2 * ((seen.mean() - 127.5) * 0.0078125)
    np.testing.assert_allclose(found.scores, [1 / (1 + np.exp(-logit))], rtol=1e-4)
    assert found.best == pytest.approx(found.scores[0])


def test_r_net_rejects_a_box() -> None:
    """Each of two squares is found; R-Net drops the one without green."""
    detector = load("det1.prototxt", "det1.caffemodel", threshold=0)
    both = detector(picture(3, 30))
    np.testing.assert_allclose(sorted(both.boxes[:, 0]), [0, 24], atol=0.1)
    np.testing.assert_allclose(detector(picture(3, 30, green=0)).boxes[:, 0], [0], atol=0.1)


def test_thresholds_and_the_pyramid() -> None:
    assert len(load("det1.prototxt", "det1.caffemodel", threshold=0.9)(picture(30))) == 0
    for test in ({"STAGE_THRESHOLDS": [0.995, 0.7]}, {"STAGE_THRESHOLDS": [0.6, 0.999]}, {"MIN_FACE": 21}, {"MIN_FACE": 41}):
        assert len(load("det1.prototxt", "det1.caffemodel", {"TEST": test})(picture(30))) == 0, test
    assert len(load("det1.prototxt", "det1.caffemodel", {"TEST": {"PYRAMID_FACTOR": 0.2}})(picture(30))) == 1
    assert list(scales(40, 60, 20, 0.5)) == [0.6, 0.3] and list(scales(19, 60, 20, 0.5)) == []
    for wrong in ({"PYRAMID_FACTOR": 1}, {"PYRAMID_FACTOR": 0}, {"MIN_FACE": 0}, {"STAGE_THRESHOLDS": [0.5]}):
        with pytest.raises(SettingsError, match=rf"TEST\.{next(iter(wrong))}"):
            settings_from({"TEST": wrong})
    with pytest.raises(Error, match=r"TEST\.NMS of cfg has no effect: the script of an MTCNN fixes the input size and NMS"):
        load("det1.prototxt", cfg={"TEST": {"NMS": 0.4}})


def test_many_boxes_go_through_r_net_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = load("det1.prototxt", "det1.caffemodel", {"TEST": {"STAGE_THRESHOLDS": [0, 0.7]}}, threshold=0)
    whole = detector(picture(30))
    monkeypatch.setattr("minicaffe.detection.mtcnn.BATCH", 3)
    parts = detector(picture(30))
    assert len(whole) > 3
    np.testing.assert_allclose(parts.boxes, whole.boxes, atol=1e-4)
    np.testing.assert_allclose(parts.scores, whole.scores, rtol=1e-5)


def test_faces_in_others_are_suppressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the smaller box: one of 10 x 10 in one of 20 x 20 has an overlap of 1, not of 0.25."""
    detector = load("det1.prototxt", "det1.caffemodel", threshold=0)
    boxes = np.array([[11.0, 11, 30, 30], [16, 16, 25, 25], [31, 11, 50, 30]])
    monkeypatch.setattr("minicaffe.detection.mtcnn.proposals", lambda *_: boxes)
    for stem in ("rnet", "onet"):
        detector.net.params[f"{stem}/move"][1].data[...] = 0
    found = detector(picture(10, 30))
    np.testing.assert_allclose(found.boxes[np.argsort(found.boxes[:, 0])], [[10, 10, 29, 29], [30, 10, 49, 29]], atol=1e-4)


def test_moves_and_squares() -> None:
    boxes = np.array([[10.0, 20, 14, 30], [-5, 0, 5, 4]])
    moves = np.array([[0.5, 0.1, -0.25, 0], [0, 0, 0, 1]])
    np.testing.assert_allclose(moved(boxes, moves, 0), [[12, 21, 13, 30], [-5, 0, 5, 8]])
    np.testing.assert_allclose(moved(boxes, moves, 1), [[12.5, 21.1, 12.75, 30], [-5, 0, 5, 9]])
    np.testing.assert_array_equal(squares(boxes), [[7, 20, 17, 30], [-5, -3, 5, 7]])


@pytest.mark.parametrize(
    "box", [(2, 3, 4, 7), (-1, -2, 3, 9), (4, 5, 9, 6), (-9, 1, -2, 4), (9, 1, 12, 3), (1, 7, 3, 9), (0, 0, 6, 6), (3, 3, 3, 3)]
)
def test_pixels_outside_the_image_are_black(box: tuple[int, int, int, int]) -> None:
    image = np.random.default_rng(1).integers(1, 256, (6, 5, 3), dtype=np.uint8)
    wide = np.pad(image, ((20, 20), (20, 20), (0, 0)))
    x1, y1, x2, y2 = (side + 19 for side in box)
    np.testing.assert_array_equal(crop(image, np.array(box)), wide[y1 : y2 + 1, x1 : x2 + 1])


def test_a_small_image_has_no_faces() -> None:
    found = load("det1.prototxt", "det1.caffemodel")(np.zeros((19, 60, 3), np.uint8))
    assert len(found) == 0 and found.best == 0


def test_numbers_that_are_not_finite() -> None:
    detector = load("det1.prototxt", "det1.caffemodel")
    detector.net.params["rnet/move"][1].data[0] = np.nan
    with pytest.raises(Error, match='boxes that are NaN or infinite in "rnet/move"'):
        detector(picture(30))


# The files.


def test_the_three_nets_are_told_by_their_ends() -> None:
    assert [stage_of(read_net(name).param) for name in MTCNN] == [1, 2, 3]
    assert [stage_of(Net(name, TEST).param) for name in MTCNN] == [1, 2, 3]
    others = MTCNN["det1.prototxt"].replace("num_output: 4", "num_output: 8"), MTCNN["det1.prototxt"].split("layer")[0]
    assert [stage_of(parse_net(text).param) for text in others] == [0, 0]
    net = Net(joined(read_net("det1.prototxt")), TEST)
    assert net.inputs == ["pnet/data", "rnet/data", "onet/data"] and stage_of(net.param) == 0
    assert joined(read_net("det2.prototxt")).param == read_net("det2.prototxt").param
    for name, which in (("det1", "first"), ("det2", "second"), ("det3", "third")):
        with pytest.raises(Error, match=rf"{name}\.prototxt: this is the {which} of MTCNN's three nets"):
            load(Net(f"{name}.prototxt", TEST))


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("det1.prototxt", ["det2.prototxt", "det3.prototxt"]),
        ("v1_PNet.caffemodel", ["v1_RNet.caffemodel", "v1_ONet.caffemodel"]),
        ("p-net_11", ["r-net_11", "o-net_11"]),
        ("10/det1_iter_1000.h5", ["10/det2_iter_1000.h5", "10/det3_iter_1000.h5"]),
    ],
)
def test_names_of_the_other_files(name: str, others: list[str]) -> None:
    for file in others:
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).touch()
    assert following(name) == others


def test_files_that_are_not_there() -> None:
    Path("det3.caffemodel").unlink()
    with pytest.raises(Error, match=r"det1\.caffemodel looks like MTCNN's first net, so det2\.caffemodel and det3"):
        load("det1.prototxt", "det1.caffemodel")
    Path("det3.caffemodel").symlink_to(__file__)
    with pytest.raises(DataError, match=r"det3\.caffemodel \(which is .*test_mtcnn\.py\) is not in the working directory"):
        load("det1.prototxt", "det1.caffemodel")
    Path("det1.prototxt").rename("deploy.prototxt")
    with pytest.raises(Error, match=r"det2 and det3 must be in the same folder: name its files alike, as det1, det2 and det3"):
        load("deploy.prototxt")
    Path("deploy.prototxt").rename("det1.prototxt")
    Path("det3.prototxt").write_text(MTCNN["det1.prototxt"])
    with pytest.raises(Error, match=r"det3\.prototxt: not net 3 of an MTCNN, whose first net is det1\.prototxt"):
        load("det1.prototxt")


# The commands.


def test_the_command_draws_and_saves() -> None:
    result = CliRunner().invoke(main, [*DETECT, "photo.png", "--draw", "drawn", "--save", "found.csv"])
    assert result.exit_code == 0 and result.stderr == SAID, result.output
    assert "  face  0.751  x1   24.0  y1   12.8  x2   50.0  y2   32.1\n" in result.stdout, result.stdout
    assert Path("drawn/photo.png").is_file() and len(Path("found.csv").read_text().splitlines()) == 2
    (read,) = json.loads(CliRunner().invoke(main, [*DETECT, "photo.png", "--json"]).stdout)
    assert [one["class"] for one in read["detections"]] == ["face"]
    np.testing.assert_allclose(read["detections"][0]["box"], FOUND, atol=1e-4)


def test_the_commands_settings() -> None:
    result = CliRunner().invoke(main, [*DETECT, "photo.png", "--min-face", "21"])
    taken = "means 127.5,127.5,127.5, factor 0.0078125, faces >= 21 pixels, pyramid factor 0.709, first thresholds 0.6,0.7"
    assert f"Preprocessing: {taken} (--mean, --min-face and --scale-factor change them)\n" in result.stderr, result.output
    assert result.stderr.endswith(
        'nothing reaches --threshold 0.7: the best score is 0. Check the line "Preprocessing" above\n'
    )
    Path("mtcnn.yml").write_text("TEST: { MIN_FACE: 21, STAGE_THRESHOLDS: [0.5, 0.6], PYRAMID_FACTOR: 0.5 }")
    result = CliRunner().invoke(main, [*DETECT, "photo.png", "--cfg", "mtcnn.yml"])
    assert "faces >= 21 pixels, pyramid factor 0.5, first thresholds 0.5,0.6" in result.stderr
    assert read_settings("mtcnn.yml").test.stage_thresholds == (0.5, 0.6)
    result = CliRunner().invoke(main, [*DETECT, "photo.png", "--cfg", "mtcnn.yml", "--min-face", "20"])
    assert "1 detection" in result.stdout
    for words in (["--nms", "0.4"], ["--scale", "300"]):
        refused = CliRunner().invoke(main, [*DETECT, "photo.png", *words]).stderr
        assert f"{words[0]} does nothing here: the script of an MTCNN fixes the input size and NMS" in refused
    refused = CliRunner().invoke(main, ["detect", "det2.prototxt", "det2.caffemodel", "photo.png"]).stderr
    assert "det2.prototxt: this is the second of MTCNN's three nets" in refused


def test_many_images_go_to_parquet_and_evaluate() -> None:
    """Also those of Ray go by the recipe alone."""
    parquet = pytest.importorskip("pyarrow.parquet")
    Path("photos").mkdir()
    for name in "abc":
        Path(f"photos/{name}.png").write_bytes(Path("photo.png").read_bytes())
    result = CliRunner().invoke(main, [*DETECT, "photos", "--out", "out", "--part-size", "2"])
    assert result.exit_code == 0, result.output
    boxes = [row for part in sorted(Path("out").glob("*.parquet")) for row in parquet.read_table(part).to_pylist()]
    assert [row["error"] for row in boxes] == [None] * 3, boxes
    assert [len(row["scores"]) for row in boxes] == [1, 1, 1]
    annotations = "image,x1,y1,x2,y2,class\n" + "".join(f"{name}.png,25,13,50,32,face\n" for name in "abc")
    Path("photos/faces.csv").write_text(annotations)
    Path("classes.txt").write_text("face\n")
    result = CliRunner().invoke(main, ["evaluate", *DETECT[1:], "photos/faces.csv", "--classes", "classes.txt"])
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if "face" in line]
    assert line.split()[:5] == ["face", "3", "3", "1.0000", "1.0000"]


def test_a_recipe_is_enough() -> None:
    """As in another process, which gets the text of the joined net and its weights."""
    net = load("det1.prototxt", "det1.caffemodel").net
    recipe, weights = Recipe(net="det1.prototxt", text=to_text(joined(read_net("det1.prototxt")).param)), weights_of(net)
    for name in ("det2", "det3"):
        Path(f"{name}.prototxt").unlink()
    row = recipe.pipeline(weights).row(Picture("photo.png", Path("photo.png")))
    assert row.found is not None, row.error
    np.testing.assert_allclose(row.found.boxes, [FOUND], atol=1e-4)
