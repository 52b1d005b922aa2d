from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from minicaffe.errors import DataError
from minicaffe.roidb import load_roidb, prepare_roidb

NAMES = ["__background__", "circle", "square"]


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_json(tmp_path: Path) -> None:
    """Names and numbers, with and without sizes, an image without boxes, proposals; paths relative to the file."""
    images = [
        {"image": "in/a.png", "boxes": [[1, 2, 3, 4], [5, 6, 7, 8.5]], "classes": ["square", 1], "width": 40, "height": 30},
        {"image": "b.png", "boxes": [], "classes": []},
        {"image": "c.png", "boxes": [[0, 0, 1, 1]], "classes": ["circle"], "proposals": [[2, 2, 3, 3], [4, 4, 5, 5]]},
    ]
    roidb, names = load_roidb(write(tmp_path / "roidb.json", {"classes": NAMES, "images": images}))
    assert names == NAMES
    first, second, third = roidb
    assert first["image"] == str(tmp_path / "in" / "a.png")
    np.testing.assert_array_equal(first["boxes"], [[1, 2, 3, 4], [5, 6, 7, 8.5]])
    assert first["gt_classes"].tolist() == [2, 1]
    assert (first["width"], first["height"]) == (40, 30)
    assert second["boxes"].shape == (0, 4) and "width" not in second
    assert third["gt_classes"].tolist() == [1, 0, 0]
    np.testing.assert_array_equal(third["boxes"], [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]])


def test_a_bare_list_needs_numbers_or_names(tmp_path: Path) -> None:
    path = write(tmp_path / "roidb.json", [{"image": "a.png", "boxes": [[1, 2, 3, 4]], "classes": [2]}])
    roidb, names = load_roidb(path)
    assert roidb[0]["gt_classes"].tolist() == [2] and names == []
    path = write(tmp_path / "roidb.json", [{"image": "a.png", "boxes": [[1, 2, 3, 4]], "classes": ["square"]}])
    assert load_roidb(path, classes=NAMES)[0][0]["gt_classes"].tolist() == [2]


VOC = """<annotation><size><width>40</width><height>30</height><depth>3</depth></size>
<object><name>Cat</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>40</xmax><ymax>30</ymax></bndbox></object>
<object><name>dog</name><difficult>1</difficult><bndbox><xmin>3</xmin><ymin>3</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object>
<object><name>dog</name><bndbox><xmin>3.5</xmin><ymin>3</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object>
</annotation>"""


def voc(folder: Path, text: str = VOC) -> Path:
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    write(folder / "ImageSets/Main/trainval.txt", "000005  1\n\n")
    write(folder / "Annotations/000005.xml", text)
    Image.new("RGB", (40, 30)).save(folder / "JPEGImages/000005.jpg")
    return folder


def test_voc(tmp_path: Path) -> None:
    """0-based boxes; the difficult dog is left out; the twenty classes."""
    roidb, names = load_roidb(voc(tmp_path))
    assert len(names) == 21 and names[0] == "__background__" and names[20] == "tvmonitor"
    (entry,) = roidb
    assert entry["image"] == str(tmp_path / "JPEGImages" / "000005.jpg")
    np.testing.assert_array_equal(entry["boxes"], [[0, 1, 39, 29], [2.5, 2, 4, 4]])
    assert [names[k] for k in entry["gt_classes"]] == ["cat", "dog"]
    assert (entry["width"], entry["height"]) == (40, 30)
    prepare_roidb(roidb, 21)


def test_voc_with_classes_of_ones_own(tmp_path: Path) -> None:
    roidb, names = load_roidb(voc(tmp_path), classes=["__background__", "dog", "cat"])
    assert roidb[0]["gt_classes"].tolist() == [2, 1] and len(names) == 3


def test_voc_without_a_size(tmp_path: Path) -> None:
    roidb, _ = load_roidb(voc(tmp_path, VOC.replace("<width>40</width>", "")))
    assert "width" not in roidb[0]
    assert prepare_roidb(roidb, 21)[0]["width"] == 40


def coco(**changes: Any) -> dict[str, Any]:
    def box(image: int, category: int, x: float, y: float, w: float, h: float, **more: Any) -> dict[str, Any]:
        return {"image_id": image, "category_id": category, "bbox": [x, y, w, h], "area": w * h, "iscrowd": 0, **more}

    return {
        "images": [
            {"id": 7, "file_name": "7.jpg", "width": 40, "height": 30},
            {"id": 9, "file_name": "9.jpg", "width": 50, "height": 20},
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}],
        "annotations": [
            box(9, 18, 1, 2, 10, 5), box(7, 3, 35.5, -2, 9, 9), box(7, 18, 0, 0, 4, 4, iscrowd=1), box(7, 18, 1, 1, 0, 4),
            box(7, 18, 60, 1, 4, 4),
        ],
        **changes,
    }  # fmt: skip


def test_coco(tmp_path: Path) -> None:
    """Categories in the order of their ids; corners inclusive and clipped; no crowds, no empty boxes, none outside."""
    roidb, names = load_roidb(write(tmp_path / "instances.json", coco()))
    assert names == ["__background__", "car", "dog"]
    np.testing.assert_array_equal(roidb[0]["boxes"], [[35.5, 0, 39, 6]])
    np.testing.assert_array_equal(roidb[1]["boxes"], [[1, 2, 10, 6]])
    assert [entry["gt_classes"].tolist() for entry in roidb] == [[1], [2]]
    assert roidb[1]["image"] == str(tmp_path / "9.jpg")
    assert load_roidb(tmp_path / "instances.json", images=tmp_path / "train")[0][1]["image"] == str(
        tmp_path / "train" / "9.jpg"
    )
    prepare_roidb(roidb, 3)


def image(**changes: Any) -> list[dict[str, Any]]:
    return [{"image": "a.png", "boxes": [[1, 2, 3, 4]], "classes": [1], **changes}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "roidb.json: cannot read the annotations"),
        ("3", "roidb.json: not annotations that minicaffe knows: TypeError"),
        ("{}", "roidb.json: not annotations that minicaffe knows: KeyError 'images'"),
        ([{"image": "a.png"}], "not annotations that minicaffe knows: KeyError 'boxes'"),
        (["a.png"], "not annotations that minicaffe knows: TypeError"),
        (image(boxes=[[1, 2, 3]]), r"roidb.json: a.png: boxes must be lists of x1, y1, x2, y2, got an array of shape \(1, 3\)"),
        (image(boxes=[[1, 2, 3], [1]]), "roidb.json: a.png: boxes must be lists of x1, y1, x2, y2"),
        (image(boxes=[["a", 2, 3, 4]]), "a.png: boxes must be lists of x1, y1, x2, y2"),
        (image(classes=[1, 2]), "a.png: 1 boxes but 2 classes"),
        (image(classes=["cat"]), 'a.png: class "cat" is not one of the classes, of which the file names none'),
        ({"classes": NAMES, "images": image(classes=["cat"])}, 'class "cat" is not one of __background__, circle, square'),
        ({"classes": NAMES, "images": image(classes=[3])}, r"class 3 is not one of 1 to 2 \(0 is the background\)"),
        (image(classes=[0]), r"class 0 is not one of 1 to \.\.\. \(0 is the background\)"),
        (coco(categories=[]), "not annotations that minicaffe knows: KeyError"),
        (coco(images=[]), "not annotations that minicaffe knows: KeyError"),
        (coco(annotations=[{"image_id": 7, "bbox": [1, 2, 3]}]), "not annotations that minicaffe knows: ValueError"),
    ],
)
def test_json_errors(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_roidb(write(tmp_path / "roidb.json", content))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<annotation>", "", "000005.xml: cannot read the annotation"),
        ("<xmax>40</xmax>", "<xmax>wide</xmax>", "000005.xml: cannot read the annotation: could not convert"),
        ("<name>Cat</name>", "<name>gnu</name>", '000005.xml: class "gnu" is not one of __background__, aeroplane'),
    ],
)
def test_voc_errors(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_roidb(voc(tmp_path, VOC.replace(old, new)))


def test_a_missing_corner_is_found_by_prepare(tmp_path: Path) -> None:
    roidb, _ = load_roidb(voc(tmp_path, VOC.replace("<xmax>40</xmax>", "")))
    with pytest.raises(DataError, match=r"000005.jpg: box 0, .*nan.* is not finite"):
        prepare_roidb(roidb, 21)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.json: cannot read the annotations"):
        load_roidb(tmp_path / "gone.json")
    with pytest.raises(DataError, match=r"test.txt: cannot read the list of images"):
        load_roidb(voc(tmp_path), split="test")
