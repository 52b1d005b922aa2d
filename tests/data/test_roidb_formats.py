"""Annotations in YOLO's form and as CSV, VOC folders with classes of their own, and what is ignored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from minicaffe import files
from minicaffe.data.roidb import load_roidb, prepare_roidb
from minicaffe.errors import DataError

NAMES = ["circle", "Square"]
WHOLE = ["__background__", "circle", "Square"]


def picture(path: Path, width: int = 100, height: int = 50) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height)).save(path)


@pytest.fixture(params=["ultralytics", "split", "darknet"])
def yolo(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """a.png with two boxes, b.png without a file of labels."""
    below = {"ultralytics": ("images", "labels"), "split": ("images/val", "labels/val"), "darknet": ("", "")}[request.param]
    images, labels = (tmp_path / name for name in below)
    for name in ("a.png", "b.png"):
        picture(images / name)
    labels.mkdir(parents=True, exist_ok=True)
    (labels / "a.txt").write_text("1 0.5 0.5 0.2 0.4\n\n0 0.05 0.9 0.1 0.2 0.75\n")
    if request.param == "darknet":
        (tmp_path / "obj.names").write_text("circle\nSquare\n")
    else:
        names = "{0: circle, 1: Square}" if request.param == "split" else "[circle, Square]"
        (tmp_path / "data.yaml").write_text(f"path: .\nnames: {names}\n")
    return tmp_path


def test_yolo(yolo: Path) -> None:
    roidb, names = load_roidb(yolo, split="val")
    assert names == WHOLE and [Path(str(entry["image"])).name for entry in roidb] == ["a.png", "b.png"]
    np.testing.assert_allclose(roidb[0]["boxes"], [[40, 15, 59, 34], [0, 40, 9, 49]], atol=1e-4)
    assert roidb[0]["gt_classes"].tolist() == [2, 1] and roidb[1]["boxes"].shape == (0, 4)
    assert len(prepare_roidb(roidb, 3)) == 2
    assert load_roidb(yolo, split="val", classes=NAMES)[1] == WHOLE
    turned, names = load_roidb(yolo, split="val", classes=NAMES[::-1])
    assert names == [WHOLE[0], *WHOLE[:0:-1]] and turned[0]["gt_classes"].tolist() == [1, 2]
    with pytest.raises(DataError, match="its classes are circle, Square; the names given are a, b"):
        load_roidb(yolo, split="val", classes=["a", "b"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 0.5 0.5 0.2 0.4", r"a\.txt:2: class 2 is not one of 0 to 1, in the order of the names"),
        ("-1 0.5 0.5 0.2 0.4", r"a\.txt:2: class -1 is not one of 0 to 1, in the order of the names"),
        ("0 0.5 0.5 0.2", r"a\.txt:2: must be `class x y width height`, got 0 0.5 0.5 0.2"),
        ("circle 0.5 0.5 0.2 0.4", r"a\.txt:2: must be `class x y width height`"),
        ("0 50 25 20 40", r"a\.txt:2: x, y, width and height must be fractions of the image"),
        ("0 nan 0.5 0.2 0.4", r"a\.txt:2: x, y, width and height must be fractions"),
        ("0 0.1 0.1 0.2 0.1 0.2 0.3", r"a\.txt:2: 7 numbers are an outline: only boxes are supported"),
    ],
)
def test_bad_labels(line: str, message: str, yolo: Path) -> None:
    next(yolo.rglob("a.txt")).write_text("0 0.5 0.5 0.2 0.4\n" + line)
    with pytest.raises(DataError, match=message):
        load_roidb(yolo, split="val")


def test_folders_that_lack_something(tmp_path: Path) -> None:
    (tmp_path / "labels" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match=r"but there is no .*images"):
        load_roidb(tmp_path, split="train")
    (tmp_path / "images" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match="no images"):
        load_roidb(tmp_path, split="train")
    picture(tmp_path / "images" / "train" / "a.png")
    with pytest.raises(DataError, match="names the classes: give their names"):
        load_roidb(tmp_path, split="train")
    with pytest.raises(DataError, match="has no val; its splits are train"):
        load_roidb(tmp_path, split="val", classes=NAMES)
    assert len(load_roidb(tmp_path, split="train", classes=NAMES)[0]) == 1
    (tmp_path / "data.yaml").write_text("names: 3")
    with pytest.raises(DataError, match=r"data\.yaml: no list `names`"):
        load_roidb(tmp_path, split="train")


@pytest.mark.parametrize("train", ["../train/images", "train/images"])
def test_the_splits_that_data_yaml_names(train: str, tmp_path: Path) -> None:
    """labels/ beside images/, in a folder for each split; ../train/images is what many exported files say."""
    for split, wide in (("train", 100), ("valid", 60)):
        picture(tmp_path / split / "images" / f"{split}.png", width=wide)
        (tmp_path / split / "labels").mkdir()
        (tmp_path / split / "labels" / f"{split}.txt").write_text("1 0.5 0.5 0.2 0.4\n")
    lines = f"train: {train}\nval: ../valid/images\ntest: ../test/images\nnc: 2\nnames: [circle, Square]\n"
    (tmp_path / "data.yaml").write_text(lines)
    for splits, found in ((("trainval", "train"), "train"), (("test", "val"), "valid"), ("val", "valid")):
        for path in (tmp_path, tmp_path / "data.yaml"):
            roidb, names = load_roidb(path, split=splits)
            assert [Path(str(entry["image"])).stem for entry in roidb] == [found] and names == WHOLE
            assert len(roidb[0]["boxes"]) == 1
    with pytest.raises(DataError, match="has no test; its splits are train, val"):
        load_roidb(tmp_path, split="test")
    with pytest.raises(DataError, match=r"images is a part of .*: give that folder, and the part as the split"):
        load_roidb(tmp_path / "train" / "images")


def test_a_path_in_data_yaml_too_long_for_the_system(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text(f"train: {'a' * 5000}\nnames: [circle]\n")
    with pytest.raises(DataError, match=r"data\.yaml: train"):
        load_roidb(tmp_path, split="train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"a0: &a0 [x, x]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (i, i, i - 1, i - 1) for i in range(1, 40)),
            ":2: .*aliases",
        ),
        (b"names: &n [*n]\n", ":1: .*aliases"),
        (b"names: " + b"[" * 5000, ":1: .*nested too deeply"),
        (b"- " * 20000, ":1: .*nested too deeply"),
        (b"a" * 70000, ": the text has 70,000 characters"),
        (b"names: [circle]\npath: \xff\n", ":2: not a text file"),
        (b"[circle]", ": must be a mapping such as"),
        (b"names: circle", ": no list `names`"),
        (b"names: {a: circle}", ": no list `names`"),
        (b"names: [[circle]]", ": no list `names`"),
        (b"names: [circle]\npath: [a]", ": `path` must be the name of one folder, got"),
        (b"names: [circle]\ntrain: {a: b}", ": `train` must be the name of one folder, got"),
        (b"names: !!python/name:os.system", ":1: not plain YAML: could not determine a constructor"),
    ],
)
def test_a_data_yaml_that_is_hostile_or_odd(content: bytes, message: str, tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "data.yaml").write_bytes(content)
    with pytest.raises(DataError, match=rf"data\.yaml{message}") as caught:
        load_roidb(tmp_path, split="train")
    assert "\n" not in str(caught.value)


def test_data_yaml_names_no_folder_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_allowed", set())
    picture(tmp_path / "secret" / "images" / "a.png")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "data.yaml").write_text("train: ../secret/images\nnames: [circle]\n")
    with pytest.raises(DataError, match=r"a data\.yaml may name files elsewhere only where that is allowed"):
        load_roidb(tmp_path / "own", split="train")
    (tmp_path / "own" / "data.yaml").write_text("names: [circle\n")
    with pytest.raises(DataError, match=r"data\.yaml:2: not plain YAML: "):
        load_roidb(tmp_path / "own", split="train")


CSV = """filename,width,height,Label,x1,y1,x2,y2
a.png,100,50,Square,40,15,59,34
b.png,100,50,,,,,
a.png,100,50,circle,0,40.5,9,49
"""


def test_csv(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        picture(tmp_path / "photos" / name)
    (tmp_path / "boxes.csv").write_text(CSV)
    roidb, names = load_roidb(tmp_path / "boxes.csv", images=tmp_path / "photos", classes=NAMES)
    assert names == WHOLE and roidb[0]["boxes"].tolist() == [[40, 15, 59, 34], [0, 40.5, 9, 49]]
    assert roidb[0]["gt_classes"].tolist() == [2, 1] and (roidb[1]["width"], roidb[1]["height"]) == (100, 50)
    assert len(prepare_roidb(roidb, 3)) == 2


@pytest.mark.parametrize(
    ("text", "classes", "message"),
    [
        (CSV, None, "lacks the order of the classes: give their names"),
        ("", NAMES, "the first line must name the columns"),
        (CSV.replace("Label", "kind"), NAMES, "it has no class"),
        (CSV.replace("Square", "star"), NAMES, r'boxes\.csv:2: class "star" is not one of'),
        (CSV.replace("40.5", "many"), NAMES, r"boxes\.csv:4: the corners must be numbers, got 0, many, 9, 49"),
        (CSV.replace("b.png", ""), NAMES, r"boxes\.csv:3: no filename"),
        (CSV.replace("b.png,100", "b.png,wide"), NAMES, r"boxes\.csv:3: width must be a whole number"),
        (CSV.replace("Square", "s" * 131_073), NAMES, r"boxes\.csv:2: field larger than field limit"),
        (CSV.replace("a.png", '\n"a.png' + "\n" * 131_073, 1), NAMES, r"boxes\.csv:3: field larger than field limit"),
        (CSV.replace("Label", "l" * 131_073), NAMES, r"boxes\.csv:1: field larger than field limit"),
    ],
)
def test_bad_csv(text: str, classes: list[str] | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load_roidb(tmp_path / "boxes.csv", classes=classes)


@pytest.mark.parametrize("corner", ["nan", "inf", "-1e39"])
def test_a_corner_that_is_not_finite_is_refused_at_once(corner: str, tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text(CSV.replace("40.5", corner))
    with pytest.raises(DataError, match=rf"boxes\.csv:4: the corners must be numbers, got 0, {corner}, 9, 49"):
        load_roidb(tmp_path / "boxes.csv", classes=NAMES)


def test_texts_that_are_not_utf8(tmp_path: Path) -> None:
    """The message names the file, the line and the encoding."""
    wanted = r":2: not a text file: save it as UTF-8 \(byte 0xe9\)"
    (tmp_path / "boxes.csv").write_bytes(CSV.replace("Square", "carr\xe9").encode("latin-1"))
    with pytest.raises(DataError, match=rf"boxes\.csv{wanted}"):
        load_roidb(tmp_path / "boxes.csv", classes=NAMES)
    picture(tmp_path / "a.png")
    (tmp_path / "classes.txt").write_text("circle\n")
    (tmp_path / "a.txt").write_bytes(b"\n0 0.5 0.5 0.1 \xe9\n")
    with pytest.raises(DataError, match=rf"a\.txt{wanted}"):
        load_roidb(tmp_path)
    (tmp_path / "classes.txt").write_bytes(b"cat\ncarr\xe9\n")
    with pytest.raises(DataError, match=rf"classes\.txt{wanted}"):
        load_roidb(tmp_path)


def test_boxes_that_no_image_has(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    for box, message in (
        ("40,15,159,34", "is outside the image"),
        ("40,15,nan,34", "the corners must be numbers"),
        ("40,15,20,34", "x2 < x1"),
    ):
        (tmp_path / "boxes.csv").write_text(f"image,xmin,ymin,xmax,ymax,class\na.png,{box},circle\n")
        with pytest.raises(DataError, match=message):
            prepare_roidb(load_roidb(tmp_path / "boxes.csv", classes=NAMES)[0], 3)


def test_a_voc_folder_with_classes_of_its_own(tmp_path: Path) -> None:
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "test.txt").write_text("a\n")
    objects = "".join(
        f"<object><name>{name}</name><difficult>{hard}</difficult><bndbox><xmin>2</xmin><ymin>3</ymin>"
        f"<xmax>{10 + k}</xmax><ymax>20</ymax></bndbox></object>"
        for k, (name, hard) in enumerate([("Square", 0), ("circle", 1)])
    )
    size = "<size><width>100</width><height>50</height></size>"
    (tmp_path / "Annotations" / "a.xml").write_text(f"<annotation>{size}{objects}</annotation>")
    roidb, names = load_roidb(tmp_path, split="test", classes=NAMES)
    assert names == WHOLE and roidb[0]["gt_classes"].tolist() == [2] and roidb[0]["boxes"].tolist() == [[1, 2, 9, 19]]
    assert roidb[0]["ignored_classes"].tolist() == [1] and roidb[0]["ignored_boxes"].tolist() == [[1, 2, 10, 19]]
    with pytest.raises(DataError, match='class "square" is not one of'):
        load_roidb(tmp_path, split="test")


def test_cocos_crowds_are_ignored(tmp_path: Path) -> None:
    box = {"image_id": 1, "category_id": 5, "bbox": [10, 20, 30, 20]}
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": 100, "height": 50}],
        "categories": [{"id": 5, "name": "circle"}],
        "annotations": [box, {**box, "iscrowd": 1, "bbox": [0, 0, 5, 5]}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(content))
    (entry,), _ = load_roidb(tmp_path / "coco.json")
    assert entry["boxes"].tolist() == [[10, 20, 39, 39]] and entry["ignored_boxes"].tolist() == [[0, 0, 4, 4]]
    content["categories"] = [{"id": 5, "name": "circle"}, {"id": 7, "name": "square"}, {"id": 9, "name": "triangle"}]
    (tmp_path / "coco.json").write_text(json.dumps(content))
    (entry,), names = load_roidb(tmp_path / "coco.json", classes=["square", "triangle", "circle"])
    assert names[1:] == ["square", "triangle", "circle"]
    assert entry["gt_classes"].tolist() == [3] and entry["ignored_classes"].tolist() == [3]
    with pytest.raises(DataError, match="its classes are circle, square, triangle; the names given are square"):
        load_roidb(tmp_path / "coco.json", classes=["square"])
