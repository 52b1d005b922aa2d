"""The result files that DetectionOutput writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from layer_case import LayerCase
from ssd_reference import priors_blob

from minicaffe.errors import DataError, LayerError
from minicaffe.layers.ssd.detection_files import number_or_text, read_label_map

MAP = """item { name: "none" label: 0 display_name: "background" }
item { name: "cat" label: 1 display_name: "Cat" } item { name: "7" label: 2 }"""
BOXES = np.array([[0.1, 0.0, 0.6, 0.5], [0.5, 0.5, 1.0, 1.0]])
SCORES = np.array([[[0.0, 0.9, 0.0], [0.0, 0.0, 0.1234567]], [[0.0, 0.0, 0.0], [0.0, 0.75, 0.0]]])
"""Of two images, two priors and three classes: a cat and a 7 on the first, a cat on the second."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a label map and the sizes of three images."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "map.prototxt").write_text(MAP)
    (tmp_path / "sizes.txt").write_text("one 20 30\n42 10 40\nthree 5 5\n")
    return tmp_path


def text(format_: str = "VOC", more: str = "num_test_image: 2", directory: str = "out") -> str:
    return (
        'type: "DetectionOutput" detection_output_param { num_classes: 3 confidence_threshold: 0.05 save_output_param {\n'
        f'output_directory: "{directory}" output_name_prefix: "set_" output_format: "{format_}"\n'
        f'label_map_file: "map.prototxt" name_size_file: "sizes.txt" {more} }} }}'
    )


def case(inside: str, scores: np.ndarray = SCORES) -> LayerCase:
    return LayerCase(inside, np.zeros((len(scores), 8)), scores.reshape(len(scores), 6), priors_blob(BOXES), dtype=np.float32)


def test_voc_by_hand(folder: Path) -> None:
    """30 wide, 20 high: 3 0 18 10; and 15 10 30 20; 40 wide, 10 high: 20 5 40 10."""
    case(text()).forward()
    assert sorted(path.name for path in (folder / "out").iterdir()) == [".minicaffe_wrote", "set_7.txt", "set_cat.txt"]
    assert (folder / "out" / "set_cat.txt").read_text() == "one 0.9 3 0 18 10\n42 0.75 20 5 40 10\n"
    assert (folder / "out" / "set_7.txt").read_text() == "one 0.123457 15 10 30 20\n"


def test_files_are_in_the_order_of_the_images() -> None:
    assert case(text()).layer.stateful
    assert not case('type: "DetectionOutput" detection_output_param { num_classes: 3 }').layer.stateful


def test_ilsvrc_by_hand(folder: Path) -> None:
    case(text("ILSVRC")).forward()
    lines = ["one 1 0.9 3 0 18 10", "one 2 0.123457 15 10 30 20", "42 1 0.75 20 5 40 10"]
    assert (folder / "out" / "set_.txt").read_text().splitlines() == lines


def test_coco_by_hand(folder: Path) -> None:
    case(text("COCO")).forward()
    found = json.loads((folder / "out" / "set_.json").read_text())
    assert found[0] == {"image_id": "one", "category_id": "cat", "bbox": [3, 0, 15, 10], "score": 0.9}
    assert [(one["image_id"], one["category_id"]) for one in found] == [("one", "cat"), ("one", 7), (42, "cat")]


def test_pixels_are_rounded_to_a_hundredth_and_then_cut() -> None:
    """0.9999 of 20 pixels is 19.998, so 20.00; the box's corner at 3.996 is 4.00 and not 3."""
    boxes = np.array([[0.1332, 0.0, 0.6, 0.9999], [0.5, 0.5, 1.0, 1.0]])
    run = LayerCase(text(), np.zeros((2, 8)), SCORES.reshape(2, 6), priors_blob(boxes), dtype=np.float32)
    run.forward()
    assert Path("out/set_cat.txt").read_text().splitlines()[0] == "one 0.9 4 0 18 20"


def test_the_files_come_when_all_images_have_and_then_again(folder: Path) -> None:
    """Three images, two a batch: after the second batch the files, its second image being the first of the next round."""
    run, file = case(text(more="")), folder / "out" / "set_cat.txt"
    run.forward()
    assert not file.parent.exists()
    run.forward()
    assert [line.split()[:2] for line in file.read_text().splitlines()] == [["one", "0.9"], ["42", "0.75"], ["three", "0.9"]]
    run.forward()
    assert [line.split()[:2] for line in file.read_text().splitlines()] == [["one", "0.75"], ["42", "0.9"], ["three", "0.75"]]
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == [".minicaffe_wrote"]


def test_a_state_goes_on(folder: Path) -> None:
    straight, first, other = (case(text("ILSVRC", more="", directory=name)) for name in "abc")
    for _ in range(3):
        straight.forward()
    first.forward()
    other.layer.restore_training_state(json.loads(json.dumps(first.layer.training_state())))
    other.forward()
    other.forward()
    assert (folder / "c" / "set_.txt").read_bytes() == (folder / "a" / "set_.txt").read_bytes()


def test_numbers() -> None:
    assert [number_or_text(name) for name in ("42", "0", "042", "-1", "a1", "²")] == [42, 0, "042", "-1", "a1", "²"]
    assert number_or_text("9" * 18) == 10**18 - 1
    for digits in (19, 5000):  # beyond 64 bits, and beyond what Python makes a number of
        assert number_or_text("9" * digits) == "9" * digits


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        (text("VOCC"), 'output_format must be VOC, COCO, ILSVRC, got "VOCC"'),
        (text(more="num_test_image: 4"), "num_test_image must be 1 to 3, the images of name_size_file, got 4"),
        (text(more="resize_param { height: 3 }"), "resize_param needs a height and a width > 0, got 3 and 0"),
        (text(directory="map.prototxt"), "map.prototxt: .*/map.prototxt is no folder, so results cannot be written into it"),
        (text(directory="map.prototxt/in"), "map.prototxt/in: .*/map.prototxt is no folder"),
        (text().replace("set_", "../set_"), '"../set_cat.txt" leads out of the folder out'),
        (text().replace("set_", "in/set_"), '"in/set_cat.txt" leads out of the folder out'),
        (text().replace("set_", "in\\\\\\\\"), ".* leads out of the folder out"),
        (text().replace("set_", "/etc/set_"), "/etc/set_cat.txt is not in the working directory"),
        (text().replace("num_classes: 3", "num_classes: 4"), "map.prototxt: no item has the label 3"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match='DetectionOutput layer "layer": ' + message):
        case(inside)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('item { name: "a" label: 1 } item { name: "a" label: 2 }', "bad.prototxt: a name or a label stands in it twice"),
        ('item { name: "a" label: 1 } item { name: "b" label: 1 }', "bad.prototxt: a name or a label stands in it twice"),
        ("item { name: ", "bad.prototxt:1:"),
    ],
)
def test_bad_label_maps(content: str, message: str) -> None:
    Path("bad.prototxt").write_text(content)
    with pytest.raises(DataError, match=message):
        read_label_map("bad.prototxt")
    with pytest.raises(DataError, match="absent: no such file"):
        read_label_map("absent")


def test_a_class_is_no_path() -> None:
    Path("map.prototxt").write_text(MAP.replace('"cat"', '"../cat"'))
    with pytest.raises(LayerError, match=r'map.prototxt: "../cat" cannot be part of a file name'):
        case(text())


def test_a_file_that_cannot_be_written(folder: Path) -> None:
    run = case(text())
    (folder / "out").write_text("")
    with pytest.raises(LayerError, match=r"set_cat\.txt: cannot be written: File exists"):
        run.forward()


def test_making_and_reshaping_write_nothing(folder: Path) -> None:
    run = case(text(directory="deep/out"))
    run.layer.reshape(run.bottom, run.top)
    assert sorted(path.name for path in folder.iterdir()) == ["map.prototxt", "sizes.txt"]
    run.forward()
    assert (folder / "deep" / "out" / "set_cat.txt").exists()


def test_only_what_a_run_wrote_is_replaced(folder: Path) -> None:
    """A package.json is refused when the net is made, and again where it comes later; results of another run are replaced."""
    package, coco = folder / "package.json", text("COCO", directory=".").replace("set_", "package")
    refused = r"package\.json is there, and no run wrote it: not overwritten; remove it, or give another name"
    package.write_text("{}")
    with pytest.raises(LayerError, match=refused):
        case(coco)
    package.unlink()
    run = case(coco)
    package.write_text("{}")
    with pytest.raises(LayerError, match=refused):
        run.forward()
    assert package.read_text() == "{}"
    package.unlink()
    case(coco).forward()
    first = package.read_bytes()
    case(coco, SCORES[:, ::-1]).forward()
    assert package.read_bytes() != first
    package.write_bytes(package.read_bytes() + b" ")
    with pytest.raises(LayerError, match=refused):
        case(coco)
    package.write_bytes(first)  # which a run wrote
    case(coco)


def test_files_of_holes_are_not_read(folder: Path) -> None:
    """They may have any size: a folder of a stranger's may hold one as the record, or as a result."""
    case(text()).forward()
    record = folder / "out" / ".minicaffe_wrote"
    kept = record.read_bytes()
    os.truncate(record, 1 << 40)
    with pytest.raises(LayerError, match=r"set_cat\.txt is there, and no run wrote it"):
        case(text())
    record.write_bytes(kept)
    os.truncate(folder / "out" / "set_cat.txt", 1 << 40)
    with pytest.raises(LayerError, match=r"set_cat\.txt: the file has 1,099,511,627,776 bytes, and the limit is 1,073,741,824"):
        case(text())


def test_what_stands_in_place_of_the_record(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "elsewhere").write_text("kept")
    record = folder / "out" / ".minicaffe_wrote"
    record.symlink_to(folder / "elsewhere")
    with pytest.raises(LayerError, match=r"\.minicaffe_wrote: this is a link"):
        case(text()).forward()
    record.unlink()
    record.hardlink_to(folder / "elsewhere")
    with pytest.raises(LayerError, match=r"\.minicaffe_wrote: this file has another name, too"):
        case(text()).forward()
    assert (folder / "elsewhere").read_text() == "kept"
    record.unlink()
    os.mkfifo(record)
    with pytest.raises(LayerError, match="cannot be written: No such device or address"):
        case(text()).forward()
    record.unlink()
    record.write_bytes(b"\xff\n[1]\n[[], {}]\n7\n" + json.dumps(["set_cat.txt", "0"]).encode())
    (folder / "out" / "set_cat.txt").write_text("")
    with pytest.raises(LayerError, match=r"set_cat\.txt is there, and no run wrote it"):
        case(text())
    (folder / "out" / "set_cat.txt").unlink()
    (folder / "out" / "set_cat.txt").mkdir()
    with pytest.raises(LayerError, match=r"set_cat\.txt is there, and no run wrote it"):
        case(text())
