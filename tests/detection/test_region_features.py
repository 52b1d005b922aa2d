"""Features of regions: the choice of regions against the original's loop over classes, and the command."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.data.image_bytes import read_image
from minicaffe.data.settings import settings_from
from minicaffe.detection.region_features import Choice, best_kept, choose, region_features
from minicaffe.errors import Error, SettingsError
from minicaffe.layers.proposal.nms import nms

SHAPES = Path(__file__).parents[2] / "examples" / "shapes"
NET, WEIGHTS = SHAPES / "faster_rcnn" / "test.prototxt", SHAPES / "faster_rcnn" / "shapes_faster_rcnn.caffemodel"
SCENE = SHAPES / "scene.png"


def boxes_and_scores(seed: int, rois: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    corners = rng.integers(0, 60, (rois, 2))
    boxes = np.concatenate([corners, corners + rng.integers(0, 40, (rois, 2))], axis=1).astype(np.float32)
    return boxes, rng.integers(0, 20, (rois, classes)).astype(np.float32) / 20  # with ties


@given(st.integers(0, 999), st.integers(0, 40), st.integers(1, 5), st.sampled_from([0.0, 0.3, 0.7, 1.0]))
def test_the_best_kept_score_is_that_of_nms_in_each_class(seed: int, rois: int, classes: int, threshold: float) -> None:
    boxes, scores = boxes_and_scores(seed, rois, classes)
    wanted = np.zeros(rois, np.float32)
    for k in range(classes):
        kept = nms(np.concatenate([boxes, scores[:, k, None]], axis=1), threshold)
        wanted[kept] = np.maximum(wanted[kept], scores[kept, k])
    np.testing.assert_array_equal(best_kept(boxes, scores, threshold), wanted)


def test_how_many_are_taken() -> None:
    """Apart from each other, so that NMS keeps all: in the rois' order if the threshold decides, else the best first."""
    boxes = np.array([[0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9], [60, 0, 69, 9]], np.float32)
    scores = np.array([[0.3, 0.1], [0.1, 0.9], [0.05, 0.1], [0.6, 0.2]], np.float32)

    def taken(threshold: float, least: int, most: int) -> list[int]:
        return choose(boxes, scores, 0.3, Choice("x", threshold, least, most)).tolist()

    assert taken(0.3, 1, 4) == [0, 1, 3], "at least the threshold"
    assert taken(0.3, 1, 2) == [1, 3]
    assert taken(0.7, 3, 4) == [1, 3, 0]
    assert taken(0.0, 1, 4) == [0, 1, 2, 3]
    with pytest.raises(Error, match="from 1 to the maximum, 2; got 3"):
        Choice(least=3, most=2)


def test_regions_of_a_detector() -> None:
    net = Net(NET, TEST, weights=WEIGHTS, settings=settings_from(SHAPES / "shapes.yml"), keep="outputs")
    found = region_features(net, read_image(SCENE), Choice("fc9", 0.5, 3, 7))
    whole = Net(NET, TEST, weights=WEIGHTS, settings=net.settings)
    whole.blobs["data"].reshape(*net.blobs["data"].shape)
    whole.forward(data=net.blobs["data"].data, im_info=net.blobs["im_info"].data)
    assert 3 <= len(found) <= 7
    scale = net.blobs["im_info"].data[0, 2]
    out = {name: whole.blobs[name].data for name in ("rois", "fc9", "cls_prob")}
    np.testing.assert_allclose(found.boxes, out["rois"][found.sources, 1:] / scale, rtol=1e-5)
    np.testing.assert_allclose(found.features, out["fc9"][found.sources].reshape(len(found), -1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.class_scores, out["cls_prob"][found.sources], rtol=1e-4, atol=1e-6)
    assert (found.class_scores[np.arange(len(found)), found.classes] == found.scores).all()
    assert found.attributes is None


def net_with_attributes(path: Path, kind: str) -> Path:
    """The shapes' Faster R-CNN with 6 attributes, of which the first is none if they are exclusive."""
    head = f"""
    layer {{ name: "attr_score" type: "InnerProduct" bottom: "fc9" top: "attr_score"
      inner_product_param {{ num_output: 6 weight_filler {{ type: "gaussian" std: 0.1 }} }} }}
    layer {{ name: "attr_prob" type: "{kind}" bottom: "attr_score" top: "attr_prob" }}
    """
    path.write_text(NET.read_text() + head)
    return path


def test_attributes_of_their_own_lack_that_of_none(tmp_path: Path) -> None:
    """As in the original's test_net_with_gt_boxes: a column of zeros goes before the scores of nets that score one fewer."""
    path, names = net_with_attributes(tmp_path / "own.prototxt", "Sigmoid"), ("red", "blue", "big", "wet", "old", "far")
    net = Net(path, TEST, weights=WEIGHTS, settings=settings_from(SHAPES / "shapes.yml"), keep="outputs")
    weight, bias = net.params["attr_score"]
    rng = np.random.default_rng(4)
    weight.data[...] = rng.normal(size=weight.shape)
    for first in (0, 50):  # whether the first attribute wins
        bias.data[...] = [first, 0, 0, 0, 0, 0]
        found = region_features(net, read_image(SCENE), Choice("fc9", 0.5, 3, 7, names))
        features = found.features.astype(np.float64)
        wanted = 1 / (1 + np.exp(-(features @ weight.data.T.astype(np.float64) + bias.data)))
        assert found.attribute_scores is not None
        assert found.attributes is not None
        assert found.attribute_names is not None
        assert (found.attribute_scores[:, 0] == 0).all()
        np.testing.assert_allclose(found.attribute_scores[:, 1:], wanted, atol=1e-5)
        best = [max(range(6), key=scores.__getitem__) for scores in found.attribute_scores[:, 1:]]
        assert found.attributes.tolist() == [k + 1 for k in best]
        assert found.attribute_names.tolist() == [names[k] for k in best]
    assert set(best) == {0}


@pytest.mark.parametrize(("kind", "count"), [("Sigmoid", 6), ("Softmax", 5)])
def test_names_of_attributes(tmp_path: Path, kind: str, count: int) -> None:
    names = tmp_path / "attributes.txt"
    words = [
        net_with_attributes(tmp_path / "net.prototxt", kind),
        WEIGHTS,
        SCENE,
        "--cfg",
        SHAPES / "shapes.yml",
        "--blob",
        "fc9",
    ]
    words += ["--min", 4, "--max", 4, "--attributes", names]
    for wrong in (count - 1, count + 1):
        names.write_text("".join(f"name {k}\n" for k in range(wrong)))
        ran = features(*words, "--out", tmp_path / "wrong")
        assert ran.exit_code == 1
        assert f'{wrong} names of attributes, but "attr_prob" scores {count}' in ran.output
    names.write_text("".join(f"name {k},synonym {k}\n" for k in range(count)))
    classes = tmp_path / "classes.txt"
    classes.write_text("circle, disc\nsquare,box,quadrangle\ntriangle\n")
    ran = features(*words, "--classes", classes, "--out", tmp_path / "out")
    assert ran.exit_code == 0, ran.output
    with np.load(tmp_path / "out" / "scene.npz") as file:
        assert file["attribute_names"].tolist() == [f"name {k - 1}" for k in file["attributes"]]
        assert file["attribute_scores"].shape == (4, count + 1)
        assert file["names"].tolist() == [["circle", "square", "triangle"][k - 1] for k in file["classes"]]
    words[0] = NET
    ran = features(*words, "--out", tmp_path / "none")
    assert 'names of attributes are given, but the net has no blob "attr_prob"' in ran.output


def features(*words: object) -> Result:
    return CliRunner().invoke(main, ["features", *map(str, words)])


@pytest.fixture
def attributes(tmp_path: Path) -> Path:
    return net_with_attributes(tmp_path / "attributes.prototxt", "Softmax")


def test_a_file_for_each_image_and_again(tmp_path: Path, attributes: Path) -> None:
    given = [attributes, WEIGHTS, SCENE, "--cfg", SHAPES / "shapes.yml", "--blob", "fc9", "--out", tmp_path / "out"]
    bad = tmp_path / "scene.jpg"
    bad.write_text("no image")
    ran = features(*given, bad, "--classes", SHAPES / "classes.txt", "--threads", 1)
    assert ran.exit_code == 1
    assert "1 of 2 images failed" in ran.output
    with np.load(tmp_path / "out" / "scene.npz") as file:
        stored = dict(file)
    count = len(stored["boxes"])
    assert 10 <= count <= 100
    assert (*read_image(SCENE).shape[:2], str(SCENE)) == (stored["height"], stored["width"], stored["image"])
    assert {name: (array.dtype.str, array.shape) for name, array in stored.items() if name not in ("image", "run")} == {
        "width": ("<i8", ()),
        "height": ("<i8", ()),
        "names": ("<U8", (count,)),
        "boxes": ("<f4", (count, 4)),
        "scores": ("<f4", (count,)),
        "classes": ("<i8", (count,)),
        "features": ("<f4", stored["features"].shape),
        "class_scores": ("<f4", (count, 4)),
        "attributes": ("<i8", (count,)),
        "attribute_scores": ("<f4", (count, 6)),
    }
    assert (stored["attribute_scores"][:, 1:].argmax(axis=1) + 1 == stored["attributes"]).all()
    written = os.stat(tmp_path / "out" / "scene.npz").st_mtime_ns
    again = features(*given, bad, "--classes", SHAPES / "classes.txt", "--threads", 1)
    assert (again.exit_code, again.stderr) == (1, ran.stderr)
    bad.write_bytes(SCENE.read_bytes())
    ran = features(*given, bad, "--classes", SHAPES / "classes.txt", "--threads", 1)
    assert ran.exit_code == 0, ran.output
    assert "2 images, 1 of which were there" in ran.output
    assert os.stat(tmp_path / "out" / "scene.npz").st_mtime_ns == written
    ran = features(*given, bad, "--classes", SHAPES / "classes.txt", "--min", 5)
    assert ran.exit_code == 1
    assert "scene.npz: belongs to another run" in ran.output


def test_tables(tmp_path: Path, attributes: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    words = [attributes, WEIGHTS, SCENE, "--cfg", SHAPES / "shapes.yml", "--blob", "fc9", "--min", 4, "--max", 4]
    names = tmp_path / "attributes.txt"
    names.write_text("red\nblue\nbig\nwet\nold\n")
    words += ["--attributes", names]
    for form in ("parquet", "npz"):
        ran = features(*words, "--out", tmp_path / form, "--format", form)
        assert ran.exit_code == 0, ran.output
    row = parquet.read_table(tmp_path / "parquet").to_pylist()[0]
    with np.load(tmp_path / "npz" / "scene.npz") as file:
        for name in (
            "boxes",
            "scores",
            "classes",
            "features",
            "class_scores",
            "attributes",
            "attribute_scores",
            "attribute_names",
        ):
            np.testing.assert_array_equal(np.asarray(row[name], file[name].dtype), file[name])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--out DIR is missing"),
        (["--blob", "fc8", "--out", "out"], 'no blob "fc8"; did you mean'),
        (["--blob", "conv1", "--out", "out"], "not one item for each of the 300 rois"),
        (["--min", 9, "--max", 8, "--out", "out"], "from 1 to the maximum, 8; got 9"),
        (["--engine", "ray", "--out", "out"], "--engine does nothing without --format parquet"),
    ],
)
def test_what_cannot_be_asked_for(words: list[object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = features(NET, WEIGHTS, SCENE, *words)
    assert ran.exit_code != 0
    assert said in " ".join(ran.output.split())


def test_the_settings_of_bottom_up_attention() -> None:
    settings = settings_from({"TRAIN": {"HAS_ATTRIBUTES": True, "HAS_RELATIONS": False}, "TEST": {"SOFT_NMS": 0}})
    assert settings.train.has_attributes
    with pytest.raises(SettingsError, match=r"TEST.SOFT_NMS must be 0, got 2"):
        settings_from({"TEST": {"SOFT_NMS": 2}})
