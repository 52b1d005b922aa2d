"""minicaffe evaluate, and detect --save: what one writes the other reads."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe.cli import main
from minicaffe.detection.class_names import COCO
from minicaffe.detection.detect import Detections
from minicaffe.detection.evaluation import evaluate
from minicaffe.detection.result_files import write_results

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
NET = SHAPES / "rfcn" / "test.prototxt", SHAPES / "rfcn" / "shapes_rfcn.caffemodel"
CFG, NAMES = ("--cfg", SHAPES / "shapes.yml"), ("--classes", SHAPES / "classes.txt")


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(SHAPES / "scene.png", tmp_path)
    return tmp_path


def test_the_scene(folder: Path) -> None:
    result = run("evaluate", *NET, SHAPES / "scene.json", *CFG, "-o", "numbers.json", "--draw", "curves.png")
    assert result.exit_code == 0, result.output
    assert f"classes in the order of {SHAPES / 'scene.json'}: circle, square, triangle (--classes" in result.stderr
    lines = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    assert lines["circle"][:1] == ["5"] and float(lines["square"][2]) == 1 and float(lines["mean"][2]) > 0.9
    numbers = json.loads(Path("numbers.json").read_text())
    assert numbers["images"] == 1 and [one["class"] for one in numbers["classes"]] == ["circle", "square", "triangle"]
    assert run("evaluate", *NET, SHAPES / "scene.json", *CFG, "--json", "old.json").exit_code == 0
    assert json.loads(Path("old.json").read_text()) == numbers
    with Image.open("curves.png") as curves:
        assert curves.size == (800, 560) and len(curves.getcolors(1 << 20) or []) > 5


def test_a_folder_of_labelimg(folder: Path) -> None:
    """Images and .xml side by side, and no list of images."""
    scene = json.loads((SHAPES / "scene.json").read_text())["images"][0]
    names = ["", "circle", "square", "triangle"]
    objects = "".join(
        f"<object><name>{names[kind]}</name><pose>Unspecified</pose><truncated>0</truncated><difficult>0</difficult><bndbox>"
        + "".join(f"<{at}>{value + 1}</{at}>" for at, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
        + "</bndbox></object>"
        for kind, box in zip(scene["classes"], scene["boxes"], strict=True)
    )
    Path("scene.xml").write_text(f'<annotation verified="yes"><filename>scene.png</filename>{objects}</annotation>')
    result = run("evaluate", *NET, ".", *CFG, *NAMES)
    assert result.exit_code == 0, result.output
    assert ".: has no list of images (ImageSets/Main): using all 1 annotated image" in result.stderr
    assert float(result.stdout.split("mean")[1].split()[2]) > 0.9
    assert "left out" not in result.stderr
    result = run("evaluate", *NET, ".", *CFG)
    assert result.exit_code == 1 and "give other names with --classes FILE" in result.stderr
    for name in ("xml", "photos"):
        Path(name).mkdir()
    Path("scene.xml").rename("xml/scene.xml")
    for name in ("photos/scene.png", "photos/other.png", "photos/another.png"):
        shutil.copy("scene.png", name)
    Path("scene.png").unlink()
    words = "evaluate", *NET, "xml", *CFG, *NAMES
    result = run(*words)
    assert result.exit_code == 1 and "xml: no image found" in result.stderr and "(--images gives" in result.stderr
    result = run(*words, "--images", "photos")
    assert result.exit_code == 0, result.output
    assert "photos: left out 2 images without an .xml, the first another.png" in result.stderr
    assert float(result.stdout.split("mean")[1].split()[2]) > 0.9
    Path("photos/other.png").unlink()
    assert "photos: left out 1 image without an .xml, the first another.png" in run(*words, "--images", "photos").stderr


@pytest.mark.parametrize("form", ["csv", "yolo"])
def test_what_detect_saves_is_what_it_finds(form: str, folder: Path) -> None:
    saved = "found.csv" if form == "csv" else "."
    result = run("detect", *NET, "scene.png", *CFG, *NAMES, "--save", saved)
    assert result.exit_code == 0 and f"written: {saved}" in result.stdout, result.output
    if form == "yolo":
        shutil.copy(SHAPES / "classes.txt", folder)
        assert len(Path("scene.txt").read_text().splitlines()) == 8
    result = run("evaluate", *NET, saved, *CFG, *NAMES, "--threshold", "0.5")
    assert result.exit_code == 0, result.output
    mean = result.stdout.split("mean")[1].split()
    assert mean[:4] == ["8", "8", "1.0000", "1.0000"]


def test_cocos_results(folder: Path) -> None:
    """loadRes takes them; images have the numbers of their names."""
    Path("scene.png").rename("COCO_val2014_000000000042.png")
    result = run("detect", *NET, "COCO_val2014_000000000042.png", *CFG, *NAMES, "--save", "results.json", "--json")
    assert result.exit_code == 0 and "written: results.json" in result.stderr, result.output
    results, shown = json.loads(Path("results.json").read_text()), json.loads(result.stdout)[0]["detections"]
    assert len(results) == len(shown) == 8 and {one["image_id"] for one in results} == {42}
    for one, other in zip(results, shown, strict=True):
        x1, y1, x2, y2 = other["box"]
        np.testing.assert_allclose(one["bbox"], [x1, y1, x2 - x1 + 1, y2 - y1 + 1], atol=0.2)
        assert one["category_id"] == other["class_index"] and one["score"] == pytest.approx(other["score"], abs=1e-4)
    coco = pytest.importorskip("pycocotools.coco")
    known = coco.COCO()
    known.dataset = {"info": {}, "images": [{"id": 42}], "categories": [{"id": k} for k in (1, 2, 3)], "annotations": []}
    known.createIndex()
    assert len(known.loadRes("results.json").anns) == 8


@pytest.mark.parametrize(
    ("images", "ids"),
    [
        (["a/im_0001.png", "a/im_0002.png", "a/im_0001.png"], [1, 2, 1]),
        (["im_0001.png", "cat.png"], ["im_0001", "cat"]),
        (["cam1_0001.png", "cam2_0001.png"], ["cam1_0001", "cam2_0001"]),
        (["2020_01.png", "2021_1.png"], ["2020_01", "2021_1"]),
        (["d1/a.png", "d2/a.png"], ["d1/a.png", "d2/a.png"]),
        (["a.mp4/000001", "b.mp4/000001"], ["a.mp4/000001", "b.mp4/000001"]),
    ],
)
def test_different_images_have_different_image_ids(tmp_path: Path, images: list[str], ids: list[object]) -> None:
    one = Detections(np.ones((1, 4), np.float32), np.ones(1, np.float32), np.ones(1, np.int64))
    write_results(tmp_path / "out.json", [(name, (4, 5), one) for name in images], None)
    assert [each["image_id"] for each in json.loads((tmp_path / "out.json").read_text())] == ids


@pytest.mark.parametrize("option", ["--classes", "--cfg"])
def test_what_detect_saves_replaces_no_input(option: str, folder: Path) -> None:
    given = Path("given.json" if option == "--cfg" else "given.csv")
    given.write_text("{}" if option == "--cfg" else "circle\nsquare\ntriangle\n")
    before = given.read_bytes()
    result = run("detect", *NET, "scene.png", option, given, "--save", given)
    assert result.exit_code == 1 and f"--save {given}: this is an input" in result.stderr, result.output
    assert given.read_bytes() == before


def test_names_that_differ_in_capitals_alone(tmp_path: Path) -> None:
    one = Detections(np.ones((1, 4), np.float32), np.ones(1, np.float32), np.ones(1, np.int64))
    found = [(name, (4, 5), one) for name in ("a/Photo.png", "b/photo.png", "c/photo.png")]
    write_results(tmp_path / "out", found, None)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["Photo.txt", "photo-2.txt", "photo-3.txt"]
    write_results(tmp_path / "out.csv", [("a.png", (4, 5), Detections(one.boxes[:0], one.scores[:0], one.classes[:0]))], None)
    with (tmp_path / "out.csv").open(newline="") as file:
        assert list(csv.reader(file))[1] == ["a.png", "", "", "", "", "", "", "5", "4"]


def test_ignored_boxes_count_neither_way() -> None:
    """A difficult box that is found, one that is not, and a second detection of a box, which is false."""
    boxes = np.array([[0, 0, 9, 9], [20, 0, 29, 9], [0, 0, 9, 8]], np.float32)
    found = Detections(boxes, np.array([0.9, 0.8, 0.7], np.float32), np.ones(3, np.int64))
    entry = {"image": "a", "boxes": boxes[:1], "gt_classes": np.ones(1, int)}
    entry["ignored_boxes"], entry["ignored_classes"] = np.array([[20, 0, 29, 9], [50, 0, 59, 9.0]]), np.ones(2, int)
    for coco in (False, True):
        if coco:
            pytest.importorskip("pycocotools")
        report = evaluate([found], [entry], ["__background__", "thing", "nothing"], coco=coco)
        thing, nothing = report.classes
        assert (thing.truth, thing.found, thing.ap) == (1, 3, 1) and thing.precision.tolist() == [1, 0.5]
        assert np.isnan(nothing.ap) and report.mean_ap == 1
        assert report.as_json()["classes"][1]["ap"] is None
    assert thing.coco["AP50"] == pytest.approx(1) and report.coco["AP"] == pytest.approx(1)


def test_coco_without_a_detection() -> None:
    pytest.importorskip("pycocotools")
    none = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))
    entry = {"image": "a", "boxes": np.array([[0, 0, 9, 9.0]]), "gt_classes": np.ones(1, int)}
    report = evaluate([none], [entry], ["__background__", "thing"], coco=True)
    assert report.mean_ap == 0 and report.coco["AP"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone.json"], "gone.json: no such file"),
        (["boxes.csv"], "lacks the order of the classes"),
        (["boxes.csv", "--classes", "two.txt"], "3 classes with the background, but"),
        (["scene.json", "--out", "nowhere/out.json"], "there is no folder"),
        (["scene.json", "-o", "out.png", "--draw", "out.png"], "--out out.png: this command writes .json, not .png"),
        (["scene.json", "--draw", "out.xyz"], "--draw out.xyz: the picture is a PNG file; give a name that ends in .png"),
        (["scene.json", "--draw", "out"], "--draw out: the picture is a PNG file"),
        (["scene.json", "--draw", "scene.png"], "--draw scene.png: this is an input, and would be replaced"),
        (["scene.json", "-o", "scene.json"], "--out scene.json: this is an input, and would be replaced"),
        (["scene.json", "--images", "nowhere"], "--images nowhere: no such folder"),
        (["broken.json"], "broken.png"),
        (["elsewhere.json"], "elsewhere.json: images missing: 1 of 1; there has no gone.png (--images gives another folder)"),
        (["voc", "--split", "val"], "the folder has these splits: test (--split NAME selects one)"),
        (["voc"], "give other names with --classes FILE, one per line"),
    ],
)
def test_mistakes(words: list[str], message: str, folder: Path) -> None:
    shutil.copy(SHAPES / "scene.json", folder)
    Path("boxes.csv").write_text("image,xmin,ymin,xmax,ymax,class\nscene.png,1,2,3,4,circle\n")
    Path("two.txt").write_text("circle\nsquare\n")
    Path("broken.png").write_bytes(b"no picture")
    content = json.loads(Path("scene.json").read_text())
    content["images"][0]["image"] = "broken.png"
    Path("broken.json").write_text(json.dumps(content))
    content["images"][0]["image"] = "there/gone.png"
    Path("elsewhere.json").write_text(json.dumps(content))
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        Path("voc", name).mkdir(parents=True)
    Path("voc/ImageSets/Main/test.txt").write_text("a\n")
    corners = "".join(f"<{name}>{i}</{name}>" for i, name in enumerate(("xmin", "ymin", "xmax", "ymax"), 3))
    thing = f"<object><name>circle</name><difficult>0</difficult><bndbox>{corners}</bndbox></object>"
    Path("voc/Annotations/a.xml").write_text(f"<annotation><filename>a.jpg</filename>{thing}</annotation>")
    shutil.copy("scene.png", "voc/JPEGImages/a.jpg")
    result = run("evaluate", *NET, *words, *CFG)
    assert result.exit_code == 1 and message in result.stderr, result.output
    assert not list(Path().glob("out*"))


@pytest.mark.slow
def test_the_settings_are_printed(folder: Path) -> None:
    """What the photos were scaled to is not in the prototxt: without --cfg the numbers may be those of other settings."""
    words = ("evaluate", *NET, SHAPES / "scene.json")
    assert "Preprocessing: short side 600, long side at most 1000" in run(*words).stderr
    assert f"(from {CFG[1]})" in run(*words, *CFG).stderr


def test_pycocotools_is_named_where_it_is_absent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minicaffe.cli.evaluate.find_spec", lambda name: None)
    result = run("evaluate", *NET, SHAPES / "scene.json", *CFG)
    assert result.exit_code == 0 and "COCO AP" not in result.stdout and "[coco]" in result.stderr


def test_cocos_ids_of_its_80_categories(tmp_path: Path) -> None:
    """From COCO's own list; other names are numbered as they come."""
    ids = [*range(1, 12), *range(13, 26), 27, 28, *range(31, 45), *range(46, 66), 67, 70, *range(72, 83), *range(84, 91)]
    some = Detections(np.tile([1.0, 2, 5, 7], (80, 1)), np.ones(80), np.arange(1, 81))
    for names, expected in ((COCO, ids), (COCO[1:], list(range(1, 81)))):
        write_results(tmp_path / "out.json", [("a.png", (9, 11), some)], names)
        assert [one["category_id"] for one in json.loads((tmp_path / "out.json").read_text())] == expected
