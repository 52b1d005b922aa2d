from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from minicaffe.data.roidb import load_roidb, prepare_roidb
from minicaffe.data.roidb_voc import unannotated
from minicaffe.errors import DataError

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
    elsewhere = load_roidb(tmp_path / "roidb.json", images=tmp_path / "photos")[0]
    assert elsewhere[0]["image"] == str(tmp_path / "photos" / "in" / "a.png")
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


@pytest.mark.parametrize("suffix", [".png", ".JPEG", ".tif"])
def test_voc_with_images_of_another_suffix(tmp_path: Path, suffix: str) -> None:
    image = voc(tmp_path) / "JPEGImages" / "000005.jpg"
    assert load_roidb(tmp_path)[0][0]["image"] == str(image)
    other = image.with_suffix(suffix)
    Image.new("RGB", (40, 30)).save(other)
    assert load_roidb(tmp_path)[0][0]["image"] == str(image)
    image.unlink()
    roidb = load_roidb(tmp_path)[0]
    assert roidb[0]["image"] == str(other)
    prepare_roidb(roidb, 21)
    other.unlink()
    assert load_roidb(tmp_path)[0][0]["image"] == str(image), "the error for it names VOC's own"


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


@pytest.mark.parametrize("apart", [True, False])
def test_voc_without_lists(tmp_path: Path, apart: bool) -> None:
    """As labelImg leaves it: in VOC's folders, or side by side, where a classes.txt does not make it YOLO's."""
    whole = voc(tmp_path / "whole")
    shutil.rmtree(whole / "ImageSets")
    shutil.copy(whole / "Annotations" / "000005.xml", whole / "Annotations" / "000004.xml")
    shutil.copy(whole / "JPEGImages" / "000005.jpg", whole / "JPEGImages" / "000004.jpg")
    shutil.copy(whole / "JPEGImages" / "000005.jpg", whole / "JPEGImages" / "no_annotation.jpg")
    if not apart:
        beside = tmp_path / "beside"
        beside.mkdir()
        for file in [*whole.glob("*/*.xml"), *whole.glob("*/*.jpg")]:
            shutil.move(file, beside)
        write(beside / "classes.txt", "dog\ncat\n")
        whole = beside
    roidb, names = load_roidb(whole, classes=["dog", "cat"])
    assert [Path(str(entry["image"])).name for entry in roidb] == ["000004.jpg", "000005.jpg"]
    assert all(Path(str(entry["image"])).is_file() for entry in roidb)
    assert names == ["__background__", "dog", "cat"] and roidb[1]["gt_classes"].tolist() == [2, 1]
    with pytest.raises(DataError, match=r"ImageSets.Main.test.txt: no such list of images; the folder has these splits: none"):
        load_roidb(whole, split="test")


def labelled(images: Path, annotations: Path) -> None:
    """Write images a and b with .xml, in two folders or one, and an image without."""
    for folder in (images, annotations):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("a.png", "b.JPG", "none.png"):
        Image.new("RGB", (40, 30)).save(images / name)
    for name in ("a.xml", "b.xml"):
        write(annotations / name, VOC)


@pytest.mark.parametrize("below", ["", "JPEGImages", "images"])
@pytest.mark.parametrize(
    ("annotations", "base", "given"),
    [
        ("set/xml", "set", "set/xml"),
        ("set/xml", "set/xml", "set/xml"),
        ("set/Annotations", "set", "set"),
        ("set/Annotations", "set", "set/Annotations"),
        ("set/Annotations", "set/Annotations", "set"),
    ],
)
def test_where_the_images_of_xml_files_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, annotations: str, base: str, given: str, below: str
) -> None:
    """As a path, and as the working directory, of which the path has no parent."""
    labelled(tmp_path / base / below, tmp_path / annotations)
    for folder in (tmp_path / given, Path()):
        monkeypatch.chdir(tmp_path / given)
        roidb, _ = load_roidb(folder)
        images = [Path(str(entry["image"])) for entry in roidb]
        assert [path.name for path in images] == ["a.png", "b.JPG"]
        assert {path.parent.resolve() for path in images} == {tmp_path / base / below}
        assert [path.name for path in unannotated(roidb)] == ["none.png"]
        prepare_roidb(roidb, 21)


def test_the_folder_with_the_most_images_is_taken(tmp_path: Path) -> None:
    labelled(tmp_path / "images", tmp_path / "xml")
    shutil.copy(tmp_path / "images" / "a.png", tmp_path / "xml")
    shutil.copy(tmp_path / "images" / "a.png", tmp_path)
    assert {Path(str(entry["image"])).parent for entry in load_roidb(tmp_path / "xml")[0]} == {tmp_path / "images"}


def test_xml_files_whose_images_are_elsewhere(tmp_path: Path) -> None:
    labelled(tmp_path / "photos", tmp_path / "xml")
    own = re.escape(str(tmp_path / "xml"))
    with pytest.raises(DataError, match=rf"^{own}: no image found for its \.xml files, such as a\.jpg; ") as found:
        load_roidb(tmp_path / "xml")
    places = f"images must be in {tmp_path / 'xml'} or {tmp_path}, or in JPEGImages/ or images/ of these"
    assert str(found.value).endswith(f"{places} (--images gives another folder)")
    with pytest.raises(DataError, match=rf"^{own}: has no image for the \.xml files of {own}, such as a\.jpg$"):
        load_roidb(tmp_path / "xml", images=tmp_path / "xml")
    roidb, _ = load_roidb(tmp_path / "xml", images=tmp_path / "photos")
    assert [entry["image"] for entry in roidb] == [str(tmp_path / "photos" / name) for name in ("a.png", "b.JPG")]


def test_a_list_of_voc_with_images_elsewhere(tmp_path: Path) -> None:
    (voc(tmp_path / "voc") / "JPEGImages").rename(tmp_path / "photos")
    (entry,) = load_roidb(tmp_path / "voc", images=tmp_path / "photos")[0]
    assert entry["image"] == str(tmp_path / "photos" / "000005.jpg")


def test_names_of_classes_beside_a_folder_of_xml_files(tmp_path: Path) -> None:
    """They make it YOLO's if an image has labels."""
    labelled(tmp_path, tmp_path / "xml")
    write(tmp_path / "classes.txt", "cat\ndog\n")
    assert len(load_roidb(tmp_path / "xml")[0]) == 2
    with pytest.raises(DataError, match=r"not a PASCAL VOC folder: .*; give .*xml$"):
        load_roidb(tmp_path)
    write(tmp_path / "b.txt", "1 0.5 0.5 0.2 0.2\n")
    roidb, names = load_roidb(tmp_path)
    assert [len(entry["boxes"]) for entry in roidb] == [0, 1, 0] and names == ["__background__", "cat", "dog"]
    assert len(load_roidb(tmp_path / "xml")[0]) == 2, "it is no part of YOLO's"
    with pytest.raises(DataError, match=r"a YOLO dataset defines its image folders: give no folder \(--images\)"):
        load_roidb(tmp_path, images=tmp_path)


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
        ("{", r"roidb.json: not JSON \(.*line 1 column 2.*\); it begins with '{'; expected {\"classes\": "),
        ('layer { name: "a" }\n', r"""not JSON \(.*\); it begins with 'layer { name: "a" }'; expected"""),
        (" \n", "roidb.json: the file is empty; expected"),
        ("3", "roidb.json: holds a whole number; expected"),
        ("null", "roidb.json: holds null; expected"),
        ("{}", "roidb.json: images must be a list: the file has no keys; expected .* or COCO instances"),
        ({"pictures": [], "names": []}, "images must be a list: the file has pictures, names; expected"),
        ({"images": "a.png"}, "images must be a list: a text; expected"),
        ({"images": [], "classes": "cat"}, "roidb.json: classes must be a list of names, got 'cat'"),
        ([{"image": "a.png"}], r"roidb.json: images\[0\]: has no boxes: it has image"),
        (["a.png"], r"images\[0\]: must be an object with image, boxes, classes; got a text"),
        (image(image=["a.png"]), r"images\[0\]: image must be a text, got a list"),
        (image(boxes=[[1, 2, 3]]), r"roidb.json: a.png: boxes must be lists of x1, y1, x2, y2, got an array of shape \(1, 3\)"),
        (image(boxes=[[1, 2, 3], [1]]), "roidb.json: a.png: boxes must be lists of x1, y1, x2, y2"),
        (image(boxes=[["a", 2, 3, 4]]), "a.png: boxes must be lists of x1, y1, x2, y2"),
        (image(classes=[1, 2]), "a.png: 1 boxes but 2 classes"),
        (image(classes=["cat"]), 'a.png: class "cat" is not known: the file has no list of classes'),
        ({"classes": NAMES, "images": image(classes=["cat"])}, 'class "cat" is not one of __background__, circle, square'),
        ({"classes": NAMES, "images": image(classes=[3])}, r"class 3 is not one of 1 to 2 \(0 is the background\)"),
        (image(classes=[0]), r"class 0 is not one of 1 to \.\.\. \(0 is the background\)"),
        (image(width="wide", height=3), "roidb.json: a.png: width must be a whole number, at most 2147483647, got 'wide'"),
        ('[{"image": "a.png", "boxes": [], "classes": [], "width": 1e400, "height": 3}]', "a.png: width must .*, got inf"),
        (image(width=40, height=10**3999), "a.png: height must be a whole number, at most 2147483647, got 100000"),
        (image(boxes=[[1, 2, 3, 10**3999]]), "roidb.json: a.png: boxes must be lists of x1, y1, x2, y2: int too large"),
        (image(classes=[10**3999]), r"a.png: class 10*.*0 is not one of 1 to \.\.\. \(0 is the background\)"),
        (coco(images=[{"id": 7, "file_name": "7.jpg", "width": 10**3999, "height": 3}]), r"images\[0\]: width must be at most"),
        (
            coco(annotations=[{"image_id": 7, "category_id": 3, "bbox": [1, 2, 3, 10**3999]}]),
            r"roidb.json: annotations\[0\]: bbox must be x, y, width, height, got \[1, 2, 3, 1000",
        ),
        (
            coco(annotations=[{"image_id": 7, "category_id": 3, "bbox": [1, 2, float("inf"), 3]}]),
            r"roidb.json: annotations\[0\]: bbox must be x, y, width, height, got \[1, 2, inf, 3\]",
        ),
        (coco(categories=[]), r"roidb.json: annotations\[0\]: category_id 18 is not an id of categories"),
        (coco(images=2 * coco()["images"]), r"roidb.json: images\[2\]: id 7 is the id of images\[0\], too"),
        (coco(categories=2 * coco()["categories"]), r"categories\[2\]: id 18 is the id of categories\[0\], too"),
        (
            coco(annotations=[{"image_id": 7, "category_id": 3, "bbox": [1, 2, 3, 4], "area": "12"}]),
            r"roidb.json: annotations\[0\]: area must be a number, got a text",
        ),
        (coco(images=[]), r"annotations\[0\]: image_id 9 is not an id of images"),
        (coco(images={"7": "7.jpg"}), "roidb.json: images must be a list: an object; expected"),
        (coco(images=[{"id": 7}]), r"images\[0\]: has no file_name: it has id"),
        (coco(images=[{"id": [7], "file_name": "7.jpg"}]), r"images\[0\]: id must be a number or a text, got a list"),
        ({"images": [], "annotations": []}, "categories must be a list: the file has images, annotations; expected"),
        (
            coco(annotations=[{"image_id": 7, "category_id": 3, "bbox": [1, 2, 3]}]),
            r"annotations\[0\]: bbox must be x, y, width, height, got \[1, 2, 3\]",
        ),
        (
            coco(annotations=[{"image_id": 7, "bbox": [1, 2, 3]}]),
            r"annotations\[0\]: has no category_id: it has image_id, bbox",
        ),
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
        ("<width>40</width>", "<width>1e400</width>", "000005.xml: width must be a whole number, at most 2147483647, got inf"),
        ("<width>40</width>", "<width>nan</width>", "000005.xml: width must be a whole number, at most 2147483647, got nan"),
        (
            "<annotation>",
            '<?xml version="1.0" encoding="foo"?><annotation>',
            "000005.xml: cannot read the annotation: unknown encoding",
        ),
        (
            "<annotation>",
            '<?xml version="1.0" encoding="hex"?><annotation>',
            "000005.xml: cannot read the annotation: 'hex' is not a",
        ),
        ("<annotation>", '<?xml version="1.0" encoding="utf-7"?><annotation>', "000005.xml: cannot read the annotation: "),
        ("<width>40</width>", f"<width>{'9' * 5000}</width>", "000005.xml: width must be a whole number, at most 2147483647"),
        ("</name>", f"</name><difficult>{'0' * 5000}</difficult>", "000005.xml: cannot read the annotation: Exceeds the limit"),
        ("<name>Cat</name>", "<name>gnu</name>", '000005.xml: class "gnu" is not one of __background__, aeroplane'),
    ],
)
def test_voc_errors(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_roidb(voc(tmp_path, VOC.replace(old, new)))


@pytest.mark.parametrize("corner", ["", "<xmax>nan</xmax>", "<xmax>inf</xmax>", "<xmax>1e39</xmax>"])
def test_a_corner_that_is_missing_or_not_finite(corner: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"000005\.xml: box 0, .*(nan|inf).* is not finite"):
        load_roidb(voc(tmp_path, VOC.replace("<xmax>40</xmax>", corner)))


@pytest.mark.parametrize("key", ["boxes", "proposals"])
def test_a_json_box_that_is_not_finite(key: str, tmp_path: Path) -> None:
    item = {"image": "a.jpg", "boxes": [[0, 0, 1, 1]], "classes": [1], key: [[0, 0, 1, float("nan")]]}
    with pytest.raises(DataError, match=r"roidb\.json: a\.jpg: box 0, \[0\.0, 0\.0, 1\.0, nan\], is not finite"):
        load_roidb(write(tmp_path / "roidb.json", [item]))


def test_a_coco_box_that_is_not_finite(tmp_path: Path) -> None:
    boxes = [{"image_id": 7, "category_id": 3, "bbox": [0, 0, float("nan"), 1]}]
    with pytest.raises(DataError, match=r"roidb\.json: annotations\[0\]: bbox must be x, y, width, height, got"):
        load_roidb(write(tmp_path / "roidb.json", coco(annotations=boxes)))


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.json: no such file: give a file of annotations"):
        load_roidb(tmp_path / "gone.json")
    with pytest.raises(DataError, match=r"test.txt: no such list of images; the folder has these splits: trainval"):
        load_roidb(voc(tmp_path), split="test")
    write(tmp_path / "ImageSets" / "Main" / "trainval.txt", " \n\n")
    with pytest.raises(DataError, match=r"trainval.txt: the list of images is empty: write an image's name in each line"):
        load_roidb(tmp_path)


def test_a_folder_of_another_kind(tmp_path: Path) -> None:
    other = tmp_path / "photos"
    other.mkdir()
    with pytest.raises(DataError, match=r"photos: not a PASCAL VOC folder: it has no \.xml, .*; it is empty. For"):
        load_roidb(other)
    for name in "fedcba":
        write(other / name, "")
    with pytest.raises(DataError, match=r"with any; it holds a, b, c, d, e, \.\.\.\. For annotations in a JSON file"):
        load_roidb(other)
    voc(other / "VOC2007")
    with pytest.raises(DataError, match=r"not a PASCAL VOC folder: .*; give .*photos.VOC2007$"):
        load_roidb(other)


def test_binary_files(tmp_path: Path) -> None:
    (tmp_path / "roidb.json").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(DataError, match=r"roidb.json: not JSON but binary data; expected"):
        load_roidb(tmp_path / "roidb.json")
    (voc(tmp_path) / "ImageSets/Main/trainval.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"trainval.txt: cannot read the list of images: 'utf-8'"):
        load_roidb(tmp_path)
